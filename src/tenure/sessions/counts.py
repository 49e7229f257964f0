"""Counts the sessions in the database, for many requests at a time.

A count of live sessions reads every live row of a scope, and a count of all sessions reads every row. So requests with
the same scope share a count. For each scope, at most one count of live sessions and one count of all sessions are
running at a time. A request may use a count that began after the request arrived, or less than FRESH_SECONDS before.

- If the last successful count began late enough, the request uses its result at once.
- If the running count began late enough, the request waits for its result.
- If the running count began too early, the request waits until this count ends, and then for the next one.
- If a count fails, all requests that wait for it get its error.
- If no count is running, the request starts one, and waits for its result.
- If a request has waited for PATIENCE_SECONDS (TOTAL_PATIENCE_SECONDS for a count of all sessions), the request gets
  503. The count continues, and later requests can use its result.

Only the counts of the TENANTS_MAX most recently used scopes are kept. If a scope is dropped while its count is running,
the next request for this scope starts a second count.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, Generic, TypeVar

from tenure.clock import monotonic
from tenure.domain.scope import Scope
from tenure.domain.sessions import SessionCounts
from tenure.errors import DatabaseUnavailable
from tenure.store.contract import Store
from tenure.store.limits import LONG_READ_SECONDS
from tenure.telemetry.events import SessionsCountFailed, Telemetry

FRESH_SECONDS = 1.0
PATIENCE_SECONDS = 1.7
"""How long a request waits for the count of live sessions. The time is short, because the health probe uses this
count."""
TOTAL_PATIENCE_SECONDS = LONG_READ_SECONDS
"""How long a request waits for a count of all sessions."""
TENANTS_MAX = 256

T = TypeVar("T")


class SessionCounter:
    """Counts the live sessions, or all sessions, of a scope, for all requests of this instance."""

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._active = CountsByScope(store.count_active_sessions, telemetry)
        self._all = CountsByScope(store.count_sessions, telemetry)

    async def active(self, scope: Scope) -> int:
        return await self._active.of(scope).fresh(PATIENCE_SECONDS)

    async def all(self, scope: Scope) -> SessionCounts:
        return await self._all.of(scope).fresh(TOTAL_PATIENCE_SECONDS)


class CountsByScope(Generic[T]):
    def __init__(self, count: Callable[[Scope], Coroutine[Any, Any, T]], telemetry: Telemetry) -> None:
        self._count = count
        self._telemetry = telemetry
        self._counts: OrderedDict[Scope, SharedCount[T]] = OrderedDict()

    def of(self, scope: Scope) -> "SharedCount[T]":
        count = self._counts.get(scope)
        if count is None:
            count = self._counts[scope] = SharedCount(partial(self._count, scope), self._telemetry)
        self._counts.move_to_end(scope)
        if len(self._counts) > TENANTS_MAX:
            self._counts.popitem(last=False)
        return count


class SharedCount(Generic[T]):
    def __init__(self, count: Callable[[], Coroutine[Any, Any, T]], telemetry: Telemetry) -> None:
        self._count = count
        self._telemetry = telemetry
        self._last: tuple[float, T] | None = None
        """When the last successful count began, and its result. None before the first one."""
        self._counting: asyncio.Task[None] | None = None
        """The count in progress. The task itself sets this attribute to None when the count ends. Otherwise the loop in
        `fresh` could await a finished task again and again, which never suspends and so blocks the event loop."""

    async def fresh(self, patience_seconds: float) -> T:
        """Return a count that began less than FRESH_SECONDS before this call, or later."""
        earliest = monotonic() - FRESH_SECONDS
        try:
            async with asyncio.timeout(patience_seconds):
                while self._last is None or self._last[0] <= earliest:
                    await asyncio.shield(self._counting or self._begin())
        except TimeoutError as error:
            raise DatabaseUnavailable("the sessions are still being counted") from error
        return self._last[1]

    def _begin(self) -> asyncio.Task[None]:
        # The task gets an empty context: the count serves many requests, so it must not carry the request id of the
        # first one.
        self._counting = asyncio.create_task(self._count_once(), context=Context())
        self._counting.add_done_callback(_retrieve_exception)
        return self._counting

    async def _count_once(self) -> None:
        began_at = monotonic()
        try:
            self._last = (began_at, await self._count())
        except Exception as error:
            if not isinstance(error, DatabaseUnavailable):
                self._telemetry.report(SessionsCountFailed(repr(error)))
            raise
        finally:
            self._counting = None


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Marks the exception as seen. Otherwise asyncio would log it if no request waits for the count any more."""
    if not task.cancelled():
        task.exception()
