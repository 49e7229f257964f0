"""Streams of sessions, on every engine."""

from datetime import datetime, timedelta

import pytest

from tenure.clock import from_microseconds
from tenure.domain.sessions import ClosedSession, CloseReason, Found, OpenOutcome, Session, State, StreamCounters
from tenure.domain.streams import AttachResult, StreamUpdateResult
from tests.support.databases import Database
from tests.support.keeping import COUNTED, NOTHING, attach, attach_one, keep_one, stream_update, update_one
from tests.support.open_requests import NOON, SECOND, again, end_one, open_one, request, some_id
from tests.support.sessions import opened, recorded

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


async def streaming(database: Database, **given: object) -> Session:
    """A session whose first stream was attached at noon."""
    attached = await attach_one(database.store, (await opened(database, **given)).session_id)
    assert attached.session is not None
    return attached.session


async def checked_at(database: Database) -> datetime | None:
    (row,) = await database.rows("SELECT check_at FROM sessions")
    value = row["check_at"]
    return from_microseconds(value) if isinstance(value, int) else value


# Attaching


async def test_attach_streams__sets_lease_and_idle_limit_on_session_without_limits(database: Database) -> None:
    one = await opened(database)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    answer = await attach_one(database.store, one.session_id)
    session = answer.session
    assert session is not None
    assert answer == AttachResult(Found.LIVE, session, 1, now)
    assert session == await recorded(database, one.session_id)
    assert (session.lease_microseconds, session.heartbeat_microseconds, session.idle_microseconds) == (
        60 * SECOND,
        5 * SECOND,
        300 * SECOND,
    )
    assert (session.deadline_at, session.lapse_reason) == (now + 60 * SECONDS, "LEASE_EXPIRED")
    assert (session.last_heartbeat_at, session.last_activity_at, session.modified_at) == (now, now, now)
    assert (session.state, session.stream) == ("created", NOTHING)


async def test_attach_streams__keeps_existing_lease_and_idle_limit(database: Database) -> None:
    one = await opened(
        database, lease_microseconds=40 * SECOND, heartbeat_microseconds=3 * SECOND, idle_microseconds=50 * SECOND
    )
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    await attach_one(database.store, one.session_id)
    session = await recorded(database, one.session_id)
    assert (session.lease_microseconds, session.heartbeat_microseconds, session.idle_microseconds) == (
        40 * SECOND,
        3 * SECOND,
        50 * SECOND,
    )
    assert (session.last_heartbeat_at, session.last_activity_at) == (now, NOON)
    assert session.deadline_at == now + 40 * SECONDS


async def test_attach_streams__adds_only_the_missing_limit(database: Database) -> None:
    one = await opened(database, idle_microseconds=50 * SECOND)
    await database.clock.set(NOON + 7 * SECONDS)
    await attach_one(database.store, one.session_id)
    session = await recorded(database, one.session_id)
    assert (session.lease_microseconds, session.idle_microseconds) == (60 * SECOND, 50 * SECOND)
    assert (session.deadline_at, session.lapse_reason) == (NOON + 50 * SECONDS, "IDLE_TIMEOUT")


async def test_attach_streams__moves_check_at_to_earlier_deadline(database: Database) -> None:
    one = await opened(database)
    await attach_one(database.store, one.session_id)
    assert await checked_at(database) == NOON + 60 * SECONDS


async def test_attach_streams__does_not_postpone_check_at(database: Database) -> None:
    one = await opened(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 5 * SECONDS)
    await attach_one(database.store, one.session_id)
    assert await checked_at(database) == NOON + 10 * SECONDS


async def test_attach_streams__numbers_streams_from_one(database: Database) -> None:
    one = await opened(database)
    answers = [await attach_one(database.store, one.session_id) for _ in range(3)]
    assert [answer.attachment for answer in answers] == [1, 2, 3]


async def test_attach_streams__continues_counters_of_previous_stream(database: Database) -> None:
    one = await streaming(database)
    await update_one(database.store, one.session_id, counted=COUNTED)
    answer = await attach_one(database.store, one.session_id)
    assert answer.session is not None
    assert answer.session.stream == COUNTED


