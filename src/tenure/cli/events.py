"""`tenure events`: prints the events of sessions, and with `--follow` waits for new ones."""

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tenure.cli.flags import LISTED, JsonFlag, LimitFlag
from tenure.cli.output import (
    Cell,
    Column,
    Value,
    clean,
    colours,
    exact_text,
    id_cell,
    note,
    print_json_line,
    table,
    width,
)
from tenure.cli.service import Service, with_service
from tenure.cli.sessions import KINDS
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure_client.models import Event

TYPES = ("session.opened", "session.upgraded", "session.closed")
COLOURS = {"session.opened": "good", "session.upgraded": "accent", "session.closed": "dim"}


@with_service
def events(
    service: Service,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print events as they happen, until ctrl-C.")] = False,
    after: Annotated[
        str | None,
        typer.Option(help="Continue after this cursor, which an earlier call printed when it ended.", metavar="CURSOR"),
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(
            "--type", help="Only these types, with commas between: opened, upgraded, closed.", metavar="TYPES"
        ),
    ] = None,
    limit: LimitFlag = LISTED,
    as_json: JsonFlag = False,
) -> None:
    """Print what happened to sessions: opened, upgraded and closed.

    Without `--follow`, the command prints the oldest events of the last 7 days or, with `--after`, the first events
    after the cursor, up to `--limit`. With `--follow`, the command waits for new events and prints each of them once,
    even if the service is unavailable for a while. With `--json` every line is one event. See docs/events.md.

    tenure events --follow
    tenure events --follow --type closed --json | jq .closeReason
    """
    wanted = _types_of(types)
    if follow:
        _follow(service, after, wanted, as_json=as_json)
        return
    if limit < 1:
        raise ConfigurationError("limit: must be at least 1")
    left, cursor = limit, after
    while left > 0:
        page = service.client.events.list(after=cursor, type=wanted, limit=min(left, 500))
        _print_page(service, page.events, as_json=as_json)
        left, cursor = left - page.count, page.next_cursor
        if not page.count:
            break
    note(f"continue with --after {cursor}")


def _types_of(text: str | None) -> list[str] | None:
    if text is None:
        return None
    found = [word if word.startswith("session.") else f"session.{word}" for word in text.split(",")]
    if unknown := [word for word in found if word not in TYPES]:
        raise ConfigurationError(f"type: must be opened, upgraded or closed, not {clean(unknown[0])}")
    return found


def _follow(service: Service, after: str | None, types: list[str] | None, *, as_json: bool) -> None:
    cursor = after
    if sys.stderr.isatty():
        note("waiting for events; ctrl-C ends it")
    try:
        for page in service.client.events.follow(after=after or "latest", types=types).pages():
            _print_page(service, page.events, as_json=as_json)
            cursor = page.next_cursor
    except KeyboardInterrupt:
        if cursor is not None:
            note(f"\ncontinue with --after {cursor}")
        raise


def _print_page(service: Service, found: "list[Event]", *, as_json: bool) -> None:
    if as_json:
        for item in msgspec.json.decode(service.raw(), type=_RawPage).events:
            print_json_line(bytes(item))
        return
    for event in found:
        typer.echo(_line(event))


class _RawPage(msgspec.Struct):
    events: list[msgspec.Raw]


COLUMNS = (
    Column("at"),
    Column("type"),
    Column("session"),
    Column("kind", 3),
    Column("user", 2),
    Column("capacity", 4),
    Column("reason", 1),
)


def _line(event: "Event") -> str:
    """Format an event as one row. The cells have fixed widths, because `--follow` prints a row before later events are
    known.
    """
    row: list[Value] = [
        Cell(exact_text(event.at), exact_text(event.at)[11:]),
        Cell(f"{clean(event.type.removeprefix('session.')):<8}", style=COLOURS.get(event.type)),
        event.session_id,
        Cell(f"{KINDS.get(event.session_kind, str(event.session_kind)):<8}"),
        id_cell(event.user_object_id),
        id_cell(event.capacity_id),
        Cell(f"{clean(event.close_reason or ''):<13}"),
    ]
    return table(COLUMNS, [row], width(), coloured=colours())[-1]
