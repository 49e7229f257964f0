"""Connections to an SQLite file: how they are set up, the file's write lock, and whether the file is in its place.

An open file can lose its name: an operator deletes it, renames it, or puts a backup in its place. SQLite continues to
write to the open file. If that file was deleted or replaced, these writes are lost when the process ends. Guarantees:

- After each operation (for a write, after its COMMIT), the file that now has the name is compared with the file that
  was opened first (device and inode; about 2 µs). So a write is acknowledged only if its file was in its place after
  the commit, and a probe or the next read of the board detects the loss, by default within a second.
- Once the name leads to another file or to none, no operation succeeds until the first file is back or the process is
  restarted. A new file in the place of the first one is not opened: the WAL of the first file is still there, and
  SQLite would apply it to the new file. That WAL is not removed either: it may have the only copy of the last writes to
  the first file.
- SQLite's locks on the file belong to the process, and the system drops all of them when any descriptor of the file is
  closed. Other processes then treat the file as unused: the last of them to close it removes the WAL, and later writes
  of this process are lost. So the process closes the descriptor with which it created the file, and only then
  opens the first connection. Connections are opened one at a time, so no other thread has a connection yet.

A crash between COMMIT and the comparison has the same effect as any lost answer. If the file is moved away and back
between two comparisons, it is the same file, and nothing is lost.

**Memory**: each connection has a page cache. Its size depends on the purpose of the connection: the writer, the leases
or reads. All caches together have at most CACHES_KIB_MAX. `limit_arenas` keeps freed memory from staying with one
thread.
"""

import asyncio
import ctypes
import os
import secrets
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from tenure.clock import monotonic, pause
from tenure.domain.doctor import FileFacts
from tenure.domain.meter import usage_of
from tenure.domain.session_tokens import SECRET_BYTES
from tenure.errors import ConfigurationError
from tenure.store.engines.sqlite.errors import FileMoved, cause_of
from tenure.store.retries import Cause

T = TypeVar("T")

READERS_MAX = 4
CHECKPOINT_PAGES = 4000
WRITER_CACHE_KIB = 16_000
LEASES_CACHE_KIB = 1_000
READER_CACHE_KIB = 2_000
CACHES_KIB_MAX = WRITER_CACHE_KIB + LEASES_CACHE_KIB + READERS_MAX * READER_CACHE_KIB
WAL_ENDINGS = ("-wal", "-shm")
FILE_MODE = 0o600
"""The file contains personal data. SQLite gives the WAL and its index the mode of the file."""
BUSY_SECONDS = 1.2
"""How long a writer waits for the transaction of another writer. If another process is suspended in such a transaction,
it keeps the lock, and requests to this instance that write fail with 503."""
POLL_SECONDS = 0.0003
ARENAS_MAX = 2
_M_ARENA_MAX = -8
"""The number of the option M_ARENA_MAX in glibc's malloc.h."""
REOPENED_AFTER = frozenset({Cause.READ_ONLY, Cause.IO_ERROR})
"""Causes after which the connection is replaced. If SQLite has no permission to write a file, it opens the file
read-only. That connection does not notice when the file becomes writable."""


