"""The attempts in progress for one gateway, and the functions that build the end of an attempt."""

import asyncio
import random
from collections import deque
from typing import NamedTuple

from tenure.clock import from_microseconds, wall_microseconds
from tenure.domain.submissions import AttemptEnd, AttemptOutcome, Envelope
from tenure.domain.verdicts import Response, judge
from tenure.errors import ERROR_MAX
from tenure.store.limits import BATCH_MAX
from tenure.submissions.gateways import Gateway
from tenure.submissions.payloads import Withheld

MICROSECONDS = 1_000_000


class ReadyAttempt(NamedTuple):
    """An attempt whose begin is recorded, and the envelope that it sends."""

    number: int
    failures: int
    envelope: Envelope


class GatewayQueue:
    """The attempts that use a connection to the gateway, and the attempts that wait for a connection.

    Connections become free while a batch of attempts is being recorded. So the executor begins attempts ahead, before a
    connection is free for them: up to twice as many as were answered while the last batch was recorded, and at most
    `concurrency`. It begins none ahead if the receiver does not answer.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.ready: deque[ReadyAttempt] = deque()
        self.sending = 0
        self.unrecorded = 0
        self.answered = 0
        self.is_failing = False
        self._ahead = 0

    @property
    def has_place(self) -> bool:
        return self.sending < self.gateway.concurrency

    @property
    def room(self) -> int:
        """The number of attempts that may be begun now. It is lower if many attempts have no recorded end yet."""
        places = self.gateway.concurrency
        return min(places + self._ahead - self.sending - len(self.ready), 3 * places - self.unrecorded, BATCH_MAX)

    def begin_ahead(self, answered_before: int) -> None:
        self._ahead = min(self.gateway.concurrency, 2 * (self.answered - answered_before))


def judged(ready: ReadyAttempt, response: Response) -> AttemptEnd:
    """Returns the end of an attempt that got a response or failed without one."""
    now = from_microseconds(wall_microseconds())
    verdict = judge(ready.envelope.contract, ready.failures, response, now, random.random())  # noqa: S311
    pause = verdict.pause_seconds
    return AttemptEnd(
        ready.envelope.submission_id,
        ready.number,
        verdict.outcome,
        response.status,
        verdict.error and verdict.error[:ERROR_MAX],
        counts=verdict.outcome is AttemptOutcome.FAILED,
        pause_microseconds=None if pause is None else round(pause * MICROSECONDS),
    )


def response_of(sending: asyncio.Task[Response]) -> Response | BaseException:
    return sending.exception() or sending.result()


def unknown(ready: ReadyAttempt) -> AttemptEnd:
    return _not_counted(ready, AttemptOutcome.UNKNOWN, "the instance stopped before it got a response")


def abandoned(ready: ReadyAttempt) -> AttemptEnd:
    return _not_counted(ready, AttemptOutcome.ABANDONED, "the instance stopped before it sent the request")


def not_sent(ready: ReadyAttempt, withheld: Withheld) -> AttemptEnd:
    error = f"not sent: {withheld.error}"[:ERROR_MAX]
    return _not_counted(ready, AttemptOutcome.ABANDONED, error, round(withheld.retry_seconds * MICROSECONDS))


def _not_counted(ready: ReadyAttempt, outcome: AttemptOutcome, error: str, pause_microseconds: int = 0) -> AttemptEnd:
    """Returns the end of an attempt that does not count towards the contract's limit of attempts."""
    submission_id = ready.envelope.submission_id
    return AttemptEnd(
        submission_id, ready.number, outcome, None, error, counts=False, pause_microseconds=pause_microseconds
    )
