"""Digests and deliveries of chunks, commands for submissions of chunks, and the lag."""

from datetime import datetime, timedelta
from hashlib import sha256

import pytest

from tenure.domain.submissions import AttemptOutcome, SubmissionCommand, SubmissionState
from tenure.domain.usage import ChunkDigest, Lag
from tests.conformance.test_usage_chunks import PIECES
from tests.support.audit_log import draft
from tests.support.databases import Database
from tests.support.leases import all_tables, read_table
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import (
    DELIVERED,
    FAILED,
    UNKNOWN,
    accept,
    attempt_end,
    begin_one,
    close_orphaned,
    executor_fence,
    make_attempt,
    next_executor_fence,
    read_attempts,
    read_submission,
)
from tests.support.usage import (
    CONTRACT,
    cut,
    cut_one,
    minute,
    newest_window,
    save,
    windows,
)

pytestmark = pytest.mark.usefixtures("installed")


# Digests


async def sent(database: Database, count: int = 1, *, complete: bool = True) -> list[str]:
    """Cuts a window of one minute, and saves `count` chunks for it. Returns the ids of the chunks' submissions."""
    window = await cut_one(database, await last_end(database) + timedelta(minutes=1), contract=CONTRACT)
    chunks = await save(database, window, PIECES[:count], complete=complete)
    return [str(chunk.submission_id) for chunk in chunks]


async def last_end(database: Database) -> datetime:
    found = await database.store.list_windows(None, 1)
    return found[0].ended_at if found else minute(0)


def digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


async def store_digests(database: Database, *digests: ChunkDigest) -> dict[str, bool]:
    return dict(await database.store.store_digests(await executor_fence(database.store), digests))


async def digests(database: Database) -> list[bytes | None]:
    return [row["digest"] for row in await read_table(database, "usage_chunks")]


async def test_store_digests__stores_first_digest(database: Database) -> None:
    one_id, other_id, _third = await sent(database, 3)
    result = await store_digests(database, ChunkDigest(one_id, digest("one")), ChunkDigest(other_id, digest("other")))
    assert result == {one_id: True, other_id: True}
    assert await digests(database) == [digest("one"), digest("other"), None]


async def test_store_digests__returns_whether_later_digest_matches(database: Database) -> None:
    one_id, other_id, third_id = await sent(database, 3)
    await store_digests(database, ChunkDigest(one_id, digest("one")), ChunkDigest(other_id, digest("other")))
    again = [
        ChunkDigest(one_id, digest("one")),
        ChunkDigest(other_id, digest("another")),
        ChunkDigest(third_id, digest("third")),
    ]
    assert await store_digests(database, *again) == {one_id: True, other_id: False, third_id: True}
    assert await digests(database) == [digest("one"), digest("other"), digest("third")]


async def test_store_digests__ignores_unknown_submissions(database: Database) -> None:
    (one_id,) = await sent(database)
    assert await store_digests(database, ChunkDigest(some_id(), digest("one"))) == {}
    assert await digests(database) == [None]
    assert one_id


# Delivering


async def delivered(database: Database) -> list[object]:
    """The delivery time of each window, oldest window first; None if the window is not delivered."""
    return [window.delivered_at for window in await windows(database)]


async def chunks_delivered(database: Database) -> list[object]:
    return [row["delivered_at"] for row in await read_table(database, "usage_chunks")]


async def deliver(database: Database, *submission_ids: str) -> None:
    fence = await executor_fence(database.store)
    for submission_id in submission_ids:
        await make_attempt(database.store, fence, submission_id, DELIVERED)


async def test_finish_attempts__marks_window_delivered_with_its_last_chunk(database: Database) -> None:
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


async def test_finish_attempts__marks_chunks_of_several_windows_delivered(database: Database) -> None:
    ids = [*await sent(database), *await sent(database, 2), *await sent(database, 2)]
    fence = await executor_fence(database.store)
    await database.store.begin_attempts(fence, ids)
    ends = [attempt_end(each, outcome=DELIVERED if number != 3 else FAILED) for number, each in enumerate(ids)]
    await database.store.finish_attempts(fence, ends)
    now = minute(3)
    assert await delivered(database) == [now, now, None]
    assert await chunks_delivered(database) == [now, now, now, None, now]


@pytest.mark.parametrize("outcome", [each for each in AttemptOutcome if each is not DELIVERED])
async def test_finish_attempts__does_not_mark_chunk_delivered_by_other_outcomes(
    database: Database, outcome: AttemptOutcome
) -> None:
    (submission_id,) = await sent(database)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, submission_id, outcome)
    await database.clock.set(minute(9))
    await make_attempt(database.store, fence, submission_id, outcome, pause_microseconds=None)
    assert (await chunks_delivered(database), await delivered(database)) == ([None], [None])


async def test_finish_attempts__does_not_mark_incomplete_window_delivered(database: Database) -> None:
    """The window is still being divided, so further chunks may follow."""
    first, second = await sent(database, 2, complete=False)
    await deliver(database, first, second)
    assert await delivered(database) == [None]
    window = await newest_window(database)
    (*_, third) = await save(database, window, PIECES[2:3], first=3)
    assert await delivered(database) == [None]
    await database.clock.set(minute(7))
    await deliver(database, str(third.submission_id))
    assert await delivered(database) == [minute(7)]


async def test_save_chunks__marks_completed_window_delivered_if_its_chunks_are_delivered(
    database: Database,
) -> None:
    await deliver(database, *await sent(database, 2, complete=False))
    await database.clock.set(minute(7))
    await save(database, await newest_window(database), [], first=3)
    assert await delivered(database) == [minute(7)]


