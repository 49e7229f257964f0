"""The connections of an instance to PostgreSQL, how each is used, and which calls are retried.

Hot calls do not use the pool of SQLAlchemy: resetting a pooled asyncpg connection costs 20 to 45 % of a short read. All
connections together never exceed `pool_size`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.store.contract import Topic
from tenure.store.engines.postgres.connections import (
    CLOSE_SECONDS,
    CONNECT_SECONDS,
    HOT_SETTINGS,
    SETTINGS,
    HotConnections,
    LimitedConnections,
    connect,
    divide_pool,
    set_timeouts,
)
from tenure.store.engines.postgres.errors import cause_of
from tenure.store.limits import LONG_READ_SECONDS
from tenure.store.retries import Retries
from tenure.telemetry.events import Telemetry

T = TypeVar("T")


class PostgresClient:
    def __init__(self, url: URL, pool_size: int, telemetry: Telemetry | None = None) -> None:
        self._dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        shares = divide_pool(pool_size)
        self._hot = HotConnections(self._connect_hot, shares.hot)
        self._openings = LimitedConnections(self._hot, shares.openings)
        self._ordinary = LimitedConnections(self._hot, shares.ordinary)
        self._watching = HotConnections(self._connect_listening, 1)
        self._renewals = HotConnections(self._connect_hot, shares.renewals) if shares.renewals else self._watching
        self._wakes: dict[str, list[Callable[[], None]]] = {}
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            pool_size=shares.reads,
            max_overflow=0,
            pool_timeout=CONNECT_SECONDS,
        )
        # If there are several read connections, long reads leave one of them for short reads.
        self._long_reads = asyncio.Semaphore(max(1, shares.reads - 1))
        self._retries = Retries(cause_of, telemetry or Telemetry())

    async def close(self) -> None:
        """Closes the connections, and stops waiting for the server after CLOSE_SECONDS."""
        hot = {self._hot, self._watching, self._renewals}
        closings = (*(connections.close() for connections in hot), self._engine.dispose())
        tasks = [asyncio.ensure_future(closing) for closing in closings]
        await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()

    async def _call(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        return await self._call_on(self._ordinary, statement, *arguments)

    async def _call_on(
        self, connections: HotConnections | LimitedConnections, statement: str, *arguments: Any
    ) -> Sequence[asyncpg.Record]:
        return await self._retries.run(lambda: connections.fetch(statement, arguments))

    async def _read(self, read: Callable[[Connection], T]) -> T:
        async def run() -> T:
            async with self._engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                return await connection.run_sync(read)

        return await self._retries.run(run)

    async def _read_long(self, read: Callable[[Connection], T], seconds: int = LONG_READ_SECONDS) -> T:
        def with_timeouts(connection: Connection) -> T:
            set_timeouts(connection, seconds)
            return read(connection)

        async def run() -> T:
            async with self._long_reads, self._engine.begin() as connection:
                return await connection.run_sync(with_timeouts)

        return await self._retries.run(run, seconds)

    async def _fetch_long(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        """Runs a long read through asyncpg, planned for these arguments. Hot connections would use a generic plan."""

        async def run() -> Sequence[asyncpg.Record]:
            async with self._long_reads, self._engine.begin() as connection:
                await connection.run_sync(set_timeouts, LONG_READ_SECONDS)
                driver: Any = (await connection.get_raw_connection()).driver_connection
                records: Sequence[asyncpg.Record] = await driver.fetch(statement, *arguments)
                return records

        return await self._retries.run(run, LONG_READ_SECONDS)

    async def _connect(self) -> asyncpg.Connection:
        return await connect(self._dsn, SETTINGS)

    async def _connect_hot(self) -> asyncpg.Connection:
        return await connect(self._dsn, SETTINGS | HOT_SETTINGS)

    async def _connect_listening(self) -> asyncpg.Connection:
        connection = await self._connect_hot()
        for topic in Topic:
            await connection.add_listener(topic.value, self._on_notification)
        # A lost connection wakes the subscribers: their next read of the board opens a new connection.
        connection.add_termination_listener(self._on_connection_lost)
        return connection

    def _on_notification(self, _connection: object, _sender: int, channel: str, _text: object) -> None:
        for wake in self._wakes.get(channel, ()):
            wake()

    def _on_connection_lost(self, *_connection: object) -> None:
        for wakes in self._wakes.values():
            for wake in wakes:
                wake()
