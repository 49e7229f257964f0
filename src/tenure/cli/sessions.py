"""`tenure sessions`: lists, shows, opens and ends sessions of a running service."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.exits import fail
from tenure.cli.flags import (
    LISTED,
    AllFlag,
    CapacityFlag,
    JsonFlag,
    KindFlag,
    LimitFlag,
    TenantFlag,
    UserFlag,
    YesFlag,
    new_group,
    whole_id,
)
from tenure.cli.output import (
    Cell,
    Column,
    Value,
    confirm,
    counted,
    duration_text,
    id_cell,
    note,
    print_fields,
    print_table,
    progress,
    time_cell,
)
from tenure.cli.service import Service, with_service
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure_client.models import Session

KINDS = {1: "basic", 2: "standard", 3: "premium"}
STATES = ("created", "active", "closing", "closed")
ORDERS = ("newest", "lapse")
STYLES = {"active": "good", "created": "accent", "closing": "warn", "closed": "dim"}

HOLD_LEASE_SECONDS = 60

sessions_commands = new_group("List, show, open and end sessions.")

SessionArgument = Annotated[str, typer.Argument(help="The id of the session.", metavar="SESSION")]


@sessions_commands.command("list")
@with_service
def list_sessions(
    service: Service,
    tenant: TenantFlag = None,
    user: UserFlag = None,
    capacity: CapacityFlag = None,
    kind: KindFlag = None,
    state: Annotated[
        str | None, typer.Option(help="Only in this state: created, active, closing or closed.", metavar="STATE")
    ] = None,
    close_reason: Annotated[
        str | None, typer.Option(help="Only sessions with this close reason, such as LEASE_EXPIRED.", metavar="REASON")
    ] = None,
    ended: Annotated[bool, typer.Option("--ended", help="List sessions that have ended.")] = False,
    order: Annotated[
        str, typer.Option(help="newest: latest start first. lapse: earliest deadline first.", metavar="ORDER")
    ] = "newest",
    limit: LimitFlag = LISTED,
    every: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List live sessions, newest first. With `--ended`, list sessions that have ended. With `--state` or
    `--close-reason`, but without `--ended`, list live and ended sessions.

    tenure sessions list
    tenure sessions list --order lapse --limit 10
    tenure sessions list --capacity 0190b0a0-0000-7000-8000-0000000000c1
    tenure sessions list --ended --close-reason LEASE_EXPIRED
    """
    if state is not None and state not in STATES:
        raise ConfigurationError(f"state: must be {', '.join(STATES)}")
    if order not in ORDERS:
        raise ConfigurationError(f"order: must be {' or '.join(ORDERS)}")
    given = state is not None or close_reason is not None
    filters: dict[str, Any] = {
        "tenant": tenant,
        "user": user,
        "capacity": capacity,
        "kind": kind,
        "state": state,
        "close_reason": close_reason,
        "active": False if ended else None if given else True,
    }
    fetch = partial(service.client.sessions.list, **filters, order=None if order == ORDERS[0] else order)
    most = None if every else limit
    if as_json:
        service.print_list_json(fetch, "sessions", most)
        return
    found = service.items(fetch, "sessions", most, lambda: _count_text(service, filters))
    filtered = given or any((tenant, user, capacity, kind))
    print_sessions(found, service.now(), "no sessions match" if filtered else "no sessions")


def _count_text(service: Service, filters: dict[str, Any]) -> str:
    count = service.client.sessions.count(**filters)
    return f"{count.count:,}" if count.exact else f"more than {count.count:,}"


def print_sessions(sessions: "Sequence[Session]", at: datetime, empty: str = "no sessions") -> None:
    some_ended = any(session.close_reason is not None for session in sessions)
    columns = (
        Column("session"),
        Column("state"),
        Column("kind", 4),
        Column("user", 2),
        Column("capacity", 3),
        Column("tenant", 7),
        Column("started", 5),
        Column("ends"),
        # The second argument is the rank: a narrow terminal shows the columns with low ranks. If some sessions have
        # ended, the reason is more important than the user, the capacity and the tenant.
        Column("reason", 1 if some_ended else 6),
    )
    print_table(columns, [_row(session, at) for session in sessions], empty)


