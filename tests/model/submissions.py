"""A model of submissions in plain Python, which the engines are compared with. It has no SQL and no leases."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from tenure.domain.submissions import (
    Attempt,
    AttemptEnd,
    AttemptOutcome,
    BeginAttemptOutcome,
    PendingEntry,
    Submission,
    SubmissionCommand,
    SubmissionStatus,
    SubmitRequest,
    SubmitResult,
)
from tests.support.submissions import waits

MICROSECOND = timedelta(microseconds=1)

Key = tuple[str, str, str]
Begun = tuple[BeginAttemptOutcome, int | datetime | None]
"""The result of a begin: the attempt number if it may be sent, or the time at which it is due."""


class SubmissionModel:
    def __init__(self) -> None:
        self.by_key: dict[Key, SubmitRequest] = {}
        self.submissions: dict[str, Submission] = {}
        self.attempts: dict[str, list[Attempt]] = {}

    def accept(self, requests: Sequence[SubmitRequest], now: datetime) -> list[SubmitResult]:
        return [self._accept(request, now) for request in requests]

    def _accept(self, request: SubmitRequest, now: datetime) -> SubmitResult:
        key = (request.caller, request.gateway, request.key)
        if key not in self.by_key:
            self.by_key[key] = request
            self.attempts[request.submission_id] = []
            self.submissions[request.submission_id] = Submission(
                submission_id=request.submission_id,
                gateway=request.gateway,
                state="pending",
                attempts=0,
                failures=0,
                next_attempt_at=now,
                created_at=now,
                last_modified_at=now,
            )
        known = self.by_key[key]
        return SubmitResult(
            known.submission_id,
            self.submissions[known.submission_id].state,
            same=known.payload == request.payload,
            new=known.submission_id == request.submission_id,
        )

    def waiting(self) -> list[PendingEntry]:
        found = [one for one in self.submissions.values() if one.state == "pending"]
        found.sort(key=lambda one: (one.last_modified_at, one.submission_id))
        return [waits(one.submission_id, one.next_attempt_at, one.last_modified_at, one.gateway) for one in found]

    def begin(self, epoch: int, submission_ids: Iterable[str], now: datetime) -> dict[str, Begun]:
        return {submission_id: self._begin(epoch, submission_id, now) for submission_id in submission_ids}

    def _begin(self, epoch: int, submission_id: str, now: datetime) -> Begun:
        one = self.submissions.get(submission_id)
        if one is None or one.state != "pending":
            return BeginAttemptOutcome.OVER, None
        under_way = self._under_way(submission_id)
        if under_way is not None:
            is_mine = under_way.epoch == epoch
            return (BeginAttemptOutcome.BEGUN, under_way.number) if is_mine else (BeginAttemptOutcome.LATER, None)
        if one.next_attempt_at is None or now < one.next_attempt_at:
            return BeginAttemptOutcome.LATER, one.next_attempt_at
        number = len(self.attempts[submission_id]) + 1
        started_at = max(now, one.last_modified_at)
        self.attempts[submission_id].append(Attempt(number=number, epoch=epoch, started_at=started_at))
        self._change(submission_id, attempts=number, next_attempt_at=None)
        return BeginAttemptOutcome.BEGUN, number

    def finish(self, ends: Sequence[AttemptEnd], now: datetime) -> dict[str, SubmissionStatus]:
        for end in ends:
            under_way = self._under_way(end.submission_id)
            if under_way is not None and under_way.number == end.number:
                self._close(end.submission_id, now, end.outcome, end.status, end.error)
                self._move(end, under_way.started_at, now)
        found = (self.submissions[end.submission_id] for end in ends)
        return {one.submission_id: SubmissionStatus(one.submission_id, one.state, one.next_attempt_at) for one in found}

    def _move(self, end: AttemptEnd, started_at: datetime, now: datetime) -> None:
        one = self.submissions[end.submission_id]
        # Retried by hand while it was under way: due as soon as that has failed, and counted from 0.
        retried = one.last_modified_at > started_at
        pause = 0 if retried else end.pause_microseconds
        self._change(end.submission_id, failures=one.failures + (end.counts and not retried), last_error=end.error)
        if end.outcome is AttemptOutcome.DELIVERED:
            self._change(end.submission_id, state="delivered", ended_at=now, last_error=None)
        elif one.state == "pending" and pause is None:
            self._change(end.submission_id, state="failed", ended_at=now)
        elif one.state == "pending":
            self._change(end.submission_id, next_attempt_at=now + pause * MICROSECOND)

    def close_orphaned_attempts(self, epoch: int, now: datetime) -> int:
        left = [each for each in self.submissions if self._is_left(each, epoch)]
        for submission_id in left:
            error = "the executor stopped before it recorded the outcome"
            self._close(submission_id, now, AttemptOutcome.UNKNOWN, None, error)
            if self.submissions[submission_id].state == "pending":
                self._change(submission_id, next_attempt_at=now)
        return len(left)

    def _is_left(self, submission_id: str, epoch: int) -> bool:
        under_way = self._under_way(submission_id)
        return under_way is not None and under_way.epoch < epoch

    def command(self, command: SubmissionCommand, submission_ids: Iterable[str], now: datetime) -> dict[str, bool]:
        order = self._retry if command is SubmissionCommand.RETRY else self._cancel
        return {each: order(each, now) for each in submission_ids if each in self.submissions}

    def _retry(self, submission_id: str, now: datetime) -> bool:
        if self.submissions[submission_id].state == "delivered":
            return False
        under_way = self._under_way(submission_id)
        due = now if under_way is None else None
        changed_at = now if under_way is None else max(now, under_way.started_at + MICROSECOND)
        changes: dict[str, Any] = {"state": "pending", "failures": 0, "ended_at": None, "next_attempt_at": due}
        self._change(submission_id, last_modified_at=changed_at, **changes)
        return True

    def _cancel(self, submission_id: str, now: datetime) -> bool:
        state = self.submissions[submission_id].state
        if state in ("pending", "failed"):
            self._change(submission_id, state="cancelled", next_attempt_at=None, ended_at=now, last_modified_at=now)
        return state != "delivered"

    def explain(self, submission_ids: Iterable[str], error: str) -> None:
        for submission_id in submission_ids:
            if submission_id in self.submissions and self.submissions[submission_id].state == "pending":
                self._change(submission_id, last_error=error)

    def _under_way(self, submission_id: str) -> Attempt | None:
        newest = self.attempts.get(submission_id, [])[-1:]
        return newest[0] if newest and newest[0].ended_at is None else None

    def _close(
        self, submission_id: str, now: datetime, outcome: AttemptOutcome, status: int | None, error: str | None
    ) -> None:
        last = self.attempts[submission_id].pop()
        ended = replace(last, ended_at=now, outcome=outcome.value, status=status, error=error)
        self.attempts[submission_id].append(ended)

    def _change(self, submission_id: str, **changes: Any) -> None:
        self.submissions[submission_id] = replace(self.submissions[submission_id], **changes)
