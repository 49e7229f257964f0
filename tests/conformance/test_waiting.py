"""Pending submissions, and attempts that an executor left open, on every engine."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from tenure.domain.submissions import (
    Attempt,
    BeginAttemptOutcome,
    BeginAttemptResult,
    Change,
    OpenAttempt,
    SubmissionCommand,
)
from tests.support.audit_log import draft
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, all_tables, read_table
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import (
    CONTRACT,
    DELIVERED,
    EXECUTOR,
    LEFT_OPEN,
    PAUSED,
    accept,
    begin_first_attempt,
    begin_one,
    cancel,
    change_at,
    change_of,
    close_orphaned,
    drop_index,
    executor_fence,
    ids_of,
    list_all_pending,
    make_attempt,
    next_executor_fence,
    pending_entry,
    pending_submission,
    read_attempts,
    read_submission,
)

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
LATER = NOON + 7 * SECONDS
BEGUN = BeginAttemptOutcome.BEGUN
RETRY = SubmissionCommand.RETRY


# Pending submissions


async def test_list_pending__returns_database_time_without_pending_submissions(database: Database) -> None:
    page = await database.store.list_pending(None, 9)
    assert (page.now, list(page.waiting)) == (NOON, [])


async def test_list_pending__returns_fields_needed_for_scheduling(database: Database) -> None:
    (submission_id,) = await accept(database.store, gateway="pager")
    await make_attempt(database.store, await executor_fence(database.store), submission_id)
    await database.clock.set(LATER)
    page = await database.store.list_pending(None, 9)
    assert (page.now, list(page.waiting)) == (LATER, [pending_entry(submission_id, NOON + PAUSED, NOON, "pager")])


async def test_list_pending__returns_no_next_attempt_while_attempt_is_open(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    assert (await database.store.list_pending(None, 9)).waiting == [pending_entry(submission_id, None, NOON)]


async def test_list_pending__omits_submissions_that_are_not_pending(database: Database) -> None:
    fence = await executor_fence(database.store)
    delivered, failed, cancelled, waiting = await accept(database.store, 4)
    await make_attempt(database.store, fence, delivered, DELIVERED)
    await make_attempt(database.store, fence, failed, pause_microseconds=None)
    await cancel(database, cancelled)
    assert await waiting_ids(database) == [waiting]


async def waiting_ids(database: Database, after: Change | None = None) -> list[str]:
    return ids_of((await database.store.list_pending(after, 500)).waiting)


async def test_list_pending__is_ordered_by_last_change(database: Database) -> None:
    """The order does not depend on ids, and an attempt does not count as a change."""
    await drop_index(database, "submissions_waiting")
    first, second, third, fourth = await accept(database.store, 4)
    for number, submission_id in enumerate((third, first), start=1):
        await database.clock.set(NOON + number * SECONDS)
        await database.store.command_submissions(RETRY, [submission_id], None, draft())
    await make_attempt(database.store, await executor_fence(database.store), second)
    assert await waiting_ids(database) == [second, fourth, third, first]


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_list_pending__skips_no_submission_changed_at_same_instant(database: Database, page: int) -> None:
    made = await accept(database.store, 7)
    await database.clock.set(LATER)
    made += await accept(database.store, 4)
    assert ids_of(await list_all_pending(database.store, page)) == made


async def test_list_pending__starts_after_cursor_that_matches_no_row(database: Database) -> None:
    first, second = await accept(database.store, 2)
    await database.clock.set(LATER)
    (third,) = await accept(database.store)
    assert await waiting_ids(database, change_at(NOON - MICROSECOND, second)) == [first, second, third]
    assert await waiting_ids(database, change_at(NOON, first)) == [second, third]
    assert await waiting_ids(database, change_at(NOON + MICROSECOND, first)) == [third]
    assert await waiting_ids(database, change_at(LATER, third)) == []


@pytest.mark.parametrize("command", SubmissionCommand)
async def test_list_pending__reflects_commands_issued_after_cursor(
    database: Database, command: SubmissionCommand
) -> None:
    (submission_id,) = await accept(database.store)
    (before,) = (await database.store.list_pending(None, 9)).waiting
    await database.clock.set(LATER)
    await database.store.command_submissions(command, [submission_id], None, draft())
    expected = [pending_entry(submission_id, LATER, LATER)] if command is RETRY else []
    assert (await database.store.list_pending(change_of(before), 9)).waiting == expected


# Orphaned attempts


async def left_open(database: Database, count: int = 1) -> Sequence[str]:
    """Accepts submissions and begins an attempt of each in the first epoch. The attempts stay open. Returns the ids."""
    made = await accept(database.store, count)
    await database.store.begin_attempts(await executor_fence(database.store), made)
    return made


async def test_list_orphaned_attempts__finds_open_attempt_of_earlier_epoch(database: Database) -> None:
    (submission_id,) = await left_open(database)
    fence = await next_executor_fence(database.store)
    await database.clock.set(LATER)
    assert await close_orphaned(database.store, fence) == 1
    closed = Attempt(number=1, epoch=1, started_at=NOON, ended_at=LATER, outcome="unknown", error=LEFT_OPEN)
    assert await database.store.get_submission(submission_id, None) == (
        pending_submission(submission_id, NOON, attempts=1, unknowns=1, next_attempt_at=LATER, last_error=LEFT_OPEN),
        [closed],
    )
    assert await begin_one(database.store, fence, submission_id) == BeginAttemptResult(submission_id, BEGUN, 2, 0, 1)


async def test_list_orphaned_attempts__finds_open_attempt_of_later_epoch(database: Database) -> None:
    """If the lease of the executor is renamed, its epochs begin again at 1. So an open attempt can have a later epoch
    than the executor.
    """
    await left_open(database)
    assert [len(await database.store.list_orphaned_attempts(epoch, 9)) for epoch in (0, 1, 2)] == [1, 0, 1]


async def test_list_orphaned_attempts__returns_gateway_contract_and_number_of_unknowns(database: Database) -> None:
    (submission_id,) = await left_open(database)
    await close_orphaned(database.store, fence := await next_executor_fence(database.store))
    await begin_one(database.store, fence, submission_id)
    assert await database.store.list_orphaned_attempts(fence.epoch, 9) == []
    assert await database.store.list_orphaned_attempts(fence.epoch + 1, 9) == [
        OpenAttempt(submission_id, 2, "ledger", 1, CONTRACT)
    ]


async def test_list_orphaned_attempts__finds_nothing_when_repeated(database: Database) -> None:
    await left_open(database, 3)
    fence = await next_executor_fence(database.store)
    assert await close_orphaned(database.store, fence) == 3
    before = await all_tables(database)
    await database.clock.set(LATER)
    assert await close_orphaned(database.store, fence) == 0
    assert await all_tables(database) == before


async def test_list_orphaned_attempts__does_not_find_attempts_of_own_epoch(database: Database) -> None:
    (orphaned,) = await left_open(database)
    fence = await next_executor_fence(database.store)
    (mine,) = await accept(database.store)
    await begin_one(database.store, fence, mine)
    before = await database.store.get_submission(mine, None)
    await database.clock.set(LATER)
    assert await close_orphaned(database.store, fence) == 1
    assert await database.store.get_submission(mine, None) == before
    assert (await read_submission(database, orphaned)).next_attempt_at == LATER


async def test_list_orphaned_attempts__finds_attempt_of_cancelled_submission(database: Database) -> None:
    (submission_id,) = await left_open(database)
    await cancel(database, submission_id)
    before = await read_submission(database, submission_id)
    fence = await next_executor_fence(database.store)
    await database.clock.set(LATER)
    assert await close_orphaned(database.store, fence) == 1
    assert await read_submission(database, submission_id) == replace(before, unknowns=1, last_error=LEFT_OPEN)
    assert [each.outcome for each in await read_attempts(database, submission_id)] == ["unknown"]


async def test_list_orphaned_attempts__finds_attempt_of_submission_cancelled_and_retried(database: Database) -> None:
    (submission_id,) = await left_open(database)
    await cancel(database, submission_id)
    await database.store.command_submissions(RETRY, [submission_id], None, draft())
    await close_orphaned(database.store, await next_executor_fence(database.store))
    assert (await read_submission(database, submission_id)).next_attempt_at == NOON


async def test_list_orphaned_attempts__does_not_find_submission_without_open_attempt(database: Database) -> None:
    (waiting,) = await accept(database.store)
    await make_attempt(database.store, await executor_fence(database.store), waiting)
    before = await read_submission(database, waiting)
    assert await close_orphaned(database.store, await next_executor_fence(database.store)) == 0
    assert await read_submission(database, waiting) == before


async def test_list_orphaned_attempts__finds_at_most_limit_attempts(database: Database) -> None:
    made = await left_open(database, 5)
    fence = await next_executor_fence(database.store)
    assert [await close_orphaned(database.store, fence, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert {(await read_submission(database, each)).next_attempt_at for each in made} == {NOON}


async def test_list_orphaned_attempts__finds_attempts_left_open_by_several_epochs(database: Database) -> None:
    await left_open(database, 2)
    fence = await next_executor_fence(database.store)
    (another,) = await accept(database.store)
    await begin_one(database.store, fence, another)
    assert await close_orphaned(database.store, await next_executor_fence(database.store)) == 3


# Waiting reasons


async def test_note_waiting_reason__records_reason_as_last_error(database: Database) -> None:
    mine, other = await accept(database.store, 2)
    await database.clock.set(LATER)
    why = "gateway ledger is not configured: 漢字 🎟"
    await database.store.note_waiting_reason(await executor_fence(database.store), [mine, some_id()], why)
    assert await read_submission(database, mine) == pending_submission(mine, NOON, last_error=why)
    assert await read_submission(database, other) == pending_submission(other, NOON)


async def test_note_waiting_reason__changes_nothing_when_repeated(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    await database.store.note_waiting_reason(fence, [submission_id], "first")
    await database.store.note_waiting_reason(fence, [submission_id], "gone")
    before = await all_tables(database)
    await database.clock.set(LATER)
    await database.store.note_waiting_reason(fence, [submission_id], "gone")
    assert await all_tables(database) == before
    assert (await read_submission(database, submission_id)).last_error == "gone"


async def test_note_waiting_reason__does_not_change_submissions_that_are_not_pending(database: Database) -> None:
    fence = await executor_fence(database.store)
    delivered, failed, cancelled = made = await accept(database.store, 3)
    await make_attempt(database.store, fence, delivered, DELIVERED)
    await make_attempt(database.store, fence, failed, pause_microseconds=None)
    await cancel(database, cancelled)
    before = await all_tables(database)
    await database.store.note_waiting_reason(fence, made, "gone")
    assert await all_tables(database) == before


async def test_executor_lease_history_matches_epoch_and_holder_of_attempts(database: Database) -> None:
    """A query can join attempts with the history of the executor's lease by epoch and holder."""
    await begin_first_attempt(database)
    (stay,) = await read_table(database, "lease_history")
    (row,) = await read_table(database, "submission_attempts")
    assert (stay["name"], stay["epoch"], stay["holder"]) == (EXECUTOR, row["epoch"], row["holder"])
