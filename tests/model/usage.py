"""A model of usage in plain Python: each window as it was at the cut that ends it, with the billable interval of each
session.

The sessions come from the model of sessions, which a test calls with instants that are never before the last cut (see
`write_now`). The model of usage stores the contents of a window at its cut. From then on, an engine must return the
same contents for the window.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from tenure.clock import EPOCH
from tenure.domain.sessions import Session
from tenure.domain.usage import BillableInterval, Cut, Era, Factors

MICROSECOND = timedelta(microseconds=1)
PERIOD = timedelta(days=30)
DAY = timedelta(days=1)


class ModelWindow(NamedTuple):
    started_at: datetime
    ended_at: datetime
    era: Era
    intervals: Mapping[str, BillableInterval]
    """The billable intervals by session id."""
    usage_millionths: int


def exact(duration: timedelta, factor_millionths: int) -> Fraction:
    """Returns the usage in millionths, before rounding."""
    return Fraction(factor_millionths * (duration // MICROSECOND), PERIOD // MICROSECOND)


class UsageModel:
    def __init__(self, installed_at: datetime) -> None:
        self.last_cut_at = installed_at
        self.eras: list[Era] = []
        self.windows: list[ModelWindow] = []

    def write_now(self, clock: datetime) -> datetime:
        """Returns the timestamp that a session write gets at the instant `clock` of the database's clock."""
        return max(clock, self.last_cut_at)

    def cut(self, sessions: Iterable[Session], clock: datetime, interval: timedelta, factors: Factors) -> Cut:
        grid = clock - (clock - EPOCH) % interval
        if grid > self.last_cut_at and (not self.eras or self.eras[-1].factors != factors):
            self.eras.append(Era(self.last_cut_at, factors))
        known, cuts = list(sessions), 0
        while self.last_cut_at < grid:
            ends_at = min(grid, _midnight_after(self.last_cut_at))
            self.windows.append(self._window(known, ends_at))
            self.last_cut_at, cuts = ends_at, cuts + 1
        return Cut(clock, self.last_cut_at, cuts)

    def billed(self) -> Mapping[tuple[str, datetime], int]:
        """Returns the usage in millionths by session id and start of the era, as the sum of the rounded amounts of all
        windows.
        """
        sums: defaultdict[tuple[str, datetime], int] = defaultdict(int)
        for window in self.windows:
            for session_id, interval in window.intervals.items():
                sums[session_id, window.era.started_at] += _amount(interval, window.era)
        return sums

    def whole(self, sessions: Iterable[Session]) -> Mapping[tuple[str, datetime], int]:
        """Returns the same sums as `billed`, but computes the usage of a session in an era as a whole, up to the last
        cut, and rounds it only once.
        """
        ends = {era: later.started_at for era, later in pairwise(self.eras)}
        amounts = {}
        for session in sessions:
            for era in self.eras:
                era_ends_at = ends.get(era, self.last_cut_at)
                starts = max(session.started_at, era.started_at)
                duration = min(session.closed_at or session.deadline_at, era_ends_at) - starts
                if duration > timedelta():
                    amounts[session.session_id, era.started_at] = round(exact(duration, era.factors[session.kind - 1]))
        return amounts

    def _window(self, sessions: Sequence[Session], ends_at: datetime) -> ModelWindow:
        era = self.eras[-1]
        intervals = {
            session.session_id: interval
            for session in sessions
            if (interval := _life(session, self.last_cut_at, ends_at, era)) is not None
        }
        usage = sum(_amount(interval, era) for interval in intervals.values())
        return ModelWindow(self.last_cut_at, ends_at, era, intervals, usage)


def _life(session: Session, starts_at: datetime, ends_at: datetime, era: Era) -> BillableInterval | None:
    from_at, to_at = max(session.started_at, starts_at), min(session.closed_at or session.deadline_at, ends_at)
    if from_at >= to_at:
        return None
    counts_from = max(session.started_at, era.started_at)
    return BillableInterval(
        session.session_id,
        session.user_object_id,
        session.tenant_object_id,
        session.capacity_id,
        session.kind,
        None if from_at == starts_at else from_at,
        None if to_at == ends_at else to_at,
        (from_at - counts_from) // MICROSECOND,
        (to_at - counts_from) // MICROSECOND,
    )


def _amount(interval: BillableInterval, era: Era) -> int:
    factor = era.factors[interval.kind - 1]
    before, total = interval.before_microseconds * MICROSECOND, interval.total_microseconds * MICROSECOND
    return round(exact(total, factor)) - round(exact(before, factor))


def _midnight_after(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + DAY
