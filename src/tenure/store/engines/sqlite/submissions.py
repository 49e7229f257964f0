"""Submissions and their attempts, under the file's write lock."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, exists, insert, select, update

from tenure.clock import MICROSECOND
from tenure.model.leases import Fence
from tenure.model.submissions import (
    USAGES,
    Accepted,
    AttemptEnd,
    AttemptOutcome,
    BeginAttemptFound,
    BegunAttempt,
    BegunAttempts,
    Moved,
    SubmissionCommand,
    SubmissionState,
    Submit,
)
from tenure.store.engines.sqlite.leases import check_fence
from tenure.store.submissions import contract_text
from tenure.store.tables import PRUNABLE, submission_attempts, submissions

LEFT_OPEN = "whoever sent it did not say what became of it"

_row = submissions.c
_attempt = submission_attempts.c


def accept_submissions(connection: Connection, now: datetime, wishes: Sequence[Submit]) -> Sequence[Accepted]:
    return [_accept(connection, now, wish) for wish in wishes]


def _accept(connection: Connection, now: datetime, wish: Submit) -> Accepted:
    key = (_row.caller == wish.caller, _row.gateway == wish.gateway, _row.idempotency_key == wish.key)
    found = connection.execute(select(_row.submission_id, _row.state, _row.digest).where(*key)).one_or_none()
    if found is not None:
        new = found.submission_id == wish.submission_id
        return Accepted(found.submission_id, found.state, found.digest == wish.digest, new)
    connection.execute(
        insert(submissions).values(
            submission_id=wish.submission_id,
            gateway=wish.gateway,
            caller=wish.caller,
            idempotency_key=wish.key,
            delivery_key=wish.submission_id,
            payload=wish.payload,
            digest=wish.digest,
            contract=contract_text(wish.contract),
            state=SubmissionState.PENDING.value,
            attempts=0,
            failures=0,
            next_attempt_at=now,
            created_at=now,
            last_modified_at=now,
        )
    )
    return Accepted(wish.submission_id, SubmissionState.PENDING.value, same=True, new=True)


def begin_attempts(connection: Connection, now: datetime, fence: Fence, submission_ids: Sequence[str]) -> BegunAttempts:
    check_fence(connection, fence)
    columns = (
        _row.submission_id,
        _row.state,
        _row.attempts,
        _row.failures,
        _row.next_attempt_at,
        _row.last_modified_at,
    )
    rows = connection.execute(select(*columns).where(_row.submission_id.in_(submission_ids))).all()
    gone = set(submission_ids) - {row.submission_id for row in rows}
    return BegunAttempts(
        now,
        [
            *(_begin(connection, now, fence, row) for row in rows),
            *(BegunAttempt(submission_id, BeginAttemptFound.OVER) for submission_id in gone),
        ],
    )


def _begin(connection: Connection, now: datetime, fence: Fence, row: Any) -> BegunAttempt:
    if row.state != SubmissionState.PENDING.value:
        return BegunAttempt(row.submission_id, BeginAttemptFound.OVER)
    number = row.attempts
    if row.next_attempt_at is not None and row.next_attempt_at <= now:
        number += 1
        _write(connection, row.submission_id, attempts=number, next_attempt_at=None)
        # Not before it was accepted or commanded, even if the clock was stepped back: that would read as a retry.
        values = {"number": number, "epoch": fence.epoch, "holder": fence.holder}
        values |= {"submission_id": row.submission_id, "started_at": max(now, row.last_modified_at)}
        connection.execute(insert(submission_attempts).values(**values))
    elif not _is_open(connection, row.submission_id, number, fence.epoch):
        return BegunAttempt(row.submission_id, BeginAttemptFound.LATER, next_attempt_at=row.next_attempt_at)
    return BegunAttempt(row.submission_id, BeginAttemptFound.BEGUN, number, row.failures)


def _is_open(connection: Connection, submission_id: str, number: int, epoch: int) -> bool:
    """An attempt of this epoch of whose beginning the executor was never told."""
    mine = (_attempt.submission_id == submission_id, _attempt.number == number, _attempt.epoch == epoch)
    return bool(connection.execute(select(exists().where(*mine, _attempt.ended_at.is_(None)))).scalar())


def finish_attempts(connection: Connection, now: datetime, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[Moved]:
    check_fence(connection, fence)
    for end in ends:
        closed = connection.execute(
            update(submission_attempts)
            .where(_attempt.submission_id == end.submission_id, _attempt.number == end.number)
            .where(_attempt.ended_at.is_(None))
            .values(ended_at=now, outcome=end.outcome.value, status=end.status, error=end.error)
            .returning(_attempt.started_at)
        ).one_or_none()
        if closed is not None:
            _move(connection, now, closed.started_at, end)
    moved = select(_row.submission_id, _row.state, _row.next_attempt_at)
    rows = connection.execute(moved.where(_row.submission_id.in_([end.submission_id for end in ends])))
    return [Moved(*row) for row in rows]


def _move(connection: Connection, now: datetime, started_at: datetime, end: AttemptEnd) -> None:
    columns = (_row.state, _row.failures, _row.last_modified_at)
    row = connection.execute(select(*columns).where(_row.submission_id == end.submission_id)).one()
    # Retried by hand while its attempt was under way: due as soon as that has failed, and counted from 0.
    retried = row.last_modified_at > started_at
    pause = 0 if retried else end.pause_microseconds
    changes: dict[str, Any] = {"failures": row.failures + (end.counts and not retried), "last_error": end.error}
    if end.outcome is AttemptOutcome.DELIVERED:
        changes |= {"state": SubmissionState.DELIVERED.value, "next_attempt_at": None, "ended_at": now}
        changes["last_error"] = None
    elif row.state == SubmissionState.PENDING.value and pause is None:
        changes |= {"state": SubmissionState.FAILED.value, "next_attempt_at": None, "ended_at": now}
    elif row.state == SubmissionState.PENDING.value:
        changes |= {"next_attempt_at": now + (pause or 0) * MICROSECOND}
    _write(connection, end.submission_id, **changes)


def close_unknown(connection: Connection, now: datetime, fence: Fence, limit: int) -> int:
    check_fence(connection, fence)
    left = (_attempt.ended_at.is_(None), _attempt.epoch < fence.epoch)
    found = connection.execute(select(_attempt.submission_id).where(*left).limit(limit)).scalars().all()
    connection.execute(
        update(submission_attempts)
        .where(_attempt.submission_id.in_(found), *left)
        .values(ended_at=now, outcome=AttemptOutcome.UNKNOWN.value, error=LEFT_OPEN)
    )
    connection.execute(
        update(submissions)
        .where(_row.submission_id.in_(found), _row.state == SubmissionState.PENDING.value)
        .values(next_attempt_at=now)
    )
    return len(found)


def explain_waiting(connection: Connection, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
    check_fence(connection, fence)
    connection.execute(
        update(submissions)
        .where(_row.submission_id.in_(submission_ids), _row.state == SubmissionState.PENDING.value)
        .where(_row.last_error.is_distinct_from(error))
        .values(last_error=error)
    )


def command_submissions(
    connection: Connection, now: datetime, command: SubmissionCommand, submission_ids: Sequence[str]
) -> dict[str, bool]:
    wanted = _retry if command is SubmissionCommand.RETRY else _cancel
    columns = (_row.submission_id, _row.gateway, _row.state, _row.attempts)
    rows = connection.execute(select(*columns).where(_row.submission_id.in_(submission_ids)))
    return {row.submission_id: wanted(connection, now, row) for row in rows.all()}


def _retry(connection: Connection, now: datetime, row: Any) -> bool:
    if row.state == SubmissionState.DELIVERED.value:
        return False
    attempt = (_attempt.submission_id == row.submission_id, _attempt.number == row.attempts)
    under_way = connection.execute(select(_attempt.started_at).where(*attempt, _attempt.ended_at.is_(None))).scalar()
    # After the attempt that is under way began, whatever the clock says: that is how its end will know.
    retried_at = now if under_way is None else max(now, under_way + MICROSECOND)
    due = now if under_way is None else None
    changes = {"state": SubmissionState.PENDING.value, "failures": 0, "ended_at": None, "next_attempt_at": due}
    _write(connection, row.submission_id, last_modified_at=retried_at, **changes)
    return True


def _cancel(connection: Connection, now: datetime, row: Any) -> bool:
    if row.gateway == USAGES:
        return False
    if row.state in (SubmissionState.PENDING.value, SubmissionState.FAILED.value):
        changes = {"state": SubmissionState.CANCELLED.value, "next_attempt_at": None, "ended_at": now}
        _write(connection, row.submission_id, last_modified_at=now, **changes)
    return bool(row.state != SubmissionState.DELIVERED.value)


def prune_submissions(connection: Connection, now: datetime, kept: timedelta, limit: int) -> int:
    old = select(_row.submission_id).where(PRUNABLE, _row.ended_at < now - kept)
    found = connection.execute(old.order_by(_row.ended_at).limit(limit)).scalars().all()
    connection.execute(delete(submission_attempts).where(_attempt.submission_id.in_(found)))
    connection.execute(delete(submissions).where(_row.submission_id.in_(found)))
    return len(found)


def _write(connection: Connection, submission_id: str, **values: Any) -> None:
    connection.execute(update(submissions).where(_row.submission_id == submission_id).values(**values))
