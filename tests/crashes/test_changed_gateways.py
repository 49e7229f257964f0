"""An operator changes gateways and restarts the instance: accepted submissions keep their contract and are not lost."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.deliveries import (
    TIMING,
    gateways,
    poll,
    received,
    set_faults,
    submission,
    submitter,
    wait_for_state,
)
from tests.support.instances import RunningInstance, stop_all
from tests.support.receivers import RunningReceiver
from tests.support.submissions import accept

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]
Receive = Callable[..., RunningReceiver]

OLD_SECRET = "whsec_b2xkIHNlY3JldCBvZiB0aGUgcmVjZWl2ZXI="
NEW_SECRET = "whsec_bmV3IHNlY3JldCBvZiB0aGUgcmVjZWl2ZXI="
PENDING_BATCHES, PENDING_BATCH = 10, 100
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
    """Runs one instance at a time, and restarts it to change its gateways."""

    def __init__(self, start: Start, database: Database) -> None:
        self._start = start
        self._url = database.url
        self._running: RunningInstance | None = None

    @property
    def running(self) -> RunningInstance:
        assert self._running is not None
        return self._running

    async def configure(self, **named: dict[str, Any]) -> None:
        if self._running is not None:
            await asyncio.to_thread(self._running.stop)
        self._running = self._start(self._url, **TIMING, **gateways(**named))
        await asyncio.to_thread(self._running.wait_until_ready)

    async def submit(self, gateway: str, number: int = 1) -> str:
        async with submitter([self.running.address], gateway) as submitting:
            return await submitting.submit(number)

    async def wait_for_state(self, submission_id: str, state: str) -> Any:
        return await wait_for_state(self.running.address, submission_id, state, LEADS_WITHIN_SECONDS, [self.running])

    async def wait_for_error(self, submission_id: str, error: str) -> Any:
        return await self.wait_for(submission_id, lambda shown: shown["lastError"] == error, f"lastError {error}")

    async def wait_for_attempt(self, submission_id: str) -> Any:
        return await self.wait_for(submission_id, lambda shown: shown["attempts"], "an attempt")

    async def wait_for(self, submission_id: str, condition: Callable[[Any], object], what: str) -> Any:
        async def shown() -> Any:
            found = await submission(self.running.address, submission_id)
            return found if condition(found) else None

        return await poll(shown, LEADS_WITHIN_SECONDS, f"{submission_id}: {what}", [self.running])


def always(status: int) -> dict[str, Any]:
    return {"share": 1, "ways": [{"way": "status", "status": status}]}


async def test_submissions_of_removed_gateway_stay_pending_and_do_not_block_others(
    database: Database, start: Start, receive: Receive
) -> None:
    """When the gateway is configured again, its submissions are sent, and the earlier attempts still count."""
    receiver, operator = receive(), Operator(start, database)
    removed, orders = {"url": receiver.address, "schedule": [1]}, {"url": receiver.address}
    await set_faults(receiver, always(500))
    await operator.configure(removed=removed, orders=orders)
    submission_id = await operator.submit("removed")
    await operator.wait_for_error(submission_id, "answered 500")

    for _ in range(PENDING_BATCHES):
        backlog = await accept(database.store, PENDING_BATCH, gateway="backlog")
    await operator.configure(orders=orders)
    pending = await operator.wait_for_error(submission_id, "gateway removed is not configured")
    await operator.wait_for_error(backlog[-1], "gateway backlog is not configured")
    await set_faults(receiver, 0)
    delivered_id = await operator.submit("orders")
    await operator.wait_for_state(delivered_id, "delivered")
    assert await submission(operator.running.address, submission_id) == pending
    assert (pending["state"], pending["attemptCount"]) == ("pending", len(pending["attempts"]))

    await operator.configure(removed=removed, orders=orders)
    delivered = await operator.wait_for_state(submission_id, "delivered")
    assert delivered["attemptCount"] == pending["attemptCount"] + 1
    assert set(received(receiver)) == {submission_id, delivered_id}


async def test_changed_contract_applies_to_new_submissions_and_changed_secret_to_all(
    sqlite_database: Database, start: Start, receive: Receive
) -> None:
    operator = Operator(start, sqlite_database)
    plain, old, new = receive(), receive("--secret", OLD_SECRET), receive("--secret", NEW_SECRET)
    often = {"schedule": [0.2], "max_attempts": 1000}
    await set_faults(plain, always(500))
    await operator.configure(
        limited={"url": plain.address, "schedule": [0.5], "max_attempts": 6},
        statuses={"url": plain.address, **often, "already_have": [418]},
        signed={"url": new.address, **often, "secret": OLD_SECRET},
        replaced={"url": old.address, "secret": NEW_SECRET},
    )
    before = {name: await operator.submit(name) for name in ("limited", "statuses", "signed", "replaced")}
    for name in ("limited", "statuses"):
        await operator.wait_for_attempt(before[name])
    for name in ("signed", "replaced"):
        await operator.wait_for_error(before[name], "answered 401")
    assert received(old) == {}, "a secret that is not configured was used to sign"

    rotation = {"secret": NEW_SECRET, "previous_secret": OLD_SECRET}
    await operator.configure(
        limited={"url": plain.address, "schedule": [3600], "max_attempts": 2},
        statuses={"url": plain.address, **often, "already_have": [409]},
        signed={"url": new.address, **often, "secret": NEW_SECRET},
        rotated_old={"url": old.address, **rotation},
        rotated_new={"url": new.address, **rotation},
    )
    after = {name: await operator.submit(name, 2) for name in ("limited", "statuses", "rotated_old", "rotated_new")}
    await keeps_schedule_and_max_attempts(operator, before["limited"], after["limited"])
    await set_faults(plain, always(418))
    await keeps_already_have_statuses(operator, before["statuses"], after["statuses"])
    for submission_id in (before["signed"], after["rotated_old"], after["rotated_new"]):
        await operator.wait_for_state(submission_id, "delivered")


async def keeps_schedule_and_max_attempts(operator: Operator, before: str, after: str) -> None:
    failed = await operator.wait_for_state(before, "failed")
    outcomes = [attempt["outcome"] for attempt in failed["attempts"]]
    assert outcomes.count("failed") == 6, outcomes
    shown = await operator.wait_for_error(after, "answered 500")
    assert (shown["state"], shown["attemptCount"]) == ("pending", 1), shown


async def keeps_already_have_statuses(operator: Operator, before: str, after: str) -> None:
    assert (await operator.wait_for_state(before, "delivered"))["attempts"][-1]["status"] == 418
    await operator.wait_for_error(after, "answered 418")
