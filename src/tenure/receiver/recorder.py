"""Records deliveries in batches: while one batch is being committed, the next one is collected."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenure.receiver.ledger import (
    Delivery,
    DeliveryOutcome,
    Entry,
    EventEntry,
    Ledger,
    LedgerFailed,
    RequestCounts,
    Totals,
)

BATCH_MAX = 512

T = TypeVar("T")


class Recorder:
    """Makes the ledger usable from the event loop. One thread does all reads and writes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._pending: list[tuple[Delivery, asyncio.Future[DeliveryOutcome]]] = []
        self._counts = RequestCounts()
        self._writer: asyncio.Task[None] | None = None

    async def record(self, delivery: Delivery) -> DeliveryOutcome:
        """Record a delivery. Return the outcome after the commit."""
        recorded: asyncio.Future[DeliveryOutcome] = asyncio.get_running_loop().create_future()
        self._pending.append((delivery, recorded))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_pending())
        return await recorded

    def add_counts(self, counts: RequestCounts) -> None:
        """Add the counts to the totals with the next commit. They are lost if the process is killed before."""
        self._counts = self._counts.plus(counts)

    async def totals(self) -> Totals:
        await self._record_batch([])
        return await self._in_thread(self._ledger.totals)

    async def page(self, after: int, limit: int) -> list[Entry]:
        return await self._in_thread(lambda: self._ledger.page(after, limit))

    async def events(self, after: int, limit: int) -> list[EventEntry]:
        return await self._in_thread(lambda: self._ledger.events(after, limit))

    async def close(self) -> Totals:
        """Write the pending deliveries, close the ledger, and return the final totals."""
        if self._writer is not None:
            await self._writer
        totals = await self.totals()
        self._thread.shutdown()
        self._ledger.close()
        return totals

    async def _write_pending(self) -> None:
        while self._pending:
            batch, self._pending = self._pending[:BATCH_MAX], self._pending[BATCH_MAX:]
            try:
                outcomes = await self._record_batch([delivery for delivery, _ in batch])
            except Exception as failure:  # noqa: BLE001 - every caller of the batch must get the error
                for _, recorded in batch:
                    if not recorded.done():
                        recorded.set_exception(failure)
            else:
                # A future is done already if its caller was cancelled.
                for (_, recorded), outcome in zip(batch, outcomes, strict=True):
                    if not recorded.done():
                        recorded.set_result(outcome)
        self._writer = None

    async def _record_batch(self, deliveries: Sequence[Delivery]) -> list[DeliveryOutcome]:
        counts, self._counts = self._counts, RequestCounts()
        try:
            return await self._in_thread(lambda: self._ledger.record(deliveries, counts))
        except LedgerFailed:
            # The transaction was rolled back, so the next commit must include these counts.
            self.add_counts(counts)
            raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
