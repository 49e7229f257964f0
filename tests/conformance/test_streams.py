"""Streams of sessions, on every engine."""

import asyncio
from datetime import datetime, timedelta
from typing import Self

import pytest

from tenure.clock import from_microseconds
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Found, OpenOutcome, Session, State, StreamCounters
from tenure.domain.streams import AttachResult, StreamUpdateResult
from tenure.store.limits import BATCH_MAX, SWEEP_MAX
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import sweep_some
from tests.support.open_requests import NOON, SECOND, end_one, ending, open_one, request, same_key_request, some_id
from tests.support.session_calls import (
    COUNTERS,
    NO_COUNTERS,
    attach_one,
    attach_to,
    evicting_seats,
    heartbeat_one,
    stream_update,
    update_one,
)
from tests.support.sessions import open_new_session, read_session

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


async def streaming(database: Database, **given: object) -> Session:
    """Opens a session, attaches its first stream, and returns the session."""
    attached = await attach_one(database.store, (await open_new_session(database, **given)).session_id)
    assert attached.session is not None
    return attached.session


async def checked_at(database: Database) -> datetime | None:
    (row,) = await database.rows("SELECT check_at FROM sessions")
    value = row["check_at"]
    return from_microseconds(value) if isinstance(value, int) else value


# Attaching


async def test_attach_streams__sets_lease_and_idle_limit_on_session_without_limits(database: Database) -> None:
    one = await open_new_session(database)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    result = await attach_one(database.store, one.session_id)
    session = result.session
    assert session is not None
    assert result == AttachResult(Found.LIVE, session, 1, now)
    assert session == await read_session(database, one.session_id)
    assert (session.lease_microseconds, session.heartbeat_microseconds, session.idle_microseconds) == (
        60 * SECOND,
        5 * SECOND,
        300 * SECOND,
    )
    assert (session.deadline_at, session.lapse_reason) == (now + 60 * SECONDS, "LEASE_EXPIRED")
    assert (session.last_heartbeat_at, session.last_activity_at, session.modified_at) == (now, now, now)
    assert (session.state, session.stream) == ("created", NO_COUNTERS)


async def test_attach_streams__keeps_existing_lease_and_idle_limit(database: Database) -> None:
    one = await open_new_session(
        database, lease_microseconds=40 * SECOND, heartbeat_microseconds=3 * SECOND, idle_microseconds=50 * SECOND
    )
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    await attach_one(database.store, one.session_id)
    session = await read_session(database, one.session_id)
    assert (session.lease_microseconds, session.heartbeat_microseconds, session.idle_microseconds) == (
        40 * SECOND,
        3 * SECOND,
        50 * SECOND,
    )
    assert (session.last_heartbeat_at, session.last_activity_at) == (now, NOON)
    assert session.deadline_at == now + 40 * SECONDS


async def test_attach_streams__adds_only_the_missing_limit(database: Database) -> None:
    one = await open_new_session(database, idle_microseconds=50 * SECOND)
    await database.clock.set(NOON + 7 * SECONDS)
    await attach_one(database.store, one.session_id)
    session = await read_session(database, one.session_id)
    assert (session.lease_microseconds, session.idle_microseconds) == (60 * SECOND, 50 * SECOND)
    assert (session.deadline_at, session.lapse_reason) == (NOON + 50 * SECONDS, "IDLE_TIMEOUT")


async def test_attach_streams__moves_check_at_to_earlier_deadline(database: Database) -> None:
    one = await open_new_session(database)
    await attach_one(database.store, one.session_id)
    assert await checked_at(database) == NOON + 60 * SECONDS


async def test_attach_streams__does_not_postpone_check_at(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 5 * SECONDS)
    await attach_one(database.store, one.session_id)
    assert await checked_at(database) == NOON + 10 * SECONDS


async def test_attach_streams__numbers_streams_from_one(database: Database) -> None:
    one = await open_new_session(database)
    results = [await attach_one(database.store, one.session_id) for _ in range(3)]
    assert [result.attachment for result in results] == [1, 2, 3]


async def test_attach_streams__continues_counters_of_previous_stream(database: Database) -> None:
    one = await streaming(database)
    await update_one(database.store, one.session_id, counted=COUNTERS)
    result = await attach_one(database.store, one.session_id)
    assert result.session is not None
    assert result.session.stream == COUNTERS


