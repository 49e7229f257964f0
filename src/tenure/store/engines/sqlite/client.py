"""The connections of an instance to its SQLite file, the threads that use them, and how calls are retried.

All writes of an instance run on one thread with one connection, one transaction per call. The exceptions are `prune`
and the methods that write leases and jobs. `BEGIN IMMEDIATE` takes the file's only write lock before the transaction
reads anything. So no row that the transaction has read can change before it commits, and the transaction reads the
clock under the lock. Other instances that use the same file wait for the lock for a bounded time.

Reads have their own connections: in WAL mode they neither wait for the writer nor delay it. `prune` and the methods
that write leases and jobs have their own thread and connection, so a renewal waits for the file's lock, but not for the
queued writes of its own instance.
"""

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from sqlalchemy import URL, Connection

from tenure.clock import from_microseconds, wall_microseconds
from tenure.errors import ConfigurationError
from tenure.store.engines.sqlite.connections import (
    LEASES_CACHE_KIB,
    READER_CACHE_KIB,
    READERS_MAX,
    WRITER_CACHE_KIB,
    Connections,
    DatabaseFile,
    immediate,
    limit_arenas,
)
from tenure.store.engines.sqlite.errors import cause_of
from tenure.store.engines.sqlite.leases import lease_now
from tenure.store.limits import LONG_READ_SECONDS
from tenure.store.retries import Retries
from tenure.telemetry.events import Telemetry

T = TypeVar("T")

SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter while another thread waits for it. The writer waits for the interpreter
whenever it returns from SQLite, seven times per batch. With Python's default of five milliseconds, the writer waits
longer for the interpreter than for the disk."""


_WRITE_NOW = "SELECT max(tenure_now(), last_cut_at, coalesce(stamped_after + 1, last_cut_at)) FROM installation"


def write_now(connection: Connection) -> datetime:
    """Returns the timestamp for a session write: the current time, but never before the last cut, and always after the
    horizon of events, even if the host's clock was stepped back.
    """
    microseconds: int = connection.exec_driver_sql(_WRITE_NOW).scalar_one()
    return from_microseconds(microseconds)


class SqliteClient:
    def __init__(
        self,
        url: URL,
        readers: int,
        clock: Callable[[], int] = wall_microseconds,
        telemetry: Telemetry | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """With `read_only`, SQLite refuses every write, and creates no file next to the database."""
        if not url.database or url.database == ":memory:":
            raise ConfigurationError("database: must name a file, as sqlite:///tenure.db does")
        sys.setswitchinterval(SWITCH_SECONDS)
        limit_arenas()
        file = self._file = DatabaseFile(url.database, read_only=read_only)
        readers = min(readers, READERS_MAX)
        self._writer = Connections(file, clock, "writer", 1, WRITER_CACHE_KIB)
        self._lease_writer = Connections(file, clock, "leases", 1, LEASES_CACHE_KIB)
        self._readers = Connections(file, clock, "reader", readers, READER_CACHE_KIB)
        # One reader is left for short reads, if there are at least two.
        self._long_reads = asyncio.Semaphore(max(1, readers - 1))
        self._retries = Retries(cause_of, telemetry or Telemetry())

    @property
    def refusing_writes(self) -> str | None:
        return self._retries.refusal

    async def close(self) -> None:
        for connections in (self._writer, self._lease_writer, self._readers):
            connections.close()

    async def _write(
        self, work: Callable[[Connection, datetime], T], clock: Callable[[Connection], datetime] = write_now
    ) -> T:
        def transaction(connection: Connection) -> T:
            return immediate(connection, lambda held: work(held, clock(held)))

        return await self._retries.run(lambda: self._writer.run(transaction))

    async def _write_lease(self, work: Callable[[Connection, datetime], T]) -> T:
        """Passes the time of the plain clock (`lease_now`) to `work`: a lease does not depend on cuts."""

        def transaction(connection: Connection) -> T:
            return immediate(connection, lambda held: work(held, lease_now(held)))

        return await self._retries.run(lambda: self._lease_writer.run(transaction))

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._retries.run(lambda: self._readers.run(work))

    async def _read_long(self, work: Callable[[Connection], T], seconds: int = LONG_READ_SECONDS) -> T:
        async def run() -> T:
            async with self._long_reads:
                return await self._readers.run(work)

        return await self._retries.run(run, seconds)
