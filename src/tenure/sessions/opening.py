"""Opening sessions: from one wish to one answer, through the lanes of the store.

A wish starts in lane CREATE. `reopen` and `limited` send it to the lane of that name, and there once more while
somebody holds a row; `again` sends it back: somebody else changed the key between two looks. Each such round means that
another request got its answer, and time bounds their number.

Within a batch a key stands once, and the keys are in order, since unsorted batches deadlock. Of several wishes for the
same key the highest kind goes to the database, and the others are told what it found: as if they had come just after.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from tenure.coalescer import Coalescer
from tenure.config import SessionsConfig
from tenure.deadlines import MICROSECONDS, heartbeat_microseconds
from tenure.errors import CapacityOfAnotherTenant, IdTaken, SessionLimit, TenantMismatch
from tenure.ids import new_id
from tenure.model.sessions import Limits, Open, Opened, Outcome
from tenure.sessions.counters import Counters
from tenure.sessions.rounds import Later, Pauses
from tenure.store.store import Lane, Store

Done = Callable[[Opened | Exception], None]


class OpenRequest(Protocol):
    """What the API takes; `OpenBody` is one."""

    @property
    def user_object_id(self) -> str: ...
    @property
    def tenant_object_id(self) -> str: ...
    @property
    def capacity_id(self) -> str: ...
    @property
    def session_kind(self) -> int: ...
    @property
    def lease_seconds(self) -> int | None: ...
    @property
    def idle_seconds(self) -> int | None: ...


class Opener:
    def __init__(self, store: Store, config: SessionsConfig, counters: Counters) -> None:
        self._store = store
        self._limits = limits_from(config)
        self._heartbeat = round(config.heartbeat_seconds * MICROSECONDS)
        self._counters = counters
        self._later = Later[Opened]()
        self._lanes = {
            lane: Coalescer[Open, Opened](partial(self._run, lane), store.batches_in_flight) for lane in Lane
        }

    def wish(self, request: OpenRequest) -> Open:
        lease = request.lease_seconds and request.lease_seconds * MICROSECONDS
        return Open(
            new_id(),
            request.tenant_object_id.lower(),
            request.user_object_id.lower(),
            request.capacity_id.lower(),
            request.session_kind,
            lease,
            request.idle_seconds and request.idle_seconds * MICROSECONDS,
            heartbeat_microseconds(lease, self._heartbeat),
        )

    async def open(self, wish: Open) -> Opened:
        """Created, existing or upgraded, with its session; anything else is raised."""
        since = asyncio.get_running_loop().time()
        return await self._finish(wish, await self._lanes[Lane.CREATE].ask(wish, since), since)

    def open_soon(self, wish: Open, done: Done) -> None:
        """The same as `open`, without a task unless a second round is needed."""
        since = asyncio.get_running_loop().time()
        self._lanes[Lane.CREATE].submit(wish, partial(self._first_round, wish, done, since), since)

    def _first_round(self, wish: Open, done: Done, since: float, answer: Opened | Exception) -> None:
        if isinstance(answer, Opened):
            if answer.session is None:
                self._later.tell(self._finish(wish, answer, since), done)
                return
            self._counters.count_opening(answer)
        done(answer)

    async def _finish(self, wish: Open, answer: Opened, since: float) -> Opened:
        """As many rounds as it takes, within the time that anyone should wait."""
        pauses = Pauses(since)
        while answer.session is None:
            if answer.outcome in _REFUSALS:
                problem, detail = _REFUSALS[answer.outcome]
                raise problem(detail)
            if answer.outcome in _LANES:
                # From the second time on a row is held by somebody, mostly for a millisecond.
                await pauses.pause()
                answer = await self._lanes[_LANES[answer.outcome]].ask(wish, since)
            else:
                pauses.check()
                # This round has certainly opened nothing, so the next may bring an id of its own.
                wish = replace(wish, session_id=new_id())
                answer = await self._lanes[Lane.CREATE].ask(wish, since)
        self._counters.count_opening(answer)
        return answer

    async def _run(self, lane: Lane, wishes: Sequence[Open]) -> Sequence[Opened]:
        best = _leaders(wishes)
        leaders = [best[key] for key in sorted(best)]
        try:
            answers = await self._store.open_sessions(lane, leaders, self._limits)
        except IdTaken:
            if len(wishes) > 1:
                raise  # the members are run one by one, and one of them will come back here
            return [Opened(Outcome.AGAIN)]
        for answer in answers:
            if answer.closings:
                self._counters.count_closings(answer.closings)
        if len(leaders) == len(wishes):
            own = {leader.session_id: _own(leader, answer) for leader, answer in zip(leaders, answers, strict=True)}
            return [own[wish.session_id] for wish in wishes]
        found = {leader.key: (leader, _own(leader, answer)) for leader, answer in zip(leaders, answers, strict=True)}
        return [_follow(wish, *found[wish.key]) for wish in wishes]


_LANES = {Outcome.REOPEN: Lane.REOPEN, Outcome.LIMITED: Lane.LIMITED}
_REFUSALS = {
    Outcome.TENANT_MISMATCH: (TenantMismatch, "this user holds a live session of another tenant on this capacity"),
    Outcome.CAPACITY_OF_ANOTHER_TENANT: (CapacityOfAnotherTenant, "only its own tenant can open sessions on it"),
    Outcome.SESSION_LIMIT: (SessionLimit, "all seats of this capacity are taken"),
}


def limits_from(config: SessionsConfig) -> Limits:
    """The limits of sessions that ask for none of their own."""
    lease = round(config.lease_seconds * MICROSECONDS) or None
    return Limits(
        term=timedelta(days=config.term_days),
        lease_microseconds=lease,
        idle_microseconds=round(config.idle_seconds * MICROSECONDS) or None,
        heartbeat_microseconds=heartbeat_microseconds(lease, round(config.heartbeat_seconds * MICROSECONDS)),
    )


def _leaders(wishes: Sequence[Open]) -> dict[tuple[str, str], Open]:
    """One wish a key: the highest kind, and of those the first."""
    best: dict[tuple[str, str], Open] = {}
    for wish in wishes:
        key = wish.key
        other = best.get(key)
        if other is None or wish.kind > other.kind:
            best[key] = wish
    return best


def _own(wish: Open, answer: Opened) -> Opened:
    """A session that bears the id this wish brought was opened by it, in a try whose answer was lost."""
    session = answer.session
    if answer.outcome is not Outcome.EXISTING or session is None or session.session_id != wish.session_id:
        return answer
    outcome = Outcome.CREATED if session.previous_session_id is None else Outcome.UPGRADED
    return Opened(outcome, session)


_ABOUT_THE_TENANT = (Outcome.TENANT_MISMATCH, Outcome.CAPACITY_OF_ANOTHER_TENANT)


def _follow(wish: Open, leader: Open, answer: Opened) -> Opened:
    if wish is leader:
        return answer
    session = answer.session
    if session is None:
        same = answer.outcome not in _ABOUT_THE_TENANT or wish.tenant_object_id == leader.tenant_object_id
        return answer if same else Opened(Outcome.AGAIN)
    if session.tenant_object_id != wish.tenant_object_id:
        return Opened(Outcome.TENANT_MISMATCH)
    return Opened(Outcome.EXISTING, session)
