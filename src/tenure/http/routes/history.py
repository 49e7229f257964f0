"""The route of the history of a session: facts about it, oldest first."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tenure.access.caller import Caller
from tenure.access.grants import ANY_ROLE, READERS, narrowed
from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.history import Fact, FactName, FactPosition, SessionHistory, View, after_position, facts_of
from tenure.domain.meter import decimal_text
from tenure.domain.sessions import CloseReason, StreamCounters
from tenure.errors import Invalid, NotFound, Unavailable
from tenure.http.answers import JSON, Answer
from tenure.http.fields import Cursor, Instant, KindNumber, PageLimit, Uuid, instant, seconds_number
from tenure.http.pages import cursor_of_text, forged, next_link, text_of
from tenure.http.pipeline import Call, Route
from tenure.http.routes.sessions import SessionAnswer, session_answer, session_id_of, unknown_session
from tenure.store.contract import Store

Amount = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"type": "number"}, description="Exact, with at most six decimals.")
]
_WINDOW_MAX = 2**63 - 1


class HistoryQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: PageLimit = 100
    cursor: Cursor | None = None


class FactAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One fact. Fields that do not apply to the fact are absent."""

    at: Instant
    fact: FactName
    text: str
    user_object_id: Uuid | UnsetType = UNSET
    tenant_object_id: Uuid | UnsetType = UNSET
    capacity_id: Uuid | UnsetType = UNSET
    session_kind: KindNumber | UnsetType = UNSET
    term_ends_at: Instant | UnsetType = UNSET
    lease_seconds: float | int | UnsetType = UNSET
    idle_seconds: float | int | UnsetType = UNSET
    heartbeat_interval: float | int | UnsetType = UNSET
    previous_session_id: Uuid | UnsetType = UNSET
    next_session_id: Uuid | UnsetType = UNSET
    session_ids: list[Uuid] | UnsetType = UNSET
    until: Instant | UnsetType = UNSET
    close_reason: CloseReason | UnsetType = UNSET
    recorded: bool | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    stream: StreamCounters | UnsetType = UNSET
    window_id: int | UnsetType = UNSET
    last_window_id: int | UnsetType = UNSET
    windows: int | UnsetType = UNSET
    from_at: Instant | UnsetType = msgspec.field(default=UNSET, name="from")
    to_at: Instant | UnsetType = msgspec.field(default=UNSET, name="to")
    usage: Amount | UnsetType = UNSET
    delivery: Literal["delivered", "notSent", "waiting"] | UnsetType = UNSET
    delivered_at: Instant | UnsetType = UNSET
    chunk: int | UnsetType = UNSET
    submission_id: Uuid | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    status: int | UnsetType = UNSET
    error: str | UnsetType = UNSET
    receipt: bool | UnsetType = UNSET


class HistoryAnswer(msgspec.Struct, frozen=True, rename="camel"):
    session: SessionAnswer
    facts: list[FactAnswer]
    count: int
    next_cursor: str | None


class HistoryRoutes:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._path = f"{prefix}/sessions"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/sessions/{sessionId}/history",
                handler=self.history,
                grants=narrowed(ANY_ROLE),
                tag="sessions",
                summary="Read the history of a session",
                description=(
                    "The facts that are stored about the session, oldest first. "
                    "Only readers and operators see its usage. Only readers and operators who are not bound to a "
                    "tenant see who ended the session, and how its usage was delivered."
                ),
                query=HistoryQuery,
                answers={200: HistoryAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            )
        ]

    async def history(self, call: Call) -> Answer:
        query: HistoryQuery = call.query
        session_id = session_id_of(call)
        after, position = (None, None) if query.cursor is None else _position_of(query.cursor)
        found = await self._store.read_history(session_id, call.caller.scope, view_of(call.caller), after)
        if found is None:
            raise unknown_session(session_id)
        facts = after_position(facts_of(found), position)
        shown = facts[: query.limit]
        cursor = _next_cursor(found, after, shown, has_more=len(facts) > len(shown))
        headers = list(JSON)
        if cursor is not None:
            headers.append((b"link", next_link(f"{self._path}/{session_id}/history", query, cursor)))
        answer = HistoryAnswer(session_answer(found.session), list(map(fact_answer, shown)), len(shown), cursor)
        return Answer(answer, 200, headers)


def view_of(caller: Caller) -> View:
    """Returns the parts of a history that the caller may read: the same data that other routes show to this caller."""
    reads = caller.role in READERS.roles
    reads_all = reads and not caller.scope.is_bound
    return View(audit=reads_all, usage=reads, deliveries=reads_all)


def fact_answer(fact: Fact) -> FactAnswer:
    values = {name: getattr(fact, name) for name in fact.__struct_fields__}
    given = {name: value for name, value in values.items() if value is not None}
    for name, (field, convert) in _CONVERTED.items():
        if name in given:
            given[field] = convert(given.pop(name))
    return FactAnswer(**given)


def _amount(millionths: int) -> msgspec.Raw:
    return msgspec.Raw(decimal_text(millionths).encode())


_CONVERTED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "lease_microseconds": ("lease_seconds", seconds_number),
    "idle_microseconds": ("idle_seconds", seconds_number),
    "heartbeat_microseconds": ("heartbeat_interval", seconds_number),
    "usage_millionths": ("usage", _amount),
    "session_ids": ("session_ids", list),
    **{name: (name, instant) for name in ("at", "term_ends_at", "until", "from_at", "to_at", "delivered_at")},
}


# The store reads the history in sections of windows (`domain/history.py`). A cursor names the section to read next by
# the id of the last window before it. If the page ended inside a section, the cursor names that section, and also
# contains the position of the page's last fact.


def _next_cursor(found: SessionHistory, after: int | None, shown: Sequence[Fact], *, has_more: bool) -> str | None:
    if has_more:
        at, *rest = shown[-1].position
        return cursor_of_text(" ".join(map(str, (after or 0, to_microseconds(at), *rest))))
    return None if found.resume_after is None else cursor_of_text(str(found.resume_after))


def _position_of(cursor: str) -> tuple[int | None, FactPosition | None]:
    try:
        after, *position = map(int, text_of(cursor).split(" "))
        if not 0 <= after <= _WINDOW_MAX:
            raise forged()
        return after or None, _fact_position(*position) if position else None
    except (ValueError, TypeError, OverflowError) as error:
        raise forged() from error


def _fact_position(at: int, rank: int, window_id: int, number: int) -> FactPosition:
    instant_at: datetime = from_microseconds(at)
    return FactPosition(instant_at, rank, window_id, number)
