"""PostgreSQL, from version 14 on, through asyncpg.

Every write is one server-side function, called in one message: no pause of this process can leave a transaction open,
and what must be seen after a lock is read in a later statement of the function (READ COMMITTED takes a snapshot per
statement). The functions are in `migrations/postgres`, each with its version in its name, so that instances of two
versions can work side by side during an upgrade.

Hot calls use connections of their own: resetting a pooled asyncpg connection costs 20 to 45 % of a short read. All
connections together never exceed `pool_size`.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import URL, Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.clock import MICROSECOND
from tenure.deadlines import as_recorded, opened, span_of
from tenure.errors import ConfigurationError
from tenure.ids import id_text
from tenure.model import (
    CloseReason,
    Ended,
    Limits,
    Open,
    Opened,
    Outcome,
    Position,
    Session,
    SessionCounts,
    SessionFilter,
)
from tenure.store import migrate, sessions
from tenure.store.retries import Cause, Retries
from tenure.store.store import Lane

T = TypeVar("T")

OPENING_CONNECTIONS = 4
ENDING_CONNECTIONS = 2
CLOSE_SECONDS = 0.5
CONNECT_SECONDS = 1.0
TCP_USER_TIMEOUT_MS = 2000
MIGRATION_SECONDS = 600
LONG_READ_SECONDS = 30
MIGRATION_LOCK = 7305808868231127650

SETTINGS = {
    "statement_timeout": "1500ms",
    "lock_timeout": "1000ms",
    "idle_in_transaction_session_timeout": "1000ms",
    "tcp_user_timeout": f"{TCP_USER_TIMEOUT_MS}ms",
    "jit": "off",
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

_WISHES = (
    "$1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::smallint[], $5::text::uuid[], "
    "$6::text::bigint[], $7::text::bigint[], $8::text::bigint[], $9, $10, $11, $12"
)
OPEN = {
    Lane.CREATE: f"SELECT * FROM tenure_open_create_1({_WISHES})",  # noqa: S608 - no input in it
    Lane.REOPEN: f"SELECT * FROM tenure_open_reopen_1({_WISHES})",  # noqa: S608
}
# Column by column: for a composite, asyncpg asks every new connection a dozen questions about its type.
END = "SELECT e.recorded, (e.session).* FROM tenure_end_1($1, $2) AS e"


class PostgresStore:
    dialect_name = "postgresql"
    batches_in_flight = 2

    def __init__(self, url: URL, pool_size: int) -> None:
        self._dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        openings = min(OPENING_CONNECTIONS, pool_size // 2)
        endings = min(ENDING_CONNECTIONS, pool_size // 4)
        self._openings = HotConnections(self._connect_hot, openings)
        # Apart: those who wait for a row that somebody holds must leave the others a connection.
        self._endings = HotConnections(self._connect_hot, endings)
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            pool_size=pool_size - openings - endings,
            max_overflow=0,
            pool_timeout=CONNECT_SECONDS,
        )
        self._retries = Retries(cause_of)

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        lines = await self._call(
            self._openings,
            OPEN[lane],
            _array([wish.capacity_id for wish in wishes]),
            _array([wish.user_object_id for wish in wishes]),
            _array([wish.tenant_object_id for wish in wishes]),
            _array([str(wish.kind) for wish in wishes]),
            _array([wish.session_id for wish in wishes]),
            _numbers([wish.lease_microseconds for wish in wishes]),
            _numbers([wish.heartbeat_microseconds for wish in wishes]),
            _numbers([wish.idle_microseconds for wish in wishes]),
            limits.term // MICROSECOND,
            limits.lease_microseconds,
            limits.heartbeat_microseconds,
            limits.idle_microseconds,
        )
        return _answers(lines, wishes, limits)

    async def end_session(self, session_id: str, reason: CloseReason) -> Ended | None:
        lines = await self._call(self._endings, END, session_id, reason.value)
        return Ended(_session(lines[0]), lines[0]["recorded"]) if lines else None

    async def get_session(self, session_id: str) -> Session | None:
        return await self._read(lambda connection: sessions.get_session(connection, session_id))

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        return await self._read(lambda connection: sessions.list_sessions(connection, criteria, after, limit))

    async def count_sessions(self) -> SessionCounts:
        return await self._read_long(sessions.count_sessions)

    async def schema_revision(self) -> str | None:
        return await self._read(migrate.current_revision)

    async def migrate(self) -> Sequence[str]:
        def locked(connection: Connection) -> Sequence[str]:
            _allow(connection, MIGRATION_SECONDS)
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            return migrate.upgrade(connection)

        async def run() -> Sequence[str]:
            async with self._engine.begin() as connection:
                return await connection.run_sync(locked)

        return await self._retries.run(run, MIGRATION_SECONDS)

    async def close(self) -> None:
        """Says goodbye if the server listens, and goes anyway."""
        goodbyes = (self._openings.close(), self._endings.close(), self._engine.dispose())
        tasks = [asyncio.ensure_future(goodbye) for goodbye in goodbyes]
        await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()

    async def _call(self, connections: "HotConnections", statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        return await self._retries.run(lambda: connections.fetch(statement, arguments))

    async def _read(self, read: Callable[[Connection], T]) -> T:
        async def run() -> T:
            async with self._engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                return await connection.run_sync(read)

        return await self._retries.run(run)

    async def _read_long(self, read: Callable[[Connection], T]) -> T:
        """For reads that grow with the table. They hold no lock that a writer waits for."""

        def unhurried(connection: Connection) -> T:
            _allow(connection, LONG_READ_SECONDS)
            return read(connection)

        async def run() -> T:
            async with self._engine.begin() as connection:
                return await connection.run_sync(unhurried)

        return await self._retries.run(run, LONG_READ_SECONDS)

    async def _connect(self) -> asyncpg.Connection:
        return await connect(self._dsn, SETTINGS)

    async def _connect_hot(self) -> asyncpg.Connection:
        return await connect(self._dsn, SETTINGS | HOT_SETTINGS)


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
                # Whether it is broken, cancelled or in doubt: its transaction must not outlive it here.
                connection.terminate()
                if not isinstance(error, asyncpg.PostgresError):
                    self._drop_free()
                raise
            self._free.append(connection)
            return lines

    def _drop_free(self) -> None:
        """A server that went away took all connections with it: no try may be wasted on the others."""
        while self._free:
            self._free.pop().terminate()

    async def close(self) -> None:
        closing, self._free = self._free, []
        await asyncio.gather(
            *(connection.close(timeout=CLOSE_SECONDS) for connection in closing), return_exceptions=True
        )


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


def _allow(connection: Connection, seconds: int) -> None:
    """Gives this transaction more time than the settings of its connection do."""
    names = ["statement_timeout", "lock_timeout"]
    if connection.dialect.server_version_info >= (TRANSACTION_TIMEOUT_SINCE,):  # type: ignore[operator]
        names.append("transaction_timeout")
    for name in names:
        connection.execute(text(f"SET LOCAL {name} = '{seconds}s'"))


def _detect_dead_peers(connection: asyncpg.Connection) -> None:
    """Without this, a server that vanished without a goodbye is noticed after minutes only."""
    transport_socket = connection._transport.get_extra_info("socket")  # noqa: SLF001 - asyncpg offers no other way
    if transport_socket is not None and transport_socket.family in (socket.AF_INET, socket.AF_INET6):
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            transport_socket.setsockopt(socket.IPPROTO_TCP, option, TCP_USER_TIMEOUT_MS)


def _answers(lines: Sequence[asyncpg.Record], wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
    answers: list[Opened | None] = [None] * len(wishes)
    lapsed: dict[int, Session] = {}
    for line in lines:
        position, outcome = line[0], line[1]
        if position is None:
            if outcome == "created":
                return _created_or(answers, wishes, limits, line[5])
        elif outcome == "lapsed":
            session = _found(line, wishes[position - 1])
            lapsed[position] = as_recorded(session, session.deadline_at)
        else:
            answers[position - 1] = _answer(line, wishes[position - 1], limits, lapsed.get(position))
    return [answer or _AGAIN for answer in answers]


_AGAIN = Opened(Outcome.AGAIN)


def _created_or(
    answers: Sequence[Opened | None], wishes: Sequence[Open], limits: Limits, started_at: datetime
) -> Sequence[Opened]:
    span = span_of(limits, started_at)
    return [
        answer or Opened(Outcome.CREATED, opened(wish, limits, started_at, span))
        for answer, wish in zip(answers, wishes, strict=True)
    ]


def _array(values: Sequence[str]) -> str:
    """An array as text, for values that need no quotes. asyncpg's own encoding costs more than the rest of the call."""
    return f"{{{','.join(values)}}}"


