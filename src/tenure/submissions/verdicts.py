"""What an answer of a receiver means for a submission. Pure: no clock, no chance, no network."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from tenure.model.submissions import AttemptOutcome, Contract

LATER = (429, 503)
"""Statuses whose `Retry-After` counts."""
GONE = 410
RETRY_AFTER_MAX_SECONDS = 3600.0
RETRY_AFTER_MIN_SECONDS = 1.0
"""Whoever says "later" is not asked again at once, and again, and again."""
JITTER = 0.2
"""Of a pause, at most: what failed together must not all come again together."""


class Answer(msgspec.Struct, frozen=True):
    """How a request ended: with a status, or without one and with what went wrong."""

    status: int | None
    error: str | None = None
    retry_after: str | None = None
    """The header, as it came."""


class Verdict(msgspec.Struct, frozen=True):
    outcome: AttemptOutcome
    error: str | None = None
    pause_seconds: float | None = None
    """Until the next attempt; None if there is to be none."""


DELIVERED = Verdict(AttemptOutcome.DELIVERED)


def judge(contract: Contract, failures: int, answer: Answer, now: datetime, chance: float) -> Verdict:
    """`failures` before this one; `chance` from 0 to 1 spreads the pauses, `now` is what a date in `Retry-After` is
    compared with.
    """
    if answer.status is not None and (answer.status // 100 == 2 or answer.status in contract.already_have):  # noqa: PLR2004
        return DELIVERED
    error = answer.error or f"answered {answer.status}"
    if contract.max_attempts is not None and (answer.status == GONE or failures + 1 >= contract.max_attempts):
        return Verdict(AttemptOutcome.FAILED, error)
    asked_for = _retry_after(answer.retry_after, now) if answer.status in LATER else None
    pause = asked_for if asked_for is not None else _scheduled(contract, failures, chance)
    return Verdict(AttemptOutcome.FAILED, error, pause)


def _scheduled(contract: Contract, failures: int, chance: float) -> float:
    pause = contract.schedule_seconds[min(failures, len(contract.schedule_seconds) - 1)]
    return pause * (1 + JITTER * chance)


def _retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds, whether it says so or names a date; None if it says nothing that can be understood."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdecimal():
        return _within_bounds(float(text[:9]))
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the latter of a year or an hour that no calendar has
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return _within_bounds((until - now).total_seconds())


def _within_bounds(seconds: float) -> float:
    return min(max(seconds, RETRY_AFTER_MIN_SECONDS), RETRY_AFTER_MAX_SECONDS)
