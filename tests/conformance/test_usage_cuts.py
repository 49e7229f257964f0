"""Where windows begin and end, what they keep, and that nothing is ever written into one that is cut."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.clock import EPOCH
from tenure.model.sessions import CloseReason, Found, Outcome, Seats, Session
from tenure.model.usage import Cut, Era, Window
from tests.support.databases import Database
from tests.support.keeping import attach_one, evicting, keep_one, update_one
from tests.support.leases import all_tables, held, sweep_some, table
from tests.support.sessions import opened, recorded
from tests.support.usage import (
    CONTRACT,
    DAY,
    FACTORS,
    MICROSECOND,
    MINUTE,
    chunk_all,
    cut,
    cut_one,
    eras,
    lives,
    minute,
    windows,
)
from tests.support.wishes import NOON, SECOND, again, end_one, open_one, wish

OTHER_FACTORS = (500_001, 0, 999_999_999_999)


pytestmark = pytest.mark.usefixtures("installed")


async def spans(database: Database) -> list[tuple[datetime, datetime]]:
    return [(window.started_at, window.ended_at) for window in await windows(database)]


# On the grid


async def test_cut_usage__begins_with_the_installation(database: Database) -> None:
    (row,) = await table(database, "installation")
    told = await cut(database, minute(1, 3.417))
    assert told == Cut(now=minute(1, 3.417), last_cut_at=minute(1), windows=1)
    expected = Window(
        window_id=1,
        installation_id=row["installation_id"],
        started_at=row["created_at"],
        ended_at=minute(1),
        era=Era(NOON, FACTORS),
        contract=None,
    )
    assert await windows(database) == [expected]


@pytest.mark.parametrize("interval", [7 * SECOND, MINUTE, 5 * MINUTE, 60 * MINUTE, 1_234_567])
async def test_cut_usage__ends_a_window_on_the_grid(database: Database, interval: int) -> None:
    now = NOON + timedelta(hours=2, seconds=3.417)
    told = await cut(database, now, interval=interval)
    assert (told.last_cut_at - EPOCH) % timedelta(microseconds=interval) == timedelta()
    assert now - timedelta(microseconds=interval) < told.last_cut_at <= now
    assert await spans(database) == [(NOON, told.last_cut_at)]


async def test_cut_usage__cuts_nothing_before_the_next_instant_of_the_grid(database: Database) -> None:
    just_before = minute(1) - MICROSECOND
    assert await cut(database, just_before) == Cut(just_before, NOON, 0)
    assert (await cut(database, minute(1))).windows == 1
    before = await all_tables(database)
    assert await cut(database, minute(2) - MICROSECOND) == Cut(minute(2) - MICROSECOND, minute(1), 0)
    assert await all_tables(database) == before


async def test_cut_usage__does_nothing_when_it_is_repeated(database: Database) -> None:
    await cut(database, minute(1))
    before = await all_tables(database)
    assert await cut(database, minute(1)) == Cut(minute(1), minute(1), 0)
    assert await all_tables(database) == before


async def test_cut_usage__makes_one_window_of_a_pause_within_a_day(database: Database) -> None:
    await cut(database, minute(1))
    await cut(database, minute(90))
    assert await spans(database) == [(NOON, minute(1)), (minute(1), minute(90))]


async def test_cut_usage__notes_when_it_was_done(database: Database) -> None:
    await cut(database, minute(1, 2.5))
    assert [row["cut_at"] for row in await table(database, "usage_windows")] == [minute(1, 2.5)]


# Midnights


def midnight(days: int) -> datetime:
    return NOON.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=days)


async def test_cut_usage__lets_no_window_cross_a_midnight(database: Database) -> None:
    now = midnight(3) + timedelta(minutes=5, seconds=30)
    assert await cut(database, now) == Cut(now, midnight(3) + timedelta(minutes=5), 4)
    edges = [NOON, midnight(1), midnight(2), midnight(3), midnight(3) + timedelta(minutes=5)]
    assert await spans(database) == list(pairwise(edges))


async def test_cut_usage__ends_at_midnight_if_that_is_on_the_grid(database: Database) -> None:
    assert (await cut(database, midnight(1))).windows == 1
    assert await spans(database) == [(NOON, midnight(1))]


async def test_cut_usage__cuts_midnights_that_are_not_on_the_grid(database: Database) -> None:
    """Only once the grid has come to its next instant."""
    interval = 7 * 60 * MINUTE
    grid = midnight(1) - (midnight(1) - EPOCH) % timedelta(microseconds=interval)
    assert grid < midnight(1)
    await cut(database, midnight(1) + timedelta(minutes=1), interval=interval)
    following = grid + timedelta(microseconds=interval)
    await cut(database, following, interval=interval)
    edges = [NOON, grid, midnight(1), following] if grid > NOON else [NOON, midnight(1), following]
    assert await spans(database) == list(pairwise(edges))


# How many


async def test_cut_usage__cuts_no_more_than_asked_and_goes_on_from_there(database: Database) -> None:
    now = midnight(5) + timedelta(minutes=1)
    told = [await cut(database, now, limit=2) for _ in range(4)]
    assert told == [
        Cut(now, midnight(2), 2),
        Cut(now, midnight(4), 2),
        Cut(now, now, 2),
        Cut(now, now, 0),
    ]
    found = await windows(database)
    assert [window.window_id for window in found] == [1, 2, 3, 4, 5, 6]
    assert all(one.ended_at == other.started_at for one, other in pairwise(found))
    assert {window.era for window in found} == {Era(NOON, FACTORS)}


async def test_cut_usage__numbers_windows_on_after_all_of_them_were_pruned(database: Database) -> None:
    await cut(database, midnight(2))
    await chunk_all(database)
    await database.clock.set(midnight(500))
    pruned = await database.store.prune_usage(await held(database.store, "job:prune"), 9)
    assert (pruned.windows, await windows(database)) == (2, [])
    await cut(database, midnight(500), limit=1)
    assert [(window.window_id, window.started_at) for window in await windows(database)] == [(3, midnight(2))]


# A clock that is stepped back


@pytest.mark.parametrize("seconds", [0.000001, 59, 120, 400, 90_000])
async def test_cut_usage__cuts_nothing_while_the_clock_is_behind_the_last_cut(
    database: Database, seconds: float
) -> None:
    await cut(database, minute(5))
    before = await all_tables(database)
    now = minute(5) - timedelta(seconds=seconds)
    assert await cut(database, now) == Cut(now, minute(5), 0)
    assert await all_tables(database) == before


async def test_cut_usage__goes_on_where_it_was_when_the_clock_has_caught_up(database: Database) -> None:
    await cut(database, minute(5))
    await cut(database, minute(2), factors=OTHER_FACTORS)
    await cut(database, minute(6))
    assert await spans(database) == [(NOON, minute(5)), (minute(5), minute(6))]
    assert len(await eras(database)) == 1, "a cut that was skipped began an era"


# What a window keeps


async def test_cut_usage__begins_an_era_where_the_factors_change(database: Database) -> None:
    await cut(database, minute(1))
    await cut(database, minute(2))
    await cut(database, minute(4), factors=OTHER_FACTORS)
    await cut(database, minute(5), factors=OTHER_FACTORS)
    first, second = Era(NOON, FACTORS), Era(minute(2), OTHER_FACTORS)
    assert [window.era for window in await windows(database)] == [first, first, second, second]


async def test_cut_usage__begins_another_era_when_factors_are_changed_back(database: Database) -> None:
    for number, factors in enumerate((FACTORS, OTHER_FACTORS, FACTORS), start=1):
        await cut(database, minute(number), factors=factors)
    assert [window.era.started_at for window in await windows(database)] == [NOON, minute(1), minute(2)]
    assert [row["era"] for row in await eras(database)] == [1, 2, 3]


@pytest.mark.parametrize("kind", [0, 1, 2])
async def test_cut_usage__notices_a_change_of_any_factor(database: Database, kind: int) -> None:
    changed: Any = tuple(factor + (number == kind) for number, factor in enumerate(FACTORS))
    await cut(database, minute(1))
    await cut(database, minute(2), factors=changed)
    assert [window.era.factors for window in await windows(database)] == [FACTORS, changed]


async def test_cut_usage__has_all_windows_of_a_pause_in_the_era_that_it_begins(database: Database) -> None:
    await cut(database, minute(1))
    await cut(database, midnight(2), factors=OTHER_FACTORS)
    assert [window.era.started_at for window in await windows(database)] == [NOON, minute(1), minute(1)]


async def test_cut_usage__keeps_the_contract_with_the_window(database: Database) -> None:
    later = replace(CONTRACT, timeout_seconds=99.5, format="cloudevents")
    for number, contract in enumerate((None, CONTRACT, later, None), start=1):
        await cut(database, minute(number), contract=contract)
    assert [window.contract for window in await windows(database)] == [None, CONTRACT, later, None]


# Nothing is written into a window that is cut.

STEPPED_BACK = [minute(10), minute(10) - MICROSECOND, minute(7), NOON - timedelta(days=2)]
"""By how much the clock may be wrong after a cut at minute ten."""


@pytest.fixture(params=STEPPED_BACK, ids=["not", "by a microsecond", "by minutes", "by days"])
def later(request: pytest.FixtureRequest) -> Any:
    """The clock after the cut."""
    return request.param


async def cut_and_step_back(database: Database, later: datetime) -> None:
    assert await cut_one(database, minute(10)) is not None
    await database.clock.set(later)


async def test_cut_usage__lets_no_session_begin_before_it(database: Database, later: datetime) -> None:
    await cut_and_step_back(database, later)
    assert (await opened(database)).started_at == minute(10)


async def test_cut_usage__lets_no_session_begin_before_it_on_a_capacity_with_a_limit(
    database: Database, later: datetime
) -> None:
    one = wish()
    await database.store.put_capacity(one.capacity_id, Seats(3))
    await cut_and_step_back(database, later)
    session = (await open_one(database.store, one)).session
    assert session is not None
    assert session.started_at == minute(10)


async def test_cut_usage__lets_no_session_end_before_it(database: Database, later: datetime) -> None:
    session = await opened(database)
    await cut_and_step_back(database, later)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert ended.session is not None
    assert ended.session.closed_at == minute(10)


async def test_cut_usage__lets_no_session_be_upgraded_before_it(database: Database, later: datetime) -> None:
    one = wish()
    await open_one(database.store, one)
    await cut_and_step_back(database, later)
    answer = await open_one(database.store, again(one, kind=2))
    assert answer.outcome is Outcome.UPGRADED
    assert answer.session is not None
    old = await recorded(database, one.session_id)
    assert (old.closed_at, answer.session.started_at) == (minute(10), minute(10))


async def test_cut_usage__lets_no_session_be_evicted_before_it(database: Database, later: datetime) -> None:
    old = await opened(database)
    await database.store.put_capacity(old.capacity_id, evicting(1))
    await cut_and_step_back(database, later)
    new = await opened(database, capacity_id=old.capacity_id)
    assert ((await recorded(database, old.session_id)).closed_at, new.started_at) == (minute(10), minute(10))


async def test_cut_usage__renews_no_session_from_before_it(database: Database, later: datetime) -> None:
    session = await opened(database, lease_microseconds=20 * MINUTE)
    await cut_and_step_back(database, later)
    kept = await keep_one(database.store, session.session_id)
    assert (kept.found, kept.deadline_at) == (Found.LIVE, minute(30))


async def test_cut_usage__lets_no_stream_end_before_it(database: Database, later: datetime) -> None:
    session = await opened(database)
    await attach_one(database.store, session.session_id, lease=60 * MINUTE, idle=60 * MINUTE)
    await cut_and_step_back(database, later)
    await update_one(database.store, session.session_id, end="STOPPED", finished=True)
    assert (await recorded(database, session.session_id)).closed_at == minute(10)


async def test_cut_usage__lets_no_stream_bring_a_deadline_before_it(database: Database, later: datetime) -> None:
    session = await opened(database)
    await cut_and_step_back(database, later)
    attached = await attach_one(database.store, session.session_id, lease=SECOND, idle=2 * SECOND)
    assert attached.session is not None
    assert attached.session.deadline_at == minute(10, 1)


async def lapsed(database: Database) -> Session:
    """A session that was over at minute four, of which nobody has taken notice."""
    return await opened(database, lease_microseconds=(minute(4) - NOON) // MICROSECOND)


async def test_cut_usage__leaves_no_way_to_keep_what_lapsed_before_it(database: Database, later: datetime) -> None:
    """With the clock behind the deadline again, a heartbeat would be in time."""
    session = await lapsed(database)
    await cut_and_step_back(database, later)
    kept = await keep_one(database.store, session.session_id)
    assert (kept.found, (await recorded(database, session.session_id)).closed_at) == (Found.OVER, minute(4))


async def test_cut_usage__leaves_no_way_to_end_otherwise_what_lapsed_before_it(
    database: Database, later: datetime
) -> None:
    session = await lapsed(database)
    await cut_and_step_back(database, later)
    await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    found = await recorded(database, session.session_id)
    assert (found.closed_at, found.close_reason) == (minute(4), CloseReason.LEASE_EXPIRED)


LAPSED = pytest.mark.parametrize("later", [at for at in STEPPED_BACK if at > minute(4)])
"""Where the clock, too, still says so. Behind the deadline, engines may leave the row to be recorded later."""


@LAPSED
async def test_cut_usage__has_the_sweep_record_what_lapsed_before_it(database: Database, later: datetime) -> None:
    session = await lapsed(database)
    await cut_and_step_back(database, later)
    swept = await sweep_some(database.store, 9)
    assert [(one.session_id, one.ended_at) for one in swept.closings] == [(session.session_id, minute(4))]


@LAPSED
async def test_cut_usage__has_a_key_opened_anew_where_it_lapsed_before_it(database: Database, later: datetime) -> None:
    one = wish(lease_microseconds=(minute(4) - NOON) // MICROSECOND)
    await open_one(database.store, one)
    await cut_and_step_back(database, later)
    answer = await open_one(database.store, again(one))
    assert answer.outcome is Outcome.CREATED
    assert answer.session is not None
    assert answer.session.started_at == minute(10)
    assert (await recorded(database, one.session_id)).closed_at == minute(4)


async def test_cut_usage__is_the_same_window_whatever_was_done_since(database: Database, later: datetime) -> None:
    """Everything there is, one session each."""
    kept, ended, upgraded, evicted = [wish(lease_microseconds=60 * MINUTE) for _ in range(4)]
    for one in (kept, ended, upgraded, evicted):
        await open_one(database.store, one)
    over = await lapsed(database)
    window = await cut_one(database, minute(10))
    before = await lives(database, window)
    await database.clock.set(later)
    await keep_one(database.store, kept.session_id)
    await keep_one(database.store, over.session_id)
    await end_one(database.store, ended.session_id, CloseReason.STOPPED)
    await open_one(database.store, again(upgraded, kind=3))
    await database.store.put_capacity(evicted.capacity_id, evicting(1))
    await opened(database, capacity_id=evicted.capacity_id)
    await sweep_some(database.store, 9)
    assert len(before) == 5
    assert await lives(database, window) == before


async def test_cut_usage__makes_windows_of_a_day_for_years_without_a_cut(database: Database) -> None:
    """As after a very long pause, in as many calls as that takes."""
    now = NOON + timedelta(days=300)
    cuts = [(await cut(database, now, limit=128, interval=DAY)).windows for _ in range(4)]
    assert cuts == [128, 128, 44, 0]
