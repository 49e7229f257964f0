"""Connections to PostgreSQL: how they are set up, and how hot calls (writes and the most frequent reads) share a few of
them.

Guarantees:

- A connection of this process blocks other transactions for a limited time only: see SETTINGS.
- The server has at most `pool_size` backends for this instance, apart from two that detect a pooler. Closing a socket
  does not always end the backend: a backend that waits for a synchronous standby does not notice. So a call whose
  caller has given up keeps its place (`_Call`) until the server has answered it or has closed the connection. While
  such calls occupy all places, further calls fail at once. The statement of such a call is not cancelled: cancelling a
  commit that waits for a standby would make its rows visible, and the next caller could get a session that a fail-over
  loses.
- A call whose answer never arrives, for example because a proxy lost it, does not occupy a place indefinitely:
  `PostgresClient` asks the server which backends of the `unanswered` connections are still working, and closes the
  connections of the others.

A caller may give up while its call waits for a place (nothing was sent), while the call connects (the call finishes
connecting, and sends nothing), or while the server works (the call waits for the answer, and drops the answer).
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import Connection, text

from tenure.clock import monotonic
from tenure.errors import ConfigurationError
from tenure.store.engines.postgres.errors import USABLE_AFTER, Unanswered, cause_of
from tenure.store.retries import Cause

OPENINGS_MAX = 4
ORDINARY_MAX = 3
READS = 2
RENEWALS_POOL_MIN = 7
"""From this pool size on, renewals of leases have their own connection."""
READS_POOL_MIN = 8
"""From this pool size on, reads have two connections."""
CLOSE_SECONDS = 0.5
REPLACE_SECONDS = 1.0
"""A connection to a read-only server is replaced if it is at least this old, because after a fail-over the server's
name may lead to another server. Without this limit, every write would open a new connection while the name still leads
to the same server."""
CONNECT_SECONDS = 1.0
TCP_USER_TIMEOUT_MS = 2000
KEEPALIVE_IDLE_SECONDS = 2
KEEPALIVE_INTERVAL_SECONDS = 1
KEEPALIVE_PROBES = 3

SETTINGS = {
    "statement_timeout": "1500ms",
    "lock_timeout": "1000ms",
    "idle_in_transaction_session_timeout": "1000ms",
    "tcp_user_timeout": f"{TCP_USER_TIMEOUT_MS}ms",
    # Ends an idle backend whose client has disappeared. The default of most systems is two hours.
    "tcp_keepalives_idle": f"{KEEPALIVE_IDLE_SECONDS}s",
    "tcp_keepalives_interval": f"{KEEPALIVE_INTERVAL_SECONDS}s",
    "tcp_keepalives_count": f"{KEEPALIVE_PROBES}",
    "jit": "off",
    # Otherwise a generic plan that was made for old usage windows would also be used for the newest ones.
    "plan_cache_mode": "force_custom_plan",
}
READ_ONLY = {"default_transaction_read_only": "on"}
TRANSACTION_TIMEOUT = "2000ms"
"""The limit for a whole transaction. It ends a transaction if the client's last message never arrives, which the other
timeouts do not cover."""
TRANSACTION_TIMEOUT_SINCE = 17

HOT_SETTINGS = {
    # PostgreSQL makes the generic plan of a hot statement once per connection, maybe while the table is still empty.
    # These settings force a plan that suits a million rows.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class PoolShares(NamedTuple):
    """How an instance divides its connections: `hot` + `renewals` + `reads` + one for the board = `pool_size`."""

    hot: int
    openings: int
    """How many hot connections may be used at a time by calls that open sessions or accept submissions. At least one is
    left for all other calls."""
    ordinary: int
    """How many hot connections all other hot calls may use at a time. At least one is left for the calls that
    `openings` limits."""
    renewals: int
    reads: int


def divide_pool(pool_size: int) -> PoolShares:
    """Reserves one connection for the board. In a pool smaller than RENEWALS_POOL_MIN, renewals of leases use the
    connection for the board; in other pools, they have their own connection.
    """
    renewals = 1 if pool_size >= RENEWALS_POOL_MIN else 0
    reads = READS if pool_size >= READS_POOL_MIN else 1
    hot = pool_size - 1 - renewals - reads
    return PoolShares(hot, min(OPENINGS_MAX, hot - 1), min(ORDINARY_MAX, hot - 1), renewals, reads)


class _Call:
    """A call that occupies one of the places of `HotConnections`. `given_up` is set when the caller has stopped waiting
    for the answer.
    """

    __slots__ = ("answer", "connection", "given_up", "running")

    def __init__(self, answer: asyncio.Future[Sequence[asyncpg.Record]]) -> None:
        self.answer = answer
        self.connection: asyncpg.Connection | None = None
        self.given_up = False
        self.running: asyncio.Task[None] | None = None
        """Set when the call is given up, because asyncio itself keeps only a weak reference to a task."""


class HotConnections:
    """A few connections that are reused without a reset."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        limit: int,
        on_given_up: Callable[[], None],
        *,
        must_write: bool = False,
    ) -> None:
        """With `must_write`, every call fails while the server is read only, even if its statement only reads. The
        argument `only_reads` of `fetch` exempts a call.
        """
        self._connect = connect
        self._limit = limit
        self._on_given_up = on_given_up
        self._must_write = must_write
        self._places = asyncio.Semaphore(limit)
        self._free: list[asyncpg.Connection] = []
        self._given_up: set[_Call] = set()
        self._closing = False

    @property
    def unanswered(self) -> Sequence[asyncpg.Connection]:
        """The connections on which a given-up call waits for the answer of the server."""
        connections = [call.connection for call in self._given_up if call.connection is not None]
        return [connection for connection in connections if not connection.is_closed()]

    async def fetch(
        self, statement: str, arguments: Sequence[Any], *, only_reads: bool = False
    ) -> Sequence[asyncpg.Record]:
        """With `only_reads`, the call succeeds while the server is read only, even if `must_write` was given."""
        if len(self._given_up) >= self._limit:
            raise Unanswered(f"the server has not answered {self._limit} earlier statements yet")
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        call = _Call(loop.create_future())
        running = loop.create_task(self._run(call, statement, arguments, only_reads=only_reads))
        try:
            # `shield(running)` would take one more iteration of the event loop.
            return await call.answer
        except asyncio.CancelledError:
            if not running.done():
                call.given_up = True
                call.running = running
                self._given_up.add(call)
                self._on_given_up()
            raise

    async def close(self) -> None:
        self._closing = True
        for connection in self.unanswered:
            connection.terminate()
        closing, self._free = self._free, []
        await asyncio.gather(
            *(connection.close(timeout=CLOSE_SECONDS) for connection in closing), return_exceptions=True
        )

    async def _run(self, call: _Call, statement: str, arguments: Sequence[Any], *, only_reads: bool) -> None:
        try:
            records = await self._fetch(call, statement, arguments, only_reads=only_reads)
        except asyncio.CancelledError:
            call.answer.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            if not call.answer.done():
                call.answer.set_exception(error)
        else:
            if not call.answer.done():
                call.answer.set_result(records)

    async def _fetch(
        self, call: _Call, statement: str, arguments: Sequence[Any], *, only_reads: bool
    ) -> Sequence[asyncpg.Record]:
        records: Sequence[asyncpg.Record] = ()
        try:
            connection = call.connection = self._free.pop() if self._free else await self._connect()
            try:
                if not call.given_up:
                    records = await connection.fetch(statement, *arguments)
                    if not only_reads:
                        self._check_writable(connection)
            except BaseException as error:
                self._release_failed(connection, error)
                raise
            if self._closing:
                connection.terminate()
            else:
                self._free.append(connection)
            return records
        finally:
            self._given_up.discard(call)
            self._places.release()

    def _check_writable(self, connection: asyncpg.Connection) -> None:
        if self._must_write and is_read_only(connection):
            raise asyncpg.ReadOnlySQLTransactionError("the server is read only")

    def _release_failed(self, connection: asyncpg.Connection, error: BaseException) -> None:
        """Reuses the connection if it is certainly idle. Otherwise terminates it, so that no transaction stays open. If
        the server is read only or may be gone, also terminates free connections (`_drop_free`).
        """
        cause = cause_of(error)
        if cause in USABLE_AFTER and not connection.is_closed():
            self._free.append(connection)
        else:
            connection.terminate()
        if cause is Cause.READ_ONLY:
            self._drop_free(REPLACE_SECONDS)
        elif not isinstance(error, asyncpg.PostgresError):
            self._drop_free()

    def _drop_free(self, seconds: float = 0.0) -> None:
        """Terminates the free connections that are at least `seconds` old. Their server may be gone, so a retry must
        not use them.
        """
        connections, self._free = self._free, []
        for connection in connections:
            if monotonic() - connection.connected_at < seconds:
                self._free.append(connection)
            else:
                connection.terminate()


