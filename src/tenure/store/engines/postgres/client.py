"""How an instance reaches its server: which connections are for what, and what is tried again.

Hot calls use connections of their own: resetting a pooled asyncpg connection costs 20 to 45 % of a short read. All
connections together never exceed `pool_size`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.store.engines.postgres.connections import (
    CLOSE_SECONDS,
    CONNECT_SECONDS,
    HOT_SETTINGS,
    SETTINGS,
    HotConnections,
    SomeOf,
    allow,
    connect,
    share_out,
)
from tenure.store.engines.postgres.errors import cause_of
from tenure.store.retries import Retries
from tenure.store.store import LONG_READ_SECONDS, Topic

T = TypeVar("T")


class PostgresClient:
    def __init__(self, url: URL, pool_size: int) -> None:
        self._dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        shares = share_out(pool_size)
        self._hot = HotConnections(self._connect_hot, shares.hot)
        self._openings = SomeOf(self._hot, shares.openings)
        self._keepings = SomeOf(self._hot, shares.keepings)
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
        # One is left for short ones, where there are two.
        self._long_reads = asyncio.Semaphore(max(1, shares.reads - 1))
        self._retries = Retries(cause_of)

    async def close(self) -> None:
        """Says goodbye if the server listens, and goes anyway."""
        hot = {self._hot, self._watching, self._renewals}
        goodbyes = (*(connections.close() for connections in hot), self._engine.dispose())
        tasks = [asyncio.ensure_future(goodbye) for goodbye in goodbyes]
        await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()

    async def _keep(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        return await self._call(self._keepings, statement, *arguments)

    async def _watch(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        return await self._call(self._watching, statement, *arguments)

    async def _call(
        self, connections: HotConnections | SomeOf, statement: str, *arguments: Any
    ) -> Sequence[asyncpg.Record]:
        return await self._retries.run(lambda: connections.fetch(statement, arguments))

    async def _read(self, read: Callable[[Connection], T]) -> T:
        async def run() -> T:
            async with self._engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                return await connection.run_sync(read)

        return await self._retries.run(run)

    async def _read_long(self, read: Callable[[Connection], T], seconds: int = LONG_READ_SECONDS) -> T:
        def unhurried(connection: Connection) -> T:
            allow(connection, seconds)
            return read(connection)

        async def run() -> T:
            async with self._long_reads, self._engine.begin() as connection:
                return await connection.run_sync(unhurried)

        return await self._retries.run(run, seconds)

    async def _fetch_long(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        """A long read in the driver's own words, planned for these arguments: hot connections plan once for all."""

        async def run() -> Sequence[asyncpg.Record]:
            async with self._long_reads, self._engine.begin() as connection:
                await connection.run_sync(allow, LONG_READ_SECONDS)
                driver: Any = (await connection.get_raw_connection()).driver_connection
                lines: Sequence[asyncpg.Record] = await driver.fetch(statement, *arguments)
                return lines

        return await self._retries.run(run, LONG_READ_SECONDS)

    async def _connect(self) -> asyncpg.Connection:
        return await connect(self._dsn, SETTINGS)

    async def _connect_hot(self) -> asyncpg.Connection:
        return await connect(self._dsn, SETTINGS | HOT_SETTINGS)

    async def _connect_listening(self) -> asyncpg.Connection:
        connection = await self._connect_hot()
        for topic in Topic:
            await connection.add_listener(topic.value, self._heard)
        # The next look, which makes a new connection, is then at once.
        connection.add_termination_listener(self._lost)
        return connection

    def _heard(self, _connection: object, _sender: int, channel: str, _text: object) -> None:
        for wake in self._wakes.get(channel, ()):
            wake()

    def _lost(self, *_connection: object) -> None:
        for wakes in self._wakes.values():
            for wake in wakes:
                wake()
