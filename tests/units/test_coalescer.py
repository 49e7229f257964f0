"""The coalescer, without a database."""

import asyncio
from collections.abc import Sequence

import pytest

from tenure.batching import coalescer
from tenure.batching.coalescer import WORTH_ANOTHER, Coalescer
from tenure.errors import DatabaseBusy, DatabaseUnavailable, Overloaded
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import CallbackFailed, Telemetry
from tests.support.telemetry import RecordedTelemetry

BOUND_SECONDS = 20


class Gate:
    """A database that responds once `open` was called. The result of each item is twice the item."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self._open = asyncio.Event()
        self.error: Exception | None = None

    async def run(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        await self._open.wait()
        if self.error is not None:
            raise self.error
        return [item * 2 for item in items]

    def open(self) -> None:
        self._open.set()


async def turn() -> None:
    """Lets the tasks that are ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def request_all(subject: Coalescer[int, int], items: Sequence[int]) -> list[asyncio.Task[int]]:
    tasks = [asyncio.ensure_future(subject.run(item)) for item in items]
    await turn()
    return tasks


async def test_concurrent_requests_share_one_batch() -> None:
    gate = Gate()
    tasks = await request_all(Coalescer(gate.run, 2, Telemetry()), range(10))
    gate.open()
    assert await asyncio.gather(*tasks) == [item * 2 for item in range(10)]
    assert gate.batches == [list(range(10))]


async def test_batch_is_sent_in_next_turn_of_event_loop() -> None:
    gate = Gate()
    subject = Coalescer(gate.run, 1, Telemetry())
    for item in (1, 2):
        subject.submit(item, lambda _: None)
    assert gate.batches == []
    await asyncio.sleep(0)
    assert gate.batches == [[1, 2]]
    gate.open()


async def test_requests_gather_in_next_batch_while_one_batch_is_running() -> None:
    gate = Gate()
    subject = Coalescer(gate.run, 1, Telemetry())
    first = await request_all(subject, [1])
    rest = [task for item in (2, 3, 4) for task in await request_all(subject, [item])]
    assert gate.batches == [[1]]
    gate.open()
    await asyncio.gather(*first, *rest)
    assert gate.batches == [[1], [2, 3, 4]]


async def test_second_batch_starts_only_when_enough_requests_are_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "OVERDUE_SECONDS", 60.0)  # so that a pause of this process does not matter
    gate = Gate()
    subject = Coalescer(gate.run, 2, Telemetry())
    tasks = [*await request_all(subject, [1]), *await request_all(subject, range(2, WORTH_ANOTHER + 1))]
    assert len(gate.batches) == 1
    tasks += await request_all(subject, [0])
    assert [len(batch) for batch in gate.batches] == [1, WORTH_ANOTHER]
    gate.open()
    await asyncio.gather(*tasks)


async def test_stuck_batch_does_not_block_later_requests() -> None:
    stuck = asyncio.Event()

    async def run(items: Sequence[int]) -> Sequence[int]:
        if 1 in items:
            await stuck.wait()
        return items

    subject = Coalescer(run, 2, Telemetry())
    (first,) = await request_all(subject, [1])
    assert [await asyncio.wait_for(subject.run(item), BOUND_SECONDS) for item in (2, 3, 4)] == [2, 3, 4]
    stuck.set()
    assert await first == 1


async def test_batch_size_is_limited() -> None:
    gate = Gate()
    gate.open()
    await asyncio.gather(*await request_all(Coalescer(gate.run, 2, Telemetry()), range(BATCH_MAX + 1)))
    assert [len(batch) for batch in gate.batches] == [BATCH_MAX, 1]


async def test_failing_request_does_not_fail_rest_of_batch() -> None:
    async def run(items: Sequence[int]) -> Sequence[int]:
        if 13 in items:
            raise ValueError("thirteen")
        return items

    tasks = await request_all(Coalescer(run, 1, Telemetry()), [11, 12, 13, 14])
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in results if not isinstance(result, ValueError)] == [11, 12, 14]
    assert isinstance(results[2], ValueError)


async def test_failing_callback_is_reported_and_does_not_prevent_others() -> None:
    gate, telemetry, called = Gate(), RecordedTelemetry(), []

    def fail(_result: object) -> None:
        raise ValueError("broken")

    subject = Coalescer(gate.run, 1, telemetry)
    subject.submit(1, fail)
    subject.submit(2, called.append)
    gate.open()
    await subject.run(3)
    assert called == [4]
    assert len(telemetry.of(CallbackFailed)) == 1


async def test_unreachable_database_fails_waiting_requests_immediately() -> None:
    gate = Gate()
    gate.error = DatabaseUnavailable("gone")
    subject = Coalescer(gate.run, 1, Telemetry())
    first = await request_all(subject, [1])
    waiting = await request_all(subject, [2, 3])
    gate.open()
    results = await asyncio.gather(*first, *waiting, return_exceptions=True)
    assert [type(result) for result in results] == [DatabaseUnavailable] * 3
    assert gate.batches == [[1]]


async def test_busy_database_fails_only_current_batch() -> None:
    gate = Gate()
    gate.error = DatabaseBusy("locked")
    subject = Coalescer(gate.run, 1, Telemetry())
    first = await request_all(subject, [1])
    waiting = await request_all(subject, [2])
    gate.open()
    await asyncio.gather(*first, *waiting, return_exceptions=True)
    assert gate.batches == [[1], [2]]


async def test_coalescer_raises_overloaded_when_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "WAITING_MAX", 2)
    gate = Gate()
    subject = Coalescer(gate.run, 1, Telemetry())
    tasks = [*await request_all(subject, [1]), *await request_all(subject, [2, 3])]
    with pytest.raises(Overloaded):
        await subject.run(4)
    gate.open()
    await asyncio.gather(*tasks)


async def test_cancelled_request_does_not_affect_rest_of_batch() -> None:
    gate = Gate()
    one, other = await request_all(Coalescer(gate.run, 1, Telemetry()), [1, 2])
    one.cancel()
    await turn()
    gate.open()
    assert await other == 4
