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
from msgspec.structs import astuple
from sqlalchemy import URL, Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.clock import MICROSECOND
from tenure.model.leases import (
    Acquired,
    BeginFound,
    Begun,
    Board,
    Fence,
    Job,
    JobCommand,
    JobRun,
    JobSettings,
    Lease,
    Pruned,
    RunOutcome,
)
from tenure.model.sessions import (
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
from tenure.store import capacities, leases, migrate, sessions
from tenure.store.engines.postgres import rows, statements
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
from tenure.store.store import JOB_RUNS_KEPT, LEASE_HISTORY_KEPT, Lane

T = TypeVar("T")

MIGRATION_SECONDS = 600
LONG_READ_SECONDS = 30
CHANNEL = "tenure"
MIGRATION_LOCK = 7305808868231127650


class PostgresStore:
    dialect_name = "postgresql"
    batches_in_flight = 2

    def __init__(self, url: URL, pool_size: int) -> None:
        self._dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        shares = share_out(pool_size)
        self._hot = HotConnections(self._connect_hot, shares.hot)
        self._openings = SomeOf(self._hot, shares.openings)
        self._keepings = SomeOf(self._hot, shares.keepings)
        self._watching = HotConnections(self._connect_listening, 1)
        self._renewals = HotConnections(self._connect_hot, shares.renewals) if shares.renewals else self._watching
        self._wakes: list[Callable[[], None]] = []
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            pool_size=shares.reads,
            max_overflow=0,
            pool_timeout=CONNECT_SECONDS,
        )
        self._retries = Retries(cause_of)

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        lines = await self._call(
            self._openings,
            statements.OPEN[lane],
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
        return rows.kept(await self._keep(statements.HEARTBEAT, rows.array(session_ids), active), session_ids)

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        reasons = rows.array([end.reason for end in ends])
        return rows.ended(
            await self._keep(statements.END, rows.array([end.session_id for end in ends]), reasons), len(ends)
        )

    async def expire_sessions(self, fence: Fence, limit: int) -> Swept:
        *over, (_, _, _, looked_at) = await self._keep(statements.EXPIRE, *astuple(fence), limit)
        return Swept([Closing(str(session_id), reason, at) for session_id, reason, at, _ in over], looked_at)

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        lines = await self._keep(
            statements.ATTACH,
            rows.array([attach.session_id for attach in attaches]),
            rows.numbers([attach.lease_microseconds for attach in attaches]),
            rows.numbers([attach.heartbeat_microseconds for attach in attaches]),
            rows.numbers([attach.idle_microseconds for attach in attaches]),
        )
        return rows.attached(lines, len(attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        lines = await self._keep(
            statements.UPDATE_STREAMS,
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
        lines = await self._keep(
            statements.PUT_CAPACITY, capacity_id, seats.max_sessions, seats.when_full, seats.tenant_object_id
        )
        return await self._counted(lines[0])

    async def get_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._read_long(lambda connection: capacities.get_capacity(connection, capacity_id))

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        return await self._read_long(lambda connection: capacities.list_capacities(connection, tenant, after, limit))

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        lines = await self._keep(statements.DELETE_CAPACITY, capacity_id)
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

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> Acquired:
        (line,) = await self._watch(statements.ACQUIRE, name, holder, attempt, duration_microseconds)
        return Acquired(rows.lease(line), line["taken"], line["reclaimed"])

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        (line,) = await self._call(self._renewals, statements.RENEW, *astuple(fence), duration_microseconds)
        return rows.lease(line)

    async def release_lease(self, fence: Fence) -> Lease:
        (line,) = await self._call(self._renewals, statements.RELEASE, *astuple(fence))
        return rows.lease(line)

    async def resign_lease(self, name: str) -> Lease | None:
        await self._keep(statements.MARK_RESIGNED, name)
        lines = await self._keep(statements.RESIGN, name)
        return rows.lease(lines[0]) if lines else None

    async def list_leases(self, after: str | None, limit: int) -> Sequence[Lease]:
        return await self._read(lambda connection: leases.list_leases(connection, after, limit))

    async def read_board(self, names: Sequence[str]) -> Board:
        """Over the connection that listens, so that a dead one is noticed, and replaced, at the next look."""
        return leases.board_from_values(await self._watch(statements.BOARD, names))

    def listen(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    async def register_jobs(self, jobs: Sequence[JobSettings]) -> None:
        await self._watch(
            statements.REGISTER_JOBS,
            [job.name for job in jobs],
            [job.interval_microseconds for job in jobs],
            [job.lock_timeout_microseconds for job in jobs],
            [job.paused for job in jobs],
        )

    async def begin_run(self, job: str, holder: str, attempt: str) -> Begun:
        lines = await self._watch(statements.BEGIN_RUN, job, holder, attempt)
        return rows.begun(lines[0], job, holder) if lines else Begun(BeginFound.HELD)

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        await self._watch(statements.FINISH_RUN, *astuple(fence), outcome.value, error, retry_microseconds)

    async def command_job(self, job: str, command: JobCommand) -> Job | None:
        lines = await self._keep(statements.COMMAND_JOB, job, command.value)
        return leases.job_from_values(lines[0]) if lines else None

    async def list_jobs(self, after: str | None, limit: int) -> Sequence[Job]:
        return await self._read(lambda connection: leases.list_jobs(connection, after, limit))

    async def list_runs(self, job: str, before: int | None, limit: int) -> Sequence[JobRun] | None:
        return await self._read(lambda connection: leases.list_runs(connection, job, before, limit))

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        kept = (LEASE_HISTORY_KEPT // MICROSECOND, JOB_RUNS_KEPT // MICROSECOND)
        (line,) = await self._keep(statements.PRUNE, *astuple(fence), limit, *kept)
        return Pruned(*line)

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

    async def _connect_listening(self) -> asyncpg.Connection:
        connection = await self._connect_hot()
        await connection.add_listener(CHANNEL, self._heard)
        # The next look, which makes a new connection, is then at once.
        connection.add_termination_listener(self._heard)
        return connection

    def _heard(self, *_notification: object) -> None:
        for wake in self._wakes:
            wake()