def limit_arenas() -> None:
    """Limits the arenas of malloc. glibc gives most threads an arena, and a thread cannot use the free memory of
    another thread's arena.

    Few threads use SQLite, and the interpreter lock lets one of them run Python code at a time, so they seldom wait for
    an arena.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, ARENAS_MAX)


class DatabaseFile:
    _opening = threading.Lock()
    """One lock for the whole process, because two stores of a process may open the same file."""

    def __init__(self, name: str, *, read_only: bool = False) -> None:
        self._path = str(Path(name).absolute())
        self._read_only = read_only
        self._opened: tuple[int, int] | None = None

    def open(self) -> sqlite3.Connection:
        with self._opening:
            return self._open()

    def describe(self) -> FileFacts:
        """Looks at the file and the disk without opening the file."""
        path = Path(self._path)
        disk = os.statvfs(path if path.exists() else _existing_folder(path))
        beside = [path, *(path.with_name(path.name + ending) for ending in WAL_ENDINGS)]
        return FileFacts(
            path=self._path,
            exists=path.is_file(),
            modes={str(each): stat.S_IMODE(each.stat().st_mode) for each in beside if each.is_file()},
            writable=os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK)),
            disk_read_only=bool(disk.f_flag & os.ST_RDONLY),
            free_bytes=disk.f_bavail * disk.f_frsize,
        )

    def check(self) -> None:
        """Raises `FileMoved` if the name leads to another file than the one that was opened first, or to none."""
        if self._opened is not None and self._identity() != self._opened:
            raise FileMoved(
                f"{self._path} was deleted, renamed or replaced; put the same file back, or restart the instance"
            )

    def _open(self) -> sqlite3.Connection:
        if self._opened is not None:
            self.check()
        elif not self._read_only:
            self._create()
        connection = sqlite3.connect(
            # SQLite must not create the file: other users could read the new file, or it would take the place of a file
            # that was moved away.
            f"{Path(self._path).as_uri()}?{self._access()}",
            uri=True,
            timeout=POLL_SECONDS,
            check_same_thread=False,
            isolation_level=None,
        )
        try:
            self._use(connection)
            self._opened = self._opened or self._identity()
            self.check()
        except BaseException:
            connection.close()
            raise
        return connection

    def _access(self) -> str:
        """Returns the parameters of the URI.

        A reader of a file without a WAL would create a WAL, and leave it there. But a file without a WAL is open in no
        other process, so SQLite can read it as `immutable`, without a WAL.
        """
        if not self._read_only:
            return "mode=rw"
        return "mode=ro" if Path(f"{self._path}-wal").exists() else "mode=ro&immutable=1"

    def _create(self) -> None:
        """Creates the file if there is none. An existing file is not opened: closing it would drop SQLite's locks."""
        with suppress(OSError):  # SQLite reports why it cannot open the file
            # The path may be a link to a file that does not exist yet.
            os.close(os.open(os.path.realpath(self._path), os.O_CREAT | os.O_EXCL | os.O_RDWR, FILE_MODE))

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)  # noqa: PTH116 - faster than Path.stat
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _use(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("PRAGMA schema_version" if self._read_only else "PRAGMA journal_mode = WAL")
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                raise
            raise ConfigurationError(f"database: {self._path} is not an SQLite database") from error


def _existing_folder(path: Path) -> Path:
    return next(folder for folder in path.parents if folder.exists())


class Connections:
    """Threads that run operations on the file, each with its own connection."""

    def __init__(self, file: DatabaseFile, clock: Callable[[], int], purpose: str, count: int, cache_kib: int) -> None:
        self._file = file
        self._clock = clock
        self._cache_kib = cache_kib
        self._threads = ThreadPoolExecutor(count, f"tenure-sqlite-{purpose}")
        self.engine = create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=count,
            max_overflow=0,
            hide_parameters=True,  # otherwise errors would show the secrets of signing keys
        )

    async def run(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.engine.dispose()

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self.engine.connect() as connection:
            try:
                return work(connection)
            except DBAPIError as error:
                if cause_of(error) in REOPENED_AFTER:
                    connection.invalidate(error)
                raise
            finally:
                self._file.check()

    def _connect(self) -> sqlite3.Connection:
        connection = self._file.open()
        connection.execute("PRAGMA synchronous = FULL")
        # Makes checkpoints fewer and larger, and keeps frequently used pages in memory.
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{self._cache_kib}")
        connection.create_function("tenure_now", 0, self._clock)
        connection.create_function("tenure_random_secret", 0, partial(secrets.token_bytes, SECRET_BYTES))
        connection.create_function("tenure_usage_1", 2, usage_of, deterministic=True)
        # From here on, SQLite does not wait for the lock; `_begin_immediate` does.
        connection.execute("PRAGMA busy_timeout = 0")
        return connection


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
    """Begins a transaction with the write lock. While another transaction holds the lock, retries every POLL_SECONDS,
    for at most BUSY_SECONDS. SQLite's own busy timeout sleeps longer after each try, up to a tenth of a second, so it
    misses the short time between two writes of a busy instance.
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
