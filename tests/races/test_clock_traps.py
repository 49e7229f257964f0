"""The order of steps in a transaction: it acquires locks, reads the row, reads the clock, and then writes.

In most tests, a write waits for a lock, or is repeated while another transaction holds the row. If the write read the
clock or the row too early, before the lock is released, the result could be overlapping sessions, ends before starts,
writes with a timestamp before the last cut, or responses that were never true.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from itertools import pairwise

import pytest
from sqlalchemy import event

from tenure.clock import from_microseconds, wall_microseconds
from tenure.domain.audit_log import Action
from tenure.domain.capacities import Seats
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Found, Heartbeat, OpenOutcome, OpenRequest, OpenResult, SessionFilter
from tenure.store.contract.sessions import OpenLane
from tests.support.audit_log import ACTOR, draft
from tests.support.databases import Database
from tests.support.history import overlaps, read_sessions
from tests.support.leases import hold_lease
from tests.support.locks import CUT_LOCK, holding, locked_file, other_store
from tests.support.open_requests import LIMITS, NOON, end_one, open_one, request, same_key_request
from tests.support.session_calls import attach_to, stream_update
from tests.support.sessions import open_session, read_session
from tests.support.usage import emitter_fence, rules

TERMINATED = CloseReason.TERMINATED
BRIEF = 300_000
"""A lease in microseconds. It expires while the test holds the row of the session."""
CONTENTION_SECONDS = 0.05
"""Long enough for a write to find the row held several times."""


def in_order(*requests: OpenRequest) -> list[OpenRequest]:
    return sorted(requests, key=lambda one: one.key)


# Waiting for a row


async def test_upgrade_reads_clock_after_lock_wait(postgres_database: Database) -> None:
    one = request(kind=1)
    await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        upgrade = asyncio.create_task(open_one(postgres_database.store, same_key_request(one, kind=3)))
        await asyncio.sleep(CONTENTION_SECONDS)
        released_at = await holder.now()
        await holder.rollback()
    session = (await upgrade).session
    old = await read_session(postgres_database, one.session_id)
    assert session is not None
    assert old.closed_at == session.started_at > released_at


async def test_end_reads_clock_after_lock_wait(postgres_database: Database) -> None:
    one = request()
    await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        end = asyncio.create_task(end_one(postgres_database.store, one.session_id, TERMINATED))
        await asyncio.sleep(CONTENTION_SECONDS)
        released_at = await holder.now()
        await holder.rollback()
    ended = await end
    assert ended is not None
    assert ended.session.closed_at is not None
    assert ended.session.closed_at > released_at


async def test_session_that_lapsed_during_lock_wait_is_not_upgraded(postgres_database: Database) -> None:
    one = request(kind=1, lease_microseconds=BRIEF)
    old = await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        opening = asyncio.create_task(open_one(postgres_database.store, same_key_request(one, kind=3)))
        await asyncio.sleep(CONTENTION_SECONDS)
        await holder.wait_until(old.deadline_at)
        await holder.rollback()
    assert (await opening).outcome is OpenOutcome.CREATED
    old = await read_session(postgres_database, one.session_id)
    assert (old.close_reason, old.closed_at) == (CloseReason.LEASE_EXPIRED, old.deadline_at)


async def test_session_that_lapsed_during_lock_wait_is_not_terminated(postgres_database: Database) -> None:
    one = request(lease_microseconds=BRIEF)
    session = await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        end = asyncio.create_task(end_one(postgres_database.store, one.session_id, TERMINATED))
        await asyncio.sleep(CONTENTION_SECONDS)
        await holder.wait_until(session.deadline_at)
        await holder.rollback()
    ended = await end
    assert ended is not None
    assert (ended.session.close_reason, ended.session.closed_at) == (CloseReason.LEASE_EXPIRED, session.deadline_at)


async def test_session_that_ended_while_its_row_was_held_is_not_upgraded(postgres_database: Database) -> None:
    one = request(kind=1)
    await open_session(postgres_database, one)
    higher = [same_key_request(one, kind=3)]
    async with holding(postgres_database) as holder:
        ended_at = await holder.end_session(one.session_id)
        while_held = await postgres_database.store.open_sessions(OpenLane.REOPEN, higher, LIMITS)
        await holder.commit()
    afterwards = await postgres_database.store.open_sessions(OpenLane.REOPEN, higher, LIMITS)
    assert (while_held, afterwards) == ([OpenResult(OpenOutcome.REOPEN)], [OpenResult(OpenOutcome.AGAIN)])
    old = await read_session(postgres_database, one.session_id)
    assert (old.close_reason, old.closed_at) == (TERMINATED, ended_at)


async def test_session_that_ended_during_lock_wait_keeps_its_end(postgres_database: Database) -> None:
    one = request()
    await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        ended_at = await holder.end_session(one.session_id)
        end = asyncio.create_task(end_one(postgres_database.store, one.session_id, CloseReason.STOPPED))
        await asyncio.sleep(CONTENTION_SECONDS)
        await holder.commit()
    ended = await end
    assert ended is not None
    assert (ended.recorded, ended.session.close_reason, ended.session.closed_at) == (False, TERMINATED, ended_at)


async def test_sqlite_write_reads_clock_after_file_lock_wait(sqlite_database: Database) -> None:
    one = request()
    await open_session(sqlite_database, one)
    with locked_file(sqlite_database) as release:
        begins = asyncio.Event()
        signal = partial(asyncio.get_running_loop().call_soon_threadsafe, begins.set)
        writer = sqlite_database.store._writer  # type: ignore[attr-defined]
        event.listen(writer.engine, "before_cursor_execute", lambda *_: signal())
        end = asyncio.create_task(end_one(sqlite_database.store, one.session_id, TERMINATED))
        await begins.wait()
        released_at = from_microseconds(wall_microseconds())
        release()
    ended = await end
    assert ended is not None
    assert ended.session.closed_at is not None
    assert ended.session.closed_at >= released_at


# Reads without a lock


async def test_open_does_not_return_existing_while_end_is_uncommitted(postgres_database: Database) -> None:
    one = request()
    await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.end_session(one.session_id)
        results = await postgres_database.store.open_sessions(OpenLane.CREATE, [same_key_request(one)], LIMITS)
        assert results == [OpenResult(OpenOutcome.REOPEN)]


async def test_open_does_not_return_existing_while_session_is_locked(postgres_database: Database) -> None:
    """The transaction that holds the lock may already have read the clock, and may end the session at that instant. The
    response `existing` would then be false.
    """
    one = request()
    await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        results = await postgres_database.store.open_sessions(OpenLane.CREATE, [same_key_request(one)], LIMITS)
        assert results == [OpenResult(OpenOutcome.REOPEN)]


async def test_open_returns_existing_after_lock_is_released_without_change(postgres_database: Database) -> None:
    one = request()
    session = await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        await holder.commit()
    results = await postgres_database.store.open_sessions(OpenLane.CREATE, [same_key_request(one)], LIMITS)
    assert results == [OpenResult(OpenOutcome.EXISTING, session)]


async def test_open_that_waited_for_end_starts_after_it(postgres_database: Database) -> None:
    one = request()
    await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        ended_at = await holder.end_session(one.session_id)
        opening = asyncio.create_task(open_one(postgres_database.store, same_key_request(one)))
        await asyncio.sleep(CONTENTION_SECONDS)
        await holder.commit()
    result = await opening
    assert result.outcome is OpenOutcome.CREATED
    assert result.session is not None
    assert result.session.started_at >= ended_at


# A key without a row cannot be locked


async def test_open_starts_after_session_opened_and_ended_during_lock_wait(postgres_database: Database) -> None:
    """The batch has read the clock and waits for its first key. During this wait, a session of its second key is opened
    and ended.
    """
    first, second = in_order(request(), request())
    async with holding(postgres_database) as holder, other_store(postgres_database) as other:
        await holder.insert(same_key_request(first))
        batch = asyncio.create_task(postgres_database.store.open_sessions(OpenLane.CREATE, [first, second], LIMITS))
        await holder.wait_for_blocked()
        during_wait = same_key_request(second)
        await open_one(other, during_wait)
        ended = await end_one(other, during_wait.session_id, TERMINATED)
        await holder.rollback()
    results = await batch
    assert [result.outcome for result in results] == [OpenOutcome.CREATED, OpenOutcome.CREATED]
    assert ended is not None
    assert ended.session.closed_at is not None
    session = await read_session(postgres_database, second.session_id)
    assert session.started_at >= ended.session.closed_at
    assert results[1].session == session
    assert session.deadline_at == session.term_ends_at == session.started_at + LIMITS.term


async def test_insert_that_waited_for_end_starts_after_it(postgres_database: Database) -> None:
    """As in the previous test, but the end is not committed yet when the insert reaches the second key."""
    first, second = in_order(request(), request())
    async with (
        holding(postgres_database) as holder,
        holding(postgres_database) as ender,
        other_store(postgres_database) as other,
    ):
        await holder.insert(same_key_request(first))
        batch = asyncio.create_task(postgres_database.store.open_sessions(OpenLane.CREATE, [first, second], LIMITS))
        await holder.wait_for_blocked()
        during_wait = same_key_request(second)
        await open_one(other, during_wait)
        ended_at = await ender.end_session(during_wait.session_id)
        await holder.rollback()
        await ender.wait_for_blocked()
        await ender.commit()
    assert (await batch)[1].outcome is OpenOutcome.CREATED
    assert (await read_session(postgres_database, second.session_id)).started_at >= ended_at


async def test_single_open_starts_after_session_that_ended_during_lock_wait(postgres_database: Database) -> None:
    one = request()
    async with holding(postgres_database) as holder:
        during_wait = same_key_request(one)
        await holder.insert(during_wait)
        opening = asyncio.create_task(postgres_database.store.open_sessions(OpenLane.CREATE, [one], LIMITS))
        await holder.wait_for_blocked()
        ended_at = await holder.end_session(during_wait.session_id)
        await holder.commit()
    (result,) = await opening
    assert result.outcome is OpenOutcome.CREATED
    session = await read_session(postgres_database, one.session_id)
    assert session.started_at >= ended_at
    assert result.session == session
    assert session.deadline_at == session.term_ends_at == session.started_at + LIMITS.term


async def test_single_open_returns_again_for_key_taken_during_lock_wait(postgres_database: Database) -> None:
    one = request()
    async with holding(postgres_database) as holder:
        await holder.insert(same_key_request(one))
        opening = asyncio.create_task(postgres_database.store.open_sessions(OpenLane.CREATE, [one], LIMITS))
        await holder.wait_for_blocked()
        await holder.commit()
    assert await opening == [OpenResult(OpenOutcome.AGAIN)]


@pytest.mark.parametrize("sessions", [1, 2])
async def test_live_sessions_are_returned_while_a_cut_holds_its_lock(
    postgres_database: Database, sessions: int
) -> None:
    opened = in_order(*(request() for _ in range(sessions)))
    for one in opened:
        await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_cut()
        again = [same_key_request(one) for one in opened]
        results = await postgres_database.store.open_sessions(OpenLane.CREATE, again, LIMITS)
    assert [result.session and result.session.session_id for result in results] == [one.session_id for one in opened]


async def test_open_returns_again_for_key_taken_during_lock_wait(postgres_database: Database) -> None:
    first, second = in_order(request(), request())
    async with holding(postgres_database) as holder:
        await holder.insert(same_key_request(first))
        batch = asyncio.create_task(postgres_database.store.open_sessions(OpenLane.CREATE, [first, second], LIMITS))
        await holder.wait_for_blocked()
        await holder.commit()
    assert [result.outcome for result in await batch] == [OpenOutcome.AGAIN, OpenOutcome.CREATED]


async def test_reopen_lane_does_not_change_session_locked_by_another(postgres_database: Database) -> None:
    """The request whose row is held gets REOPEN. The other request gets UPGRADED."""
    first, second = request(kind=1), request(kind=1)
    for one in (first, second):
        await open_session(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(first.session_id)
        requests = in_order(same_key_request(first, kind=3), same_key_request(second, kind=3))
        results = await postgres_database.store.open_sessions(OpenLane.REOPEN, requests, LIMITS)
    outcomes = {one.key: result.outcome for one, result in zip(requests, results, strict=True)}
    assert outcomes == {first.key: OpenOutcome.REOPEN, second.key: OpenOutcome.UPGRADED}
    assert (await read_session(postgres_database, first.session_id)).closed_at is None


Write = Callable[[Database, OpenRequest], Coroutine[object, object, object]]


async def _create(database: Database, _old: OpenRequest) -> object:
    return await open_one(database.store, request())


async def _upgrade(database: Database, old: OpenRequest) -> object:
    return await open_one(database.store, same_key_request(old, kind=3))


async def _end(database: Database, old: OpenRequest) -> object:
    return await end_one(database.store, old.session_id, TERMINATED)


async def _end_matching(database: Database, old: OpenRequest) -> object:
    ids = [old.session_id]
    return await database.store.end_matching(ids, SessionFilter(), EVERYTHING, draft(Action.SESSION_ENDED))


async def _open_limited(database: Database, old: OpenRequest) -> object:
    return await database.store.open_sessions(OpenLane.LIMITED, [request(capacity_id=old.capacity_id)], LIMITS)


async def _heartbeat(database: Database, old: OpenRequest) -> object:
    return await database.store.heartbeat([Heartbeat(old.session_id, True, EVERYTHING)])


async def _attach(database: Database, old: OpenRequest) -> object:
    return await database.store.attach_streams([attach_to(old.session_id)])


async def _update_stream(database: Database, old: OpenRequest) -> object:
    return await database.store.update_streams([stream_update(old.session_id, active=True)])


@pytest.mark.parametrize(
    "write", [_create, _upgrade, _open_limited, _end, _end_matching, _heartbeat, _attach, _update_stream]
)
async def test_write_waits_for_cut_and_reads_clock_afterwards(postgres_database: Database, write: Write) -> None:
    old = request(kind=1)
    await open_session(postgres_database, old)
    if write is _open_limited:
        await postgres_database.store.put_capacity(old.capacity_id, Seats(2), EVERYTHING, ACTOR)
    async with holding(postgres_database) as holder:
        await holder.lock_cut()
        writing = asyncio.ensure_future(write(postgres_database, old))
        await holder.wait_for_blocked()
        cut_at = await holder.cut()
        await holder.commit()
    await writing
    written = "coalesce(modified_at, closed_at, last_heartbeat_at)"
    (row,) = await postgres_database.rows(f"SELECT max({written}) AS written_at FROM sessions")
    assert row["written_at"] >= cut_at


async def test_cut_waits_for_write_in_progress(postgres_database: Database) -> None:
    """The write may already have read the clock. So its timestamp may belong to the window that is being cut."""
    fence = await emitter_fence(postgres_database.store)
    async with holding(postgres_database) as writer:
        await writer.execute(f"SELECT pg_advisory_xact_lock_shared({CUT_LOCK})")
        cutting = asyncio.ensure_future(postgres_database.store.cut_usage(fence, rules(), 9))
        await writer.wait_for_blocked()
        assert not cutting.done()
        await writer.rollback()
    assert (await cutting).last_cut_at == await postgres_database.last_cut_at()


async def test_sweep_waits_for_cut(postgres_database: Database) -> None:
    """The sweep records ends at the deadlines of the sessions. These deadlines may belong to the window that is being
    cut.
    """
    one = request(lease_microseconds=1)
    await open_session(postgres_database, one)
    fence = await hold_lease(postgres_database.store)
    async with holding(postgres_database) as holder:
        await holder.lock_cut()
        sweeping = asyncio.ensure_future(postgres_database.store.expire_sessions(fence, 9))
        await holder.wait_for_blocked()
        await holder.rollback()
    assert [closed.session_id for closed in (await sweeping).closed_sessions] == [one.session_id]


# The clock itself


@pytest.mark.parametrize("seed", range(3))
async def test_sessions_of_one_key_never_overlap_when_clock_jumps(database: Database, seed: int) -> None:
    """The clock stands still, is stepped back or moves ahead between opens, upgrades and ends of one key."""
    source = random.Random(seed)
    one, now = request(), NOON
    current = await open_session(database, one)
    for _ in range(40):
        now += timedelta(microseconds=source.choice([-3_600_000_000, -1, 0, 0, 0, 1, 1_000_000]))
        await database.clock.set(now)
        if source.random() < 0.5:
            await end_one(database.store, current.session_id, TERMINATED)
        current = await open_session(database, same_key_request(one, kind=source.choice([1, 2, 3])))
    table = await read_sessions(database)
    assert list(overlaps(table)) == []
    assert len(table) > 10


async def test_session_whose_lapse_is_published_stays_ended_when_clock_is_stepped_back(database: Database) -> None:
    """The feed of events already contains the ends of both sessions. So a heartbeat must not renew the first, and an
    open must not return the second.
    """
    await database.clock.set(NOON)
    one, other = request(lease_microseconds=10_000_000), request(lease_microseconds=10_000_000)
    for each in (one, other):
        await open_session(database, each)
    await database.clock.set(NOON + timedelta(seconds=12))
    await database.store.publish_events(0)
    await database.clock.set(NOON + timedelta(seconds=5))
    (renewed,) = await database.store.heartbeat([Heartbeat(one.session_id, True, EVERYTHING)])
    opened = await open_one(database.store, same_key_request(other))
    assert (renewed.found, opened.outcome) == (Found.OVER, OpenOutcome.CREATED)
    old = await read_session(database, other.session_id)
    assert (old.close_reason, old.closed_at) == (CloseReason.LEASE_EXPIRED, NOON + timedelta(seconds=10))


async def test_sessions_opened_and_ended_at_one_instant_last_one_microsecond_each(database: Database) -> None:
    await database.clock.set(NOON)
    one = request()
    for _ in range(3):
        session = await open_session(database, one := same_key_request(one))
        await end_one(database.store, session.session_id, TERMINATED)
    table = await read_sessions(database)
    assert [session.ended_at - session.started_at for session in table] == [1, 1, 1]
    assert all(before.ended_at <= after.started_at for before, after in pairwise(table))
