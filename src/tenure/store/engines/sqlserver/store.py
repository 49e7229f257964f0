"""SQL Server 2019 and Azure SQL, through aioodbc and Microsoft's ODBC driver.

SQL Server ends no transaction whose client has gone quiet, so every write is one call of a stored procedure that begins
and commits by itself: no pause of this process can hold a lock.

The procedures are in `migrations/sqlserver`, each with its version in its name. They take locks in one of two ways.

Those that open **wait**, with `UPDLOCK, HOLDLOCK`, in this order:

1. the cut lock, shared; lanes CREATE and REOPEN then read which capacities have rules, while they hold nothing else;
2. in lane LIMITED, the capacities by id: so their seats are given out by one batch at a time;
3. the live keys (capacity, user) in the order of their index. On a key that nobody holds this locks the gap it would go
   into: there is no race for a free key and nothing that must be looked at again;
4. the session rows in the order of their ids: then nobody else can be about to end a session that we call `existing`.
   The hints are needed although reads take locks of their own: those are not kept, and where row versions are read
   (READ_COMMITTED_SNAPSHOT, the default on Azure) there are none.

Those that are told session ids, and the sweep, take **what nobody holds**, with `READPAST` (which needs
`READCOMMITTEDLOCK` where row versions are read): first the rows, then, of those that are to end, the keys. An end takes
its row's entry out of the index of the live keys. Whoever waited for that entry while he holds the row would wait
against the order above: key before row. So he does not wait. What he did not get he answers by `held`, to be asked for
again, and the others of his batch go on. The keys are locked by `XLOCK`, since an update lock would let in a reader on
his way from the key to the row, for whom the write would then wait and he for it. To renew a session touches no index
and needs no key. The same is true of the seats that lane LIMITED takes from others: it passes over what is held.

Then comes the clock; then the writes, which need no lock on a key or a row that is not held already. They may find the
sweep on an entry of another index: it waits for nobody.

So those who wait do it in one direction only, and one procedure serves the lanes CREATE and REOPEN. A closed key that
is inserted again reuses its index entry; should a server ask for the gap behind it too, which another batch may hold,
one of the two is told to go (error 1205) and goes again.

ODBC calls cannot be called back. Whoever stops waiting leaves the statement to end by itself, at the latest by its
timeout, on a connection that nobody else gets until then; hence threads of our own, more than there are connections.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.selectable import TextualSelect

from tenure.model import (
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
from tenure.store.engines.sqlserver import calls, rows
from tenure.store.engines.sqlserver.connections import create_engine
from tenure.store.engines.sqlserver.errors import cause_of
from tenure.store.retries import PATIENCE_SECONDS, Cause, Retries
from tenure.store.store import Lane

T = TypeVar("T")

STATEMENT_SECONDS = 2
"""ODBC counts in whole seconds. The bound of the retries is shorter: callers do not wait for this one."""
MIGRATION_SECONDS = 600
LONG_READ_SECONDS = 30
CLOSE_SECONDS = 3
SPARE_THREADS = 4


class SqlServerStore:
    dialect_name = "mssql"
    batches_in_flight = 2

    def __init__(self, url: URL, pool_size: int) -> None:
        self._threads = ThreadPoolExecutor(2 * pool_size + SPARE_THREADS, "tenure-sqlserver")
        self._engine = create_engine(url, pool_size, self._threads)
        self._retries = Retries(cause_of)
        self._under_way: set[asyncio.Task[Any]] = set()

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """Locks on free keys make two lanes of three superfluous: CREATE does what REOPEN would."""
        call = calls.OPEN_LIMITED if lane is Lane.LIMITED else calls.OPEN
        return rows.openings(await self._call(call, request=rows.wishes_text(wishes, limits)), wishes, limits)

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        request = rows.numbered((heartbeat.session_id, int(heartbeat.active)) for heartbeat in heartbeats)
        lines = await self._call(calls.HEARTBEAT, request=request)
        return rows.kept(lines, [heartbeat.session_id for heartbeat in heartbeats])

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        request = rows.numbered((end.session_id, end.reason) for end in ends)
        return rows.ended(await self._call(calls.END, request=request), len(ends))

    async def expire_sessions(self, limit: int) -> Swept:
        return rows.swept(await self._call(calls.EXPIRE, limit=limit))

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        request = rows.numbered(map(rows.attach_values, attaches))
        return rows.attached(await self._call(calls.ATTACH, request=request), len(attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        request = rows.numbered(map(rows.update_values, updates))
        return rows.streams_updated(await self._call(calls.UPDATE_STREAMS, request=request), len(updates))

    async def put_capacity(self, capacity_id: str, seats: Seats) -> Capacity:
        (line,) = await self._call(calls.PUT_CAPACITY, request=rows.seats_text(capacity_id, seats))
        return await self._counted(line)

    async def get_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._read_long(lambda connection: capacities.get_capacity(connection, capacity_id))

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        return await self._read_long(lambda connection: capacities.list_capacities(connection, tenant, after, limit))

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        lines = await self._call(calls.DELETE_CAPACITY, capacity_id=capacity_id)
        return await self._counted(lines[0]) if lines else None

    async def _counted(self, line: Row[Any]) -> Capacity:
        live = await self._read_long(lambda connection: capacities.count_live(connection, line.capacity_id))
        return capacities.capacity_from_values(line._mapping, live)  # noqa: SLF001 - the public way to a row's names

    async def get_session(self, session_id: str) -> Session | None:
        return await self._run(lambda connection: sessions.get_session(connection, session_id))

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        return await self._run(lambda connection: sessions.list_sessions(connection, criteria, after, limit))

    async def count_sessions(self) -> SessionCounts:
        return await self._read_long(sessions.count_sessions)

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

    async def _call(self, call: TextualSelect, **parameters: str | int) -> Sequence[Row[Any]]:
        return await self._run(lambda connection: connection.execute(call, parameters).all())

    async def _read_long(self, read: Callable[[Connection], T]) -> T:
        """For reads that grow with the table. They hold no lock that a writer waits for."""
        return await self._run(read, LONG_READ_SECONDS, LONG_READ_SECONDS)

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


def _upgrade(connection: Connection) -> Sequence[str]:
    try:
        connection.execute(calls.BEGIN_MIGRATION).one()
        applied = migrate.upgrade(connection)
        connection.exec_driver_sql(calls.END_MIGRATION)
    except BaseException:
        # What it has begun ends with the connection, and so do its settings.
        connection.invalidate()
        raise
    return applied
