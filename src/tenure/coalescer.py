"""Many requests, one transaction.

A request does not get its own transaction. While one batch is at the database the next gathers, up to `BATCH_MAX`
items, and goes as one call. There is no linger timer: a lone item leaves with the next turn of the event loop, together
with whatever else arrived in this one. Callers are answered after the commit.

A second batch leaves beside the first only if it is worth a transaction of its own, or if the first is overdue: larger
batches cost the database a quarter less per item, but nobody may wait behind one that is stuck at a lock.

What can go wrong:

- the database cannot be reached: everyone in the batch is told, and everyone waiting behind it too, since they have
  waited as long as anyone should;
- anything else that a batch raises: its members are run one by one, so that only the one that is to blame fails;
- nothing happens at all: whoever has not been answered within `PATIENCE_SECONDS` is told so, wherever their item is.
  What becomes of the item then is as unknown as after any lost answer, and the same request can be sent again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Generic, TypeVar

import structlog

from tenure.errors import DatabaseBusy, DatabaseUnavailable, Overloaded
from tenure.store.store import BATCH_MAX

Item = TypeVar("Item")
Answer = TypeVar("Answer")

log = structlog.get_logger()

WAITING_MAX = 10_000
WORTH_ANOTHER = 32
OVERDUE_SECONDS = 0.01
PATIENCE_SECONDS = 1.8
PATROL_SECONDS = 0.1

Done = Callable[[Answer | Exception], None]


class _Member(Generic[Item, Answer]):
    __slots__ = ("done", "item", "since")

    def __init__(self, item: Item, done: Done[Answer] | None, since: float) -> None:
        self.item = item
        self.done = done
        self.since = since

    def tell(self, result: Answer | Exception) -> None:
        done, self.done = self.done, None
        if done is None:
            return
        try:
            done(result)
        except Exception:
            # One caller's trouble must not cost the others of the batch their answers.
            log.exception("coalescer.callback_failed")


class Coalescer(Generic[Item, Answer]):
    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        in_flight: int,
        worth_another: int = WORTH_ANOTHER,
    ) -> None:
        self._run = run
        self._places = in_flight
        self._worth_another = worth_another
        self._waiting: deque[_Member[Item, Answer]] = deque()
        self._in_flight: dict[asyncio.Task[None], Sequence[_Member[Item, Answer]]] = {}
        self._overdue: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._patrolling = False

    def submit(self, item: Item, done: Done[Answer], since: float | None = None) -> None:
        """`done` gets the answer once its transaction is committed, or what went wrong.

        `since` is when its caller began to wait, by the loop's clock; now, unless an earlier round says otherwise.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests are waiting for the database already")
        loop = asyncio.get_running_loop()
        self._waiting.append(_Member(item, done, loop.time() if since is None else since))
        if not self._scheduled and self._has_place():
            self._scheduled = True
            loop.call_soon(self._dispatch)
        if not self._patrolling:
            self._patrolling = True
            loop.call_later(PATROL_SECONDS, self._patrol)

    async def ask(self, item: Item, since: float | None = None) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.submit(item, partial(_settle, future), since)
        return await future

    def _has_place(self) -> bool:
        if len(self._in_flight) >= self._places:
            return False
        return len(self._in_flight) == len(self._overdue) or len(self._waiting) >= self._worth_another

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._waiting and self._has_place():
            batch = list(islice(self._waiting, BATCH_MAX))
            for _ in batch:
                self._waiting.popleft()
            self._send(batch)

    def _send(self, batch: Sequence[_Member[Item, Answer]]) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._carry_out(batch))
        self._in_flight[task] = batch
        timer = loop.call_later(OVERDUE_SECONDS, self._let_others_pass, task)
        task.add_done_callback(partial(self._landed, timer))

    def _let_others_pass(self, task: asyncio.Task[None]) -> None:
        self._overdue.add(task)
        self._dispatch()

    def _landed(self, timer: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        timer.cancel()
        del self._in_flight[task]
        self._overdue.discard(task)
        self._dispatch()

    async def _carry_out(self, batch: Sequence[_Member[Item, Answer]]) -> None:
        try:
            answers = await self._run([member.item for member in batch])
        except DatabaseUnavailable as error:
            self._give_up(batch, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to one member and is told there
            await self._one_by_one(batch, error)
        except BaseException:
            _tell(batch, DatabaseUnavailable("this instance is stopping"))
            raise
        else:
            for member, answer in zip(batch, answers, strict=True):
                member.tell(answer)

    async def _one_by_one(self, batch: Sequence[_Member[Item, Answer]], error: Exception) -> None:
        if len(batch) == 1:
            batch[0].tell(error)
            return
        for member in batch:
            # Who was told meanwhile, because the database went away, need not be tried any more.
            if member.done is not None:
                await self._carry_out([member])

    def _give_up(self, batch: Sequence[_Member[Item, Answer]], error: DatabaseUnavailable) -> None:
        _tell(batch, error)
        if not isinstance(error, DatabaseBusy):
            _tell(chain(*self._in_flight_with(batch), self._waiting), error)
            self._waiting.clear()

    def _in_flight_with(self, batch: Sequence[_Member[Item, Answer]]) -> Iterable[Sequence[_Member[Item, Answer]]]:
        """The batch in flight that a lone member belongs to."""
        return [members for members in self._in_flight.values() if batch[0] in members]

    def _patrol(self) -> None:
        """Nobody waits for ever, whatever the database, the batches ahead or the rounds before did."""
        loop = asyncio.get_running_loop()
        too_long_ago = loop.time() - PATIENCE_SECONDS
        error = DatabaseUnavailable(f"the database did not answer within {PATIENCE_SECONDS:g} seconds")
        late = [member for member in chain(*self._in_flight.values(), self._waiting) if member.since <= too_long_ago]
        _tell(late, error)
        if late:
            self._waiting = deque(member for member in self._waiting if member.done is not None)
        self._patrolling = bool(self._in_flight or self._waiting)
        if self._patrolling:
            loop.call_later(PATROL_SECONDS, self._patrol)


def _tell(members: Iterable[_Member[Item, Answer]], error: Exception) -> None:
    for member in list(members):
        member.tell(error)


def _settle(future: asyncio.Future[Answer], result: Answer | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
