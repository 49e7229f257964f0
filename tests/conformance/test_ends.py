"""Ending sessions, on every engine."""

from datetime import timedelta

import pytest

from tenure.model.sessions import CloseReason, End, Ended, Found, Outcome, State
from tenure.store.store import BATCH_MAX
from tests.support.databases import Database
from tests.support.keeping import attach_one, update_one
from tests.support.sessions import opened
from tests.support.wishes import NOON, SECOND, again, end_one, open_one, some_id, wish

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


async def test_end_sessions__ends_a_live_one_now(database: Database) -> None:
    session = await opened(database)
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
    assert ended.session == await database.store.get_session(session.session_id)


async def test_end_sessions__keeps_the_end_it_has(database: Database) -> None:
    session = await opened(database)
    first = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + 60 * SECONDS)
    second = await end_one(database.store, session.session_id, CloseReason.STOPPED)
    assert first is not None
    assert second is not None
    assert (second.session, second.recorded) == (first.session, False)


async def test_end_sessions__leaves_a_lapse_its_reason_and_instant(database: Database) -> None:
    session = await opened(database, idle_microseconds=5 * SECOND)
    await database.clock.set(NOON + 60 * SECONDS)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert (ended.session.close_reason, ended.session.closed_at) == (CloseReason.IDLE_TIMEOUT, NOON + 5 * SECONDS)


async def test_end_sessions__in_the_instant_of_the_start_lasts_a_microsecond(database: Database) -> None:
    session = await opened(database)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert ended.session.closed_at == NOON + MICROSECOND


async def test_end_sessions__knows_no_unknown_one(database: Database) -> None:
    assert await end_one(database.store, some_id(), CloseReason.TERMINATED) is None


async def test_end_sessions__frees_the_key(database: Database) -> None:
    one = wish()
    await open_one(database.store, one)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + SECONDS)
    assert (await open_one(database.store, again(one))).outcome is Outcome.CREATED


async def test_end_sessions__answers_a_mixed_batch_in_its_order(database: Database) -> None:
    live, other, over, lapsed = [await opened(database) for _ in range(3)] + [
        await opened(database, lease_microseconds=10 * SECOND)
    ]
    await end_one(database.store, over.session_id, CloseReason.FAILED)
    now = NOON + 15 * SECONDS
    await database.clock.set(now)
    asked = [
        End(lapsed.session_id, "STOPPED"),
        End(some_id(), "STOPPED"),
        End(live.session_id, "STOPPED"),
        End(over.session_id, "STOPPED"),
        End(other.session_id, "TERMINATED"),
    ]
    answers = await database.store.end_sessions(asked)
    told = [
        (ended.found, ended.recorded, ended.session and (ended.session.close_reason, ended.session.closed_at))
        for ended in answers
    ]
    assert told == [
        (Found.OVER, True, ("LEASE_EXPIRED", NOON + 10 * SECONDS)),
        (Found.UNKNOWN, False, None),
        (Found.OVER, True, ("STOPPED", now)),
        (Found.OVER, False, ("FAILED", NOON + MICROSECOND)),
        (Found.OVER, True, ("TERMINATED", now)),
    ]


async def test_end_sessions__takes_a_full_batch(database: Database) -> None:
    sessions = [await opened(database) for _ in range(BATCH_MAX)]
    await database.clock.set(NOON + SECONDS)
    answers = await database.store.end_sessions([End(session.session_id, "STOPPED") for session in sessions])
    assert [ended.session and ended.session.session_id for ended in answers] == [one.session_id for one in sessions]
    assert (await database.store.count_sessions()).active == 0


async def test_end_sessions__leaves_a_closing_session_to_its_stream(database: Database) -> None:
    session = await opened(database)
    await attach_one(database.store, session.session_id)
    await database.clock.set(NOON + SECONDS)
    closing = (await update_one(database.store, session.session_id, end="DISCONNECTED")).session
    await database.clock.set(NOON + 2 * SECONDS)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended == Ended(Found.OVER, closing)


async def test_end_sessions__by_a_clock_that_was_stepped_back_ends_after_the_start(database: Database) -> None:
    session = await opened(database)
    await database.clock.set(NOON - 5 * SECONDS)
    ended = await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert ended is not None
    assert ended.session is not None
    assert ended.session.closed_at == NOON + MICROSECOND
