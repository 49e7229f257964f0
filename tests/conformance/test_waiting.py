"""Pending submissions, and attempts that an executor left open, on every engine."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from tenure.domain.submissions import Attempt, BeginAttemptOutcome, BeginAttemptResult, Change, SubmissionCommand
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, all_tables, table
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import (
    DELIVERED,
    EXECUTOR,
    PAUSED,
    accept,
    all_waiting,
    attempt,
    attempts,
    begin_one,
    cancel,
    changed,
    drop_index,
    executor,
    ids_of,
    next_executor,
    one,
    pending,
    place,
    under_way,
    waits,
)

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
LATER = NOON + 7 * SECONDS
BEGUN = BeginAttemptOutcome.BEGUN
RETRY = SubmissionCommand.RETRY
LEFT_OPEN = "the executor stopped before it recorded the outcome"


# What waits


async def test_list_pending__returns_database_time_without_pending_submissions(database: Database) -> None:
    page = await database.store.list_pending(None, 9)
    assert (page.now, list(page.waiting)) == (NOON, [])


async def test_list_pending__returns_fields_needed_for_scheduling(database: Database) -> None:
    (submission_id,) = await accept(database.store, gateway="pager")
    await attempt(database.store, await executor(database.store), submission_id)
    await database.clock.set(LATER)
    page = await database.store.list_pending(None, 9)
    assert (page.now, list(page.waiting)) == (LATER, [waits(submission_id, NOON + PAUSED, NOON, "pager")])


async def test_list_pending__returns_no_next_attempt_while_attempt_is_open(database: Database) -> None:
    submission_id = await under_way(database)
    assert (await database.store.list_pending(None, 9)).waiting == [waits(submission_id, None, NOON)]


async def test_list_pending__omits_submissions_that_are_not_pending(database: Database) -> None:
    fence = await executor(database.store)
    delivered, failed, cancelled, waiting = await accept(database.store, 4)
    await attempt(database.store, fence, delivered, DELIVERED)
    await attempt(database.store, fence, failed, pause_microseconds=None)
    await cancel(database, cancelled)
    assert await waiting_ids(database) == [waiting]


async def waiting_ids(database: Database, after: Change | None = None) -> list[str]:
    return ids_of((await database.store.list_pending(after, 500)).waiting)


async def test_list_pending__is_ordered_by_last_change(database: Database) -> None:
    """Not in the order of ids. An attempt does not count as a change."""
    await drop_index(database, "submissions_waiting")
    first, second, third, fourth = await accept(database.store, 4)
    for number, submission_id in enumerate((third, first), start=1):
        await database.clock.set(NOON + number * SECONDS)
        await database.store.command_submissions(RETRY, [submission_id])
    await attempt(database.store, await executor(database.store), second)
    assert await waiting_ids(database) == [second, fourth, third, first]


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_list_pending__skips_no_submission_changed_at_same_instant(database: Database, page: int) -> None:
    made = await accept(database.store, 7)
    await database.clock.set(LATER)
    made += await accept(database.store, 4)
    assert ids_of(await all_waiting(database.store, page)) == made


async def test_list_pending__starts_after_cursor_that_matches_no_row(database: Database) -> None:
    first, second = await accept(database.store, 2)
    await database.clock.set(LATER)
    (third,) = await accept(database.store)
    assert await waiting_ids(database, changed(NOON - MICROSECOND, second)) == [first, second, third]
    assert await waiting_ids(database, changed(NOON, first)) == [second, third]
    assert await waiting_ids(database, changed(NOON + MICROSECOND, first)) == [third]
    assert await waiting_ids(database, changed(LATER, third)) == []


@pytest.mark.parametrize("command", SubmissionCommand)
async def test_list_pending__reflects_commands_issued_after_cursor(
    database: Database, command: SubmissionCommand
) -> None:
    (submission_id,) = await accept(database.store)
    (before,) = (await database.store.list_pending(None, 9)).waiting
    await database.clock.set(LATER)
    await database.store.command_submissions(command, [submission_id])
    expected = [waits(submission_id, LATER, LATER)] if command is RETRY else []
    assert (await database.store.list_pending(place(before), 9)).waiting == expected


# What an executor has left open


async def left_open(database: Database, count: int = 1) -> Sequence[str]:
    """An attempt that the executor of the first epoch left open."""
    made = await accept(database.store, count)
    await database.store.begin_attempts(await executor(database.store), made)
    return made


async def test_close_orphaned_attempts__closes_open_attempt_and_makes_submission_due_now(database: Database) -> None:
    (submission_id,) = await left_open(database)
    fence = await next_executor(database.store)
    await database.clock.set(LATER)
    assert await database.store.close_orphaned_attempts(fence, 9) == 1
    closed = Attempt(number=1, epoch=1, started_at=NOON, ended_at=LATER, outcome="unknown", error=LEFT_OPEN)
    assert await database.store.get_submission(submission_id) == (
        pending(submission_id, NOON, attempts=1, next_attempt_at=LATER),
        [closed],
    )
    assert await begin_one(database.store, fence, submission_id) == BeginAttemptResult(submission_id, BEGUN, 2, 0)


async def test_close_orphaned_attempts__changes_nothing_when_repeated(database: Database) -> None:
    await left_open(database, 3)
    fence = await next_executor(database.store)
    assert await database.store.close_orphaned_attempts(fence, 9) == 3
    before = await all_tables(database)
    await database.clock.set(LATER)
    assert await database.store.close_orphaned_attempts(fence, 9) == 0
    assert await all_tables(database) == before


async def test_close_orphaned_attempts__does_not_close_attempts_of_own_epoch(database: Database) -> None:
    (theirs,) = await left_open(database)
    fence = await next_executor(database.store)
    (mine,) = await accept(database.store)
    await begin_one(database.store, fence, mine)
    before = await database.store.get_submission(mine)
    await database.clock.set(LATER)
    assert await database.store.close_orphaned_attempts(fence, 9) == 1
    assert await database.store.get_submission(mine) == before
    assert (await one(database, theirs)).next_attempt_at == LATER


async def test_close_orphaned_attempts__keeps_cancelled_submission_cancelled(database: Database) -> None:
    (submission_id,) = await left_open(database)
    await cancel(database, submission_id)
    before = await one(database, submission_id)
    fence = await next_executor(database.store)
    await database.clock.set(LATER)
    assert await database.store.close_orphaned_attempts(fence, 9) == 1
    assert await one(database, submission_id) == before
    assert [each.outcome for each in await attempts(database, submission_id)] == ["unknown"]


async def test_close_orphaned_attempts__makes_submission_retried_during_open_attempt_due(database: Database) -> None:
    (submission_id,) = await left_open(database)
    await cancel(database, submission_id)
    await database.store.command_submissions(RETRY, [submission_id])
    await database.store.close_orphaned_attempts(await next_executor(database.store), 9)
    assert (await one(database, submission_id)).next_attempt_at == NOON


async def test_close_orphaned_attempts__does_not_change_submission_without_open_attempt(database: Database) -> None:
    (waiting,) = await accept(database.store)
    await attempt(database.store, await executor(database.store), waiting)
    before = await one(database, waiting)
    assert await database.store.close_orphaned_attempts(await next_executor(database.store), 9) == 0
    assert await one(database, waiting) == before


async def test_close_orphaned_attempts__closes_at_most_limit_attempts(database: Database) -> None:
    made = await left_open(database, 5)
    fence = await next_executor(database.store)
    assert [await database.store.close_orphaned_attempts(fence, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert {(await one(database, each)).next_attempt_at for each in made} == {NOON}


async def test_close_orphaned_attempts__closes_attempts_left_open_by_several_epochs(database: Database) -> None:
    await left_open(database, 2)
    fence = await next_executor(database.store)
    (another,) = await accept(database.store)
    await begin_one(database.store, fence, another)
    assert await database.store.close_orphaned_attempts(await next_executor(database.store), 9) == 3


# What waits for its gateway


async def test_note_waiting_reason__records_reason_as_last_error(database: Database) -> None:
    mine, other = await accept(database.store, 2)
    await database.clock.set(LATER)
    why = "gateway ledger is not configured: 漢字 🎟"
    await database.store.note_waiting_reason(await executor(database.store), [mine, some_id()], why)
    assert await one(database, mine) == pending(mine, NOON, last_error=why)
    assert await one(database, other) == pending(other, NOON)


async def test_note_waiting_reason__changes_nothing_when_repeated(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor(database.store)
    await database.store.note_waiting_reason(fence, [submission_id], "first")
    await database.store.note_waiting_reason(fence, [submission_id], "gone")
    before = await all_tables(database)
    await database.clock.set(LATER)
    await database.store.note_waiting_reason(fence, [submission_id], "gone")
    assert await all_tables(database) == before
    assert (await one(database, submission_id)).last_error == "gone"


async def test_note_waiting_reason__does_not_change_submissions_that_are_not_pending(database: Database) -> None:
    fence = await executor(database.store)
    delivered, failed, cancelled = made = await accept(database.store, 3)
    await attempt(database.store, fence, delivered, DELIVERED)
    await attempt(database.store, fence, failed, pause_microseconds=None)
    await cancel(database, cancelled)
    before = await all_tables(database)
    await database.store.note_waiting_reason(fence, made, "gone")
    assert await all_tables(database) == before


async def test_executor_lease_history_matches_epoch_and_holder_of_attempts(database: Database) -> None:
    """So attempts can be joined with the history of its epochs."""
    await under_way(database)
    (stay,) = await table(database, "lease_history")
    (row,) = await table(database, "submission_attempts")
    assert (stay["name"], stay["epoch"], stay["holder"]) == (EXECUTOR, row["epoch"], row["holder"])
