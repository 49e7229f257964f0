"""Submissions for tests: wishes with a value of their own in every field, the executor's fence, ends of attempts."""

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
from tests.support.databases import Database
from tests.support.leases import held
from tests.support.open_requests import SECOND

EXECUTOR = "submission-executor"
CONTRACT = Contract((5.0, 30.25, 120.0), 7, (409, 422), 12.5)
PAUSE = 30 * SECOND
PAUSED = timedelta(seconds=30)
DELIVERED, FAILED, UNKNOWN, ABANDONED = AttemptOutcome


def submit(**given: Any) -> SubmitRequest:
    """A wish with a new key unless `given` names one."""
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
    """The ids of as many new ones, in ascending order."""
    told = await store.accept_submissions([submit(**given) for _ in range(count)])
    assert all(one.new for one in told), told
    return sorted(one.submission_id for one in told)


async def executor(store: Store) -> Fence:
    """Of whoever leads, wherever the clock is moved."""
    return await held(store, EXECUTOR, "one")


async def next_executor(store: Store) -> Fence:
    """Of the epoch after."""
    await store.resign_lease(EXECUTOR)
    return await held(store, EXECUTOR, "two")


async def begin_one(store: Store, fence: Fence, submission_id: str) -> BeginAttemptResult:
    (told,) = (await store.begin_attempts(fence, [submission_id])).attempts
    return told


def end(submission_id: str, number: int = 1, outcome: AttemptOutcome = FAILED, **given: Any) -> AttemptEnd:
    """As of an attempt that was refused, and is to be made again after a pause."""
    is_delivered = outcome is DELIVERED
    values: dict[str, Any] = {
        "status": 202 if is_delivered else 500,
        "error": None if is_delivered else f"answered 500 to number {number}",
        "counts": outcome is FAILED,
        "pause_microseconds": None if is_delivered else PAUSE,
    }
    return AttemptEnd(submission_id, number, outcome, **{**values, **given})


async def attempt(
    store: Store, fence: Fence, submission_id: str, outcome: AttemptOutcome = FAILED, **given: Any
) -> SubmissionStatus:
    """The next one, from its beginning to its end."""
    begun = await begin_one(store, fence, submission_id)
    assert begun.number is not None, begun
    (moved,) = await store.finish_attempts(fence, [end(submission_id, begun.number, outcome, **given)])
    return moved


async def put_in_state(store: Store, state: str, **given: Any) -> str:
    """A new one, and whatever brings it there now."""
    (submission_id,) = await accept(store, **given)
    fence = await executor(store)
    if state == SubmissionState.DELIVERED:
        await attempt(store, fence, submission_id, DELIVERED)
    elif state == SubmissionState.FAILED:
        await attempt(store, fence, submission_id, pause_microseconds=None)
    elif state == SubmissionState.CANCELLED:
        await store.command_submissions(SubmissionCommand.CANCEL, [submission_id])
    return submission_id


async def cancel(database: Database, submission_id: str) -> None:
    assert await database.store.command_submissions(SubmissionCommand.CANCEL, [submission_id]) == {submission_id: True}


async def under_way(database: Database) -> str:
    """One whose first attempt was begun at noon by whoever leads."""
    (submission_id,) = await accept(database.store)
    begun = await begin_one(database.store, await executor(database.store), submission_id)
    assert begun == BeginAttemptResult(submission_id, BeginAttemptOutcome.BEGUN, number=1, failures=0)
    return submission_id


async def one(database: Database, submission_id: str) -> Submission:
    return (await _found(database, submission_id))[0]


async def attempts(database: Database, submission_id: str) -> Sequence[Attempt]:
    return (await _found(database, submission_id))[1]


async def _found(database: Database, submission_id: str) -> tuple[Submission, Sequence[Attempt]]:
    found = await database.store.get_submission(submission_id)
    assert found is not None, submission_id
    return found


def pending(submission_id: str, at: datetime, **given: Any) -> Submission:
    """As it was just accepted."""
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


def waits(submission_id: str, due_at: datetime | None, changed_at: datetime, gateway: str = "ledger") -> PendingEntry:
    due = None if due_at is None else to_microseconds(due_at)
    return PendingEntry(number_of_id(submission_id), gateway, due, to_microseconds(changed_at))


def changed(changed_at: datetime, submission_id: str) -> Change:
    return Change(to_microseconds(changed_at), number_of_id(submission_id))


async def drop_index(database: Database, name: str) -> None:
    """So that an order is not by the grace of an index."""
    await database.execute(f"DROP INDEX {name}" + (" ON submissions" if database.engine == "mssql" else ""))


def place(waiting: PendingEntry) -> Change:
    return Change(waiting.changed_microseconds, waiting.number)


def ids_of(waiting: Iterable[PendingEntry]) -> list[str]:
    return [id_of_number(each.number) for each in waiting]


async def all_waiting(store: Store, page: int, after: Change | None = None) -> list[PendingEntry]:
    """Page by page, as the executor builds its schedule."""
    found: list[PendingEntry] = []
    while True:
        waiting = (await store.list_pending(after, page)).waiting
        found += waiting
        if len(waiting) < page:
            return found
        after = place(waiting[-1])
