"""SQLite: one file, one writer.

All writes of an instance go through one thread with one connection, a call a transaction. `BEGIN IMMEDIATE` takes the
file's only write lock before anything is looked at, so nothing that was read can change before the commit, and the
clock is read under that lock. Other instances on the same file wait their turn, for a bounded time.

Reads use connections of their own: in WAL mode they neither wait for the writer nor hold it up.
"""

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import URL, Connection, Select, create_engine, event, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from tenure.clock import MICROSECOND, from_microseconds, monotonic, pause, to_microseconds, wall_microseconds
from tenure.deadlines import opened, span_of
from tenure.errors import ConfigurationError
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
    State,
)
from tenure.store import migrate, sessions, tables
from tenure.store.retries import Cause, Retries
from tenure.store.store import Lane

T = TypeVar("T")

BUSY_SECONDS = 1.2
"""How long a writer waits for another instance's transaction. A stopped one keeps the file: then the answer is 503."""
POLL_SECONDS = 0.0003
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
            pool_size=min(readers, READERS_MAX) + 1,
            max_overflow=0,
            connect_args={"timeout": POLL_SECONDS, "check_same_thread": False, "isolation_level": None},
        )
        event.listen(self._engine, "connect", self._set_up)
        self._writer = ThreadPoolExecutor(1, "tenure-sqlite-writer")
        self._readers = ThreadPoolExecutor(min(readers, READERS_MAX), "tenure-sqlite-reader")
        self._retries = Retries(cause_of)

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """One writer needs no lanes: whatever a wish asks for is done at once."""
        del lane
        return await self._write(lambda connection, now: _open(connection, now, wishes, limits))

    async def end_session(self, session_id: str, reason: CloseReason) -> Ended | None:
        return await self._write(lambda connection, now: _end(connection, now, session_id, reason))

    async def get_session(self, session_id: str) -> Session | None:
        return await self._read(lambda connection: sessions.get_session(connection, session_id))

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        return await self._read(lambda connection: sessions.list_sessions(connection, criteria, after, limit))

    async def count_sessions(self) -> SessionCounts:
        return await self._read(sessions.count_sessions)

    async def schema_revision(self) -> str | None:
        return await self._read(migrate.current_revision)

    async def migrate(self) -> Sequence[str]:
        return await self._retries.run(
            lambda: self._on(self._writer, lambda connection: _immediate(connection, migrate.upgrade)),
            MIGRATION_SECONDS,
        )

    async def close(self) -> None:
        for executor in (self._writer, self._readers):
            executor.shutdown(wait=True, cancel_futures=True)
        self._engine.dispose()

    async def _write(self, work: Callable[[Connection, datetime], T]) -> T:
        def transaction(connection: Connection) -> T:
            return _immediate(connection, lambda held: work(held, _write_now(held)))

        return await self._retries.run(lambda: self._on(self._writer, transaction))

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
        # From here on we wait ourselves: see `_take_the_file`.
        connection.execute("PRAGMA busy_timeout = 0")


def _immediate(connection: Connection, work: Callable[[Connection], T]) -> T:
    """`work` under the file's write lock, committed, or rolled back as a whole."""
    _take_the_file(connection)
    try:
        result = work(connection)
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        # A full disk has ended the transaction already.
        if connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
            connection.exec_driver_sql("ROLLBACK")
        raise
    return result


def _take_the_file(connection: Connection) -> None:
    """Asks again every few milliseconds. SQLite's own patience sleeps longer and longer, up to a tenth of a second, and
    then never meets the moment between two writes of a busy neighbour.
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


def _write_now(connection: Connection) -> datetime:
    """The clock of a session write: never before the last cut, even if the host's clock was stepped back."""
    microseconds: int = connection.exec_driver_sql(_WRITE_NOW).scalar_one()
    return from_microseconds(microseconds)


_WRITE_NOW = "SELECT max(tenure_now(), last_cut_at) FROM installation"


