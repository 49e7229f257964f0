"""The session routes."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tenure.errors import (
    CapacityOfAnotherTenant,
    Invalid,
    NotFound,
    SessionLimit,
    SessionOver,
    TenantMismatch,
    TooLarge,
    Unavailable,
    UnsupportedMediaType,
)
from tenure.http.cursors import cursor_of, position_of
from tenure.http.pages import page
from tenure.http.routing import JSON, Answer, Call, Respond, Route, failure, refusal
from tenure.http.shapes import (
    Cursor,
    HeartbeatAnswer,
    HeartbeatBody,
    HeartbeatsAnswer,
    HeartbeatsBody,
    MetricsAnswer,
    OpenAnswer,
    OpenBody,
    PageLimit,
    SessionAnswer,
    SessionList,
    Uuid,
    heartbeat_answer,
    heartbeat_of_many,
    metrics_answer,
    open_answer,
    session_answer,
)
from tenure.ids import canonical_id
from tenure.model.sessions import CloseReason, Heartbeat, Kept, Opened, Outcome, Position, Session, SessionFilter, State
from tenure.sessions import keeping
from tenure.sessions.sessions import Sessions


class SessionQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    tenant: Uuid | None = None
    user: Uuid | None = None
    capacity: Uuid | None = None
    kind: Annotated[Literal["1", "2", "3"], Meta(extra={"must": "must be 1, 2 or 3"})] | None = None
    state: Annotated[State, Meta(extra={"must": f"must be {', '.join(State)}"})] | None = None
    active: Annotated[Literal["true", "false"], Meta(extra={"must": "must be true or false"})] | None = None
    close_reason: Annotated[CloseReason, Meta(extra={"must": f"must be {', '.join(CloseReason)}"})] | None = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


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
                refusals=(
                    Invalid,
                    CapacityOfAnotherTenant,
                    TenantMismatch,
                    TooLarge,
                    UnsupportedMediaType,
                    SessionLimit,
                    Unavailable,
                ),
            ),
            Route(
                method="POST",
                path="/sessions/{sessionId}/heartbeat",
                handler=self.heartbeat,
                hot=self.heartbeat_hot,
                tag="sessions",
                summary="Say that a session's client is still there",
                description="Renews the lease; with `active`, the idle limit too. The body may be left out.",
                body=HeartbeatBody,
                body_required=False,
                answers={200: HeartbeatAnswer},
                refusals=(Invalid, NotFound, SessionOver, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="POST",
                path="/sessions/heartbeats",
                handler=self.heartbeats,
                tag="sessions",
                summary="Say so for up to 1000 sessions at once",
                description="For proxies that hold many. Answers for each, in the order asked.",
                body=HeartbeatsBody,
                answers={200: HeartbeatsAnswer},
                refusals=(Invalid, TooLarge, UnsupportedMediaType, Unavailable),
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

    def open_hot(self, call: Call, respond: Respond) -> None:
        def done(result: Opened | Exception) -> None:
            respond(self._opened(result) if isinstance(result, Opened) else failure(result))

        self._opener.open_soon(self._opener.wish(call.body), done)

    def _opened(self, opened: Opened) -> Answer:
        answer = open_answer(opened)
        if opened.outcome is Outcome.EXISTING:
            return Answer(answer)
        location = f"{self._path}/{answer.session_id}"
        return Answer(answer, 201, [*JSON, (b"location", location.encode())])

    async def heartbeat(self, call: Call) -> Answer:
        heartbeat = Heartbeat(_session_id(call), call.body.active)
        return _kept(heartbeat, await self._sessions.keeper.heartbeat(heartbeat))

    def heartbeat_hot(self, call: Call, respond: Respond) -> None:
        heartbeat = Heartbeat(_session_id(call), call.body.active)

        def done(result: Kept | Exception) -> None:
            respond(_kept(heartbeat, result) if isinstance(result, Kept) else failure(result))

        self._sessions.keeper.heartbeat_soon(heartbeat, done)

    async def heartbeats(self, call: Call) -> Answer:
        body: HeartbeatsBody = call.body
        asked = [session_id.lower() for session_id in body.session_ids]
        kept = await self._sessions.keeper.heartbeats(asked, active=body.active)
        return Answer(HeartbeatsAnswer(list(map(heartbeat_of_many, asked, kept)), len(asked)))

    async def get(self, call: Call) -> Answer:
        return Answer(session_answer(await self._sessions.get(_session_id(call))))

    async def end(self, call: Call) -> Answer:
        return Answer(session_answer(await self._sessions.ender.end(_session_id(call), CloseReason.TERMINATED)))

    async def list(self, call: Call) -> Answer:
        query: SessionQuery = call.query
        after = None if query.cursor is None else position_of(query.cursor)
        found = await self._sessions.list(_filter(query), after, query.limit + 1)
        return page(found, query, self._path, _cursor_after, _listed)

    async def metrics(self, _call: Call) -> Answer:
        return Answer(metrics_answer(await self._sessions.counts.fresh(), self._sessions.counters))


def _cursor_after(session: Session) -> str:
    return cursor_of(Position(session.started_at, session.session_id))


def _listed(sessions: Sequence[Session], count: int, cursor: str | None) -> SessionList:
    return SessionList([session_answer(session) for session in sessions], count, cursor)


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


def _kept(heartbeat: Heartbeat, kept: Kept) -> Answer:
    problem = keeping.refusal(heartbeat.session_id, kept)
    return Answer(heartbeat_answer(heartbeat.session_id, kept)) if problem is None else refusal(problem)


def _session_id(call: Call) -> str:
    """A malformed id is the id of no session."""
    session_id = call.path["sessionId"]
    canonical = canonical_id(session_id)
    if canonical is None:
        raise NotFound(f"there is no session {session_id[:64]}")
    return canonical
