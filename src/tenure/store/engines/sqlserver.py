"""SQL Server 2019 and Azure SQL, through aioodbc and Microsoft's ODBC driver.

SQL Server ends no transaction whose client has gone quiet, so every write is one call of a stored procedure that begins
and commits by itself: no pause of this process can hold a lock. Because ODBC would wrap it into a second transaction
otherwise, all connections commit by themselves, also the one that migrates.

The procedures are in `migrations/sqlserver`, each with its version in its name. They take their locks in one order:

1. the cut lock, shared;
2. the live keys (capacity, user) in the order of their index, with `UPDLOCK, HOLDLOCK`. On a key that nobody holds
   this locks the gap it would go into: there is no race for a free key and nothing that must be looked at again;
3. the session rows in the order of their ids, with the same hints: then nobody else can be about to end a session that
   we call `existing`. The hints are needed although reads take locks of their own: those are not kept, and where row
   versions are read (READ_COMMITTED_SNAPSHOT, the default on Azure) there are none;
4. the clock; then the writes, which need no lock that is not held already.

So two batches wait for each other in one direction only, and one procedure serves both lanes. A closed key that is
inserted again reuses its index entry; should a server ask for the gap behind it too, which another batch may hold, one
of the two is told to go (error 1205) and goes again. Whatever ends sessions must keep to this order, key before row: an
UPDATE by id alone locks the row first and its index entry second.

ODBC calls cannot be called back. Whoever stops waiting leaves the statement to end by itself, at the latest by its
timeout, on a connection that nobody else gets until then; hence threads of our own, more than there are connections.
"""

import asyncio
import json
import platform
import re
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import URL, Connection, Integer, Row, String, bindparam, event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.types import Boolean

from tenure.clock import MICROSECOND
from tenure.deadlines import as_recorded, opened, own_limits, span_of
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
)
from tenure.store import migrate, sessions
from tenure.store.retries import PATIENCE_SECONDS, Cause, Retries
from tenure.store.store import Lane
from tenure.store.types import Id, Instant

try:
    import aioodbc  # noqa: F401 - SQLAlchemy imports it by name
    import pyodbc
except ImportError:  # the extra is not installed, or unixODBC is missing: told when a store is asked for
    pyodbc = None

T = TypeVar("T")

CONNECT_SECONDS = 1
STATEMENT_SECONDS = 2
"""ODBC counts in whole seconds. The bound of the retries is shorter: callers do not wait for this one."""
LOCK_MILLISECONDS = 1000
MIGRATION_SECONDS = 600
MIGRATION_LOCK_MILLISECONDS = 5000
"""Whatever waits to change a table holds up all who come after it, so it gives way and tries again."""
LONG_READ_SECONDS = 30
CLOSE_SECONDS = 3
SPARE_THREADS = 4
MESSAGES_MAX = 8

CONNECTION_KEYWORDS = {
    "APP": "tenure",
    # The driver would try to mend a broken connection by itself, ten seconds later.
    "ConnectRetryCount": "0",
    # A server that vanished without a goodbye is noticed while a statement waits for it.
    "KeepAlive": "2",
    "KeepAliveInterval": "1",
}

SET_UP = f"SET XACT_ABORT ON; SET LOCK_TIMEOUT {LOCK_MILLISECONDS};"
BEGIN_MIGRATION = text(f"""
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT {MIGRATION_LOCK_MILLISECONDS};
BEGIN TRANSACTION;
DECLARE @granted int;
EXEC @granted = sys.sp_getapplock
    @Resource = N'tenure.migration', @LockMode = 'Exclusive', @LockOwner = 'Transaction',
    @LockTimeout = {LOCK_MILLISECONDS};
IF @granted < 0
    THROW 51222, N'tenure: the migration lock was not granted in time', 1;
SELECT @granted AS granted;
""").execution_options(answers=True)
END_MIGRATION = f"COMMIT TRANSACTION; SET NOCOUNT OFF; {SET_UP}"

