"""Leases and jobs for tests: fences that do not expire, due jobs, and whole tables to compare."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, insert, make_url, select

from tenure.domain.jobs import BeginRunResult, JobSettings
from tenure.domain.leases import JOB_LOCK, AcquireResult, Fence
from tenure.domain.sessions import SweepResult
from tenure.ids import new_id
from tenure.store.contract import Store
from tenure.store.engines.sqlite.store import SqliteStore
from tenure.store.tables import metadata
from tests.support.databases import Database, SqliteClock
from tests.support.open_requests import SECOND

MICROSECOND = timedelta(microseconds=1)
SWEEP_LOCK = JOB_LOCK + "expire-sessions"
CENTURY = 100 * 365 * 86_400 * SECOND
"""Longer than any test moves its clock."""
TIMEOUT = 120 * SECOND


async def hold_lease(store: Store, name: str = SWEEP_LOCK, holder: str = "test") -> Fence:
    """Acquires the lease for a century if it is free. Returns the fence of its holder."""
    return (await acquire(store, name, holder, CENTURY)).lease.fence


async def acquire(store: Store, name: str, holder: str, duration: int = 60 * SECOND) -> AcquireResult:
    return await store.acquire_lease(name, holder, new_id(), duration)


async def acquire_free_lease(store: Store, name: str, holder: str, duration: int = 60 * SECOND) -> Fence:
    """Acquires a lease that must be free, and returns its fence."""
    acquired = await acquire(store, name, holder, duration)
    assert acquired.taken, acquired
    return acquired.lease.fence


async def sweep_some(store: Store, limit: int) -> SweepResult:
    return await store.expire_sessions(await hold_lease(store), limit)


async def begin_run(store: Store, job: str, holder: str = "test") -> BeginRunResult:
    return await store.begin_run(job, holder, new_id())


async def begin_due_run(store: Store, job: str, holder: str = "test") -> Fence:
    """Begins a run that must be due, and returns its fence."""
    begun = await begin_run(store, job, holder)
    assert begun.fence is not None, begun
    return begun.fence


def job_every(interval: int, name: str = "tidy", *, timeout: int = TIMEOUT, paused: bool = False) -> JobSettings:
    return JobSettings(name, interval, timeout, paused)


def sibling_store(database: Database) -> Store:
    """Returns the store of another instance. It uses the clock of the test, even on SQLite."""
    if isinstance(database.clock, SqliteClock):
        return SqliteStore(make_url(database.url), readers=1, clock=database.clock.microseconds)
    return database.another_store()


Tables = Mapping[str, Sequence[Mapping[str, Any]]]


async def all_tables(database: Database) -> Tables:
    """Returns all rows of all tables, in key order."""
    return await database.run_sync(_all_tables)


def _all_tables(connection: Connection) -> Tables:
    return {
        table.name: [
            dict(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
        ]
        for table in metadata.sorted_tables
    }


async def read_table(database: Database, name: str) -> Sequence[Mapping[str, Any]]:
    return (await all_tables(database))[name]


async def insert_row(database: Database, table_name: str, **values: Any) -> None:
    """Inserts the row directly into the table, not through the store."""

    def put(connection: Connection) -> None:
        connection.execute(insert(metadata.tables[table_name]).values(**values))
        connection.commit()

    await database.run_sync(put)