async def test_attach_streams__records_lapse_at_deadline(database: Database) -> None:
    one = await opened(database, lease_microseconds=10 * SECOND)
    now = NOON + 12 * SECONDS
    await database.clock.set(now)
    answer = await attach_one(database.store, one.session_id)
    over = await recorded(database, one.session_id)
    closing = ClosedSession(one.session_id, "LEASE_EXPIRED", NOON + 10 * SECONDS)
    assert answer == AttachResult(Found.OVER, over, 0, now, closing)
    await database.clock.set(NOON)
    assert (await recorded(database, one.session_id)).closed_at == NOON + 10 * SECONDS


async def test_attach_streams__returns_over_for_ended_session(database: Database) -> None:
    one = await opened(database)
    ended = await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert await attach_one(database.store, one.session_id) == AttachResult(Found.OVER, ended.session, 0, NOON)


async def test_attach_streams__returns_unknown_for_unknown_session(database: Database) -> None:
    assert await attach_one(database.store, some_id()) == AttachResult(Found.UNKNOWN)


async def test_attach_streams__returns_results_in_request_order_for_mixed_batch(database: Database) -> None:
    live, lapsed, limited = (
        await opened(database),
        await opened(database, lease_microseconds=SECOND),
        await opened(database, lease_microseconds=30 * SECOND),
    )
    await database.clock.set(NOON + 2 * SECONDS)
    requests = [
        attach(lapsed.session_id),
        attach(some_id()),
        attach(limited.session_id),
        attach(live.session_id, lease=9),
    ]
    answers = await database.store.attach_streams(requests)
    assert [answer.found for answer in answers] == [Found.OVER, Found.UNKNOWN, Found.LIVE, Found.LIVE]
    assert [answer.session and answer.session.lease_microseconds for answer in answers[2:]] == [30 * SECOND, 9]


async def test_open_sessions__returns_stream_counters_of_existing_session(database: Database) -> None:
    """Every result contains the session as a read returns it."""
    one = request()
    await open_one(database.store, one)
    await attach_one(database.store, one.session_id)
    await update_one(database.store, one.session_id, counted=COUNTED)
    answer = await open_one(database.store, again(one))
    assert answer.outcome is OpenOutcome.EXISTING
    assert answer.session == await recorded(database, one.session_id)


# Keeping alive


async def test_update_streams__renews_lease_and_adds_counters(database: Database) -> None:
    one = await streaming(database)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    answer = await update_one(database.store, one.session_id, counted=COUNTED)
    session = answer.session
    assert answer == StreamUpdateResult(Found.LIVE, session, now)
    assert session == await recorded(database, one.session_id)
    assert (session.last_heartbeat_at, session.last_activity_at, session.modified_at) == (now, NOON, now)
    assert (session.state, session.deadline_at, session.stream) == ("created", now + 60 * SECONDS, COUNTED)


async def test_update_streams__renews_idle_limit_when_stream_is_active(database: Database) -> None:
    one = await streaming(database, idle_microseconds=20 * SECOND)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    await update_one(database.store, one.session_id, active=True)
    session = await recorded(database, one.session_id)
    assert (session.state, session.last_activity_at) == ("active", now)
    assert (session.deadline_at, session.lapse_reason) == (now + 20 * SECONDS, "IDLE_TIMEOUT")


async def test_update_streams__adds_counters_of_each_save(database: Database) -> None:
    one = await streaming(database)
    for save in (1, 2):
        await update_one(database.store, one.session_id, save=save, counted=COUNTED)
    session = await recorded(database, one.session_id)
    assert session.stream == StreamCounters(2_002, 24, 206, 108, 410, 12, 614)


async def test_update_streams__counts_repeated_save_once(database: Database) -> None:
    one = await streaming(database)
    for _ in range(2):
        answer = await update_one(database.store, one.session_id, counted=COUNTED)
    assert (answer.found, answer.session and answer.session.stream) == (Found.LIVE, COUNTED)


