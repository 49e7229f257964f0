"""Asking again while somebody else holds a row.

No write waits for a row inside its transaction: the others of its batch would wait with it. It answers that the row is
held, and asks again after a pause. Rows are held for a millisecond mostly, and time bounds the rounds.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from tenure.coalescer import Coalescer
from tenure.errors import DatabaseBusy
from tenure.model.sessions import Found

ROUNDS_SECONDS = 1.7
SHORTEST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.02


class Answer(Protocol):
    @property
    def found(self) -> Found: ...


T = TypeVar("T")
Item = TypeVar("Item")
A = TypeVar("A", bound=Answer)


class Pauses:
    """None at first, then longer and longer; raises once anyone has waited long enough."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._next = 0.0

    async def pause(self) -> None:
        self.check()
        await asyncio.sleep(self._next)
        self._next = min(self._next * 2 or SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def check(self) -> None:
        if asyncio.get_running_loop().time() - self._since > ROUNDS_SECONDS:
            raise DatabaseBusy(f"others held or changed this session for {ROUNDS_SECONDS:g} seconds")


async def ask_until_free(coalescer: Coalescer[Item, A], item: Item) -> A:
    """The first answer that is not HELD."""
    since = asyncio.get_running_loop().time()
    return await until_free(coalescer, item, await coalescer.ask(item, since), since)


async def until_free(coalescer: Coalescer[Item, A], item: Item, answer: A, since: float) -> A:
    """The same, beginning with `answer`, which was given already."""
    pauses = Pauses(since)
    while answer.found is Found.HELD:
        await pauses.pause()
        answer = await coalescer.ask(item, since)
    return answer


class Later(Generic[T]):
    """Further rounds of callers who left a callback: most need none, and should not pay for a task."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, finishing: Coroutine[Any, Any, T], done: Callable[[T | Exception], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._tell(finishing, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, finishing: Coroutine[Any, Any, T], done: Callable[[T | Exception], None]) -> None:
        result: T | Exception
        try:
            result = await finishing
        except Exception as error:  # noqa: BLE001 - told to the caller, who knows what to do with it
            result = error
        done(result)
