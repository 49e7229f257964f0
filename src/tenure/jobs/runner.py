"""The job runner: begins runs that are due, renews their locks, and records how they ended.

If a job is due and its lock is free, the first instance that tries begins a run. One transaction takes the lock, checks
that the job is due, and records the run. The run can then end in one of three ways:

- The job returns or raises: the run has *succeeded* or *failed*. The outcome is recorded together with the next tick,
  or with the time of the retry.
- The instance loses the lock: the board or a renewal shows that the lock has ended, the renewal has failed three times
  in a row, or the lock is no longer trusted. The runner cancels the job, and the run is *abandoned*. The same happens
  if the instance stops and the job does not end within GRACE_SECONDS. The tick stays due.
- The process dies. The lock expires, and the instance that begins the next run records that the run was abandoned.

A run whose outcome cannot be recorded is abandoned too. After a failed or abandoned run, the tick stays due and the job
runs again. A successful run completes all ticks up to its start. If the writes of a job are idempotent and carry the
fence of the run, their effects on the database happen once, even if the job runs again.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from tenure.clock import boottime
from tenure.config import LeasesConfig
from tenure.domain.job_grid import due_in, retry_pause_microseconds
from tenure.domain.jobs import BeginRunOutcome, BeginRunResult, Board, BoardJob, JobSettings, RunOutcome
from tenure.domain.leases import JOB_LOCK, Fence
from tenure.errors import ERROR_MAX, ConfigurationError, DatabaseUnavailable, LeaseLost
from tenure.ids import new_id
from tenure.jobs.job import ActiveRun, RunJob
from tenure.leases.held import MICROSECONDS, HeldLease, keep_renewing
from tenure.leases.leadership import ReacquireDelay
from tenure.leases.waiting import cancel, is_set_within
from tenure.store.contract import Store
from tenure.telemetry.events import (
    JobAbandoned,
    JobClockBehind,
    JobFailed,
    JobFinished,
    JobLockLost,
    JobNotRun,
    JobPostponed,
    JobReclaimed,
    JobStarted,
    LeaseContended,
    Telemetry,
)

RENEW_MAX_SECONDS = 30.0
RENEWALS_PER_LOCK = 4
GRACE_SECONDS = 3.0
"""How long a run may continue after the instance begins to stop."""
RECORD_RETRY_SECONDS = 0.5


class JobRunner:
    """Runs all jobs of one instance."""

    names: Sequence[str] = ()

    def __init__(
        self, store: Store, holder: str, timing: LeasesConfig, telemetry: Telemetry, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._refresh_seconds = timing.refresh_seconds
        self._delay = ReacquireDelay(timing.refresh_seconds)
        self._telemetry = telemetry
        self._wake = wake
        self._holder = holder
        self._jobs: dict[str, RunJob] = {}
        self._settings: list[JobSettings] = []
        self._running: dict[str, asyncio.Task[None]] = {}
        self._locks: dict[str, HeldLease] = {}
        self._stopping = asyncio.Event()

    def add(self, settings: JobSettings, run: RunJob) -> None:
        if settings.name in self._jobs:
            raise ConfigurationError(f"job: {settings.name} was added already")
        self._jobs[settings.name] = run
        self._settings.append(settings)

    @property
    def job_names(self) -> list[str]:
        return list(self._jobs)

    async def register(self) -> None:
        await self._store.register_jobs(self._settings)

    def on_board(self, board: Board) -> float | None:
        """Begins runs that are due. Returns the seconds until the next job is due; None if no job waits."""
        waits = [self._begin_if_due(board_job) for board_job in board.board_jobs if board_job.job.name in self._jobs]
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _begin_if_due(self, board_job: BoardJob) -> float | None:
        name, lock = board_job.job.name, board_job.lock
        if lock is not None and name in self._locks:
            self._locks[name].compare(lock)
        until_due = due_in(board_job.job, board_job.now)
        held = lock is not None and lock.held
        if until_due is None or held or name in self._running or self._stopping.is_set():
            return None
        seconds = max(until_due.total_seconds(), 0 if lock is None else self._delay.seconds_left(lock))
        if seconds > 0:
            return seconds
        self._running[name] = asyncio.create_task(self._run(name))
        return None

    def on_board_unavailable(self, error: Exception) -> None:
        """Does nothing: a run continues for as long as its lock is trusted."""

    async def stop(self) -> None:
        """Begins no new runs, and waits until the current ones have ended."""
        self._stopping.set()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _run(self, name: str) -> None:
        try:
            if await self.run_once(name) is not None:
                self._wake()  # the next tick may be due soon
        except DatabaseUnavailable as error:
            self._telemetry.report(JobPostponed(name, error.detail))
            # Without this pause, a database that refuses writes but can be read would cause a busy loop: every board
            # shows that the job is due.
            await is_set_within(self._stopping, self._refresh_seconds)
        except Exception as error:  # noqa: BLE001 - reported; the runner tries again at the next board
            self._telemetry.report(JobNotRun(name, error))
        finally:
            del self._running[name]

    async def run_once(self, name: str) -> RunOutcome | None:
        """Runs the job if it is due and its lock is free. Returns the outcome; None if no run began, or if the outcome
        was not recorded.
        """
        sent_at = boottime()
        begun = await self._store.begin_run(name, self._holder, new_id())
        if begun.found is BeginRunOutcome.HELD:
            self._telemetry.report(LeaseContended(JOB_LOCK + name))
        if begun.fence is None or begun.started_at is None:
            return None
        if begun.reclaimed is not None:
            self._telemetry.report(JobReclaimed(name, begun.reclaimed.holder, begun.reclaimed.epoch))
        if begun.clock_behind is not None:
            self._telemetry.report(JobClockBehind(name, begun.started_at, begun.clock_behind))
        self._telemetry.report(JobStarted(name, begun.fence.epoch))
        lock = HeldLease(self._store, begun.fence, begun.lock_timeout_microseconds, sent_at)
        self._locks[name] = lock
        try:
            return await self._execute(ActiveRun(name, lock, begun.started_at, begun.tick_at), begun.fence, begun)
        finally:
            del self._locks[name]

    async def _execute(self, run: ActiveRun, fence: Fence, begun: BeginRunResult) -> RunOutcome | None:
        working = asyncio.create_task(self._work(run))
        renew = keep_renewing(run.lock, renew_seconds(begun.lock_timeout_microseconds), self._telemetry)
        keeping = asyncio.create_task(renew)
        stopping = asyncio.create_task(self._stopping_for(GRACE_SECONDS))
        try:
            await asyncio.wait({working, keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                why = keeping.result() if keeping.done() else "the instance is stopping"
                return await self._abandon(run, fence, working, why)
        finally:
            for task in (working, keeping, stopping):
                task.cancel()
        return await self._record_end(run, begun, working)

    async def _work(self, run: ActiveRun) -> None:
        run.lock.check()  # the lock may no longer be trusted if begin_run took long
        await self._jobs[run.job](run)

    async def _stopping_for(self, seconds: float) -> None:
        await self._stopping.wait()
        await asyncio.sleep(seconds)

    async def _abandon(
        self, run: ActiveRun, fence: Fence, working: asyncio.Future[None], why: str
    ) -> RunOutcome | None:
        run.lock.withdraw()
        self._telemetry.report(JobAbandoned(run.job, run.lock.epoch, why, run.seconds, run.counts))
        if not await cancel(working, run.lock.name, self._telemetry):
            return None  # the job may still be running, so do not release its lock
        with suppress(Exception):
            await self._store.finish_run(fence, RunOutcome.ABANDONED, why[:ERROR_MAX], 0)
            self._report_end(run, RunOutcome.ABANDONED)
            return RunOutcome.ABANDONED
        return None

    async def _record_end(
        self, run: ActiveRun, begun: BeginRunResult, working: asyncio.Future[None]
    ) -> RunOutcome | None:
        error = None if working.cancelled() else working.exception()
        failed = error is not None or working.cancelled()
        outcome = RunOutcome.FAILED if failed else RunOutcome.SUCCEEDED
        message = _one_line(error) if error is not None else "the job cancelled itself" if failed else None
        if message is not None:
            self._telemetry.report(JobFailed(run.job, run.lock.epoch, message, error, run.seconds, run.counts))
        pause = retry_pause_microseconds(begun.failures_in_a_row + 1) if failed else 0
        return await self._record(run, outcome, message, pause)

    async def _record(self, run: ActiveRun, outcome: RunOutcome, error: str | None, pause: int) -> RunOutcome | None:
        """Records the outcome. Retries while the lock is trusted, but not if the instance is stopping.

        If the outcome is not recorded, the tick stays due, and the job runs again.
        """
        while True:
            try:
                await self._store.finish_run(run.fence, outcome, error, pause)
            except Exception as failure:  # noqa: BLE001 - retried while the lock is trusted
                if isinstance(failure, LeaseLost) or self._stopping.is_set():
                    self._telemetry.report(JobLockLost(run.job, run.lock.epoch, str(failure), run.seconds))
                    return None
                await asyncio.sleep(RECORD_RETRY_SECONDS)
            else:
                self._report_end(run, outcome)
                return outcome

    def _report_end(self, run: ActiveRun, outcome: RunOutcome) -> None:
        self._telemetry.report(JobFinished(run.job, run.lock.epoch, outcome, run.seconds, run.counts))


def renew_seconds(lock_timeout_microseconds: int) -> float:
    return min(RENEW_MAX_SECONDS, lock_timeout_microseconds / MICROSECONDS / RENEWALS_PER_LOCK)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:ERROR_MAX]
