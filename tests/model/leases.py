"""A model of leases and jobs in plain Python, without SQL and races. The tests compare the engines with the model.

The model shares no arithmetic with the engines: it computes the grid in a different way.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from msgspec.structs import replace

from tenure.domain.jobs import BeginRunOutcome, BeginRunResult, Job, JobCommand, JobRun, JobSettings, RunOutcome
from tenure.domain.leases import AcquireResult, Fence, Lease
from tenure.errors import LeaseLost

MICROSECOND = timedelta(microseconds=1)
PAUSE_MAX = timedelta(minutes=1)
GRID_BEGINS = datetime(1970, 1, 1, tzinfo=UTC)
IDLE = BeginRunResult(BeginRunOutcome.IDLE)
HELD = BeginRunResult(BeginRunOutcome.HELD)


def tick_after(interval_microseconds: int, instant: datetime) -> datetime:
    interval = interval_microseconds * MICROSECOND
    return instant - (instant - GRID_BEGINS) % interval + interval


class HistoryEntry(NamedTuple):
    """One term in the lease history. `how` says how the term ended: `released`, `resigned` or `expired`."""

    holder: str
    acquired_at: datetime
    ended_at: datetime | None = None
    how: str | None = None


class RunCause(NamedTuple):
    """Why a run started: its tick, if one was due, and when an operator requested the run, if one did. `JobRun` has
    neither of these fields.
    """

    tick_at: datetime | None
    requested_at: datetime | None


class LeaseModel:
    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._attempts: dict[str, str] = {}
        self.history: dict[tuple[str, int], HistoryEntry] = {}
        self.jobs: dict[str, Job] = {}
        self.runs: dict[tuple[str, int], JobRun] = {}
        self.run_causes: dict[tuple[str, int], RunCause] = {}
        self.clock_behind: dict[tuple[str, int], datetime] = {}

    # Leases

    def read(self, now: datetime) -> Mapping[str, Lease]:
        return {name: self._seen(name, now) for name in self._leases}

    def acquire(self, name: str, holder: str, attempt: str, duration: int, now: datetime) -> AcquireResult:
        old = self._leases.get(name)
        if old is not None and self._seen(name, now).held:
            return AcquireResult(self._seen(name, now), taken=self._attempts[name] == attempt)
        self._begin_epoch(name, holder, attempt, duration, now)
        return AcquireResult(self._seen(name, now), taken=True, reclaimed=old is not None and not old.released)

    def renew(self, fence: Fence, duration: int, now: datetime) -> Lease:
        self.check(fence, now)
        return self._change(fence.name, now, renewed_at=now, expires_at=now + duration * MICROSECOND)

    def release(self, fence: Fence, now: datetime) -> Lease:
        lease = self._leases.get(fence.name)
        if lease is not None and lease.fence == fence and lease.released:
            return self._seen(fence.name, now)
        self.check(fence, now)
        return self._end_epoch(fence.name, "released", now)

    def resign(self, name: str, now: datetime) -> Lease | None:
        if name not in self._leases:
            return None
        return self._end_epoch(name, "resigned", now) if self._seen(name, now).held else self._seen(name, now)

    def check(self, fence: Fence, now: datetime) -> None:
        lease = self.read(now).get(fence.name)
        if lease is None or lease.fence != fence or not lease.held:
            raise LeaseLost

    def _seen(self, name: str, now: datetime) -> Lease:
        lease = self._leases[name]
        return replace(lease, held=not lease.released and now < lease.expires_at)

    def _change(self, name: str, now: datetime, **changes: Any) -> Lease:
        self._leases[name] = replace(self._leases[name], **changes)
        return self._seen(name, now)

    def _begin_epoch(self, name: str, holder: str, attempt: str, duration: int, now: datetime) -> None:
        old = self._leases.get(name)
        epoch = 1 if old is None else old.epoch + 1
        self._leases[name] = Lease(
            name=name,
            holder=holder,
            epoch=epoch,
            held=True,
            acquired_at=now,
            renewed_at=now,
            expires_at=now + duration * MICROSECOND,
        )
        self._attempts[name] = attempt
        if not name.startswith("job:"):
            if old is not None:
                self._note_end(old, old.expires_at, "expired")
            self.history[name, epoch] = HistoryEntry(holder, now)

    def _end_epoch(self, name: str, how: str, now: datetime) -> Lease:
        self._note_end(self._leases[name], now, how)
        return self._change(name, now, expires_at=now, released=True, resigned=how == "resigned")

    def _note_end(self, lease: Lease, ended_at: datetime, how: str) -> None:
        line = self.history.get((lease.name, lease.epoch))
        if line is not None and line.ended_at is None:
            self.history[lease.name, lease.epoch] = line._replace(ended_at=ended_at, how=how)

    # Jobs

    def register(self, settings: JobSettings, now: datetime) -> None:
        name, interval, lock_timeout, paused = settings.name, *_timing(settings), settings.paused
        next_run_at = tick_after(interval, now)
        old = self.jobs.get(name)
        if old is not None:
            paused = old.paused
            nearer = min(old.next_run_at, next_run_at)
            next_run_at = old.next_run_at if interval == old.interval_microseconds else nearer
        blank = Job(
            name=name,
            interval_microseconds=0,
            lock_timeout_microseconds=0,
            next_run_at=now,
            run_count=0,
            failures_in_a_row=0,
            paused=False,
        )
        self.jobs[name] = replace(
            old or blank,
            interval_microseconds=interval,
            lock_timeout_microseconds=lock_timeout,
            next_run_at=next_run_at,
            paused=paused,
        )

    def begin(self, name: str, holder: str, attempt: str, now: datetime) -> BeginRunResult:
        lock = self.read(now).get(f"job:{name}")
        if lock is not None and lock.held:
            return self._begun(name, None) if self._attempts[lock.name] == attempt else HELD
        if not self._is_due(name, now):
            return IDLE
        reclaimed = None if lock is None else self._abandon(name, lock)
        job = self.jobs[name]
        self._begin_epoch(f"job:{name}", holder, attempt, job.lock_timeout_microseconds, now)
        epoch = self._leases[f"job:{name}"].epoch
        self.runs[name, epoch] = JobRun(job=name, epoch=epoch, holder=holder, started_at=now)
        is_behind = not job.paused and self._is_clock_behind(job, now)
        next_run_at = tick_after(job.interval_microseconds, now - _interval(job)) if is_behind else job.next_run_at
        tick_at = next_run_at if next_run_at <= now else None
        self.run_causes[name, epoch] = RunCause(tick_at, job.requested_at)
        self.jobs[name] = replace(
            self.jobs[name], next_run_at=next_run_at, last_start_at=now, run_count=job.run_count + 1
        )
        if is_behind:
            self.clock_behind[name, epoch] = job.next_run_at
        return self._begun(name, reclaimed)

    def _is_due(self, name: str, now: datetime) -> bool:
        job = self.jobs[name]
        if job.retry_at is not None and now < job.retry_at <= now + PAUSE_MAX:
            return False
        if job.requested_at is not None:
            return True
        return not job.paused and (job.next_run_at <= now or self._is_clock_behind(job, now))

    @staticmethod
    def _is_clock_behind(job: Job, now: datetime) -> bool:
        return job.next_run_at > now + 2 * _interval(job)

    def _abandon(self, name: str, lock: Lease) -> Fence | None:
        run = self.runs.get((name, lock.epoch))
        if run is None or run.ended_at is not None:
            return None
        why = "its lock was resigned" if lock.released else "its lock expired"
        self.runs[name, lock.epoch] = replace(run, ended_at=lock.expires_at, outcome="abandoned", error=why)
        failures = self.jobs[name].failures_in_a_row + 1
        self.jobs[name] = replace(self.jobs[name], failures_in_a_row=failures, last_error=f"abandoned by {run.holder}")
        return lock.fence

    def _begun(self, name: str, reclaimed: Fence | None) -> BeginRunResult:
        lock, job = self._leases[f"job:{name}"], self.jobs[name]
        return BeginRunResult(
            BeginRunOutcome.BEGUN,
            lock.fence,
            started_at=self.runs[name, lock.epoch].started_at,
            expires_at=lock.expires_at,
            tick_at=self.run_causes[name, lock.epoch].tick_at,
            lock_timeout_microseconds=job.lock_timeout_microseconds,
            failures_in_a_row=job.failures_in_a_row,
            reclaimed=reclaimed,
            clock_behind=self.clock_behind.get((name, lock.epoch)),
        )

    def finish(self, fence: Fence, outcome: RunOutcome, error: str | None, pause: int, now: datetime) -> None:
        lock, key = self._leases.get(fence.name), (fence.job, fence.epoch)
        run = self.runs.get(key)
        was_done = run is not None and run.ended_at is not None
        if lock is not None and lock.fence == fence and lock.released and was_done:
            return
        self.check(fence, now)
        if run is None:
            raise LeaseLost
        self.runs[key] = replace(run, ended_at=now, outcome=outcome.value, error=error)
        self._after(run, self.run_causes[key], outcome, error, pause, now)
        self._end_epoch(fence.name, "released", now)

    def _after(
        self, run: JobRun, cause: RunCause, outcome: RunOutcome, error: str | None, pause: int, now: datetime
    ) -> None:
        job = replace(self.jobs[run.job], retry_at=None)
        changes: dict[str, Any] = {"last_duration_microseconds": max(0, (now - run.started_at) // MICROSECOND)}
        if outcome is not RunOutcome.ABANDONED and job.requested_at == cause.requested_at:
            changes["requested_at"] = None
        if outcome is RunOutcome.FAILED:
            failures = job.failures_in_a_row + 1
            changes |= {"retry_at": now + pause * MICROSECOND, "failures_in_a_row": failures, "last_error": error}
        if outcome is RunOutcome.SUCCEEDED:
            next_run_at = max(job.next_run_at, tick_after(job.interval_microseconds, run.started_at))
            changes |= {"next_run_at": next_run_at, "last_success_at": now, "failures_in_a_row": 0, "last_error": None}
        self.jobs[run.job] = replace(job, **changes)

    def command(self, name: str, command: JobCommand, now: datetime) -> Job:
        changes: dict[JobCommand, dict[str, Any]] = {
            JobCommand.RUN: {"requested_at": now, "retry_at": None},
            JobCommand.PAUSE: {"requested_at": None, "paused": True},
            JobCommand.RESUME: {"paused": False},
        }
        self.jobs[name] = replace(self.jobs[name], **changes[command])
        return self.jobs[name]


def _interval(job: Job) -> timedelta:
    return job.interval_microseconds * MICROSECOND


def _timing(settings: JobSettings) -> tuple[int, int]:
    return settings.interval_microseconds, settings.lock_timeout_microseconds
