"""A model of submissions in plain Python, without SQL and leases. The tests compare the engines with the model."""

from collections.abc import Collection, Iterable, Sequence
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
from tests.support.submissions import pending_entry

MICROSECOND = timedelta(microseconds=1)

Key = tuple[str, str, str]
Begun = tuple[BeginAttemptOutcome, int | datetime | None]
"""The result of `begin`: the number of the attempt if one has begun, otherwise when the next one is due, if known."""


class SubmissionModel:
    def __init__(self) -> None:
        self.by_key: dict[Key, SubmitRequest] = {}
        self.submissions: dict[str, Submission] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.binding: set[str] = set()
        """The submissions whose pause is binding."""

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
        return [
            pending_entry(one.submission_id, one.next_attempt_at, one.last_modified_at, one.gateway) for one in found
        ]

    def begin(
        self, epoch: int, submission_ids: Iterable[str], now: datetime, early: Collection[str] = ()
    ) -> dict[str, Begun]:
        return {each: self._begin(epoch, each, now, early=each in early) for each in submission_ids}

    def _begin(self, epoch: int, submission_id: str, now: datetime, *, early: bool) -> Begun:
        one = self.submissions.get(submission_id)
        if one is None or one.state != "pending":
            return BeginAttemptOutcome.OVER, None
        open_attempt = self._open_attempt(submission_id)
        if open_attempt is not None:
            is_mine = open_attempt.epoch == epoch
            return (BeginAttemptOutcome.BEGUN, open_attempt.number) if is_mine else (BeginAttemptOutcome.LATER, None)
        is_early = one.next_attempt_at is not None and now < one.next_attempt_at
        if one.next_attempt_at is None or (is_early and (not early or submission_id in self.binding)):
            return BeginAttemptOutcome.LATER, one.next_attempt_at
        number = len(self.attempts[submission_id]) + 1
        started_at = max(now, one.last_modified_at)
        was_due_at = one.next_attempt_at if is_early else None
        self.attempts[submission_id].append(
            Attempt(number=number, epoch=epoch, started_at=started_at, was_due_at=was_due_at)
        )
        self._change(submission_id, attempts=number, next_attempt_at=None)
        return BeginAttemptOutcome.BEGUN, number

    def finish(self, ends: Sequence[AttemptEnd], now: datetime) -> dict[str, SubmissionStatus]:
        for end in ends:
            open_attempt = self._open_attempt(end.submission_id)
            if open_attempt is not None and open_attempt.number == end.number:
                self._close(end, now)
                self._move(end, open_attempt.started_at, now)
        found = (self.submissions[end.submission_id] for end in ends)
        return {one.submission_id: SubmissionStatus(one.submission_id, one.state, one.next_attempt_at) for one in found}

    def _move(self, end: AttemptEnd, started_at: datetime, now: datetime) -> None:
        one = self.submissions[end.submission_id]
        # If an operator retried the submission during the attempt, a failure of the attempt is not counted, and the
        # submission is due at once.
        retried = one.last_modified_at > started_at
        pause = 0 if retried else end.pause_microseconds
        self._change(
            end.submission_id,
            failures=one.failures + (end.counts and not retried),
            unknowns=one.unknowns + (end.outcome is AttemptOutcome.UNKNOWN and not retried),
            last_error=end.error,
        )
        self._bind(end.submission_id, binding=end.is_binding and not retried)
        if end.outcome is AttemptOutcome.DELIVERED:
            self._change(end.submission_id, state="delivered", ended_at=now, last_error=None)
        elif one.state == "pending" and pause is None:
            self._change(end.submission_id, state="failed", ended_at=now)
        elif one.state == "pending":
            self._change(end.submission_id, next_attempt_at=now + pause * MICROSECOND)

    def orphaned(self, epoch: int) -> dict[str, int]:
        """The number of each open attempt that began in another epoch, by submission."""
        opened = {each: self._open_attempt(each) for each in self.submissions}
        return {each: attempt.number for each, attempt in opened.items() if attempt and attempt.epoch != epoch}

    def command(self, command: SubmissionCommand, submission_ids: Iterable[str], now: datetime) -> dict[str, bool]:
        order = self._retry if command is SubmissionCommand.RETRY else self._cancel
        return {each: order(each, now) for each in submission_ids if each in self.submissions}

    def _retry(self, submission_id: str, now: datetime) -> bool:
        if self.submissions[submission_id].state == "delivered":
            return False
        open_attempt = self._open_attempt(submission_id)
        due = now if open_attempt is None else None
        changed_at = now if open_attempt is None else max(now, open_attempt.started_at + MICROSECOND)
        changes: dict[str, Any] = {"state": "pending", "failures": 0, "unknowns": 0, "ended_at": None}
        self._change(submission_id, last_modified_at=changed_at, next_attempt_at=due, **changes)
        self._bind(submission_id, binding=False)
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

    def _open_attempt(self, submission_id: str) -> Attempt | None:
        newest = self.attempts.get(submission_id, [])[-1:]
        return newest[0] if newest and newest[0].ended_at is None else None

    def _close(self, end: AttemptEnd, now: datetime) -> None:
        last = self.attempts[end.submission_id].pop()
        ended = replace(
            last,
            ended_at=now,
            outcome=end.outcome.value,
            status=end.status,
            error=end.error,
            has_receipt=end.has_receipt,
        )
        self.attempts[end.submission_id].append(ended)

    def _bind(self, submission_id: str, *, binding: bool) -> None:
        (self.binding.add if binding else self.binding.discard)(submission_id)

    def _change(self, submission_id: str, **changes: Any) -> None:
        self.submissions[submission_id] = replace(self.submissions[submission_id], **changes)