def _row(session: "Session", at: datetime) -> list[Value]:
    return [
        session.session_id,
        Cell(session.state, style=STYLES.get(session.state)),
        KINDS.get(session.session_kind, str(session.session_kind)),
        id_cell(session.user_object_id),
        id_cell(session.capacity_id),
        id_cell(session.tenant_object_id),
        time_cell(session.session_start_utc, at),
        time_cell(session.lease_expires_at if session.is_active else session.session_end_utc, at),
        session.close_reason,
    ]


@sessions_commands.command("show")
@with_service
def show_session(service: Service, session_id: SessionArgument, as_json: JsonFlag = False) -> None:
    """Show a session: its user, whether it is live, and when it ends or why it ended.

    tenure sessions show 01a1e0e8-4a5d-7768-a74d-758932e546ff
    """
    session = service.client.sessions.get(whole_id(session_id))
    if as_json:
        service.print_json()
    else:
        print_session(session, service.now())


def print_session(session: "Session", at: datetime) -> None:
    fields: dict[str, Value] = {
        "session": Cell(session.session_id, style="bold"),
        "state": Cell(session.state, style=STYLES.get(session.state)),
        "kind": f"{session.session_kind} ({KINDS.get(session.session_kind, 'unknown')})",
        "user": session.user_object_id,
        "tenant": session.tenant_object_id,
        "capacity": session.capacity_id,
        "started": time_cell(session.session_start_utc, at),
    }
    if session.is_active:
        fields["deadline"] = time_cell(session.lease_expires_at, at)
        fields["term ends"] = time_cell(session.session_end_utc, at)
        if session.heartbeat_interval is not None:
            fields["heartbeat"] = f"every {duration_text(session.heartbeat_interval)}"
    else:
        fields["ended"] = time_cell(session.session_end_utc, at)
        fields["reason"] = session.close_reason
    fields["last heartbeat"] = time_cell(session.last_heartbeat, at)
    fields["last activity"] = time_cell(session.last_activity, at)
    if session.previous_session_id is not None:
        fields["upgraded from"] = session.previous_session_id
    if session.stream is not None:
        stream = session.stream
        fields["stream"] = (
            f"received bytes: {stream.bytes_received}, chunks: {stream.chunks}; sent messages: {stream.messages_sent}"
        )
    print_fields(fields)


