"""Alerts: the observations of the job `watch`, the conditions under which it raises an alert, and the alerts
themselves.

An alert is active while its condition holds. It is identified by its name and, if several alerts can have this name, by
its subject: the name of a job or of a lease. `conditions_of` is a pure function of the observations, which are read
from the database with the database's clock. So every instance comes to the same conclusion, and another instance clears
an alert that a killed instance raised.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

import msgspec

from tenure.domain.leases import JOB_LOCK

ONCALL = "oncall"
"""The gateway to which alerts are delivered, if it is configured. Only Tenure itself submits to it."""
CONDITIONS_MAX = 100
"""The most conditions that one run of `watch` considers, and so the most alerts that are active at a time."""

LOCK_HELD = timedelta(minutes=5)
JOB_FAILURES = 3
USAGE_FAILURES = 3
RECLAIMED_QUIET = timedelta(minutes=15)
USAGE_LAG = timedelta(minutes=15)
USAGE_INTERVAL = timedelta(minutes=1)
"""The interval of `emit-usage` for which USAGE_LAG is the allowed lag. If the job has a longer interval, the difference
is added to the allowed lag."""
ACTIVITY_SPAN = timedelta(minutes=10)
LAPSES_MIN = 100
LEADERSHIP_SPAN = timedelta(minutes=10)
LEADERSHIP_CHANGES = 5
EMIT_USAGE = "emit-usage"


class AlertName(StrEnum):
    JOB_LOCK_HELD = "job-lock-held"
    JOB_FAILING = "job-failing"
    LOCK_RECLAIMED = "lock-reclaimed"
    LEADERSHIP_FLAPPING = "leadership-flapping"
    USAGE_FAILING = "usage-failing"
    USAGE_LAGGING = "usage-lagging"
    CHUNK_WITHHELD = "chunk-withheld"
    LAPSES_EXCEED_OPENINGS = "lapses-exceed-openings"
    CLOCK_BEHIND = "clock-behind"


class WatchedJob(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    interval_microseconds: int
    failures_in_a_row: int
    last_error: str | None = None
    held_since: datetime | None = None
    """When the lock of the job was acquired; None if it is free."""
    holder: str | None = None
    reclaimed_at: datetime | None = None


class WatchedLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that is not a job lock."""

    name: str
    holder: str
    reclaimed_at: datetime | None = None
    """When the lease was last acquired after a holder had let it expire."""
    changes: int = 0
    """How often the lease was acquired in the last LEADERSHIP_SPAN. The first epoch of a lease does not count."""


class UsageTrouble(msgspec.Struct, frozen=True):
    """Problems with the chunks of the oldest undelivered windows."""

    failures_in_a_row: int = 0
    """The largest number of failed attempts in a row of one chunk. Delivered chunks do not count."""
    error: str | None = None
    withheld: int = 0
    withheld_error: str | None = None


class Activity(msgspec.Struct, frozen=True):
    """Lapses and openings since the same instant, `since`: ACTIVITY_SPAN ago. If very many sessions have ended in this
    span, the query reads only the newest of these ends, and `since` is the earliest end that it has read.
    """

    since: datetime
    lapses: int
    openings: int
    """Counted only up to the number of lapses, because more openings make no difference."""


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    now: datetime
    """The time of the database's clock."""
    jobs: Sequence[WatchedJob]
    leases: Sequence[WatchedLease]
    last_cut_at: datetime
    delivered_until: datetime
    usage: UsageTrouble
    activity: Activity


class Condition(msgspec.Struct, frozen=True):
    alert: AlertName
    subject: str | None
    detail: str


def conditions_of(observed: Observations) -> Sequence[Condition]:
    """Return the conditions that hold, at most CONDITIONS_MAX, those without a subject first."""
    return list(islice(_conditions(observed), CONDITIONS_MAX))


