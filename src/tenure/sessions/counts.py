"""The number of sessions. The database counts them at most once in ten seconds.

Counting reads every live row. So callers share the count that is running and do not start another one.
"""

import asyncio

from tenure.clock import monotonic
from tenure.domain.sessions import SessionCounts
from tenure.errors import DatabaseUnavailable
from tenure.store.contract import Store
from tenure.telemetry.events import SessionsCountFailed, Telemetry

FRESH_SECONDS = 10.0
PATIENCE_SECONDS = 1.7


class CachedCounts:
    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._counts: SessionCounts | None = None
        self._counted_at = 0.0
        self._counting: asyncio.Task[SessionCounts] | None = None

    async def fresh(self) -> SessionCounts:
        """Returns counts that are at most ten seconds old. Waits for a new count if the last one is older."""
        if self._counts is not None and monotonic() - self._counted_at < FRESH_SECONDS:
            return self._counts
        return await self._next()

    async def last(self) -> SessionCounts:
        """Returns the last counts. Starts a new count if they are stale, but waits only if there are no counts yet."""
        if self._counts is None:
            return await self._next()
        if monotonic() - self._counted_at >= FRESH_SECONDS:
            self._count()
        return self._counts

    async def _next(self) -> SessionCounts:
        """Waits for the running count. The count continues after the caller's timeout, and the next caller gets it."""
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
            self._telemetry.report(SessionsCountFailed(repr(error)))