@sessions_commands.command("open")
@with_service
def open_session(
    service: Service,
    user: Annotated[str, typer.Option(help="The user.", metavar="UUID")],
    tenant: Annotated[str, typer.Option(help="The tenant.", metavar="UUID")],
    capacity: Annotated[str, typer.Option(help="The capacity.", metavar="UUID")],
    kind: Annotated[int, typer.Option(help="1 basic, 2 standard, 3 premium.", metavar="KIND")] = 1,
    lease: Annotated[
        int | None, typer.Option(help="Seconds that the session lives after its last heartbeat.", metavar="SECONDS")
    ] = None,
    idle: Annotated[
        int | None, typer.Option(help="Seconds that the session lives after its last activity.", metavar="SECONDS")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Keep the session alive until ctrl-C, and end it then.")] = False,
    as_json: JsonFlag = False,
) -> None:
    r"""Open a session, or show the live one of this user and capacity.

    Without `--hold` this command sends no heartbeats: a session with a lease ends unless another client renews it.

    tenure sessions open --user 0190b0a0-0000-7000-8000-000000000001 \
      --tenant 0190b0a0-0000-7000-8000-0000000000a1 --capacity 0190b0a0-0000-7000-8000-0000000000c1 --lease 60 --hold
    """
    request: dict[str, Any] = {"user": user, "tenant": tenant, "capacity": capacity, "kind": kind}
    request |= {"lease_seconds": lease, "idle_seconds": idle}
    if hold:
        _hold(service, request, as_json=as_json)
        return
    with _explained_limit(capacity):
        opened = service.client.sessions.open(**request)
    if as_json:
        service.print_json()
        return
    note({"created": "opened", "existing": "already open"}.get(opened.status, opened.status))
    print_session(opened, service.now())


@contextmanager
def _explained_limit(capacity: str) -> Iterator[None]:
    """If all seats are taken, add to the error the command that lists who holds them."""
    from tenure_client.errors import SessionLimit  # noqa: PLC0415

    try:
        yield
    except SessionLimit as error:
        error.detail += f"; see `tenure explain --capacity {capacity}`"
        raise


def _hold(service: Service, request: dict[str, Any], *, as_json: bool) -> None:
    """Open a session and keep it live until it is lost. Ctrl-C leaves the `with` block, and so ends the session."""
    # Always request a lease: without one, the session could stay live for a long time after this command is killed.
    given = request["lease_seconds"]
    wanted = {**request, "lease_seconds": HOLD_LEASE_SECONDS if given is None else given, "active": True}
    with _explained_limit(request["capacity"]), service.client.hold(**wanted) as session:
        if as_json:
            service.print_json()
        else:
            print_session(session.session, service.now())
        note("held; ctrl-C ends it")
        session.lost.wait()
        fail(f"session {session.id} is lost: {session.lost.close_reason or session.lost.reason}")


@sessions_commands.command("end")
@with_service
def end_sessions(
    service: Service,
    session_ids: Annotated[
        list[str] | None, typer.Argument(help="The ids of the sessions.", metavar="SESSION", show_default=False)
    ] = None,
    tenant: TenantFlag = None,
    user: UserFlag = None,
    capacity: CapacityFlag = None,
    kind: KindFlag = None,
    state: Annotated[str | None, typer.Option(help="Only in this state: created or active.", metavar="STATE")] = None,
    every: Annotated[bool, typer.Option("--all", help="End all live sessions.")] = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """End the sessions with the given ids, or all live sessions that match the flags. Their users lose them at once.

    The command asks for confirmation, unless `--yes` is given. With flags in place of ids, it shows how many live
    sessions match, and ends them in small steps, so that the service stays responsive. All these steps share one entry
    in the audit log.

    tenure sessions end 01a1e0e8-4a5d-7768-a74d-758932e546ff --yes
    tenure sessions end --capacity 0190b0a0-0000-7000-8000-0000000000c1
    """
    filters = {"tenant": tenant, "user": user, "capacity": capacity, "kind": kind, "state": state}
    wanted: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if every and wanted:
        raise ConfigurationError("all: cannot be combined with a filter")
    if bool(session_ids) == bool(every or wanted):
        raise ConfigurationError("session: give ids, or a filter, or --all")
    if session_ids:
        _end_each(service, [whole_id(each) for each in session_ids], yes=yes, as_json=as_json)
    else:
        _end_matching(service, wanted or {"all": True}, yes=yes, as_json=as_json)


def _end_each(service: Service, session_ids: list[str], *, yes: bool, as_json: bool) -> None:
    count = len(session_ids)
    confirm(f"End {'session ' + session_ids[0] if count == 1 else counted(count, 'session')}?", yes=yes)
    for session_id in session_ids:
        session = service.client.sessions.end(session_id)
        if as_json:
            service.print_json()
        else:
            ended = "had already ended" if session.status == "already_closed" else "ended"
            typer.echo(f"{session.session_id} {ended}: {session.close_reason}")


def _end_matching(service: Service, wanted: dict[str, Any], *, yes: bool, as_json: bool) -> None:
    found = service.client.sessions.end_matching(**wanted, dry_run=True)
    if not found.remaining:
        if as_json:
            service.print_json()
        else:
            note("no live session matches")
        return
    count = f"{found.remaining:,}" if found.exact else f"more than {found.remaining:,}"
    confirm(
        f"End {count} live {'session' if found.remaining == 1 else 'sessions'}? Their users lose them at once.", yes=yes
    )
    step = None
    with progress() as shown:
        try:
            for step in service.client.sessions.end_all(**wanted):
                shown.show(f"ended {step.total_ended:,} of {count}")
        except KeyboardInterrupt:
            shown.clear()
            note(f"ended {step.total_ended if step else 0:,}; the other sessions stay live")
            raise
    if as_json:
        service.print_json()
    elif step is not None:
        typer.echo(f"ended {step.total_ended:,}")