async def test_attach_streams__records_lapse_at_deadline(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=10 * SECOND)
    now = NOON + 12 * SECONDS
    await database.clock.set(now)
    result = await attach_one(database.store, one.session_id)
    over = await read_session(database, one.session_id)
    closing = ending(one, "LEASE_EXPIRED", NOON + 10 * SECONDS)
    assert result == AttachResult(Found.OVER, over, 0, now, closing)
    await database.clock.set(NOON)
    assert (await read_session(database, one.session_id)).closed_at == NOON + 10 * SECONDS


async def test_attach_streams__returns_over_for_ended_session(database: Database) -> None:
    one = await open_new_session(database)
    ended = await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert await attach_one(database.store, one.session_id) == AttachResult(Found.OVER, ended.session, 0, NOON)


async def test_attach_streams__returns_unknown_for_unknown_session(database: Database) -> None:
    assert await attach_one(database.store, some_id()) == AttachResult(Found.UNKNOWN)


async def test_attach_streams__returns_results_in_request_order_for_mixed_batch(database: Database) -> None:
    live, lapsed, limited = (
        await open_new_session(database),
        await open_new_session(database, lease_microseconds=SECOND),
        await open_new_session(database, lease_microseconds=30 * SECOND),
    )
    await database.clock.set(NOON + 2 * SECONDS)
    requests = [
        attach_to(lapsed.session_id),
        attach_to(some_id()),
        attach_to(limited.session_id),
        attach_to(live.session_id, lease=9),
    ]
    results = await database.store.attach_streams(requests)
    assert [result.found for result in results] == [Found.OVER, Found.UNKNOWN, Found.LIVE, Found.LIVE]
    assert [result.session and result.session.lease_microseconds for result in results[2:]] == [30 * SECOND, 9]


async def test_open_sessions__returns_stream_counters_of_existing_session(database: Database) -> None:
    """The result contains the session exactly as `get_session` returns it."""
    one = request()
    await open_one(database.store, one)
    await attach_one(database.store, one.session_id)
    await update_one(database.store, one.session_id, counted=COUNTERS)
    result = await open_one(database.store, same_key_request(one))
    assert result.outcome is OpenOutcome.EXISTING
    assert result.session == await read_session(database, one.session_id)


# Keeping alive


async def test_update_streams__renews_lease_and_adds_counters(database: Database) -> None:
    one = await streaming(database)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    result = await update_one(database.store, one.session_id, counted=COUNTERS)
    session = result.session
    assert result == StreamUpdateResult(Found.LIVE, session, now, counted=True)
    assert session == await read_session(database, one.session_id)
    assert (session.last_heartbeat_at, session.last_activity_at, session.modified_at) == (now, NOON, now)
    assert (session.state, session.deadline_at, session.stream) == ("created", now + 60 * SECONDS, COUNTERS)


async def test_update_streams__renews_idle_limit_when_stream_is_active(database: Database) -> None:
    one = await streaming(database, idle_microseconds=20 * SECOND)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    await update_one(database.store, one.session_id, active=True)
    session = await read_session(database, one.session_id)
    assert (session.state, session.last_activity_at) == ("active", now)
    assert (session.deadline_at, session.lapse_reason) == (now + 20 * SECONDS, "IDLE_TIMEOUT")


async def test_update_streams__adds_counters_of_each_save(database: Database) -> None:
    one = await streaming(database)
    for save in (1, 2):
        await update_one(database.store, one.session_id, save=save, counted=COUNTERS)
    session = await read_session(database, one.session_id)
    assert session.stream == StreamCounters(2_002, 24, 206, 108, 410, 12, 614)


async def test_update_streams__counts_repeated_save_once(database: Database) -> None:
    one = await streaming(database)
    for _ in range(2):
        result = await update_one(database.store, one.session_id, counted=COUNTERS)
    assert (result.found, result.session and result.session.stream) == (Found.LIVE, COUNTERS)


async def test_update_streams__counts_first_save_of_newer_stream(database: Database) -> None:
    one = await streaming(database)
    await update_one(database.store, one.session_id, save=5, counted=COUNTERS)
    await attach_one(database.store, one.session_id)
    result = await update_one(database.store, one.session_id, attachment=2, save=1, counted=COUNTERS)
    assert result.session is not None
    assert result.session.stream == StreamCounters(2_002, 24, 206, 108, 410, 12, 614)


async def test_update_streams__adds_counters_of_replaced_stream_without_renewing(database: Database) -> None:
    one = await streaming(database)
    second = await attach_one(database.store, one.session_id)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    result = await update_one(database.store, one.session_id, active=True, counted=COUNTERS)
    session = await read_session(database, one.session_id)
    assert result == StreamUpdateResult(Found.REPLACED, session, now, counted=True)
    assert second.session is not None
    assert (session.deadline_at, session.last_activity_at, session.state) == (
        second.session.deadline_at,
        NOON,
        "created",
    )
    assert session.stream == COUNTERS


