"""Delivery of submissions: the requests that the receiver gets, and how each response or failure is recorded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime

import pytest

from tenure.config import GatewayConfig, LeasesConfig
from tests.http.client import Json
from tests.http.local import UNREACHABLE, LocalService
from tests.http.submitting import MEBIBYTE, accepted, body, read_submission, submit_raw
from tests.support.databases import Database
from tests.support.odd_receivers import http_response, never_respond, odd_receiver

BOUND_SECONDS = 30.0
FAST = LeasesConfig(duration_seconds=10.0, renew_seconds=3.0, acquire_seconds=0.05, refresh_seconds=0.05)


class Delivery:
    """An instance that acquires the lease of the executor, and delivers submissions."""

    def __init__(self, local: LocalService) -> None:
        self.local = local

    async def ended(self, submission_id: str, attempts: int = 1) -> Json:
        """Waits until this number of attempts has ended, and returns the submission."""
        async with asyncio.timeout(BOUND_SECONDS):
            while True:
                submission = await read_submission(self.local, submission_id)
                if len([each for each in submission["attempts"] if each["outcome"]]) >= attempts:
                    return submission
                await asyncio.sleep(0.02)

    async def first_attempt(self, gateway: str) -> tuple[Json, Json]:
        """Submits to the gateway. Returns the submission after its first attempt, and this attempt."""
        (submission_id,) = await accepted(self.local, gateway=gateway)
        submission = await self.ended(submission_id)
        (attempt,) = submission["attempts"]
        return submission, attempt


Deliver = Callable[..., Awaitable[Delivery]]


@pytest.fixture
async def deliver(database: Database) -> AsyncIterator[Deliver]:
    """A function that starts an instance. Its keyword arguments are the settings of the gateways, by name."""
    async with AsyncExitStack() as started:

        async def start(**gateways: Json) -> Delivery:
            configured = {
                name: GatewayConfig(**{"timeout_seconds": BOUND_SECONDS, "schedule": (3600.0,), **settings})
                for name, settings in gateways.items()
            }
            local = LocalService.on(database, gateways=configured, leases=FAST)
            return Delivery(await started.enter_async_context(local.running()))

        yield start


PAYLOADS = ['{ "a" :\t1.50, "a": "\\u00e9é😀" }', "1e999", '"x"', '"' + "x" * (MEBIBYTE - 100) + '"']


async def test_receiver_gets_payload_byte_for_byte(deliver: Deliver) -> None:
    async with odd_receiver(http_response("200 OK")) as receiver:
        delivery = await deliver(crm={"url": receiver.address})
        for payload in PAYLOADS:
            space = "  " if len(payload) < 100 else ""
            posted = await submit_raw(delivery.local, body(f"{space}{payload}{space}", "crm"))
            submission_id = posted.json()["submissionId"]
            submission = await delivery.ended(submission_id)
            received = receiver.received[-1]
            assert (submission["state"], received.body) == ("delivered", payload.encode())
            headers = [received.header(name) for name in ("idempotency-key", "webhook-id", "content-length")]
            assert headers == [submission_id, submission_id, str(len(payload.encode()))]
    assert len(receiver.received) == len(PAYLOADS)


RESPONSES = {
    "200 OK": ("delivered", "delivered", None),
    "409 Conflict": ("delivered", "delivered", None),
    "410 Gone": ("failed", "failed", "answered 410"),
    "301 Moved": ("pending", "failed", "answered 301"),
    "404 Not Found": ("pending", "failed", "answered 404"),
    "500 Oops": ("pending", "failed", "answered 500"),
}
"""For each response: the state of the submission, the outcome of the attempt, and the error of both. A receiver answers
409 if it already has the submission.
"""


async def test_response_status_sets_submission_state_and_error(deliver: Deliver) -> None:
    async with AsyncExitStack() as stack:
        gateways = {}
        for head in RESPONSES:
            respond = http_response(head, b"any body", "Location: http://127.0.0.1:9/")
            receiver = await stack.enter_async_context(odd_receiver(respond))
            gateways[f"status-{head[:3]}"] = {"url": receiver.address}
        delivery = await deliver(**gateways)
        for head, (state, outcome, error) in RESPONSES.items():
            submission, attempt = await delivery.first_attempt(f"status-{head[:3]}")
            assert (submission["state"], submission["lastError"]) == (state, error), head
            assert (attempt["outcome"], attempt["status"], attempt["error"]) == (outcome, int(head[:3]), error)


async def test_next_attempt_follows_retry_after_or_schedule_with_jitter(deliver: Deliver) -> None:
    """A `Retry-After` counts only if the status is 429 or 503."""
    async with (
        odd_receiver(http_response("429 Later", b"", "Retry-After: 600")) as limiting,
        odd_receiver(http_response("503 Away", b"", "Retry-After: 600")) as unavailable,
        odd_receiver(http_response("500 Oops", b"", "Retry-After: 1")) as failing,
    ):
        receivers = {"limiting": limiting, "unavailable": unavailable, "failing": failing}
        delivery = await deliver(
            **{name: {"url": each.address, "schedule": (100.0,)} for name, each in receivers.items()}
        )
        for name, least, most in (("limiting", 600, 600), ("unavailable", 600, 600), ("failing", 100, 120)):
            submission, attempt = await delivery.first_attempt(name)
            pause = _seconds(submission["nextAttemptAt"]) - _seconds(attempt["endedAt"])
            assert (submission["state"], least <= pause <= most) == ("pending", True), (name, pause)


async def test_submission_fails_after_max_attempts(deliver: Deliver) -> None:
    async with odd_receiver(http_response("500 Oops")) as receiver:
        delivery = await deliver(crm={"url": receiver.address, "schedule": (0.0,), "max_attempts": 3})
        (submission_id,) = await accepted(delivery.local)
        submission = await delivery.ended(submission_id, 3)
    assert (submission["state"], submission["attemptCount"], len(receiver.received)) == ("failed", 3, 3)
    assert {received.header("webhook-id") for received in receiver.received} == {submission_id}


async def test_missing_response_is_recorded_as_error(deliver: Deliver) -> None:
    async with odd_receiver(never_respond) as silent:
        delivery = await deliver(
            unknown={"url": "http://receiver.invalid/tok-hunter2"},
            refusing={"url": f"{UNREACHABLE}tok-hunter2"},
            silent={"url": silent.address, "timeout_seconds": 1.0},
        )
        for gateway, error in {
            "unknown": "the host name cannot be resolved",
            "refusing": "the connection failed: Connection refused",
            "silent": "no response within 1 seconds",
        }.items():
            submission, attempt = await delivery.first_attempt(gateway)
            assert (submission["state"], attempt["outcome"]) == ("pending", "failed"), gateway
            assert (attempt["status"], attempt["error"]) == (None, error)


async def test_retry_resends_failed_submission(deliver: Deliver) -> None:
    async with odd_receiver(http_response("410 Gone")) as receiver:
        delivery = await deliver(crm={"url": receiver.address})
        (submission_id,) = await accepted(delivery.local)
        await delivery.ended(submission_id)
        await delivery.local.http.post(f"/submissions/{submission_id}/retry")
        submission = await delivery.ended(submission_id, 2)
    assert [each["number"] for each in submission["attempts"]] == [1, 2]


async def test_cancelled_submission_is_not_sent_again(deliver: Deliver) -> None:
    async with odd_receiver(http_response("500 Oops")) as receiver:
        delivery = await deliver(crm={"url": receiver.address, "schedule": (0.15,)})
        (submission_id,) = await accepted(delivery.local)
        await delivery.ended(submission_id)
        cancelled = await delivery.local.http.post(f"/submissions/{submission_id}/cancel")
        # An attempt that began before the submission was cancelled may still be running.
        await delivery.ended(submission_id, cancelled.json()["attemptCount"])
        sent = len(receiver.received)
        await asyncio.sleep(0.3)
        assert len(receiver.received) == sent


async def test_retry_during_a_failing_attempt_starts_next_attempt_at_once(deliver: Deliver) -> None:
    """For one of the two submissions, the attempt is the last one that `max_attempts` allows."""
    may_answer = asyncio.Event()

    async def fail_late(writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        await http_response("500 Oops")(writer)

    async with odd_receiver(fail_late) as receiver, asyncio.timeout(BOUND_SECONDS):
        limits = {"once": 1, "often": 20}
        delivery = await deliver(
            **{name: {"url": receiver.address, "max_attempts": limit} for name, limit in limits.items()}
        )
        ids = [(await accepted(delivery.local, gateway=name))[0] for name in limits]
        while len(receiver.received) < len(ids):  # noqa: ASYNC110 - the receiver offers no event to wait for
            await asyncio.sleep(0.01)
        for submission_id in ids:
            retried = await delivery.local.http.post(f"/submissions/{submission_id}/retry")
            assert (retried.status_code, retried.json()["state"]) == (200, "pending")
        may_answer.set()
        for submission_id in ids:
            first, second = (await delivery.ended(submission_id, 2))["attempts"]
            assert _seconds(second["startedAt"]) - _seconds(first["endedAt"]) < BOUND_SECONDS


def _seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()