class LimitedConnections:
    """Uses at most `limit` of the hot connections at a time."""

    def __init__(self, connections: HotConnections, limit: int) -> None:
        self._connections = connections
        self._slots = asyncio.Semaphore(limit)

    async def fetch(self, statement: str, arguments: Sequence[Any]) -> Sequence[asyncpg.Record]:
        async with self._slots:
            return await self._connections.fetch(statement, arguments)


async def connect(dsn: str, settings: dict[str, str], **target: Any) -> asyncpg.Connection:
    """Connects within CONNECT_SECONDS. `target` overrides the host, the port and the session attributes of the URL."""
    async with asyncio.timeout(CONNECT_SECONDS):
        try:
            connection = await asyncpg.connect(
                dsn, timeout=None, server_settings={"application_name": "tenure", "timezone": "UTC"}, **target
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
    """Sets the timeouts of statements, locks and the transaction for this transaction."""
    names = ["statement_timeout", "lock_timeout"]
    if connection.dialect.server_version_info >= (TRANSACTION_TIMEOUT_SINCE,):  # type: ignore[operator]
        names.append("transaction_timeout")
    # A transaction timeout that already runs keeps its value, unless it is switched off first.
    changes = [("transaction_timeout", "0")] if "transaction_timeout" in names else []
    changes += [(name, f"{seconds}s") for name in names]
    settings = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in changes)
    connection.execute(text(f"SELECT {settings}"))


def is_read_only(connection: asyncpg.Connection) -> bool:
    """Returns whether the server is read only, without a query: PostgreSQL reports every change of `in_hot_standby` and
    `default_transaction_read_only` together with its next answer.
    """
    settings = connection.get_settings()
    return "on" in (getattr(settings, "in_hot_standby", ""), getattr(settings, "default_transaction_read_only", ""))


def _detect_dead_peers(connection: asyncpg.Connection) -> None:
    """Sets the timeouts of TCP. Without them, it takes minutes or hours to detect that the server has disappeared."""
    transport_socket = connection._transport.get_extra_info("socket")  # noqa: SLF001 - asyncpg offers no other way
    if transport_socket is None or transport_socket.family not in (socket.AF_INET, socket.AF_INET6):
        return
    transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", TCP_USER_TIMEOUT_MS),
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            transport_socket.setsockopt(socket.IPPROTO_TCP, option, value)