def _open(connection: Connection, now: datetime, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
    live = _live_of(connection, wishes)
    last_ends = _ends_after(connection, now)
    span = span_of(limits, now)
    new: list[Session] = []
    answers: list[Opened] = []
    for wish in wishes:
        old = live.get(wish.key)
        if old is None and wish.key not in last_ends:
            answer = Opened(Outcome.CREATED, opened(wish, limits, now, span))
        else:
            answer = _decide(connection, max(now, last_ends.get(wish.key, now)), wish, old, limits)
        answers.append(answer)
        if answer.outcome in (Outcome.CREATED, Outcome.UPGRADED) and answer.session is not None:
            new.append(answer.session)
    if new:
        connection.exec_driver_sql(_INSERT, [_row(session) for session in new])
    return answers


def _decide(connection: Connection, now: datetime, wish: Open, old: Session | None, limits: Limits) -> Opened:
    if old is None:
        return Opened(Outcome.CREATED, opened(wish, limits, now))
    if old.deadline_at <= now:
        lapsed = _close(connection, old, old.deadline_at, old.lapse_reason)
        return Opened(Outcome.CREATED, opened(wish, limits, now), lapsed)
    if old.tenant_object_id != wish.tenant_object_id:
        return Opened(Outcome.TENANT_MISMATCH)
    if old.kind >= wish.kind:
        return Opened(Outcome.EXISTING, old)
    closed_at = max(now, old.started_at + MICROSECOND)
    _close(connection, old, closed_at, CloseReason.UPGRADED)
    inherited = Limits(limits.term, old.lease_microseconds, old.idle_microseconds, old.heartbeat_microseconds)
    session = opened(wish, inherited, closed_at)
    return Opened(Outcome.UPGRADED, replace(session, previous_session_id=old.session_id))


_LIVE_OF = text(
    # CROSS JOIN keeps the order: for each wish one search of the index, never a scan of the table.
    f"SELECT {', '.join(f's.{column.name}' for column in sessions.COLUMNS)} "  # noqa: S608 - no input in it
    "FROM json_each(:keys) AS wish CROSS JOIN sessions AS s "
    "WHERE s.capacity_id = json_extract(wish.value, '$[0]') AND s.user_object_id = json_extract(wish.value, '$[1]') "
    "AND s.closed_at IS NULL"
).columns(*sessions.COLUMNS)


def _live_of(connection: Connection, wishes: Sequence[Open]) -> dict[tuple[str, str], Session]:
    keys = json.dumps([wish.key for wish in wishes])
    found = map(sessions.session_from_row, connection.execute(_LIVE_OF, {"keys": keys}))
    return {(session.capacity_id, session.user_object_id): session for session in found}


def _ends_after(connection: Connection, now: datetime) -> dict[tuple[str, str], datetime]:
    """Ends that lie after the clock, because it was stepped back or a session had to last its one microsecond.
    A new session of the same key begins no earlier.
    """
    if connection.exec_driver_sql(_ANY_END_AFTER, (to_microseconds(now),)).first() is None:
        return {}
    rows = connection.execute(_ends_after_statement(now))
    return {(capacity_id, user_object_id): closed_at for capacity_id, user_object_id, closed_at in rows}


# Almost always there is none, and asking this way costs a third.
_ANY_END_AFTER = "SELECT 1 FROM sessions WHERE closed_at > ? LIMIT 1"


def _ends_after_statement(now: datetime) -> Select[Any]:
    ended = tables.sessions.c
    return (
        select(ended.capacity_id, ended.user_object_id, func.max(ended.closed_at))
        .where(ended.closed_at > now)
        .group_by(ended.capacity_id, ended.user_object_id)
    )


_INSERTED = (
    "session_id",
    "tenant_object_id",
    "user_object_id",
    "capacity_id",
    "previous_session_id",
    "kind",
    "state",
    "lapse_reason",
    "lease_microseconds",
    "idle_microseconds",
    "heartbeat_microseconds",
    "term_ends_at",
    "deadline_at",
    "check_at",
    "started_at",
    "last_heartbeat_at",
    "last_activity_at",
    "modified_at",
)
# Written out: through Core, a row costs three times as much as SQLite itself takes for it.
_INSERT = f"INSERT INTO sessions ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})"  # noqa: S608


def _row(session: Session) -> tuple[Any, ...]:
    """A session that has just begun, in the order of `_INSERTED`."""
    started_at = to_microseconds(session.started_at)
    deadline_at = to_microseconds(session.deadline_at)
    return (
        session.session_id,
        session.tenant_object_id,
        session.user_object_id,
        session.capacity_id,
        session.previous_session_id,
        session.kind,
        session.state,
        session.lapse_reason,
        session.lease_microseconds,
        session.idle_microseconds,
        session.heartbeat_microseconds,
        to_microseconds(session.term_ends_at),
        deadline_at,
        deadline_at,
        started_at,
        started_at,
        started_at,
        started_at,
    )


def _end(connection: Connection, now: datetime, session_id: str, reason: CloseReason) -> Ended | None:
    row = connection.execute(sessions.whole_statement(session_id)).one_or_none()
    if row is None:
        return None
    session = sessions.session_from_row(row)
    if session.closed_at is not None:
        return Ended(session, recorded=False)
    if session.deadline_at <= now:
        return Ended(_close(connection, session, session.deadline_at, session.lapse_reason), recorded=True)
    closed_at = min(session.deadline_at, max(now, session.started_at + MICROSECOND))
    return Ended(_close(connection, session, closed_at, reason), recorded=True)


def _close(connection: Connection, session: Session, closed_at: datetime, reason: str) -> Session:
    closed = replace(session, state=State.CLOSED, closed_at=closed_at, close_reason=str(reason), modified_at=closed_at)
    connection.execute(sessions.close_statement(closed))
    return closed


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
