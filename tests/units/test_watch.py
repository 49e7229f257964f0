"""The loop that reads the board: when it reads, and how it handles an unavailable board."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest

from tenure.clock import monotonic
from tenure.domain.jobs import Board
from tenure.errors import DatabaseUnavailable
from tenure.leases.board import BoardWatcher
from tenure.telemetry.events import BoardFailed, Telemetry
from tenure.telemetry.logs import log_events
from tests.support.lease_stores import LeaseStore, unavailable
from tests.support.telemetry import RecordedTelemetry

LONG = 3600.0
BOUND_SECONDS = 20


class BoardSubscriber:
    def __init__(self, *names: str) -> None:
        self.names: Sequence[str] = names
        self.wants: float | None = None
        self.fails: list[Exception] = []
        self.boards: list[Board] = []
        self.read_at: list[float] = []
        self.unavailable: list[Exception] = []
        self.was_called = asyncio.Event()

    def on_board(self, board: Board) -> float | None:
        self.boards.append(board)
        self.read_at.append(monotonic())
        self.was_called.set()
        if self.fails:
            raise self.fails.pop(0)
        return self.wants

    def on_board_unavailable(self, error: Exception) -> None:
        self.unavailable.append(error)
        self.was_called.set()

    async def next_call(self) -> None:
        self.was_called.clear()
        async with asyncio.timeout(BOUND_SECONDS):
            await self.was_called.wait()


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


@pytest.fixture
def subscriber() -> BoardSubscriber:
    return BoardSubscriber("one")


class Running:
    def __init__(self, watch: BoardWatcher) -> None:
        self.watch = watch
        self.task = asyncio.create_task(watch.run())


@pytest.fixture
async def running(store: LeaseStore, subscriber: BoardSubscriber) -> AsyncIterator[Running]:
    """A watcher that reads the board once, and then only after a hint."""
    watch = BoardWatcher(store, LONG, log_events(Telemetry()))  # type: ignore[arg-type]
    watch.add(subscriber)
    running = Running(watch)
    await subscriber.next_call()
    yield running
    running.task.cancel()
    await asyncio.wait({running.task})


def most_reads_since(began: float) -> float:
    """The allowed number of reads: one every 20 ms since `began`, one at `began`, and one before `began`."""
    return (monotonic() - began) / 0.02 + 2


# One read.


async def test_watch_reads_leases_of_all_subscribers_in_one_query(store: LeaseStore) -> None:
    watch = BoardWatcher(store, LONG, log_events(Telemetry()))  # type: ignore[arg-type]
    subscribers = [BoardSubscriber("one"), BoardSubscriber(), BoardSubscriber("two", "three")]
    for name in ("one", "two", "three", "four"):
        await store.acquire_lease(name, "holder", "attempt", 1_000_000)
    for subscriber in subscribers:
        watch.add(subscriber)
    await watch.run_once()
    assert store.calls.count("read_board") == 1
    assert [[lease.name for lease in subscriber.boards[0].leases] for subscriber in subscribers] == [
        ["one", "two", "three"]
    ] * 3


@pytest.mark.parametrize(
    ("wanted", "pause"),
    [([], 10.0), ([None], 10.0), ([3.0, None, 4.0], 3.0), ([30.0], 10.0), ([0.0], 0.0), ([-1.0], -1.0)],
)
async def test_watch_waits_for_shortest_delay_requested_by_subscribers(
    store: LeaseStore, wanted: list[float | None], pause: float
) -> None:
    watch = BoardWatcher(store, 10.0, log_events(Telemetry()))  # type: ignore[arg-type]
    for seconds in wanted:
        subscriber = BoardSubscriber()
        subscriber.wants = seconds
        watch.add(subscriber)
    assert await watch.run_once() == pause


async def test_unavailable_board_notifies_subscriber_and_keeps_usual_interval(
    store: LeaseStore, subscriber: BoardSubscriber
) -> None:
    watch = BoardWatcher(store, 10.0, log_events(Telemetry()))  # type: ignore[arg-type]
    watch.add(subscriber)
    subscriber.wants = 1.0
    store.errors_before["read_board"] = [unavailable]
    assert await watch.run_once() == 10.0
    assert [type(error) for error in subscriber.unavailable] == [DatabaseUnavailable]
    assert subscriber.boards == []


async def test_unexpected_error_notifies_subscriber(store: LeaseStore, subscriber: BoardSubscriber) -> None:
    telemetry = RecordedTelemetry()
    watch = BoardWatcher(store, 10.0, telemetry)  # type: ignore[arg-type]
    watch.add(subscriber)
    store.errors_before["read_board"] = [lambda: RuntimeError("no space left on device")]
    assert await watch.run_once() == 10.0
    assert [type(error) for error in subscriber.unavailable] == [RuntimeError]
    assert len(telemetry.of(BoardFailed)) == 1


# The loop.


async def test_hint_triggers_immediate_board_read(running: Running, subscriber: BoardSubscriber) -> None:
    running.watch.wake()
    await subscriber.next_call()
    assert len(subscriber.boards) == 2


async def test_hint_triggers_one_board_read(running: Running, subscriber: BoardSubscriber) -> None:
    running.watch.wake()
    await subscriber.next_call()
    await asyncio.sleep(0.06)
    assert len(subscriber.boards) == 2


async def test_hint_during_board_read_triggers_another_read(
    running: Running, subscriber: BoardSubscriber, store: LeaseStore
) -> None:
    """The second hint may announce a change that the read in progress has not seen."""
    may_answer = store.hold_back("read_board")
    running.watch.wake()
    async with asyncio.timeout(BOUND_SECONDS):
        while store.calls.count("read_board") < 2:  # noqa: ASYNC110 - the store sets no event
            await asyncio.sleep(0.001)
    running.watch.wake()
    may_answer.set()
    await subscriber.next_call()
    await subscriber.next_call()
    assert len(subscriber.boards) == 3


async def test_continuous_hints_keep_read_rate_below_limit(running: Running, subscriber: BoardSubscriber) -> None:
    began = monotonic()
    async with asyncio.timeout(BOUND_SECONDS):
        while monotonic() < began + 0.25 or len(subscriber.boards) <= 3:
            running.watch.wake()
            await asyncio.sleep(0.001)
    assert len(subscriber.boards) <= most_reads_since(began), subscriber.read_at


async def test_negative_delay_of_subscriber_keeps_read_rate_below_limit(
    store: LeaseStore, subscriber: BoardSubscriber
) -> None:
    watch = BoardWatcher(store, LONG, log_events(Telemetry()))  # type: ignore[arg-type]
    watch.add(subscriber)
    subscriber.wants = -1.0
    began = monotonic()
    running = Running(watch)
    for _ in range(10):
        await subscriber.next_call()
    running.task.cancel()
    await asyncio.wait({running.task})
    assert len(subscriber.boards) <= most_reads_since(began), subscriber.read_at


async def test_watch_reads_board_at_usual_interval(store: LeaseStore, subscriber: BoardSubscriber) -> None:
    watch = BoardWatcher(store, 0.03, log_events(Telemetry()))  # type: ignore[arg-type]
    watch.add(subscriber)
    running = Running(watch)
    for _ in range(3):
        await subscriber.next_call()
    running.task.cancel()
    await asyncio.wait({running.task})
    backoff = [later - earlier for earlier, later in pairwise(subscriber.read_at)]
    assert min(backoff) >= 0.028, backoff


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), RuntimeError("a defect")])
async def test_board_read_error_does_not_end_loop(
    running: Running, subscriber: BoardSubscriber, store: LeaseStore, error: Exception
) -> None:
    store.errors_before["read_board"] = [lambda: error]
    running.watch.wake()
    await subscriber.next_call()
    running.watch.wake()
    await subscriber.next_call()
    assert (len(subscriber.unavailable), len(subscriber.boards), running.task.done()) == (1, 2, False)


async def test_failing_subscriber_does_not_end_loop(running: Running, subscriber: BoardSubscriber) -> None:
    subscriber.fails = [ValueError("a defect")]
    running.watch.wake()
    await subscriber.next_call()
    running.watch.wake()
    await subscriber.next_call()
    assert (len(subscriber.boards), running.task.done()) == (3, False)
