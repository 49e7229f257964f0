"""Connections to PostgreSQL. Timeouts limit how long a connection of this process can block other transactions."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import Connection, text

from tenure.errors import ConfigurationError
from tenure.store.engines.postgres.errors import LEASE_LOST

OPENINGS_MAX = 4
ORDINARY_MAX = 3
READS = 2
RENEWALS_POOL_MIN = 7
"""From this pool size on, renewals have their own connection."""
READS_POOL_MIN = 8
"""From this pool size on, reads have two connections."""
CLOSE_SECONDS = 0.5
CONNECT_SECONDS = 1.0
TCP_USER_TIMEOUT_MS = 2000

SETTINGS = {
    "statement_timeout": "1500ms",
    "lock_timeout": "1000ms",
    "idle_in_transaction_session_timeout": "1000ms",
    "tcp_user_timeout": f"{TCP_USER_TIMEOUT_MS}ms",
    "jit": "off",
    # Otherwise a generic plan made for old windows would also be used for the newest ones.
    "plan_cache_mode": "force_custom_plan",
}
TRANSACTION_TIMEOUT = "2000ms"
"""Ends a transaction if the client's last message never arrives. The other timeouts do not cover that case."""
TRANSACTION_TIMEOUT_SINCE = 17

HOT_SETTINGS = {
    # The generic plan of a hot statement is made once per connection, maybe while the table is still empty. These
    # settings force the plan that suits a million rows.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class PoolShares(NamedTuple):
    """The division of an instance's connections. Their sum never exceeds `pool_size`."""

    hot: int
    openings: int
    """How many hot connections opens and accepts may use at a time. At least one is left for ordinary calls."""
    ordinary: int
    """How many hot connections all other calls may use at a time. At least one is left for opens."""
    renewals: int
    reads: int


def divide_pool(pool_size: int) -> PoolShares:
    """Reserves one connection for the board. Renewals have their own, or use the board's in the smallest pools."""
    renewals = 1 if pool_size >= RENEWALS_POOL_MIN else 0
    reads = READS if pool_size >= READS_POOL_MIN else 1
    hot = pool_size - 1 - renewals - reads
    return PoolShares(hot, min(OPENINGS_MAX, hot - 1), min(ORDINARY_MAX, hot - 1), renewals, reads)


class HotConnections:
    """A few connections that are reused without a reset. A connection that fails in any way is dropped."""

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]], limit: int) -> None:
        self._connect = connect
        self._slots = asyncio.Semaphore(limit)
        self._free: list[asyncpg.Connection] = []

    async def fetch(self, statement: str, arguments: Sequence[Any]) -> Sequence[asyncpg.Record]:
        async with self._slots:
            connection = self._free.pop() if self._free else await self._connect()
            try:
                records: Sequence[asyncpg.Record] = await connection.fetch(statement, *arguments)
            except BaseException as error:
                self._release_failed(connection, error)
                raise
            self._free.append(connection)
            return records

    def _release_failed(self, connection: asyncpg.Connection, error: BaseException) -> None:
        """Terminates the connection, so that its transaction does not stay open. After LEASE_LOST it is reused."""
        if getattr(error, "sqlstate", None) == LEASE_LOST:
            self._free.append(connection)
            return
        connection.terminate()
        if not isinstance(error, asyncpg.PostgresError):
            self._drop_free()

    def _drop_free(self) -> None:
        """Terminates the free connections: the server may be gone, and then a retry must not use one of them."""
        while self._free:
            self._free.pop().terminate()

    async def close(self) -> None:
        closing, self._free = self._free, []
        await asyncio.gather(
            *(connection.close(timeout=CLOSE_SECONDS) for connection in closing), return_exceptions=True
        )


class LimitedConnections:
    """Uses at most `limit` of the hot connections at a time."""

    def __init__(self, connections: HotConnections, limit: int) -> None:
        self._connections = connections
        self._slots = asyncio.Semaphore(limit)

    async def fetch(self, statement: str, arguments: Sequence[Any]) -> Sequence[asyncpg.Record]:
        async with self._slots:
            return await self._connections.fetch(statement, arguments)


async def connect(dsn: str, settings: dict[str, str]) -> asyncpg.Connection:
    try:
        connection = await asyncpg.connect(
            dsn, timeout=CONNECT_SECONDS, server_settings={"application_name": "tenure", "timezone": "UTC"}
        )
    except asyncpg.ClientConfigurationError as error:
        raise ConfigurationError(f"database: {error}") from error
    _detect_dead_peers(connection)
    wanted = dict(settings)
    if connection.get_server_version().major >= TRANSACTION_TIMEOUT_SINCE:
        wanted["transaction_timeout"] = TRANSACTION_TIMEOUT
    try:
        await connection.execute(";".join(f"SET {name} = '{value}'" for name, value in wanted.items()))
    except BaseException:
        connection.terminate()
        raise
    return connection


def set_timeouts(connection: Connection, seconds: int) -> None:
    """Replaces the timeouts of the connection for this transaction."""
    names = ["statement_timeout", "lock_timeout"]
    if connection.dialect.server_version_info >= (TRANSACTION_TIMEOUT_SINCE,):  # type: ignore[operator]
        names.append("transaction_timeout")
    # A transaction timeout that already runs keeps its value, unless it is switched off first.
    changes = [("transaction_timeout", "0")] if "transaction_timeout" in names else []
    changes += [(name, f"{seconds}s") for name in names]
    settings = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in changes)
    connection.execute(text(f"SELECT {settings}"))


def _detect_dead_peers(connection: asyncpg.Connection) -> None:
    """Sets TCP_USER_TIMEOUT. Without it, it takes minutes to detect that the server has disappeared."""
    transport_socket = connection._transport.get_extra_info("socket")  # noqa: SLF001 - asyncpg offers no other way
    if transport_socket is not None and transport_socket.family in (socket.AF_INET, socket.AF_INET6):
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            transport_socket.setsockopt(socket.IPPROTO_TCP, option, TCP_USER_TIMEOUT_MS)
