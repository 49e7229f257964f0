"""The loop that looks at the board: when it looks, and what it does when it cannot see."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest

from tenure.clock import monotonic
from tenure.errors import DatabaseUnavailable
from tenure.leases.watch import Watch
from tenure.model.leases import Board
from tests.support.lease_stores import LeaseStore, away

LONG = 3600.0
BOUND_SECONDS = 20


class Looker:
    def __init__(self, *names: str) -> None:
        self.names: Sequence[str] = names
        self.wants: float | None = None
        self.fails: list[Exception] = []
        self.boards: list[Board] = []
        self.looked_at: list[float] = []
        self.lost_sight: list[Exception] = []
        self.looked = asyncio.Event()

    def look(self, board: Board) -> float | None:
        self.boards.append(board)
        self.looked_at.append(monotonic())
        self.looked.set()
        if self.fails:
            raise self.fails.pop(0)
        return self.wants

    def lose_sight(self, error: Exception) -> None:
        self.lost_sight.append(error)
        self.looked.set()

    async def next_look(self) -> None:
        self.looked.clear()
        async with asyncio.timeout(BOUND_SECONDS):
            await self.looked.wait()


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


@pytest.fixture
def looker() -> Looker:
    return Looker("one")


class Running:
    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.task = asyncio.create_task(watch.run())


@pytest.fixture
async def running(store: LeaseStore, looker: Looker) -> AsyncIterator[Running]:
    """A watch that by itself looks once and then not for an hour."""
    watch = Watch(store, LONG)  # type: ignore[arg-type]
    watch.add(looker)
    running = Running(watch)
    await looker.next_look()
    yield running
    running.task.cancel()
    await asyncio.wait({running.task})


def most_looks_since(began: float) -> float:
    """One every 20 ms, one at the beginning and one before it."""
    return (monotonic() - began) / 0.02 + 2


# One look.


async def test_one_query_asks_for_the_leases_of_all(store: LeaseStore) -> None:
    watch = Watch(store, LONG)  # type: ignore[arg-type]
    lookers = [Looker("one"), Looker(), Looker("two", "three")]
    for name in ("one", "two", "three", "four"):
        await store.acquire_lease(name, "somebody", "attempt", 1_000_000)
    for looker in lookers:
        watch.add(looker)
    await watch.look()
    assert store.asked.count("read_board") == 1
    assert [[lease.name for lease in looker.boards[0].leases] for looker in lookers] == [["one", "two", "three"]] * 3


@pytest.mark.parametrize(
    ("wanted", "pause"),
    [([], 10.0), ([None], 10.0), ([3.0, None, 4.0], 3.0), ([30.0], 10.0), ([0.0], 0.0), ([-1.0], -1.0)],
)
async def test_looks_again_when_the_most_impatient_wants_it(
    store: LeaseStore, wanted: list[float | None], pause: float
) -> None:
    watch = Watch(store, 10.0)  # type: ignore[arg-type]
    for seconds in wanted:
        looker = Looker()
        looker.wants = seconds
        watch.add(looker)
    assert await watch.look() == pause


async def test_who_cannot_see_is_told_so_and_looks_again_as_usual(store: LeaseStore, looker: Looker) -> None:
    watch = Watch(store, 10.0)  # type: ignore[arg-type]
    watch.add(looker)
    looker.wants = 1.0
    store.before["read_board"] = [away]
    assert await watch.look() == 10.0
    assert [type(error) for error in looker.lost_sight] == [DatabaseUnavailable]
    assert looker.boards == []


async def test_an_unexpected_error_is_told_like_any_other(store: LeaseStore, looker: Looker) -> None:
    watch = Watch(store, 10.0)  # type: ignore[arg-type]
    watch.add(looker)
    store.before["read_board"] = [lambda: RuntimeError("no space left on device")]
    assert await watch.look() == 10.0
    assert [type(error) for error in looker.lost_sight] == [RuntimeError]


# The loop.


async def test_a_hint_has_it_look_at_once(running: Running, looker: Looker) -> None:
    running.watch.wake()
    await looker.next_look()
    assert len(looker.boards) == 2


async def test_one_hint_is_one_look(running: Running, looker: Looker) -> None:
    running.watch.wake()
    await looker.next_look()
    await asyncio.sleep(0.06)
    assert len(looker.boards) == 2


async def test_a_hint_during_a_look_is_not_forgotten(running: Running, looker: Looker, store: LeaseStore) -> None:
    """What it tells of may have happened after the board was read."""
    may_answer = store.hold_back("read_board")
    running.watch.wake()
    async with asyncio.timeout(BOUND_SECONDS):
        while store.asked.count("read_board") < 2:  # noqa: ASYNC110 - the store must not know of it
            await asyncio.sleep(0.001)
    running.watch.wake()
    may_answer.set()
    await looker.next_look()
    await looker.next_look()
    assert len(looker.boards) == 3


async def test_hints_without_end_do_not_make_it_look_without_end(running: Running, looker: Looker) -> None:
    began = monotonic()
    async with asyncio.timeout(BOUND_SECONDS):
        while monotonic() < began + 0.25 or len(looker.boards) <= 3:
            running.watch.wake()
            await asyncio.sleep(0.001)
    assert len(looker.boards) <= most_looks_since(began), looker.looked_at


async def test_somebody_always_impatient_does_not_make_it_look_without_end(store: LeaseStore, looker: Looker) -> None:
    watch = Watch(store, LONG)  # type: ignore[arg-type]
    watch.add(looker)
    looker.wants = -1.0
    began = monotonic()
    running = Running(watch)
    for _ in range(10):
        await looker.next_look()
    running.task.cancel()
    await asyncio.wait({running.task})
    assert len(looker.boards) <= most_looks_since(began), looker.looked_at


async def test_looks_again_after_its_usual_pause(store: LeaseStore, looker: Looker) -> None:
    watch = Watch(store, 0.03)  # type: ignore[arg-type]
    watch.add(looker)
    running = Running(watch)
    for _ in range(3):
        await looker.next_look()
    running.task.cancel()
    await asyncio.wait({running.task})
    pauses = [later - earlier for earlier, later in pairwise(looker.looked_at)]
    assert min(pauses) >= 0.028, pauses


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), RuntimeError("a defect")])
async def test_no_error_ends_the_loop(running: Running, looker: Looker, store: LeaseStore, error: Exception) -> None:
    store.before["read_board"] = [lambda: error]
    running.watch.wake()
    await looker.next_look()
    running.watch.wake()
    await looker.next_look()
    assert (len(looker.lost_sight), len(looker.boards), running.task.done()) == (1, 2, False)


async def test_a_looker_that_fails_does_not_end_the_loop(running: Running, looker: Looker) -> None:
    looker.fails = [ValueError("a defect")]
    running.watch.wake()
    await looker.next_look()
    running.watch.wake()
    await looker.next_look()
    assert (len(looker.boards), running.task.done()) == (3, False)
