"""`tenure leases`: lists leases, their holders and their history, and resigns a lease."""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.flags import AllFlag, FromFlag, JsonFlag, LimitFlag, ToFlag, YesFlag, new_group, span_of
from tenure.cli.output import Cell, Column, Value, confirm, duration_text, print_table, time_cell
from tenure.cli.overview import is_job_lock
from tenure.cli.service import Service, with_service
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure_client.models import Lease, Term

HOW = {"expired": "bad", "resigned": "warn", "released": "dim"}

leases_commands = new_group("List leases, their holders and their history, and end a lease.")

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


@leases_commands.command("history")
@with_service
def show_history(
    service: Service,
    lease: Annotated[
        str | None, typer.Argument(help="The name of a lease; without it, all leases.", metavar="LEASE")
    ] = None,
    from_at: FromFlag = None,
    to_at: ToFlag = None,
    limit: LimitFlag = 20,
    every: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List who held which lease when, and how each term ended, newest first.

    Terms are kept for 30 days after their end. `--from` and `--to` select the terms that overlap the time between them;
    they cannot be combined with LEASE. Locks of jobs are not in this history: `tenure jobs runs` lists the runs of a
    job.

    tenure leases history
    tenure leases history submission-executor --limit 5
    tenure leases history --from 2026-11-17
    """
    from_instant, to_instant = span_of(from_at, to_at)
    if lease is not None and (from_at or to_at):
        raise ConfigurationError("lease: cannot be combined with --from or --to")
    leases = service.client.leases
    fetch = (
        partial(leases.timeline, from_=from_instant, to=to_instant) if lease is None else partial(leases.history, lease)
    )
    most = None if every else limit
    if as_json:
        service.print_list_json(fetch, "terms", most)
        return
    columns = (
        Column("lease"),
        Column("holder"),
        Column("held for"),
        Column("ended"),
        Column("acquired", 1),
        Column("end", 2),
        Column("epoch", 3),
    )
    at = service.now()
    print_table(columns, [_term_row(term, at) for term in service.items(fetch, "terms", most)], "no terms")


def _term_row(term: "Term", at: datetime) -> list[Value]:
    how = term.how or "still held"
    return [
        term.name,
        term.holder,
        duration_text(max(((term.ended_at or at) - term.acquired_at).total_seconds(), 0.0)),
        Cell(how, style=HOW.get(how, "good")),
        time_cell(term.acquired_at, at),
        time_cell(term.ended_at, at),
        term.epoch,
    ]


@leases_commands.command("resign")
@with_service
def resign_lease(service: Service, lease: LeaseArgument, yes: YesFlag = False, as_json: JsonFlag = False) -> None:
    """End a lease now. Its holder stops its work, and another instance, if one is running, acquires the lease.

    tenure leases resign submission-executor --yes
    """
    confirm(f"End lease {lease}? The holder stops, and another instance, if one runs, takes over.", yes=yes)
    ended = service.client.leases.resign(lease)
    if as_json:
        service.print_json()
    else:
        typer.echo(f"{ended.name} of {ended.holder} (epoch {ended.epoch}) has ended")
