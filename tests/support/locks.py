"""Holds locks that a store needs, and waits until these locks block the calls of the store."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime

import asyncpg
from sqlalchemy import make_url

from tenure.domain.sessions import OpenRequest
from tenure.store.contract import Store
from tests.support.databases import Database

CUT_LOCK = 7305808868231127649
WAIT_SECONDS = 0.8
"""The longest wait of a `Holder`. It is shorter than the store's lock timeout, so a call of the store that the holder
blocks does not fail during this wait."""


class Holder:
    """An open transaction on PostgreSQL. It keeps its locks until it commits or rolls back."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def lock_session(self, session_id: str) -> None:
        await self._connection.execute("SELECT FROM sessions WHERE session_id = $1 FOR UPDATE", session_id)

    async def lock_capacity(self, capacity_id: str) -> None:
        await self._connection.execute("SELECT FROM capacities WHERE capacity_id = $1 FOR UPDATE", capacity_id)

    async def end_session(self, session_id: str) -> datetime:
        """Ends the session without a commit; returns its end."""
        end: datetime = await self._connection.fetchval(
            """
            SELECT (e.session).closed_at
              FROM tenure_end_1(ARRAY[$1::uuid], '{TERMINATED}', NULL, NULL,
                                jsonb_build_array(jsonb_build_object('entry', gen_random_uuid(), 'subject', 'holder',
                                                                     'name', 'holder'))) AS e
            """,
            session_id,
        )
        return end

    async def insert(self, request: OpenRequest) -> None:
        """Inserts a session of the request's key without a commit. Other transactions that insert a session of this key
        wait until this transaction ends.
        """
        await self._connection.execute(
            """
            INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, kind, state, started_at,
                term_ends_at, deadline_at, last_heartbeat_at, last_activity_at, modified_at, lapse_reason)
            SELECT $1, $2, $3, $4, $5, 'created', now, now + interval '1 day', now + interval '1 day', now, now, now,
                   'EXPIRED'
              FROM clock_timestamp() AS now
            """,
            *(request.session_id, request.tenant_object_id, request.user_object_id, request.capacity_id, request.kind),
        )

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement)

    async def lock_cut(self) -> None:
        await self._connection.execute("SELECT pg_advisory_xact_lock($1)", CUT_LOCK)

    async def cut(self) -> datetime:
        cut_at: datetime = await self._connection.fetchval(
            "UPDATE installation SET last_cut_at = clock_timestamp() RETURNING last_cut_at"
        )
        return cut_at

    async def now(self) -> datetime:
        now: datetime = await self._connection.fetchval("SELECT clock_timestamp()")
        return now

    async def wait_until(self, instant: datetime) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.now() <= instant:  # noqa: ASYNC110 - the database's clock does not signal
                await asyncio.sleep(0.01)

    async def wait_for_blocked(self, count: int = 1) -> None:
        """Returns once `count` connections wait for a lock."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self._connection.fetchval(_WAITING) < count:  # noqa: ASYNC110 - the server does not signal it
                await asyncio.sleep(0.005)

    async def commit(self) -> None:
        await self._connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self._connection.execute("ROLLBACK")


# pg_stat_activity cannot be used instead: within a transaction, its content does not change after the first read.
_WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"


@asynccontextmanager
async def holding(database: Database) -> AsyncIterator[Holder]:
    connection = await asyncpg.connect(database.url)
    await connection.execute("BEGIN")
    try:
        yield Holder(connection)
    finally:
        # `terminate` alone is not enough: the test would continue before PostgreSQL has released the locks.
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            await connection.execute("ROLLBACK", timeout=1)
        connection.terminate()


@asynccontextmanager
async def other_store(database: Database) -> AsyncIterator[Store]:
    """The store of another instance."""
    store = database.another_store()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def locked_file(database: Database) -> Iterator[Callable[[], object]]:
    """Holds the write lock of an SQLite file until the yielded function is called."""
    connection = sqlite3.connect(str(make_url(database.url).database), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection.rollback
    finally:
        connection.close()
