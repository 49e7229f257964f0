"""Ending sessions, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, EndRequest, EndResult, Found, OpenOutcome, State
from tenure.store.limits import BATCH_MAX
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.open_requests import NOON, SECOND, end_one, open_one, request, same_key_request, some_id
from tests.support.session_calls import attach_one, update_one
from tests.support.sessions import open_new_session

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


async def test_end_sessions__ends_live_session_now(database: Database) -> None:
    session = await open_new_session(database)
    now = NOON + 3 * SECONDS
    await database.clock.set(now)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert ended.recorded
    assert (ended.session.state, ended.session.closed_at, ended.session.close_reason, ended.session.modified_at) == (
        State.CLOSED,
        now,
        CloseReason.TERMINATED,
        now,
    )
    assert ended.session == await database.store.get_session(session.session_id, EVERYTHING)


async def test_end_sessions__keeps_existing_end(database: Database) -> None:
    session = await open_new_session(database)
    first = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + 60 * SECONDS)
    second = await end_one(database.store, session.session_id, CloseReason.STOPPED)
    assert first is not None
    assert second is not None
    assert (second.session, second.recorded) == (first.session, False)


async def test_end_sessions__keeps_reason_and_time_of_lapse(database: Database) -> None:
    session = await open_new_session(database, idle_microseconds=5 * SECOND)
    await database.clock.set(NOON + 60 * SECONDS)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert (ended.session.close_reason, ended.session.closed_at) == (CloseReason.IDLE_TIMEOUT, NOON + 5 * SECONDS)


async def test_end_sessions__end_at_start_instant_is_recorded_one_microsecond_later(database: Database) -> None:
    session = await open_new_session(database)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert ended.session.closed_at == NOON + MICROSECOND


async def test_end_sessions__returns_unknown_for_unknown_session(database: Database) -> None:
    assert await end_one(database.store, some_id(), CloseReason.TERMINATED) is None


async def test_end_sessions__frees_key(database: Database) -> None:
    one = request()
    await open_one(database.store, one)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + SECONDS)
    assert (await open_one(database.store, same_key_request(one))).outcome is OpenOutcome.CREATED


async def test_end_sessions__returns_results_in_request_order_for_mixed_batch(database: Database) -> None:
    live, other, over, lapsed = [await open_new_session(database) for _ in range(3)] + [
        await open_new_session(database, lease_microseconds=10 * SECOND)
    ]
    await end_one(database.store, over.session_id, CloseReason.FAILED)
    now = NOON + 15 * SECONDS
    await database.clock.set(now)
    requests = [
        EndRequest(lapsed.session_id, "STOPPED", EVERYTHING, ACTOR),
        EndRequest(some_id(), "STOPPED", EVERYTHING, ACTOR),
        EndRequest(live.session_id, "STOPPED", EVERYTHING, ACTOR),
        EndRequest(over.session_id, "STOPPED", EVERYTHING, ACTOR),
        EndRequest(other.session_id, "TERMINATED", EVERYTHING, ACTOR),
    ]
    results = await database.store.end_sessions(requests)
    returned = [
        (ended.found, ended.recorded, ended.session and (ended.session.close_reason, ended.session.closed_at))
        for ended in results
    ]
    assert returned == [
        (Found.OVER, True, ("LEASE_EXPIRED", NOON + 10 * SECONDS)),
        (Found.UNKNOWN, False, None),
        (Found.OVER, True, ("STOPPED", now)),
        (Found.OVER, False, ("FAILED", NOON + MICROSECOND)),
        (Found.OVER, True, ("TERMINATED", now)),
    ]


async def test_end_sessions__accepts_full_batch(database: Database) -> None:
    sessions = [await open_new_session(database) for _ in range(BATCH_MAX)]
    await database.clock.set(NOON + SECONDS)
    results = await database.store.end_sessions(
        [EndRequest(session.session_id, "STOPPED", EVERYTHING, ACTOR) for session in sessions]
    )
    assert [ended.session and ended.session.session_id for ended in results] == [one.session_id for one in sessions]
    assert (await database.store.count_sessions(EVERYTHING)).active == 0


async def test_end_sessions__does_not_change_closing_session(database: Database) -> None:
    session = await open_new_session(database)
    await attach_one(database.store, session.session_id)
    await database.clock.set(NOON + SECONDS)
    closing = (await update_one(database.store, session.session_id, end="DISCONNECTED")).session
    await database.clock.set(NOON + 2 * SECONDS)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended == EndResult(Found.OVER, closing)


async def test_end_sessions__ends_after_start_when_clock_was_stepped_back(database: Database) -> None:
    session = await open_new_session(database)
    await database.clock.set(NOON - 5 * SECONDS)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert ended.session is not None
    assert ended.session.closed_at == NOON + MICROSECOND
