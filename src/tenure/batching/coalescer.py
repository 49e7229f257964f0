"""Combines many requests into one transaction.

A request does not get its own transaction. While the database executes one batch, the next one fills, up to BATCH_MAX
items, and is sent as one call. No timer delays a batch: while none is running, an item is sent in the next iteration of
the event loop, together with all items that arrive until then. Callers get their results after the commit.

At most `in_flight` batches run at once. While batches are running, another one is sent only if it has at least
`worth_another` items, or if each running batch has run for longer than OVERDUE_SECONDS. The minimum exists because
larger batches cost the database a quarter less per item. The time limit exists so that items do not wait behind a batch
that waits for a lock, unless `in_flight` batches are running already.

Failures:

- The database cannot be reached: every member of the batch gets the error. Every item that waits behind the batch gets
  the error too, because it has waited while the store retried.
- The database is busy (`DatabaseBusy`): only the members of the batch get the error.
- The batch raises anything else: its members run one by one, so that only the member at fault fails.
- The batch does not end: its members, and the items that wait behind it, get an error after PATIENCE_SECONDS. As after
  any lost response, it is then unknown whether a member was written. The caller can send the same request again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial
from itertools import chain
from typing import Generic, TypeVar, cast

from tenure.errors import DatabaseBusy, DatabaseUnavailable, Overloaded
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import CallbackFailed, Telemetry
from tenure.telemetry.trace_context import BatchTrace, Trace, current_trace

Item = TypeVar("Item")
Result = TypeVar("Result")

WAITING_MAX = 10_000
WORTH_ANOTHER = 32
"""The minimum size of a batch that is sent while another one is running and not overdue."""
OVERDUE_SECONDS = 0.01
PATIENCE_SECONDS = 1.8
LATE_CHECK_SECONDS = 0.1
"""The interval of the check for members that have waited for longer than PATIENCE_SECONDS."""

Done = Callable[[Result | Exception], None]


class _Member(Generic[Item, Result]):
    __slots__ = ("done", "item", "since", "trace")

    def __init__(self, item: Item, done: Done[Result] | None, since: float) -> None:
        self.item = item
        self.done = done
        self.since = since
        self.trace: Trace | None = None


class Coalescer(Generic[Item, Result]):
    def __init__(
        self,
        run_batch: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        in_flight: int,
        telemetry: Telemetry,
        worth_another: int = WORTH_ANOTHER,
    ) -> None:
        self._run_batch = run_batch
        self._in_flight_max = in_flight
        self._telemetry = telemetry
        self._is_traced = telemetry.begin_trace is not None
        self._worth_another = worth_another
        self._waiting: deque[_Member[Item, Result]] = deque()
        self._in_flight: dict[asyncio.Task[None], Sequence[_Member[Item, Result]]] = {}
        self._overdue: set[asyncio.Task[None]] = set()
        self._is_starting = False
        self._starting: set[asyncio.Task[None]] = set()
        """Keeps the task that takes the next batch, because asyncio itself keeps only a weak reference to this task."""
        self._checking_for_late = False
        self._context = Context()
        """Empty: a batch serves many requests, so it must not run in the context of the request that started it."""

    def submit(self, item: Item, done: Done[Result], since: float | None = None) -> None:
        """Calls `done` with the result after the commit, or with the error.

        `since` is the event loop's time at which the caller began to wait, by default now. A retry passes the time of
        the first try.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests are already waiting for the database")
        loop = asyncio.get_running_loop()
        # `_Member[Item, Result](…)` would take a microsecond more.
        member: _Member[Item, Result] = _Member(item, done, loop.time() if since is None else since)
        if self._is_traced:
            member.trace = _own_trace()
        self._waiting.append(member)
        self._start_if_possible(loop)
        if not self._checking_for_late:
            self._checking_for_late = True
            loop.call_later(LATE_CHECK_SECONDS, self._fail_late, context=self._context)

    async def run(self, item: Item, since: float | None = None) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.submit(item, partial(_settle, future), since)
        return await future

    def _start_if_possible(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts a task that takes a batch in the next iteration, with all items that arrive until then."""
        if self._waiting and not self._is_starting and self._may_send():
            self._is_starting = True
            # With traces, a batch sets `current_trace`, and another batch must not see its value.
            context = self._context.copy() if self._is_traced else self._context
            task = loop.create_task(self._take_batch(), context=context)
            self._starting.add(task)

    def _may_send(self) -> bool:
        if len(self._in_flight) >= self._in_flight_max:
            return False
        return len(self._in_flight) == len(self._overdue) or len(self._waiting) >= self._worth_another

    async def _take_batch(self) -> None:
        loop = asyncio.get_running_loop()
        task = cast("asyncio.Task[None]", asyncio.current_task())
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_MAX))]
        self._starting.discard(task)
        self._is_starting = False
        if not batch:
            return
        self._in_flight[task] = batch
        self._start_if_possible(loop)
        timer = loop.call_later(OVERDUE_SECONDS, self._mark_overdue, task, context=self._context)
        try:
            if self._is_traced:
                _set_batch_trace(batch)
            await self._execute(batch)
        finally:
            timer.cancel()
            del self._in_flight[task]
            self._overdue.discard(task)
            # The next batch is taken in the next iteration of the event loop, with all requests that arrive until then.
            self._start_if_possible(loop)

    def _mark_overdue(self, task: asyncio.Task[None]) -> None:
        self._overdue.add(task)
        self._start_if_possible(task.get_loop())

    async def _execute(self, batch: Sequence[_Member[Item, Result]]) -> None:
        try:
            results = await self._run_batch([member.item for member in batch])
        except DatabaseUnavailable as error:
            self._fail_with_waiting(batch, error)
        except Exception as error:  # noqa: BLE001 - the member at fault gets the error
            await self._run_one_by_one(batch, error)
        except BaseException:
            self._settle_all(batch, DatabaseUnavailable("this instance is stopping"))
            raise
        else:
            for member, result in zip(batch, results, strict=True):
                self._settle(member, result)

    async def _run_one_by_one(self, batch: Sequence[_Member[Item, Result]], error: Exception) -> None:
        if len(batch) == 1:
            self._settle(batch[0], error)
            return
        for member in batch:
            # Skip members that have already failed: `_fail_with_waiting` and `_fail_late` settle members of this batch.
            if member.done is not None:
                await self._execute([member])

    def _fail_with_waiting(self, batch: Sequence[_Member[Item, Result]], error: DatabaseUnavailable) -> None:
        self._settle_all(batch, error)
        if not isinstance(error, DatabaseBusy):
            self._settle_all(chain(*self._in_flight_with(batch), self._waiting), error)
            self._waiting.clear()

    def _in_flight_with(self, batch: Sequence[_Member[Item, Result]]) -> Iterable[Sequence[_Member[Item, Result]]]:
        """Returns the batch in flight that contains `batch`, which may be a single member (see `_run_one_by_one`)."""
        return [members for members in self._in_flight.values() if batch[0] in members]

    def _fail_late(self) -> None:
        """Fails members, in flight or waiting, that are older than PATIENCE_SECONDS."""
        loop = asyncio.get_running_loop()
        too_long_ago = loop.time() - PATIENCE_SECONDS
        error = DatabaseUnavailable(f"the database did not answer within {PATIENCE_SECONDS:g} seconds")
        late = [member for member in chain(*self._in_flight.values(), self._waiting) if member.since <= too_long_ago]
        self._settle_all(late, error)
        if late:
            self._waiting = deque(member for member in self._waiting if member.done is not None)
        self._checking_for_late = bool(self._in_flight or self._waiting)
        if self._checking_for_late:
            loop.call_later(LATE_CHECK_SECONDS, self._fail_late, context=self._context)

    def _settle_all(self, members: Iterable[_Member[Item, Result]], error: Exception) -> None:
        for member in list(members):
            self._settle(member, error)

    def _settle(self, member: _Member[Item, Result], result: Result | Exception) -> None:
        done, member.done = member.done, None
        if done is None:
            return
        try:
            if member.trace is None:
                done(result)
            else:
                # The callback may start a task for a retry, which belongs to the trace of this member, not of the
                # batch.
                copy_context().run(_done_within, member.trace, done, result)
        except Exception as error:  # noqa: BLE001 - the other callbacks must still be called
            self._telemetry.report(CallbackFailed(error))


def _set_batch_trace(batch: Sequence[_Member[Item, Result]]) -> None:
    traces = [member.trace for member in batch if member.trace is not None]
    if traces:
        current_trace.set(BatchTrace(traces))


def _own_trace() -> Trace | None:
    trace = current_trace.get()
    return trace if isinstance(trace, Trace) else None


def _done_within(trace: Trace, done: Done[Result], result: Result | Exception) -> None:
    current_trace.set(trace)
    done(result)


def _settle(future: asyncio.Future[Result], result: Result | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
