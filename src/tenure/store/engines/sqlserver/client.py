"""The connections of an instance to SQL Server: what they are used for, and how calls are retried.

An ODBC call cannot be cancelled. If a caller stops waiting, the statement continues until it ends or times out, and
until then it occupies its connection and a thread. Opening and closing a connection takes a thread too, so there are
more threads than connections.

Renewals and releases of leases have their own connections, so that they do not wait until other calls return a
connection. In a pool smaller than RENEWALS_POOL_MIN, all calls share the connections.
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
from tenure.store.limits import LONG_READ_SECONDS
from tenure.store.retries import PATIENCE_SECONDS, Retries
from tenure.telemetry.events import Telemetry

T = TypeVar("T")

STATEMENT_SECONDS = 2
"""The timeout of a statement; ODBC counts in whole seconds. The time limit of the retries is shorter, so callers do not
wait for this timeout."""
CLOSE_SECONDS = 3
SPARE_THREADS = 4
RENEWAL_CONNECTIONS = 2
LONG_READS_MAX = 2
RENEWALS_POOL_MIN = 7
"""From this pool size on, renewals and releases of leases have their own connections."""


class SqlServerClient:
    def __init__(self, url: URL, pool_size: int, telemetry: Telemetry | None = None) -> None:
        self._threads = ThreadPoolExecutor(2 * pool_size + SPARE_THREADS, "tenure-sqlserver")
        renewals = RENEWAL_CONNECTIONS if pool_size >= RENEWALS_POOL_MIN else 0
        self._engine = create_engine(url, pool_size - renewals, self._threads)
        self._renewals = create_engine(url, renewals, self._threads) if renewals else self._engine
        self._long_reads = asyncio.Semaphore(LONG_READS_MAX)
        self._retries = Retries(cause_of, telemetry or Telemetry())
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def refusing_writes(self) -> str | None:
        return self._retries.refusal

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_SECONDS)
        for engine in {self._engine, self._renewals}:
            await engine.dispose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, call: TextualSelect, **parameters: str | int | bytes) -> Sequence[Row[Any]]:
        return await self._run(lambda connection: connection.execute(call, parameters).all())

    async def _read(self, read: Callable[[Connection], T]) -> T:
        return await self._run(read)

    async def _read_long(self, read: Callable[[Connection], T], seconds: int = LONG_READ_SECONDS) -> T:
        async def run() -> T:
            async with self._long_reads:
                return await self._finish(self._on_connection(read, seconds))

        # The wait for another long read counts against the time limit, too.
        return await self._retries.run(run, seconds)

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
            raw._conn.timeout = statement_seconds  # noqa: SLF001 - aioodbc has no public setter
            return await connection.run_sync(work)

    async def _finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Runs `operation` to its end, even if the caller is cancelled."""
        task = asyncio.create_task(operation)
        self._running.add(task)
        task.add_done_callback(self._on_finished)
        return await asyncio.shield(task)

    def _on_finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log it if the caller was cancelled
