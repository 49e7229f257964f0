"""Many requests, one transaction.

A request does not get its own transaction. While one batch is at the database the next gathers; when a place in flight
frees, up to `BATCH_MAX` waiting items go as one call. There is no linger timer: a lone item leaves with the next turn of
the event loop, together with whatever else arrived in this one. Callers are answered after the commit.

What can go wrong with a batch:

- the database cannot be reached: everyone in the batch is told, and everyone waiting behind it too, since they have
  waited as long as anyone should;
- anything else: the members are run one by one, so that only the one that is to blame fails.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from tenure.errors import DatabaseBusy, DatabaseUnavailable, Overloaded
from tenure.store.store import BATCH_MAX

Item = TypeVar("Item")
Answer = TypeVar("Answer")

WAITING_MAX = 10_000


class Coalescer(Generic[Item, Answer]):
    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], in_flight: int) -> None:
        self._run = run
        self._places = in_flight
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self.batch_sizes: Counter[int] = Counter()

    def ask(self, item: Item) -> asyncio.Future[Answer]:
        """The answer to `item`, once the transaction that gave it is committed."""
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests are waiting for the database already")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, answer))
        if self._places and not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._dispatch)
        return answer

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._places and self._waiting:
            batch = list(islice(self._waiting, BATCH_MAX))
            for _ in batch:
                self._waiting.popleft()
            self._places -= 1
            self.batch_sizes[len(batch)] += 1
            task = asyncio.get_running_loop().create_task(self._carry_out(batch))
            self._tasks.add(task)
            task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places += 1
        self._dispatch()

    async def _carry_out(self, batch: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._run([item for item, _ in batch])
        except DatabaseUnavailable as error:
            self._fail(batch, error)
            if not isinstance(error, DatabaseBusy):
                self._fail_waiting(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to one member and is raised there
            if len(batch) == 1:
                self._fail(batch, error)
            else:
                for member in batch:
                    await self._carry_out([member])
        except BaseException as error:
            self._fail(batch, DatabaseUnavailable("this instance is stopping"))
            raise error
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def _fail_waiting(self, error: Exception) -> None:
        waiting = list(self._waiting)
        self._waiting.clear()
        self._fail(waiting, error)

    def _fail(self, batch: Sequence[tuple[Item, asyncio.Future[Answer]]], error: Exception) -> None:
        for _, future in batch:
            if not future.done():
                future.set_exception(error)