async def test_update_streams__does_not_end_session_of_replaced_stream(database: Database) -> None:
    one = await streaming(database)
    await attach_one(database.store, one.session_id)
    result = await update_one(database.store, one.session_id, end="DISCONNECTED", finished=True)
    assert (result.found, result.recorded) == (Found.REPLACED, False)
    assert (await read_session(database, one.session_id)).is_active


async def test_update_streams__counts_repeated_save_of_replaced_stream_once(database: Database) -> None:
    one = await streaming(database)
    await attach_one(database.store, one.session_id)
    for _ in range(2):
        result = await update_one(database.store, one.session_id, counted=COUNTERS)
    assert result.session is not None
    assert result.session.stream == COUNTERS


async def test_update_streams__does_not_move_timestamps_back_after_clock_step_back(database: Database) -> None:
    one = await streaming(database)
    await database.clock.set(NOON + 30 * SECONDS)
    await update_one(database.store, one.session_id, active=True)
    before = await read_session(database, one.session_id)
    await database.clock.set(NOON + 10 * SECONDS)
    await update_one(database.store, one.session_id, save=2, active=True)
    assert await read_session(database, one.session_id) == before


# Ending


async def test_update_streams__records_end_and_leaves_session_closing(database: Database) -> None:
    one = await streaming(database)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    result = await update_one(database.store, one.session_id, active=True, end="STOPPED", counted=COUNTERS)
    session = result.session
    assert result == StreamUpdateResult(Found.OVER, session, now, recorded=True, counted=True)
    assert session == await read_session(database, one.session_id)
    assert (session.state, session.closed_at, session.close_reason) == (State.CLOSING, now, "STOPPED")
    assert (session.last_activity_at, session.last_heartbeat_at, session.modified_at) == (now, NOON, now)
    assert (session.stream, session.deadline_at) == (COUNTERS, one.deadline_at)


async def test_update_streams__closes_closing_session_when_finished(database: Database) -> None:
    one = await streaming(database)
    await database.clock.set(NOON + 7 * SECONDS)
    await update_one(database.store, one.session_id, end="STOPPED")
    await database.clock.set(NOON + 9 * SECONDS)
    result = await update_one(database.store, one.session_id, save=2, end="STOPPED", finished=True, counted=COUNTERS)
    session = await read_session(database, one.session_id)
    assert result == StreamUpdateResult(Found.OVER, session, NOON + 9 * SECONDS, counted=True)
    assert (session.state, session.closed_at, session.close_reason) == ("closed", NOON + 7 * SECONDS, "STOPPED")
    assert (session.stream, await checked_at(database)) == (COUNTERS, None)


async def test_update_streams__ends_and_closes_session_in_one_update(database: Database) -> None:
    one = await streaming(database)
    await database.clock.set(NOON + 7 * SECONDS)
    result = await update_one(database.store, one.session_id, end="DISCONNECTED", finished=True)
    assert result.recorded
    session = await read_session(database, one.session_id)
    assert (session.state, session.close_reason, session.closed_at) == ("closed", "DISCONNECTED", NOON + 7 * SECONDS)
    assert await checked_at(database) is None


async def test_update_streams__frees_key_when_end_is_recorded(database: Database) -> None:
    one = request()
    await open_one(database.store, one)
    await attach_one(database.store, one.session_id)
    await database.clock.set(NOON + 7 * SECONDS)
    await update_one(database.store, one.session_id, end="STOPPED")
    assert (await open_one(database.store, same_key_request(one))).outcome is OpenOutcome.CREATED


async def test_update_streams__end_at_start_instant_is_recorded_one_microsecond_later(database: Database) -> None:
    one = await streaming(database)
    result = await update_one(database.store, one.session_id, end="STOPPED")
    assert result.session is not None
    assert result.session.closed_at == NOON + MICROSECOND


async def test_update_streams__records_lapse_instead_of_end_from_stream(database: Database) -> None:
    one = await streaming(database, lease_microseconds=10 * SECOND)
    now = NOON + 12 * SECONDS
    await database.clock.set(now)
    result = await update_one(database.store, one.session_id, active=True, end="STOPPED", counted=COUNTERS)
    session = await read_session(database, one.session_id)
    assert result == StreamUpdateResult(Found.OVER, session, now, recorded=True, counted=True)
    assert (session.state, session.close_reason, session.closed_at) == ("closed", "LEASE_EXPIRED", NOON + 10 * SECONDS)
    assert (session.stream, session.last_activity_at) == (COUNTERS, NOON)
    assert await checked_at(database) is None