_IMPLIED = ("user_object_id", "capacity_id", "closed_at", "close_reason")
"""What a wish knows, and what a live session has not."""
_OLD = tuple(each for each in sessions.FACTS if each.name not in _IMPLIED)
OPEN = (
    text("EXEC dbo.tenure_open_1 @request = :request;")
    .bindparams(bindparam("request", type_=String()))
    .columns(position=Integer, outcome=String, opened_at=Instant, **{each.name: each.type for each in _OLD})
    .execution_options(answers=True)
)
END = (
    text("EXEC dbo.tenure_end_1 @session_id = :session_id, @reason = :reason;")
    .bindparams(bindparam("session_id", type_=Id()), bindparam("reason", type_=String(16)))
    .columns(recorded=Boolean, **{each.name: each.type for each in sessions.COLUMNS})
    .execution_options(answers=True)
)


class SqlServerStore:
    dialect_name = "mssql"
    batches_in_flight = 2

    def __init__(self, url: URL, pool_size: int) -> None:
        address = connection_url(url)
        self._threads = ThreadPoolExecutor(2 * pool_size + SPARE_THREADS, "tenure-sqlserver")
        self._engine = create_async_engine(
            address,
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=CONNECT_SECONDS,
            connect_args={"timeout": CONNECT_SECONDS, "executor": self._threads, "after_created": self._set_up},
        )
        event.listen(self._engine.sync_engine, "handle_error", _refuse_what_no_driver_takes)
        event.listen(self._engine.sync_engine, "handle_error", _drop_what_is_in_doubt)
        event.listen(self._engine.sync_engine, "before_cursor_execute", _with_exact_instants, retval=True)
        event.listen(self._engine.sync_engine, "after_cursor_execute", _wait_for_the_answer)
        self._retries = Retries(cause_of)
        self._under_way: set[asyncio.Task[Any]] = set()

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """Locks on free keys make lanes superfluous: whatever a wish asks for is done at once."""
        del lane
        request = {"request": _request(wishes, limits)}
        lines = await self._run(lambda connection: connection.execute(OPEN, request).all())
        return _answers(lines, wishes, limits)

    async def end_session(self, session_id: str, reason: CloseReason) -> Ended | None:
        request = {"session_id": session_id, "reason": reason.value}
        line = await self._run(lambda connection: connection.execute(END, request).one_or_none())
        return None if line is None else Ended(sessions.session_from_row(line), line.recorded)

    async def get_session(self, session_id: str) -> Session | None:
        return await self._run(lambda connection: sessions.get_session(connection, session_id))

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        return await self._run(lambda connection: sessions.list_sessions(connection, criteria, after, limit))

    async def count_sessions(self) -> SessionCounts:
        return await self._run(sessions.count_sessions, LONG_READ_SECONDS, LONG_READ_SECONDS)

    async def schema_revision(self) -> str | None:
        return await self._run(migrate.current_revision)

    async def migrate(self) -> Sequence[str]:
        return await self._retries.run(self._migrate_in_turn, MIGRATION_SECONDS)

    async def _migrate_in_turn(self) -> Sequence[str]:
        """Waits for others in short steps: a thread that waits can neither be stopped nor be left behind."""
        while True:
            try:
                return await self._finish(self._on_connection(_upgrade, MIGRATION_SECONDS))
            except DBAPIError as error:
                if cause_of(error) is not Cause.LOCK_TIMEOUT:
                    raise

    async def close(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_SECONDS)
        await self._engine.dispose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(
        self,
        work: Callable[[Connection], T],
        statement_seconds: int = STATEMENT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> T:
        return await self._retries.run(
            lambda: self._finish(self._on_connection(work, statement_seconds)), patience_seconds
        )

    async def _on_connection(self, work: Callable[[Connection], T], statement_seconds: int) -> T:
        async with self._engine.connect() as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            raw._conn.timeout = statement_seconds  # noqa: SLF001 - aioodbc shows it, but does not let it be set
            return await connection.run_sync(work)

    async def _finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Its outcome; a caller who stops waiting does not stop it."""
        task = asyncio.create_task(operation)
        self._under_way.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain when nobody waits for it any more

    async def _set_up(self, connection: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, connection.execute, SET_UP)


def connection_url(url: URL) -> URL:
    """The URL as SQLAlchemy wants it; what it says about the driver and the connection goes before our own."""
    if pyodbc is None:
        raise ConfigurationError(_MISSING)
    given = {name.lower() for name in url.query}
    if "odbc_connect" in given:
        return url.set(drivername="mssql+aioodbc")
    if "dsn" not in given and not (url.host and url.database):
        raise ConfigurationError("database: must name host and database, as mssql://user:password@host/tenure does")
    query = {"driver" if name.lower() == "driver" else name: value for name, value in url.query.items()}
    query |= {name: value for name, value in CONNECTION_KEYWORDS.items() if name.lower() not in given}
    if not given & {"dsn", "driver"}:
        query["driver"] = driver()
    return url.set(drivername="mssql+aioodbc", query=query)


_MISSING = "database: SQL Server needs the extra tenure[mssql] and unixODBC (package libodbc2 or unixODBC)"
_NO_DRIVER = "database: there is no ODBC driver for SQL Server; install mssql-python-odbc or name one by ?driver="


def driver() -> str:
    """The newest of Microsoft's drivers that the system knows by name, or the path of the one that pip installed."""
    known = [name for name in pyodbc.drivers() if re.fullmatch(r"ODBC Driver \d+ for SQL Server", name)]
    installed = sorted(known, key=lambda name: int(name.split()[2])) or _drivers_from_pip()
    if not installed:
        raise ConfigurationError(_NO_DRIVER)
    return installed[-1]


def _drivers_from_pip() -> list[str]:
    try:
        import mssql_python_odbc  # noqa: PLC0415 - optional: a system driver will do
    except ImportError:
        return []
    folder = (
        Path(mssql_python_odbc.get_libs_dir()) / "linux" / _linux() / platform.machine().replace("aarch64", "arm64")
    )
    return sorted(map(str, folder.glob("lib/libmsodbcsql*")))


def _linux() -> str:
    """What the package calls this Linux: its builds differ in the libraries they want."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "debian_ubuntu"
    names = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    return next((flavour for flavour, ids in _LINUXES.items() if names & ids), "debian_ubuntu")


_LINUXES = {"alpine": {"alpine"}, "rhel": {"rhel", "fedora", "centos"}, "suse": {"suse", "sles", "opensuse"}}


def _upgrade(connection: Connection) -> Sequence[str]:
    try:
        connection.execute(BEGIN_MIGRATION).one()
        applied = migrate.upgrade(connection)
        connection.exec_driver_sql(END_MIGRATION)
    except BaseException:
        # What it has begun ends with the connection, and so do its settings.
        connection.invalidate()
        raise
    return applied


def _request(wishes: Sequence[Open], limits: Limits) -> str:
    """One parameter for everything: pyodbc asks the server for the type of each that is None."""
    given = {
        "term": limits.term // MICROSECOND,
        "lease": limits.lease_microseconds,
        "heartbeat": limits.heartbeat_microseconds,
        "idle": limits.idle_microseconds,
        "wishes": [_wish(position, wish) for position, wish in enumerate(wishes)],
    }
    return json.dumps({name: value for name, value in given.items() if value is not None}, separators=(",", ":"))


def _wish(position: int, wish: Open) -> Sequence[str | int | None]:
    return (
        position,
        wish.capacity_id,
        wish.user_object_id,
        wish.tenant_object_id,
        wish.kind,
        wish.session_id,
        wish.lease_microseconds,
        wish.heartbeat_microseconds,
        wish.idle_microseconds,
    )


def _answers(lines: Sequence[Row[Any]], wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
    named = {line.position: line for line in lines}
    opened_at = named[None].opened_at
    span = span_of(limits, opened_at)
    return [
        _answer(named[position], wish, limits)
        if position in named
        else Opened(Outcome.CREATED, opened(wish, limits, opened_at, span))
        for position, wish in enumerate(wishes)
    ]


def _answer(line: Row[Any], wish: Open, limits: Limits) -> Opened:
    if line.outcome == "created":
        return Opened(Outcome.CREATED, opened(wish, limits, line.opened_at))
    if line.outcome == "tenant-mismatch":
        return Opened(Outcome.TENANT_MISMATCH)
    old = _old(line, wish)
    if line.outcome == "existing":
        return Opened(Outcome.EXISTING, old)
    if line.outcome == "lapsed":
        return Opened(Outcome.CREATED, opened(wish, limits, line.opened_at), as_recorded(old, line.opened_at))
    inherited = Limits(limits.term, old.lease_microseconds, old.idle_microseconds, old.heartbeat_microseconds)
    new = opened(wish, own_limits(wish, inherited), line.opened_at)
    return Opened(Outcome.UPGRADED, replace(new, previous_session_id=old.session_id))


def _old(line: Row[Any], wish: Open) -> Session:
    facts = {each.name: getattr(line, each.name) for each in _OLD}
    return Session(capacity_id=wish.capacity_id, user_object_id=wish.user_object_id, **facts)


_NUMBERS = {
    1205: Cause.DEADLOCK,
    2601: Cause.DUPLICATE,
    2627: Cause.DUPLICATE,
    1222: Cause.LOCK_TIMEOUT,
    51222: Cause.LOCK_TIMEOUT,
    # Waits for memory or for a worker.
    701: Cause.TIMEOUT,
    8645: Cause.TIMEOUT,
    8651: Cause.TIMEOUT,
    208: Cause.SCHEMA,
    2812: Cause.SCHEMA,
    4121: Cause.SCHEMA,
    # Refused, moved, restored, stopped, over its limits: all of these pass, or an operator is at it.
    **dict.fromkeys((596, 913, 921, 922, 924, 927, 942, 952, 976, 983, 3906, 4060, 6005), Cause.CONNECTION),
    **dict.fromkeys((10928, 10929, 17142, 17187, 18401, 18451, 18456), Cause.CONNECTION),
    **dict.fromkeys((40197, 40501, 40613, 49918, 49919, 49920), Cause.CONNECTION),
}
_STATES = {
    "HYT00": Cause.TIMEOUT,
    "HY008": Cause.TIMEOUT,
    **dict.fromkeys(("01000", "01002", "28000", "HY010", "HYT01"), Cause.CONNECTION),
}
_RECORD = re.compile(r"\((?P<number>-?\d+)\) \((?P<function>SQL\w+)\)")
"""How the first record of a diagnosis ends; those after it only say what became of the statement."""


def cause_of(error: BaseException) -> Cause | None:
    """By the server's own number first: some of what it says in the state of a timeout or a refusal is neither."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, OSError | TimeoutError | PoolTimeout):
        return Cause.CONNECTION
    match getattr(original, "args", ()):
        case (str(state), str(message), *_):
            return _cause_of_odbc(state, _RECORD.search(message))
    return None


def _cause_of_odbc(state: str, record: re.Match[str] | None) -> Cause | None:
    number, function = (int(record["number"]), record["function"]) if record else (0, "")
    if number in _NUMBERS:
        return _NUMBERS[number]
    if state.startswith("08") or (state == "HYT00" and function == "SQLDriverConnect"):
        return Cause.CONNECTION
    return _STATES.get(state)


def _with_exact_instants(
    _connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, executemany: bool
) -> tuple[str, Any]:
    """As text: as a datetime, pyodbc sends as many decimals as the driver admits to, which may be none."""
    if executemany:
        return statement, parameters
    return statement, tuple(
        value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value for value in parameters
    )


def _wait_for_the_answer(
    _connection: Connection, cursor: Any, _statement: str, _parameters: Any, context: Any, _executemany: bool
) -> None:
    """A message of the server counts as a result without rows, and hides the rows or the error that come after it."""
    for _ in range(MESSAGES_MAX):
        if cursor.description is not None or not context.execution_options.get("answers"):
            return
        cursor.nextset()


def _refuse_what_no_driver_takes(context: ExceptionContext) -> None:
    """A driver or data source that the driver manager does not know will not come by waiting for it."""
    state, message = (*map(str, context.original_exception.args[:2]), "", "")[:2]
    if state.startswith("IM") or "Can't open lib" in message:
        raise ConfigurationError(f"database: {message}")


def _drop_what_is_in_doubt(context: ExceptionContext) -> None:
    """After a deadlock or a lock timeout the server has rolled back. Any other error may have left a transaction and
    its locks behind, which end with the connection. Only a broken line says something about the other connections.
    """
    cause = cause_of(context.original_exception)
    context.is_disconnect = cause not in (Cause.DEADLOCK, Cause.LOCK_TIMEOUT)
    context.invalidate_pool_on_disconnect = cause is Cause.CONNECTION
