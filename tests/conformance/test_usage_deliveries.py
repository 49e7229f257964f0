"""How chunks are sealed, delivered and commanded, and how far delivery is."""

from datetime import datetime, timedelta
from hashlib import sha256

import pytest

from tenure.model.submissions import AttemptOutcome, SubmissionCommand, SubmissionState
from tenure.model.usage import Lag, Seal
from tests.conformance.test_usage_chunks import PIECES
from tests.support.databases import Database
from tests.support.leases import all_tables, table
from tests.support.submissions import (
    DELIVERED,
    FAILED,
    UNKNOWN,
    accept,
    attempt,
    attempts,
    begin_one,
    end,
    executor,
    next_executor,
    one,
)
from tests.support.usage import (
    CONTRACT,
    cut,
    cut_one,
    minute,
    newest,
    save,
    windows,
)
from tests.support.wishes import NOON, some_id

pytestmark = pytest.mark.usefixtures("installed")


# Sealing


async def sent(database: Database, count: int = 1, *, complete: bool = True) -> list[str]:
    """The submissions of a new window's chunks."""
    window = await cut_one(database, await last_end(database) + timedelta(minutes=1), contract=CONTRACT)
    chunks = await save(database, window, PIECES[:count], complete=complete)
    return [str(chunk.submission_id) for chunk in chunks]


async def last_end(database: Database) -> datetime:
    found = await database.store.list_windows(None, 1)
    return found[0].ended_at if found else minute(0)


def digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


async def seal(database: Database, *seals: Seal) -> dict[str, bool]:
    return dict(await database.store.seal_chunks(await executor(database.store), seals))


async def digests(database: Database) -> list[bytes | None]:
    return [row["digest"] for row in await table(database, "usage_chunks")]


async def test_seal_chunks__stores_the_first_digest(database: Database) -> None:
    one_id, other_id, _third = await sent(database, 3)
    told = await seal(database, Seal(one_id, digest("one")), Seal(other_id, digest("other")))
    assert told == {one_id: True, other_id: True}
    assert await digests(database) == [digest("one"), digest("other"), None]


async def test_seal_chunks__tells_whether_a_later_one_is_the_same(database: Database) -> None:
    one_id, other_id, third_id = await sent(database, 3)
    await seal(database, Seal(one_id, digest("one")), Seal(other_id, digest("other")))
    again = [Seal(one_id, digest("one")), Seal(other_id, digest("another")), Seal(third_id, digest("third"))]
    assert await seal(database, *again) == {one_id: True, other_id: False, third_id: True}
    assert await digests(database) == [digest("one"), digest("other"), digest("third")]


async def test_seal_chunks__says_nothing_of_what_it_does_not_know(database: Database) -> None:
    (one_id,) = await sent(database)
    assert await seal(database, Seal(some_id(), digest("one"))) == {}
    assert await digests(database) == [None]
    assert one_id


# Delivering


async def delivered(database: Database) -> list[object]:
    """When each window was."""
    return [window.delivered_at for window in await windows(database)]


async def chunks_delivered(database: Database) -> list[object]:
    return [row["delivered_at"] for row in await table(database, "usage_chunks")]


async def deliver(database: Database, *submission_ids: str) -> None:
    fence = await executor(database.store)
    for submission_id in submission_ids:
        await attempt(database.store, fence, submission_id, DELIVERED)


async def test_finish_attempts__delivers_a_chunk_and_with_the_last_of_them_its_window(database: Database) -> None:
    first, second, third = await sent(database, 3)
    await database.clock.set(minute(4))
    await deliver(database, third)
    await database.clock.set(minute(5))
    await deliver(database, first)
    assert await chunks_delivered(database) == [minute(5), None, minute(4)]
    assert await delivered(database) == [None]
    await database.clock.set(minute(6))
    await deliver(database, second)
    assert await chunks_delivered(database) == [minute(5), minute(6), minute(4)]
    assert await delivered(database) == [minute(6)]


async def test_finish_attempts__delivers_chunks_of_many_windows_at_once(database: Database) -> None:
    ids = [*await sent(database), *await sent(database, 2), *await sent(database, 2)]
    fence = await executor(database.store)
    await database.store.begin_attempts(fence, ids)
    ends = [end(each, outcome=DELIVERED if number != 3 else FAILED) for number, each in enumerate(ids)]
    await database.store.finish_attempts(fence, ends)
    now = minute(3)
    assert await delivered(database) == [now, now, None]
    assert await chunks_delivered(database) == [now, now, now, None, now]


@pytest.mark.parametrize("outcome", [each for each in AttemptOutcome if each is not DELIVERED])
async def test_finish_attempts__delivers_no_chunk_by_an_attempt_that_did_not(
    database: Database, outcome: AttemptOutcome
) -> None:
    (submission_id,) = await sent(database)
    fence = await executor(database.store)
    await attempt(database.store, fence, submission_id, outcome)
    await database.clock.set(minute(9))
    await attempt(database.store, fence, submission_id, outcome, pause_microseconds=None)
    assert (await chunks_delivered(database), await delivered(database)) == ([None], [None])


