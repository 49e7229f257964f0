"""The connections of an instance to PostgreSQL: what each is used for, and how calls are retried.

*Hot calls* are all writes and the most frequent reads. They do not use the pool of SQLAlchemy: resetting a pooled
asyncpg connection costs 20 to 45 % of a short read. An instance never has more than `pool_size` connections, except for
two short-lived ones that detect a pooler.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.clock import monotonic
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.store.contract import Topic
from tenure.store.engines.postgres import rows
from tenure.store.engines.postgres.connections import (
    CLOSE_SECONDS,
    CONNECT_SECONDS,
    HOT_SETTINGS,
    READ_ONLY,
    REPLACE_SECONDS,
    SETTINGS,
    HotConnections,
    LimitedConnections,
    divide_pool,
    is_read_only,
    set_timeouts,
)
from tenure.store.engines.postgres.errors import cause_of
from tenure.store.engines.postgres.hosts import HostConnection, Hosts
from tenure.store.engines.postgres.poolers import REFUSAL, share_backends
from tenure.store.limits import LONG_READ_SECONDS
from tenure.store.retries import Cause, Retries
from tenure.telemetry.events import Telemetry

T = TypeVar("T")

POOLER_CHECK_SECONDS = 15.0
PAGE_MILLISECONDS = 100
CHECK_SECONDS = 1.0
"""The interval at which the client asks the server about unanswered calls."""


class PostgresClient:
    def __init__(
        self, url: str, pool_size: int, telemetry: Telemetry | None = None, *, read_only: bool = False
    ) -> None:
        """With `read_only`, the server refuses every write of these connections."""
        self._hosts = Hosts(url)
        self._settings = SETTINGS | READ_ONLY if read_only else SETTINGS
        self._read_only = read_only
        shares = divide_pool(pool_size)
        self._hot = HotConnections(self._connect_hot, shares.hot, self._check_unanswered)
        self._openings = LimitedConnections(self._hot, shares.openings)
        self._ordinary = LimitedConnections(self._hot, shares.ordinary)
        self._watching = HotConnections(self._connect_listening, 1, self._check_unanswered, must_write=True)
        self._renewals = (
            HotConnections(self._connect_hot, shares.renewals, self._check_unanswered)
            if shares.renewals
            else self._watching
        )
        self._checking: asyncio.Task[None] | None = None
        self._wakes: dict[str, list[Callable[[], None]]] = {}
        self._end_listeners: list[tuple[Callable[[str, str], None], Callable[[], None]]] = []
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            pool_size=shares.reads,
            max_overflow=0,
            pool_timeout=CONNECT_SECONDS,
        )
        event.listen(self._engine.sync_engine, "checkout", self._refuse_former_host)
        # If there are several read connections, long reads leave one of them for short reads.
        self._long_reads = asyncio.Semaphore(max(1, shares.reads - 1))
        self._pages_beside = asyncio.Semaphore(1 if shares.reads > 1 else 0)
        telemetry = telemetry or Telemetry()
        self._retries = Retries(cause_of, telemetry)
        self._hot_retries = Retries(cause_of, telemetry, end_when_cancelled=True)

    @property
    def refusing_writes(self) -> str | None:
        return self._hot_retries.refusal

    async def close(self) -> None:
        """Closes the connections, and stops waiting for the server after CLOSE_SECONDS."""
        if self._checking is not None:
            self._checking.cancel()
        closings = (*(connections.close() for connections in self._all_hot), self._engine.dispose())
        tasks = [asyncio.ensure_future(closing) for closing in closings]
        await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()

    @property
    def _all_hot(self) -> set[HotConnections]:
        return {self._hot, self._watching, self._renewals}

    async def _call(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        return await self._call_on(self._ordinary, statement, *arguments)

    async def _call_on(
        self, connections: HotConnections | LimitedConnections, statement: str, *arguments: Any
    ) -> Sequence[asyncpg.Record]:
        return await self._hot_retries.run(lambda: connections.fetch(statement, arguments))

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

    async def _read_page(self, read: Callable[[Connection], T]) -> T:
        """Reads a page as a long read. If all connections for long reads are in use, first tries to read the page on
        the connection that is left for short reads. Only one page at a time uses that connection. If a statement takes
        longer than PAGE_MILLISECONDS there, the page waits for a connection for long reads.
        """

        def shortly(connection: Connection) -> T:
            connection.execute(text(f"SET LOCAL statement_timeout = {PAGE_MILLISECONDS}"))
            return read(connection)

        async def run() -> tuple[T] | None:
            try:
                async with self._pages_beside, self._engine.begin() as connection:
                    return (await connection.run_sync(shortly),)
            except DBAPIError as error:
                if cause_of(error) is Cause.TIMEOUT:
                    return None
                raise

        if self._long_reads.locked() and not self._pages_beside.locked():
            found = await self._retries.run(run)
            if found is not None:
                return found[0]
        return await self._read_long(read)

    def _use_one_core(self, connection: Connection) -> None:
        connection.execute(text("SET LOCAL max_parallel_workers_per_gather = 0"))

    async def _fetch_long(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        """Runs a long read through asyncpg, planned for these arguments. Hot connections would use a generic plan."""

        async def run() -> Sequence[asyncpg.Record]:
            async with self._long_reads, self._engine.begin() as connection:
                await connection.run_sync(set_timeouts, LONG_READ_SECONDS)
                driver: Any = (await connection.get_raw_connection()).driver_connection
                records: Sequence[asyncpg.Record] = await driver.fetch(statement, *arguments)
                return records

        return await self._retries.run(run, LONG_READ_SECONDS)

    async def _fetch_short(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        """Runs a short read through asyncpg, planned for these arguments."""

        async def run() -> Sequence[asyncpg.Record]:
            async with self._engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                driver: Any = (await connection.get_raw_connection()).driver_connection
                try:
                    records: Sequence[asyncpg.Record] = await driver.fetch(statement, *arguments)
                except BaseException as error:
                    # SQLAlchemy does not see errors of the driver, and would return a broken connection to the pool.
                    if driver.is_closed() or not isinstance(error, asyncpg.PostgresError):
                        driver.terminate()
                        await connection.invalidate()
                    raise
                return records

        return await self._retries.run(run)

    async def _refuse_pooler(self) -> None:
        """Raises `ConfigurationError` behind a pooler in transaction mode. `migrate` calls this first."""
        if await self._detect_pooler(POOLER_CHECK_SECONDS):
            raise ConfigurationError(REFUSAL)

    async def _detect_pooler(self, seconds: float) -> bool:
        async def run() -> bool:
            connections = list[HostConnection]()
            try:
                for _ in range(2):
                    connections.append(await self._connect())
                return await share_backends(*connections)
            finally:
                for connection in connections:
                    connection.terminate()

        return await self._retries.run(run, seconds)

    def _check_unanswered(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._close_forgotten())

    async def _close_forgotten(self) -> None:
        """Closes the connections of unanswered calls whose backends are idle or gone: no answer can arrive on these
        connections.

        Runs while there are unanswered calls. An answer can be lost in a proxy or a pooler, or because the server died.
        """
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            unanswered = {
                connection.get_server_pid(): connection
                for connections in self._all_hot
                for connection in connections.unanswered
            }
            if not unanswered:
                return
            with suppress(DatabaseUnavailable):
                working = await self._read(partial(_working_backends, list(unanswered)))
                for pid in unanswered.keys() - working:
                    unanswered[pid].terminate()

    async def _connect(self) -> HostConnection:
        return await self._hosts.connect(self._settings)

    async def _connect_hot(self) -> HostConnection:
        return await self._hosts.connect(self._settings | HOT_SETTINGS)

    def _refuse_former_host(self, connection: Any, _record: object, _proxy: object) -> None:
        """Makes the pool replace a connection to a server that is no longer the primary.

        If the URL has several hosts, a connection is replaced if another host has been reached since. If the URL has
        one name for all servers, a connection that is at least REPLACE_SECONDS old is replaced if its server has become
        read only, because the name may lead to another server now.
        """
        driver: HostConnection = connection.driver_connection
        if not self._hosts.is_current(driver):
            raise DisconnectionError("another host is the primary now")
        is_old = monotonic() - driver.connected_at >= REPLACE_SECONDS
        if is_old and not self._read_only and is_read_only(driver):
            raise DisconnectionError("the server has become read only")

    async def _connect_listening(self) -> HostConnection:
        connection = await self._connect_hot()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                for topic in Topic:
                    await connection.add_listener(topic.value, self._on_notification)
        except BaseException:
            connection.terminate()
            raise
        # If the connection is lost, wake all subscribers. The next read of the board opens a new connection.
        connection.add_termination_listener(self._on_connection_lost)
        # Sessions may have ended while no connection listened.
        for _, check in self._end_listeners:
            check()
        return connection

    def _on_notification(self, _connection: object, _sender: int, channel: str, text: object) -> None:
        for wake in self._wakes.get(channel, ()):
            wake()
        if channel == Topic.SESSION_ENDS:
            for session_id, reason in rows.session_ends(str(text)).items():
                for ended, _ in self._end_listeners:
                    ended(session_id, reason)

    def _on_connection_lost(self, *_connection: object) -> None:
        for wakes in self._wakes.values():
            for wake in wakes:
                wake()


def _working_backends(pids: Sequence[int], connection: Connection) -> set[int]:
    statement = text("SELECT pid FROM pg_stat_activity WHERE pid = ANY (:pids) AND state <> 'idle'")
    return set(connection.execute(statement, {"pids": pids}).scalars())
