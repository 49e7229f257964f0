"""Submissions and their attempts. The functions run under the write lock of the SQLite file."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from tenure.clock import MICROSECOND
from tenure.domain.audit_log import AuditDraft
from tenure.domain.leases import Fence
from tenure.domain.submissions import (
    USAGES,
    AttemptEnd,
    AttemptOutcome,
    BeginAttemptOutcome,
    BeginAttemptResult,
    BeginAttemptsResult,
    SubmissionCommand,
    SubmissionState,
    SubmissionStatus,
    SubmitRequest,
    SubmitResult,
)
from tenure.store.engines.sqlite.audit_log import count_changes
from tenure.store.engines.sqlite.leases import check_fence
from tenure.store.reads.submissions import contract_text
from tenure.store.tables import PRUNABLE, event_batches, submission_attempts, submissions

_row = submissions.c
_attempt = submission_attempts.c


def accept_submissions(
    connection: Connection, now: datetime, requests: Sequence[SubmitRequest]
) -> Sequence[SubmitResult]:
    return [_accept(connection, now, request) for request in requests]


def insert_generated(
    connection: Connection, now: datetime, *, submission_id: str, gateway: str, caller: str, key: str, contract: str
) -> None:
    """Inserts a submission whose payload Tenure generates. The submission has no digest, and its idempotency key is
    also its delivery key.
    """
    insert_submission(
        connection,
        now,
        submission_id=submission_id,
        gateway=gateway,
        caller=caller,
        idempotency_key=key,
        delivery_key=key,
        digest=b"",
        contract=contract,
    )


def insert_submission(connection: Connection, now: datetime, **values: Any) -> None:
    """Inserts a submission that is due at once."""
    connection.execute(
        insert(submissions).values(
            **values,
            state=SubmissionState.PENDING.value,
            attempts=0,
            failures=0,
            next_attempt_at=now,
            created_at=now,
            last_modified_at=now,
        )
    )


def _accept(connection: Connection, now: datetime, request: SubmitRequest) -> SubmitResult:
    key = (_row.caller == request.caller, _row.gateway == request.gateway, _row.idempotency_key == request.key)
    found = connection.execute(select(_row.submission_id, _row.state, _row.digest).where(*key)).one_or_none()
    if found is not None:
        new = found.submission_id == request.submission_id
        return SubmitResult(found.submission_id, found.state, found.digest == request.digest, new)
    insert_submission(
        connection,
        now,
        submission_id=request.submission_id,
        gateway=request.gateway,
        caller=request.caller,
        idempotency_key=request.key,
        delivery_key=request.submission_id,
        payload=request.payload,
        digest=request.digest,
        contract=contract_text(request.contract),
        request_id=request.request_id,
        traceparent=request.traceparent,
    )
    return SubmitResult(request.submission_id, SubmissionState.PENDING.value, same=True, new=True)


def begin_attempts(
    connection: Connection, now: datetime, fence: Fence, submission_ids: Sequence[str], early: Sequence[str]
) -> BeginAttemptsResult:
    check_fence(connection, fence)
    columns = (
        _row.submission_id,
        _row.state,
        _row.attempts,
        _row.failures,
        _row.unknowns,
        _row.next_attempt_at,
        _row.pause_is_binding,
        _row.last_modified_at,
    )
    rows = connection.execute(select(*columns).where(_row.submission_id.in_(submission_ids))).all()
    missing = set(submission_ids) - {row.submission_id for row in rows}
    return BeginAttemptsResult(
        now,
        [
            *(_begin(connection, now, fence, row, early=row.submission_id in early) for row in rows),
            *(BeginAttemptResult(submission_id, BeginAttemptOutcome.OVER) for submission_id in missing),
        ],
    )


def _begin(connection: Connection, now: datetime, fence: Fence, row: Any, *, early: bool) -> BeginAttemptResult:
    if row.state != SubmissionState.PENDING.value:
        return BeginAttemptResult(row.submission_id, BeginAttemptOutcome.OVER)
    due_at = row.next_attempt_at
    if due_at is None:
        attempt = _open_attempt(connection, row.submission_id, row.attempts, fence.epoch)
    elif due_at <= now or (early and not row.pause_is_binding):
        # If the clock was stepped back, `now` may lie before `last_modified_at`, the time of the acceptance or of the
        # last command. The attempt must not start before that time: otherwise `_move` would treat the submission as
        # retried during the attempt.
        attempt = (row.attempts + 1, due_at if due_at > now else None)
        _write(connection, row.submission_id, attempts=attempt[0], next_attempt_at=None)
        values = {"number": attempt[0], "epoch": fence.epoch, "holder": fence.holder, "was_due_at": attempt[1]}
        values |= {"submission_id": row.submission_id, "started_at": max(now, row.last_modified_at)}
        connection.execute(insert(submission_attempts).values(**values))
    else:
        attempt = None
    if attempt is None:
        return BeginAttemptResult(row.submission_id, BeginAttemptOutcome.LATER, next_attempt_at=due_at)
    number, was_due_at = attempt
    return BeginAttemptResult(
        row.submission_id, BeginAttemptOutcome.BEGUN, number, row.failures, row.unknowns, was_due_at
    )


def _open_attempt(
    connection: Connection, submission_id: str, number: int, epoch: int
) -> tuple[int, datetime | None] | None:
    """Returns the attempt if it is already open in this epoch: an earlier call of `begin_attempts` has begun it, but
    the answer to that call was lost. Returns None if no attempt with this number is open in this epoch.
    """
    attempt = (_attempt.submission_id == submission_id, _attempt.number == number, _attempt.epoch == epoch)
    columns = select(_attempt.number, _attempt.was_due_at)
    row = connection.execute(columns.where(*attempt, _attempt.ended_at.is_(None))).one_or_none()
    return None if row is None else (row.number, row.was_due_at)


def finish_attempts(
    connection: Connection, now: datetime, fence: Fence, ends: Sequence[AttemptEnd]
) -> Sequence[SubmissionStatus]:
    check_fence(connection, fence)
    for end in ends:
        closed = connection.execute(
            update(submission_attempts)
            .where(_attempt.submission_id == end.submission_id, _attempt.number == end.number)
            .where(_attempt.ended_at.is_(None))
            .values(
                ended_at=now,
                outcome=end.outcome.value,
                status=end.status,
                error=end.error,
                has_receipt=end.has_receipt,
            )
            .returning(_attempt.started_at)
        ).one_or_none()
        if closed is not None:
            _move(connection, now, closed.started_at, end)
    moved = select(_row.submission_id, _row.state, _row.next_attempt_at)
    rows = connection.execute(moved.where(_row.submission_id.in_([end.submission_id for end in ends])))
    return [SubmissionStatus(*row) for row in rows]


def _move(connection: Connection, now: datetime, started_at: datetime, end: AttemptEnd) -> None:
    columns = (_row.state, _row.failures, _row.unknowns, _row.last_modified_at)
    row = connection.execute(select(*columns).where(_row.submission_id == end.submission_id)).one()
    # If the submission was retried by hand during the attempt, it is due as soon as the attempt has failed, and its
    # failures and unknown outcomes count from 0.
    retried = row.last_modified_at > started_at
    pause = 0 if retried else end.pause_microseconds
    unknown = end.outcome is AttemptOutcome.UNKNOWN
    changes: dict[str, Any] = {
        "failures": row.failures + (end.counts and not retried),
        "unknowns": row.unknowns + (unknown and not retried),
        "pause_is_binding": end.is_binding and not retried,
        "last_error": end.error,
    }
    if end.outcome is AttemptOutcome.DELIVERED:
        changes |= {"state": SubmissionState.DELIVERED.value, "next_attempt_at": None, "ended_at": now}
        changes["last_error"] = None
    elif row.state == SubmissionState.PENDING.value and pause is None:
        changes |= {"state": SubmissionState.FAILED.value, "next_attempt_at": None, "ended_at": now}
    elif row.state == SubmissionState.PENDING.value:
        changes |= {"next_attempt_at": now + (pause or 0) * MICROSECOND}
    _write(connection, end.submission_id, **changes)


def note_waiting_reason(connection: Connection, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
    check_fence(connection, fence)
    connection.execute(
        update(submissions)
        .where(_row.submission_id.in_(submission_ids), _row.state == SubmissionState.PENDING.value)
        .where(_row.last_error.is_distinct_from(error))
        .values(last_error=error)
    )


def command_submissions(
    connection: Connection,
    now: datetime,
    command: SubmissionCommand,
    submission_ids: Sequence[str],
    owner: str | None,
    draft: AuditDraft,
) -> dict[str, bool]:
    carry_out = _retry if command is SubmissionCommand.RETRY else _cancel
    owned = () if owner is None else (_row.caller == owner,)
    rows = connection.execute(select(*_COMMANDED).where(_row.submission_id.in_(submission_ids), *owned))
    results = {row.submission_id: carry_out(connection, now, row) for row in rows.all()}
    count_changes(connection, now, draft, sum(changed for _, changed in results.values()))
    return {submission_id: done for submission_id, (done, _) in results.items()}


_COMMANDED = (
    _row.submission_id,
    _row.gateway,
    _row.state,
    _row.attempts,
    _row.failures,
    _row.unknowns,
    _row.pause_is_binding,
    _row.next_attempt_at,
    _row.last_modified_at,
)


def _retry(connection: Connection, now: datetime, row: Any) -> tuple[bool, bool]:
    """Returns, as `_cancel` does, whether the command was carried out and whether it changed the submission."""
    if row.state == SubmissionState.DELIVERED.value:
        return False, False
    attempt = (_attempt.submission_id == row.submission_id, _attempt.number == row.attempts)
    open_since = connection.execute(select(_attempt.started_at).where(*attempt, _attempt.ended_at.is_(None))).scalar()
    # `retried_at` must be later than the start of the open attempt, even if the clock was stepped back, because `_move`
    # compares the two.
    retried_at = now if open_since is None else max(now, open_since + MICROSECOND)
    due = now if open_since is None else None
    changes = {"state": SubmissionState.PENDING.value, "failures": 0, "unknowns": 0, "ended_at": None}
    changes |= {"next_attempt_at": due, "pause_is_binding": False}
    _write(connection, row.submission_id, last_modified_at=retried_at, **changes)
    return True, not _awaits_retry(row, now, open_since)


def _awaits_retry(row: Any, now: datetime, open_since: datetime | None) -> bool:
    """Returns True if another retry does not count as a change, because the submission is already due, or was already
    retried during the attempt that is open.
    """
    if row.state != SubmissionState.PENDING.value or row.failures or row.unknowns or row.pause_is_binding:
        return False
    if open_since is not None:
        return bool(row.last_modified_at > open_since)
    return row.next_attempt_at is not None and bool(row.next_attempt_at <= now)


def _cancel(connection: Connection, now: datetime, row: Any) -> tuple[bool, bool]:
    if row.gateway == USAGES:
        return False, False
    is_open = row.state in (SubmissionState.PENDING.value, SubmissionState.FAILED.value)
    if is_open:
        changes = {"state": SubmissionState.CANCELLED.value, "next_attempt_at": None, "ended_at": now}
        _write(connection, row.submission_id, last_modified_at=now, **changes)
    return row.state != SubmissionState.DELIVERED.value, is_open


def prune_submissions(connection: Connection, now: datetime, kept: timedelta, limit: int) -> int:
    old = select(_row.submission_id).where(PRUNABLE, _row.ended_at < now - kept)
    found = connection.execute(old.order_by(_row.ended_at).limit(limit)).scalars().all()
    connection.execute(delete(submission_attempts).where(_attempt.submission_id.in_(found)))
    connection.execute(delete(event_batches).where(event_batches.c.submission_id.in_(found)))
    connection.execute(delete(submissions).where(_row.submission_id.in_(found)))
    return len(found)


def _write(connection: Connection, submission_id: str, **values: Any) -> None:
    connection.execute(update(submissions).where(_row.submission_id == submission_id).values(**values))
