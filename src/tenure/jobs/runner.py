"""The job runner: begins what is due, keeps its lock, and notes how it ended.

A job that is due and whose lock is free is begun by whoever comes first: the lock, the check that it is due and the
note of the run are one transaction. From then on there are three ways in which the run can end here:

- the job returns or raises: the run has *succeeded* or *failed*, and that is noted together with the next tick, or with
  when it is tried again;
- the lock can no longer be kept: it was not ours any more, or its renewal failed three times in a row, or it may no
  longer be trusted. The job is cancelled, and the run *abandoned*. So it is if the instance stops and the job does not
  end by itself in good time. Its tick is kept;
- the process dies. The lock runs out, and whoever begins the next run notes that this one was abandoned.

A run that has done its work but cannot note it is abandoned like any other, and its tick is run again. So a job is run
at least once for a tick, and its effects on the database happen once if they carry its fence and can be repeated.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from tenure.clock import boottime, instant_text
from tenure.config import LeasesConfig
from tenure.errors import ConfigurationError, DatabaseUnavailable, LeaseLost
from tenure.ids import new_id
from tenure.jobs.jobs import ActiveRun, RunJob
from tenure.leases.cancelling import cancel
from tenure.leases.counters import LeaseCounters
from tenure.leases.held import MICROSECONDS, HeldLease
from tenure.leases.keeping import keep
from tenure.leases.patience import Patience
from tenure.model.leases import ERROR_MAX, BeginFound, Begun, Board, Fence, JobCommand, JobSettings, Posting, RunOutcome
from tenure.schedule import due_in, is_overtaken, retry_pause_microseconds
from tenure.store.store import Store

log = structlog.get_logger()

RENEW_MAX_SECONDS = 30.0
RENEWALS_PER_LOCK = 4
GRACE_SECONDS = 3.0
"""How long a run may take to end by itself when the instance stops."""
NOTE_AGAIN_SECONDS = 0.5


class JobRunner:
    """All jobs of one instance."""

    names: Sequence[str] = ()

    def __init__(
        self, store: Store, holder: str, timing: LeasesConfig, counters: LeaseCounters, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._patience = Patience(timing.refresh_seconds)
        self._counters = counters
        self._wake = wake
        self._holder = holder
        self._jobs: dict[str, RunJob] = {}
        self._settings: list[JobSettings] = []
        self._running: dict[str, asyncio.Task[None]] = {}
        self._locks: dict[str, HeldLease] = {}
        self._stopping = asyncio.Event()
        self.outcomes: Counter[tuple[str, RunOutcome]] = Counter()

    def add(self, settings: JobSettings, run: RunJob) -> None:
        if settings.name in self._jobs:
            raise ConfigurationError(f"job: {settings.name} was added already")
        self._jobs[settings.name] = run
        self._settings.append(settings)

    async def register(self) -> None:
        await self._store.register_jobs(self._settings)

    def look(self, board: Board) -> float | None:
        """Begins what is due; tells in how many seconds the next job will be."""
        waits = [self._look_at(posting) for posting in board.postings if posting.job.name in self._jobs]
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _look_at(self, posting: Posting) -> float | None:
        name, lock = posting.job.name, posting.lock
        if lock is not None and name in self._locks:
            self._locks[name].compare(lock)
        waits = due_in(posting.job, posting.now)
        held = lock is not None and lock.held
        if waits is None or held or name in self._running or self._stopping.is_set():
            return None
        if is_overtaken(posting.job, posting.now):
            self._running[name] = asyncio.create_task(self._run_overtaken(posting))
            return None
        seconds = max(waits.total_seconds(), 0 if lock is None else self._patience.seconds_left(lock))
        if seconds > 0:
            return seconds
        self._running[name] = asyncio.create_task(self._run(name))
        return None

    def lose_sight(self, error: Exception) -> None:
        """A run goes on for as long as its lock may be trusted."""

    async def stop(self) -> None:
        """Begins nothing more, and leaves no run behind."""
        self._stopping.set()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _run(self, name: str) -> None:
        try:
            if await self.run_once(name) is not None:
                self._wake()  # the next tick may be near
        except DatabaseUnavailable as error:
            log.warning("job.postponed", job=name, error=error.detail)
        except Exception:
            log.exception("job.not_run", job=name)
        finally:
            del self._running[name]

    async def _run_overtaken(self, posting: Posting) -> None:
        """Somebody must ask for it: by its own tick it is not due."""
        job = posting.job
        if job.last_start_at is None or job.last_start_at > posting.now:  # the first since the step
            now, next_run_at = instant_text(posting.now), instant_text(job.next_run_at)
            log.error("job.clock_behind", job=job.name, now=now, next_run_at=next_run_at)
        with suppress(Exception):
            await self._store.command_job(job.name, JobCommand.RUN)
        await self._run(job.name)

    async def run_once(self, name: str) -> RunOutcome | None:
        """Runs the job if it is due and nobody else does; how it ended, as far as that could be noted."""
        asked_at = boottime()
        begun = await self._store.begin_run(name, self._holder, new_id())
        if begun.found is BeginFound.HELD:
            self._counters.contended += 1
        if begun.fence is None or begun.started_at is None:
            return None
        if begun.reclaimed is not None:
            self._counters.reclaimed += 1
            log.warning("job.reclaimed", job=name, holder=begun.reclaimed.holder, epoch=begun.reclaimed.epoch)
        lock = HeldLease(self._store, begun.fence, begun.lock_timeout_microseconds, asked_at)
        self._locks[name] = lock
        try:
            return await self._carry_out(ActiveRun(name, lock, begun.started_at, begun.tick_at), begun.fence, begun)
        finally:
            del self._locks[name]

    async def _carry_out(self, run: ActiveRun, fence: Fence, begun: Begun) -> RunOutcome | None:
        working = asyncio.create_task(self._work(run))
        keeping = asyncio.create_task(keep(run.lock, renew_seconds(begun.lock_timeout_microseconds)))
        stopping = asyncio.create_task(self._stopping_for(GRACE_SECONDS))
        try:
            await asyncio.wait({working, keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                why = keeping.result() if keeping.done() else "the instance stops"
                return await self._abandon(run, fence, working, why)
        finally:
            for task in (working, keeping, stopping):
                task.cancel()
        return await self._note_end(run, begun, working)

    async def _work(self, run: ActiveRun) -> None:
        run.lock.check()  # the answer to the begin may have been long on its way
        await self._jobs[run.job](run)

    async def _stopping_for(self, seconds: float) -> None:
        await self._stopping.wait()
        await asyncio.sleep(seconds)

    async def _abandon(
        self, run: ActiveRun, fence: Fence, working: asyncio.Future[None], why: str
    ) -> RunOutcome | None:
        run.lock.give_up()
        log.warning("job.abandoned", job=run.job, epoch=run.lock.epoch, error=why)
        if not await cancel(working, run.lock.name):
            return None  # it may still be at it: its lock must run out by itself
        with suppress(Exception):
            await self._store.finish_run(fence, RunOutcome.ABANDONED, why[:ERROR_MAX], 0)
            self.outcomes[run.job, RunOutcome.ABANDONED] += 1
            return RunOutcome.ABANDONED
        return None

    async def _note_end(self, run: ActiveRun, begun: Begun, working: asyncio.Future[None]) -> RunOutcome | None:
        error = None if working.cancelled() else working.exception()
        failed = error is not None or working.cancelled()
        outcome = RunOutcome.FAILED if failed else RunOutcome.SUCCEEDED
        message = _one_line(error) if error is not None else "it cancelled itself" if failed else None
        if failed:
            log.warning("job.failed", job=run.job, epoch=run.lock.epoch, error=message, exc_info=error)
        pause = retry_pause_microseconds(begun.failures_in_a_row + 1) if failed else 0
        return await self._note(run, outcome, message, pause)

    async def _note(self, run: ActiveRun, outcome: RunOutcome, error: str | None, pause: int) -> RunOutcome | None:
        """For as long as the lock may be trusted, or once if the instance stops: what cannot be noted is run again."""
        while True:
            try:
                await self._store.finish_run(run.fence, outcome, error, pause)
            except Exception as trouble:  # noqa: BLE001 - whatever it is, the lock would stay behind
                if isinstance(trouble, LeaseLost) or self._stopping.is_set():
                    log.warning("job.lock_lost", job=run.job, epoch=run.lock.epoch, error=str(trouble))
                    return None
                await asyncio.sleep(NOTE_AGAIN_SECONDS)
            else:
                self.outcomes[run.job, outcome] += 1
                return outcome


def renew_seconds(lock_timeout_microseconds: int) -> float:
    return min(RENEW_MAX_SECONDS, lock_timeout_microseconds / MICROSECONDS / RENEWALS_PER_LOCK)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:ERROR_MAX]
