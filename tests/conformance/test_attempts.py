"""Attempts of submissions, on every engine: numbered and fenced, with at most one open attempt per submission."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.domain.leases import Fence
from tenure.domain.submissions import (
    Attempt,
    AttemptOutcome,
    BeginAttemptOutcome,
    BeginAttemptResult,
    SubmissionCommand,
    SubmissionStatus,
)
from tenure.errors import ERROR_MAX
from tenure.store.limits import BATCH_MAX
from tests.support.audit_log import draft
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, all_tables, read_table
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import (
    ABANDONED,
    DELIVERED,
    FAILED,
    PAUSE,
    PAUSED,
    UNKNOWN,
    accept,
    attempt_end,
    begin_first_attempt,
    begin_one,
    cancel,
    close_orphaned,
    executor_fence,
    make_attempt,
    next_executor_fence,
    pending_submission,
    read_attempts,
    read_submission,
)

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
LATER = NOON + 7 * SECONDS
BEGUN, NOT_DUE, OVER = BeginAttemptOutcome.BEGUN, BeginAttemptOutcome.LATER, BeginAttemptOutcome.OVER
RETRY = SubmissionCommand.RETRY


# Beginning


async def test_begin_attempts__records_open_attempt(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    await database.clock.set(LATER)
    result = await database.store.begin_attempts(fence, [submission_id])
    assert (result.now, list(result.attempts)) == (
        LATER,
        [BeginAttemptResult(submission_id, BEGUN, number=1, failures=0)],
    )
    assert await database.store.get_submission(submission_id, None) == (
        pending_submission(submission_id, NOON, attempts=1, next_attempt_at=None),
        [Attempt(number=1, epoch=fence.epoch, started_at=LATER)],
    )
    (row,) = await read_table(database, "submission_attempts")
    assert row["holder"] == fence.holder


async def test_begin_attempts__skips_submission_that_is_not_due(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, submission_id)
    before = await all_tables(database)
    await database.clock.set(NOON + PAUSED - MICROSECOND)
    result = await begin_one(database.store, fence, submission_id)
    assert (result.found, result.number, result.next_attempt_at) == (NOT_DUE, None, NOON + PAUSED)
    assert await all_tables(database) == before


async def test_begin_attempts__begins_attempt_at_instant_it_is_due(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, submission_id)
    await database.clock.set(NOON + PAUSED)
    result = await begin_one(database.store, fence, submission_id)
    assert result == BeginAttemptResult(submission_id, BEGUN, number=2, failures=1)


@pytest.mark.parametrize("how", ["delivered", "failed", "cancelled", "not there"])
async def test_begin_attempts__skips_ended_and_unknown_submissions(database: Database, how: str) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    if how == "delivered":
        await make_attempt(database.store, fence, submission_id, DELIVERED)
    elif how == "failed":
        await make_attempt(database.store, fence, submission_id, pause_microseconds=None)
    elif how == "cancelled":
        await cancel(database, submission_id)
    else:
        submission_id = some_id()
    before = await all_tables(database)
    await database.clock.set(LATER)
    result = await begin_one(database.store, fence, submission_id)
    assert (result.submission_id, result.found, result.next_attempt_at) == (submission_id, OVER, None)
    assert await all_tables(database) == before


async def test_begin_attempts__returns_same_attempt_when_repeated(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    before = await all_tables(database)
    await database.clock.set(LATER)
    result = await begin_one(database.store, await executor_fence(database.store), submission_id)
    assert result == BeginAttemptResult(submission_id, BEGUN, number=1, failures=0)
    assert await all_tables(database) == before


async def test_begin_attempts__does_not_return_open_attempt_of_older_epoch(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    fence = await next_executor_fence(database.store)
    before = await all_tables(database)
    result = await begin_one(database.store, fence, submission_id)
    assert (result.found, result.number) == (NOT_DUE, None)
    assert await all_tables(database) == before


async def test_begin_attempts__does_not_return_closed_attempt_of_same_epoch(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    fence = await executor_fence(database.store)
    await database.store.finish_attempts(fence, [attempt_end(submission_id)])
    assert (await begin_one(database.store, fence, submission_id)).found is NOT_DUE


async def test_begin_attempts__returns_result_for_every_requested_submission(database: Database) -> None:
    fence = await executor_fence(database.store)
    made = await accept(database.store, BATCH_MAX - 1)
    for submission_id in made[::3]:
        await cancel(database, submission_id)
    for submission_id in made[1::3]:
        await make_attempt(database.store, fence, submission_id)
    unknown = some_id()
    expected = dict(zip(made, [OVER, NOT_DUE, BEGUN] * BATCH_MAX, strict=False)) | {unknown: OVER}
    result = await database.store.begin_attempts(fence, [unknown, *made[::-1]])
    assert len(result.attempts) == BATCH_MAX
    assert {each.submission_id: each.found for each in result.attempts} == expected


async def test_begin_attempts__numbers_attempts_without_gaps(database: Database) -> None:
    """The numbers continue across failures, epochs, commands, repetitions and calls without effect."""
    (submission_id,) = await accept(database.store)
    store, fence = database.store, await executor_fence(database.store)
    await make_attempt(store, fence, submission_id)
    await begin_one(store, fence, submission_id)
    await store.command_submissions(RETRY, [submission_id], None, draft())
    await make_attempt(store, fence, submission_id, pause_microseconds=None)
    await begin_one(store, fence, submission_id)
    await store.command_submissions(RETRY, [submission_id], None, draft())
    await begin_one(store, fence, submission_id)
    fence = await next_executor_fence(store)
    await close_orphaned(store, fence)
    await begin_one(store, fence, submission_id)
    await make_attempt(store, fence, submission_id, DELIVERED)
    found = await read_attempts(database, submission_id)
    assert [(each.number, each.epoch, each.outcome) for each in found] == [
        (1, 1, "failed"),
        (2, 1, "failed"),
        (3, 1, "unknown"),
        (4, 2, "delivered"),
    ]


# Early attempts


async def waiting_for_retry(database: Database, **given: Any) -> tuple[Fence, str]:
    """Returns a fence of the executor, and the id of a submission whose first attempt failed at noon."""
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, submission_id, **given)
    return fence, submission_id


async def begin_early(database: Database, fence: Fence, submission_id: str) -> BeginAttemptResult:
    (result,) = (await database.store.begin_attempts(fence, [submission_id], [submission_id])).attempts
    return result


async def test_begin_attempts__begins_early_attempt_before_due_time(database: Database) -> None:
    fence, submission_id = await waiting_for_retry(database)
    await database.clock.set(LATER)
    begun = await begin_early(database, fence, submission_id)
    due_at = NOON + PAUSED
    assert begun == BeginAttemptResult(submission_id, BEGUN, number=2, failures=1, was_due_at=due_at)
    assert (await read_submission(database, submission_id)).next_attempt_at is None
    assert (await read_attempts(database, submission_id))[1] == Attempt(
        number=2, epoch=1, started_at=LATER, was_due_at=due_at
    )


async def test_begin_attempts__returns_same_early_attempt_when_repeated(database: Database) -> None:
    """The caller repeats the call because the answer to the first call was lost."""
    fence, submission_id = await waiting_for_retry(database)
    begun = await begin_early(database, fence, submission_id)
    before = await all_tables(database)
    await database.clock.set(LATER)
    assert await begin_early(database, fence, submission_id) == begun
    assert await begin_one(database.store, fence, submission_id) == begun
    assert await all_tables(database) == before


async def test_begin_attempts__does_not_begin_early_during_binding_pause(database: Database) -> None:
    fence, submission_id = await waiting_for_retry(database, is_binding=True)
    before = await all_tables(database)
    result = await begin_early(database, fence, submission_id)
    assert (result.found, result.next_attempt_at) == (NOT_DUE, NOON + PAUSED)
    assert await all_tables(database) == before
    await database.clock.set(NOON + PAUSED)
    assert await begin_early(database, fence, submission_id) == BeginAttemptResult(submission_id, BEGUN, 2, 1)


async def test_begin_attempts__does_not_begin_early_during_open_attempt_of_older_epoch(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    fence = await next_executor_fence(database.store)
    assert (await begin_early(database, fence, submission_id)).found is NOT_DUE


async def test_begin_attempts__begins_only_named_submissions_early(database: Database) -> None:
    fence = await executor_fence(database.store)
    made = await accept(database.store, 3)
    for submission_id in made[:2]:
        await make_attempt(database.store, fence, submission_id)
    result = await database.store.begin_attempts(fence, made, made[1:])
    found = {each.submission_id: (each.found, each.was_due_at) for each in result.attempts}
    assert found == dict(zip(made, [(NOT_DUE, None), (BEGUN, NOON + PAUSED), (BEGUN, None)], strict=True))


async def test_begin_attempts__begins_retried_submission_as_due(database: Database) -> None:
    fence, submission_id = await waiting_for_retry(database, is_binding=True)
    await database.store.command_submissions(RETRY, [submission_id], None, draft())
    assert await begin_early(database, fence, submission_id) == BeginAttemptResult(submission_id, BEGUN, 2, 0)


# Ending


async def test_finish_attempts__marks_submission_delivered(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    fence = await executor_fence(database.store)
    await database.clock.set(LATER)
    moved = await database.store.finish_attempts(fence, [attempt_end(submission_id, outcome=DELIVERED, status=204)])
    assert moved == [SubmissionStatus(submission_id, "delivered", None)]
    assert await database.store.get_submission(submission_id, None) == (
        pending_submission(submission_id, NOON, state="delivered", attempts=1, next_attempt_at=None, ended_at=LATER),
        [Attempt(number=1, epoch=1, started_at=NOON, ended_at=LATER, outcome="delivered", status=204)],
    )


async def test_finish_attempts__clears_last_error_when_delivered(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, submission_id, pause_microseconds=0)
    await make_attempt(database.store, fence, submission_id, DELIVERED, status=409, error="has it already")
    found = await read_submission(database, submission_id)
    assert (found.last_error, found.failures, found.attempts) == (None, 1, 2)
    assert [each.error for each in await read_attempts(database, submission_id)] == [
        "answered 500 to number 1",
        "has it already",
    ]


async def test_finish_attempts__schedules_retry_after_failure(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    fence = await executor_fence(database.store)
    await database.clock.set(LATER)
    moved = await database.store.finish_attempts(
        fence, [attempt_end(submission_id, status=503, pause_microseconds=PAUSE + 1)]
    )
    again_at = LATER + PAUSED + MICROSECOND
    error = "answered 500 to number 1"
    assert moved == [SubmissionStatus(submission_id, "pending", again_at)]
    assert await database.store.get_submission(submission_id, None) == (
        pending_submission(submission_id, NOON, attempts=1, failures=1, next_attempt_at=again_at, last_error=error),
        [Attempt(number=1, epoch=1, started_at=NOON, ended_at=LATER, outcome="failed", status=503, error=error)],
    )


async def test_finish_attempts__marks_submission_failed_if_no_retry_follows(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    fence = await executor_fence(database.store)
    await database.clock.set(LATER)
    gone = attempt_end(submission_id, status=410, error="gone", pause_microseconds=None)
    assert await database.store.finish_attempts(fence, [gone]) == [SubmissionStatus(submission_id, "failed", None)]
    assert await read_submission(database, submission_id) == pending_submission(
        submission_id,
        NOON,
        state="failed",
        attempts=1,
        failures=1,
        next_attempt_at=None,
        last_error="gone",
        ended_at=LATER,
    )


@pytest.mark.parametrize("outcome", [FAILED, ABANDONED, UNKNOWN])
@pytest.mark.parametrize("counts", [False, True])
async def test_finish_attempts__counts_failure_only_when_counts_is_set(
    database: Database, outcome: AttemptOutcome, counts: bool
) -> None:
    submission_id = await begin_first_attempt(database)
    fence = await executor_fence(database.store)
    without_answer = attempt_end(
        submission_id, outcome=outcome, status=None, error=None, counts=counts, pause_microseconds=0
    )
    await database.store.finish_attempts(fence, [without_answer])
    found = await read_submission(database, submission_id)
    assert (found.failures, found.next_attempt_at, found.last_error) == (int(counts), NOON, None)
    (last,) = await read_attempts(database, submission_id)
    assert (last.outcome, last.status, last.error) == (outcome.value, None, None)


async def test_finish_attempts__marks_submission_delivered_when_cancelled_during_attempt(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    await cancel(database, submission_id)
    await database.clock.set(LATER)
    fence = await executor_fence(database.store)
    moved = await database.store.finish_attempts(fence, [attempt_end(submission_id, outcome=DELIVERED)])
    assert moved == [SubmissionStatus(submission_id, "delivered", None)]
    assert (await read_submission(database, submission_id)).ended_at == LATER


@pytest.mark.parametrize("pause", [None, 0, PAUSE])
async def test_finish_attempts__keeps_submission_cancelled_after_failed_attempt(
    database: Database, pause: int | None
) -> None:
    submission_id = await begin_first_attempt(database)
    await cancel(database, submission_id)
    cancelled = await read_submission(database, submission_id)
    await database.clock.set(LATER)
    fence = await executor_fence(database.store)
    moved = await database.store.finish_attempts(
        fence, [attempt_end(submission_id, error="late", pause_microseconds=pause)]
    )
    assert moved == [SubmissionStatus(submission_id, "cancelled", None)]
    assert await read_submission(database, submission_id) == replace(cancelled, failures=1, last_error="late")
    assert [each.ended_at for each in await read_attempts(database, submission_id)] == [LATER]


@pytest.mark.parametrize("first", [FAILED, DELIVERED])
async def test_finish_attempts__returns_same_result_when_repeated(database: Database, first: AttemptOutcome) -> None:
    submission_id = await begin_first_attempt(database)
    fence = await executor_fence(database.store)
    result = await database.store.finish_attempts(fence, [attempt_end(submission_id, outcome=first)])
    before = await all_tables(database)
    await database.clock.set(LATER)
    assert await database.store.finish_attempts(fence, [attempt_end(submission_id, outcome=first)]) == result
    assert await database.store.finish_attempts(fence, [attempt_end(submission_id, outcome=DELIVERED)]) == result
    assert await all_tables(database) == before


async def test_finish_attempts__changes_nothing_for_attempt_number_that_is_not_open(database: Database) -> None:
    """The result is the current state of the submission."""
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, submission_id, pause_microseconds=0)
    await begin_one(database.store, fence, submission_id)
    before = await all_tables(database)
    late = [attempt_end(submission_id, number, DELIVERED) for number in (1, 3)]
    for each in late:
        assert await database.store.finish_attempts(fence, [each]) == [SubmissionStatus(submission_id, "pending", None)]
    assert await all_tables(database) == before


async def test_finish_attempts__records_outcome_of_each_attempt(database: Database) -> None:
    made = await accept(database.store, 4)
    fence = await executor_fence(database.store)
    await database.store.begin_attempts(fence, made)
    ends = [
        attempt_end(made[3], outcome=DELIVERED, status=201),
        attempt_end(made[1], status=None, error="no route", pause_microseconds=None),
        attempt_end(made[0], outcome=ABANDONED, status=None, error="stops", pause_microseconds=0),
        attempt_end(made[2], status=429, error="too many", counts=False),
    ]
    moved = await database.store.finish_attempts(fence, ends)
    assert sorted(moved, key=lambda each: each.submission_id) == [
        SubmissionStatus(made[0], "pending", NOON),
        SubmissionStatus(made[1], "failed", None),
        SubmissionStatus(made[2], "pending", NOON + PAUSED),
        SubmissionStatus(made[3], "delivered", None),
    ]
    rows = await read_table(database, "submission_attempts")
    assert [(row["outcome"], row["status"], row["error"]) for row in rows] == [
        ("abandoned", None, "stops"),
        ("failed", None, "no route"),
        ("failed", 429, "too many"),
        ("delivered", 201, None),
    ]
    assert [(await read_submission(database, each)).failures for each in made] == [0, 1, 0, 0]


async def test_finish_attempts__stores_error_text_verbatim(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    error = "äöü 漢字 🎟 ' \\ %s {} \"," + "x" * (ERROR_MAX - 21)
    assert len(error) == ERROR_MAX
    await database.store.finish_attempts(
        await executor_fence(database.store), [attempt_end(submission_id, error=error)]
    )
    (last,) = await read_attempts(database, submission_id)
    assert (last.error, (await read_submission(database, submission_id)).last_error) == (error, error)


async def test_finish_attempts__counts_unknown_outcomes_until_manual_retry(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor_fence(database.store)
    counted = []
    for outcome in (UNKNOWN, FAILED, ABANDONED, UNKNOWN):
        await make_attempt(database.store, fence, submission_id, outcome, pause_microseconds=0)
        counted.append((await read_submission(database, submission_id)).unknowns)
    assert counted == [1, 1, 1, 2]
    await database.store.command_submissions(RETRY, [submission_id], None, draft())
    assert (await read_submission(database, submission_id)).unknowns == 0


async def test_finish_attempts__does_not_count_unknown_outcome_after_retry_during_attempt(database: Database) -> None:
    submission_id = await begin_first_attempt(database)
    await database.store.command_submissions(RETRY, [submission_id], None, draft())
    fence = await executor_fence(database.store)
    late = attempt_end(submission_id, outcome=UNKNOWN, is_binding=True)
    await database.store.finish_attempts(fence, [late])
    found = await read_submission(database, submission_id)
    assert (found.unknowns, found.next_attempt_at) == (0, NOON)


async def test_finish_attempts__stores_receipt_with_attempt(database: Database) -> None:
    fence = await executor_fence(database.store)
    made = await accept(database.store, 2)
    await database.store.begin_attempts(fence, made)
    ends = [attempt_end(each, outcome=DELIVERED, has_receipt=each == made[1]) for each in made]
    await database.store.finish_attempts(fence, ends)
    assert [(await read_attempts(database, each))[0].has_receipt for each in made] == [False, True]
