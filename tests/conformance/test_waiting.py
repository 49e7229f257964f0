"""What waits to be sent, and what an executor has left open, on every engine."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from tenure.model.submissions import (
    Attempt,
    BeginAttemptFound,
    BegunAttempt,
    Change,
    SubmissionCommand,
)
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, all_tables, table
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
from tests.support.wishes import NOON, some_id

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
LATER = NOON + 7 * SECONDS
BEGUN = BeginAttemptFound.BEGUN
RETRY = SubmissionCommand.RETRY
LEFT_OPEN = "whoever sent it did not say what became of it"


# What waits


async def test_list_waiting__tells_the_clock_although_nothing_waits(database: Database) -> None:
    page = await database.store.list_waiting(None, 9)
    assert (page.now, list(page.waiting)) == (NOON, [])


async def test_list_waiting__tells_of_each_what_a_schedule_needs(database: Database) -> None:
    (submission_id,) = await accept(database.store, gateway="pager")
    await attempt(database.store, await executor(database.store), submission_id)
    await database.clock.set(LATER)
    page = await database.store.list_waiting(None, 9)
    assert (page.now, list(page.waiting)) == (LATER, [waits(submission_id, NOON + PAUSED, NOON, "pager")])


async def test_list_waiting__tells_what_is_under_way_as_having_no_next_attempt(database: Database) -> None:
    submission_id = await under_way(database)
    assert (await database.store.list_waiting(None, 9)).waiting == [waits(submission_id, None, NOON)]


async def test_list_waiting__leaves_out_what_is_over(database: Database) -> None:
    fence = await executor(database.store)
    delivered, failed, cancelled, waiting = await accept(database.store, 4)
    await attempt(database.store, fence, delivered, DELIVERED)
    await attempt(database.store, fence, failed, pause_microseconds=None)
    await cancel(database, cancelled)
    assert await waiting_ids(database) == [waiting]


async def waiting_ids(database: Database, after: Change | None = None) -> list[str]:
    return ids_of((await database.store.list_waiting(after, 500)).waiting)


async def test_list_waiting__is_in_the_order_of_the_changes(database: Database) -> None:
    """Not of the ids, and an attempt is no change."""
    await drop_index(database, "submissions_waiting")
    first, second, third, fourth = await accept(database.store, 4)
    for number, submission_id in enumerate((third, first), start=1):
        await database.clock.set(NOON + number * SECONDS)
        await database.store.command_submissions(RETRY, [submission_id])
    await attempt(database.store, await executor(database.store), second)
    assert await waiting_ids(database) == [second, fourth, third, first]


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_list_waiting__skips_none_of_those_that_were_changed_at_the_same_instant(
    database: Database, page: int
) -> None:
    made = await accept(database.store, 7)
    await database.clock.set(LATER)
    made += await accept(database.store, 4)
    assert ids_of(await all_waiting(database.store, page)) == made


async def test_list_waiting__begins_after_a_place_at_which_nothing_is(database: Database) -> None:
    first, second = await accept(database.store, 2)
    await database.clock.set(LATER)
    (third,) = await accept(database.store)
    assert await waiting_ids(database, changed(NOON - MICROSECOND, second)) == [first, second, third]
    assert await waiting_ids(database, changed(NOON, first)) == [second, third]
    assert await waiting_ids(database, changed(NOON + MICROSECOND, first)) == [third]
    assert await waiting_ids(database, changed(LATER, third)) == []


@pytest.mark.parametrize("command", SubmissionCommand)
async def test_list_waiting__tells_after_its_cursor_what_was_commanded_since(
    database: Database, command: SubmissionCommand
) -> None:
    (submission_id,) = await accept(database.store)
    (before,) = (await database.store.list_waiting(None, 9)).waiting
    await database.clock.set(LATER)
    await database.store.command_submissions(command, [submission_id])
    expected = [waits(submission_id, LATER, LATER)] if command is RETRY else []
    assert (await database.store.list_waiting(place(before), 9)).waiting == expected


# What an executor has left open


async def left_open(database: Database, count: int = 1) -> Sequence[str]:
    """By an executor of the first epoch."""
    made = await accept(database.store, count)
    await database.store.begin_attempts(await executor(database.store), made)
    return made


async def test_close_unknown__makes_what_was_left_open_due_at_once(database: Database) -> None:
    (submission_id,) = await left_open(database)
    fence = await next_executor(database.store)
    await database.clock.set(LATER)
    assert await database.store.close_unknown(fence, 9) == 1
    closed = Attempt(number=1, epoch=1, started_at=NOON, ended_at=LATER, outcome="unknown", error=LEFT_OPEN)
    assert await database.store.get_submission(submission_id) == (
        pending(submission_id, NOON, attempts=1, next_attempt_at=LATER),
        [closed],
    )
    assert await begin_one(database.store, fence, submission_id) == BegunAttempt(submission_id, BEGUN, 2, 0)


async def test_close_unknown__finds_nothing_more_when_repeated(database: Database) -> None:
    await left_open(database, 3)
    fence = await next_executor(database.store)
    assert await database.store.close_unknown(fence, 9) == 3
    before = await all_tables(database)
    await database.clock.set(LATER)
    assert await database.store.close_unknown(fence, 9) == 0
    assert await all_tables(database) == before


async def test_close_unknown__does_not_touch_attempts_of_its_own_epoch(database: Database) -> None:
    (theirs,) = await left_open(database)
    fence = await next_executor(database.store)
    (mine,) = await accept(database.store)
    await begin_one(database.store, fence, mine)
    before = await database.store.get_submission(mine)
    await database.clock.set(LATER)
    assert await database.store.close_unknown(fence, 9) == 1
    assert await database.store.get_submission(mine) == before
    assert (await one(database, theirs)).next_attempt_at == LATER


async def test_close_unknown__leaves_cancelled_what_was_cancelled(database: Database) -> None:
    (submission_id,) = await left_open(database)
    await cancel(database, submission_id)
    before = await one(database, submission_id)
    fence = await next_executor(database.store)
    await database.clock.set(LATER)
    assert await database.store.close_unknown(fence, 9) == 1
    assert await one(database, submission_id) == before
    assert [each.outcome for each in await attempts(database, submission_id)] == ["unknown"]


async def test_close_unknown__makes_due_what_was_retried_while_its_attempt_was_open(database: Database) -> None:
    (submission_id,) = await left_open(database)
    await cancel(database, submission_id)
    await database.store.command_submissions(RETRY, [submission_id])
    await database.store.close_unknown(await next_executor(database.store), 9)
    assert (await one(database, submission_id)).next_attempt_at == NOON


async def test_close_unknown__leaves_what_waits(database: Database) -> None:
    (waiting,) = await accept(database.store)
    await attempt(database.store, await executor(database.store), waiting)
    before = await one(database, waiting)
    assert await database.store.close_unknown(await next_executor(database.store), 9) == 0
    assert await one(database, waiting) == before


async def test_close_unknown__closes_no_more_than_asked(database: Database) -> None:
    made = await left_open(database, 5)
    fence = await next_executor(database.store)
    assert [await database.store.close_unknown(fence, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert {(await one(database, each)).next_attempt_at for each in made} == {NOON}


async def test_close_unknown__closes_what_several_epochs_have_left_open(database: Database) -> None:
    await left_open(database, 2)
    fence = await next_executor(database.store)
    (another,) = await accept(database.store)
    await begin_one(database.store, fence, another)
    assert await database.store.close_unknown(await next_executor(database.store), 9) == 3


# What waits for its gateway


async def test_explain_waiting__says_why_it_is_not_sent(database: Database) -> None:
    mine, other = await accept(database.store, 2)
    await database.clock.set(LATER)
    why = "gateway ledger is not configured: 漢字 🎟"
    await database.store.explain_waiting(await executor(database.store), [mine, some_id()], why)
    assert await one(database, mine) == pending(mine, NOON, last_error=why)
    assert await one(database, other) == pending(other, NOON)


async def test_explain_waiting__changes_nothing_twice(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor(database.store)
    await database.store.explain_waiting(fence, [submission_id], "first")
    await database.store.explain_waiting(fence, [submission_id], "gone")
    before = await all_tables(database)
    await database.clock.set(LATER)
    await database.store.explain_waiting(fence, [submission_id], "gone")
    assert await all_tables(database) == before
    assert (await one(database, submission_id)).last_error == "gone"


async def test_explain_waiting__leaves_what_is_over(database: Database) -> None:
    fence = await executor(database.store)
    delivered, failed, cancelled = made = await accept(database.store, 3)
    await attempt(database.store, fence, delivered, DELIVERED)
    await attempt(database.store, fence, failed, pause_microseconds=None)
    await cancel(database, cancelled)
    before = await all_tables(database)
    await database.store.explain_waiting(fence, made, "gone")
    assert await all_tables(database) == before


async def test_the_executors_lease_is_none_of_the_jobs(database: Database) -> None:
    """So that its epochs have a history, on which attempts can be joined."""
    await under_way(database)
    (stay,) = await table(database, "lease_history")
    (row,) = await table(database, "submission_attempts")
    assert (stay["name"], stay["epoch"], stay["holder"]) == (EXECUTOR, row["epoch"], row["holder"])