async def test_update_streams__counts_first_save_of_newer_stream(database: Database) -> None:
    one = await streaming(database)
    await update_one(database.store, one.session_id, save=5, counted=COUNTED)
    await attach_one(database.store, one.session_id)
    answer = await update_one(database.store, one.session_id, attachment=2, save=1, counted=COUNTED)
    assert answer.session is not None
    assert answer.session.stream == StreamCounters(2_002, 24, 206, 108, 410, 12, 614)


async def test_update_streams__adds_counters_of_replaced_stream_without_renewing(database: Database) -> None:
    one = await streaming(database)
    second = await attach_one(database.store, one.session_id)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    answer = await update_one(database.store, one.session_id, active=True, counted=COUNTED)
    session = await recorded(database, one.session_id)
    assert answer == StreamUpdateResult(Found.REPLACED, session, now)
    assert second.session is not None
    assert (session.deadline_at, session.last_activity_at, session.state) == (
        second.session.deadline_at,
        NOON,
        "created",
    )
    assert session.stream == COUNTED


async def test_update_streams__does_not_end_session_of_replaced_stream(database: Database) -> None:
    one = await streaming(database)
    await attach_one(database.store, one.session_id)
    answer = await update_one(database.store, one.session_id, end="DISCONNECTED", finished=True)
    assert (answer.found, answer.recorded) == (Found.REPLACED, False)
    assert (await recorded(database, one.session_id)).is_active


async def test_update_streams__counts_repeated_save_of_replaced_stream_once(database: Database) -> None:
    one = await streaming(database)
    await attach_one(database.store, one.session_id)
    for _ in range(2):
        answer = await update_one(database.store, one.session_id, counted=COUNTED)
    assert answer.session is not None
    assert answer.session.stream == COUNTED


async def test_update_streams__does_not_move_timestamps_back_after_clock_step_back(database: Database) -> None:
    one = await streaming(database)
    await database.clock.set(NOON + 30 * SECONDS)
    await update_one(database.store, one.session_id, active=True)
    before = await recorded(database, one.session_id)
    await database.clock.set(NOON + 10 * SECONDS)
    await update_one(database.store, one.session_id, save=2, active=True)
    assert await recorded(database, one.session_id) == before


# Ending


async def test_update_streams__records_end_and_leaves_session_closing(database: Database) -> None:
    one = await streaming(database)
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    answer = await update_one(database.store, one.session_id, active=True, end="STOPPED", counted=COUNTED)
    session = answer.session
    assert answer == StreamUpdateResult(Found.OVER, session, now, recorded=True)
    assert session == await recorded(database, one.session_id)
    assert (session.state, session.closed_at, session.close_reason) == (State.CLOSING, now, "STOPPED")
    assert (session.last_activity_at, session.last_heartbeat_at, session.modified_at) == (now, NOON, now)
    assert (session.stream, session.deadline_at) == (COUNTED, one.deadline_at)


async def test_update_streams__closes_closing_session_when_finished(database: Database) -> None:
    one = await streaming(database)
    await database.clock.set(NOON + 7 * SECONDS)
    await update_one(database.store, one.session_id, end="STOPPED")
    await database.clock.set(NOON + 9 * SECONDS)
    answer = await update_one(database.store, one.session_id, save=2, end="STOPPED", finished=True, counted=COUNTED)
    session = await recorded(database, one.session_id)
    assert answer == StreamUpdateResult(Found.OVER, session, NOON + 9 * SECONDS)
    assert (session.state, session.closed_at, session.close_reason) == ("closed", NOON + 7 * SECONDS, "STOPPED")
    assert (session.stream, await checked_at(database)) == (COUNTED, None)


async def test_update_streams__ends_and_closes_session_in_one_update(database: Database) -> None:
    one = await streaming(database)
    await database.clock.set(NOON + 7 * SECONDS)
    answer = await update_one(database.store, one.session_id, end="DISCONNECTED", finished=True)
    assert answer.recorded
    session = await recorded(database, one.session_id)
    assert (session.state, session.close_reason, session.closed_at) == ("closed", "DISCONNECTED", NOON + 7 * SECONDS)
    assert await checked_at(database) is None


