"""From acceptance to the receiver, and back: each odd receiver's attempt says why, in one line."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import pytest

from tenure.config import GatewayConfig, LeasesConfig
from tests.http.client import JSON, Json
from tests.http.local import LocalService
from tests.http.submitting import MEBIBYTE, accepted, body, shown
from tests.support.databases import Database
from tests.support.odd_receivers import OddReceiver, answer, odd_receiver

BOUND_SECONDS = 30.0
FAST = LeasesConfig(duration_seconds=10.0, renew_seconds=3.0, acquire_seconds=0.05, refresh_seconds=0.05)


class Delivery:
    """An instance that leads, and one gateway."""

    def __init__(self, local: LocalService) -> None:
        self.local = local

    async def ended(self, submission_id: str, attempts: int = 1) -> Json:
        """The submission once so many of its attempts have ended."""
        async with asyncio.timeout(BOUND_SECONDS):
            while True:
                submission = await shown(self.local, submission_id)
                if len([each for each in submission["attempts"] if each["outcome"]]) >= attempts:
                    return submission
                await asyncio.sleep(0.02)


@pytest.fixture
async def deliver(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Starts an instance whose gateway `crm` is at an address."""
    async with AsyncExitStack() as started:

        async def start(url: str, **given: Any) -> Delivery:
            gateways = {
                "crm": GatewayConfig(url=url, **{"timeout_seconds": BOUND_SECONDS, "schedule": (3600.0,), **given})
            }
            local = LocalService.on(database, monkeypatch, gateways=gateways, leases=FAST)
            return Delivery(await started.enter_async_context(local.running()))

        yield start


async def outcome(deliver: Any, receiver: OddReceiver | str, **given: Any) -> tuple[Json, Json]:
    """Of one submission: it, and its one attempt."""
    url = receiver if isinstance(receiver, str) else receiver.address
    delivery = await deliver(url, **given)
    (submission_id,) = await accepted(delivery.local)
    submission = await delivery.ended(submission_id)
    (told,) = submission["attempts"]
    return submission, told


@pytest.mark.parametrize("payload", ['{ "a" :\t1.50, "a": "\\u00e9é😀" }', "1e999", '"x"'])
async def test_the_receiver_gets_the_payload_byte_for_byte(deliver: Any, payload: str) -> None:
    async with odd_receiver(answer("200 OK")) as receiver:
        delivery = await deliver(receiver.address)
        posted = await delivery.local.http.post(
            "/submissions", content=body(f"  {payload} ", "crm"), headers=JSON | {"Idempotency-Key": "k"}
        )
        submission_id = posted.json()["submissionId"]
        submission = await delivery.ended(submission_id)
        assert (submission["state"], receiver.bodies) == ("delivered", [payload.encode()])
        (received,) = receiver.received
    assert (received.header("idempotency-key"), received.header("webhook-id")) == (submission_id, submission_id)
    assert received.header("content-length") == str(len(payload.encode()))


async def test_the_largest_payload_arrives(deliver: Any) -> None:
    payload = '"' + "x" * (MEBIBYTE - 100) + '"'
    async with odd_receiver(answer("200 OK")) as receiver:
        delivery = await deliver(receiver.address)
        posted = await delivery.local.http.post(
            "/submissions", content=body(payload, "crm"), headers=JSON | {"Idempotency-Key": "k"}
        )
        await delivery.ended(posted.json()["submissionId"])
        assert receiver.bodies == [payload.encode()]


ANSWERS = {
    "200 OK": ("delivered", "delivered", None),
    "409 Conflict": ("delivered", "delivered", None),
    "410 Gone": ("failed", "failed", "answered 410"),
    "301 Moved": ("pending", "failed", "answered 301"),
    "404 Not Found": ("pending", "failed", "answered 404"),
    "500 Oops": ("pending", "failed", "answered 500"),
}


@pytest.mark.parametrize("head", ANSWERS)
async def test_an_answer_does_what_it_means(deliver: Any, head: str) -> None:
    async with odd_receiver(answer(head, b"whatever", "Location: http://127.0.0.1:9/")) as receiver:
        submission, told = await outcome(deliver, receiver)
    state, attempted, error = ANSWERS[head]
    assert (submission["state"], submission["lastError"]) == (state, error)
    assert (told["outcome"], told["status"], told["error"]) == (attempted, int(head[:3]), error)


