"""Leases and jobs in memory: a store that fails, hangs and loses responses as a test configures it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import pytest
from msgspec.structs import replace

from tenure.domain.jobs import BeginRunOutcome, BeginRunResult, Board, BoardJob, Job, JobSettings, RunOutcome
from tenure.domain.leases import JOB_LOCK, AcquireResult, Fence, Lease
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.store.contract import Topic
from tests.support.open_requests import NOON, SECOND

T = TypeVar("T")
MakeError = Callable[[], Exception]

CLOCKS = ("tenure.leases.held", "tenure.leases.leadership", "tenure.jobs.runner", "tenure.leases.acquirer")
LOCK_TIMEOUT = 120 * SECOND


def unavailable() -> Exception:
    return DatabaseUnavailable("the database cannot be reached")


class HostClock:
    """The clock of the host, which measures how long a lease is trusted. A test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        for module in CLOCKS:
            monkeypatch.setattr(f"{module}.boottime", lambda: self.seconds)

    def move(self, seconds: float) -> None:
        self.seconds += seconds


class Finish:
    """The recorded end of a run."""

    def __init__(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        self.fence = fence
        self.outcome = outcome
        self.error = error
        self.retry_microseconds = retry_microseconds


class LeaseStore:
    def __init__(self) -> None:
        self.now: datetime = NOON
        """The database's clock."""
        self.leases: dict[str, Lease] = {}
        self.jobs: dict[str, Job] = {}
        self.failures_in_a_row = 0
        self.is_due = True
        self.clock_behind: datetime | None = None
        self.finishes: list[Finish] = []
        self.calls: list[str] = []
        """The names of the methods that were called, in order, without `register_jobs` and `listen`."""
        self.errors_before: dict[str, list[MakeError]] = defaultdict(list)
        """Errors that the next calls of a method raise, one per call."""
        self.errors_after: dict[str, list[MakeError]] = defaultdict(list)
        """Errors that the next calls raise after they took effect: their responses are lost."""
        self.always_raise: MakeError | None = None
        """The error that every call in `calls` raises while it is set."""
        self._may_return: dict[str, asyncio.Event] = defaultdict(_set_event)

    def hold_back(self, method: str) -> asyncio.Event:
        """From now on, calls of the method take effect, but do not return before the returned event is set."""
        self._may_return[method] = asyncio.Event()
        return self._may_return[method]

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> AcquireResult:
        del attempt
        return await self._do("acquire_lease", lambda: self._acquire(name, holder, duration_microseconds))

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        return await self._do("renew_lease", lambda: self._renew(fence, duration_microseconds))

    async def release_lease(self, fence: Fence) -> Lease:
        return await self._do("release_lease", lambda: self._end(fence, resigned=False))

    async def read_board(self, names: Sequence[str]) -> Board:
        return await self._do("read_board", lambda: self.board(*names))

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        """Never notifies."""

    async def register_jobs(self, jobs: Sequence[JobSettings]) -> None:
        for job in jobs:
            self.jobs[job.name] = Job(
                name=job.name,
                interval_microseconds=job.interval_microseconds,
                lock_timeout_microseconds=job.lock_timeout_microseconds,
                next_run_at=self.now,
                run_count=0,
                failures_in_a_row=0,
                paused=job.paused,
            )

    async def begin_run(self, job: str, holder: str, attempt: str) -> BeginRunResult:
        del attempt
        return await self._do("begin_run", lambda: self._begin(job, holder))

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        def finish() -> None:
            if self.leases[fence.name].fence != fence or not self.leases[fence.name].released:
                self._end(fence, resigned=False)
                self.finishes.append(Finish(fence, outcome, error, retry_microseconds))

        await self._do("finish_run", finish)

    # Methods for tests.

    def board(self, *names: str) -> Board:
        leases = [self._seen(self.leases[name]) for name in names if name in self.leases]
        return Board(leases, [BoardJob(job, self._lock(job.name), self.now) for job in self.jobs.values()])

    def resign(self, name: str) -> None:
        self._end(self.leases[name].fence, resigned=True)

    def steal(self, name: str) -> None:
        """Changes the lease as if it had expired and another holder had acquired it."""
        lease = self.leases[name]
        self.leases[name] = replace(lease, holder="thief", epoch=lease.epoch + 1)

    def is_held(self, name: str) -> bool:
        return name in self.leases and self._seen(self.leases[name]).held

    async def _do(self, method: str, work: Callable[[], T]) -> T:
        self.calls.append(method)
        if self.always_raise is not None:
            raise self.always_raise()
        if self.errors_before[method]:
            error = self.errors_before[method].pop(0)
            raise error()
        result = work()
        await self._may_return[method].wait()
        if self.errors_after[method]:
            error = self.errors_after[method].pop(0)
            raise error()
        return result

    def _lock(self, job: str) -> Lease | None:
        lock = self.leases.get(JOB_LOCK + job)
        return lock and self._seen(lock)

    def _seen(self, lease: Lease) -> Lease:
        return replace(lease, held=not lease.released and lease.expires_at > self.now)

    def _acquire(self, name: str, holder: str, duration_microseconds: int) -> AcquireResult:
        old = self.leases.get(name)
        if old is not None and self._seen(old).held:
            return AcquireResult(self._seen(old), taken=False)
        self.leases[name] = Lease(
            name=name,
            holder=holder,
            epoch=1 if old is None else old.epoch + 1,
            held=True,
            acquired_at=self.now,
            renewed_at=self.now,
            expires_at=self.now + timedelta(microseconds=duration_microseconds),
        )
        return AcquireResult(self.leases[name], taken=True)

    def _renew(self, fence: Fence, duration_microseconds: int) -> Lease:
        lease = self._checked(fence)
        expires_at = self.now + timedelta(microseconds=duration_microseconds)
        self.leases[fence.name] = replace(lease, renewed_at=self.now, expires_at=expires_at)
        return self.leases[fence.name]

    def _end(self, fence: Fence, *, resigned: bool) -> Lease:
        lease = self._checked(fence)
        self.leases[fence.name] = replace(lease, expires_at=self.now, held=False, released=True, resigned=resigned)
        return self.leases[fence.name]

    def _checked(self, fence: Fence) -> Lease:
        lease = self.leases.get(fence.name)
        if lease is None or lease.fence != fence or not self._seen(lease).held:
            raise LeaseLost(f"{fence.holder} does not hold the lease {fence.name} in epoch {fence.epoch}")
        return lease

    def _begin(self, job: str, holder: str) -> BeginRunResult:
        if not self.is_due:
            return BeginRunResult(BeginRunOutcome.IDLE)
        timeout = self.jobs[job].lock_timeout_microseconds if job in self.jobs else LOCK_TIMEOUT
        acquired = self._acquire(JOB_LOCK + job, holder, timeout)
        if not acquired.taken:
            return BeginRunResult(BeginRunOutcome.HELD)
        return BeginRunResult(
            BeginRunOutcome.BEGUN,
            acquired.lease.fence,
            self.now,
            acquired.lease.expires_at,
            self.now,
            timeout,
            self.failures_in_a_row,
            clock_behind=self.clock_behind,
        )


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
