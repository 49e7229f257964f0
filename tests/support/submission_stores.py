"""Submissions in memory, as far as the executor needs them: a store that fails, hangs and answers as told."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from tenure.clock import boottime, from_microseconds, monotonic, to_microseconds
from tenure.ids import id_of_number, number_of_id
from tenure.leases.held import HeldLease
from tenure.model.leases import Fence
from tenure.model.submissions import (
    AttemptEnd,
    AttemptOutcome,
    BeginAttemptFound,
    BegunAttempt,
    BegunAttempts,
    Change,
    Contract,
    Moved,
    Parcel,
    SubmissionState,
    Waiting,
    WaitingPage,
)
from tests.support.wishes import NOON, SECOND

T = TypeVar("T")
Trouble = Callable[[], Exception]

CONTRACT = Contract((5.0, 30.0), 3, (409,), 10.0)
NOON_MICROSECONDS = to_microseconds(NOON)


class Row(msgspec.Struct, kw_only=True):
    number: int
    gateway: str = "crm"
    state: str = SubmissionState.PENDING.value
    due: int | None = NOON_MICROSECONDS
    changed: int = NOON_MICROSECONDS
    attempts: int = 0
    failures: int = 0
    last_error: str | None = None
    contract: Contract = CONTRACT

    @property
    def submission_id(self) -> str:
        return id_of_number(self.number)


class SubmissionStore:
    """Its clock runs from noon on unless a test stops it."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.asked: list[str] = []
        """Which methods were called, in order."""
        self.ends: list[AttemptEnd] = []
        self.explained: list[tuple[Sequence[str], str]] = []
        self.found: dict[int, list[BeginAttemptFound]] = defaultdict(list)
        """What the next beginnings of a submission find instead of what is there."""
        self.before: dict[str, list[Trouble]] = defaultdict(list)
        """Raised instead of the next calls of a method, one by one."""
        self.unknown: list[int] = []
        """How many open attempts each call of `close_unknown` finds."""
        self.under_way: dict[str, int] = defaultdict(int)
        self.most: dict[str, int] = defaultdict(int)
        """Calls of a method at the same time, at most."""
        self._may_answer: dict[str, asyncio.Event] = {}
        self._stopped_at: int | None = None
        self._began = monotonic()

    # The clock.

    @property
    def now(self) -> int:
        running = NOON_MICROSECONDS + int((monotonic() - self._began) * SECOND)
        return running if self._stopped_at is None else self._stopped_at

    def set_now(self, seconds_after_noon: float) -> None:
        """Stops its clock there."""
        self._stopped_at = NOON_MICROSECONDS + round(seconds_after_noon * SECOND)

    # What a test arranges.

    def add(self, *numbers: int, **given: Any) -> None:
        for number in numbers:
            self.rows[number] = Row(number=number, **given)

    def hold_back(self, method: str) -> asyncio.Event:
        """From now on the method's calls are carried out and their answers wait for the event."""
        self._may_answer[method] = asyncio.Event()
        return self._may_answer[method]

    def outcomes(self) -> dict[int, list[AttemptOutcome]]:
        told: dict[int, list[AttemptOutcome]] = defaultdict(list)
        for end in self.ends:
            told[number_of_id(end.submission_id)].append(end.outcome)
        return told

    # What the executor calls.

    async def list_waiting(self, after: Change | None, limit: int) -> WaitingPage:
        return await self._do("list_waiting", lambda: self._page(after, limit))

    async def read_parcels(self, submission_ids: Sequence[str]) -> Sequence[Parcel]:
        rows = [self.rows[number_of_id(each)] for each in submission_ids]
        return await self._do("read_parcels", lambda: [_parcel(row) for row in rows])

    async def begin_attempts(self, fence: Fence, submission_ids: Sequence[str]) -> BegunAttempts:
        assert fence.name == "submission-executor"
        return await self._do("begin_attempts", lambda: self._begin(submission_ids))

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[Moved]:
        assert fence.name == "submission-executor"
        return await self._do("finish_attempts", lambda: [self._finish(end) for end in ends])

    async def close_unknown(self, fence: Fence, limit: int) -> int:
        assert fence.name == "submission-executor"
        assert limit
        return await self._do("close_unknown", lambda: self.unknown.pop(0) if self.unknown else 0)

    async def explain_waiting(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        assert fence.name == "submission-executor"
        await self._do("explain_waiting", lambda: self.explained.append((submission_ids, error)))

    async def _do(self, method: str, work: Callable[[], T]) -> T:
        self.asked.append(method)
        if self.before[method]:
            trouble = self.before[method].pop(0)
            raise trouble()
        self.under_way[method] += 1
        self.most[method] = max(self.most[method], self.under_way[method])
        try:
            answer = work()
            await asyncio.sleep(0)
            if method in self._may_answer:
                await self._may_answer[method].wait()
            return answer
        finally:
            self.under_way[method] -= 1

    def _page(self, after: Change | None, limit: int) -> WaitingPage:
        pending = [row for row in self.rows.values() if row.state == SubmissionState.PENDING]
        places = sorted(Change(row.changed, row.number) for row in pending)
        shown = [place for place in places if after is None or place > after][:limit]
        rows = [self.rows[place.number] for place in shown]
        waiting = [Waiting(row.number, row.gateway, row.due, row.changed) for row in rows]
        return WaitingPage(from_microseconds(self.now), waiting)

    def _begin(self, submission_ids: Sequence[str]) -> BegunAttempts:
        begun = [self._begin_one(self.rows[number_of_id(each)]) for each in submission_ids]
        return BegunAttempts(from_microseconds(self.now), begun)

    def _begin_one(self, row: Row) -> BegunAttempt:
        found = self.found[row.number].pop(0) if self.found[row.number] else self._what_is_there(row)
        if found is BeginAttemptFound.OVER and row.state == SubmissionState.PENDING:
            row.state = SubmissionState.CANCELLED.value  # by somebody, a moment ago
        if found is not BeginAttemptFound.BEGUN:
            return BegunAttempt(row.submission_id, found, next_attempt_at=_instant(row.due))
        row.attempts += 1
        row.due = None
        return BegunAttempt(row.submission_id, found, row.attempts, row.failures)

    def _what_is_there(self, row: Row) -> BeginAttemptFound:
        if row.state != SubmissionState.PENDING:
            return BeginAttemptFound.OVER
        is_due = row.due is not None and row.due <= self.now
        return BeginAttemptFound.BEGUN if is_due else BeginAttemptFound.LATER

    def _finish(self, end: AttemptEnd) -> Moved:
        self.ends.append(end)
        row = self.rows[number_of_id(end.submission_id)]
        assert end.number == row.attempts, (end, row)
        row.failures += end.counts
        if end.outcome is AttemptOutcome.DELIVERED:
            row.state = SubmissionState.DELIVERED.value
        elif end.pause_microseconds is None:
            row.state = SubmissionState.FAILED.value
        else:
            row.due = self.now + end.pause_microseconds
        return Moved(end.submission_id, row.state, _instant(row.due))


def _instant(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)


def _parcel(row: Row) -> Parcel:
    return Parcel(row.submission_id, row.submission_id, b'{"number": %d}' % row.number, row.contract)


def executor_lease() -> HeldLease:
    """Trusted until a test gives it up."""
    fence = Fence("submission-executor", "us", 7)
    return HeldLease(None, fence, 600 * SECOND, boottime())  # type: ignore[arg-type]
