"""Counts the sessions in the database, for many requests at a time.

Counting live sessions reads every live row of a scope, and the total reads every row. So requests with the same scope
share a count. For each scope, at most one count of live sessions and one total run at a time. A request uses any count
that began less than FRESH_SECONDS before the request arrived, or later.

- If a running count began in time, the request waits for it.
- If a running count began too early, the request waits until it ends, and then for the next one.
- If a request has waited for PATIENCE_SECONDS (TOTAL_PATIENCE_SECONDS for the total), it gets 503. The count continues,
  and later requests can use it.

Only the counts of the TENANTS_MAX most recently used scopes are kept.
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
"""How long a request waits for the count of live sessions, which is cheap enough for a probe."""
TOTAL_PATIENCE_SECONDS = LONG_READ_SECONDS
"""How long a request waits for the counts that include closed sessions."""
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
        """When the last count began, and its result."""
        self._counting: asyncio.Task[None] | None = None
        """The count in progress. The task itself sets this to None when it ends. Awaiting a finished task does not
        suspend, so the loop in `fresh` would otherwise block the event loop."""

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
        # In an empty context, because the count serves many requests: it must not carry the id of the first one.
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
