"""Windows have the right bounds and contents, and no write changes a window after its cut."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.clock import EPOCH
from tenure.domain.capacities import Seats
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Found, OpenOutcome, Session
from tenure.domain.usage import Cut, Era, Window
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import all_tables, hold_lease, read_table, sweep_some
from tests.support.open_requests import NOON, SECOND, end_one, open_one, request, same_key_request
from tests.support.session_calls import attach_one, evicting_seats, heartbeat_one, update_one
from tests.support.sessions import open_new_session, read_session
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
    intervals,
    minute,
    windows,
)

OTHER_FACTORS = (500_001, 0, 999_999_999_999)


pytestmark = pytest.mark.usefixtures("installed")


async def spans(database: Database) -> list[tuple[datetime, datetime]]:
    return [(window.started_at, window.ended_at) for window in await windows(database)]


# On the grid


async def test_cut_usage__starts_first_window_at_installation(database: Database) -> None:
    (row,) = await read_table(database, "installation")
    result = await cut(database, minute(1, 3.417))
    assert result == Cut(now=minute(1, 3.417), last_cut_at=minute(1), windows=1)
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
async def test_cut_usage__ends_window_on_grid(database: Database, interval: int) -> None:
    now = NOON + timedelta(hours=2, seconds=3.417)
    result = await cut(database, now, interval=interval)
    assert (result.last_cut_at - EPOCH) % timedelta(microseconds=interval) == timedelta()
    assert now - timedelta(microseconds=interval) < result.last_cut_at <= now
    assert await spans(database) == [(NOON, result.last_cut_at)]


async def test_cut_usage__cuts_nothing_before_next_grid_instant(database: Database) -> None:
    just_before = minute(1) - MICROSECOND
    assert await cut(database, just_before) == Cut(just_before, NOON, 0)
    assert (await cut(database, minute(1))).windows == 1
    before = await all_tables(database)
    assert await cut(database, minute(2) - MICROSECOND) == Cut(minute(2) - MICROSECOND, minute(1), 0)
    assert await all_tables(database) == before


async def test_cut_usage__changes_nothing_when_repeated(database: Database) -> None:
    await cut(database, minute(1))
    before = await all_tables(database)
    assert await cut(database, minute(1)) == Cut(minute(1), minute(1), 0)
    assert await all_tables(database) == before


async def test_cut_usage__cuts_one_window_after_pause_within_a_day(database: Database) -> None:
    await cut(database, minute(1))
    await cut(database, minute(90))
    assert await spans(database) == [(NOON, minute(1)), (minute(1), minute(90))]


async def test_cut_usage__records_cut_at(database: Database) -> None:
    await cut(database, minute(1, 2.5))
    assert [row["cut_at"] for row in await read_table(database, "usage_windows")] == [minute(1, 2.5)]


# Midnights


def midnight(days: int) -> datetime:
    return NOON.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=days)


async def test_cut_usage__splits_windows_at_midnight(database: Database) -> None:
    now = midnight(3) + timedelta(minutes=5, seconds=30)
    assert await cut(database, now) == Cut(now, midnight(3) + timedelta(minutes=5), 4)
    edges = [NOON, midnight(1), midnight(2), midnight(3), midnight(3) + timedelta(minutes=5)]
    assert await spans(database) == list(pairwise(edges))


async def test_cut_usage__ends_window_at_midnight_on_grid(database: Database) -> None:
    assert (await cut(database, midnight(1))).windows == 1
    assert await spans(database) == [(NOON, midnight(1))]


async def test_cut_usage__splits_windows_at_midnight_off_grid(database: Database) -> None:
    """Midnight is not on this grid. The window that ends at midnight is cut when the clock has reached the next instant
    of the grid.
    """
    interval = 7 * 60 * MINUTE
    grid = midnight(1) - (midnight(1) - EPOCH) % timedelta(microseconds=interval)
    assert grid < midnight(1)
    await cut(database, midnight(1) + timedelta(minutes=1), interval=interval)
    following = grid + timedelta(microseconds=interval)
    await cut(database, following, interval=interval)
    edges = [NOON, grid, midnight(1), following] if grid > NOON else [NOON, midnight(1), following]
    assert await spans(database) == list(pairwise(edges))


# Limits


async def test_cut_usage__cuts_at_most_limit_windows_and_continues(database: Database) -> None:
    now = midnight(5) + timedelta(minutes=1)
    result = [await cut(database, now, limit=2) for _ in range(4)]
    assert result == [
        Cut(now, midnight(2), 2),
        Cut(now, midnight(4), 2),
        Cut(now, now, 2),
        Cut(now, now, 0),
    ]
    found = await windows(database)
    assert [window.window_id for window in found] == [1, 2, 3, 4, 5, 6]
    assert all(one.ended_at == other.started_at for one, other in pairwise(found))
    assert {window.era for window in found} == {Era(NOON, FACTORS)}


async def test_cut_usage__continues_window_numbers_after_all_windows_were_pruned(database: Database) -> None:
    await cut(database, midnight(2))
    await chunk_all(database)
    await database.clock.set(midnight(500))
    pruned = await database.store.prune_usage(await hold_lease(database.store, "job:prune"), 9)
    assert (pruned.windows, await windows(database)) == (2, [])
    await cut(database, midnight(500), limit=1)
    assert [(window.window_id, window.started_at) for window in await windows(database)] == [(3, midnight(2))]


# A clock that is stepped back


@pytest.mark.parametrize("seconds", [0.000001, 59, 120, 400, 90_000])
async def test_cut_usage__cuts_nothing_while_clock_is_behind_last_cut(database: Database, seconds: float) -> None:
    await cut(database, minute(5))
    before = await all_tables(database)
    now = minute(5) - timedelta(seconds=seconds)
    assert await cut(database, now) == Cut(now, minute(5), 0)
    assert await all_tables(database) == before


async def test_cut_usage__continues_from_last_cut_when_clock_catches_up(database: Database) -> None:
    await cut(database, minute(5))
    await cut(database, minute(2), factors=OTHER_FACTORS)
    await cut(database, minute(6))
    assert await spans(database) == [(NOON, minute(5)), (minute(5), minute(6))]
    assert len(await eras(database)) == 1, "a cut that was skipped began an era"


# Eras and contracts


async def test_cut_usage__starts_era_when_factors_change(database: Database) -> None:
    await cut(database, minute(1))
    await cut(database, minute(2))
    await cut(database, minute(4), factors=OTHER_FACTORS)
    await cut(database, minute(5), factors=OTHER_FACTORS)
    first, second = Era(NOON, FACTORS), Era(minute(2), OTHER_FACTORS)
    assert [window.era for window in await windows(database)] == [first, first, second, second]


async def test_cut_usage__starts_new_era_when_factors_change_back(database: Database) -> None:
    for number, factors in enumerate((FACTORS, OTHER_FACTORS, FACTORS), start=1):
        await cut(database, minute(number), factors=factors)
    assert [window.era.started_at for window in await windows(database)] == [NOON, minute(1), minute(2)]
    assert [row["era"] for row in await eras(database)] == [1, 2, 3]


@pytest.mark.parametrize("kind", [0, 1, 2])
async def test_cut_usage__starts_era_when_any_factor_changes(database: Database, kind: int) -> None:
    changed: Any = tuple(factor + (number == kind) for number, factor in enumerate(FACTORS))
    await cut(database, minute(1))
    await cut(database, minute(2), factors=changed)
    assert [window.era.factors for window in await windows(database)] == [FACTORS, changed]


async def test_cut_usage__puts_windows_since_last_cut_into_the_new_era(database: Database) -> None:
    await cut(database, minute(1))
    await cut(database, midnight(2), factors=OTHER_FACTORS)
    assert [window.era.started_at for window in await windows(database)] == [NOON, minute(1), minute(1)]


async def test_cut_usage__stores_contract_with_window(database: Database) -> None:
    later = replace(CONTRACT, timeout_seconds=99.5, format="cloudevents")
    for number, contract in enumerate((None, CONTRACT, later, None), start=1):
        await cut(database, minute(number), contract=contract)
    assert [window.contract for window in await windows(database)] == [None, CONTRACT, later, None]


# No write changes a window after its cut.

STEPPED_BACK = [minute(10), minute(10) - MICROSECOND, NOON - timedelta(days=2)]
"""The times to which the clock is set after a cut at minute ten."""


@pytest.fixture(params=STEPPED_BACK, ids=["not", "by a microsecond", "by days"])
def later(request: pytest.FixtureRequest) -> Any:
    """The time to which the clock is set after the cut."""
    return request.param


async def cut_and_step_back(database: Database, later: datetime) -> None:
    assert await cut_one(database, minute(10)) is not None
    await database.clock.set(later)


async def test_cut_usage__prevents_session_start_before_cut(database: Database, later: datetime) -> None:
    await cut_and_step_back(database, later)
    assert (await open_new_session(database)).started_at == minute(10)


async def test_cut_usage__prevents_session_start_before_cut_on_limited_capacity(
    database: Database, later: datetime
) -> None:
    one = request()
    await database.store.put_capacity(one.capacity_id, Seats(3), EVERYTHING, ACTOR)
    await cut_and_step_back(database, later)
    session = (await open_one(database.store, one)).session
    assert session is not None
    assert session.started_at == minute(10)


async def test_cut_usage__prevents_session_end_before_cut(database: Database, later: datetime) -> None:
    session = await open_new_session(database)
    await cut_and_step_back(database, later)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert ended.session is not None
    assert ended.session.closed_at == minute(10)


async def test_cut_usage__prevents_upgrade_before_cut(database: Database, later: datetime) -> None:
    one = request()
    await open_one(database.store, one)
    await cut_and_step_back(database, later)
    answer = await open_one(database.store, same_key_request(one, kind=2))
    assert answer.outcome is OpenOutcome.UPGRADED
    assert answer.session is not None
    old = await read_session(database, one.session_id)
    assert (old.closed_at, answer.session.started_at) == (minute(10), minute(10))


async def test_cut_usage__prevents_eviction_before_cut(database: Database, later: datetime) -> None:
    old = await open_new_session(database)
    await database.store.put_capacity(old.capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    await cut_and_step_back(database, later)
    new = await open_new_session(database, capacity_id=old.capacity_id)
    assert ((await read_session(database, old.session_id)).closed_at, new.started_at) == (minute(10), minute(10))


async def test_cut_usage__heartbeat_renews_no_earlier_than_cut(database: Database, later: datetime) -> None:
    session = await open_new_session(database, lease_microseconds=20 * MINUTE)
    await cut_and_step_back(database, later)
    kept = await heartbeat_one(database.store, session.session_id)
    assert (kept.found, kept.deadline_at) == (Found.LIVE, minute(30))


async def test_cut_usage__prevents_stream_end_before_cut(database: Database, later: datetime) -> None:
    session = await open_new_session(database)
    await attach_one(database.store, session.session_id, lease=60 * MINUTE, idle=60 * MINUTE)
    await cut_and_step_back(database, later)
    await update_one(database.store, session.session_id, end="STOPPED", finished=True)
    assert (await read_session(database, session.session_id)).closed_at == minute(10)


async def test_cut_usage__prevents_stream_deadline_before_cut(database: Database, later: datetime) -> None:
    session = await open_new_session(database)
    await cut_and_step_back(database, later)
    attached = await attach_one(database.store, session.session_id, lease=SECOND, idle=2 * SECOND)
    assert attached.session is not None
    assert attached.session.deadline_at == minute(10, 1)


async def lapsed(database: Database) -> Session:
    """A session that lapses at minute four. Its end is not recorded."""
    return await open_new_session(database, lease_microseconds=(minute(4) - NOON) // MICROSECOND)


async def test_cut_usage__prevents_heartbeat_of_session_that_lapsed_before_cut(
    database: Database, later: datetime
) -> None:
    """After a step back by days, the clock is before the deadline again, but the last cut is still after it."""
    session = await lapsed(database)
    await cut_and_step_back(database, later)
    kept = await heartbeat_one(database.store, session.session_id)
    assert (kept.found, (await read_session(database, session.session_id)).closed_at) == (Found.OVER, minute(4))


async def test_cut_usage__keeps_end_of_session_that_lapsed_before_cut(database: Database, later: datetime) -> None:
    session = await lapsed(database)
    await cut_and_step_back(database, later)
    await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    found = await read_session(database, session.session_id)
    assert (found.closed_at, found.close_reason) == (minute(4), CloseReason.LEASE_EXPIRED)


LAPSED = pytest.mark.parametrize("later", [minute(10), minute(7)])
"""Times at which the clock itself is past the deadline of the session. If the clock is stepped back before the
deadline, an engine need not record the end yet."""


@LAPSED
async def test_cut_usage__lets_sweep_record_session_that_lapsed_before_cut(database: Database, later: datetime) -> None:
    session = await lapsed(database)
    await cut_and_step_back(database, later)
    swept = await sweep_some(database.store, 9)
    assert [(one.session_id, one.ended_at) for one in swept.closed_sessions] == [(session.session_id, minute(4))]


@LAPSED
async def test_cut_usage__allows_new_session_of_key_whose_session_lapsed_before_cut(
    database: Database, later: datetime
) -> None:
    one = request(lease_microseconds=(minute(4) - NOON) // MICROSECOND)
    await open_one(database.store, one)
    await cut_and_step_back(database, later)
    answer = await open_one(database.store, same_key_request(one))
    assert answer.outcome is OpenOutcome.CREATED
    assert answer.session is not None
    assert answer.session.started_at == minute(10)
    assert (await read_session(database, one.session_id)).closed_at == minute(4)


async def test_cut_usage__window_is_unchanged_by_later_session_changes(database: Database, later: datetime) -> None:
    """Makes a heartbeat, an end, an upgrade and an eviction, each on its own live session, and a heartbeat and a sweep
    on a session that has lapsed.
    """
    kept, ended, upgraded, evicted = [request(lease_microseconds=60 * MINUTE) for _ in range(4)]
    for one in (kept, ended, upgraded, evicted):
        await open_one(database.store, one)
    over = await lapsed(database)
    window = await cut_one(database, minute(10))
    before = await intervals(database, window)
    await database.clock.set(later)
    await heartbeat_one(database.store, kept.session_id)
    await heartbeat_one(database.store, over.session_id)
    await end_one(database.store, ended.session_id, CloseReason.STOPPED)
    await open_one(database.store, same_key_request(upgraded, kind=3))
    await database.store.put_capacity(evicted.capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    await open_new_session(database, capacity_id=evicted.capacity_id)
    await sweep_some(database.store, 9)
    assert len(before) == 5
    assert await intervals(database, window) == before


async def test_cut_usage__cuts_daily_windows_after_300_days_without_cut(database: Database) -> None:
    """300 days have more windows than `limit`, so one call does not cut all of them."""
    now = NOON + timedelta(days=300)
    cuts = [(await cut(database, now, limit=128, interval=DAY)).windows for _ in range(4)]
    assert cuts == [128, 128, 44, 0]
