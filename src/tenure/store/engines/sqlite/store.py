"""SQLite: one file, one writer.

All writes of an instance go through one thread with one connection, a call a transaction. `BEGIN IMMEDIATE` takes the
file's only write lock before anything is looked at, so nothing that was read can change before the commit, and the
clock is read under that lock. Other instances on the same file wait their turn, for a bounded time.

Reads use connections of their own: in WAL mode they neither wait for the writer nor hold it up. Leases and jobs have a
thread and a connection of their own: a renewal waits for the file, but not behind everything else this instance writes.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.pool import QueuePool

from tenure.clock import wall_microseconds
from tenure.errors import ConfigurationError
from tenure.model.leases import (
    Acquired,
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
    StreamUpdate,
    StreamUpdated,
    Swept,
)
from tenure.store import capacities, migrate, sessions
from tenure.store import leases as reads
from tenure.store.engines.sqlite import jobs, keeping, leases, opening, seats, streams
from tenure.store.engines.sqlite.files import POLL_SECONDS, cause_of, immediate, write_now
from tenure.store.retries import Retries
from tenure.store.store import Lane

T = TypeVar("T")

MIGRATION_SECONDS = 60
READERS_MAX = 4
CHECKPOINT_PAGES = 4000
CACHE_KIB = 16_000
SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter while another wants it. The writer comes back from SQLite seven times a
batch; with Python's five milliseconds it waits longer for its turn than for the disk."""


class SqliteStore:
    dialect_name = "sqlite"
    batches_in_flight = 1

    def __init__(self, url: URL, readers: int, clock: Callable[[], int] = wall_microseconds) -> None:
        if not url.database or url.database == ":memory:":
            raise ConfigurationError("database: must name a file, as sqlite:///tenure.db does")
        self._clock = clock
        sys.setswitchinterval(SWITCH_SECONDS)
        self._engine = create_engine(
            URL.create("sqlite", database=url.database),
            poolclass=QueuePool,
            pool_size=min(readers, READERS_MAX) + 2,
            max_overflow=0,
            connect_args={"timeout": POLL_SECONDS, "check_same_thread": False, "isolation_level": None},
        )
        event.listen(self._engine, "connect", self._set_up)
        self._writer = ThreadPoolExecutor(1, "tenure-sqlite-writer")
        self._lease_writer = ThreadPoolExecutor(1, "tenure-sqlite-leases")
        self._readers = ThreadPoolExecutor(min(readers, READERS_MAX), "tenure-sqlite-reader")
        self._retries = Retries(cause_of)

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """One writer needs no lanes: whatever a wish asks for is done at once."""
        del lane
        return await self._write(lambda connection, now: opening.open_sessions(connection, now, wishes, limits))

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        return await self._write(lambda connection, now: keeping.heartbeat(connection, now, heartbeats))

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        return await self._write(lambda connection, now: keeping.end_sessions(connection, now, ends))

    async def expire_sessions(self, fence: Fence, limit: int) -> Swept:
        def expire(connection: Connection, now: datetime) -> Swept:
            leases.check_fence(connection, fence)
            return keeping.expire_sessions(connection, now, limit)

        return await self._write(expire)

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        return await self._write(lambda connection, now: streams.attach_streams(connection, now, attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        return await self._write(lambda connection, now: streams.update_streams(connection, now, updates))

    async def put_capacity(self, capacity_id: str, seats_set: Seats) -> Capacity:
        return await self._write(lambda connection, now: seats.put_capacity(connection, now, capacity_id, seats_set))

    async def get_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._read(lambda connection: capacities.get_capacity(connection, capacity_id))

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        return await self._read(lambda connection: capacities.list_capacities(connection, tenant, after, limit))

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._write(lambda connection, now: seats.delete_capacity(connection, now, capacity_id))

    async def get_session(self, session_id: str) -> Session | None:
        return await self._read(lambda connection: sessions.get_session(connection, session_id))

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        return await self._read(lambda connection: sessions.list_sessions(connection, criteria, after, limit))

    async def count_sessions(self) -> SessionCounts:
        return await self._read(sessions.count_sessions)

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> Acquired:
        return await self._write_lease(
            lambda connection, now: leases.acquire_lease(connection, now, name, holder, attempt, duration_microseconds)
        )

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        return await self._write_lease(
            lambda connection, now: leases.renew_lease(connection, now, fence, duration_microseconds)
        )

    async def release_lease(self, fence: Fence) -> Lease:
        return await self._write_lease(lambda connection, now: leases.release_lease(connection, now, fence))

    async def resign_lease(self, name: str) -> Lease | None:
        return await self._write_lease(lambda connection, now: leases.resign_lease(connection, now, name))

    async def list_leases(self, after: str | None, limit: int) -> Sequence[Lease]:
        return await self._read(lambda connection: reads.list_leases(connection, after, limit))

    async def read_board(self, names: Sequence[str]) -> Board:
        return await self._read(lambda connection: reads.read_board(connection, names))

    def listen(self, wake: Callable[[], None]) -> None:
        """SQLite tells nobody anything."""

    async def register_jobs(self, settings: Sequence[JobSettings]) -> None:
        await self._write_lease(lambda connection, now: jobs.register_jobs(connection, now, settings))

    async def begin_run(self, job: str, holder: str, attempt: str) -> Begun:
        return await self._write_lease(lambda connection, now: jobs.begin_run(connection, now, job, holder, attempt))

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        await self._write_lease(
            lambda connection, now: jobs.finish_run(connection, now, fence, outcome, error, retry_microseconds)
        )

    async def command_job(self, job: str, command: JobCommand) -> Job | None:
        return await self._write_lease(lambda connection, now: jobs.command_job(connection, now, job, command))

    async def list_jobs(self, after: str | None, limit: int) -> Sequence[Job]:
        return await self._read(lambda connection: reads.list_jobs(connection, after, limit))

    async def list_runs(self, job: str, before: int | None, limit: int) -> Sequence[JobRun] | None:
        return await self._read(lambda connection: reads.list_runs(connection, job, before, limit))

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        return await self._write_lease(lambda connection, _now: jobs.prune(connection, fence, limit))

    async def schema_revision(self) -> str | None:
        return await self._read(migrate.current_revision)

    async def migrate(self) -> Sequence[str]:
        return await self._retries.run(
            lambda: self._on(self._writer, lambda connection: immediate(connection, migrate.upgrade)),
            MIGRATION_SECONDS,
        )

    async def close(self) -> None:
        for executor in (self._writer, self._lease_writer, self._readers):
            executor.shutdown(wait=True, cancel_futures=True)
        self._engine.dispose()

    async def _write(self, work: Callable[[Connection, datetime], T]) -> T:
        def transaction(connection: Connection) -> T:
            return immediate(connection, lambda held: work(held, write_now(held)))

        return await self._retries.run(lambda: self._on(self._writer, transaction))

    async def _write_lease(self, work: Callable[[Connection, datetime], T]) -> T:
        """By the clock as it is: a lease knows no cut."""

        def transaction(connection: Connection) -> T:
            return immediate(connection, lambda held: work(held, leases.lease_now(held)))

        return await self._retries.run(lambda: self._on(self._lease_writer, transaction))

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._retries.run(lambda: self._on(self._readers, work))

    async def _on(self, executor: ThreadPoolExecutor, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._engine.connect() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(executor, run)

    def _set_up(self, connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Fewer, larger checkpoints, and the busy pages in memory.
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.create_function("tenure_now", 0, self._clock)
        # From here on we wait ourselves: see `files.py`.
        connection.execute("PRAGMA busy_timeout = 0")
