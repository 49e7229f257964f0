"""Activity: counts of openings, refusals, heartbeats and ends in the whole installation, for each minute.

Every worker has its own counts (`telemetry/counters.py`) and saves them per minute. A saved row is identified by
(minute, instance, turn) and contains *absolute* counts: all that this worker has counted for this minute so far. So
saving a row twice changes nothing. Nor does saving an older state of a row after a newer one: the store keeps the
greater of two counts.

`turn` is the number of times that the worker has seen the database's clock step back to an earlier minute. Without
`turn`, the counts of a repeated minute would go to the row that was saved before the step, and the store would keep the
greater counts instead of the sums.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.sessions import CloseReason

ACTIVITY_POINTS_MAX = 1500
ACTIVITY_SPAN = timedelta(hours=1)
"""The length of the span if the query has no start."""
MINUTE_MICROSECONDS = 60_000_000
STEP_MAX_SECONDS = 86_400

CLOSED = {reason.value: f"closed_{reason.value.lower()}" for reason in CloseReason}
"""For each close reason, the name of the count of sessions that ended with it."""
COUNTS = ("opened", "upgraded", "existing", "refused", "heartbeats", "late_heartbeats", *CLOSED.values())
LAPSES = (CloseReason.EXPIRED, CloseReason.LEASE_EXPIRED, CloseReason.IDLE_TIMEOUT)


class MinuteCounts(msgspec.Struct, frozen=True):
    """All that one worker has counted for one minute."""

    at: datetime
    """The start of the minute."""
    turn: int
    counts: Mapping[str, int]
    """By the names in COUNTS. A name that is missing counts as 0."""


class ActivityQuery(msgspec.Struct, frozen=True):
    from_at: datetime | None
    """If None, the span begins ACTIVITY_SPAN before its end."""
    to_at: datetime | None
    """If None, or in the future, the span ends at the database's time."""
    step_seconds: int
    """A multiple of 60. Points lie at the multiples of the step since the beginning of 1970 (UTC)."""


class ActivitySpan(msgspec.Struct, frozen=True):
    """The span of a query, and its points: the first at `first_at`, at or before `from_at`, and then one per step, all
    before `to_at`.
    """

    from_at: datetime
    to_at: datetime
    first_at: datetime
    step: timedelta
    points: int


class ActivityPoint(msgspec.Struct, frozen=True):
    at: datetime
    counts: Mapping[str, int]


class Activity(msgspec.Struct, frozen=True):
    span: ActivitySpan
    points: Sequence[ActivityPoint]
    """One for each step of the span, even if nothing was counted in it."""


def span_of(query: ActivityQuery, now: datetime) -> ActivitySpan | None:
    """Returns the span of a query; None if the span is empty or has more than ACTIVITY_POINTS_MAX points."""
    to_at = now if query.to_at is None or query.to_at > now else query.to_at
    from_at = to_at - ACTIVITY_SPAN if query.from_at is None else query.from_at
    step = query.step_seconds * 1_000_000
    first = to_microseconds(from_at) // step * step
    points = -((first - to_microseconds(to_at)) // step)
    if from_at >= to_at or points > ACTIVITY_POINTS_MAX:
        return None
    return ActivitySpan(from_at, to_at, from_microseconds(first), timedelta(seconds=query.step_seconds), points)


def lapsed(counts: Mapping[str, int]) -> int:
    return sum(counts.get(CLOSED[reason.value], 0) for reason in LAPSES)
