"""When jobs run: the grid, due times, and the pauses after failures."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.clock import EPOCH, MICROSECOND
from tenure.domain.job_grid import (
    RETRY_MAX_SECONDS,
    due_in,
    grid_after,
    grid_at,
    is_clock_behind,
    next_run_after,
    retry_pause_microseconds,
)
from tenure.domain.jobs import Job
from tests.support.open_requests import NOON, SECOND

DAY = 86_400 * SECOND
MINUTE = timedelta(minutes=1)
TICK = grid_after(60 * SECOND, NOON)
intervals = st.integers(1, 400 * DAY)
instants = st.integers(0, 200 * 365 * DAY).map(lambda microseconds: EPOCH + timedelta(microseconds=microseconds))
later_instants = instants.map(lambda instant: instant + timedelta(days=1))


def job(**given: Any) -> Job:
    values = {
        "name": "tidy",
        "interval_microseconds": 60 * SECOND,
        "lock_timeout_microseconds": 120 * SECOND,
        "next_run_at": NOON,
        "run_count": 0,
        "failures_in_a_row": 0,
        "paused": False,
    }
    return Job(**{**values, **given})


# The grid.


@given(interval=intervals, instant=instants)
def test_next_tick_is_on_grid(interval: int, instant: datetime) -> None:
    assert ((grid_after(interval, instant) - EPOCH) // MICROSECOND) % interval == 0


@given(interval=intervals, instant=instants)
def test_next_tick_is_first_after_instant(interval: int, instant: datetime) -> None:
    tick = grid_after(interval, instant)
    assert tick - timedelta(microseconds=interval) <= instant < tick


@given(interval=intervals, instant=instants)
def test_last_tick_is_one_interval_before_next_tick(interval: int, instant: datetime) -> None:
    assert grid_at(interval, instant) == grid_after(interval, instant) - timedelta(microseconds=interval)


@given(interval=intervals, instant=instants)
def test_next_tick_after_tick_is_one_interval_later(interval: int, instant: datetime) -> None:
    tick = grid_after(interval, instant)
    assert grid_after(interval, tick) == tick + timedelta(microseconds=interval)


@given(
    interval=st.integers(SECOND, DAY),
    parts=st.lists(st.floats(0, 0.999, allow_nan=False), min_size=1, max_size=50),
)
def test_runs_that_begin_late_within_interval_do_not_drift(interval: int, parts: list[float]) -> None:
    """A run may begin late within its interval; the next run still belongs to the next tick."""
    first = tick = grid_after(interval, NOON)
    for part in parts:
        tick = next_run_after(
            job(interval_microseconds=interval, next_run_at=tick), tick + timedelta(microseconds=int(part * interval))
        )
    assert tick == first + len(parts) * timedelta(microseconds=interval)


@given(missed=st.integers(1, 10**6))
def test_one_run_covers_all_missed_ticks(missed: int) -> None:
    assert next_run_after(job(next_run_at=TICK), TICK + missed * MINUTE) == TICK + (missed + 1) * MINUTE


@given(back=st.integers(0, 365 * DAY))
def test_next_run_does_not_move_back_when_clock_was_stepped_back(back: int) -> None:
    assert next_run_after(job(next_run_at=TICK), TICK - timedelta(microseconds=back)) >= TICK


# A clock that was stepped back.


@given(started=st.integers(0, 60 * SECOND - 1), back=st.integers(0, 60 * SECOND - 1))
def test_clock_step_back_of_less_than_an_interval_makes_no_job_due(started: int, back: int) -> None:
    """The last run may have begun anywhere in its interval."""
    begun_at = TICK - MINUTE + timedelta(microseconds=started)
    done = job(next_run_at=next_run_after(job(), begun_at))
    delay = due_in(done, begun_at - timedelta(microseconds=back))
    assert done.next_run_at == TICK
    assert delay is not None
    assert delay > timedelta(0)


@given(started=st.integers(0, 60 * SECOND - 1), back=st.integers(120 * SECOND, 365 * DAY))
def test_clock_step_back_of_two_or_more_intervals_makes_job_due(started: int, back: int) -> None:
    begun_at = TICK - MINUTE + timedelta(microseconds=started)
    assert due_in(job(next_run_at=TICK), begun_at - timedelta(microseconds=back)) == timedelta(0)


def test_clock_is_behind_if_next_tick_is_more_than_two_intervals_ahead() -> None:
    assert not is_clock_behind(job(next_run_at=TICK), TICK - 2 * MINUTE)
    assert is_clock_behind(job(next_run_at=TICK), TICK - 2 * MINUTE - MICROSECOND)


def test_paused_job_is_due_after_clock_step_back_only_if_requested() -> None:
    hour_ago = TICK - timedelta(hours=1)
    assert due_in(job(next_run_at=TICK, paused=True), hour_ago) is None
    assert due_in(job(next_run_at=TICK, paused=True, requested_at=hour_ago), hour_ago) == timedelta(0)


def test_retry_time_further_ahead_than_longest_pause_is_ignored() -> None:
    longest = timedelta(seconds=RETRY_MAX_SECONDS)
    assert due_in(job(retry_at=NOON + longest), NOON) == longest
    assert due_in(job(retry_at=NOON + longest + MICROSECOND), NOON) == timedelta(0)


# Due times.


def test_job_is_due_from_instant_of_tick() -> None:
    assert due_in(job(), NOON) == timedelta(0)
    assert due_in(job(), NOON - MICROSECOND) == MICROSECOND


def test_job_is_due_after_tick() -> None:
    delay = due_in(job(), NOON + timedelta(hours=1))
    assert delay is not None
    assert delay <= timedelta(0)


def test_paused_job_is_not_due_without_request() -> None:
    assert due_in(job(paused=True), NOON + timedelta(days=1)) is None


@pytest.mark.parametrize("paused", [False, True])
def test_requested_job_is_due_immediately(paused: bool) -> None:
    requested = job(paused=paused, next_run_at=NOON + timedelta(days=1), requested_at=NOON)
    assert due_in(requested, NOON) == timedelta(0)


def test_failed_job_is_due_at_retry_time() -> None:
    failed = job(next_run_at=NOON - timedelta(hours=1), retry_at=NOON + timedelta(seconds=8))
    assert due_in(failed, NOON) == timedelta(seconds=8)


def test_job_is_not_due_before_next_tick_even_if_retry_pause_has_elapsed() -> None:
    assert due_in(job(retry_at=NOON - timedelta(seconds=9)), NOON - timedelta(seconds=5)) == timedelta(seconds=5)


ahead = st.integers(-DAY, 120 * SECOND)
"""Microseconds until the next tick. At most two intervals: otherwise, the database's clock counts as behind."""
pauses = st.none() | st.integers(-DAY, RETRY_MAX_SECONDS * SECOND)


