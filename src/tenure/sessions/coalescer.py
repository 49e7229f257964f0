"""Many requests, one transaction.

A request does not get its own transaction. While one batch is at the database the next gathers; when a place in
flight frees, up to `BATCH_MAX` waiting items go as one call. There is no linger timer: a lone item leaves with the
next turn of the event loop, together with whatever else arrived in this one. Callers are answered after the commit.

What can go wrong with a batch:

- the database cannot be reached: everyone in the batch is told, and everyone waiting behind it too, since they have
  waited as long as anyone should;
- anything else: the members are run one by one, so that only the one that is to blame fails.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from tenure.errors import DatabaseBusy, DatabaseUnavailable, Overloaded
from tenure.store.store import BATCH_MAX

Item = TypeVar("Item")
Answer = TypeVar("Answer")

WAITING_MAX = 10_000


Done = Callable[[Answer | Exception], None]


class Coalescer(Generic[Item, Answer]):
    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], in_flight: int) -> None:
        self._run = run
        self._places = in_flight
        self._waiting: deque[tuple[Item, Done[Answer]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self.batch_sizes: Counter[int] = Counter()

    def submit(self, item: Item, done: Done[Answer]) -> None:
        """`done` gets the answer once its transaction is committed, or what went wrong. It must not raise."""
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests are waiting for the database already")
        self._waiting.append((item, done))
        if self._places and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    async def ask(self, item: Item) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.submit(item, partial(_settle, future))
        return await future

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

    async def _carry_out(self, batch: Sequence[tuple[Item, Done[Answer]]]) -> None:
        try:
            answers = await self._run([item for item, _ in batch])
        except DatabaseUnavailable as error:
            _tell(batch, error)
            if not isinstance(error, DatabaseBusy):
                waiting = list(self._waiting)
                self._waiting.clear()
                _tell(waiting, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to one member and is told there
            if len(batch) == 1:
                _tell(batch, error)
            else:
                for member in batch:
                    await self._carry_out([member])
        except BaseException:
            _tell(batch, DatabaseUnavailable("this instance is stopping"))
            raise
        else:
            for (_, done), answer in zip(batch, answers, strict=True):
                done(answer)


def _tell(batch: Sequence[tuple[Item, Done[Answer]]], error: Exception) -> None:
    for _, done in batch:
        done(error)


def _settle(future: asyncio.Future[Answer], result: Answer | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
