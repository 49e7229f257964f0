"""How many sessions there are, from the database but never more often than every ten seconds.

Counting reads every live row, so nobody waits for it but the first who asks, and no probe starts it twice.
"""

import asyncio

import structlog

from tenure.clock import monotonic
from tenure.errors import DatabaseUnavailable
from tenure.model.sessions import SessionCounts
from tenure.store.store import Store

log = structlog.get_logger()

FRESH_SECONDS = 10.0
PATIENCE_SECONDS = 1.7


class CachedCounts:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: SessionCounts | None = None
        self._counted_at = 0.0
        self._counting: asyncio.Task[SessionCounts] | None = None

    async def fresh(self) -> SessionCounts:
        """At most ten seconds old."""
        if self._counts is not None and monotonic() - self._counted_at < FRESH_SECONDS:
            return self._counts
        return await self._counted_soon()

    async def last(self) -> SessionCounts:
        """The last count, and a new one under way if that is stale; waits only where there was none yet."""
        if self._counts is None:
            return await self._counted_soon()
        if monotonic() - self._counted_at >= FRESH_SECONDS:
            self._count()
        return self._counts

    async def _counted_soon(self) -> SessionCounts:
        """The count under way goes on when its caller gives up, and serves the next one."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await asyncio.shield(self._count())
        except TimeoutError as error:
            raise DatabaseUnavailable("the sessions are still being counted") from error

    def _count(self) -> asyncio.Task[SessionCounts]:
        if self._counting is None:
            self._counting = asyncio.create_task(self._store.count_sessions())
            self._counting.add_done_callback(self._counted)
        return self._counting

    def _counted(self, task: asyncio.Task[SessionCounts]) -> None:
        self._counting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._counts, self._counted_at = task.result(), monotonic()
        elif not isinstance(error, DatabaseUnavailable):
            log.error("sessions.count_failed", error=repr(error))
