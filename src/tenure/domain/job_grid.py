"""The grid that determines when jobs run.

The grid of a job consists of the multiples of its interval since 1970-01-01T00:00Z. Each of these instants is a tick.
Ticks do not depend on when a run began or how long it took, so they do not drift. A successful run completes every tick
up to its start. A failed run completes no tick, and the job retries with exponential backoff.

If the database's clock is stepped back, the next tick may be far ahead. After a step of less than one interval, it is
at most two intervals ahead, and the job waits for it, because all earlier ticks are completed. If the next tick is
further ahead, the job is due at once, unless it is paused or waits for a retry, and `begin_run` moves the next tick
back to the last tick at or before now.

All functions are pure. PostgreSQL and SQL Server compute the same values in SQL when they write the row of a job.
"""

from datetime import datetime, timedelta

from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.jobs import Job, JobCommand

RETRY_FIRST_SECONDS = 1
RETRY_MAX_SECONDS = 60
SECOND = 1_000_000


def grid_at(interval_microseconds: int, instant: datetime) -> datetime:
    """Return the last tick at or before `instant`."""
    return from_microseconds(to_microseconds(instant) // interval_microseconds * interval_microseconds)


def grid_after(interval_microseconds: int, instant: datetime) -> datetime:
    """Return the first tick after `instant`."""
    return from_microseconds((to_microseconds(instant) // interval_microseconds + 1) * interval_microseconds)


def next_run_after(job: Job, started_at: datetime) -> datetime:
    """Return the next tick after a successful run that began at `started_at`.

    The result is never before `job.next_run_at`, even if the clock was stepped back.
    """
    return max(job.next_run_at, grid_after(job.interval_microseconds, started_at))


def due_in(job: Job, now: datetime) -> timedelta | None:
    """Return how long until the job may run; zero or negative if it is due, None if it is paused and no run is
    requested.
    """
    if job.requested_at is None and job.paused:
        return None
    due_at = now if job.requested_at is not None or is_clock_behind(job, now) else job.next_run_at
    retry_at = job.retry_at
    if retry_at is None or retry_at - now > timedelta(seconds=RETRY_MAX_SECONDS):
        # No pause after a failure is longer than RETRY_MAX_SECONDS. So if `retry_at` is further ahead, it was written
        # before the clock was stepped back: ignore it.
        return due_at - now
    return max(due_at, retry_at) - now


def is_clock_behind(job: Job, now: datetime) -> bool:
    """Return whether the next tick is more than two intervals ahead, because the clock was stepped back."""
    return job.next_run_at - now > 2 * timedelta(microseconds=job.interval_microseconds)


def changed_by(job: Job, command: JobCommand) -> bool:
    """Return whether the command has an effect, so that it is written to the audit log. A second request for a run has
    no effect if the run for the first request has not begun yet and is not waiting for a retry.
    """
    if command is JobCommand.PAUSE:
        return not job.paused or job.requested_at is not None
    if command is JobCommand.RESUME:
        return job.paused
    if job.requested_at is None or job.retry_at is not None:
        return True
    return job.last_start_at is not None and job.last_start_at >= job.requested_at


def retry_pause_microseconds(failures_in_a_row: int) -> int:
    """Return the pause after this many failures: one second, doubled with each further failure, at most one
    minute.
    """
    # Limit the shift, because the number of failures has no limit, and a shift by it would create a huge number.
    doublings = min(failures_in_a_row - 1, RETRY_MAX_SECONDS.bit_length())
    return min(RETRY_FIRST_SECONDS << doublings, RETRY_MAX_SECONDS) * SECOND
