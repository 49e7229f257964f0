"""Submissions and the attempts to deliver them."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

import msgspec

KEY_MAX = 255
USAGES = "usages"
"""The gateway that receives usage."""
NOT_SENT = "not sent: "
"""If a payload is withheld, the `last_error` of its submission begins with this text."""


class SubmissionState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Contract(msgspec.Struct, frozen=True):
    """How a submission is delivered and retried. Copied from its gateway when the submission is accepted."""

    schedule_seconds: tuple[float, ...]
    """The pauses after failures: the first pause follows the first failure, and so on. The last pause repeats."""
    max_attempts: int | None
    """The number of failed attempts after which the submission fails; None if there is no limit."""
    already_have: tuple[int, ...]
    """Response statuses that mean that the receiver already has the submission."""
    timeout_seconds: float
    format: str | None = None
    """The format in which the payload is rendered when it is sent; None if the payload is sent as it was accepted."""


class SubmitRequest(msgspec.Struct, frozen=True):
    """A request to accept a submission.

    `submission_id` becomes the id of the submission, unless the caller has already submitted something to this gateway
    with this idempotency key. `digest` is the SHA-256 of the payload.
    """

    submission_id: str
    gateway: str
    caller: str
    key: str
    payload: bytes
    digest: bytes
    contract: Contract
    request_id: str | None = None
    """The id of the HTTP request."""
    traceparent: str | None = None
    """The position of the HTTP request in a trace; None if the request is not sampled."""


class SubmitResult(msgspec.Struct, frozen=True):
    """The submission that now exists for the idempotency key."""

    submission_id: str
    state: str
    same: bool
    """Whether the submission has the payload of this request."""
    new: bool
    """Whether this request created the submission."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    submission_id: str
    gateway: str
    state: str
    attempts: int
    failures: int
    """The number of failed attempts that count against `max_attempts` of the contract."""
    unknowns: int = 0
    """The number of attempts of unknown outcome since the submission was accepted or last retried by a command."""
    next_attempt_at: datetime | None = None
    """None if no attempt is scheduled, or if an attempt is in progress."""
    last_error: str | None = None
    request_id: str | None = None
    """The id of the HTTP request that submitted the payload; None for a submission of Tenure itself."""
    created_at: datetime
    last_modified_at: datetime
    """When the submission was accepted or last changed by a command. Attempts do not change this time."""
    ended_at: datetime | None = None


class AttemptOutcome(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The executor's term ended before a response arrived, or before the outcome was recorded."""
    ABANDONED = "abandoned"
    """Nothing was sent in this attempt."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    epoch: int
    """The epoch of the executor's lease."""
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    status: int | None = None
    error: str | None = None
    was_due_at: datetime | None = None
    """For an early attempt, when the submission would have been due; None for any other attempt."""
    has_receipt: bool = False
    """Whether the response named the digest of the body that was sent."""


class PendingEntry(NamedTuple):
    """A pending submission in the schedule. A tuple saves memory: a new leader may have to read a million of them."""

    number: int
    """The submission's id as a number."""
    gateway: str
    due_microseconds: int | None
    """When the next attempt is due, in microseconds since 1970; None while an attempt is in progress."""
    changed_microseconds: int
    """When the submission was accepted or last changed by a command, in microseconds since 1970."""


class PendingPage(msgspec.Struct, frozen=True):
    now: datetime
    """The time of the database's clock."""
    waiting: Sequence[PendingEntry]


class Change(NamedTuple):
    """A position in the list of pending submissions. The list is ordered by the time of the last change, then by id."""

    changed_microseconds: int
    number: int


class BeginAttemptOutcome(StrEnum):
    BEGUN = "begun"
    """The attempt was recorded, and the submission may be sent."""
    LATER = "later"
    """The submission is not due and gets no early attempt, or an attempt of an earlier epoch is still open."""
    OVER = "over"
    """The submission is not pending, or does not exist."""
    HELD = "held"
    """Another transaction holds the row lock."""


class BeginAttemptResult(msgspec.Struct, frozen=True):
    submission_id: str
    found: BeginAttemptOutcome
    number: int | None = None
    failures: int | None = None
    unknowns: int = 0
    was_due_at: datetime | None = None
    """For an early attempt, when the submission would have been due."""
    next_attempt_at: datetime | None = None


class BeginAttemptsResult(msgspec.Struct, frozen=True):
    now: datetime
    """The time of the database's clock."""
    attempts: Sequence[BeginAttemptResult]


class Envelope(msgspec.Struct, frozen=True, dict=True):
    """What is the same in every attempt of a submission: payload, delivery key and contract."""

    submission_id: str
    delivery_key: str
    payload: bytes
    """Empty if the payload is rendered when it is sent."""
    contract: Contract
    request_id: str | None = None
    """The id of the HTTP request that submitted the payload; None for a submission of Tenure itself."""
    traceparent: str | None = None
    """The position of that request in a trace; None if the request was not sampled, or if there was none."""

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of the payload. Cached, because both the stored digest and the receipt are compared with it."""
        return sha256(self.payload).digest()


class AttemptEnd(msgspec.Struct, frozen=True):
    """The result of an attempt."""

    submission_id: str
    number: int
    outcome: AttemptOutcome
    status: int | None
    error: str | None
    counts: bool
    """Whether the attempt counts against `max_attempts` of the contract."""
    pause_microseconds: int | None
    """The pause until the next attempt; None if there is no next attempt."""
    is_binding: bool = False
    """Whether the pause is binding: no early attempt begins before it is over."""
    has_receipt: bool = False


class OpenAttempt(msgspec.Struct, frozen=True):
    """An attempt that an earlier epoch left open."""

    submission_id: str
    number: int
    gateway: str
    unknowns: int
    contract: Contract


class SubmissionStatus(msgspec.Struct, frozen=True):
    """The state of a submission after the end of an attempt."""

    submission_id: str
    state: str
    next_attempt_at: datetime | None


class SubmissionCommand(StrEnum):
    RETRY = "retry"
    CANCEL = "cancel"


class SubmissionCount(msgspec.Struct, frozen=True):
    """The number of submissions of a gateway in a state."""

    gateway: str
    state: str
    count: int
    exact: bool
    """If false, `count` is a lower bound: counting stopped at a limit."""


class SubmissionFilter(msgspec.Struct, frozen=True, kw_only=True):
    gateway: str | None = None
    state: str | None = None
