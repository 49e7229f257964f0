"""When in a transaction the clock is read: lock, look, read the clock, write.

Each test makes one write wait at the very point where a clock that was read too early, or a look that came too early,
would give sessions that overlap, ends before starts, writes that escape the cut, or answers that were not true.
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
from tenure.model.sessions import CloseReason, Open, Opened, Outcome
from tenure.store.store import Lane
from tests.support.databases import Database
from tests.support.history import lived, overlaps
from tests.support.locks import elsewhere, holding, holding_the_file
from tests.support.sessions import live, recorded
from tests.support.wishes import LIMITS, NOON, again, end_one, open_one, wish

TERMINATED = CloseReason.TERMINATED
BRIEF = 300_000
"""Microseconds: a lease that runs out while somebody holds the row."""
ROUNDS_SECONDS = 0.05
"""Long enough for a write to find the row held, several times."""


def in_order(*wishes: Open) -> list[Open]:
    return sorted(wishes, key=lambda one: one.key)


# Waiting for a row


async def test_an_upgrade_that_waited_is_stamped_after_the_wait(postgres_database: Database) -> None:
    one = wish(kind=1)
    await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        upgrade = asyncio.create_task(open_one(postgres_database.store, again(one, kind=3)))
        await asyncio.sleep(ROUNDS_SECONDS)
        released_at = await holder.now()
        await holder.rollback()
    session = (await upgrade).session
    old = await recorded(postgres_database, one.session_id)
    assert session is not None
    assert old.closed_at == session.started_at > released_at


async def test_an_end_that_waited_is_stamped_after_the_wait(postgres_database: Database) -> None:
    one = wish()
    await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        end = asyncio.create_task(end_one(postgres_database.store, one.session_id, TERMINATED))
        await asyncio.sleep(ROUNDS_SECONDS)
        released_at = await holder.now()
        await holder.rollback()
    ended = await end
    assert ended is not None
    assert ended.session.closed_at is not None
    assert ended.session.closed_at > released_at


async def test_a_session_that_lapsed_during_the_wait_is_not_upgraded(postgres_database: Database) -> None:
    one = wish(kind=1, lease_microseconds=BRIEF)
    old = await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        opening = asyncio.create_task(open_one(postgres_database.store, again(one, kind=3)))
        await asyncio.sleep(ROUNDS_SECONDS)
        await holder.wait_until(old.deadline_at)
        await holder.rollback()
    assert (await opening).outcome is Outcome.CREATED
    old = await recorded(postgres_database, one.session_id)
    assert (old.close_reason, old.closed_at) == (CloseReason.LEASE_EXPIRED, old.deadline_at)


async def test_a_session_that_lapsed_during_the_wait_is_not_terminated(postgres_database: Database) -> None:
    one = wish(lease_microseconds=BRIEF)
    session = await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        end = asyncio.create_task(end_one(postgres_database.store, one.session_id, TERMINATED))
        await asyncio.sleep(ROUNDS_SECONDS)
        await holder.wait_until(session.deadline_at)
        await holder.rollback()
    ended = await end
    assert ended is not None
    assert (ended.session.close_reason, ended.session.closed_at) == (CloseReason.LEASE_EXPIRED, session.deadline_at)


async def test_a_session_that_ended_during_the_wait_is_not_upgraded(postgres_database: Database) -> None:
    one = wish(kind=1)
    await live(postgres_database, one)
    higher = [again(one, kind=3)]
    async with holding(postgres_database) as holder:
        ended_at = await holder.end_session(one.session_id)
        while_held = await postgres_database.store.open_sessions(Lane.REOPEN, higher, LIMITS)
        await holder.commit()
    afterwards = await postgres_database.store.open_sessions(Lane.REOPEN, higher, LIMITS)
    assert (while_held, afterwards) == ([Opened(Outcome.REOPEN)], [Opened(Outcome.AGAIN)])
    old = await recorded(postgres_database, one.session_id)
    assert (old.close_reason, old.closed_at) == (TERMINATED, ended_at)


async def test_a_session_that_ended_during_the_wait_keeps_its_end(postgres_database: Database) -> None:
    one = wish()
    await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        ended_at = await holder.end_session(one.session_id)
        end = asyncio.create_task(end_one(postgres_database.store, one.session_id, CloseReason.STOPPED))
        await asyncio.sleep(ROUNDS_SECONDS)
        await holder.commit()
    ended = await end
    assert ended is not None
    assert (ended.recorded, ended.session.close_reason, ended.session.closed_at) == (False, TERMINATED, ended_at)


async def test_a_write_that_waited_for_the_file_is_stamped_after_the_wait(sqlite_database: Database) -> None:
    one = wish()
    await live(sqlite_database, one)
    with holding_the_file(sqlite_database) as release:
        begins = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, begins.set)
        event.listen(sqlite_database.store._engine, "before_cursor_execute", lambda *_: tell())  # type: ignore[attr-defined]
        end = asyncio.create_task(end_one(sqlite_database.store, one.session_id, TERMINATED))
        await begins.wait()
        released_at = from_microseconds(wall_microseconds())
        release()
    ended = await end
    assert ended is not None
    assert ended.session.closed_at is not None
    assert ended.session.closed_at >= released_at


# Looking without a lock


async def test_does_not_call_a_session_existing_while_its_end_is_being_written(postgres_database: Database) -> None:
    one = wish()
    await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.end_session(one.session_id)
        answers = await postgres_database.store.open_sessions(Lane.CREATE, [again(one)], LIMITS)
        assert answers == [Opened(Outcome.REOPEN)]


async def test_does_not_call_a_session_existing_that_somebody_has_locked(postgres_database: Database) -> None:
    """Whoever holds the lock may have read the clock already, and will end the session at that instant."""
    one = wish()
    await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        answers = await postgres_database.store.open_sessions(Lane.CREATE, [again(one)], LIMITS)
        assert answers == [Opened(Outcome.REOPEN)]


async def test_calls_a_session_existing_once_a_lock_on_it_came_to_nothing(postgres_database: Database) -> None:
    one = wish()
    session = await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        await holder.commit()
    answers = await postgres_database.store.open_sessions(Lane.CREATE, [again(one)], LIMITS)
    assert answers == [Opened(Outcome.EXISTING, session)]


async def test_an_open_that_waited_for_an_end_starts_after_it(postgres_database: Database) -> None:
    one = wish()
    await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        ended_at = await holder.end_session(one.session_id)
        opening = asyncio.create_task(open_one(postgres_database.store, again(one)))
        await asyncio.sleep(ROUNDS_SECONDS)
        await holder.commit()
    answer = await opening
    assert answer.outcome is Outcome.CREATED
    assert answer.session is not None
    assert answer.session.started_at >= ended_at


# A key without a row cannot be locked


async def test_an_open_starts_after_a_session_that_came_and_went_while_it_waited(postgres_database: Database) -> None:
    """The batch has read its clock and waits for its first key; meanwhile its second is opened and ended."""
    first, second = in_order(wish(), wish())
    async with holding(postgres_database) as holder, elsewhere(postgres_database) as other:
        await holder.insert(again(first))
        batch = asyncio.create_task(postgres_database.store.open_sessions(Lane.CREATE, [first, second], LIMITS))
        await holder.somebody_waits()
        meanwhile = again(second)
        await open_one(other, meanwhile)
        ended = await end_one(other, meanwhile.session_id, TERMINATED)
        await holder.rollback()
    answers = await batch
    assert [answer.outcome for answer in answers] == [Outcome.CREATED, Outcome.CREATED]
    assert ended is not None
    assert ended.session.closed_at is not None
    session = await recorded(postgres_database, second.session_id)
    assert session.started_at >= ended.session.closed_at
    assert answers[1].session == session
    assert session.deadline_at == session.term_ends_at == session.started_at + LIMITS.term


async def test_an_insert_that_waited_for_an_end_starts_after_it(postgres_database: Database) -> None:
    """As before, but the end is still being written when the insert comes to it."""
    first, second = in_order(wish(), wish())
    async with (
        holding(postgres_database) as holder,
        holding(postgres_database) as ender,
        elsewhere(postgres_database) as other,
    ):
        await holder.insert(again(first))
        batch = asyncio.create_task(postgres_database.store.open_sessions(Lane.CREATE, [first, second], LIMITS))
        await holder.somebody_waits()
        meanwhile = again(second)
        await open_one(other, meanwhile)
        ended_at = await ender.end_session(meanwhile.session_id)
        await holder.rollback()
        await ender.somebody_waits()
        await ender.commit()
    assert (await batch)[1].outcome is Outcome.CREATED
    assert (await recorded(postgres_database, second.session_id)).started_at >= ended_at


async def test_a_key_that_somebody_else_took_is_to_be_looked_at_again(postgres_database: Database) -> None:
    first, second = in_order(wish(), wish())
    async with holding(postgres_database) as holder:
        await holder.insert(again(first))
        batch = asyncio.create_task(postgres_database.store.open_sessions(Lane.CREATE, [first, second], LIMITS))
        await holder.somebody_waits()
        await holder.commit()
    assert [answer.outcome for answer in await batch] == [Outcome.AGAIN, Outcome.CREATED]


async def test_reopening_does_not_touch_a_session_that_it_has_not_locked(postgres_database: Database) -> None:
    """One of its rows is held by somebody else: that wish comes again, and the other goes on."""
    first, second = wish(kind=1), wish(kind=1)
    for one in (first, second):
        await live(postgres_database, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(first.session_id)
        wishes = in_order(again(first, kind=3), again(second, kind=3))
        answers = await postgres_database.store.open_sessions(Lane.REOPEN, wishes, LIMITS)
    outcomes = {one.key: answer.outcome for one, answer in zip(wishes, answers, strict=True)}
    assert outcomes == {first.key: Outcome.REOPEN, second.key: Outcome.UPGRADED}
    assert (await recorded(postgres_database, first.session_id)).closed_at is None


Write = Callable[[Database, Open], Coroutine[object, object, object]]


async def _create(database: Database, _old: Open) -> object:
    return await open_one(database.store, wish())


async def _upgrade(database: Database, old: Open) -> object:
    return await open_one(database.store, again(old, kind=3))


async def _end(database: Database, old: Open) -> object:
    return await end_one(database.store, old.session_id, TERMINATED)


@pytest.mark.parametrize("write", [_create, _upgrade, _end])
async def test_a_write_waits_for_the_cut_and_is_stamped_after_it(postgres_database: Database, write: Write) -> None:
    old = wish(kind=1)
    await live(postgres_database, old)
    async with holding(postgres_database) as holder:
        await holder.hold_the_cut()
        writing = asyncio.ensure_future(write(postgres_database, old))
        await holder.somebody_waits()
        cut_at = await holder.cut()
        await holder.commit()
    await writing
    (row,) = await postgres_database.rows("SELECT max(modified_at) AS written_at FROM sessions")
    assert row["written_at"] >= cut_at


# The clock itself


@pytest.mark.parametrize("seed", range(5))
async def test_sessions_of_a_key_never_overlap_whatever_the_clock_does(database: Database, seed: int) -> None:
    """Stopped, stepped back and far ahead, among openings, upgrades and ends of one key."""
    source = random.Random(seed)
    one, now = wish(), NOON
    current = await live(database, one)
    for _ in range(40):
        now += timedelta(microseconds=source.choice([-3_600_000_000, -1, 0, 0, 0, 1, 1_000_000]))
        await database.clock.set(now)
        if source.random() < 0.5:
            await end_one(database.store, current.session_id, TERMINATED)
        current = await live(database, again(one, kind=source.choice([1, 2, 3])))
    table = await lived(database)
    assert list(overlaps(table)) == []
    assert len(table) > 10


async def test_a_session_opened_and_ended_again_and_again_in_one_instant_always_lasts(database: Database) -> None:
    await database.clock.set(NOON)
    one = wish()
    for _ in range(3):
        session = await live(database, one := again(one))
        await end_one(database.store, session.session_id, TERMINATED)
    table = await lived(database)
    assert [session.ended_at - session.started_at for session in table] == [1, 1, 1]
    assert all(before.ended_at <= after.started_at for before, after in pairwise(table))
