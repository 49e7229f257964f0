"""Submissions and the attempts to deliver them."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

KEY_MAX = 255
USAGES = "usages"
ONCALL = "oncall"
RESERVED = (USAGES, ONCALL)
"""Gateways of Tenure's own: nobody else can submit to them."""


class SubmissionState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Contract(msgspec.Struct, frozen=True):
    """How often and how long a submission is tried: copied from its gateway when it is accepted."""

    schedule_seconds: tuple[float, ...]
    """How long to wait after the first failure, the second, …; the last one repeats."""
    max_attempts: int | None
    """Failures after which it is given up; None: never."""
    already_have: tuple[int, ...]
    """Statuses by which the receiver says that it has this one already."""
    timeout_seconds: float
    format: str | None = None
    """Of usage, which is rendered when it is sent; None if it is sent as it was accepted."""


class Submit(msgspec.Struct, frozen=True):
    """One wish to have something sent. `submission_id` is the id it gets, unless its key is known already."""

    submission_id: str
    gateway: str
    caller: str
    key: str
    payload: bytes
    digest: bytes
    contract: Contract


class Accepted(msgspec.Struct, frozen=True):
    """What is there under the key now."""

    submission_id: str
    state: str
    same: bool
    """It has the payload of this wish."""
    new: bool
    """This very wish made it."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    submission_id: str
    gateway: str
    state: str
    attempts: int
    failures: int
    """Those that count against the limit of the contract."""
    next_attempt_at: datetime | None = None
    """None if there is to be none, or if one is under way."""
    last_error: str | None = None
    created_at: datetime
    last_modified_at: datetime
    """When it was accepted, or last commanded: what its attempts do to it does not count."""
    ended_at: datetime | None = None


class AttemptOutcome(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Whoever sent it did not say what became of it."""
    ABANDONED = "abandoned"
    """It was not sent."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    epoch: int
    """Of the executor's lease."""
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    status: int | None = None
    error: str | None = None


class Waiting(NamedTuple):
    """A pending submission, as the schedule knows it. All numbers: a leader may have to read a million as it begins."""

    number: int
    """Of its id."""
    gateway: str
    due_microseconds: int | None
    """Since 1970; None while an attempt is under way."""
    changed_microseconds: int


class WaitingPage(msgspec.Struct, frozen=True):
    now: datetime
    """By the database's clock."""
    waiting: Sequence[Waiting]


class Change(NamedTuple):
    """A place in the order in which submissions were changed."""

    changed_microseconds: int
    number: int


class BeginAttemptFound(StrEnum):
    BEGUN = "begun"
    """It may be sent."""
    LATER = "later"
    """It is not due."""
    OVER = "over"
    """It needs no more attempts."""
    HELD = "held"
    """Somebody is changing it at this moment."""


class BegunAttempt(msgspec.Struct, frozen=True):
    submission_id: str
    found: BeginAttemptFound
    number: int | None = None
    failures: int | None = None
    next_attempt_at: datetime | None = None


class BegunAttempts(msgspec.Struct, frozen=True):
    now: datetime
    """By the database's clock."""
    attempts: Sequence[BegunAttempt]


class Parcel(msgspec.Struct, frozen=True):
    """What is sent: the same in every attempt."""

    submission_id: str
    delivery_key: str
    payload: bytes
    """Empty if it is rendered when it is sent."""
    contract: Contract


class AttemptEnd(msgspec.Struct, frozen=True):
    """How an attempt went."""

    submission_id: str
    number: int
    outcome: AttemptOutcome
    status: int | None
    error: str | None
    counts: bool
    """Against the limit of the contract."""
    pause_microseconds: int | None
    """Until the next one; None if there is to be none."""


class Moved(msgspec.Struct, frozen=True):
    """What an attempt's end made of its submission."""

    submission_id: str
    state: str
    next_attempt_at: datetime | None


class SubmissionCommand(StrEnum):
    RETRY = "retry"
    CANCEL = "cancel"


class SubmissionFilter(msgspec.Struct, frozen=True, kw_only=True):
    gateway: str | None = None
    state: str | None = None