@pytest.mark.parametrize("end", [None, "STOPPED"])
async def test_update_streams__keeps_end_recorded_by_another_caller(database: Database, end: str | None) -> None:
    one = await streaming(database)
    await database.clock.set(NOON + 7 * SECONDS)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    result = await update_one(database.store, one.session_id, end=end, finished=True, counted=COUNTERS)
    session = await read_session(database, one.session_id)
    assert result == StreamUpdateResult(Found.OVER, session, NOON + 7 * SECONDS, counted=True)
    assert (session.state, session.close_reason, session.closed_at) == ("closed", "TERMINATED", NOON + 7 * SECONDS)
    assert session.stream == COUNTERS


@pytest.mark.parametrize("by", ["request", "lapse"])
async def test_update_streams__adds_nothing_from_keep_alive_after_the_end(database: Database, by: str) -> None:
    """The stream did not know that the session had ended, and may have counted messages that arrived after the end."""
    one = await streaming(database, lease_microseconds=10 * SECOND)
    await update_one(database.store, one.session_id, counted=COUNTERS)
    if by == "request":
        await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    else:
        await database.clock.set(NOON + 12 * SECONDS)
    result = await update_one(database.store, one.session_id, save=2, active=True, counted=COUNTERS)
    assert (result.found, result.counted, result.session and result.session.stream) == (Found.OVER, False, COUNTERS)
    assert (await read_session(database, one.session_id)).stream == COUNTERS


async def test_update_streams__adds_last_save_after_refused_keep_alive_once(database: Database) -> None:
    one = await streaming(database)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    assert not (await update_one(database.store, one.session_id, counted=COUNTERS)).counted
    for _ in range(2):
        result = await update_one(database.store, one.session_id, save=2, finished=True, counted=COUNTERS)
        assert (result.found, result.counted) == (Found.OVER, True)
    assert (await read_session(database, one.session_id)).stream == COUNTERS


async def test_update_streams__returns_counted_for_repeated_keep_alive_that_was_added_before_the_end(
    database: Database,
) -> None:
    """The first answer was lost. If the repeated call returned `counted=False`, the stream would send the same counts
    again in its last save, and the database would add them twice.
    """
    one = await streaming(database)
    await update_one(database.store, one.session_id, counted=COUNTERS)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    result = await update_one(database.store, one.session_id, counted=COUNTERS)
    assert (result.found, result.counted, result.session and result.session.stream) == (Found.OVER, True, COUNTERS)


@pytest.mark.parametrize(("finished", "counted"), [(False, False), (True, True)])
async def test_update_streams__adds_only_last_save_of_replaced_stream_after_the_end(
    database: Database, finished: bool, counted: bool
) -> None:
    one = await streaming(database)
    await attach_one(database.store, one.session_id)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    result = await update_one(database.store, one.session_id, finished=finished, counted=COUNTERS)
    assert (result.found, result.counted) == (Found.OVER, counted)
    assert (await read_session(database, one.session_id)).stream == (COUNTERS if counted else NO_COUNTERS)


async def test_update_streams__changes_nothing_when_final_update_is_repeated(database: Database) -> None:
    one = await streaming(database)
    values = {"end": "STOPPED", "finished": True, "counted": COUNTERS}
    await update_one(database.store, one.session_id, **values)
    before = await read_session(database, one.session_id)
    result = await update_one(database.store, one.session_id, **values)
    assert (result.found, result.recorded) == (Found.OVER, False)
    assert await read_session(database, one.session_id) == before


async def test_update_streams__prevents_heartbeat_from_renewing_closing_session(database: Database) -> None:
    one = await streaming(database)
    await update_one(database.store, one.session_id, end="FAILED")
    before = await read_session(database, one.session_id)
    kept = await heartbeat_one(database.store, one.session_id, active=True)
    assert (kept.found, kept.close_reason) == (Found.OVER, "FAILED")
    assert await read_session(database, one.session_id) == before


async def test_update_streams__returns_unknown_for_unknown_session(database: Database) -> None:
    assert await update_one(database.store, some_id()) == StreamUpdateResult(Found.UNKNOWN)