def _conditions(observed: Observations) -> Iterator[Condition]:
    yield from _of_usage(observed)
    activity = observed.activity
    if activity.lapses >= LAPSES_MIN and activity.lapses > activity.openings:
        detail = f"{activity.lapses} sessions lapsed since {_time(activity.since)}, and {activity.openings} were opened"
        yield Condition(AlertName.LAPSES_EXCEED_OPENINGS, None, detail)
    for lease in observed.leases:
        if lease.changes > LEADERSHIP_CHANGES:
            detail = f"{lease.changes} changes of leadership in ten minutes; the last holder is {lease.holder}"
            yield Condition(AlertName.LEADERSHIP_FLAPPING, lease.name, detail)
        yield from _reclaimed(lease.name, lease.reclaimed_at, observed.now)
    for job in observed.jobs:
        yield from _of_job(job, observed.now)


def _of_usage(observed: Observations) -> Iterator[Condition]:
    now, usage = observed.now, observed.usage
    if now < observed.last_cut_at:
        detail = f"the clock of the database is {_seconds(observed.last_cut_at - now)} behind the last cut"
        yield Condition(AlertName.CLOCK_BEHIND, None, detail)
    lag = now - observed.delivered_until
    if lag > usage_lag_allowed(observed.jobs):
        yield Condition(AlertName.USAGE_LAGGING, None, f"usage lags by {_seconds(lag)}")
    if usage.failures_in_a_row > USAGE_FAILURES:
        detail = f"a chunk of usage failed {usage.failures_in_a_row} times in a row: {usage.error}"
        yield Condition(AlertName.USAGE_FAILING, None, detail)
    if usage.withheld:
        detail = f"chunks of usage not sent: {usage.withheld}; {usage.withheld_error}"
        yield Condition(AlertName.CHUNK_WITHHELD, None, detail)


def usage_lag_allowed(jobs: Sequence[WatchedJob]) -> timedelta:
    interval = next((job.interval_microseconds for job in jobs if job.name == EMIT_USAGE), 0)
    return USAGE_LAG + max(timedelta(microseconds=interval) - USAGE_INTERVAL, timedelta(0))


def _of_job(job: WatchedJob, now: datetime) -> Iterator[Condition]:
    if job.held_since is not None and now - job.held_since > LOCK_HELD:
        detail = f"{job.holder} has held the lock for {_seconds(now - job.held_since)}"
        yield Condition(AlertName.JOB_LOCK_HELD, job.name, detail)
    if job.failures_in_a_row >= JOB_FAILURES:
        detail = f"{job.failures_in_a_row} runs failed in a row: {job.last_error}"
        yield Condition(AlertName.JOB_FAILING, job.name, detail)
    yield from _reclaimed(JOB_LOCK + job.name, job.reclaimed_at, now)


def _reclaimed(lease: str, reclaimed_at: datetime | None, now: datetime) -> Iterator[Condition]:
    if reclaimed_at is not None and now - reclaimed_at < RECLAIMED_QUIET:
        detail = f"the last holder let the lease expire; the lease was acquired again at {_time(reclaimed_at)}"
        yield Condition(AlertName.LOCK_RECLAIMED, lease, detail)


def _seconds(span: timedelta) -> str:
    return f"{round(span.total_seconds())} s"


def _time(instant: datetime) -> str:
    return instant.strftime("%H:%M:%S UTC")


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    alert_id: str
    name: str
    subject: str | None
    detail: str
    raised_at: datetime
    cleared_at: datetime | None = None


class AlertChanges(msgspec.Struct, frozen=True):
    """The changes of one run of `watch`."""

    raised: Sequence[Alert]
    cleared: Sequence[Alert]


class Transition(StrEnum):
    RAISED = "raised"
    CLEARED = "cleared"


def delivery_key(alert_id: str, transition: Transition) -> str:
    """The key of the submission that reports a transition. The key is the same in every try, so repeated tries
    create only one submission.
    """
    return f"{alert_id}-{transition.value}"


class AlertFilter(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    subject: str | None = None
    active: bool | None = None


class AlertPosition(msgspec.Struct, frozen=True):
    """The last alert of a page."""

    raised_at: datetime
    alert_id: str


class InstallationGauges(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the whole installation, for `GET /metrics`."""

    active_by_kind: dict[int, int]
    seats: int
    """The sum of the limits of all capacities that have a limit."""
    seats_taken: int
    """The number of live sessions on the capacities that have a limit."""
    pending_by_gateway: dict[str, int]
    pending: int
    """All pending submissions, including those of gateways that are not configured here."""
    active_alerts: dict[str, int]
    """The number of active alerts by name."""
