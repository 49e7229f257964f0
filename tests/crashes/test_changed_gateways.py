"""The operator changes a gateway and starts again: what was accepted before keeps its contract, and is never lost."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.deliveries import TIMING, become, found, gateways, received, set_faults, submission, submitter
from tests.support.instances import RunningInstance, stop_all
from tests.support.receivers import RunningReceiver

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]
Receive = Callable[..., RunningReceiver]

OLD_SECRET = "whsec_b2xkIHNlY3JldCBvZiB0aGUgcmVjZWl2ZXI="
NEW_SECRET = "whsec_bmV3IHNlY3JldCBvZiB0aGUgcmVjZWl2ZXI="
ALWAYS = 1
LEADS_WITHIN_SECONDS = 20


@pytest.fixture
def receive(tmp_path: Path) -> Iterator[Receive]:
    running: list[RunningReceiver] = []

    def _receive(*flags: str) -> RunningReceiver:
        folder = tmp_path / f"receiver-{len(running)}"
        folder.mkdir()
        running.append(RunningReceiver(folder, *flags))
        return running[-1]

    yield _receive
    stop_all(running)


class Operator:
    """Has one instance running at a time, with the gateways of the moment."""

    def __init__(self, start: Start, database: Database) -> None:
        self._start = start
        self._url = database.url
        self._running: RunningInstance | None = None

    @property
    def running(self) -> RunningInstance:
        assert self._running is not None
        return self._running

    async def set_up(self, **named: dict[str, Any]) -> None:
        if self._running is not None:
            await asyncio.to_thread(self._running.stop)
        self._running = self._start(self._url, **TIMING, **gateways(**named))
        await asyncio.to_thread(self._running.wait_until_ready)

    async def submit(self, number: int) -> str:
        async with submitter([self.running.address]) as submitting:
            return await submitting.submit(number)

    async def becomes(self, submission_id: str, state: str) -> Any:
        return await become(self.running.address, submission_id, state, LEADS_WITHIN_SECONDS, [self.running])

    async def shows(self, submission_id: str, enough: Callable[[Any], object]) -> Any:
        async def look() -> Any:
            shown = await submission(self.running.address, submission_id)
            return shown if enough(shown) else None

        return await found(look, LEADS_WITHIN_SECONDS, f"{submission_id} is as wanted", [self.running])


@pytest.fixture
def operator(start: Start, sqlite_database: Database) -> Operator:
    return Operator(start, sqlite_database)


async def test_a_gateway_that_is_gone_leaves_its_submissions_waiting_and_saying_so(
    database: Database, start: Start, receive: Receive
) -> None:
    """And sends them, as soon as it is there again, with all the attempts of their contract before them."""
    receiver, operator = receive(), Operator(start, database)
    shop = {"url": receiver.address, "schedule": [1]}
    await set_faults(receiver, {"share": ALWAYS, "ways": [{"way": "status", "status": 500}]})
    await operator.set_up(shop=shop)
    submission_id = await operator.submit(1)
    await operator.shows(submission_id, lambda shown: shown["lastError"] == "answered 500")
    await operator.set_up()
    waiting = await operator.shows(submission_id, lambda shown: shown["lastError"] == "gateway shop is not set up")
    await set_faults(receiver, 0)
    await asyncio.sleep(1.5)
    assert await submission(operator.running.address, submission_id) == waiting
    assert (waiting["state"], waiting["attemptCount"]) == ("pending", len(waiting["attempts"]))
    await operator.set_up(shop=shop)
    delivered = await operator.becomes(submission_id, "delivered")
    assert delivered["attemptCount"] == waiting["attemptCount"] + 1
    assert [*received(receiver)] == [submission_id]


async def test_others_are_sent_beside_a_gateway_that_is_gone(operator: Operator, receive: Receive) -> None:
    receiver, gone = receive(), {"url": "http://127.0.0.1:1/", "schedule": [0.2]}
    await operator.set_up(gone=gone, shop={"url": receiver.address})
    async with submitter([operator.running.address], "gone") as submitting:
        waiting = await submitting.submit_all(range(1000), at_once=16)
    await operator.set_up(shop={"url": receiver.address})
    await operator.shows(waiting[-1], lambda shown: shown["lastError"] == "gateway gone is not set up")
    submission_id = await operator.submit(1)
    await operator.becomes(submission_id, "delivered")


async def test_what_was_accepted_before_keeps_its_schedule_and_its_limit(operator: Operator, receive: Receive) -> None:
    receiver = receive()
    await set_faults(receiver, {"share": ALWAYS, "ways": [{"way": "status", "status": 500}]})
    await operator.set_up(shop={"url": receiver.address, "schedule": [0.5], "max_attempts": 6})
    before = await operator.submit(1)
    await operator.shows(before, lambda shown: shown["attempts"])
    await operator.set_up(shop={"url": receiver.address, "schedule": [3600], "max_attempts": 2})
    since = await operator.submit(2)
    failed = await operator.becomes(before, "failed")
    outcomes = [attempt["outcome"] for attempt in failed["attempts"]]
    assert outcomes.count("failed") == 6, outcomes
    shown = await operator.shows(since, lambda shown: shown["attempts"])
    assert (shown["state"], shown["attemptCount"]) == ("pending", 1), shown


async def test_what_was_accepted_before_keeps_what_means_that_they_have_it(
    operator: Operator, receive: Receive
) -> None:
    receiver = receive()
    await set_faults(receiver, {"share": ALWAYS, "ways": [{"way": "status", "status": 500}]})
    contract = {"url": receiver.address, "schedule": [0.2], "max_attempts": 1000}
    await operator.set_up(shop={**contract, "already_have": [418]})
    before = await operator.submit(1)
    await operator.shows(before, lambda shown: shown["attempts"])
    await operator.set_up(shop={**contract, "already_have": [409]})
    since = await operator.submit(2)
    await set_faults(receiver, {"share": ALWAYS, "ways": [{"way": "status", "status": 418}]})
    assert (await operator.becomes(before, "delivered"))["attempts"][-1]["status"] == 418
    await operator.shows(since, lambda shown: shown["lastError"] == "answered 418")


# Secrets


async def test_while_a_secret_is_replaced_both_who_know_the_old_and_the_new_one_accept(
    operator: Operator, receive: Receive
) -> None:
    knows_old, knows_new = receive("--secret", OLD_SECRET), receive("--secret", NEW_SECRET)
    secrets = {"secret": NEW_SECRET, "previous_secret": OLD_SECRET}
    for number, receiver in enumerate((knows_old, knows_new)):
        await operator.set_up(shop={"url": receiver.address, **secrets})
        await operator.becomes(await operator.submit(number), "delivered")


async def test_what_was_accepted_before_is_signed_with_the_secret_of_now(operator: Operator, receive: Receive) -> None:
    receiver = receive("--secret", NEW_SECRET)
    shop = {"url": receiver.address, "schedule": [0.2], "max_attempts": 1000}
    await operator.set_up(shop={**shop, "secret": OLD_SECRET})
    submission_id = await operator.submit(1)
    await operator.shows(submission_id, lambda shown: shown["lastError"] == "answered 401")
    await operator.set_up(shop={**shop, "secret": NEW_SECRET})
    await operator.becomes(submission_id, "delivered")


async def test_a_secret_that_was_replaced_signs_no_more(operator: Operator, receive: Receive) -> None:
    knows_old = receive("--secret", OLD_SECRET)
    await operator.set_up(shop={"url": knows_old.address, "secret": NEW_SECRET})
    submission_id = await operator.submit(1)
    await operator.shows(submission_id, lambda shown: shown["lastError"] == "answered 401")
    assert received(knows_old) == {}
