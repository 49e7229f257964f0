"""What usage must be, in plain Python: each window as it was when it was cut, with what each session lived of it.

It goes by the model of sessions, whose clock never stands before the last cut. What a window contains is written down
as it is cut; whatever an engine tells of it later must be that.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from tenure.clock import EPOCH
from tenure.model.sessions import Session
from tenure.model.usage import Cut, Era, Factors, Life

MICROSECOND = timedelta(microseconds=1)
PERIOD = timedelta(days=30)
DAY = timedelta(days=1)


class ModelWindow(NamedTuple):
    started_at: datetime
    ended_at: datetime
    era: Era
    lives: Mapping[str, Life]
    """By their sessions."""
    usage_millionths: int


def exact(lived: timedelta, factor_millionths: int) -> Fraction:
    """Millionths, before they are rounded."""
    return Fraction(factor_millionths * (lived // MICROSECOND), PERIOD // MICROSECOND)


class UsageModel:
    def __init__(self, installed_at: datetime) -> None:
        self.last_cut_at = installed_at
        self.eras: list[Era] = []
        self.windows: list[ModelWindow] = []

    def write_now(self, clock: datetime) -> datetime:
        """What a session write is stamped with."""
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
        """What all windows say of a session in an era."""
        sums: defaultdict[tuple[str, datetime], int] = defaultdict(int)
        for window in self.windows:
            for session_id, life in window.lives.items():
                sums[session_id, window.era.started_at] += _amount(life, window.era)
        return sums

    def whole(self, sessions: Iterable[Session]) -> Mapping[tuple[str, datetime], int]:
        """What each lived in an era by the last cut, rounded once."""
        ends = {era: later.started_at for era, later in pairwise(self.eras)}
        amounts = {}
        for session in sessions:
            for era in self.eras:
                era_ends_at = ends.get(era, self.last_cut_at)
                starts = max(session.started_at, era.started_at)
                lived = min(session.closed_at or session.deadline_at, era_ends_at) - starts
                if lived > timedelta():
                    amounts[session.session_id, era.started_at] = round(exact(lived, era.factors[session.kind - 1]))
        return amounts

    def _window(self, sessions: Sequence[Session], ends_at: datetime) -> ModelWindow:
        era = self.eras[-1]
        lives = {
            session.session_id: life
            for session in sessions
            if (life := _life(session, self.last_cut_at, ends_at, era)) is not None
        }
        usage = sum(_amount(life, era) for life in lives.values())
        return ModelWindow(self.last_cut_at, ends_at, era, lives, usage)


def _life(session: Session, starts_at: datetime, ends_at: datetime, era: Era) -> Life | None:
    from_at, to_at = max(session.started_at, starts_at), min(session.closed_at or session.deadline_at, ends_at)
    if from_at >= to_at:
        return None
    counts_from = max(session.started_at, era.started_at)
    return Life(
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


def _amount(life: Life, era: Era) -> int:
    factor = era.factors[life.kind - 1]
    before, total = life.before_microseconds * MICROSECOND, life.total_microseconds * MICROSECOND
    return round(exact(total, factor)) - round(exact(before, factor))


def _midnight_after(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + DAY