async def test_update_streams__returns_results_in_request_order_for_mixed_batch(database: Database) -> None:
    live, ended, replaced = [await streaming(database) for _ in range(3)]
    await attach_one(database.store, replaced.session_id)
    requests = [
        stream_update(replaced.session_id),
        stream_update(some_id()),
        stream_update(ended.session_id, end="STOPPED"),
        stream_update(live.session_id, counted=COUNTERS),
    ]
    results = await database.store.update_streams(requests)
    assert [result.found for result in results] == [Found.REPLACED, Found.UNKNOWN, Found.OVER, Found.LIVE]
    assert [result.session and result.session.session_id for result in results] == [
        replaced.session_id,
        None,
        ended.session_id,
        live.session_id,
    ]


# Notifications of ends


class Listener:
    """Another instance that listens for ends."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = database.another_store()
        self.ends: dict[str, str] = {}
        self.checks = 0
        self._arrived = asyncio.Event()
        self._store.listen_for_ends(self._ended, self._check)

    def _ended(self, session_id: str, reason: str) -> None:
        self.ends[session_id] = reason
        self._arrived.set()

    def _check(self) -> None:
        self.checks += 1

    async def __aenter__(self) -> Self:
        await self._store.read_board([])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()

    async def arrived(self, expected: dict[str, str]) -> None:
        """Waits for the expected ends, and checks that no other end has arrived. On an engine without notifications,
        expects no end.
        """
        if self._database.engine != "postgresql":
            expected = {}
        async with asyncio.timeout(5):
            while len(self.ends) < len(expected):
                self._arrived.clear()
                await self._arrived.wait()
        assert self.ends == expected
        self.ends.clear()


async def test_listen_for_ends__notifies_other_instances_of_ends_upgrades_evictions_and_lapses(
    database: Database,
) -> None:
    store = database.store
    deleted, beaten, attached, swept, full = [
        await streaming(database, lease_microseconds=10 * SECOND) for _ in range(5)
    ]
    upgraded = request(lease_microseconds=10 * SECOND)
    await open_one(store, upgraded)
    await attach_one(store, upgraded.session_id)
    await store.put_capacity(full.capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    async with Listener(database) as listener:
        assert listener.checks == (1 if database.engine == "postgresql" else 0)
        await end_one(store, deleted.session_id, CloseReason.TERMINATED)
        await listener.arrived({deleted.session_id: "TERMINATED"})
        await open_one(store, same_key_request(upgraded, kind=3))
        await listener.arrived({upgraded.session_id: "UPGRADED"})
        await open_one(store, request(capacity_id=full.capacity_id))
        await listener.arrived({full.session_id: "EVICTED"})
        await database.clock.set(NOON + 12 * SECONDS)
        await heartbeat_one(store, beaten.session_id)
        await listener.arrived({beaten.session_id: "LEASE_EXPIRED"})
        await attach_one(store, attached.session_id)
        await listener.arrived({attached.session_id: "LEASE_EXPIRED"})
        await sweep_some(database.store, SWEEP_MAX)
        await listener.arrived({swept.session_id: "LEASE_EXPIRED"})


async def test_listen_for_ends__splits_many_ends_into_notifications_of_limited_size(
    database: Database,
) -> None:
    """The ids of 256 sessions do not fit into the 8000 bytes of a notification."""
    ids = [(await open_new_session(database, lease_microseconds=SECOND)).session_id for _ in range(2 * BATCH_MAX)]
    for start in range(0, len(ids), BATCH_MAX):
        await database.store.attach_streams([attach_to(each) for each in ids[start : start + BATCH_MAX]])
    await database.clock.set(NOON + 2 * SECONDS)
    async with Listener(database) as listener:
        await sweep_some(database.store, SWEEP_MAX)
        await listener.arrived(dict.fromkeys(ids, "LEASE_EXPIRED"))


async def test_listen_for_ends__notifies_only_if_another_instance_may_hold_a_stream(
    database: Database,
) -> None:
    plain, own, shared = await open_new_session(database), await streaming(database), await streaming(database)
    await attach_one(database.store, shared.session_id)
    async with Listener(database) as listener:
        await end_one(database.store, plain.session_id, CloseReason.TERMINATED)
        await update_one(database.store, own.session_id, end="STOPPED")
        # This end is announced, because the older stream of `shared` may run on another instance. This end is the last
        # one, so notifications of the other two ends, if there were any, would arrive before it.
        await update_one(database.store, shared.session_id, attachment=2, end="STOPPED")
        await listener.arrived({shared.session_id: "STOPPED"})
