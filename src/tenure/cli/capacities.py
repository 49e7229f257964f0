"""`tenure capacities`: lists, shows and sets the seats of capacities."""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.flags import LISTED, AllFlag, JsonFlag, LimitFlag, TenantFlag, YesFlag, new_group
from tenure.cli.output import Cell, Column, Value, confirm, note, print_fields, print_table, time_cell
from tenure.cli.service import Service, with_service
from tenure.cli.sessions import print_sessions
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure_client.models import Capacity

NO_LIMIT = "none"
HOLDERS = 10
"""How many sessions `show` prints below the seats."""

capacities_commands = new_group("List, show and set the seats of capacities.")

CapacityArgument = Annotated[str, typer.Argument(help="The id of the capacity.", metavar="CAPACITY")]


@capacities_commands.command("list")
@with_service
def list_capacities(
    service: Service,
    tenant: TenantFlag = None,
    limit: LimitFlag = LISTED,
    every: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List the capacities that have their own settings, with the seats that are taken.

    The settings are the number of seats, what happens when all seats are taken, and the tenant.

    tenure capacities list
    """
    fetch = partial(service.client.capacities.list, tenant=tenant)
    most = None if every else limit
    if as_json:
        service.print_list_json(fetch, "capacities", most)
        return
    columns = (
        Column("capacity"),
        Column("taken"),
        Column("seats"),
        Column("free"),
        Column("when full", 1),
        Column("tenant", 2),
        Column("modified", 3),
    )
    at = service.now()
    rows = [_row(capacity, at) for capacity in service.items(fetch, "capacities", most)]
    print_table(columns, rows, "no capacities to list; a capacity without settings has unlimited seats")


def _row(capacity: "Capacity", at: datetime) -> list[Value]:
    return [
        capacity.capacity_id,
        capacity.active_sessions,
        NO_LIMIT if capacity.max_sessions is None else capacity.max_sessions,
        _free_cell(capacity),
        capacity.when_full,
        capacity.tenant_object_id,
        time_cell(capacity.modified_at, at),
    ]


def _free_cell(capacity: "Capacity") -> Cell:
    if capacity.max_sessions is None:
        return Cell("-")
    free = max(capacity.max_sessions - capacity.active_sessions, 0)
    return Cell(str(free), style=None if free else "bad")


@capacities_commands.command("show")
@with_service
def show_capacity(service: Service, capacity_id: CapacityArgument, as_json: JsonFlag = False) -> None:
    """Show the seats of a capacity, and the ten sessions with the earliest deadlines among those that hold seats.

    tenure capacities show 0190b0a0-0000-7000-8000-0000000000c1
    """
    capacity = service.client.capacities.get(capacity_id)
    if as_json:
        service.print_json()
        return
    _print_capacity(capacity, service.now())
    holders = service.client.sessions.list(capacity=capacity_id, order="lapse", limit=HOLDERS).first()
    if holders.sessions:
        typer.echo()
        print_sessions(holders.sessions, service.now())
    if holders.next_cursor is not None:
        note(f"the {HOLDERS} with the earliest deadlines; for all: tenure sessions list --all --capacity {capacity_id}")


def _print_capacity(capacity: "Capacity", at: datetime) -> None:
    limit = "" if capacity.max_sessions is None else f" of {capacity.max_sessions}"
    fields: dict[str, Value] = {
        "capacity": Cell(capacity.capacity_id, style="bold"),
        "seats taken": f"{capacity.active_sessions}{limit or ', without a limit'}",
        "seats free": _free_cell(capacity) if limit else "unlimited",
        "when full": capacity.when_full,
        "tenant": capacity.tenant_object_id or "any",
        "created": time_cell(capacity.created_at, at),
        "modified": time_cell(capacity.modified_at, at),
    }
    print_fields(fields)


@capacities_commands.command("set")
@with_service
def set_capacity(
    service: Service,
    capacity_id: CapacityArgument,
    seats: Annotated[
        str | None, typer.Option(help="The maximum number of live sessions, or `none`.", metavar="NUMBER")
    ] = None,
    when_full: Annotated[
        str | None,
        typer.Option(
            help="The rule for an open request when all seats are taken: reject refuses it, evictOldest ends the "
            "session with the oldest activity.",
            metavar="RULE",
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="The only tenant that can open sessions on the capacity, or `any`.", metavar="UUID"),
    ] = None,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Set the seats of a capacity, its tenant, or what happens when all seats are taken.

    A setting whose flag is not given does not change.

    No live session ends, even if there are now more sessions than seats.

    tenure capacities set 0190b0a0-0000-7000-8000-0000000000c1 --seats 25
    tenure capacities set 0190b0a0-0000-7000-8000-0000000000c1 --when-full evictOldest --yes
    """
    if seats is None and when_full is None and tenant is None:
        raise ConfigurationError("seats: give at least one of --seats, --when-full and --tenant")
    old = _capacity_or_none(service, capacity_id)
    wanted: dict[str, Any] = {
        "max_sessions": _seats_of(seats) if seats is not None else old and old.max_sessions,
        "when_full": when_full or (old.when_full if old else "reject"),
        "tenant": (None if tenant == "any" else tenant) if tenant is not None else old and old.tenant_object_id,
    }
    if wanted["when_full"] == "evictOldest" and (old is None or old.when_full != "evictOldest"):
        confirm("With this rule, an open request ends a live session when the capacity is full. Set it?", yes=yes)
    capacity = service.client.capacities.set(capacity_id, **wanted)
    if as_json:
        service.print_json()
    else:
        _print_capacity(capacity, service.now())


def _capacity_or_none(service: Service, capacity_id: str) -> "Capacity | None":
    from tenure_client.errors import NotFound  # noqa: PLC0415

    try:
        return service.client.capacities.get(capacity_id)
    except NotFound:
        return None


def _seats_of(text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    if not text.isdecimal():
        raise ConfigurationError("seats: must be a whole number, or none")
    return int(text)
