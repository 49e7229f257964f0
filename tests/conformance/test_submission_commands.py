"""Submissions retried, cancelled and pruned, on every engine."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from tenure.domain.jobs import Pruned
from tenure.domain.submissions import SubmissionCommand, SubmissionFilter
from tests.support.audit_log import draft
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, all_tables, hold_lease, read_table
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import (
    accept,
    attempt_end,
    begin_one,
    close_orphaned,
    create_in_state,
    drop_index,
    executor_fence,
    make_attempt,
    pending_submission,
    read_attempts,
    read_submission,
    submit_request,
)

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
KEPT = timedelta(days=7)
PRUNE_LOCK = "job:prune"
RETRY, CANCEL = SubmissionCommand
IS_DELIVERED, IS_FAILED, IS_CANCELLED = "delivered", "failed", "cancelled"


# Commands


@pytest.mark.parametrize("state", [IS_FAILED, IS_CANCELLED, "pending"])
async def test_command_submissions__retry_resets_failures_and_makes_submission_due_now(
    database: Database, state: str
) -> None:
    fence = await executor_fence(database.store)
    (submission_id,) = await accept(database.store)
    pause = None if state == IS_FAILED else 3_600_000_000
    await make_attempt(database.store, fence, submission_id, pause_microseconds=pause, error="no luck")
    if state == IS_CANCELLED:
        await database.store.command_submissions(CANCEL, [submission_id], None, draft())
    later = NOON + SECONDS
    await database.clock.set(later)
    assert await database.store.command_submissions(RETRY, [submission_id], None, draft()) == {submission_id: True}
    assert await read_submission(database, submission_id) == pending_submission(
        submission_id, NOON, attempts=1, next_attempt_at=later, last_modified_at=later, last_error="no luck"
    )
    assert (await begin_one(database.store, fence, submission_id)).number == 2


@pytest.mark.parametrize("state", [IS_FAILED, "pending"])
async def test_command_submissions__cancels_undelivered_submission(database: Database, state: str) -> None:
    submission_id = await create_in_state(database.store, state)
    before = await read_submission(database, submission_id)
    later = NOON + SECONDS
    await database.clock.set(later)
    assert await database.store.command_submissions(CANCEL, [submission_id], None, draft()) == {submission_id: True}
    assert await read_submission(database, submission_id) == replace(
        before, state=IS_CANCELLED, next_attempt_at=None, ended_at=later, last_modified_at=later
    )


@pytest.mark.parametrize("command", SubmissionCommand)
async def test_command_submissions__does_not_change_delivered_submission(
    database: Database, command: SubmissionCommand
) -> None:
    submission_id = await create_in_state(database.store, IS_DELIVERED)
    before = await all_tables(database)
    await database.clock.set(NOON + SECONDS)
    assert await database.store.command_submissions(command, [submission_id], None, draft()) == {submission_id: False}
    assert await all_tables(database) == before


async def test_command_submissions__cancel_succeeds_and_changes_nothing_when_repeated(database: Database) -> None:
    submission_id = await create_in_state(database.store, IS_CANCELLED)
    before = await all_tables(database)
    await database.clock.set(NOON + SECONDS)
    assert await database.store.command_submissions(CANCEL, [submission_id], None, draft()) == {submission_id: True}
    assert await all_tables(database) == before


async def test_command_submissions__retry_does_not_start_second_attempt_when_repeated(database: Database) -> None:
    submission_id = await create_in_state(database.store, IS_FAILED)
    fence = await executor_fence(database.store)
    await database.store.command_submissions(RETRY, [submission_id], None, draft())
    await begin_one(database.store, fence, submission_id)
    assert await database.store.command_submissions(RETRY, [submission_id], None, draft()) == {submission_id: True}
    assert (await read_submission(database, submission_id)).next_attempt_at is None
    assert len(await read_attempts(database, submission_id)) == 2


@pytest.mark.parametrize("cancelled", [False, True])
async def test_command_submissions__retry_during_open_attempt_takes_effect_after_it_fails(
    database: Database, cancelled: bool
) -> None:
    """A submission that is cancelled during an attempt can be retried while the attempt is still open."""
    fence = await executor_fence(database.store)
    (submission_id,) = await accept(database.store)
    await begin_one(database.store, fence, submission_id)
    if cancelled:
        await database.store.command_submissions(CANCEL, [submission_id], None, draft())
    assert await database.store.command_submissions(RETRY, [submission_id], None, draft()) == {submission_id: True}
    retried = pending_submission(
        submission_id, NOON, attempts=1, next_attempt_at=None, last_modified_at=NOON + MICROSECOND
    )
    assert await read_submission(database, submission_id) == retried
    await database.store.finish_attempts(fence, [attempt_end(submission_id, pause_microseconds=0)])
    begun = await begin_one(database.store, fence, submission_id)
    assert (begun.number, begun.failures) == (2, 0)


async def test_command_submissions__retry_is_not_lost_after_clock_step_back(database: Database) -> None:
    fence = await executor_fence(database.store)
    (submission_id,) = await accept(database.store)
    await begin_one(database.store, fence, submission_id)
    await database.clock.set(NOON - SECONDS)
    await database.store.command_submissions(RETRY, [submission_id], None, draft())
    (moved,) = await database.store.finish_attempts(fence, [attempt_end(submission_id, pause_microseconds=None)])
    assert (moved.state, moved.next_attempt_at) == ("pending", NOON - SECONDS)


async def test_finish_attempts__does_not_mistake_clock_step_back_for_retry(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    first = await executor_fence(database.store)
    await begin_one(database.store, first, submission_id)
    await database.clock.set(NOON - SECONDS)
    await database.store.release_lease(first)
    second = await executor_fence(database.store)
    await close_orphaned(database.store, second, 1)
    begun = await begin_one(database.store, second, submission_id)
    failed = attempt_end(submission_id, number=2, counts=True, pause_microseconds=7)
    (moved,) = await database.store.finish_attempts(second, [failed])
    assert (begun.number, moved.next_attempt_at) == (2, NOON - SECONDS + 7 * MICROSECOND)
    assert (await read_submission(database, submission_id)).failures == 1


async def test_command_submissions__returns_only_existing_submissions(database: Database) -> None:
    delivered = await create_in_state(database.store, IS_DELIVERED)
    (waiting, untouched) = await accept(database.store, 2)
    before = await read_submission(database, untouched)
    result = await database.store.command_submissions(CANCEL, [some_id(), waiting, delivered], None, draft())
    assert result == {waiting: True, delivered: False}
    assert await read_submission(database, untouched) == before


# Pruning


async def ids(database: Database) -> list[str]:
    return [found.submission_id for found in await database.store.list_submissions(SubmissionFilter(), None, 500)]


async def prune(database: Database, limit: int = 9) -> int:
    pruned = await database.store.prune(await hold_lease(database.store, PRUNE_LOCK), limit)
    assert replace(pruned, submissions=0) == Pruned(0, 0, 0)
    return pruned.submissions


@pytest.mark.parametrize("state", [IS_DELIVERED, IS_CANCELLED])
async def test_prune__keeps_delivered_and_cancelled_submissions_for_seven_days(database: Database, state: str) -> None:
    ends = [NOON - MICROSECOND, NOON, NOON + MICROSECOND]
    made = []
    for ended_at in ends:
        await database.clock.set(ended_at)
        made.append(await create_in_state(database.store, state))
    await database.clock.set(NOON + KEPT)
    assert await prune(database) == 1
    assert set(await ids(database)) == set(made[1:])


@pytest.mark.parametrize("state", ["pending", IS_FAILED])
async def test_prune__keeps_pending_and_failed_submissions(database: Database, state: str) -> None:
    submission_id = await create_in_state(database.store, state)
    await database.clock.set(NOON + 100 * KEPT)
    assert await prune(database) == 0
    assert await ids(database) == [submission_id]


async def test_prune__deletes_attempts_of_pruned_submissions_only(database: Database) -> None:
    fence = await executor_fence(database.store)
    over, waiting = await accept(database.store, 2)
    for submission_id in (over, waiting):
        await make_attempt(database.store, fence, submission_id, pause_microseconds=0)
        await begin_one(database.store, fence, submission_id)
    await database.store.command_submissions(CANCEL, [over], None, draft())
    await database.clock.set(NOON + KEPT + MICROSECOND)
    assert await prune(database) == 1
    rows = await read_table(database, "submission_attempts")
    assert [(row["submission_id"], row["number"]) for row in rows] == [(waiting, 1), (waiting, 2)]


async def test_prune__deletes_submissions_in_order_of_their_ends(database: Database) -> None:
    await drop_index(database, "submissions_ended_at")
    made = await accept(database.store, 4)
    for number, second in enumerate((1, 3, 0, 2)):
        await database.clock.set(NOON + second * SECONDS)
        await database.store.command_submissions(CANCEL, [made[number]], None, draft())
    await database.clock.set(NOON + 2 * KEPT)
    assert await prune(database, 2) == 2
    assert await ids(database) == [made[3], made[1]]


async def test_prune__frees_idempotency_key(database: Database) -> None:
    await create_in_state(database.store, IS_CANCELLED, key="once", payload=b"the first")
    await database.clock.set(NOON + KEPT + MICROSECOND)
    await prune(database)
    (result,) = await database.store.accept_submissions([submit_request(key="once", payload=b"the second")])
    assert (result.same, result.new) == (True, True)
