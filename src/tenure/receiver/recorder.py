"""Many requests, one commit: while a batch is being written, the next one gathers."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenure.receiver.ledger import Delivery, Entry, Ledger, LedgerFailed, Outcome, Passed, Totals

BATCH_MAX = 512

T = TypeVar("T")


class Recorder:
    """The ledger, used from the event loop: one thread writes and reads it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._waiting: list[tuple[Delivery, asyncio.Future[Outcome]]] = []
        self._passed = Passed()
        self._writing: asyncio.Task[None] | None = None

    async def record(self, delivery: Delivery) -> Outcome:
        """What became of it, once that is on the disk."""
        recorded: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((delivery, recorded))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return await recorded

    def note(self, passed: Passed) -> None:
        """Kept with the next commit: nobody waits for these."""
        self._passed = self._passed.plus(passed)

    async def totals(self) -> Totals:
        await self._record_batch([])
        return await self._in_thread(self._ledger.totals)

    async def page(self, after: int, limit: int) -> list[Entry]:
        return await self._in_thread(lambda: self._ledger.page(after, limit))

    async def close(self) -> Totals:
        """Writes what is waiting, and gives the last word."""
        if self._writing is not None:
            await self._writing
        totals = await self.totals()
        self._thread.shutdown()
        self._ledger.close()
        return totals

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            try:
                outcomes = await self._record_batch([delivery for delivery, _ in batch])
            except Exception as failure:  # noqa: BLE001 - whatever it is, those who wait are told
                for _, recorded in batch:
                    if not recorded.done():
                        recorded.set_exception(failure)
            else:
                for (_, recorded), outcome in zip(batch, outcomes, strict=True):
                    if not recorded.done():
                        recorded.set_result(outcome)
        self._writing = None

    async def _record_batch(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        passed, self._passed = self._passed, Passed()
        try:
            return await self._in_thread(lambda: self._ledger.record(deliveries, passed))
        except LedgerFailed:
            self.note(passed)
            raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
