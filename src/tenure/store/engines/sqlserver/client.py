"""How an instance reaches its server: which connections are for what, and what is tried again.

ODBC calls cannot be called back. Whoever stops waiting leaves the statement to end by itself, at the latest by its
timeout, on a connection that nobody else gets until then; hence threads of our own, more than there are connections.

Renewals have connections of their own, so that neither busy lanes nor a lease with a long write holds up the next; only
in the smallest pools they share those of all others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Row
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.selectable import TextualSelect

from tenure.store.engines.sqlserver.connections import create_engine
from tenure.store.engines.sqlserver.errors import cause_of
from tenure.store.retries import PATIENCE_SECONDS, Retries
from tenure.store.store import LONG_READ_SECONDS

T = TypeVar("T")

STATEMENT_SECONDS = 2
"""ODBC counts in whole seconds. The bound of the retries is shorter: callers do not wait for this one."""
CLOSE_SECONDS = 3
SPARE_THREADS = 4
RENEWALS = 2
LONG_READS_MAX = 2
ROOMY = 7
"""From this pool size on, renewals have connections of their own."""


class SqlServerClient:
    def __init__(self, url: URL, pool_size: int) -> None:
        self._threads = ThreadPoolExecutor(2 * pool_size + SPARE_THREADS, "tenure-sqlserver")
        renewals = RENEWALS if pool_size >= ROOMY else 0
        self._engine = create_engine(url, pool_size - renewals, self._threads)
        self._renewals = create_engine(url, renewals, self._threads) if renewals else self._engine
        self._long_reads = asyncio.Semaphore(LONG_READS_MAX)
        self._retries = Retries(cause_of)
        self._under_way: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_SECONDS)
        for engine in {self._engine, self._renewals}:
            await engine.dispose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, call: TextualSelect, **parameters: str | int | bytes) -> Sequence[Row[Any]]:
        return await self._run(lambda connection: connection.execute(call, parameters).all())

    async def _read(self, read: Callable[[Connection], T]) -> T:
        return await self._run(read)

    async def _read_long(self, read: Callable[[Connection], T], seconds: int = LONG_READ_SECONDS) -> T:
        async with self._long_reads:
            return await self._run(read, seconds, seconds)

    async def _run(
        self,
        work: Callable[[Connection], T],
        statement_seconds: int = STATEMENT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        engine: AsyncEngine | None = None,
    ) -> T:
        return await self._retries.run(
            lambda: self._finish(self._on_connection(work, statement_seconds, engine)), patience_seconds
        )

    async def _on_connection(
        self, work: Callable[[Connection], T], statement_seconds: int, engine: AsyncEngine | None = None
    ) -> T:
        async with (engine or self._engine).connect() as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            raw._conn.timeout = statement_seconds  # noqa: SLF001 - aioodbc shows it, but does not let it be set
            return await connection.run_sync(work)

    async def _finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Its outcome; a caller who stops waiting does not stop it."""
        task = asyncio.create_task(operation)
        self._under_way.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain when nobody waits for it any more