@pytest.mark.parametrize("head", ["429 Later", "503 Away"])
async def test_is_sent_again_when_the_receiver_says(deliver: Any, head: str) -> None:
    async with odd_receiver(answer(head, b"", "Retry-After: 600")) as receiver:
        submission, told = await outcome(deliver, receiver)
    pause = _seconds(submission["nextAttemptAt"]) - _seconds(told["endedAt"])
    assert (submission["state"], pause) == ("pending", 600.0)


async def test_is_sent_again_after_the_pause_of_the_schedule_with_jitter(deliver: Any) -> None:
    async with odd_receiver(answer("500 Oops", b"", "Retry-After: 1")) as receiver:
        submission, told = await outcome(deliver, receiver, schedule=(100.0,))
    pause = _seconds(submission["nextAttemptAt"]) - _seconds(told["endedAt"])
    assert 100.0 <= pause <= 120.0


async def test_fails_for_good_after_the_last_attempt(deliver: Any) -> None:
    async with odd_receiver(answer("500 Oops")) as receiver:
        delivery = await deliver(receiver.address, schedule=(0.0,), max_attempts=3)
        (submission_id,) = await accepted(delivery.local)
        submission = await delivery.ended(submission_id, 3)
    assert (submission["state"], submission["attemptCount"], len(receiver.received)) == ("failed", 3, 3)
    assert {received.header("webhook-id") for received in receiver.received} == {submission_id}


NOWHERE = {
    "http://receiver.invalid/tok-hunter2": "its host name cannot be resolved",
    "http://127.0.0.1:9/tok-hunter2": "it could not be connected to: Connection refused",
}


@pytest.mark.parametrize("url", NOWHERE)
async def test_what_cannot_be_reached_says_why(deliver: Any, url: str) -> None:
    submission, told = await outcome(deliver, url)
    assert (submission["state"], told["status"], told["error"]) == ("pending", None, NOWHERE[url])


async def test_a_receiver_that_does_not_answer_in_time_says_so(deliver: Any) -> None:
    async def say_nothing(_writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with odd_receiver(say_nothing) as receiver:
        _, told = await outcome(deliver, receiver, timeout_seconds=1.0)
    assert (told["outcome"], told["error"]) == ("failed", "no answer within 1 seconds")


async def test_what_was_given_up_is_sent_again_by_a_retry(deliver: Any) -> None:
    async with odd_receiver(answer("410 Gone")) as receiver:
        delivery = await deliver(receiver.address)
        (submission_id,) = await accepted(delivery.local)
        await delivery.ended(submission_id)
        await delivery.local.http.post(f"/submissions/{submission_id}/retry")
        submission = await delivery.ended(submission_id, 2)
    assert [each["number"] for each in submission["attempts"]] == [1, 2]


async def test_what_was_cancelled_is_not_sent(deliver: Any) -> None:
    async with odd_receiver(answer("500 Oops")) as receiver:
        delivery = await deliver(receiver.address, schedule=(0.3,))
        (submission_id,) = await accepted(delivery.local)
        await delivery.ended(submission_id)
        cancelled = await delivery.local.http.post(f"/submissions/{submission_id}/cancel")
        # What was begun before may still be under way.
        await delivery.ended(submission_id, cancelled.json()["attemptCount"])
        sent = len(receiver.received)
        await asyncio.sleep(0.6)
        assert len(receiver.received) == sent


@pytest.mark.parametrize("max_attempts", [1, 20], ids=["the last attempt", "an attempt"])
async def test_a_retry_while_an_attempt_is_under_way_is_done_as_soon_as_that_has_failed(
    deliver: Any, max_attempts: int
) -> None:
    may_answer = asyncio.Event()

    async def refuse_late(writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        await answer("500 Oops")(writer)

    async with odd_receiver(refuse_late) as receiver:
        delivery = await deliver(receiver.address, max_attempts=max_attempts)
        (submission_id,) = await accepted(delivery.local)
        async with asyncio.timeout(BOUND_SECONDS):
            while not receiver.received:  # noqa: ASYNC110 - the receiver must not know
                await asyncio.sleep(0.01)
        retried = await delivery.local.http.post(f"/submissions/{submission_id}/retry")
        assert (retried.status_code, retried.json()["state"]) == (200, "pending")
        may_answer.set()
        first, second = (await delivery.ended(submission_id, 2))["attempts"]
        assert _seconds(second["startedAt"]) - _seconds(first["endedAt"]) < BOUND_SECONDS


def _seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()