async def test_find_delivered_windows__returns_windows_whose_chunks_are_all_delivered(database: Database) -> None:
    first, second = await sent(database, 2)
    (of_another,) = await sent(database)
    find = database.store.find_delivered_windows
    await deliver(database, first)
    assert await find([first, of_another, some_id()]) == []
    await deliver(database, second)
    assert await find([of_another]) == []
    await deliver(database, of_another)
    found = await find([first, second, of_another, some_id()])
    assert sorted(found, key=lambda window: window.window_id) == await windows(database)
    assert [window.window_id for window in await find([second])] == [1]
    assert await find([]) == []


async def test_finish_attempts__changes_nothing_when_repeated_for_delivered_chunk(database: Database) -> None:
    (submission_id,) = await sent(database)
    fence = await executor_fence(database.store)
    await begin_one(database.store, fence, submission_id)
    await database.store.finish_attempts(fence, [attempt_end(submission_id, outcome=DELIVERED)])
    before = await all_tables(database)
    await database.clock.set(minute(9))
    await database.store.finish_attempts(fence, [attempt_end(submission_id, outcome=DELIVERED)])
    assert await all_tables(database) == before


async def test_finish_attempts__stores_receipt_with_chunk(database: Database) -> None:
    with_receipt, without = await sent(database, 2)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, with_receipt, DELIVERED, has_receipt=True)
    await make_attempt(database.store, fence, without, DELIVERED)
    late = attempt_end(without, 1, DELIVERED, has_receipt=True)
    await database.store.finish_attempts(fence, [late])
    rows = {row["submission_id"]: row["has_receipt"] for row in await read_table(database, "usage_chunks")}
    assert {str(each): bool(rows[each]) for each in rows} == {with_receipt: True, without: False}


async def test_finish_attempts__marks_chunk_delivered_by_attempt_of_later_epoch(database: Database) -> None:
    (submission_id,) = await sent(database)
    await begin_one(database.store, await executor_fence(database.store), submission_id)
    fence = await next_executor_fence(database.store)
    assert await close_orphaned(database.store, fence) == 1
    assert await chunks_delivered(database) == [None]
    await database.clock.set(minute(8))
    await make_attempt(database.store, fence, submission_id, DELIVERED)
    assert (await chunks_delivered(database), await delivered(database)) == ([minute(8)], [minute(8)])
    assert [each.outcome for each in await read_attempts(database, submission_id)] == [UNKNOWN, DELIVERED]


# Commands


@pytest.mark.parametrize("state", [SubmissionState.PENDING, SubmissionState.FAILED])
async def test_command_submissions__refuses_to_cancel_usage(database: Database, state: SubmissionState) -> None:
    (submission_id,) = await sent(database)
    if state is SubmissionState.FAILED:
        fence = await executor_fence(database.store)
        await make_attempt(database.store, fence, submission_id, FAILED, pause_microseconds=None)
    before = await all_tables(database)
    result = await database.store.command_submissions(SubmissionCommand.CANCEL, [submission_id], None, draft())
    assert result == {submission_id: False}
    assert (await read_submission(database, submission_id)).state == state
    assert await all_tables(database) == before


async def test_command_submissions__cancels_other_submissions_in_batch_with_usage(database: Database) -> None:
    usage_ids = await sent(database, 2)
    (other,) = await accept(database.store)
    result = await database.store.command_submissions(
        SubmissionCommand.CANCEL, [usage_ids[0], other, some_id(), usage_ids[1]], None, draft()
    )
    assert result == {usage_ids[0]: False, other: True, usage_ids[1]: False}
    assert (await read_submission(database, other)).state == "cancelled"


async def test_command_submissions__makes_retried_usage_due_now(database: Database) -> None:
    (submission_id,) = await sent(database)
    await make_attempt(database.store, await executor_fence(database.store), submission_id, FAILED)
    assert (await read_submission(database, submission_id)).next_attempt_at == minute(1, 30)
    await database.clock.set(minute(1, 3))
    result = await database.store.command_submissions(SubmissionCommand.RETRY, [submission_id], None, draft())
    assert result == {submission_id: True}
    assert (await read_submission(database, submission_id)).next_attempt_at == minute(1, 3)
    await deliver(database, submission_id)
    assert await delivered(database) == [minute(1, 3)]


# Lag


async def test_read_lag__returns_installation_time_before_first_cut(database: Database) -> None:
    await database.clock.set(minute(0, 40))
    assert await database.store.read_lag() == Lag(now=minute(0, 40), delivered_until=NOON)


async def test_read_lag__returns_start_of_oldest_undelivered_window(database: Database) -> None:
    first = await sent(database)
    second = await sent(database, 2)
    third = await sent(database)
    await deliver(database, *first, second[0], *third)
    await database.clock.set(minute(9))
    assert await database.store.read_lag() == Lag(minute(9), delivered_until=minute(1))
    await deliver(database, second[1])
    assert await database.store.read_lag() == Lag(minute(9), delivered_until=minute(3))


async def test_read_lag__includes_undivided_windows(database: Database) -> None:
    await cut(database, minute(1), contract=CONTRACT)
    assert await database.store.read_lag() == Lag(minute(1), delivered_until=NOON)


async def test_read_lag__ignores_windows_without_contract(database: Database) -> None:
    await cut(database, minute(1), contract=None)
    assert await database.store.read_lag() == Lag(minute(1), delivered_until=minute(1))
