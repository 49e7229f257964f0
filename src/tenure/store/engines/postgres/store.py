"""PostgreSQL, from version 14 on, through asyncpg.

Every write is one server-side function, called in one message: no pause of this process can leave a transaction open,
and what must be seen after a lock is read in a later statement of the function (READ COMMITTED takes a snapshot per
statement). The functions are in `migrations/postgres`, each with its version in its name, so that instances of two
versions can work side by side during an upgrade.

Hot calls use connections of their own: resetting a pooled asyncpg connection costs 20 to 45 % of a short read. All
connections together never exceed `pool_size`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import URL, Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.clock import MICROSECOND
from tenure.model import (
    Attach,
    Attached,
    Capacity,
    Closing,
    End,
    Ended,
    Heartbeat,
    Kept,
    Limits,
    Open,
    Opened,
    Position,
    Seats,
    Session,
    SessionCounts,
    SessionFilter,
    StreamCounters,
    StreamUpdate,
    StreamUpdated,
    Swept,
)
from tenure.store import capacities, migrate, sessions
from tenure.store.engines.postgres import rows
from tenure.store.engines.postgres.connections import (
    CLOSE_SECONDS,
    CONNECT_SECONDS,
    HOT_SETTINGS,
    SETTINGS,
    HotConnections,
    allow,
    connect,
)
from tenure.store.engines.postgres.errors import cause_of
from tenure.store.retries import Retries
from tenure.store.store import Lane

T = TypeVar("T")

OPENING_CONNECTIONS = 4
KEEPING_CONNECTIONS = 3
MIGRATION_SECONDS = 600
LONG_READ_SECONDS = 30
MIGRATION_LOCK = 7305808868231127650

_WISHES = (
    "$1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::smallint[], $5::text::uuid[], "
    "$6::text::bigint[], $7::text::bigint[], $8::text::bigint[], $9, $10, $11, $12"
)
# No input in any of these: S608 is about the arguments, which are parameters.
OPEN = {
    Lane.CREATE: f"SELECT * FROM tenure_open_create_2({_WISHES})",  # noqa: S608
    Lane.REOPEN: f"SELECT * FROM tenure_open_reopen_2({_WISHES})",  # noqa: S608
    Lane.LIMITED: f"SELECT * FROM tenure_open_limited_1({_WISHES})",  # noqa: S608
}
HEARTBEAT = "SELECT * FROM tenure_heartbeat_1($1::text::uuid[], $2::text::boolean[])"
END = (
    f"SELECT e.position, e.recorded, {rows.SESSION_COLUMNS} FROM tenure_end_2($1::text::uuid[], $2::text::text[]) AS e"  # noqa: S608
)
EXPIRE = "SELECT * FROM tenure_expire_1($1)"
ATTACH = f"""
SELECT e.position, e.found, e.now, e.recorded, (e.session).attachment, {rows.SESSION_COLUMNS}
  FROM tenure_attach_1($1::text::uuid[], $2::text::bigint[], $3::text::bigint[], $4::text::bigint[]) AS e
"""  # noqa: S608
UPDATE_STREAMS = f"""
SELECT e.position, e.found, e.now, e.recorded, {rows.SESSION_COLUMNS}
  FROM tenure_update_streams_1(
       $1::text::uuid[], $2::text::int[], $3::text::int[], $4::text::boolean[], $5::text[], $6::text::boolean[],
       $7::text::bigint[], $8::text::bigint[], $9::text::bigint[], $10::text::bigint[], $11::text::bigint[],
       $12::text::bigint[], $13::text::bigint[]) AS e