def _numbers(values: Sequence[int | None]) -> str | None:
    """`unnest` fills up a missing array with NULLs, which is cheaper than sending them."""
    if not any(values):
        return None
    return _array(["NULL" if value is None else str(value) for value in values])


def _answer(line: asyncpg.Record, wish: Open, limits: Limits, lapsed: Session | None) -> Opened:
    outcome = Outcome(line[1])
    if outcome in (Outcome.AGAIN, Outcome.REOPEN, Outcome.TENANT_MISMATCH):
        return Opened(outcome)
    if line["kind"] is None:
        return Opened(outcome, opened(wish, limits, line["started_at"]))
    return Opened(outcome, _found(line, wish), lapsed)


def _found(line: asyncpg.Record, wish: Open) -> Session:
    previous = line[14]
    return Session(
        session_id=str(line[2]),
        tenant_object_id=str(line[16]),
        user_object_id=wish.user_object_id,
        capacity_id=wish.capacity_id,
        kind=line[3],
        state=line[4],
        started_at=line[5],
        term_ends_at=line[6],
        deadline_at=line[7],
        lapse_reason=line[8],
        lease_microseconds=line[9],
        idle_microseconds=line[10],
        heartbeat_microseconds=line[11],
        last_heartbeat_at=line[12],
        last_activity_at=line[13],
        previous_session_id=None if previous is None else str(previous),
        modified_at=line[15],
    )


