"""Heartbeats, on every engine."""

from datetime import timedelta

import pytest

from tenure.model.sessions import CloseReason, Closing, Found, Heartbeat, Kept, State
from tenure.store.store import BATCH_MAX
from tests.support.databases import Database
from tests.support.keeping import keep_one
from tests.support.sessions import opened, recorded
from tests.support.wishes import NOON, SECOND, end_one, some_id

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)


async def test_heartbeat__renews_the_lease_and_not_the_idle_limit(database: Database) -> None:
    one = await opened(
        database, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=300 * SECOND
    )
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    kept = await keep_one(database.store, one.session_id)
    assert kept == Kept(Found.LIVE, State.CREATED, now + 60 * SECONDS, 5 * SECOND)
    after = await recorded(database, one.session_id)
    assert (after.last_heartbeat_at, after.last_activity_at, after.modified_at) == (now, NOON, now)
    assert (after.state, after.deadline_at, after.lapse_reason) == ("created", now + 60 * SECONDS, "LEASE_EXPIRED")


async def test_heartbeat__of_an_active_client_renews_the_idle_limit_too(database: Database) -> None:
    one = await opened(database, lease_microseconds=60 * SECOND, idle_microseconds=20 * SECOND)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    kept = await keep_one(database.store, one.session_id, active=True)
    assert (kept.state, kept.deadline_at) == (State.ACTIVE, now + 20 * SECONDS)
    after = await recorded(database, one.session_id)
    assert (after.last_activity_at, after.state, after.lapse_reason) == (now, "active", "IDLE_TIMEOUT")


async def test_heartbeat__without_activity_leaves_an_active_session_active(database: Database) -> None:
    one = await opened(database)
    await keep_one(database.store, one.session_id, active=True)
    assert (await keep_one(database.store, one.session_id)).state == State.ACTIVE


async def test_heartbeat__without_a_lease_moves_no_deadline(database: Database) -> None:
    one = await opened(database)
    await database.clock.set(NOON + 7 * SECONDS)
    kept = await keep_one(database.store, one.session_id, active=True)
    assert (kept.deadline_at, kept.heartbeat_microseconds) == (one.deadline_at, None)


@pytest.mark.parametrize(
    ("lease", "idle", "reason"),
    [(50, 40, "IDLE_TIMEOUT"), (40, 40, "LEASE_EXPIRED"), (40, 50, "LEASE_EXPIRED"), (None, 40, "IDLE_TIMEOUT")],
)
async def test_heartbeat__names_the_limit_that_comes_first_now(
    database: Database, lease: int | None, idle: int, reason: str
) -> None:
    one = await opened(
        database, lease_microseconds=lease and lease * SECOND, idle_microseconds=idle * SECOND, heartbeat_microseconds=1
    )
    await database.clock.set(NOON + 3 * SECONDS)
    await keep_one(database.store, one.session_id, active=True)
    after = await recorded(database, one.session_id)
    assert (after.lapse_reason, after.deadline_at) == (reason, NOON + 43 * SECONDS)


async def test_heartbeat__never_reaches_beyond_the_term(database: Database) -> None:
    one = await opened(database, lease_microseconds=86_400 * SECOND)
    now = NOON
    while now < one.term_ends_at - timedelta(hours=20):
        now += timedelta(hours=20)
        await database.clock.set(now)
        kept = await keep_one(database.store, one.session_id)
    after = await recorded(database, one.session_id)
    assert (kept.deadline_at, after.lapse_reason) == (one.term_ends_at, "EXPIRED")


async def test_heartbeat__is_in_time_a_microsecond_before_the_deadline(database: Database) -> None:
    one = await opened(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 10 * SECONDS - timedelta(microseconds=1))
    assert (await keep_one(database.store, one.session_id)).found is Found.LIVE


async def test_heartbeat__records_a_lapse_and_revives_nothing(database: Database) -> None:
    one = await opened(
        database, lease_microseconds=10 * SECOND, idle_microseconds=12 * SECOND, heartbeat_microseconds=2 * SECOND
    )
    await database.clock.set(NOON + 10 * SECONDS)
    kept = await keep_one(database.store, one.session_id, active=True)
    deadline = NOON + 10 * SECONDS
    closing = Closing(one.session_id, "LEASE_EXPIRED", deadline)
    assert kept == Kept(Found.OVER, State.CLOSED, deadline, 2 * SECOND, "LEASE_EXPIRED", closing)
    await database.clock.set(NOON)  # what is recorded does not depend on the clock any more
    after = await recorded(database, one.session_id)
    assert (after.state, after.closed_at, after.close_reason) == ("closed", deadline, "LEASE_EXPIRED")
    assert (after.last_heartbeat_at, after.last_activity_at, after.modified_at) == (NOON, NOON, deadline)


async def test_heartbeat__of_a_session_that_is_over_changes_nothing(database: Database) -> None:
    one = await opened(database)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    before = await recorded(database, one.session_id)
    await database.clock.set(NOON + 9 * SECONDS)
    kept = await keep_one(database.store, one.session_id, active=True)
    assert (kept.found, kept.close_reason, kept.closing) == (Found.OVER, "TERMINATED", None)
    assert await recorded(database, one.session_id) == before


async def test_heartbeat__by_a_clock_that_was_stepped_back_shortens_nothing(database: Database) -> None:
    one = await opened(database, lease_microseconds=60 * SECOND, idle_microseconds=70 * SECOND)
    await database.clock.set(NOON + 30 * SECONDS)
    await keep_one(database.store, one.session_id, active=True)
    before = await recorded(database, one.session_id)
    await database.clock.set(NOON + 10 * SECONDS)
    await keep_one(database.store, one.session_id, active=True)
    assert await recorded(database, one.session_id) == before


async def test_heartbeat__knows_no_unknown_one(database: Database) -> None:
    assert await keep_one(database.store, some_id()) == Kept(Found.UNKNOWN)


async def test_heartbeat__answers_a_mixed_batch_in_its_order(database: Database) -> None:
    live, ended, lapsed = await opened(database), await opened(database), await opened(database, lease_microseconds=1)
    await end_one(database.store, ended.session_id, CloseReason.STOPPED)
    await database.clock.set(NOON + SECONDS)
    asked = [lapsed.session_id, some_id(), live.session_id, ended.session_id]
    answers = await database.store.heartbeat([Heartbeat(session_id, session_id == asked[2]) for session_id in asked])
    assert [(kept.found, kept.close_reason) for kept in answers] == [
        (Found.OVER, "LEASE_EXPIRED"),
        (Found.UNKNOWN, None),
        (Found.LIVE, None),
        (Found.OVER, "STOPPED"),
    ]
    assert answers[2].state == State.ACTIVE


async def test_heartbeat__takes_a_full_batch(database: Database) -> None:
    sessions = [await opened(database, lease_microseconds=(30 + number) * SECOND) for number in range(BATCH_MAX)]
    now = NOON + 5 * SECONDS
    await database.clock.set(now)
    answers = await database.store.heartbeat([Heartbeat(one.session_id, False) for one in sessions])
    assert [kept.deadline_at for kept in answers] == [now + (30 + number) * SECONDS for number in range(BATCH_MAX)]


async def test_heartbeat__leaves_check_at_where_it_is(database: Database) -> None:
    """One index write per lease, not per heartbeat."""
    one = await opened(database, lease_microseconds=10 * SECOND)
    (before,) = await database.rows("SELECT check_at FROM sessions")
    await database.clock.set(NOON + 5 * SECONDS)
    await keep_one(database.store, one.session_id)
    (after,) = await database.rows("SELECT check_at FROM sessions")
    assert after == before
