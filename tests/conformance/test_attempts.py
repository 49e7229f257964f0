"""Attempts of submissions, on every engine: numbered, fenced, one at a time."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

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
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, all_tables, table
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import (
    ABANDONED,
    DELIVERED,
    FAILED,
    PAUSE,
    PAUSED,
    UNKNOWN,
    accept,
    attempt,
    attempts,
    begin_one,
    cancel,
    end,
    executor,
    next_executor,
    one,
    pending,
    under_way,
)

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
LATER = NOON + 7 * SECONDS
BEGUN, NOT_DUE, OVER = BeginAttemptOutcome.BEGUN, BeginAttemptOutcome.LATER, BeginAttemptOutcome.OVER
RETRY = SubmissionCommand.RETRY


# Beginning


async def test_begin_attempts__records_open_attempt(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor(database.store)
    await database.clock.set(LATER)
    result = await database.store.begin_attempts(fence, [submission_id])
    assert (result.now, list(result.attempts)) == (
        LATER,
        [BeginAttemptResult(submission_id, BEGUN, number=1, failures=0)],
    )
    assert await database.store.get_submission(submission_id) == (
        pending(submission_id, NOON, attempts=1, next_attempt_at=None),
        [Attempt(number=1, epoch=fence.epoch, started_at=LATER)],
    )
    (row,) = await table(database, "submission_attempts")
    assert row["holder"] == fence.holder


async def test_begin_attempts__skips_submission_that_is_not_due(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor(database.store)
    await attempt(database.store, fence, submission_id)
    before = await all_tables(database)
    await database.clock.set(NOON + PAUSED - MICROSECOND)
    result = await begin_one(database.store, fence, submission_id)
    assert (result.found, result.number, result.next_attempt_at) == (NOT_DUE, None, NOON + PAUSED)
    assert await all_tables(database) == before


async def test_begin_attempts__begins_attempt_at_instant_it_is_due(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor(database.store)
    await attempt(database.store, fence, submission_id)
    await database.clock.set(NOON + PAUSED)
    result = await begin_one(database.store, fence, submission_id)
    assert result == BeginAttemptResult(submission_id, BEGUN, number=2, failures=1)


@pytest.mark.parametrize("how", ["delivered", "failed", "cancelled", "not there"])
async def test_begin_attempts__skips_ended_and_unknown_submissions(database: Database, how: str) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor(database.store)
    if how == "delivered":
        await attempt(database.store, fence, submission_id, DELIVERED)
    elif how == "failed":
        await attempt(database.store, fence, submission_id, pause_microseconds=None)
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
    submission_id = await under_way(database)
    before = await all_tables(database)
    await database.clock.set(LATER)
    result = await begin_one(database.store, await executor(database.store), submission_id)
    assert result == BeginAttemptResult(submission_id, BEGUN, number=1, failures=0)
    assert await all_tables(database) == before


async def test_begin_attempts__does_not_return_open_attempt_of_older_epoch(database: Database) -> None:
    submission_id = await under_way(database)
    fence = await next_executor(database.store)
    before = await all_tables(database)
    result = await begin_one(database.store, fence, submission_id)
    assert (result.found, result.number) == (NOT_DUE, None)
    assert await all_tables(database) == before


async def test_begin_attempts__does_not_return_closed_attempt_of_same_epoch(database: Database) -> None:
    submission_id = await under_way(database)
    fence = await executor(database.store)
    await database.store.finish_attempts(fence, [end(submission_id)])
    assert (await begin_one(database.store, fence, submission_id)).found is NOT_DUE


async def test_begin_attempts__returns_result_for_every_requested_submission(database: Database) -> None:
    fence = await executor(database.store)
    made = await accept(database.store, BATCH_MAX - 1)
    for submission_id in made[::3]:
        await cancel(database, submission_id)
    for submission_id in made[1::3]:
        await attempt(database.store, fence, submission_id)
    unknown = some_id()
    expected = dict(zip(made, [OVER, NOT_DUE, BEGUN] * BATCH_MAX, strict=False)) | {unknown: OVER}
    result = await database.store.begin_attempts(fence, [unknown, *made[::-1]])
    assert len(result.attempts) == BATCH_MAX
    assert {each.submission_id: each.found for each in result.attempts} == expected


async def test_begin_attempts__numbers_attempts_without_gaps(database: Database) -> None:
    """Through failures, epochs, commands, repetitions and calls without effect."""
    (submission_id,) = await accept(database.store)
    store, fence = database.store, await executor(database.store)
    await attempt(store, fence, submission_id)
    await begin_one(store, fence, submission_id)
    await store.command_submissions(RETRY, [submission_id])
    await attempt(store, fence, submission_id, pause_microseconds=None)
    await begin_one(store, fence, submission_id)
    await store.command_submissions(RETRY, [submission_id])
    await begin_one(store, fence, submission_id)
    fence = await next_executor(store)
    await store.close_orphaned_attempts(fence, 9)
    await begin_one(store, fence, submission_id)
    await attempt(store, fence, submission_id, DELIVERED)
    found = await attempts(database, submission_id)
    assert [(each.number, each.epoch, each.outcome) for each in found] == [
        (1, 1, "failed"),
        (2, 1, "failed"),
        (3, 1, "unknown"),
        (4, 2, "delivered"),
    ]


# Ending


async def test_finish_attempts__marks_submission_delivered(database: Database) -> None:
    submission_id = await under_way(database)
    fence = await executor(database.store)
    await database.clock.set(LATER)
    moved = await database.store.finish_attempts(fence, [end(submission_id, outcome=DELIVERED, status=204)])
    assert moved == [SubmissionStatus(submission_id, "delivered", None)]
    assert await database.store.get_submission(submission_id) == (
        pending(submission_id, NOON, state="delivered", attempts=1, next_attempt_at=None, ended_at=LATER),
        [Attempt(number=1, epoch=1, started_at=NOON, ended_at=LATER, outcome="delivered", status=204)],
    )


async def test_finish_attempts__clears_last_error_when_delivered(database: Database) -> None:
    (submission_id,) = await accept(database.store)
    fence = await executor(database.store)
    await attempt(database.store, fence, submission_id, pause_microseconds=0)
    await attempt(database.store, fence, submission_id, DELIVERED, status=409, error="has it already")
    found = await one(database, submission_id)
    assert (found.last_error, found.failures, found.attempts) == (None, 1, 2)
    assert [each.error for each in await attempts(database, submission_id)] == [
        "answered 500 to number 1",
        "has it already",
    ]


async def test_finish_attempts__schedules_retry_after_failure(database: Database) -> None:
    submission_id = await under_way(database)
    fence = await executor(database.store)
    await database.clock.set(LATER)
    moved = await database.store.finish_attempts(fence, [end(submission_id, status=503, pause_microseconds=PAUSE + 1)])
    again_at = LATER + PAUSED + MICROSECOND
    error = "answered 500 to number 1"
    assert moved == [SubmissionStatus(submission_id, "pending", again_at)]
    assert await database.store.get_submission(submission_id) == (
        pending(submission_id, NOON, attempts=1, failures=1, next_attempt_at=again_at, last_error=error),
        [Attempt(number=1, epoch=1, started_at=NOON, ended_at=LATER, outcome="failed", status=503, error=error)],
    )


async def test_finish_attempts__marks_submission_failed_without_next_attempt(database: Database) -> None:
    submission_id = await under_way(database)
    fence = await executor(database.store)
    await database.clock.set(LATER)
    gone = end(submission_id, status=410, error="gone", pause_microseconds=None)
    assert await database.store.finish_attempts(fence, [gone]) == [SubmissionStatus(submission_id, "failed", None)]
    assert await one(database, submission_id) == pending(
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
    submission_id = await under_way(database)
    fence = await executor(database.store)
    without_answer = end(submission_id, outcome=outcome, status=None, error=None, counts=counts, pause_microseconds=0)
    await database.store.finish_attempts(fence, [without_answer])
    found = await one(database, submission_id)
    assert (found.failures, found.next_attempt_at, found.last_error) == (int(counts), NOON, None)
    (last,) = await attempts(database, submission_id)
    assert (last.outcome, last.status, last.error) == (outcome.value, None, None)


async def test_finish_attempts__marks_submission_delivered_when_cancelled_during_attempt(database: Database) -> None:
    submission_id = await under_way(database)
    await cancel(database, submission_id)
    await database.clock.set(LATER)
    fence = await executor(database.store)
    moved = await database.store.finish_attempts(fence, [end(submission_id, outcome=DELIVERED)])
    assert moved == [SubmissionStatus(submission_id, "delivered", None)]
    assert (await one(database, submission_id)).ended_at == LATER


@pytest.mark.parametrize("pause", [None, 0, PAUSE])
async def test_finish_attempts__keeps_submission_cancelled_after_failed_attempt(
    database: Database, pause: int | None
) -> None:
    submission_id = await under_way(database)
    await cancel(database, submission_id)
    cancelled = await one(database, submission_id)
    await database.clock.set(LATER)
    fence = await executor(database.store)
    moved = await database.store.finish_attempts(fence, [end(submission_id, error="late", pause_microseconds=pause)])
    assert moved == [SubmissionStatus(submission_id, "cancelled", None)]
    assert await one(database, submission_id) == replace(cancelled, failures=1, last_error="late")
    assert [each.ended_at for each in await attempts(database, submission_id)] == [LATER]


@pytest.mark.parametrize("first", [FAILED, DELIVERED])
async def test_finish_attempts__returns_same_result_when_repeated(database: Database, first: AttemptOutcome) -> None:
    submission_id = await under_way(database)
    fence = await executor(database.store)
    result = await database.store.finish_attempts(fence, [end(submission_id, outcome=first)])
    before = await all_tables(database)
    await database.clock.set(LATER)
    assert await database.store.finish_attempts(fence, [end(submission_id, outcome=first)]) == result
    assert await database.store.finish_attempts(fence, [end(submission_id, outcome=DELIVERED)]) == result
    assert await all_tables(database) == before


async def test_finish_attempts__changes_nothing_for_attempt_number_that_is_not_open(database: Database) -> None:
    """The result is the submission with the state of its next attempt."""
    (submission_id,) = await accept(database.store)
    fence = await executor(database.store)
    await attempt(database.store, fence, submission_id, pause_microseconds=0)
    await begin_one(database.store, fence, submission_id)
    before = await all_tables(database)
    late = [end(submission_id, number, DELIVERED) for number in (1, 3)]
    for each in late:
        assert await database.store.finish_attempts(fence, [each]) == [SubmissionStatus(submission_id, "pending", None)]
    assert await all_tables(database) == before


async def test_finish_attempts__records_outcome_of_each_attempt(database: Database) -> None:
    made = await accept(database.store, 4)
    fence = await executor(database.store)
    await database.store.begin_attempts(fence, made)
    ends = [
        end(made[3], outcome=DELIVERED, status=201),
        end(made[1], status=None, error="no route", pause_microseconds=None),
        end(made[0], outcome=ABANDONED, status=None, error="stops", pause_microseconds=0),
        end(made[2], status=429, error="too many", counts=False),
    ]
    moved = await database.store.finish_attempts(fence, ends)
    assert sorted(moved, key=lambda each: each.submission_id) == [
        SubmissionStatus(made[0], "pending", NOON),
        SubmissionStatus(made[1], "failed", None),
        SubmissionStatus(made[2], "pending", NOON + PAUSED),
        SubmissionStatus(made[3], "delivered", None),
    ]
    rows = await table(database, "submission_attempts")
    assert [(row["outcome"], row["status"], row["error"]) for row in rows] == [
        ("abandoned", None, "stops"),
        ("failed", None, "no route"),
        ("failed", 429, "too many"),
        ("delivered", 201, None),
    ]
    assert [(await one(database, each)).failures for each in made] == [0, 1, 0, 0]


async def test_finish_attempts__stores_error_text_verbatim(database: Database) -> None:
    submission_id = await under_way(database)
    error = "äöü 漢字 🎟 ' \\ %s {} \"," + "x" * (ERROR_MAX - 21)
    assert len(error) == ERROR_MAX
    await database.store.finish_attempts(await executor(database.store), [end(submission_id, error=error)])
    (last,) = await attempts(database, submission_id)
    assert (last.error, (await one(database, submission_id)).last_error) == (error, error)
