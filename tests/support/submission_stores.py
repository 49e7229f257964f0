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
    OpenAttempt,
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
EPOCH = 7
NOON_MICROSECONDS = to_microseconds(NOON)


class Row(msgspec.Struct, kw_only=True):
    number: int
    gateway: str = "crm"
    state: str = SubmissionState.PENDING.value
    due: int | None = NOON_MICROSECONDS
    changed: int = NOON_MICROSECONDS
    attempts: int = 0
    failures: int = 0
    unknowns: int = 0
    binding: bool = False
    orphaned: bool = False
    """Whether the last attempt was begun in an earlier epoch and is still open."""
    last_error: str | None = None
    contract: Contract = CONTRACT

    @property
    def submission_id(self) -> str:
        return id_of_number(self.number)


class SubmissionStore:
    """The clock of the store starts at noon and runs until a test stops it."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.calls: list[str] = []
        """The names of the methods that were called, in order."""
        self.ends: list[AttemptEnd] = []
        self.explained: list[tuple[Sequence[str], str]] = []
        """The submission ids and the reason of each call of `note_waiting_reason`."""
        self.found: dict[int, list[BeginAttemptOutcome]] = defaultdict(list)
        """Outcomes that the next `begin_attempts` calls return for a submission, by its number, one per call. They
        replace the outcomes that follow from the row of the submission."""
        self.errors_before: dict[str, list[MakeError]] = defaultdict(list)
        """Errors that the next calls of a method raise, one per call."""
        self.in_progress: dict[str, int] = defaultdict(int)
        self.max_concurrent: dict[str, int] = defaultdict(int)
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
        """From now on, calls of the method take effect, but do not return before the returned event is set."""
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

    async def begin_attempts(
        self, fence: Fence, submission_ids: Sequence[str], early: Sequence[str] = ()
    ) -> BeginAttemptsResult:
        assert fence.name == "submission-executor"
        assert set(early) <= set(submission_ids)
        return await self._do("begin_attempts", lambda: self._begin(submission_ids, early))

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[SubmissionStatus]:
        assert fence.name == "submission-executor"
        return await self._do("finish_attempts", lambda: [self._finish(end) for end in ends])

    async def list_orphaned_attempts(self, epoch: int, limit: int) -> Sequence[OpenAttempt]:
        assert epoch == EPOCH
        return await self._do("list_orphaned_attempts", lambda: self._orphaned()[:limit])

    async def note_waiting_reason(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        assert fence.name == "submission-executor"
        await self._do("note_waiting_reason", lambda: self.explained.append((submission_ids, error)))

    async def _do(self, method: str, work: Callable[[], T]) -> T:
        self.calls.append(method)
        if self.errors_before[method]:
            make_error = self.errors_before[method].pop(0)
            raise make_error()
        self.in_progress[method] += 1
        self.max_concurrent[method] = max(self.max_concurrent[method], self.in_progress[method])
        try:
            result = work()
            await asyncio.sleep(0)
            if method in self._may_return:
                await self._may_return[method].wait()
            return result
        finally:
            self.in_progress[method] -= 1

    def _page(self, after: Change | None, limit: int) -> PendingPage:
        pending = [row for row in self.rows.values() if row.state == SubmissionState.PENDING]
        places = sorted(Change(row.changed, row.number) for row in pending)
        shown = [place for place in places if after is None or place > after][:limit]
        rows = [self.rows[place.number] for place in shown]
        entries = [PendingEntry(row.number, row.gateway, row.due, row.changed) for row in rows]
        return PendingPage(from_microseconds(self.now), entries)

    def _orphaned(self) -> Sequence[OpenAttempt]:
        rows = [row for row in self.rows.values() if row.orphaned]
        return [OpenAttempt(row.submission_id, row.attempts, row.gateway, row.unknowns, row.contract) for row in rows]

    def _begin(self, submission_ids: Sequence[str], early: Sequence[str]) -> BeginAttemptsResult:
        begun = [self._begin_one(self.rows[number_of_id(each)], early=each in early) for each in submission_ids]
        return BeginAttemptsResult(from_microseconds(self.now), begun)

    def _begin_one(self, row: Row, *, early: bool) -> BeginAttemptResult:
        found = self.found[row.number].pop(0) if self.found[row.number] else self._outcome(row, early=early)
        if found is BeginAttemptOutcome.OVER and row.state == SubmissionState.PENDING:
            row.state = SubmissionState.CANCELLED.value  # by a concurrent request
        if found is not BeginAttemptOutcome.BEGUN:
            return BeginAttemptResult(row.submission_id, found, next_attempt_at=_instant(row.due))
        was_due = row.due if row.due is not None and row.due > self.now else None
        row.attempts += 1
        row.due = None
        return BeginAttemptResult(row.submission_id, found, row.attempts, row.failures, row.unknowns, _instant(was_due))

    def _outcome(self, row: Row, *, early: bool) -> BeginAttemptOutcome:
        if row.state != SubmissionState.PENDING:
            return BeginAttemptOutcome.OVER
        is_due = row.due is not None and (row.due <= self.now or (early and not row.binding))
        return BeginAttemptOutcome.BEGUN if is_due else BeginAttemptOutcome.LATER

    def _finish(self, end: AttemptEnd) -> SubmissionStatus:
        self.ends.append(end)
        row = self.rows[number_of_id(end.submission_id)]
        assert end.number == row.attempts, (end, row)
        row.orphaned = False
        row.failures += end.counts
        row.unknowns += end.outcome is AttemptOutcome.UNKNOWN
        row.binding = end.is_binding
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
    """A lease that stays trusted for longer than any test runs, unless the test calls `withdraw`."""
    fence = Fence("submission-executor", "us", EPOCH)
    return HeldLease(None, fence, 600 * SECOND, boottime())  # type: ignore[arg-type]
