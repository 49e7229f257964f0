"""Decides from a receiver's response whether a submission is delivered, is retried, or has failed.

The functions are pure: no clock, no randomness, no network.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from tenure.domain.submissions import AttemptOutcome, Contract

LATER = (429, 503)
"""Statuses for which `Retry-After` is respected."""
GONE = 410
RETRY_AFTER_MAX_SECONDS = 3600.0
RETRY_AFTER_MIN_SECONDS = 1.0
"""The minimum pause, so that `Retry-After: 0` does not cause immediate retries."""
UNKNOWN_MAX = 20
"""The number of attempts of unknown outcome after which a submission fails if its contract has `max_attempts`."""
RECEIPT = "sha256="
"""The beginning of a receipt. The digest of the body follows in hexadecimal."""
JITTER = 0.2
"""Each pause of the schedule is extended by a random part of up to this fraction, so that submissions that failed
together are not retried together."""


class Response(msgspec.Struct, frozen=True):
    """The result of a request: a status, or an error if there was no response."""

    status: int | None
    error: str | None = None
    retry_after: str | None = None
    """The value of the header, unparsed."""
    receipt: str | None = None
    """The value of the header `Tenure-Receipt`, unparsed."""


class Verdict(msgspec.Struct, frozen=True):
    outcome: AttemptOutcome
    error: str | None = None
    pause_seconds: float | None = None
    """The pause until the next attempt; None if there is no next attempt."""
    asked_for: bool = False
    """Whether the receiver asked for the pause with `Retry-After`."""


DELIVERED = Verdict(AttemptOutcome.DELIVERED)


def judge(
    contract: Contract, failures: int, answer: Response, now: datetime, chance: float, *, early: bool = False
) -> Verdict:
    """Return the verdict on a response.

    `failures` is the number of earlier failures. `chance`, a random number from 0 to 1, extends the pause. `now` is
    used for a date in `Retry-After`. An `early` attempt does not count as a failure, and its retry has no pause unless
    the receiver asks for one. (The caller of this function still waits until the submission would have been due.)
    """
    if answer.status is not None and (answer.status // 100 == 2 or answer.status in contract.already_have):  # noqa: PLR2004
        return DELIVERED
    error = answer.error or f"answered {answer.status}"
    # Without a limit on attempts, as for usage, even 410 is retried.
    limit = contract.max_attempts
    if limit is not None and (answer.status == GONE or (failures + 1 >= limit and not early)):
        return Verdict(AttemptOutcome.FAILED, error)
    asked_for = _retry_after(answer.retry_after, now) if answer.status in LATER else None
    if asked_for is not None:
        return Verdict(AttemptOutcome.FAILED, error, asked_for, asked_for=True)
    return Verdict(AttemptOutcome.FAILED, error, 0.0 if early else _scheduled(contract, failures, chance))


def judge_unknown(contract: Contract, unknowns: int, error: str, chance: float) -> Verdict:
    """Return the verdict on an attempt of unknown outcome, after `unknowns` earlier attempts of unknown outcome.

    After the first of them, the retry has no pause, because probably only an instance has stopped or died. Further
    retries follow the schedule, because the request itself may be what makes the instances stop.
    """
    if contract.max_attempts is not None and unknowns + 1 >= UNKNOWN_MAX:
        return Verdict(AttemptOutcome.UNKNOWN, f"{unknowns + 1} attempts had an unknown outcome; the last: {error}")
    pause = 0.0 if unknowns == 0 else _scheduled(contract, unknowns - 1, chance)
    return Verdict(AttemptOutcome.UNKNOWN, error, pause)


def names_body(receipt: str, digest: bytes) -> bool:
    """Return whether a receipt, the value of `Tenure-Receipt`, names the body with this SHA-256."""
    return receipt.lower() == RECEIPT + digest.hex()


def _scheduled(contract: Contract, failures: int, chance: float) -> float:
    pause = contract.schedule_seconds[min(failures, len(contract.schedule_seconds) - 1)]
    return pause * (1 + JITTER * chance)


def _retry_after(header: str | None, now: datetime) -> float | None:
    """Return the pause in seconds, from a number or a date in the header; None if it is missing or invalid."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdecimal():
        # Nine digits are enough: they already exceed the maximum.
        return _within_bounds(float(text.lstrip("0")[:9] or "0"))
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # OverflowError for a date out of range
        return None
    # A date without a zone, or with the zone -0000, is parsed as naive. Treat it as UTC.
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return _within_bounds((until - now).total_seconds())


def _within_bounds(seconds: float) -> float:
    return min(max(seconds, RETRY_AFTER_MIN_SECONDS), RETRY_AFTER_MAX_SECONDS)
