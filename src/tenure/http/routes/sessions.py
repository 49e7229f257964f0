"""The session routes, their JSON bodies, and the conversion of results to HTTP responses."""

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tenure.access.grants import (
    ANY_ROLE,
    ANY_ROLE_OR_SESSION_TOKEN,
    CLIENTS,
    CLIENTS_OR_SESSION_TOKEN,
    OPERATORS,
    READERS,
    narrowed,
)
from tenure.domain.keys import Role
from tenure.domain.scope import Scope
from tenure.domain.sessions import (
    CloseReason,
    Found,
    Heartbeat,
    HeartbeatResult,
    LapsePosition,
    OpenOutcome,
    OpenRequest,
    OpenResult,
    Position,
    Session,
    SessionCounts,
    SessionFilter,
    State,
    StreamCounters,
)
from tenure.domain.streams import AttachResult
from tenure.errors import (
    CapacityOfAnotherTenant,
    FieldError,
    Forbidden,
    Invalid,
    NotFound,
    Problem,
    SessionLimit,
    SessionOver,
    TenantMismatch,
    TooLarge,
    Unavailable,
    UnsupportedMediaType,
)
from tenure.http.answers import JSON, Answer, refusal
from tenure.http.fields import Cursor, Instant, KindNumber, PageLimit, Uuid, instant, seconds_number
from tenure.http.pages import cursor_of, cursor_of_lapse, lapse_position_of, page, position_of
from tenure.http.pipeline import Call, Hot, Respond, Route
from tenure.ids import canonical_id, new_id
from tenure.naming import Names
from tenure.sessions.counts import SessionCounter
from tenure.sessions.end import Ender, Selection
from tenure.sessions.heartbeat import Renewer
from tenure.sessions.open import ABOUT_THE_TENANT, Opener
from tenure.store.contract import Store
from tenure.telemetry.counters import Counters, GroupTotals

HEARTBEATS_MAX = 1000
ENDS_MAX = 500
"""The most sessions that one request ends."""


class Order(StrEnum):
    NEWEST = "newest"
    LAPSE = "lapse"


class MatchQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    tenant: Uuid | None = None
    user: Uuid | None = None
    capacity: Uuid | None = None
    kind: Annotated[Literal["1", "2", "3"], Meta(extra={"must": "must be 1, 2 or 3"})] | None = None
    state: Annotated[State, Meta(extra={"must": f"must be {', '.join(State)}"})] | None = None
    active: Annotated[Literal["true", "false"], Meta(extra={"must": "must be true or false"})] | None = None
    close_reason: Annotated[CloseReason, Meta(extra={"must": f"must be {', '.join(CloseReason)}"})] | None = None


class SessionQuery(MatchQuery, frozen=True, rename="camel", forbid_unknown_fields=True):
    order: Annotated[Order, Meta(extra={"must": f"must be {', '.join(Order)}"})] | None = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class OpenBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    user_object_id: Uuid
    tenant_object_id: Uuid
    capacity_id: Uuid
    session_kind: KindNumber
    lease_seconds: (
        Annotated[int, Meta(ge=5, le=86_400, extra={"must": "must be a whole number from 5 to 86400"})] | None
    ) = None
    idle_seconds: (
        Annotated[int, Meta(ge=5, le=2_592_000, extra={"must": "must be a whole number from 5 to 2592000"})] | None
    ) = None
    with_token: Annotated[bool, Meta(extra={"must": "must be true or false"})] = False


class SessionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    session_id: Uuid
    user_object_id: Uuid
    tenant_object_id: Uuid
    capacity_id: Uuid
    session_kind: KindNumber
    session_start_utc: Instant
    session_end_utc: Instant
    is_active: bool
    state: State
    lease_expires_at: Instant
    heartbeat_interval: float | int | None
    last_heartbeat: Instant
    last_activity: Instant
    close_reason: CloseReason | None
    previous_session_id: Uuid | None
    created_utc: Instant
    modified_utc: Instant
    stream: StreamCounters | None


