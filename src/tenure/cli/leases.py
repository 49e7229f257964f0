"""`tenure leases`: lists who leads, and ends a lease."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.flags import JsonFlag, YesFlag, new_group
from tenure.cli.output import Cell, Column, Value, confirm, print_table, time_cell
from tenure.cli.overview import is_job_lock
from tenure.cli.service import Service, with_service

if TYPE_CHECKING:
    from tenure_client.models import Lease

leases_commands = new_group("List leases and their holders, and end a lease.")

LeaseArgument = Annotated[str, typer.Argument(help="The name of the lease, as `list` prints it.", metavar="LEASE")]


@leases_commands.command("list")
@with_service
def list_leases(service: Service, as_json: JsonFlag = False) -> None:
    """List the leases: who holds each of them, since when and until when.

    A lease whose name begins with `job:` is the lock of a job, and is held only while the job runs.

    tenure leases list
    """
    if as_json:
        service.print_list_json(service.client.leases.list, "leases", None)
        return
    columns = (
        Column("lease"),
        Column("held"),
        Column("holder"),
        Column("epoch", 3),
        Column("acquired", 1),
        Column("renewed", 4),
        Column("expires", 2),
    )
    at = service.now()
    found = service.items(service.client.leases.list, "leases", None)
    found.sort(key=lambda lease: (is_job_lock(lease), lease.name))
    print_table(columns, [_row(lease, at) for lease in found], "no leases yet")


def _row(lease: "Lease", at: datetime) -> list[Value]:
    return [
        lease.name,
        Cell("yes", style="good") if lease.held else Cell("no", style="dim" if is_job_lock(lease) else "warn"),
        lease.holder if lease.held else Cell(f"({lease.holder})", style="dim"),
        lease.epoch,
        time_cell(lease.acquired_at, at),
        time_cell(lease.renewed_at, at),
        time_cell(lease.expires_at, at),
    ]


@leases_commands.command("resign")
@with_service
def resign_lease(service: Service, lease: LeaseArgument, yes: YesFlag = False, as_json: JsonFlag = False) -> None:
    """End a lease now. Its holder stops its work, and another instance acquires the lease.

    tenure leases resign submission-executor --yes
    """
    confirm(f"End lease {lease}? Its holder stops its work, and another instance takes over.", yes=yes)
    ended = service.client.leases.resign(lease)
    if as_json:
        service.print_json()
    else:
        typer.echo(f"{ended.name} of {ended.holder} (epoch {ended.epoch}) has ended")