def some_job(now: datetime, ahead: int, pause: int | None, requested_at: datetime | None = None) -> Job:
    retry_at = None if pause is None else now + timedelta(microseconds=pause)
    return job(next_run_at=now + timedelta(microseconds=ahead), retry_at=retry_at, requested_at=requested_at)


@given(now=later_instants, ahead=ahead, pause=pauses, requested_at=st.none() | instants, after=st.integers(0, DAY))
def test_due_job_stays_due(
    now: datetime, ahead: int, pause: int | None, requested_at: datetime | None, after: int
) -> None:
    one = some_job(now, ahead, pause, requested_at)
    before, then = due_in(one, now), due_in(one, now + timedelta(microseconds=after))
    assert before is not None
    assert then is not None
    assert before > timedelta(0) or then <= timedelta(0)


@given(now=later_instants, ahead=ahead, pause=pauses)
def test_job_becomes_due_exactly_after_returned_delay(now: datetime, ahead: int, pause: int | None) -> None:
    one = some_job(now, ahead, pause)
    delay = due_in(one, now)
    assert delay is not None
    if delay > timedelta(0):
        assert due_in(one, now + delay) == timedelta(0)
        assert due_in(one, now + delay - MICROSECOND) == MICROSECOND


# Pauses after failures.


def test_retry_pause_doubles_from_one_second_to_one_minute() -> None:
    backoff = [retry_pause_microseconds(failures) // SECOND for failures in range(1, 10)]
    assert backoff == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@given(failures=st.integers(1, 10**18))
def test_retry_pause_stays_within_limits(failures: int) -> None:
    assert SECOND <= retry_pause_microseconds(failures) <= retry_pause_microseconds(failures + 1) <= 60 * SECOND
