"""Batches, without a database."""

import asyncio
from collections.abc import Sequence

import pytest

from tenure import coalescer
from tenure.coalescer import WORTH_ANOTHER, Coalescer
from tenure.errors import DatabaseBusy, DatabaseUnavailable, Overloaded
from tenure.store.store import BATCH_MAX

BOUND_SECONDS = 20


class Gate:
    """A database that answers when the test says so. Doubles what it is given."""

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
    """Lets everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def ask_all(subject: Coalescer[int, int], items: Sequence[int]) -> list[asyncio.Task[int]]:
    tasks = [asyncio.ensure_future(subject.ask(item)) for item in items]
    await turn()
    return tasks


async def test_what_arrives_together_goes_together() -> None:
    gate = Gate()
    tasks = await ask_all(Coalescer(gate.run, 2), range(10))
    gate.open()
    assert await asyncio.gather(*tasks) == [item * 2 for item in range(10)]
    assert gate.batches == [list(range(10))]


async def test_the_next_batch_gathers_while_places_are_taken() -> None:
    gate = Gate()
    subject = Coalescer(gate.run, 1)
    first = await ask_all(subject, [1])
    rest = [task for item in (2, 3, 4) for task in await ask_all(subject, [item])]
    assert gate.batches == [[1]]
    gate.open()
    await asyncio.gather(*first, *rest)
    assert gate.batches == [[1], [2, 3, 4]]


async def test_a_few_wait_for_the_batch_in_flight_but_many_go_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "OVERDUE_SECONDS", 60.0)  # however long this process is kept waiting
    gate = Gate()
    subject = Coalescer(gate.run, 2)
    tasks = [*await ask_all(subject, [1]), *await ask_all(subject, range(2, WORTH_ANOTHER + 1))]
    assert len(gate.batches) == 1
    tasks += await ask_all(subject, [0])
    assert [len(batch) for batch in gate.batches] == [1, WORTH_ANOTHER]
    gate.open()
    await asyncio.gather(*tasks)


async def test_nobody_waits_behind_a_batch_that_is_stuck() -> None:
    stuck = asyncio.Event()

    async def run(items: Sequence[int]) -> Sequence[int]:
        if 1 in items:
            await stuck.wait()
        return items

    subject = Coalescer(run, 2)
    (first,) = await ask_all(subject, [1])
    assert [await asyncio.wait_for(subject.ask(item), BOUND_SECONDS) for item in (2, 3, 4)] == [2, 3, 4]
    stuck.set()
    assert await first == 1


async def test_a_batch_has_a_limit() -> None:
    gate = Gate()
    gate.open()
    await asyncio.gather(*await ask_all(Coalescer(gate.run, 2), range(BATCH_MAX + 1)))
    assert [len(batch) for batch in gate.batches] == [BATCH_MAX, 1]


async def test_one_bad_member_fails_alone() -> None:
    async def run(items: Sequence[int]) -> Sequence[int]:
        if 13 in items:
            raise ValueError("thirteen")
        return items

    tasks = await ask_all(Coalescer(run, 1), [11, 12, 13, 14])
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in results if not isinstance(result, ValueError)] == [11, 12, 14]
    assert isinstance(results[2], ValueError)


async def test_nobody_waits_behind_a_database_that_cannot_be_reached() -> None:
    gate = Gate()
    gate.error = DatabaseUnavailable("gone")
    subject = Coalescer(gate.run, 1)
    first = await ask_all(subject, [1])
    waiting = await ask_all(subject, [2, 3])
    gate.open()
    results = await asyncio.gather(*first, *waiting, return_exceptions=True)
    assert [type(result) for result in results] == [DatabaseUnavailable] * 3
    assert gate.batches == [[1]]


async def test_a_busy_database_fails_only_the_batch_it_was_busy_for() -> None:
    gate = Gate()
    gate.error = DatabaseBusy("locked")
    subject = Coalescer(gate.run, 1)
    first = await ask_all(subject, [1])
    waiting = await ask_all(subject, [2])
    gate.open()
    await asyncio.gather(*first, *waiting, return_exceptions=True)
    assert gate.batches == [[1], [2]]


async def test_there_is_a_limit_to_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "WAITING_MAX", 2)
    gate = Gate()
    subject = Coalescer(gate.run, 1)
    tasks = [*await ask_all(subject, [1]), *await ask_all(subject, [2, 3])]
    with pytest.raises(Overloaded):
        await subject.ask(4)
    gate.open()
    await asyncio.gather(*tasks)


async def test_a_caller_who_gave_up_harms_nobody() -> None:
    gate = Gate()
    one, other = await ask_all(Coalescer(gate.run, 1), [1, 2])
    one.cancel()
    await turn()
    gate.open()
    assert await other == 4
