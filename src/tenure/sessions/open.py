"""Opening sessions: from one open request to one result, through the opening lanes of the store.

A request usually starts in lane CREATE. The result `reopen` or `limited` sends it to the lane of that name, where it
is retried while another transaction holds a row. The result `again` sends it back to CREATE, usually because the
session of its key (capacity and user) changed between two reads. A time limit bounds the retries.

On an engine whose lane LIMITED returns live sessions without a lock, a request begins in that lane if this instance has
learned from an earlier open request that the capacity has rules (a limit or a tenant). This saves a transaction. If the
capacity no longer has rules, the result is `again`.

The database gets each key of a batch once, and the keys in ascending order, because unsorted batches could deadlock. Of
several requests for one key, only the one with the highest kind is sent. The results of the others are derived from its
result, as if they had arrived just after it.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from tenure.batching.coalescer import Coalescer
from tenure.batching.contention import BackgroundRetries, Backoff
from tenure.config import SessionsConfig
from tenure.domain.deadlines import MICROSECONDS, heartbeat_microseconds
from tenure.domain.sessions import CloseReason, Limits, OpenOutcome, OpenRequest, OpenResult, Session
from tenure.errors import IdTaken
from tenure.ids import new_session_id
from tenure.sessions.ends import SessionEnds
from tenure.store.contract import Store
from tenure.store.contract.sessions import OpenLane
from tenure.telemetry.events import OpenRefused, SessionOpened, Telemetry

Done = Callable[[OpenResult | Exception], None]

LIMITED_CAPACITIES_MAX = 10_000
"""How many capacities an instance remembers as limited."""


class Opener:
    def __init__(self, store: Store, config: SessionsConfig, ends: SessionEnds, telemetry: Telemetry) -> None:
        self._store = store
        self._ends = ends
        self._limits = limits_from(config)
        self._heartbeat = round(config.heartbeat_seconds * MICROSECONDS)
        self._telemetry = telemetry
        self._retries = BackgroundRetries[OpenResult]()
        self._limited: dict[str, None] = {}
        """The capacities that were limited at their last open request, oldest first."""
        self._lanes = {
            lane: Coalescer[OpenRequest, OpenResult](partial(self._run, lane), store.batches_in_flight, telemetry)
            for lane in OpenLane
        }

    def request(
        self,
        *,
        user: str,
        tenant: str,
        capacity: str,
        kind: int,
        lease_seconds: int | None = None,
        idle_seconds: int | None = None,
    ) -> OpenRequest:
        """Returns an open request with a new session id. Limits that are not given come from the configuration."""
        lease = lease_seconds and lease_seconds * MICROSECONDS
        return OpenRequest(
            new_session_id(),
            tenant.lower(),
            user.lower(),
            capacity.lower(),
            kind,
            lease,
            idle_seconds and idle_seconds * MICROSECONDS,
            heartbeat_microseconds(lease, self._heartbeat),
        )

    async def open(self, request: OpenRequest) -> OpenResult:
        """Returns the outcome `created`, `existing` or `upgraded` with the session, or a refusal without a session."""
        since = asyncio.get_running_loop().time()
        return await self._finish(request, await self._first_lane(request).run(request, since), since)

    def open_soon(self, request: OpenRequest, done: Done) -> None:
        """Like `open`, but passes the result to a callback. No task is created if the first try returns a session."""
        since = asyncio.get_running_loop().time()
        self._first_lane(request).submit(request, partial(self._first_result, request, done, since), since)

    def _first_lane(self, request: OpenRequest) -> Coalescer[OpenRequest, OpenResult]:
        return self._lanes[OpenLane.LIMITED if request.capacity_id in self._limited else OpenLane.CREATE]

    def _first_result(self, request: OpenRequest, done: Done, since: float, result: OpenResult | Exception) -> None:
        if isinstance(result, OpenResult):
            if result.session is None:
                self._retries.start(self._finish(request, result, since), done)
                return
            self._report(result.outcome, result.session)
        done(result)

    async def _finish(self, request: OpenRequest, result: OpenResult, since: float) -> OpenResult:
        """Retries until the request has a session or a refusal, within CONTENTION_SECONDS."""
        backoff = Backoff(since)
        while result.session is None and result.outcome not in REFUSALS:
            self._remember_limit(request.capacity_id, result.outcome)
            if result.outcome in _NEXT_LANES:
                # The first pause is zero. Later pauses wait for a row that another transaction holds, usually for 1 ms.
                await backoff.pause()
                result = await self._lanes[_NEXT_LANES[result.outcome]].run(request, since)
            else:
                backoff.check()
                # Keep the session id unless it is taken: an earlier try whose response was lost may have opened the
                # session under this id, or may still commit.
                if result.outcome is OpenOutcome.ID_TAKEN:
                    request = replace(request, session_id=new_session_id())
                result = await self._lanes[OpenLane.CREATE].run(request, since)
        if result.session is not None:
            self._report(result.outcome, result.session)
        else:
            self._telemetry.report(OpenRefused(result.outcome))
        return result

    def _remember_limit(self, capacity_id: str, outcome: OpenOutcome) -> None:
        if outcome is OpenOutcome.AGAIN:
            self._limited.pop(capacity_id, None)
        elif outcome is OpenOutcome.LIMITED and self._store.may_start_limited:
            self._limited[capacity_id] = None
            if len(self._limited) > LIMITED_CAPACITIES_MAX:
                del self._limited[next(iter(self._limited))]

    def _report(self, outcome: OpenOutcome, session: Session) -> None:
        self._telemetry.report(SessionOpened(outcome, session))
        if outcome is OpenOutcome.UPGRADED and session.previous_session_id is not None:
            self._ends.learn(session.previous_session_id, CloseReason.UPGRADED.value)

    async def _run(self, lane: OpenLane, requests: Sequence[OpenRequest]) -> Sequence[OpenResult]:
        best = _highest_kinds(requests)
        leaders = [best[key] for key in sorted(best)]
        try:
            results = await self._store.open_sessions(lane, leaders, self._limits)
        except IdTaken:
            if len(requests) > 1:
                raise  # the coalescer then runs each request alone; the one whose id is taken gets ID_TAKEN
            return [OpenResult(OpenOutcome.ID_TAKEN)]
        for result in results:
            for closed in result.closed_sessions:
                self._ends.record(closed)
        if len(leaders) == len(requests):
            own = {leader.session_id: _own(leader, result) for leader, result in zip(leaders, results, strict=True)}
            return [own[request.session_id] for request in requests]
        found = {leader.key: (leader, _own(leader, result)) for leader, result in zip(leaders, results, strict=True)}
        return [_derive(request, *found[request.key]) for request in requests]


_NEXT_LANES = {OpenOutcome.REOPEN: OpenLane.REOPEN, OpenOutcome.LIMITED: OpenLane.LIMITED}
REFUSALS = (OpenOutcome.TENANT_MISMATCH, OpenOutcome.CAPACITY_OF_ANOTHER_TENANT, OpenOutcome.SESSION_LIMIT)


def limits_from(config: SessionsConfig) -> Limits:
    """Returns the default limits, for requests that set none."""
    lease = round(config.lease_seconds * MICROSECONDS) or None
    return Limits(
        term=timedelta(days=config.term_days),
        lease_microseconds=lease,
        idle_microseconds=round(config.idle_seconds * MICROSECONDS) or None,
        heartbeat_microseconds=heartbeat_microseconds(lease, round(config.heartbeat_seconds * MICROSECONDS)),
    )


def _highest_kinds(requests: Sequence[OpenRequest]) -> dict[tuple[str, str], OpenRequest]:
    """Returns one request per key: the first of those with the highest kind."""
    best: dict[tuple[str, str], OpenRequest] = {}
    for request in requests:
        key = request.key
        other = best.get(key)
        if other is None or request.kind > other.kind:
            best[key] = request
    return best


def _own(request: OpenRequest, result: OpenResult) -> OpenResult:
    """Changes the outcome `existing` to `created` or `upgraded` if the existing session has the id of this request:
    then an earlier try of the same request opened the session, and the response was lost.
    """
    session = result.session
    if result.outcome is not OpenOutcome.EXISTING or session is None or session.session_id != request.session_id:
        return result
    outcome = OpenOutcome.CREATED if session.previous_session_id is None else OpenOutcome.UPGRADED
    return OpenResult(outcome, session)


ABOUT_THE_TENANT = (OpenOutcome.TENANT_MISMATCH, OpenOutcome.CAPACITY_OF_ANOTHER_TENANT)


def _derive(request: OpenRequest, sent: OpenRequest, result: OpenResult) -> OpenResult:
    """Returns the result for `request`, derived from the `result` of `sent`: the request for the same key that was sent
    to the database.
    """
    if request is sent:
        return result
    session = result.session
    if session is None:
        same = result.outcome not in ABOUT_THE_TENANT or request.tenant_object_id == sent.tenant_object_id
        return result if same else OpenResult(OpenOutcome.AGAIN)
    if session.tenant_object_id != request.tenant_object_id:
        return OpenResult(OpenOutcome.TENANT_MISMATCH)
    return OpenResult(OpenOutcome.EXISTING, session)
