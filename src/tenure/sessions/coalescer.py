"""Many requests, one transaction.

A request does not get its own transaction. While one batch is at the database the next gathers, up to `BATCH_MAX`
items, and goes as one call. There is no linger timer: a lone item leaves with the next turn of the event loop, together
with whatever else arrived in this one. Callers are answered after the commit.

A second batch leaves beside the first only if it is worth a transaction of its own, or if the first is overdue: larger
batches cost the database a quarter less per item, but nobody may wait behind one that is stuck at a lock.

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
WORTH_ANOTHER = 32
OVERDUE_SECONDS = 0.01


Done = Callable[[Answer | Exception], None]


class Coalescer(Generic[Item, Answer]):
    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], in_flight: int) -> None:
        self._run = run
        self._places = in_flight
        self._waiting: deque[tuple[Item, Done[Answer]]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._overdue: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self.batch_sizes: Counter[int] = Counter()

    def submit(self, item: Item, done: Done[Answer]) -> None:
        """`done` gets the answer once its transaction is committed, or what went wrong. It must not raise."""
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests are waiting for the database already")
        self._waiting.append((item, done))
        if not self._scheduled and self._has_place():
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    async def ask(self, item: Item) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.submit(item, partial(_settle, future))
        return await future

    def _has_place(self) -> bool:
        if len(self._in_flight) >= self._places:
            return False
        return len(self._in_flight) == len(self._overdue) or len(self._waiting) >= WORTH_ANOTHER

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._waiting and self._has_place():
            batch = list(islice(self._waiting, BATCH_MAX))
            for _ in batch:
                self._waiting.popleft()
            self._send(batch)

    def _send(self, batch: Sequence[tuple[Item, Done[Answer]]]) -> None:
        loop = asyncio.get_running_loop()
        self.batch_sizes[len(batch)] += 1
        task = loop.create_task(self._carry_out(batch))
        self._in_flight.add(task)
        timer = loop.call_later(OVERDUE_SECONDS, self._let_others_pass, task)
        task.add_done_callback(partial(self._landed, timer))

    def _let_others_pass(self, task: asyncio.Task[None]) -> None:
        self._overdue.add(task)
        self._dispatch()

    def _landed(self, timer: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        timer.cancel()
        self._in_flight.discard(task)
        self._overdue.discard(task)
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