class OpenAnswer(SessionAnswer, frozen=True, rename="camel", kw_only=True):
    status: Literal["created", "existing", "upgraded"]
    was_created: bool
    was_upgraded: bool
    session_token: str | msgspec.UnsetType = msgspec.UNSET
    """Set only if the request has `withToken`."""


class EndAnswer(SessionAnswer, frozen=True, rename="camel", kw_only=True):
    status: Literal["closed", "already_closed"]
    """Whether this request ended the session."""


class SessionList(msgspec.Struct, frozen=True, rename="camel"):
    sessions: list[SessionAnswer]
    count: int
    next_cursor: str | None
    exact: bool


class SessionCountAnswer(msgspec.Struct, frozen=True, rename="camel"):
    count: int
    exact: bool


class MetricsAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    active_sessions: int
    total_sessions: int
    active_by_kind: dict[str, int]
    active_by_state: dict[str, int]
    opened: int | msgspec.UnsetType = msgspec.UNSET
    upgraded: int | msgspec.UnsetType = msgspec.UNSET
    closed_by_reason: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    total_bytes_received: int | msgspec.UnsetType = msgspec.UNSET
    total_chunks: int | msgspec.UnsetType = msgspec.UNSET
    total_messages_sent: int | msgspec.UnsetType = msgspec.UNSET
    total_partials_sent: int | msgspec.UnsetType = msgspec.UNSET
    total_finals_sent: int | msgspec.UnsetType = msgspec.UNSET
    total_errors_sent: int | msgspec.UnsetType = msgspec.UNSET
    total_audio_duration_ms: int | msgspec.UnsetType = msgspec.UNSET
    workers: int | msgspec.UnsetType = msgspec.UNSET
    workers_answered: int | msgspec.UnsetType = msgspec.UNSET


class HeartbeatBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    active: Annotated[bool, Meta(extra={"must": "must be true or false"})] = False


class HeartbeatsBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    session_ids: Annotated[
        list[Uuid],
        Meta(min_length=1, max_length=HEARTBEATS_MAX, extra={"must": "must be a list of 1 to 1000 UUIDs"}),
    ]
    active: Annotated[bool, Meta(extra={"must": "must be true or false"})] = False


class EndBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    tenant: Uuid | None = None
    user: Uuid | None = None
    capacity: Uuid | None = None
    kind: KindNumber | None = None
    state: Annotated[Literal["created", "active"], Meta(extra={"must": "must be created or active"})] | None = None
    session_ids: (
        Annotated[
            list[Uuid],
            Meta(min_length=1, max_length=ENDS_MAX, extra={"must": f"must be a list of 1 to {ENDS_MAX} UUIDs"}),
        ]
        | None
    ) = None
    all: Annotated[bool, Meta(extra={"must": "must be true or false"})] = False
    action_id: Uuid | None = None
    limit: Annotated[int, Meta(ge=1, le=ENDS_MAX, extra={"must": f"must be a whole number from 1 to {ENDS_MAX}"})] = (
        ENDS_MAX
    )
    dry_run: Annotated[bool, Meta(extra={"must": "must be true or false"})] = False


class EndedAnswer(msgspec.Struct, frozen=True, rename="camel"):
    action_id: Uuid | None
    ended: int
    total_ended: int
    remaining: int
    exact: bool
    done: bool


class HeartbeatAnswer(msgspec.Struct, frozen=True, rename="camel"):
    session_id: Uuid
    lease_expires_at: Instant
    heartbeat_interval: float | int | None
    acknowledged: Literal[True]
    state: State


class HeartbeatOfMany(msgspec.Struct, frozen=True, rename="camel"):
    """The result for one session: acknowledged with its deadline, or refused with status 404 or 410."""

    session_id: Uuid
    acknowledged: bool
    lease_expires_at: Instant | msgspec.UnsetType = msgspec.UNSET
    heartbeat_interval: float | int | msgspec.UnsetType | None = msgspec.UNSET
    state: State | msgspec.UnsetType = msgspec.UNSET
    status: Literal[404, 410] | msgspec.UnsetType = msgspec.UNSET
    close_reason: CloseReason | msgspec.UnsetType = msgspec.UNSET


class HeartbeatsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    heartbeats: list[HeartbeatOfMany]
    count: int


SignToken = Callable[[str], str]
"""Returns the session token of a session id."""
TokenSigner = Callable[[], SignToken]
"""Returns the function that signs with the current signing key. Raises `Unavailable` if there is none."""


class SessionRoutes:
    def __init__(
        self,
        store: Store,
        opener: Opener,
        renewer: Renewer,
        ender: Ender,
        counts: SessionCounter,
        counters: Counters,
        prefix: str,
        token_signer: TokenSigner,
    ) -> None:
        self._store = store
        self._opener = opener
        self._renewer = renewer
        self._ender = ender
        self._counts = counts
        self._counters = counters
        self._path = f"{prefix}/sessions"
        self._token_signer = token_signer
        self._heartbeats = _SharedJson(heartbeat_answer)

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="PUT",
                path="/sessions",
                handler=Hot(self.open),
                grants=narrowed(CLIENTS),
                tag="sessions",
                summary="Open a session, or return the live one",
                description=(
                    "A user has one live session per capacity. Repeating the request returns the same session. "
                    "With `withToken`, the answer contains a session token, which is valid for this session only."
                ),
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
                handler=Hot(self.heartbeat),
                grants=narrowed(CLIENTS_OR_SESSION_TOKEN),
                tag="sessions",
                summary="Send a heartbeat",
                description="Renews the lease. With `active`, also restarts the idle limit. The body is optional.",
                body=HeartbeatBody,
                body_required=False,
                answers={200: HeartbeatAnswer},
                refusals=(Invalid, NotFound, SessionOver, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="POST",
                path="/sessions/heartbeats",
                handler=self.heartbeats,
                grants=narrowed(CLIENTS),
                tag="sessions",
                summary="Send heartbeats of up to 1000 sessions",
                description="For proxies with many sessions. Returns one result per session, in the same order.",
                body=HeartbeatsBody,
                answers={200: HeartbeatsAnswer},
                refusals=(Invalid, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="GET",
                path="/sessions",
                handler=self.list,
                grants=narrowed(ANY_ROLE),
                tag="sessions",
                summary="List sessions",
                description=(
                    "Sessions in any state unless filtered, newest start first. A lapsed session is shown as closed. "
                    "A page may be short or empty while nextCursor is set. With order=lapse, only live sessions are "
                    "listed, next deadline first; if exact is false, sessions with earlier deadlines may be missing."
                ),
                query=SessionQuery,
                answers={200: SessionList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/sessions/count",
                handler=self.count,
                grants=narrowed(ANY_ROLE),
                tag="sessions",
                summary="Count the sessions that match",
                description="If exact is false, count is a lower bound.",
                query=MatchQuery,
                answers={200: SessionCountAnswer},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/sessions/metrics",
                handler=self.metrics,
                grants=narrowed(READERS),
                tag="sessions",
                summary="Session counts",
                description=(
                    "The live and total counts come from the database and are at most a second old. "
                    "The other counts cover all workers of this process group, each since the start of the worker. "
                    "A caller who is bound to a tenant gets only the live and total counts, of that tenant."
                ),
                answers={200: MetricsAnswer},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="POST",
                path="/sessions/end",
                handler=self.end_many,
                grants=narrowed(OPERATORS),
                tag="sessions",
                summary="End matching sessions",
                description=(
                    "Ends up to `limit` live sessions that match, as TERMINATED. Repeat the request with the same "
                    "`actionId` until `done` is true; all requests of an action have one audit entry. Needs a filter, "
                    "`sessionIds` or `all`. With `dryRun`, only counts."
                ),
                body=EndBody,
                answers={200: EndedAnswer},
                refusals=(Invalid, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="GET",
                path="/sessions/{sessionId}",
                handler=self.get,
                grants=narrowed(ANY_ROLE_OR_SESSION_TOKEN),
                tag="sessions",
                summary="Read a session",
                description="With a session token, a session that has ended gets 410.",
                answers={200: SessionAnswer},
                refusals=(Invalid, NotFound, SessionOver, Unavailable),
            ),
            Route(
                method="DELETE",
                path="/sessions/{sessionId}",
                handler=self.end,
                grants=narrowed(CLIENTS_OR_SESSION_TOKEN),
                tag="sessions",
                summary="End a session",
                description=(
                    "Idempotent: a session that has ended keeps its end and its reason. "
                    "A client ends a session as STOPPED, an operator as TERMINATED. "
                    "With a session token, a session that had already ended gets 410."
                ),
                answers={200: EndAnswer},
                refusals=(Invalid, NotFound, SessionOver, Unavailable),
            ),
        ]

    def open(self, call: Call, respond: Respond) -> None:
        # Get the signer first: if no token can be signed, the request must fail before it opens a session.
        sign = self._token_signer() if call.body.with_token else None

        def done(result: OpenResult | Exception) -> None:
            respond(result if isinstance(result, Exception) else self._open_answer(result, call.caller.scope, sign))

        body: OpenBody = call.body
        check_scope(call.caller.scope, body.tenant_object_id, body.user_object_id)
        self._opener.open_soon(open_request(self._opener, body), done)

    def _open_answer(self, result: OpenResult, scope: Scope, sign: SignToken | None) -> Answer:
        problem = refusal_of_open(result, scope)
        if problem is not None:
            return refusal(problem)
        answer = open_answer(result, sign)
        if result.outcome is OpenOutcome.EXISTING:
            return Answer(answer)
        location = f"{self._path}/{answer.session_id}"
        return Answer(answer, 201, [*JSON, (b"location", location.encode())])

    def heartbeat(self, call: Call, respond: Respond) -> None:
        session_id = session_id_of(call)

        def done(result: HeartbeatResult | Exception) -> None:
            if isinstance(result, Exception):
                respond(result)
            elif result.found is Found.LIVE:
                respond(Answer(self._heartbeats.encode(session_id, result, call.names)))
            else:
                respond(_heartbeat_refusal(session_id, result))

        self._renewer.heartbeat_soon(Heartbeat(session_id, call.body.active, call.caller.scope), done)

    async def heartbeats(self, call: Call) -> Answer:
        body: HeartbeatsBody = call.body
        session_ids = [session_id.lower() for session_id in body.session_ids]
        results = await self._renewer.heartbeats(session_ids, call.caller.scope, active=body.active)
        encoded = _SharedJson(heartbeat_of_many).encode_all(session_ids, results, call.names)
        before, _, after = call.names.encode(HeartbeatsAnswer([], len(session_ids))).partition(b"[]")
        return Answer(b"%s[%s]%s" % (before, encoded, after))

    async def get(self, call: Call) -> Answer:
        session_id = session_id_of(call)
        session = await self._store.get_session(session_id, call.caller.scope)
        if session is None:
            raise unknown_session(session_id)
        if call.caller.session_id is not None and session.closed_at is not None:
            raise SessionOver(str(session.close_reason))
        return Answer(session_answer(session))

    async def end(self, call: Call) -> Answer:
        session_id = session_id_of(call)
        reason = CloseReason.TERMINATED if call.caller.role is Role.OPERATOR else CloseReason.STOPPED
        result = await self._ender.end(session_id, reason, call.caller.scope, call.actor)
        if result.session is None:
            raise unknown_session(session_id)
        is_own = result.recorded and result.session.close_reason == reason
        if call.caller.session_id is not None and not is_own:
            raise SessionOver(str(result.session.close_reason))
        return Answer(EndAnswer(*_session_values(result.session), status="closed" if is_own else "already_closed"))

    async def end_many(self, call: Call) -> Answer:
        body: EndBody = call.body
        selection, scope = selection_of(body), call.caller.scope
        if body.dry_run:
            count = await self._ender.count(selection, scope)
            done = count.exact and count.count == 0
            return Answer(EndedAnswer(body.action_id, 0, 0, count.count, count.exact, done))
        action_id = new_id() if body.action_id is None else body.action_id.lower()
        ended = await self._ender.end_many(selection, body.limit, action_id, scope, call.actor)
        if ended is None:
            raise Invalid(FieldError("actionId", "belongs to another caller, or to an action with another filter"))
        remaining = ended.remaining
        answer = EndedAnswer(action_id, ended.ended, ended.total, remaining.count, remaining.exact, done=ended.is_done)
        return Answer(answer)

    async def list(self, call: Call) -> Answer:
        query: SessionQuery = call.query
        if query.order is Order.LAPSE:
            return await self._list_next_lapses(query, call.caller.scope)
        after = None if query.cursor is None else position_of(query.cursor)
        found = await self._store.list_sessions(filter_of(query), after, query.limit + 1, call.caller.scope)
        resume = None if found.resume_after is None else cursor_of(found.resume_after)
        return page(found.sessions, query, self._path, _cursor_after, _listed, resume)

    async def _list_next_lapses(self, query: SessionQuery, scope: Scope) -> Answer:
        after = None if query.cursor is None else lapse_position_of(query.cursor)
        found = await self._store.list_next_lapses(filter_of(query), after, query.limit + 1, scope)

        def listed(sessions: Sequence[Session], count: int, cursor: str | None) -> SessionList:
            return SessionList([session_answer(session) for session in sessions], count, cursor, found.exact)

        return page(found.sessions, query, self._path, _cursor_after_lapse, listed)

    async def count(self, call: Call) -> Answer:
        found = await self._store.count_matches(filter_of(call.query), call.caller.scope)
        return Answer(SessionCountAnswer(found.count, found.exact))

    async def metrics(self, call: Call) -> Answer:
        scope = call.caller.scope
        if scope.is_bound:
            return Answer(metrics_answer(await self._counts.all(scope), None))
        counts, of_group = await asyncio.gather(self._counts.all(scope), self._counters.of_group())
        return Answer(metrics_answer(counts, of_group))


def check_scope(scope: Scope, tenant: str, user: str) -> None:
    """Raises `Forbidden` if a caller with this scope may not open a session for the tenant and the user."""
    if not scope.is_bound:
        return
    if not scope.admits_tenant(tenant.lower()):
        raise Forbidden("tenantObjectId: this credential is bound to another tenant")
    if not scope.admits(tenant.lower(), user.lower()):
        raise Forbidden("userObjectId: this credential is bound to another user")


def open_request(opener: Opener, body: OpenBody) -> OpenRequest:
    return opener.request(
        user=body.user_object_id,
        tenant=body.tenant_object_id,
        capacity=body.capacity_id,
        kind=body.session_kind,
        lease_seconds=body.lease_seconds,
        idle_seconds=body.idle_seconds,
    )


def refusal_of_open(result: OpenResult, scope: Scope) -> Problem | None:
    """Returns the problem if the open request was refused, otherwise None. All transports report the same problem.

    The problem does not reveal to a caller who is bound to a tenant whether the capacity, or the user's live session,
    belongs to another tenant.
    """
    if result.session is not None:
        return None
    if scope.is_bound and result.outcome in ABOUT_THE_TENANT:
        return Forbidden("this credential cannot open a session for this user on this capacity")
    return _OPEN_REFUSALS[result.outcome]


def refusal_of(result: HeartbeatResult | AttachResult, session_id: str) -> Problem | None:
    """Returns the problem if the result is a refusal, otherwise None. All transports report the same problem."""
    if result.found is Found.UNKNOWN:
        return unknown_session(session_id)
    if result.found is Found.OVER:
        reason = result.close_reason if isinstance(result, HeartbeatResult) else _close_reason(result)
        return SessionOver(str(reason))
    return None


_OPEN_REFUSALS: dict[OpenOutcome, Problem] = {
    OpenOutcome.TENANT_MISMATCH: TenantMismatch("this user has a live session of another tenant on this capacity"),
    OpenOutcome.CAPACITY_OF_ANOTHER_TENANT: CapacityOfAnotherTenant(
        "only the capacity's tenant can open sessions on it"
    ),
    OpenOutcome.SESSION_LIMIT: SessionLimit("all seats of this capacity are taken"),
}


def _close_reason(result: AttachResult) -> str | None:
    return None if result.session is None else result.session.close_reason


def _heartbeat_refusal(session_id: str, result: HeartbeatResult) -> Answer:
    problem = refusal_of(result, session_id)
    if problem is None:
        raise ValueError(f"a heartbeat that found {result.found} is no refusal")
    return refusal(problem)


class _SharedJson:
    """Encodes the results of heartbeats. Consecutive sessions of a batch often share a result, which is then encoded
    once.
    """

    def __init__(self, answer: Callable[[str, HeartbeatResult], msgspec.Struct]) -> None:
        self._answer = answer
        self._result: HeartbeatResult | None = None
        self._names: Names | None = None
        self._before = self._after = ""

    def encode(self, session_id: str, result: HeartbeatResult, names: Names) -> bytes:
        self._prepare(session_id, result, names)
        return f"{self._before}{session_id}{self._after}".encode()

    def encode_all(self, session_ids: Sequence[str], results: Sequence[HeartbeatResult], names: Names) -> bytes:
        """Returns the results as the elements of a JSON array, without its brackets."""
        pieces: list[bytes] = []
        for result, group in groupby(zip(session_ids, results, strict=True), itemgetter(1)):
            ids = [session_id for session_id, _ in group]
            self._prepare(ids[0], result, names)
            between = f"{self._after},{self._before}"
            pieces.append(f"{self._before}{between.join(ids)}{self._after}".encode())
        return b",".join(pieces)

    def _prepare(self, session_id: str, result: HeartbeatResult, names: Names) -> None:
        if result is not self._result or names is not self._names:
            text = names.encode(self._answer(session_id, result)).decode()
            self._before, _, self._after = text.partition(session_id)
            self._result, self._names = result, names


def _cursor_after(session: Session) -> str:
    return cursor_of(Position(session.started_at, session.session_id))


def _cursor_after_lapse(session: Session) -> str:
    return cursor_of_lapse(LapsePosition(session.deadline_at, session.session_id))


def _listed(sessions: Sequence[Session], count: int, cursor: str | None) -> SessionList:
    return SessionList([session_answer(session) for session in sessions], count, cursor, exact=True)


def filter_of(query: MatchQuery) -> SessionFilter:
    return SessionFilter(
        tenant=query.tenant and query.tenant.lower(),
        user=query.user and query.user.lower(),
        capacity=query.capacity and query.capacity.lower(),
        kind=int(query.kind) if query.kind else None,
        state=query.state,
        active=query.active and query.active == "true",
        close_reason=query.close_reason,
    )


def selection_of(body: EndBody) -> Selection:
    """Raises `Invalid` if the body has no filter, no ids and no `all`, or if it has `all` and also a filter or ids."""
    criteria = SessionFilter(
        tenant=body.tenant and body.tenant.lower(),
        user=body.user and body.user.lower(),
        capacity=body.capacity and body.capacity.lower(),
        kind=body.kind,
        state=body.state,
    )
    is_narrow = body.session_ids is not None or criteria != SessionFilter()
    if body.all == is_narrow:
        message = "cannot be combined with a filter" if body.all else "must be true if there is no filter"
        raise Invalid(FieldError("all", message))
    session_ids = None if body.session_ids is None else list(dict.fromkeys(map(str.lower, body.session_ids)))
    return Selection(criteria, session_ids)


def session_id_of(call: Call) -> str:
    """Returns the session id of the path in canonical form. Raises `NotFound` for a malformed id."""
    session_id = call.path["sessionId"]
    canonical = canonical_id(session_id)
    if canonical is None:
        raise unknown_session(session_id)
    return canonical


def unknown_session(session_id: str) -> NotFound:
    return NotFound(f"session {session_id[:64]} does not exist")


def _session_values(session: Session) -> tuple[Any, ...]:
    created_at = instant(session.started_at)
    imported = session.imported_start_at
    started_at = created_at if imported is None else instant(imported)
    closed_at = session.closed_at
    return (
        session.session_id,
        session.user_object_id,
        session.tenant_object_id,
        session.capacity_id,
        session.kind,
        started_at,
        instant(session.term_ends_at if closed_at is None else closed_at),
        closed_at is None,
        session.state,
        instant(session.deadline_at),
        seconds_number(session.heartbeat_microseconds),
        instant(session.last_heartbeat_at),
        instant(session.last_activity_at),
        session.close_reason,
        session.previous_session_id,
        created_at,
        instant(session.modified_at),
        session.stream,
    )


def session_answer(session: Session) -> SessionAnswer:
    return SessionAnswer(*_session_values(session))


def open_answer(result: OpenResult, sign: SignToken | None = None) -> OpenAnswer:
    """With `sign`, the answer contains a session token."""
    if result.session is None:
        raise ValueError(f"an open request with outcome {result.outcome} has no session")
    outcome = result.outcome
    return OpenAnswer(
        *_session_values(result.session),
        status=outcome.value,  # type: ignore[arg-type]
        was_created=outcome is not OpenOutcome.EXISTING,
        was_upgraded=outcome is OpenOutcome.UPGRADED,
        session_token=msgspec.UNSET if sign is None else sign(result.session.session_id),
    )


def heartbeat_answer(session_id: str, result: HeartbeatResult) -> HeartbeatAnswer:
    if result.deadline_at is None:
        raise ValueError(f"a heartbeat that found {result.found} has no deadline")
    return HeartbeatAnswer(
        session_id,
        instant(result.deadline_at),
        seconds_number(result.heartbeat_microseconds),
        acknowledged=True,
        state=result.state,  # type: ignore[arg-type]
    )


def heartbeat_of_many(session_id: str, result: HeartbeatResult) -> HeartbeatOfMany:
    if result.found is Found.LIVE and result.deadline_at is not None:
        return HeartbeatOfMany(
            session_id,
            True,
            instant(result.deadline_at),
            seconds_number(result.heartbeat_microseconds),
            result.state,  # type: ignore[arg-type]
        )
    if result.found is Found.OVER:
        return HeartbeatOfMany(session_id, False, status=410, close_reason=result.close_reason)  # type: ignore[arg-type]
    return HeartbeatOfMany(session_id, False, status=404)


def metrics_answer(counts: SessionCounts, of_group: GroupTotals | None) -> MetricsAnswer:
    """`of_group` is None for a caller who is bound to a tenant, because the counters of the process group cover all
    tenants.
    """
    from_database: dict[str, Any] = {
        "active_sessions": counts.active,
        "total_sessions": counts.total,
        "active_by_kind": {str(kind): count for kind, count in counts.active_by_kind.items()},
        "active_by_state": counts.active_by_state,
    }
    if of_group is None:
        return MetricsAnswer(**from_database)
    totals = of_group.totals

    def total(outcome: OpenOutcome) -> int:
        return sum(count for (name, _), count in totals.opened.items() if name == outcome)

    streamed: dict[str, Any] = {
        f"total_{name}": totals.streamed.get(name, 0) for name in StreamCounters.__struct_fields__
    }
    return MetricsAnswer(
        **from_database,
        opened=total(OpenOutcome.CREATED) + total(OpenOutcome.UPGRADED),
        upgraded=total(OpenOutcome.UPGRADED),
        closed_by_reason={reason.value: totals.closed.get(reason.value, 0) for reason in CloseReason},
        **streamed,
        workers=of_group.workers,
        workers_answered=of_group.answered,
    )
