"""Connections, with limits on everything that could make others wait for this process."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import Connection, text

from tenure.errors import ConfigurationError
from tenure.store.engines.postgres.errors import LEASE_LOST

OPENINGS_MAX = 4
KEEPINGS_MAX = 3
READS = 2
ROOMY = 7
LARGE = 8
CLOSE_SECONDS = 0.5
CONNECT_SECONDS = 1.0
TCP_USER_TIMEOUT_MS = 2000

SETTINGS = {
    "statement_timeout": "1500ms",
    "lock_timeout": "1000ms",
    "idle_in_transaction_session_timeout": "1000ms",
    "tcp_user_timeout": f"{TCP_USER_TIMEOUT_MS}ms",
    "jit": "off",
    # Else a plan for windows of long ago, once it is taken for the general one, would be used for the newest, too.
    "plan_cache_mode": "force_custom_plan",
}
TRANSACTION_TIMEOUT = "2000ms"
"""Ends a transaction whose last message never arrives, which the other timeouts do not."""
TRANSACTION_TIMEOUT_SINCE = 17

HOT_SETTINGS = {
    # The generic plan of a hot statement is made once per connection, maybe while the table is still empty. It must be
    # the one for a million rows.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class Shares(NamedTuple):
    """How the connections of an instance are shared out; together they are never more than `pool_size`."""

    hot: int
    openings: int
    keepings: int
    """Of the hot ones, at most: each leaves one to the other."""
    renewals: int
    reads: int


def share_out(pool_size: int) -> Shares:
    """One is for the board. Renewals have one of their own, but in the smallest pools, where they share that one."""
    renewals = 1 if pool_size >= ROOMY else 0
    reads = READS if pool_size >= LARGE else 1
    hot = pool_size - 1 - renewals - reads
    return Shares(hot, min(OPENINGS_MAX, hot - 1), min(KEEPINGS_MAX, hot - 1), renewals, reads)


class HotConnections:
    """A few connections that go straight from one statement to the next. One that fails in any way is dropped."""

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]], limit: int) -> None:
        self._connect = connect
        self._room = asyncio.Semaphore(limit)
        self._free: list[asyncpg.Connection] = []

    async def fetch(self, statement: str, arguments: Sequence[Any]) -> Sequence[asyncpg.Record]:
        async with self._room:
            connection = self._free.pop() if self._free else await self._connect()
            try:
                lines: Sequence[asyncpg.Record] = await connection.fetch(statement, *arguments)
            except BaseException as error:
                self._part_with(connection, error)
                raise
            self._free.append(connection)
            return lines

    def _part_with(self, connection: asyncpg.Connection, error: BaseException) -> None:
        """Whether it is broken, cancelled or in doubt: its transaction must not outlive it here."""
        if getattr(error, "sqlstate", None) == LEASE_LOST:
            self._free.append(connection)
            return
        connection.terminate()
        if not isinstance(error, asyncpg.PostgresError):
            self._drop_free()

    def _drop_free(self) -> None:
        """A server that went away took all connections with it: no try may be wasted on the others."""
        while self._free:
            self._free.pop().terminate()

    async def close(self) -> None:
        closing, self._free = self._free, []
        await asyncio.gather(
            *(connection.close(timeout=CLOSE_SECONDS) for connection in closing), return_exceptions=True
        )


class SomeOf:
    """At most so many of the hot connections at a time."""

    def __init__(self, connections: HotConnections, limit: int) -> None:
        self._connections = connections
        self._room = asyncio.Semaphore(limit)

    async def fetch(self, statement: str, arguments: Sequence[Any]) -> Sequence[asyncpg.Record]:
        async with self._room:
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


def allow(connection: Connection, seconds: int) -> None:
    """Gives this transaction more time than the settings of its connection do."""
    names = ["statement_timeout", "lock_timeout"]
    if connection.dialect.server_version_info >= (TRANSACTION_TIMEOUT_SINCE,):  # type: ignore[operator]
        names.append("transaction_timeout")
    # A transaction timeout that is running goes on as it was set, unless it is stopped first.
    changes = [("transaction_timeout", "0")] if "transaction_timeout" in names else []
    changes += [(name, f"{seconds}s") for name in names]
    settings = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in changes)
    connection.execute(text(f"SELECT {settings}"))


def _detect_dead_peers(connection: asyncpg.Connection) -> None:
    """Without this, a server that vanished without a goodbye is noticed after minutes only."""
    transport_socket = connection._transport.get_extra_info("socket")  # noqa: SLF001 - asyncpg offers no other way
    if transport_socket is not None and transport_socket.family in (socket.AF_INET, socket.AF_INET6):
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            transport_socket.setsockopt(socket.IPPROTO_TCP, option, TCP_USER_TIMEOUT_MS)
