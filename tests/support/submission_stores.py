"""Submissions in memory, for tests of the executor: a store that fails, hangs and responds as a test configures it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from tenure.clock import boottime, from_microseconds, monotonic, to_microseconds
from tenure.domain.leases import Fence
from tenure.domain.submissions import (
    AttemptEnd,
    AttemptOutcome,
    BeginAttemptOutcome,
    BeginAttemptResult,
    BeginAttemptsResult,
    Change,
    Contract,
    Envelope,
    PendingEntry,
    PendingPage,
    SubmissionState,
    SubmissionStatus,
)
from tenure.ids import id_of_number, number_of_id
from tenure.leases.held import HeldLease
from tests.support.open_requests import NOON, SECOND

T = TypeVar("T")
MakeError = Callable[[], Exception]

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
    """Its clock runs from noon, unless a test stops it."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.calls: list[str] = []
        """The names of the methods that were called, in order."""
        self.ends: list[AttemptEnd] = []
        self.explained: list[tuple[Sequence[str], str]] = []
        self.found: dict[int, list[BeginAttemptOutcome]] = defaultdict(list)
        """Outcomes of the next `begin_attempts` of a submission, instead of those that its row gives."""
        self.before: dict[str, list[MakeError]] = defaultdict(list)
        """Errors that the next calls of a method raise, one per call."""
        self.unknown: list[int] = []
        """The number of open attempts that each call of `close_orphaned_attempts` finds."""
        self.under_way: dict[str, int] = defaultdict(int)
        self.most: dict[str, int] = defaultdict(int)
        """The highest number of concurrent calls of a method."""
        self._may_return: dict[str, asyncio.Event] = {}
        self._stopped_at: int | None = None
        self._began = monotonic()

    # The clock.

    @property
    def now(self) -> int:
        running = NOON_MICROSECONDS + int((monotonic() - self._began) * SECOND)
        return running if self._stopped_at is None else self._stopped_at

    def set_now(self, seconds_after_noon: float) -> None:
        """Stops the clock at this time."""
        self._stopped_at = NOON_MICROSECONDS + round(seconds_after_noon * SECOND)

    # Methods for tests.

    def add(self, *numbers: int, **given: Any) -> None:
        for number in numbers:
            self.rows[number] = Row(number=number, **given)

    def hold_back(self, method: str) -> asyncio.Event:
        """From now on, calls of the method take effect, but do not return before the event is set."""
        self._may_return[method] = asyncio.Event()
        return self._may_return[method]

    def outcomes(self) -> dict[int, list[AttemptOutcome]]:
        found: dict[int, list[AttemptOutcome]] = defaultdict(list)
        for end in self.ends:
            found[number_of_id(end.submission_id)].append(end.outcome)
        return found

    # Methods of the store contract.

    async def list_pending(self, after: Change | None, limit: int) -> PendingPage:
        return await self._do("list_pending", lambda: self._page(after, limit))

    async def read_envelopes(self, submission_ids: Sequence[str]) -> Sequence[Envelope]:
        rows = [self.rows[number_of_id(each)] for each in submission_ids]
        return await self._do("read_envelopes", lambda: [_envelope(row) for row in rows])

    async def begin_attempts(self, fence: Fence, submission_ids: Sequence[str]) -> BeginAttemptsResult:
        assert fence.name == "submission-executor"
        return await self._do("begin_attempts", lambda: self._begin(submission_ids))

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[SubmissionStatus]:
        assert fence.name == "submission-executor"
        return await self._do("finish_attempts", lambda: [self._finish(end) for end in ends])

    async def close_orphaned_attempts(self, fence: Fence, limit: int) -> int:
        assert fence.name == "submission-executor"
        assert limit
        return await self._do("close_orphaned_attempts", lambda: self.unknown.pop(0) if self.unknown else 0)

    async def note_waiting_reason(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        assert fence.name == "submission-executor"
        await self._do("note_waiting_reason", lambda: self.explained.append((submission_ids, error)))

    async def _do(self, method: str, work: Callable[[], T]) -> T:
        self.calls.append(method)
        if self.before[method]:
            make_error = self.before[method].pop(0)
            raise make_error()
        self.under_way[method] += 1
        self.most[method] = max(self.most[method], self.under_way[method])
        try:
            result = work()
            await asyncio.sleep(0)
            if method in self._may_return:
                await self._may_return[method].wait()
            return result
        finally:
            self.under_way[method] -= 1

    def _page(self, after: Change | None, limit: int) -> PendingPage:
        pending = [row for row in self.rows.values() if row.state == SubmissionState.PENDING]
        places = sorted(Change(row.changed, row.number) for row in pending)
        shown = [place for place in places if after is None or place > after][:limit]
        rows = [self.rows[place.number] for place in shown]
        entries = [PendingEntry(row.number, row.gateway, row.due, row.changed) for row in rows]
        return PendingPage(from_microseconds(self.now), entries)

    def _begin(self, submission_ids: Sequence[str]) -> BeginAttemptsResult:
        begun = [self._begin_one(self.rows[number_of_id(each)]) for each in submission_ids]
        return BeginAttemptsResult(from_microseconds(self.now), begun)

    def _begin_one(self, row: Row) -> BeginAttemptResult:
        found = self.found[row.number].pop(0) if self.found[row.number] else self._outcome(row)
        if found is BeginAttemptOutcome.OVER and row.state == SubmissionState.PENDING:
            row.state = SubmissionState.CANCELLED.value  # by a concurrent request
        if found is not BeginAttemptOutcome.BEGUN:
            return BeginAttemptResult(row.submission_id, found, next_attempt_at=_instant(row.due))
        row.attempts += 1
        row.due = None
        return BeginAttemptResult(row.submission_id, found, row.attempts, row.failures)

    def _outcome(self, row: Row) -> BeginAttemptOutcome:
        if row.state != SubmissionState.PENDING:
            return BeginAttemptOutcome.OVER
        is_due = row.due is not None and row.due <= self.now
        return BeginAttemptOutcome.BEGUN if is_due else BeginAttemptOutcome.LATER

    def _finish(self, end: AttemptEnd) -> SubmissionStatus:
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
        return SubmissionStatus(end.submission_id, row.state, _instant(row.due))


def _instant(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)


def _envelope(row: Row) -> Envelope:
    return Envelope(row.submission_id, row.submission_id, b'{"number": %d}' % row.number, row.contract)


def executor_lease() -> HeldLease:
    """Trusted until a test withdraws it."""
    fence = Fence("submission-executor", "us", 7)
    return HeldLease(None, fence, 600 * SECOND, boottime())  # type: ignore[arg-type]
