"""The attempts in progress for one gateway, and the functions that build the end of an attempt."""

import asyncio
import random
from collections import deque
from typing import NamedTuple

from tenure.clock import from_microseconds, wall_microseconds
from tenure.domain.submissions import NOT_SENT, AttemptEnd, AttemptOutcome, Envelope, OpenAttempt
from tenure.domain.verdicts import Response, Verdict, judge, judge_unknown, names_body
from tenure.errors import ERROR_MAX
from tenure.store.limits import BATCH_MAX
from tenure.submissions.gateways import Gateway
from tenure.submissions.payloads import Withheld
from tenure.submissions.recovery import Recovery

MICROSECONDS = 1_000_000
UNRECORDED_RATIO = 5
"""The most attempts per connection that were begun and whose end is not recorded yet. The ends of one batch are
recorded while the attempts of the next batch end. With a limit of three, connections were idle while a batch was
recorded."""
WRONG_RECEIPT = "the receipt names another body"


class ReadyAttempt(NamedTuple):
    """An attempt whose beginning is recorded, and the envelope to send."""

    number: int
    failures: int
    unknowns: int
    was_due_microseconds: int | None
    """For an early attempt, when the submission would have been due; None for all others."""
    envelope: Envelope

    @property
    def is_early(self) -> bool:
        return self.was_due_microseconds is not None


class GatewayQueue:
    """The attempts that use a connection to the gateway, and the attempts that wait for a connection.

    Connections become free while a batch of attempts is being recorded. So the executor begins attempts ahead, before a
    connection is free for them: up to twice as many as the requests that ended while the last batch was recorded, and
    at most `concurrency`. If no request ended in this time, the executor begins no attempt ahead.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.ready: deque[ReadyAttempt] = deque()
        self.sending = 0
        self.unrecorded = 0
        self.answered = 0
        self.recovery = Recovery(gateway.concurrency)
        self._ahead = 0

    @property
    def has_free_connection(self) -> bool:
        return self.sending < self.gateway.concurrency

    @property
    def room(self) -> int:
        """The number of attempts that may be begun now. It is lower while the ends of many attempts are unrecorded."""
        places = self.gateway.concurrency
        return min(
            places + self._ahead - self.sending - len(self.ready),
            UNRECORDED_RATIO * places - self.unrecorded,
            BATCH_MAX,
        )

    def begin_ahead(self, answered_before: int) -> None:
        self._ahead = min(self.gateway.concurrency, 2 * (self.answered - answered_before))


def judged(ready: ReadyAttempt, response: Response, now_microseconds: int, *, others_delivered: bool) -> AttemptEnd:
    """Returns the end of an attempt that got a response or failed without one.

    `others_delivered`: whether the gateway accepts other submissions at this time. If so, an early attempt that fails
    has failed because of its payload, not because of the gateway. The pause after this attempt is then binding: the
    next attempt of the submission is not early.
    """
    verdict = _judge(ready, response)
    receipt = response.receipt if verdict.outcome is AttemptOutcome.DELIVERED else None
    if receipt is not None and not names_body(receipt, ready.envelope.digest):
        verdict = _judge(ready, Response(None, WRONG_RECEIPT))
    failed = verdict.outcome is AttemptOutcome.FAILED
    return _end(
        ready,
        verdict,
        now_microseconds,
        status=response.status,
        counts=failed and not ready.is_early,
        is_binding=verdict.asked_for or (failed and ready.is_early and others_delivered),
        has_receipt=receipt is not None and not failed,
    )


def _judge(ready: ReadyAttempt, response: Response) -> Verdict:
    now, chance = from_microseconds(wall_microseconds()), random.random()  # noqa: S311
    return judge(ready.envelope.contract, ready.failures, response, now, chance, early=ready.is_early)


def response_of(sending: asyncio.Task[Response]) -> Response | BaseException:
    return sending.exception() or sending.result()


def orphaned(attempt: OpenAttempt) -> AttemptEnd:
    """Returns the end of an attempt that an earlier epoch left open."""
    error = "the executor stopped before it recorded the outcome"
    verdict = judge_unknown(attempt.contract, attempt.unknowns, error, random.random())  # noqa: S311
    return AttemptEnd(
        attempt.submission_id,
        attempt.number,
        verdict.outcome,
        None,
        verdict.error,
        counts=False,
        pause_microseconds=_microseconds(verdict.pause_seconds),
    )


def unknown(ready: ReadyAttempt) -> AttemptEnd:
    error = "the instance stopped before it got a response"
    verdict = judge_unknown(ready.envelope.contract, ready.unknowns, error, random.random())  # noqa: S311
    return _end(ready, verdict, None)


def abandoned(ready: ReadyAttempt, now_microseconds: int) -> AttemptEnd:
    verdict = Verdict(AttemptOutcome.ABANDONED, "the instance stopped before it sent the request", 0.0)
    return _end(ready, verdict, now_microseconds)


def not_sent(ready: ReadyAttempt, withheld: Withheld) -> AttemptEnd:
    """Returns the end of an attempt whose payload was withheld.

    The pause is binding: the gateway is not at fault, so its recovery is no reason for an early attempt.
    """
    verdict = Verdict(AttemptOutcome.ABANDONED, f"{NOT_SENT}{withheld.error}", withheld.retry_seconds)
    return _end(ready, verdict, None, is_binding=True)


def _end(
    ready: ReadyAttempt,
    verdict: Verdict,
    now_microseconds: int | None,
    *,
    status: int | None = None,
    counts: bool = False,
    is_binding: bool = False,
    has_receipt: bool = False,
) -> AttemptEnd:
    """With `now_microseconds`, the pause after an early attempt lasts at least until the submission would have been
    due.
    """
    pause = _microseconds(verdict.pause_seconds)
    if pause is not None and now_microseconds is not None and ready.was_due_microseconds is not None:
        pause = max(pause, ready.was_due_microseconds - now_microseconds)
    error = verdict.error and verdict.error[:ERROR_MAX]
    return AttemptEnd(
        ready.envelope.submission_id,
        ready.number,
        verdict.outcome,
        status,
        error,
        counts=counts,
        pause_microseconds=pause,
        is_binding=is_binding,
        has_receipt=has_receipt,
    )


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * MICROSECONDS)
