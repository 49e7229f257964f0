"""Submissions for tests: requests whose fields all have distinct values, the executor's fence, and attempts."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from tenure.clock import to_microseconds
from tenure.domain.leases import Fence
from tenure.domain.submissions import (
    Attempt,
    AttemptEnd,
    AttemptOutcome,
    BeginAttemptOutcome,
    BeginAttemptResult,
    Change,
    Contract,
    PendingEntry,
    Submission,
    SubmissionCommand,
    SubmissionState,
    SubmissionStatus,
    SubmitRequest,
)
from tenure.ids import id_of_number, new_id, number_of_id
from tenure.store.contract import Store
from tests.support.audit_log import ACTOR, draft
from tests.support.databases import Database
from tests.support.leases import hold_lease
from tests.support.open_requests import SECOND

EXECUTOR = "submission-executor"
CONTRACT = Contract((5.0, 30.25, 120.0), 7, (409, 422), 12.5)
PAUSE = 30 * SECOND
PAUSED = timedelta(seconds=30)
DELIVERED, FAILED, UNKNOWN, ABANDONED = AttemptOutcome
LEFT_OPEN = "the executor stopped before it recorded the outcome"


def submit_request(**given: Any) -> SubmitRequest:
    """A request with a new idempotency key, unless `given` contains a `key`."""
    submission_id = new_id()
    payload = given.get("payload", f'{{"for": "{submission_id}"}}'.encode())
    values: dict[str, Any] = {
        "submission_id": submission_id,
        "gateway": "ledger",
        "caller": "shop",
        "key": f"key of {submission_id}",
        "payload": payload,
        "digest": sha256(payload).digest(),
        "contract": CONTRACT,
    }
    return SubmitRequest(**{**values, **given})


async def accept(store: Store, count: int = 1, **given: Any) -> list[str]:
    """Accepts `count` new submissions and returns their ids in ascending order."""
    results = await store.accept_submissions([submit_request(**given) for _ in range(count)])
    assert all(one.new for one in results), results
    return sorted(one.submission_id for one in results)


async def executor_fence(store: Store) -> Fence:
    """The fence of the executor lease, acquired for a century if the lease is free."""
    return await hold_lease(store, EXECUTOR, "one")


async def next_executor_fence(store: Store) -> Fence:
    """Resigns the executor lease, acquires it again, and returns the fence of the new epoch."""
    await store.resign_lease(EXECUTOR, ACTOR)
    return await hold_lease(store, EXECUTOR, "two")


async def begin_one(store: Store, fence: Fence, submission_id: str) -> BeginAttemptResult:
    (result,) = (await store.begin_attempts(fence, [submission_id])).attempts
    return result


def attempt_end(submission_id: str, number: int = 1, outcome: AttemptOutcome = FAILED, **given: Any) -> AttemptEnd:
    """The end of an attempt; by default a failed one that is retried after a pause."""
    is_delivered = outcome is DELIVERED
    values: dict[str, Any] = {
        "status": 202 if is_delivered else 500,
        "error": None if is_delivered else f"answered 500 to number {number}",
        "counts": outcome is FAILED,
        "pause_microseconds": None if is_delivered else PAUSE,
    }
    return AttemptEnd(submission_id, number, outcome, **{**values, **given})


async def close_orphaned(store: Store, fence: Fence, limit: int = 9) -> int:
    """Closes the attempts that earlier epochs left open, as the executor does. Returns how many it found."""
    found = await store.list_orphaned_attempts(fence.epoch, limit)
    ends = [
        AttemptEnd(each.submission_id, each.number, UNKNOWN, None, LEFT_OPEN, counts=False, pause_microseconds=0)
        for each in found
    ]
    if ends:
        await store.finish_attempts(fence, ends)
    return len(found)


async def make_attempt(
    store: Store, fence: Fence, submission_id: str, outcome: AttemptOutcome = FAILED, **given: Any
) -> SubmissionStatus:
    """Begins and finishes the next attempt."""
    begun = await begin_one(store, fence, submission_id)
    assert begun.number is not None, begun
    (moved,) = await store.finish_attempts(fence, [attempt_end(submission_id, begun.number, outcome, **given)])
    return moved


async def create_in_state(store: Store, state: str, **given: Any) -> str:
    """Creates a submission in this state and returns its id."""
    (submission_id,) = await accept(store, **given)
    fence = await executor_fence(store)
    if state == SubmissionState.DELIVERED:
        await make_attempt(store, fence, submission_id, DELIVERED)
    elif state == SubmissionState.FAILED:
        await make_attempt(store, fence, submission_id, pause_microseconds=None)
    elif state == SubmissionState.CANCELLED:
        await store.command_submissions(SubmissionCommand.CANCEL, [submission_id], None, draft())
    return submission_id


async def cancel(database: Database, submission_id: str) -> None:
    assert await database.store.command_submissions(SubmissionCommand.CANCEL, [submission_id], None, draft()) == {
        submission_id: True
    }


async def begin_first_attempt(database: Database) -> str:
    """Accepts a submission, begins its first attempt, and returns its id."""
    (submission_id,) = await accept(database.store)
    begun = await begin_one(database.store, await executor_fence(database.store), submission_id)
    assert begun == BeginAttemptResult(submission_id, BeginAttemptOutcome.BEGUN, number=1, failures=0)
    return submission_id


async def read_submission(database: Database, submission_id: str) -> Submission:
    return (await _found(database, submission_id))[0]


async def read_attempts(database: Database, submission_id: str) -> Sequence[Attempt]:
    return (await _found(database, submission_id))[1]


async def _found(database: Database, submission_id: str) -> tuple[Submission, Sequence[Attempt]]:
    found = await database.store.get_submission(submission_id, None)
    assert found is not None, submission_id
    return found


def pending_submission(submission_id: str, at: datetime, **given: Any) -> Submission:
    """A submission as it is after its acceptance."""
    values: dict[str, Any] = {
        "gateway": "ledger",
        "state": SubmissionState.PENDING.value,
        "attempts": 0,
        "failures": 0,
        "next_attempt_at": at,
        "created_at": at,
        "last_modified_at": at,
    }
    return Submission(submission_id=submission_id, **{**values, **given})


def pending_entry(
    submission_id: str, due_at: datetime | None, changed_at: datetime, gateway: str = "ledger"
) -> PendingEntry:
    due = None if due_at is None else to_microseconds(due_at)
    return PendingEntry(number_of_id(submission_id), gateway, due, to_microseconds(changed_at))


def change_at(changed_at: datetime, submission_id: str) -> Change:
    return Change(to_microseconds(changed_at), number_of_id(submission_id))


async def drop_index(database: Database, name: str) -> None:
    """Drops an index, so that rows are in order only if the statement sorts them."""
    await database.execute(f"DROP INDEX {name}" + (" ON submissions" if database.engine == "mssql" else ""))


def change_of(waiting: PendingEntry) -> Change:
    return Change(waiting.changed_microseconds, waiting.number)


def ids_of(waiting: Iterable[PendingEntry]) -> list[str]:
    return [id_of_number(each.number) for each in waiting]


async def list_all_pending(store: Store, page: int, after: Change | None = None) -> list[PendingEntry]:
    """Reads all pages, as the executor does when it builds its schedule."""
    found: list[PendingEntry] = []
    while True:
        waiting = (await store.list_pending(after, page)).waiting
        found += waiting
        if len(waiting) < page:
            return found
        after = change_of(waiting[-1])
