"""How attempts end."""

import asyncio
import random

import structlog

from tenure.clock import from_microseconds, wall_microseconds
from tenure.model.leases import ERROR_MAX
from tenure.model.submissions import AttemptEnd, AttemptOutcome
from tenure.submissions.lanes import Ready
from tenure.submissions.verdicts import Answer, judge
from tenure.usage.rendering import Withheld

log = structlog.get_logger()

MICROSECONDS = 1_000_000


def judged(ready: Ready, sending: asyncio.Task[Answer]) -> AttemptEnd:
    answer = _answer_of(sending)
    now = from_microseconds(wall_microseconds())
    verdict = judge(ready.parcel.contract, ready.failures, answer, now, random.random())  # noqa: S311
    pause = verdict.pause_seconds
    return AttemptEnd(
        ready.parcel.submission_id,
        ready.number,
        verdict.outcome,
        answer.status,
        verdict.error and verdict.error[:ERROR_MAX],
        counts=verdict.outcome is AttemptOutcome.FAILED,
        pause_microseconds=None if pause is None else round(pause * MICROSECONDS),
    )


def _answer_of(sending: asyncio.Task[Answer]) -> Answer:
    error = sending.exception()
    if error is None:
        return sending.result()
    log.error("submission.not_sent", exc_info=error)
    return Answer(None, f"it could not be sent: {type(error).__name__}")


def unknown(ready: Ready) -> AttemptEnd:
    return _cut_short(ready, AttemptOutcome.UNKNOWN, "the instance stopped before an answer came")


def abandoned(ready: Ready) -> AttemptEnd:
    return _cut_short(ready, AttemptOutcome.ABANDONED, "the instance stopped before it was sent")


def withheld(ready: Ready, why: Withheld) -> AttemptEnd:
    log.error("usage.withheld", submission_id=ready.parcel.submission_id, error=str(why))
    error = f"not sent: {why}"[:ERROR_MAX]
    return _cut_short(ready, AttemptOutcome.ABANDONED, error, round(why.pause_seconds * MICROSECONDS))


def _cut_short(ready: Ready, outcome: AttemptOutcome, error: str, pause_microseconds: int = 0) -> AttemptEnd:
    submission_id = ready.parcel.submission_id
    return AttemptEnd(
        submission_id, ready.number, outcome, None, error, counts=False, pause_microseconds=pause_microseconds
    )