async def test_finish_attempts__delivers_no_window_whose_chunks_are_not_all_there(database: Database) -> None:
    """What is saved later is still to be sent."""
    first, second = await sent(database, 2, complete=False)
    await deliver(database, first, second)
    assert await delivered(database) == [None]
    window = await newest(database)
    (*_, third) = await save(database, window, PIECES[2:3], first=3)
    assert await delivered(database) == [None]
    await database.clock.set(minute(7))
    await deliver(database, str(third.submission_id))
    assert await delivered(database) == [minute(7)]


async def test_save_chunks__delivers_a_window_all_of_which_was_delivered_before_it_was_complete(
    database: Database,
) -> None:
    await deliver(database, *await sent(database, 2, complete=False))
    await database.clock.set(minute(7))
    await save(database, await newest(database), [], first=3)
    assert await delivered(database) == [minute(7)]


async def test_finish_attempts__delivers_once_what_is_finished_again_after_a_lost_answer(database: Database) -> None:
    (submission_id,) = await sent(database)
    fence = await executor(database.store)
    await begin_one(database.store, fence, submission_id)
    await database.store.finish_attempts(fence, [end(submission_id, outcome=DELIVERED)])
    before = await all_tables(database)
    await database.clock.set(minute(9))
    await database.store.finish_attempts(fence, [end(submission_id, outcome=DELIVERED)])
    assert await all_tables(database) == before


async def test_finish_attempts__delivers_by_the_attempt_of_a_later_epoch(database: Database) -> None:
    (submission_id,) = await sent(database)
    await begin_one(database.store, await executor(database.store), submission_id)
    fence = await next_executor(database.store)
    assert await database.store.close_unknown(fence, 9) == 1
    assert await chunks_delivered(database) == [None]
    await database.clock.set(minute(8))
    await attempt(database.store, fence, submission_id, DELIVERED)
    assert (await chunks_delivered(database), await delivered(database)) == ([minute(8)], [minute(8)])
    assert [each.outcome for each in await attempts(database, submission_id)] == [UNKNOWN, DELIVERED]


# Commands


@pytest.mark.parametrize("state", [SubmissionState.PENDING, SubmissionState.FAILED])
async def test_command_submissions__cannot_cancel_usage(database: Database, state: SubmissionState) -> None:
    (submission_id,) = await sent(database)
    if state is SubmissionState.FAILED:
        fence = await executor(database.store)
        await attempt(database.store, fence, submission_id, FAILED, pause_microseconds=None)
    before = await all_tables(database)
    told = await database.store.command_submissions(SubmissionCommand.CANCEL, [submission_id])
    assert told == {submission_id: False}
    assert (await one(database, submission_id)).state == state
    assert await all_tables(database) == before


async def test_command_submissions__cancels_what_else_is_named_beside_usage(database: Database) -> None:
    usage_ids = await sent(database, 2)
    (other,) = await accept(database.store)
    told = await database.store.command_submissions(
        SubmissionCommand.CANCEL, [usage_ids[0], other, some_id(), usage_ids[1]]
    )
    assert told == {usage_ids[0]: False, other: True, usage_ids[1]: False}
    assert (await one(database, other)).state == "cancelled"


async def test_command_submissions__makes_usage_due_at_once_when_it_is_retried(database: Database) -> None:
    (submission_id,) = await sent(database)
    await attempt(database.store, await executor(database.store), submission_id, FAILED)
    assert (await one(database, submission_id)).next_attempt_at == minute(1, 30)
    await database.clock.set(minute(1, 3))
    told = await database.store.command_submissions(SubmissionCommand.RETRY, [submission_id])
    assert told == {submission_id: True}
    assert (await one(database, submission_id)).next_attempt_at == minute(1, 3)
    await deliver(database, submission_id)
    assert await delivered(database) == [minute(1, 3)]


# How far delivery is


async def test_read_lag__is_up_to_date_before_the_first_cut(database: Database) -> None:
    await database.clock.set(minute(0, 40))
    assert await database.store.read_lag() == Lag(now=minute(0, 40), delivered_until=NOON)


async def test_read_lag__counts_from_the_oldest_window_that_is_to_be_delivered(database: Database) -> None:
    first = await sent(database)
    second = await sent(database, 2)
    third = await sent(database)
    await deliver(database, *first, second[0], *third)
    await database.clock.set(minute(9))
    assert await database.store.read_lag() == Lag(minute(9), delivered_until=minute(1))
    await deliver(database, second[1])
    assert await database.store.read_lag() == Lag(minute(9), delivered_until=minute(3))


async def test_read_lag__counts_what_is_cut_and_not_divided(database: Database) -> None:
    await cut(database, minute(1), contract=CONTRACT)
    assert await database.store.read_lag() == Lag(minute(1), delivered_until=NOON)


async def test_read_lag__does_not_wait_for_what_is_sent_to_nobody(database: Database) -> None:
    await cut(database, minute(1), contract=None)
    assert await database.store.read_lag() == Lag(minute(1), delivered_until=minute(1))
