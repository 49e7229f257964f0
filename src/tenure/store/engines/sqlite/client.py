"""How an instance reaches its file: who waits for whom.

All writes of an instance go through one thread with one connection, a call a transaction. `BEGIN IMMEDIATE` takes the
file's only write lock before anything is looked at, so nothing that was read can change before the commit, and the
clock is read under that lock. Other instances on the same file wait their turn, for a bounded time.

Reads use connections of their own: in WAL mode they neither wait for the writer nor hold it up. Leases and jobs have a
thread and a connection of their own: a renewal waits for the file, but not behind everything else this instance writes.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.pool import QueuePool

from tenure.clock import wall_microseconds
from tenure.errors import ConfigurationError
from tenure.meter import usage_of
from tenure.store.engines.sqlite.files import POLL_SECONDS, cause_of, immediate, write_now
from tenure.store.engines.sqlite.leases import lease_now
from tenure.store.retries import Retries
from tenure.store.store import LONG_READ_SECONDS

T = TypeVar("T")

READERS_MAX = 4
CHECKPOINT_PAGES = 4000
CACHE_KIB = 16_000
SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter while another wants it. The writer comes back from SQLite seven times a
batch; with Python's five milliseconds it waits longer for its turn than for the disk."""


class SqliteClient:
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
        # One is left for short ones, where there are two.
        self._long_reads = asyncio.Semaphore(max(1, min(readers, READERS_MAX) - 1))
        self._retries = Retries(cause_of)

    async def close(self) -> None:
        for executor in (self._writer, self._lease_writer, self._readers):
            executor.shutdown(wait=True, cancel_futures=True)
        self._engine.dispose()

    async def _write(
        self, work: Callable[[Connection, datetime], T], clock: Callable[[Connection], datetime] = write_now
    ) -> T:
        def transaction(connection: Connection) -> T:
            return immediate(connection, lambda held: work(held, clock(held)))

        return await self._retries.run(lambda: self._on(self._writer, transaction))

    async def _write_lease(self, work: Callable[[Connection, datetime], T]) -> T:
        """By the clock as it is: a lease knows no cut."""

        def transaction(connection: Connection) -> T:
            return immediate(connection, lambda held: work(held, lease_now(held)))

        return await self._retries.run(lambda: self._on(self._lease_writer, transaction))

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._retries.run(lambda: self._on(self._readers, work))

    async def _read_long(self, work: Callable[[Connection], T], seconds: int = LONG_READ_SECONDS) -> T:
        async def run() -> T:
            async with self._long_reads:
                return await self._on(self._readers, work)

        return await self._retries.run(run, seconds)

    async def _on(self, executor: ThreadPoolExecutor, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._engine.connect() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(executor, run)

    def _set_up(self, connection: sqlite3.Connection, _record: Any) -> None:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                raise
            raise ConfigurationError(f"database: {self._engine.url.database} is no SQLite database") from error
        connection.execute("PRAGMA synchronous = FULL")
        # Fewer, larger checkpoints, and the busy pages in memory.
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.create_function("tenure_now", 0, self._clock)
        connection.create_function("tenure_usage_1", 2, usage_of, deterministic=True)
        # From here on we wait ourselves: see `files.py`.
        connection.execute("PRAGMA busy_timeout = 0")
