"""When jobs run: the pure grid, what is due, and the pauses after failures."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.clock import EPOCH, MICROSECOND
from tenure.model.leases import Job
from tenure.schedule import due_in, grid_after, is_overtaken, next_run_after, retry_pause_microseconds
from tests.support.wishes import NOON, SECOND

DAY = 86_400 * SECOND
intervals = st.integers(1, 400 * DAY)
instants = st.integers(0, 200 * 365 * DAY).map(lambda microseconds: EPOCH + timedelta(microseconds=microseconds))


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
def test_the_next_tick_lies_on_the_grid(interval: int, instant: datetime) -> None:
    assert ((grid_after(interval, instant) - EPOCH) // MICROSECOND) % interval == 0


@given(interval=intervals, instant=instants)
def test_the_next_tick_is_the_first_one_after_the_instant(interval: int, instant: datetime) -> None:
    tick = grid_after(interval, instant)
    assert tick - timedelta(microseconds=interval) <= instant < tick


@given(interval=intervals, instant=instants)
def test_from_a_tick_on_the_next_one_is_a_whole_interval_away(interval: int, instant: datetime) -> None:
    tick = grid_after(interval, instant)
    assert grid_after(interval, tick) == tick + timedelta(microseconds=interval)


@given(
    interval=st.integers(SECOND, DAY),
    parts=st.lists(st.floats(0, 0.999, allow_nan=False), min_size=1, max_size=50),
)
def test_runs_that_take_less_than_their_interval_do_not_drift(interval: int, parts: list[float]) -> None:
    """Each run begins some time after its tick; however late, the next one is for the tick that follows."""
    first = tick = grid_after(interval, NOON)
    for part in parts:
        tick = next_run_after(
            job(interval_microseconds=interval, next_run_at=tick), tick + timedelta(microseconds=int(part * interval))
        )
    assert tick == first + len(parts) * timedelta(microseconds=interval)


@given(missed=st.integers(1, 10**6))
def test_missed_ticks_are_run_once(missed: int) -> None:
    minute = timedelta(minutes=1)
    tick = grid_after(60 * SECOND, NOON)
    assert next_run_after(job(next_run_at=tick), tick + missed * minute) == tick + (missed + 1) * minute


@given(back=st.integers(0, 365 * DAY))
def test_a_clock_that_went_back_does_not_bring_a_tick_back(back: int) -> None:
    tick = grid_after(60 * SECOND, NOON)
    assert next_run_after(job(next_run_at=tick), tick - timedelta(microseconds=back)) >= tick


MINUTE = timedelta(minutes=1)
TICK = grid_after(60 * SECOND, NOON)
DONE = {"next_run_at": TICK, "last_start_at": TICK - MINUTE}


def test_a_job_is_not_overtaken_while_its_next_tick_is_the_next() -> None:
    for now in (TICK - MINUTE, TICK - MICROSECOND, TICK, TICK + timedelta(days=1)):
        assert not is_overtaken(job(**DONE), now)


@given(back=st.integers(60 * SECOND + 1, 365 * DAY))
def test_a_job_is_overtaken_once_the_clock_is_behind_a_tick_that_is_done(back: int) -> None:
    now = TICK - timedelta(microseconds=back)
    assert is_overtaken(job(**DONE), now)
    assert is_overtaken(job(next_run_at=TICK), now)


def test_one_that_is_overtaken_runs_once_a_tick() -> None:
    hour_ago = TICK - timedelta(hours=1)
    behind = job(next_run_at=TICK, last_start_at=hour_ago + timedelta(seconds=7))
    assert not is_overtaken(behind, hour_ago + timedelta(seconds=7))
    assert not is_overtaken(behind, hour_ago + MINUTE - MICROSECOND)
    assert is_overtaken(behind, hour_ago + MINUTE)


def test_one_that_is_paused_or_asked_for_is_not_overtaken() -> None:
    hour_ago = TICK - timedelta(hours=1)
    assert not is_overtaken(job(**DONE, paused=True), hour_ago)
    assert not is_overtaken(job(**DONE, requested_at=hour_ago), hour_ago)


# What is due.


def test_a_job_is_due_from_the_instant_of_its_tick() -> None:
    assert due_in(job(), NOON) == timedelta(0)
    assert due_in(job(), NOON - MICROSECOND) == MICROSECOND


def test_a_tick_that_has_passed_is_due() -> None:
    waits = due_in(job(), NOON + timedelta(hours=1))
    assert waits is not None
    assert waits <= timedelta(0)


def test_a_paused_job_is_never_due() -> None:
    assert due_in(job(paused=True), NOON + timedelta(days=1)) is None


@pytest.mark.parametrize("paused", [False, True])
def test_a_job_that_was_asked_for_is_due_at_once(paused: bool) -> None:
    asked = job(paused=paused, next_run_at=NOON + timedelta(days=1), requested_at=NOON)
    assert due_in(asked, NOON) == timedelta(0)


def test_a_failed_job_waits_until_it_is_tried_again() -> None:
    failed = job(next_run_at=NOON - timedelta(hours=1), retry_at=NOON + timedelta(seconds=8))
    assert due_in(failed, NOON) == timedelta(seconds=8)


def test_a_pause_after_a_failure_does_not_bring_the_next_tick_forward() -> None:
    assert due_in(job(retry_at=NOON - timedelta(seconds=9)), NOON - timedelta(seconds=5)) == timedelta(seconds=5)


@given(
    next_run_at=instants, retry_at=st.none() | instants, requested_at=st.none() | instants, now=instants, ago=instants
)
def test_what_is_due_stays_due(
    next_run_at: datetime,
    retry_at: datetime | None,
    requested_at: datetime | None,
    now: datetime,
    ago: datetime,
) -> None:
    one = job(next_run_at=next_run_at, retry_at=retry_at, requested_at=requested_at)
    earlier, later = sorted([ago, now])
    before, after = due_in(one, earlier), due_in(one, later)
    assert before is not None
    assert after is not None
    assert before > timedelta(0) or after <= timedelta(0)


@given(next_run_at=instants, retry_at=st.none() | instants, now=instants)
def test_a_job_is_due_after_just_as_long_as_was_said(
    next_run_at: datetime, retry_at: datetime | None, now: datetime
) -> None:
    one = job(next_run_at=next_run_at, retry_at=retry_at)
    waits = due_in(one, now)
    assert waits is not None
    if waits > timedelta(0):
        assert due_in(one, now + waits) == timedelta(0)
        assert due_in(one, now + waits - MICROSECOND) == MICROSECOND


# Pauses after failures.


def test_pauses_double_from_a_second_to_a_minute() -> None:
    pauses = [retry_pause_microseconds(failures) // SECOND for failures in range(1, 10)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@given(failures=st.integers(1, 10**18))
def test_no_number_of_failures_makes_a_pause_longer_or_shorter_than_allowed(failures: int) -> None:
    assert SECOND <= retry_pause_microseconds(failures) <= retry_pause_microseconds(failures + 1) <= 60 * SECOND
