"""The sweep, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Session, SweepResult
from tests.support.databases import Database
from tests.support.leases import sweep_some
from tests.support.open_requests import NOON, SECOND, end_one, ending
from tests.support.session_calls import COUNTERS, attach_one, heartbeat_one, update_one
from tests.support.sessions import open_new_session

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
ALL = 500


async def recorded(database: Database, session_id: str) -> Session:
    """Returns the session as its row is stored. Sets the clock to NOON, because a read after the deadline returns a
    lapsed session as closed, even if its end is not recorded.
    """
    await database.clock.set(NOON)
    session = await database.store.get_session(session_id, EVERYTHING)
    assert session is not None
    return session


@pytest.mark.parametrize(
    ("limits", "reason", "ends_after"),
    [
        ({"lease_microseconds": 10 * SECOND, "idle_microseconds": 20 * SECOND}, "LEASE_EXPIRED", timedelta(seconds=10)),
        ({"lease_microseconds": 30 * SECOND, "idle_microseconds": 20 * SECOND}, "IDLE_TIMEOUT", timedelta(seconds=20)),
        ({}, "EXPIRED", timedelta(days=30)),
    ],
)
async def test_expire_sessions__records_deadline_as_end(
    database: Database, limits: dict[str, int], reason: str, ends_after: timedelta
) -> None:
    one = await open_new_session(database, **limits)
    await database.clock.set(NOON + timedelta(days=31))
    swept = await sweep_some(database.store, ALL)
    assert swept == SweepResult([ending(one, reason, NOON + ends_after)], 1)
    after = await recorded(database, one.session_id)
    assert (after.state, after.close_reason) == ("closed", reason)
    assert after.closed_at == after.modified_at == after.deadline_at == NOON + ends_after


async def test_expire_sessions__does_not_change_how_lapsed_session_reads(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 15 * SECONDS)
    before = await database.store.get_session(one.session_id, EVERYTHING)
    await sweep_some(database.store, ALL)
    assert await database.store.get_session(one.session_id, EVERYTHING) == before


async def test_expire_sessions__skips_live_sessions(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 10 * SECONDS - timedelta(microseconds=1))
    assert await sweep_some(database.store, ALL) == SweepResult([], 0)
    assert (await recorded(database, one.session_id)).closed_at is None


async def test_expire_sessions__checks_renewed_session_once_per_lease(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 9 * SECONDS)
    await heartbeat_one(database.store, one.session_id)
    await database.clock.set(NOON + 11 * SECONDS)
    assert await sweep_some(database.store, ALL) == SweepResult([], 1)
    assert await sweep_some(database.store, ALL) == SweepResult([], 0)
    await database.clock.set(NOON + 19 * SECONDS)
    swept = await sweep_some(database.store, ALL)
    assert swept == SweepResult([ending(one, "LEASE_EXPIRED", NOON + 19 * SECONDS)], 1)


async def test_expire_sessions__records_each_lapse_once(database: Database) -> None:
    await open_new_session(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 60 * SECONDS)
    assert len((await sweep_some(database.store, ALL)).closed_sessions) == 1
    assert await sweep_some(database.store, ALL) == SweepResult([], 0)


async def test_expire_sessions__skips_ended_sessions(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=10 * SECOND)
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    await database.clock.set(NOON + 60 * SECONDS)
    assert await sweep_some(database.store, ALL) == SweepResult([], 0)
    assert (await recorded(database, one.session_id)).close_reason == CloseReason.STOPPED


async def test_expire_sessions__expires_longest_overdue_sessions_up_to_limit(database: Database) -> None:
    leases = [30, 10, 20]
    ids = {lease: (await open_new_session(database, lease_microseconds=lease * SECOND)).session_id for lease in leases}
    await database.clock.set(NOON + 60 * SECONDS)
    first, second = await sweep_some(database.store, 2), await sweep_some(database.store, 2)
    assert {closing.session_id for closing in first.closed_sessions} == {ids[10], ids[20]}
    assert ([closing.session_id for closing in second.closed_sessions], second.looked_at) == ([ids[30]], 1)


async def test_expire_sessions__closes_session_left_closing_by_dead_instance(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=10 * SECOND, idle_microseconds=20 * SECOND)
    await attach_one(database.store, one.session_id)
    await database.clock.set(NOON + 3 * SECONDS)
    ended = await update_one(database.store, one.session_id, end="FAILED", counted=COUNTERS)
    assert ended.session is not None
    assert ended.session.state == "closing"
    await database.clock.set(NOON + 10 * SECONDS)
    assert await sweep_some(database.store, ALL) == SweepResult([], 1)
    after = await recorded(database, one.session_id)
    assert (after.state, after.close_reason, after.closed_at) == ("closed", "FAILED", NOON + 3 * SECONDS)
    assert (after.modified_at, after.stream) == (NOON + 3 * SECONDS, COUNTERS)


async def test_expire_sessions__does_not_report_end_already_recorded_by_stream(database: Database) -> None:
    """The stream that recorded the end has already reported it. The sweep must not report it again, even if the close
    reason is one that a lapse also has.
    """
    one = await open_new_session(database, lease_microseconds=20 * SECOND, idle_microseconds=10 * SECOND)
    await attach_one(database.store, one.session_id)
    await database.clock.set(NOON + 3 * SECONDS)
    await update_one(database.store, one.session_id, end="IDLE_TIMEOUT")
    await database.clock.set(NOON + 30 * SECONDS)
    assert await sweep_some(database.store, ALL) == SweepResult([], 1)