async def test_update_streams__frees_key_when_end_is_recorded(database: Database) -> None:
    one = request()
    await open_one(database.store, one)
    await attach_one(database.store, one.session_id)
    await database.clock.set(NOON + 7 * SECONDS)
    await update_one(database.store, one.session_id, end="STOPPED")
    assert (await open_one(database.store, again(one))).outcome is OpenOutcome.CREATED


async def test_update_streams__end_at_start_instant_is_recorded_one_microsecond_later(database: Database) -> None:
    one = await streaming(database)
    answer = await update_one(database.store, one.session_id, end="STOPPED")
    assert answer.session is not None
    assert answer.session.closed_at == NOON + MICROSECOND


async def test_update_streams__records_lapse_instead_of_end_from_stream(database: Database) -> None:
    one = await streaming(database, lease_microseconds=10 * SECOND)
    now = NOON + 12 * SECONDS
    await database.clock.set(now)
    answer = await update_one(database.store, one.session_id, active=True, end="STOPPED", counted=COUNTED)
    session = await recorded(database, one.session_id)
    assert answer == StreamUpdateResult(Found.OVER, session, now, recorded=True)
    assert (session.state, session.close_reason, session.closed_at) == ("closed", "LEASE_EXPIRED", NOON + 10 * SECONDS)
    assert (session.stream, session.last_activity_at) == (COUNTED, NOON)
    assert await checked_at(database) is None


@pytest.mark.parametrize("end", [None, "STOPPED"])
async def test_update_streams__keeps_end_recorded_by_another_caller(database: Database, end: str | None) -> None:
    one = await streaming(database)
    await database.clock.set(NOON + 7 * SECONDS)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    answer = await update_one(database.store, one.session_id, end=end, finished=True, counted=COUNTED)
    session = await recorded(database, one.session_id)
    assert answer == StreamUpdateResult(Found.OVER, session, NOON + 7 * SECONDS)
    assert (session.state, session.close_reason, session.closed_at) == ("closed", "TERMINATED", NOON + 7 * SECONDS)
    assert session.stream == COUNTED


async def test_update_streams__changes_nothing_when_final_update_is_repeated(database: Database) -> None:
    one = await streaming(database)
    values = {"end": "STOPPED", "finished": True, "counted": COUNTED}
    await update_one(database.store, one.session_id, **values)
    before = await recorded(database, one.session_id)
    answer = await update_one(database.store, one.session_id, **values)
    assert (answer.found, answer.recorded) == (Found.OVER, False)
    assert await recorded(database, one.session_id) == before


async def test_update_streams__prevents_heartbeat_from_renewing_closing_session(database: Database) -> None:
    one = await streaming(database)
    await update_one(database.store, one.session_id, end="FAILED")
    before = await recorded(database, one.session_id)
    kept = await keep_one(database.store, one.session_id, active=True)
    assert (kept.found, kept.close_reason) == (Found.OVER, "FAILED")
    assert await recorded(database, one.session_id) == before


async def test_update_streams__returns_unknown_for_unknown_session(database: Database) -> None:
    assert await update_one(database.store, some_id()) == StreamUpdateResult(Found.UNKNOWN)


async def test_update_streams__returns_results_in_request_order_for_mixed_batch(database: Database) -> None:
    live, ended, replaced = [await streaming(database) for _ in range(3)]
    await attach_one(database.store, replaced.session_id)
    requests = [
        stream_update(replaced.session_id),
        stream_update(some_id()),
        stream_update(ended.session_id, end="STOPPED"),
        stream_update(live.session_id, counted=COUNTED),
    ]
    answers = await database.store.update_streams(requests)
    assert [answer.found for answer in answers] == [Found.REPLACED, Found.UNKNOWN, Found.OVER, Found.LIVE]
    assert [answer.session and answer.session.session_id for answer in answers] == [
        replaced.session_id,
        None,
        ended.session_id,
        live.session_id,
    ]
