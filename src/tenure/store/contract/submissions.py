"""The store's operations on submissions and their attempts."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tenure.domain.audit_log import AuditDraft
from tenure.domain.leases import Fence
from tenure.domain.submissions import (
    Attempt,
    AttemptEnd,
    BeginAttemptsResult,
    Change,
    Envelope,
    OpenAttempt,
    PendingPage,
    Submission,
    SubmissionCommand,
    SubmissionCount,
    SubmissionFilter,
    SubmissionStatus,
    SubmitRequest,
    SubmitResult,
)


class SubmissionStore(Protocol):
    async def accept_submissions(self, requests: Sequence[SubmitRequest]) -> Sequence[SubmitResult]:
        """Accepts at most BATCH_MAX requests. Returns one result per request, in the same order, after the commit."""

    async def announce_submissions(self) -> None:
        """Notifies all instances, if the engine supports notifications.

        Separate from `accept_submissions`, because PostgreSQL commits transactions with a notification one at a time.
        """

    async def list_pending(self, after: Change | None, limit: int) -> PendingPage:
        """Returns pending submissions in the order of their last change, starting after `after`."""

    async def read_envelopes(self, submission_ids: Sequence[str]) -> Sequence[Envelope]:
        """Returns envelopes in any order.

        `begin_attempts` does not return the envelopes, because the payloads of a batch can be larger than a socket
        buffer: if the instance did not read them, the transaction could not end, and would keep its locks.
        """

    async def begin_attempts(
        self, fence: Fence, submission_ids: Sequence[str], early: Sequence[str] = ()
    ) -> BeginAttemptsResult:
        """Records an attempt of each submission that is due, before the request is sent. Returns one result per
        submission, in any order.

        Submissions in `early`, which must also be in `submission_ids`, begin before they are due, unless their pause is
        binding.

        If a submission has an open attempt of this epoch, the store assumes that the response to an earlier call was
        lost, and returns that attempt. So the caller must not pass a submission that it is sending.
        """

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[SubmissionStatus]:
        """Closes attempts with their outcome, and returns the new state of their submissions, in any order."""

    async def list_orphaned_attempts(self, epoch: int, limit: int) -> Sequence[OpenAttempt]:
        """Returns up to `limit` open attempts of other epochs, in any order. `finish_attempts` closes them."""

    async def note_waiting_reason(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        """Stores `error` as the reason why these submissions are not sent although they are due."""

    async def command_submissions(
        self, command: SubmissionCommand, submission_ids: Sequence[str], owner: str | None, draft: AuditDraft
    ) -> Mapping[str, bool]:
        """Returns, for each submission that exists, whether the command was carried out: False if the submission is
        already delivered, or if the command would cancel usage.

        With an `owner`, submissions of other callers are treated as unknown. Adds the number of submissions that it
        changes to the audit entry `draft`. A retry does not count as a change if the submission is pending and due, and
        has no failures, no unknown outcomes and no binding pause, or if an earlier retry already waits for the end of
        the submission's open attempt.
        """

    async def get_submission(
        self, submission_id: str, owner: str | None
    ) -> tuple[Submission, Sequence[Attempt]] | None:
        """With an `owner`, returns None for the submissions of other callers."""

    async def list_submissions(
        self, criteria: SubmissionFilter, before: str | None, limit: int
    ) -> Sequence[Submission]:
        """Returns submissions in descending order of id, starting below the id `before`."""

    async def count_submissions(self) -> Sequence[SubmissionCount]:
        """Counts the submissions of each gateway and state, up to the limits COUNTED_…, ordered by gateway. Omits
        gateways and states without submissions.
        """
