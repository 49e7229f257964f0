"""Heartbeats, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Found, Heartbeat, HeartbeatResult, State
from tenure.store.limits import BATCH_MAX
from tests.support.databases import Database
from tests.support.open_requests import NOON, SECOND, end_one, ending, some_id
from tests.support.session_calls import heartbeat_one
from tests.support.sessions import open_new_session, read_session

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)


async def test_heartbeat__renews_lease_but_not_idle_limit(database: Database) -> None:
    one = await open_new_session(
        database, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=300 * SECOND
    )
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    kept = await heartbeat_one(database.store, one.session_id)
    assert kept == HeartbeatResult(Found.LIVE, State.CREATED, now + 60 * SECONDS, 5 * SECOND)
    after = await read_session(database, one.session_id)
    assert (after.last_heartbeat_at, after.last_activity_at, after.modified_at) == (now, NOON, now)
    assert (after.state, after.deadline_at, after.lapse_reason) == ("created", now + 60 * SECONDS, "LEASE_EXPIRED")


async def test_heartbeat__renews_idle_limit_when_client_is_active(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=60 * SECOND, idle_microseconds=20 * SECOND)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    kept = await heartbeat_one(database.store, one.session_id, active=True)
    assert (kept.state, kept.deadline_at) == (State.ACTIVE, now + 20 * SECONDS)
    after = await read_session(database, one.session_id)
    assert (after.last_activity_at, after.state, after.lapse_reason) == (now, "active", "IDLE_TIMEOUT")


async def test_heartbeat__keeps_active_session_active_without_activity(database: Database) -> None:
    one = await open_new_session(database)
    await heartbeat_one(database.store, one.session_id, active=True)
    assert (await heartbeat_one(database.store, one.session_id)).state == State.ACTIVE


async def test_heartbeat__does_not_move_deadline_of_session_without_lease(database: Database) -> None:
    one = await open_new_session(database)
    await database.clock.set(NOON + 7 * SECONDS)
    kept = await heartbeat_one(database.store, one.session_id, active=True)
    assert (kept.deadline_at, kept.heartbeat_microseconds) == (one.deadline_at, None)


@pytest.mark.parametrize(
    ("lease", "idle", "reason"),
    [(50, 40, "IDLE_TIMEOUT"), (40, 40, "LEASE_EXPIRED"), (40, 50, "LEASE_EXPIRED"), (None, 40, "IDLE_TIMEOUT")],
)
async def test_heartbeat__updates_lapse_reason_to_earliest_limit(
    database: Database, lease: int | None, idle: int, reason: str
) -> None:
    one = await open_new_session(
        database, lease_microseconds=lease and lease * SECOND, idle_microseconds=idle * SECOND, heartbeat_microseconds=1
    )
    await database.clock.set(NOON + 3 * SECONDS)
    await heartbeat_one(database.store, one.session_id, active=True)
    after = await read_session(database, one.session_id)
    assert (after.lapse_reason, after.deadline_at) == (reason, NOON + 43 * SECONDS)


async def test_heartbeat__never_extends_deadline_beyond_term(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=86_400 * SECOND)
    now = NOON
    while now < one.term_ends_at - timedelta(hours=20):
        now += timedelta(hours=20)
        await database.clock.set(now)
        kept = await heartbeat_one(database.store, one.session_id)
    after = await read_session(database, one.session_id)
    assert (kept.deadline_at, after.lapse_reason) == (one.term_ends_at, "EXPIRED")


async def test_heartbeat__succeeds_one_microsecond_before_deadline(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 10 * SECONDS - timedelta(microseconds=1))
    assert (await heartbeat_one(database.store, one.session_id)).found is Found.LIVE


async def test_heartbeat__records_lapse_and_does_not_revive_session(database: Database) -> None:
    one = await open_new_session(
        database, lease_microseconds=10 * SECOND, idle_microseconds=12 * SECOND, heartbeat_microseconds=2 * SECOND
    )
    await database.clock.set(NOON + 10 * SECONDS)
    kept = await heartbeat_one(database.store, one.session_id, active=True)
    deadline = NOON + 10 * SECONDS
    closing = ending(one, "LEASE_EXPIRED", deadline)
    assert kept == HeartbeatResult(Found.OVER, State.CLOSED, deadline, 2 * SECOND, "LEASE_EXPIRED", closing)
    await database.clock.set(NOON)  # a recorded end no longer depends on the clock
    after = await read_session(database, one.session_id)
    assert (after.state, after.closed_at, after.close_reason) == ("closed", deadline, "LEASE_EXPIRED")
    assert (after.last_heartbeat_at, after.last_activity_at, after.modified_at) == (NOON, NOON, deadline)


async def test_heartbeat__does_not_change_ended_session(database: Database) -> None:
    one = await open_new_session(database)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    before = await read_session(database, one.session_id)
    await database.clock.set(NOON + 9 * SECONDS)
    kept = await heartbeat_one(database.store, one.session_id, active=True)
    assert (kept.found, kept.close_reason, kept.closed_session) == (Found.OVER, "TERMINATED", None)
    assert await read_session(database, one.session_id) == before


async def test_heartbeat__does_not_move_timestamps_back_after_clock_step_back(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=60 * SECOND, idle_microseconds=70 * SECOND)
    await database.clock.set(NOON + 30 * SECONDS)
    await heartbeat_one(database.store, one.session_id, active=True)
    before = await read_session(database, one.session_id)
    await database.clock.set(NOON + 10 * SECONDS)
    await heartbeat_one(database.store, one.session_id, active=True)
    assert await read_session(database, one.session_id) == before


async def test_heartbeat__returns_unknown_for_unknown_session(database: Database) -> None:
    assert await heartbeat_one(database.store, some_id()) == HeartbeatResult(Found.UNKNOWN)


async def test_heartbeat__returns_results_in_request_order_for_mixed_batch(database: Database) -> None:
    live, ended, lapsed = (
        await open_new_session(database),
        await open_new_session(database),
        await open_new_session(database, lease_microseconds=1),
    )
    await end_one(database.store, ended.session_id, CloseReason.STOPPED)
    await database.clock.set(NOON + SECONDS)
    session_ids = [lapsed.session_id, some_id(), live.session_id, ended.session_id]
    results = await database.store.heartbeat(
        [Heartbeat(session_id, session_id == session_ids[2], EVERYTHING) for session_id in session_ids]
    )
    assert [(kept.found, kept.close_reason) for kept in results] == [
        (Found.OVER, "LEASE_EXPIRED"),
        (Found.UNKNOWN, None),
        (Found.LIVE, None),
        (Found.OVER, "STOPPED"),
    ]
    assert results[2].state == State.ACTIVE


async def test_heartbeat__renews_each_session_of_a_batch_by_its_own_limits(database: Database) -> None:
    leases = [60, 60, 30, 90, 60, 30]
    ids = [
        (
            await open_new_session(
                database, lease_microseconds=lease * SECOND, heartbeat_microseconds=(number % 2 + 1) * SECOND
            )
        ).session_id
        for number, lease in enumerate(leases)
    ]
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    order = [*ids[::2], *ids[1::2]]
    active = {ids[0], ids[5]}
    results = await database.store.heartbeat([Heartbeat(each, each in active, EVERYTHING) for each in order])
    found = dict(zip(order, results, strict=True))
    for number, (session_id, lease) in enumerate(zip(ids, leases, strict=True)):
        state = State.ACTIVE if session_id in active else State.CREATED
        expected = HeartbeatResult(Found.LIVE, state, now + lease * SECONDS, (number % 2 + 1) * SECOND)
        assert found[session_id] == expected
        after = await read_session(database, session_id)
        assert (after.state, after.deadline_at) == (state, now + lease * SECONDS)
        assert after.last_activity_at == (now if session_id in active else NOON)


async def test_heartbeat__accepts_full_batch(database: Database) -> None:
    sessions = [
        await open_new_session(database, lease_microseconds=(30 + number) * SECOND) for number in range(BATCH_MAX)
    ]
    now = NOON + 5 * SECONDS
    await database.clock.set(now)
    results = await database.store.heartbeat([Heartbeat(one.session_id, False, EVERYTHING) for one in sessions])
    assert [kept.deadline_at for kept in results] == [now + (30 + number) * SECONDS for number in range(BATCH_MAX)]


async def test_heartbeat__does_not_change_check_at(database: Database) -> None:
    """The sweep updates `check_at`, about once per duration of the lease, so that heartbeats do not write the index of
    this column.
    """
    one = await open_new_session(database, lease_microseconds=10 * SECOND)
    (before,) = await database.rows("SELECT check_at FROM sessions")
    await database.clock.set(NOON + 5 * SECONDS)
    await heartbeat_one(database.store, one.session_id)
    (after,) = await database.rows("SELECT check_at FROM sessions")
    assert after == before