"""  # noqa: S608
PUT_CAPACITY = "SELECT * FROM tenure_put_capacity_1($1, $2, $3, $4)"
DELETE_CAPACITY = "SELECT * FROM tenure_delete_capacity_1($1)"


class PostgresStore:
    dialect_name = "postgresql"
    batches_in_flight = 2

    def __init__(self, url: URL, pool_size: int) -> None:
        self._dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        openings = min(OPENING_CONNECTIONS, pool_size // 2)
        keepings = min(KEEPING_CONNECTIONS, pool_size // 3)
        self._openings = HotConnections(self._connect_hot, openings)
        self._keepings = HotConnections(self._connect_hot, keepings)
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            pool_size=pool_size - openings - keepings,
            max_overflow=0,
            pool_timeout=CONNECT_SECONDS,
        )
        self._retries = Retries(cause_of)

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        lines = await self._call(
            self._openings,
            OPEN[lane],
            rows.array([wish.capacity_id for wish in wishes]),
            rows.array([wish.user_object_id for wish in wishes]),
            rows.array([wish.tenant_object_id for wish in wishes]),
            rows.array([str(wish.kind) for wish in wishes]),
            rows.array([wish.session_id for wish in wishes]),
            rows.numbers([wish.lease_microseconds for wish in wishes]),
            rows.numbers([wish.heartbeat_microseconds for wish in wishes]),
            rows.numbers([wish.idle_microseconds for wish in wishes]),
            limits.term // MICROSECOND,
            limits.lease_microseconds,
            limits.heartbeat_microseconds,
            limits.idle_microseconds,
        )
        return rows.openings(lines, wishes, limits)

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        session_ids = [heartbeat.session_id for heartbeat in heartbeats]
        active = rows.flags([heartbeat.active for heartbeat in heartbeats])
        return rows.kept(await self._keep(HEARTBEAT, rows.array(session_ids), active), session_ids)

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        reasons = rows.array([end.reason for end in ends])
        return rows.ended(await self._keep(END, rows.array([end.session_id for end in ends]), reasons), len(ends))

    async def expire_sessions(self, limit: int) -> Swept:
        *over, (_, _, _, looked_at) = await self._keep(EXPIRE, limit)
        return Swept([Closing(str(session_id), reason, at) for session_id, reason, at, _ in over], looked_at)

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        lines = await self._keep(
            ATTACH,
            rows.array([attach.session_id for attach in attaches]),
            rows.numbers([attach.lease_microseconds for attach in attaches]),
            rows.numbers([attach.heartbeat_microseconds for attach in attaches]),
            rows.numbers([attach.idle_microseconds for attach in attaches]),
        )
        return rows.attached(lines, len(attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        lines = await self._keep(
            UPDATE_STREAMS,
            rows.array([update.session_id for update in updates]),
            rows.array([str(update.attachment) for update in updates]),
            rows.array([str(update.save) for update in updates]),
            rows.flags([update.active for update in updates]),
            [update.end for update in updates],
            rows.flags([update.finished for update in updates]),
            *(
                rows.array([str(getattr(update.counted, name)) for update in updates])
                for name in StreamCounters.__struct_fields__
            ),
        )
        return rows.streams_updated(lines, len(updates))

    async def put_capacity(self, capacity_id: str, seats: Seats) -> Capacity:
        lines = await self._keep(PUT_CAPACITY, capacity_id, seats.max_sessions, seats.when_full, seats.tenant_object_id)
        return await self._counted(lines[0])

    async def get_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._read_long(lambda connection: capacities.get_capacity(connection, capacity_id))

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        return await self._read_long(lambda connection: capacities.list_capacities(connection, tenant, after, limit))

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        lines = await self._keep(DELETE_CAPACITY, capacity_id)
        return await self._counted(lines[0]) if lines else None

    async def _counted(self, record: asyncpg.Record) -> Capacity:
        values = rows.plain(record)
        live = await self._read_long(lambda connection: capacities.count_live(connection, values["capacity_id"]))
        return capacities.capacity_from_values(values, live)

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
            allow(connection, MIGRATION_SECONDS)
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            return migrate.upgrade(connection)

        async def run() -> Sequence[str]:
            async with self._engine.begin() as connection:
                return await connection.run_sync(locked)

        return await self._retries.run(run, MIGRATION_SECONDS)

    async def close(self) -> None:
        """Says goodbye if the server listens, and goes anyway."""
        goodbyes = (self._openings.close(), self._keepings.close(), self._engine.dispose())
        tasks = [asyncio.ensure_future(goodbye) for goodbye in goodbyes]
        await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()

    async def _keep(self, statement: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        return await self._call(self._keepings, statement, *arguments)

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
            allow(connection, LONG_READ_SECONDS)
            return read(connection)

        async def run() -> T:
            async with self._engine.begin() as connection:
                return await connection.run_sync(unhurried)

        return await self._retries.run(run, LONG_READ_SECONDS)

    async def _connect(self) -> asyncpg.Connection:
        return await connect(self._dsn, SETTINGS)

    async def _connect_hot(self) -> asyncpg.Connection:
        return await connect(self._dsn, SETTINGS | HOT_SETTINGS)
