"""When jobs run. Pure functions; the engines compute the grid in SQL where a row is written.

A tick is an instant of the job's grid: the multiples of its interval since 1970-01-01T00:00Z. So ticks depend neither
on when a run began nor on how long it took, and nothing drifts. A run that succeeds has done every tick up to its
start; one that fails keeps its tick and is tried again after a pause that grows.
"""

from datetime import datetime, timedelta

from tenure.clock import from_microseconds, to_microseconds
from tenure.model.leases import Job

RETRY_FIRST_SECONDS = 1
RETRY_MAX_SECONDS = 60
SECOND = 1_000_000


def grid_after(interval_microseconds: int, instant: datetime) -> datetime:
    """The first tick after `instant`."""
    return from_microseconds((to_microseconds(instant) // interval_microseconds + 1) * interval_microseconds)


def next_run_after(job: Job, started_at: datetime) -> datetime:
    """Once a run that began then has succeeded. Never back, even if the clock is."""
    return max(job.next_run_at, grid_after(job.interval_microseconds, started_at))


def due_in(job: Job, now: datetime) -> timedelta | None:
    """How long until the job may run, nothing or less if it is due; None while it is paused and nobody asked for it."""
    if job.requested_at is None and job.paused:
        return None
    due_at = now if job.requested_at is not None else job.next_run_at
    return max(due_at, job.retry_at or due_at) - now


def is_overtaken(job: Job, now: datetime) -> bool:
    """Whether the clock was stepped back behind ticks that are done, and the time that comes again has a tick to run.

    Otherwise nothing would be run until the clock has come to the next tick that is not done, hours perhaps.
    """
    interval = timedelta(microseconds=job.interval_microseconds)
    if job.paused or job.requested_at is not None or job.next_run_at <= now + interval:
        return False
    started_at = job.last_start_at
    return started_at is None or started_at > now or grid_after(job.interval_microseconds, started_at) <= now


def retry_pause_microseconds(failures_in_a_row: int) -> int:
    """After so many failures: a second, then twice as long each time, up to a minute."""
    doublings = min(failures_in_a_row - 1, RETRY_MAX_SECONDS.bit_length())
    return min(RETRY_FIRST_SECONDS << doublings, RETRY_MAX_SECONDS) * SECOND
