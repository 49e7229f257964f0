"""Jobs and their runs. The functions run under the write lock of the SQLite file."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select, tuple_, update

from tenure.clock import MICROSECOND
from tenure.domain.audit_log import Action, Actor
from tenure.domain.job_grid import changed_by, due_in, grid_after, grid_at, is_clock_behind, next_run_after
from tenure.domain.jobs import BeginRunOutcome, BeginRunResult, Job, JobCommand, JobSettings, Pruned, RunOutcome
from tenure.domain.leases import JOB_LOCK, Fence, Lease
from tenure.errors import LeaseLost
from tenure.store.engines.sqlite.audit_log import write_audit_entry
from tenure.store.engines.sqlite.leases import begin_epoch, check_fence, end_epoch, find_lease, is_attempt, lease_now
from tenure.store.engines.sqlite.submissions import prune_submissions
from tenure.store.limits import (
    ACTIVITY_KEPT,
    ALERTS_KEPT,
    AUDIT_LOG_KEPT,
    INSTANCES_KEPT,
    JOB_RUNS_KEPT,
    LEASE_HISTORY_KEPT,
    SUBMISSIONS_KEPT,
)
from tenure.store.reads.leases import job_from_values
from tenure.store.tables import activity, alerts, audit_log, instances, job_runs, jobs, lease_history

ZERO = timedelta(0)


def find_job(connection: Connection, name: str) -> Job | None:
    row = connection.execute(select(jobs).where(jobs.c.name == name)).mappings().one_or_none()
    return None if row is None else job_from_values(row)


def _write(connection: Connection, name: str, **values: Any) -> None:
    connection.execute(update(jobs).where(jobs.c.name == name).values(**values))


def register_jobs(connection: Connection, now: datetime, settings: Sequence[JobSettings]) -> None:
    for setting in settings:
        known = find_job(connection, setting.name)
        next_tick = grid_after(setting.interval_microseconds, now)
        timing = {
            "interval_microseconds": setting.interval_microseconds,
            "lock_timeout_microseconds": setting.lock_timeout_microseconds,
        }
        if known is None:
            connection.execute(
                insert(jobs).values(
                    name=setting.name,
                    next_run_at=next_tick,
                    run_count=0,
                    failures_in_a_row=0,
                    paused=setting.paused,
                    **timing,
                )
            )
        elif known.interval_microseconds == setting.interval_microseconds:
            _write(connection, setting.name, **timing)
        else:
            _write(connection, setting.name, next_run_at=min(known.next_run_at, next_tick), **timing)


def begin_run(connection: Connection, now: datetime, name: str, holder: str, attempt: str) -> BeginRunResult:
    job = find_job(connection, name)
    lock = find_lease(connection, JOB_LOCK + name, now)
    if job is None:
        return BeginRunResult(BeginRunOutcome.IDLE)
    if lock is not None and lock.held:
        mine = is_attempt(connection, lock.name, attempt)
        return _begun_run(connection, job, lock, None) if mine else BeginRunResult(BeginRunOutcome.HELD)
    wait = due_in(job, now)
    if wait is None or wait > ZERO:
        return BeginRunResult(BeginRunOutcome.IDLE)
    clock_behind = job.next_run_at if not job.paused and is_clock_behind(job, now) else None
    next_run_at = job.next_run_at if clock_behind is None else grid_at(job.interval_microseconds, now)
    reclaimed = _abandon_open_run(connection, name, lock)
    wanted = Fence(JOB_LOCK + name, holder, 0)
    taken = begin_epoch(connection, now, lock, wanted, attempt, job.lock_timeout_microseconds)
    connection.execute(
        insert(job_runs).values(
            job=name,
            epoch=taken.epoch,
            holder=holder,
            tick_at=next_run_at if next_run_at <= now else None,
            requested_at=job.requested_at,
            started_at=now,
            clock_behind=clock_behind,
        )
    )
    _record_start(connection, now, job, next_run_at, reclaimed)
    return _begun_run(connection, job, taken, reclaimed)


def _abandon_open_run(connection: Connection, name: str, lock: Lease | None) -> Fence | None:
    """Records the last run as abandoned if it is still open, because its holder died or lost the lock. Returns the
    fence of this run, or None if no run was open.
    """
    if lock is None:
        return None
    run = job_runs.c
    done = connection.execute(
        update(job_runs)
        .where(run.job == name, run.epoch == lock.epoch, run.ended_at.is_(None))
        .values(
            ended_at=lock.expires_at,
            outcome=RunOutcome.ABANDONED.value,
            error="its lock was resigned" if lock.released else "its lock expired",
        )
    )
    return lock.fence if done.rowcount else None


def _record_start(
    connection: Connection, now: datetime, job: Job, next_run_at: datetime, reclaimed: Fence | None
) -> None:
    values: dict[str, Any] = {"next_run_at": next_run_at, "last_start_at": now, "run_count": job.run_count + 1}
    if reclaimed is not None:
        values["failures_in_a_row"] = job.failures_in_a_row + 1
        values["last_error"] = f"abandoned by {reclaimed.holder}"
    _write(connection, job.name, **values)


def _begun_run(connection: Connection, job: Job, lock: Lease, reclaimed: Fence | None) -> BeginRunResult:
    run = connection.execute(
        select(job_runs).where(job_runs.c.job == job.name, job_runs.c.epoch == lock.epoch)
    ).one_or_none()
    if run is None:
        return BeginRunResult(BeginRunOutcome.HELD)
    return BeginRunResult(
        BeginRunOutcome.BEGUN,
        fence=lock.fence,
        started_at=run.started_at,
        expires_at=lock.expires_at,
        tick_at=run.tick_at,
        lock_timeout_microseconds=job.lock_timeout_microseconds,
        failures_in_a_row=job.failures_in_a_row + (reclaimed is not None),
        reclaimed=reclaimed,
        clock_behind=run.clock_behind,
    )


def finish_run(
    connection: Connection,
    now: datetime,
    fence: Fence,
    outcome: RunOutcome,
    error: str | None,
    retry_microseconds: int,
) -> None:
    run_row = (job_runs.c.job == fence.job, job_runs.c.epoch == fence.epoch)
    run = connection.execute(select(job_runs).where(*run_row)).one_or_none()
    lock = find_lease(connection, fence.name, now)
    if run is not None and run.ended_at is not None and lock is not None and lock.fence == fence and lock.released:
        return  # an earlier call ended the run, but its answer was lost
    lock = check_fence(connection, fence)
    job = find_job(connection, fence.job)
    if run is None or job is None:
        raise LeaseLost(f"{fence.name} in epoch {fence.epoch} is not the lock of a run")
    connection.execute(update(job_runs).where(*run_row).values(ended_at=now, outcome=outcome.value, error=error))
    changes = _after_run(job, run, now, outcome, error, retry_microseconds)
    # The duration is 0 if the clock was stepped back to before the start of the run.
    duration = max(now - run.started_at, ZERO) // MICROSECOND
    _write(connection, job.name, last_duration_microseconds=duration, **changes)
    end_epoch(connection, now, lock, "released")


def _after_run(
    job: Job, run: Any, now: datetime, outcome: RunOutcome, error: str | None, retry_microseconds: int
) -> dict[str, Any]:
    if outcome is RunOutcome.ABANDONED:
        return {"retry_at": None}
    cleared = {"requested_at": None} if job.requested_at == run.requested_at else {}
    if outcome is RunOutcome.FAILED:
        retry_at = now + timedelta(microseconds=retry_microseconds)
        return {**cleared, "retry_at": retry_at, "failures_in_a_row": job.failures_in_a_row + 1, "last_error": error}
    return {
        **cleared,
        "retry_at": None,
        "next_run_at": next_run_after(job, run.started_at),
        "last_success_at": now,
        "failures_in_a_row": 0,
        "last_error": None,
    }


def command_job(connection: Connection, now: datetime, name: str, command: JobCommand, actor: Actor) -> Job | None:
    job = find_job(connection, name)
    if job is None:
        return None
    changes: dict[JobCommand, dict[str, Any]] = {
        JobCommand.RUN: {"requested_at": now, "retry_at": None},
        JobCommand.PAUSE: {"requested_at": None, "paused": True},
        JobCommand.RESUME: {"paused": False},
    }
    _write(connection, name, **changes[command])
    if changed_by(job, command):
        drops = command is JobCommand.PAUSE and job.requested_at is not None
        detail = "dropped the requested run" if drops else None
        write_audit_entry(connection, now, actor, _ACTIONS[command], name, detail)
    return find_job(connection, name)


_ACTIONS = {
    JobCommand.RUN: Action.JOB_RUN_REQUESTED,
    JobCommand.PAUSE: Action.JOB_PAUSED,
    JobCommand.RESUME: Action.JOB_RESUMED,
}


def prune(connection: Connection, fence: Fence, limit: int) -> Pruned:
    check_fence(connection, fence)
    now = lease_now(connection)
    history, run, entry = lease_history.c, job_runs.c, audit_log.c
    old_history = select(history.name, history.epoch).where(history.ended_at < now - LEASE_HISTORY_KEPT).limit(limit)
    old_runs = (
        select(run.job, run.epoch)
        .where(run.started_at < now - JOB_RUNS_KEPT, run.ended_at.is_not(None))
        .order_by(run.started_at)
    )
    old_entries = select(entry.entry_id).where(entry.at < now - AUDIT_LOG_KEPT).order_by(entry.at)
    alert = alerts.c
    old_alerts = select(alert.alert_id).where(alert.cleared_at < now - ALERTS_KEPT).order_by(alert.cleared_at)
    gone, minute = instances.c, activity.c
    old_instances = select(gone.instance).where(gone.last_seen_at < now - INSTANCES_KEPT)
    key = tuple_(minute.at, minute.instance, minute.turn)
    old_minutes = select(*activity.primary_key).where(minute.at < now - ACTIVITY_KEPT).order_by(minute.at)
    return Pruned(
        connection.execute(delete(lease_history).where(tuple_(history.name, history.epoch).in_(old_history))).rowcount,
        connection.execute(delete(job_runs).where(tuple_(run.job, run.epoch).in_(old_runs.limit(limit)))).rowcount,
        prune_submissions(connection, now, SUBMISSIONS_KEPT, limit),
        connection.execute(delete(audit_log).where(entry.entry_id.in_(old_entries.limit(limit)))).rowcount,
        connection.execute(delete(alerts).where(alert.alert_id.in_(old_alerts.limit(limit)))).rowcount,
        connection.execute(delete(instances).where(gone.instance.in_(old_instances.limit(limit)))).rowcount,
        connection.execute(delete(activity).where(key.in_(old_minutes.limit(limit)))).rowcount,
    )
