"""The connections and threads of an instance to its SQLite file, and the file's write lock.

All writes of an instance run on one thread with one connection, one transaction per call. `BEGIN IMMEDIATE` takes the
file's only write lock before the transaction reads anything. So no row that the transaction has read can change before
it commits, and the transaction reads the clock under the lock. Other instances that use the same file wait for the lock
for a bounded time.

Reads have their own connections: in WAL mode they neither wait for the writer nor delay it. Leases and jobs have their
own thread and connection: a renewal waits for the file's lock, but not in the queue of its instance's other writes.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from tenure.clock import from_microseconds, monotonic, pause, wall_microseconds
from tenure.domain.meter import usage_of
from tenure.errors import ConfigurationError
from tenure.store.engines.sqlite.leases import lease_now
from tenure.store.limits import LONG_READ_SECONDS
from tenure.store.retries import Cause, Retries
from tenure.telemetry.events import Telemetry

T = TypeVar("T")

READERS_MAX = 4
CHECKPOINT_PAGES = 4000
CACHE_KIB = 16_000
SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter while another thread waits for it. The writer returns from SQLite seven
times per batch. With Python's default of five milliseconds, the writer waits longer for the interpreter than for the
disk."""
BUSY_SECONDS = 1.2
"""How long a writer waits for the transaction of another instance. If that process is suspended in a transaction, it
keeps the lock, and requests to this instance fail with 503."""
POLL_SECONDS = 0.0003


_WRITE_NOW = "SELECT max(tenure_now(), last_cut_at) FROM installation"


def write_now(connection: Connection) -> datetime:
    """The clock of a session write: never before the last cut, even if the host's clock was stepped back."""
    microseconds: int = connection.exec_driver_sql(_WRITE_NOW).scalar_one()
    return from_microseconds(microseconds)


class SqliteClient:
    def __init__(
        self,
        url: URL,
        readers: int,
        clock: Callable[[], int] = wall_microseconds,
        telemetry: Telemetry | None = None,
    ) -> None:
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
        # One reader is left for short reads, if there are at least two.
        self._long_reads = asyncio.Semaphore(max(1, min(readers, READERS_MAX) - 1))
        self._retries = Retries(cause_of, telemetry or Telemetry())

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
        """Uses the plain clock: a lease does not depend on cuts."""

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
            raise ConfigurationError(f"database: {self._engine.url.database} is not an SQLite database") from error
        connection.execute("PRAGMA synchronous = FULL")
        # Fewer and larger checkpoints, and frequently used pages in memory.
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.create_function("tenure_now", 0, self._clock)
        connection.create_function("tenure_usage_1", 2, usage_of, deterministic=True)
        # From here on, `_begin_immediate` waits for the lock instead of SQLite.
        connection.execute("PRAGMA busy_timeout = 0")


def immediate(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Runs `work` in a transaction that holds the file's write lock."""
    _begin_immediate(connection)
    try:
        result = work(connection)
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        # On some errors, such as a full disk, SQLite has already rolled back.
        if connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
            connection.exec_driver_sql("ROLLBACK")
        raise
    return result


def _begin_immediate(connection: Connection) -> None:
    """Retries every POLL_SECONDS. SQLite's own busy timeout sleeps longer after each try, up to a tenth of a second, so
    it misses the short time between two writes of a busy instance.
    """
    ends_at = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except DBAPIError as error:
            if cause_of(error) is not Cause.LOCK_TIMEOUT or monotonic() >= ends_at:
                raise
            pause(POLL_SECONDS)
        else:
            return


def cause_of(error: BaseException) -> Cause | None:
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.IntegrityError):
        unique = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
        return Cause.DUPLICATE if original.sqlite_errorcode in unique else None
    if not isinstance(original, sqlite3.OperationalError):
        return None
    if original.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Cause.LOCK_TIMEOUT
    if "no such table" in str(original):
        return Cause.SCHEMA
    return Cause.CONNECTION
