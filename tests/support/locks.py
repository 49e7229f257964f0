"""Holding what a store is about to need: a second connection with an open transaction, and a way to see who waits."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime

import asyncpg
from sqlalchemy import make_url

from tenure.model.sessions import Open
from tenure.store import Store
from tests.support.databases import Database

CUT_LOCK = 7305808868231127649
WAIT_SECONDS = 0.8
"""Shorter than the store's lock timeout: whatever waits must still be waiting."""


class Holder:
    """An open transaction on PostgreSQL. What it has locked stays locked until it commits or rolls back."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def lock_session(self, session_id: str) -> None:
        await self._connection.execute("SELECT FROM sessions WHERE session_id = $1 FOR UPDATE", session_id)

    async def end_session(self, session_id: str) -> datetime:
        """The end, which nobody else can see yet."""
        end: datetime = await self._connection.fetchval(
            "SELECT (e.session).closed_at FROM tenure_end_1($1, 'TERMINATED') AS e", session_id
        )
        return end

    async def insert(self, wish: Open) -> None:
        """A session of the wish's key, which nobody else can see yet but everybody has to wait for."""
        await self._connection.execute(
            """
            INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, kind, state, started_at,
                term_ends_at, deadline_at, last_heartbeat_at, last_activity_at, modified_at, lapse_reason)
            SELECT $1, $2, $3, $4, $5, 'created', now, now + interval '1 day', now + interval '1 day', now, now, now,
                   'EXPIRED'
              FROM clock_timestamp() AS now
            """,
            *(wish.session_id, wish.tenant_object_id, wish.user_object_id, wish.capacity_id, wish.kind),
        )

    async def hold_the_cut(self) -> None:
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
            while await self.now() <= instant:  # noqa: ASYNC110 - nobody can signal an instant of the database's clock
                await asyncio.sleep(0.01)

    async def somebody_waits(self, count: int = 1) -> None:
        """Returns once `count` others wait for a lock."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self._connection.fetchval(_WAITING) < count:  # noqa: ASYNC110 - the server does not signal it
                await asyncio.sleep(0.005)

    async def commit(self) -> None:
        await self._connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self._connection.execute("ROLLBACK")


# Not pg_stat_activity, which a transaction sees as it was when it first looked.
_WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"


@asynccontextmanager
async def holding(database: Database) -> AsyncIterator[Holder]:
    connection = await asyncpg.connect(database.url)
    await connection.execute("BEGIN")
    try:
        yield Holder(connection)
    finally:
        connection.terminate()


@asynccontextmanager
async def elsewhere(database: Database) -> AsyncIterator[Store]:
    """The store of another instance."""
    store = database.another_store()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def holding_the_file(database: Database) -> Iterator[Callable[[], object]]:
    """The write lock of an SQLite file, until what is yielded is called."""
    connection = sqlite3.connect(str(make_url(database.url).database), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection.rollback
    finally:
        connection.close()