def _session(record: asyncpg.Record) -> Session:
    return sessions.session_from_values(
        {
            name: id_text(value) if name.endswith("_id") and value is not None else value
            for name, value in record.items()
        }
    )


_CAUSES = {
    "23505": Cause.DUPLICATE,
    "40P01": Cause.DEADLOCK,
    "40001": Cause.DEADLOCK,
    "55P03": Cause.LOCK_TIMEOUT,
    "57014": Cause.TIMEOUT,
    "25P03": Cause.CONNECTION,
    "25P04": Cause.TIMEOUT,
    "53300": Cause.CONNECTION,
    "57P01": Cause.CONNECTION,
    "57P02": Cause.CONNECTION,
    "57P03": Cause.CONNECTION,
    "28000": Cause.CONNECTION,
    "28P01": Cause.CONNECTION,
    "3D000": Cause.CONNECTION,
    "42P01": Cause.SCHEMA,
    "42704": Cause.SCHEMA,
    "42883": Cause.SCHEMA,
}


_CONNECTION_ERRORS = (
    OSError,
    TimeoutError,
    PoolTimeout,
    asyncpg.InterfaceError,
    # A connection that lost count of its own state, after a pause for example.
    asyncpg.InternalClientError,
)


def cause_of(error: BaseException) -> Cause | None:
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return Cause.CONNECTION
    original = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(original, "sqlstate", None)
    if state is not None:
        return _CAUSES.get(state, Cause.CONNECTION if state.startswith("08") else None)
    # asyncpg's internal error is a connection that lost count of its own state, after a pause for example.
    if isinstance(
        original, OSError | TimeoutError | asyncpg.InterfaceError | asyncpg.InternalClientError | PoolTimeout
    ):
        return Cause.CONNECTION
    return None
