"""Submissions retried, cancelled and pruned, on every engine."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from tenure.model.leases import Pruned
from tenure.model.submissions import (
    SubmissionCommand,
    SubmissionFilter,
)
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, all_tables, held, table
from tests.support.submissions import (
    accept,
    attempt,
    attempts,
    begin_one,
    drop_index,
    end,
    executor,
    one,
    pending,
    put_in_state,
    submit,
)
from tests.support.wishes import NOON, some_id

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
KEPT = timedelta(days=7)
PRUNE_LOCK = "job:prune"
RETRY, CANCEL = SubmissionCommand
IS_DELIVERED, IS_FAILED, IS_CANCELLED = "delivered", "failed", "cancelled"


# Commands


@pytest.mark.parametrize("state", [IS_FAILED, IS_CANCELLED, "pending"])
async def test_command_submissions__retries_with_all_its_attempts_before_it_again(
    database: Database, state: str
) -> None:
    fence = await executor(database.store)
    (submission_id,) = await accept(database.store)
    pause = None if state == IS_FAILED else 3_600_000_000
    await attempt(database.store, fence, submission_id, pause_microseconds=pause, error="no luck")
    if state == IS_CANCELLED:
        await database.store.command_submissions(CANCEL, [submission_id])
    later = NOON + SECONDS
    await database.clock.set(later)
    assert await database.store.command_submissions(RETRY, [submission_id]) == {submission_id: True}
    assert await one(database, submission_id) == pending(
        submission_id, NOON, attempts=1, next_attempt_at=later, last_modified_at=later, last_error="no luck"
    )
    assert (await begin_one(database.store, fence, submission_id)).number == 2


@pytest.mark.parametrize("state", [IS_FAILED, "pending"])
async def test_command_submissions__cancels_what_is_not_delivered(database: Database, state: str) -> None:
    submission_id = await put_in_state(database.store, state)
    before = await one(database, submission_id)
    later = NOON + SECONDS
    await database.clock.set(later)
    assert await database.store.command_submissions(CANCEL, [submission_id]) == {submission_id: True}
    assert await one(database, submission_id) == replace(
        before, state=IS_CANCELLED, next_attempt_at=None, ended_at=later, last_modified_at=later
    )


@pytest.mark.parametrize("command", SubmissionCommand)
async def test_command_submissions__leaves_what_is_delivered(database: Database, command: SubmissionCommand) -> None:
    submission_id = await put_in_state(database.store, IS_DELIVERED)
    before = await all_tables(database)
    await database.clock.set(NOON + SECONDS)
    assert await database.store.command_submissions(command, [submission_id]) == {submission_id: False}
    assert await all_tables(database) == before


async def test_command_submissions__finds_its_own_cancelling_when_repeated(database: Database) -> None:
    submission_id = await put_in_state(database.store, IS_CANCELLED)
    before = await all_tables(database)
    await database.clock.set(NOON + SECONDS)
    assert await database.store.command_submissions(CANCEL, [submission_id]) == {submission_id: True}
    assert await all_tables(database) == before


async def test_command_submissions__does_not_begin_a_retried_one_twice_when_repeated(database: Database) -> None:
    submission_id = await put_in_state(database.store, IS_FAILED)
    fence = await executor(database.store)
    await database.store.command_submissions(RETRY, [submission_id])
    await begin_one(database.store, fence, submission_id)
    assert await database.store.command_submissions(RETRY, [submission_id]) == {submission_id: True}
    assert (await one(database, submission_id)).next_attempt_at is None
    assert len(await attempts(database, submission_id)) == 2


@pytest.mark.parametrize("cancelled", [False, True])
async def test_command_submissions__retries_what_is_under_way_once_that_has_failed(
    database: Database, cancelled: bool
) -> None:
    """Also if it was cancelled in between: its attempt is still under way."""
    fence = await executor(database.store)
    (submission_id,) = await accept(database.store)
    await begin_one(database.store, fence, submission_id)
    if cancelled:
        await database.store.command_submissions(CANCEL, [submission_id])
    assert await database.store.command_submissions(RETRY, [submission_id]) == {submission_id: True}
    retried = pending(submission_id, NOON, attempts=1, next_attempt_at=None, last_modified_at=NOON + MICROSECOND)
    assert await one(database, submission_id) == retried
    await database.store.finish_attempts(fence, [end(submission_id, pause_microseconds=0)])
    begun = await begin_one(database.store, fence, submission_id)
    assert (begun.number, begun.failures) == (2, 0)


async def test_command_submissions__loses_no_retry_to_a_clock_that_was_stepped_back(database: Database) -> None:
    fence = await executor(database.store)
    (submission_id,) = await accept(database.store)
    await begin_one(database.store, fence, submission_id)
    await database.clock.set(NOON - SECONDS)
    await database.store.command_submissions(RETRY, [submission_id])
    (moved,) = await database.store.finish_attempts(fence, [end(submission_id, pause_microseconds=None)])
    assert (moved.state, moved.next_attempt_at) == ("pending", NOON - SECONDS)


async def test_finish_attempts__takes_nothing_for_retried_since_the_clock_was_stepped_back(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    first = await executor(database.store)
    await begin_one(database.store, first, submission_id)
    await database.clock.set(NOON - SECONDS)
    await database.store.release_lease(first)
    second = await executor(database.store)
    await database.store.close_unknown(second, 1)
    begun = await begin_one(database.store, second, submission_id)
    failed = end(submission_id, number=2, counts=True, pause_microseconds=7)
    (moved,) = await database.store.finish_attempts(second, [failed])
    assert (begun.number, moved.next_attempt_at) == (2, NOON - SECONDS + 7 * MICROSECOND)
    assert (await one(database, submission_id)).failures == 1


async def test_command_submissions__tells_only_of_what_exists(database: Database) -> None:
    delivered = await put_in_state(database.store, IS_DELIVERED)
    (waiting, untouched) = await accept(database.store, 2)
    before = await one(database, untouched)
    told = await database.store.command_submissions(CANCEL, [some_id(), waiting, delivered])
    assert told == {waiting: True, delivered: False}
    assert await one(database, untouched) == before


# Pruning


async def ids(database: Database) -> list[str]:
    return [found.submission_id for found in await database.store.list_submissions(SubmissionFilter(), None, 500)]


async def prune(database: Database, limit: int = 9) -> int:
    pruned = await database.store.prune(await held(database.store, PRUNE_LOCK), limit)
    assert replace(pruned, submissions=0) == Pruned(0, 0, 0)
    return pruned.submissions


@pytest.mark.parametrize("state", [IS_DELIVERED, IS_CANCELLED])
async def test_prune__keeps_what_is_over_for_seven_days_after_its_end(database: Database, state: str) -> None:
    ends = [NOON - MICROSECOND, NOON, NOON + MICROSECOND]
    made = []
    for ended_at in ends:
        await database.clock.set(ended_at)
        made.append(await put_in_state(database.store, state))
    await database.clock.set(NOON + KEPT)
    assert await prune(database) == 1
    assert set(await ids(database)) == set(made[1:])


@pytest.mark.parametrize("state", ["pending", IS_FAILED])
async def test_prune__keeps_what_is_not_over(database: Database, state: str) -> None:
    submission_id = await put_in_state(database.store, state)
    await database.clock.set(NOON + 100 * KEPT)
    assert await prune(database) == 0
    assert await ids(database) == [submission_id]


async def test_prune__takes_the_attempts_along_and_leaves_those_of_others(database: Database) -> None:
    fence = await executor(database.store)
    over, waiting = await accept(database.store, 2)
    for submission_id in (over, waiting):
        await attempt(database.store, fence, submission_id, pause_microseconds=0)
        await begin_one(database.store, fence, submission_id)
    await database.store.command_submissions(CANCEL, [over])
    await database.clock.set(NOON + KEPT + MICROSECOND)
    assert await prune(database) == 1
    rows = await table(database, "submission_attempts")
    assert [(row["submission_id"], row["number"]) for row in rows] == [(waiting, 1), (waiting, 2)]


async def test_prune__begins_with_the_submissions_that_ended_first(database: Database) -> None:
    await drop_index(database, "submissions_ended_at")
    made = await accept(database.store, 4)
    for number, second in enumerate((1, 3, 0, 2)):
        await database.clock.set(NOON + second * SECONDS)
        await database.store.command_submissions(CANCEL, [made[number]])
    await database.clock.set(NOON + 2 * KEPT)
    assert await prune(database, 2) == 2
    assert await ids(database) == [made[3], made[1]]


async def test_prune__makes_a_key_free_again(database: Database) -> None:
    await put_in_state(database.store, IS_CANCELLED, key="once", payload=b"the first")
    await database.clock.set(NOON + KEPT + MICROSECOND)
    await prune(database)
    (told,) = await database.store.accept_submissions([submit(key="once", payload=b"the second")])
    assert (told.same, told.new) == (True, True)
