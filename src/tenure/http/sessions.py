"""The session routes."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from tenure.errors import Invalid, NotFound, TenantMismatch, TooLarge, Unavailable, UnsupportedMediaType
from tenure.http.cursors import CURSOR_MAX, cursor_of, position_of
from tenure.http.routing import JSON, Answer, Call, Route, failure
from tenure.http.shapes import (
    MetricsAnswer,
    OpenAnswer,
    OpenBody,
    SessionAnswer,
    SessionList,
    Uuid,
    metrics_answer,
    open_answer,
    session_answer,
)
from tenure.ids import canonical_id
from tenure.model import CloseReason, Opened, Outcome, Position, SessionFilter, State
from tenure.sessions.sessions import Sessions

LIMIT_MAX = 500


class SessionQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    tenant: Uuid | None = None
    user: Uuid | None = None
    capacity: Uuid | None = None
    kind: Annotated[Literal["1", "2", "3"], Meta(extra={"must": "must be 1, 2 or 3"})] | None = None
    state: Annotated[State, Meta(extra={"must": f"must be {', '.join(State)}"})] | None = None
    active: Annotated[Literal["true", "false"], Meta(extra={"must": "must be true or false"})] | None = None
    close_reason: Annotated[CloseReason, Meta(extra={"must": f"must be {', '.join(CloseReason)}"})] | None = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, extra={"must": "must be a whole number from 1 to 500"})] = 100
    cursor: (
        Annotated[str, Meta(max_length=CURSOR_MAX, extra={"must": "must be the nextCursor of an answer"})] | None
    ) = None


class SessionRoutes:
    def __init__(self, sessions: Sessions, prefix: str) -> None:
        self._sessions = sessions
        self._opener = sessions.opener
        self._path = f"{prefix}/sessions"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="PUT",
                path="/sessions",
                handler=self.open,
                hot=self.open_hot,
                tag="sessions",
                summary="Open a session, or get the live one",
                description="One live session per user and capacity. Repeating the request gives the same session.",
                body=OpenBody,
                answers={200: OpenAnswer, 201: OpenAnswer},
                refusals=(Invalid, TenantMismatch, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="GET",
                path="/sessions",
                handler=self.list,
                tag="sessions",
                summary="List sessions, newest start first",
                description="All states unless filtered. A lapsed one reads and is filtered as it will be recorded.",
                query=SessionQuery,
                answers={200: SessionList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/sessions/metrics",
                handler=self.metrics,
                tag="sessions",
                summary="Count sessions",
                description="Live and total from the database, at most ten seconds old; the rest of this instance.",
                answers={200: MetricsAnswer},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/sessions/{sessionId}",
                handler=self.get,
                tag="sessions",
                summary="Read a session",
                answers={200: SessionAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
            Route(
                method="DELETE",
                path="/sessions/{sessionId}",
                handler=self.end,
                tag="sessions",
                summary="End a session",
                description="Repeating it is harmless: the session keeps the end it has.",
                answers={200: SessionAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
        ]

    async def open(self, call: Call) -> Answer:
        return self._opened(await self._opener.open(self._opener.wish(call.body)))

    def open_hot(self, body: OpenBody, respond: Callable[[Answer], None]) -> None:
        def done(result: Opened | Exception) -> None:
            respond(self._opened(result) if isinstance(result, Opened) else failure(result))

        self._opener.open_soon(self._opener.wish(body), done)

    def _opened(self, opened: Opened) -> Answer:
        answer = open_answer(opened)
        if opened.outcome is Outcome.EXISTING:
            return Answer(answer)
        location = f"{self._path}/{answer.session_id}"
        return Answer(answer, 201, [*JSON, (b"location", location.encode())])

    async def get(self, call: Call) -> Answer:
        return Answer(session_answer(await self._sessions.get(_session_id(call))))

    async def end(self, call: Call) -> Answer:
        return Answer(session_answer(await self._sessions.end(_session_id(call), CloseReason.TERMINATED)))

    async def list(self, call: Call) -> Answer:
        query: SessionQuery = call.query
        after = None if query.cursor is None else position_of(query.cursor)
        # One more than asked for: whether it is there says whether there is a next page.
        found = await self._sessions.list(_filter(query), after, query.limit + 1)
        page = found[: query.limit]
        cursor = None
        headers = list(JSON)
        if len(found) > len(page):
            cursor = cursor_of(Position(page[-1].started_at, page[-1].session_id))
            headers.append((b"link", self._next_link(query, cursor)))
        return Answer(SessionList([session_answer(session) for session in page], len(page), cursor), 200, headers)

    async def metrics(self, _call: Call) -> Answer:
        counters = self._sessions.counters
        return Answer(metrics_answer(await self._sessions.counts.fresh(), counters.opened, counters.closed))

    def _next_link(self, query: SessionQuery, cursor: str) -> bytes:
        given = {name: value for name, value in msgspec.to_builtins(query).items() if value is not None}
        return f'<{self._path}?{urlencode({**given, "cursor": cursor})}>; rel="next"'.encode()


def _filter(query: SessionQuery) -> SessionFilter:
    return SessionFilter(
        tenant=query.tenant and query.tenant.lower(),
        user=query.user and query.user.lower(),
        capacity=query.capacity and query.capacity.lower(),
        kind=int(query.kind) if query.kind else None,
        state=query.state,
        active=query.active and query.active == "true",
        close_reason=query.close_reason,
    )


def _session_id(call: Call) -> str:
    """A malformed id is the id of no session."""
    session_id = call.path["sessionId"]
    canonical = canonical_id(session_id)
    if canonical is None:
        raise NotFound(f"there is no session {session_id[:64]}")
    return canonical
