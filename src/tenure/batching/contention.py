"""Retries while another transaction holds a row.

No write on a session waits for a row lock inside its transaction, because the rest of its batch would wait too.
(Opening on SQL Server is an exception.) The store skips the row and returns `held`, and the caller retries after a
pause. Most rows are held for about a millisecond. The retries end after CONTENTION_SECONDS.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from tenure.batching.coalescer import Coalescer
from tenure.domain.sessions import Found
from tenure.errors import DatabaseBusy

CONTENTION_SECONDS = 1.7
SHORTEST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.02


class Contended(Protocol):
    @property
    def found(self) -> Found: ...


T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result", bound=Contended)


class Backoff:
    """Pauses between retries: zero at first, then doubling from SHORTEST_PAUSE_SECONDS to LONGEST_PAUSE_SECONDS.

    Raises `DatabaseBusy` after CONTENTION_SECONDS.
    """

    def __init__(self, since: float) -> None:
        self._since = since
        self._next = 0.0

    async def pause(self) -> None:
        self.check()
        await asyncio.sleep(self._next)
        self._next = min(self._next * 2 or SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def check(self) -> None:
        if asyncio.get_running_loop().time() - self._since > CONTENTION_SECONDS:
            raise DatabaseBusy(f"other requests held or changed this session for {CONTENTION_SECONDS:g} seconds")


async def run_until_unlocked(coalescer: Coalescer[Item, Result], item: Item) -> Result:
    """Runs `item` again until no other transaction holds its row. Returns the first result that is not HELD."""
    since = asyncio.get_running_loop().time()
    return await retry_until_unlocked(coalescer, item, await coalescer.run(item, since), since)


async def retry_until_unlocked(coalescer: Coalescer[Item, Result], item: Item, result: Result, since: float) -> Result:
    """Like `run_until_unlocked`, but starts from a result that is already known."""
    backoff = Backoff(since)
    while result.found is Found.HELD:
        await backoff.pause()
        result = await coalescer.run(item, since)
    return result


class BackgroundRetries(Generic[T]):
    """Runs retries in tasks, for callers that passed a callback. Most requests need no retry, and so no task."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, retrying: Coroutine[Any, Any, T], done: Callable[[T | Exception], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(retrying, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, retrying: Coroutine[Any, Any, T], done: Callable[[T | Exception], None]) -> None:
        result: T | Exception
        try:
            result = await retrying
        except Exception as error:  # noqa: BLE001 - the callback gets the error
            result = error
        done(result)
