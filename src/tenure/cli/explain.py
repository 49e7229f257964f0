"""`tenure explain`: the history of a session, or why an open request was refused."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.flags import JsonFlag, whole_id
from tenure.cli.output import clean, exact_text, note, print_json, relative_text, styled
from tenure.cli.service import Service, with_service
from tenure.cli.sessions import print_sessions
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure_client.models import Capacity, Fact, Session

HOLDERS = 20
"""How many of the sessions that hold seats are listed."""
BAD = {"deliveryFailed", "deliveryUnknown", "deliveryGivenUp"}


@with_service
def explain(
    service: Service,
    session_id: Annotated[str | None, typer.Argument(help="The id of the session.", metavar="SESSION")] = None,
    capacity: Annotated[
        str | None, typer.Option(help="Explain why open requests on this capacity are refused.", metavar="CAPACITY")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Explain a session: why it ended, who ended it and how it was billed; or why an open request was refused.

    tenure explain 0190b0a0-0000-7000-8000-000000000001
    tenure explain --capacity 0190b0a0-0000-7000-8000-0000000000c1
    """
    if capacity is not None and session_id is None:
        _explain_capacity(service, whole_id(capacity), as_json=as_json)
        return
    if session_id is None or capacity is not None:
        raise ConfigurationError("explain: name a session, or a capacity with --capacity")
    fetch = partial(service.client.sessions.history, whole_id(session_id))
    if as_json:
        service.print_list_json(fetch, "facts", None)
        return
    at = service.now()
    for page in service.pages(fetch, None):
        for fact in page.facts:
            typer.echo(_line(fact, at))


def _line(fact: "Fact", at: datetime) -> str:
    style = "bad" if fact.fact in BAD else "bold" if fact.fact == "ended" else None
    when = f"{exact_text(fact.at)} ({relative_text(fact.at, at)})"
    return f"{styled(when, 'dim')}  {styled(clean(fact.text), style)}"


def _explain_capacity(service: Service, capacity_id: str, *, as_json: bool) -> None:
    capacity, settings = _capacity(service, capacity_id)
    holders = service.client.sessions.list(capacity=capacity_id, order="lapse", limit=HOLDERS).first()
    if as_json:
        import msgspec  # noqa: PLC0415 - tables need no JSON

        print_json({"capacity": settings, **msgspec.json.decode(service.raw(), type=dict[str, msgspec.Raw])})
        return
    for line in _reasons(capacity_id, capacity, holders.sessions, service.now()):
        typer.echo(line)
    if holders.sessions:
        typer.echo()
        print_sessions(holders.sessions, service.now())
    if not holders.exact:
        note("sessions that lapse earlier may be missing: the capacity has too many sessions to sort them all")
    elif holders.next_cursor is not None:
        note(f"the {HOLDERS} with the earliest deadlines; for all: tenure sessions list --all --capacity {capacity_id}")


def _capacity(service: Service, capacity_id: str) -> "tuple[Capacity | None, Any]":
    """Return the capacity and its JSON, or `(None, None)` if the capacity has no settings."""
    import msgspec  # noqa: PLC0415

    from tenure_client.errors import NotFound  # noqa: PLC0415

    try:
        capacity = service.client.capacities.get(capacity_id)
    except NotFound:
        return None, None
    return capacity, msgspec.Raw(service.raw())


def _reasons(
    capacity_id: str, capacity: "Capacity | None", holders: "Sequence[Session]", at: datetime
) -> Iterator[str]:
    if capacity is None:
        yield f"capacity {clean(capacity_id)} has no settings: seats are unlimited, and any tenant can open sessions"
    else:
        yield _seats_text(capacity)
        if capacity.tenant_object_id is not None:
            tenant = clean(capacity.tenant_object_id)
            yield f"only tenant {tenant} can open sessions on it; others get CAPACITY_OF_ANOTHER_TENANT"
    if holders:
        first = holders[0]
        when = f"{exact_text(first.lease_expires_at)} ({relative_text(first.lease_expires_at, at)})"
        who = f"session {clean(first.session_id)} of user {clean(first.user_object_id)}"
        yield f"{who} lapses next, at {when}, unless it is renewed"
    else:
        yield "no session holds a seat"


def _seats_text(capacity: "Capacity") -> str:
    taken, limit = capacity.active_sessions, capacity.max_sessions
    if limit is None:
        return f"seats taken: {taken}; there is no limit"
    seats = f"{taken} of {limit} seats are taken"
    if taken < limit:
        return f"{seats}: an open request gets a free one"
    if capacity.when_full == "evictOldest" and limit > 0:
        return f"{seats}: an open request evicts the session with the oldest activity"
    return f"{seats}: an open request is refused with SESSION_LIMIT, until a session ends; an upgrade keeps its seat"
