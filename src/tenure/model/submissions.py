"""Submissions and the attempts to deliver them."""

from enum import StrEnum

import msgspec


class Contract(msgspec.Struct, frozen=True):
    """How often and how long a submission is tried: copied from its gateway when it is accepted."""

    schedule_seconds: tuple[float, ...]
    """How long to wait after the first failure, the second, …; the last one repeats."""
    max_attempts: int | None
    """Failures after which it is given up; None: never."""
    already_have: tuple[int, ...]
    """Statuses by which the receiver says that it has this one already."""
    timeout_seconds: float


class AttemptOutcome(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Whoever sent it did not say what became of it."""
