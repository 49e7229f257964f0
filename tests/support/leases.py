"""Leases and jobs for tests: fences that hold, jobs that are due, and whole tables to compare."""

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
AGES = 100 * 365 * 86_400 * SECOND
"""Longer than any test moves its clock."""
TIMEOUT = 120 * SECOND


async def held(store: Store, name: str = SWEEP_LOCK, holder: str = "test") -> Fence:
    """A fence that holds, wherever the clock is moved: taken now, or whoever has it already."""
    return (await acquire(store, name, holder, AGES)).lease.fence


async def acquire(store: Store, name: str, holder: str, duration: int = 60 * SECOND) -> AcquireResult:
    return await store.acquire_lease(name, holder, new_id(), duration)


async def taken(store: Store, name: str, holder: str, duration: int = 60 * SECOND) -> Fence:
    """The fence of a lease that was free."""
    acquired = await acquire(store, name, holder, duration)
    assert acquired.taken, acquired
    return acquired.lease.fence


async def sweep_some(store: Store, limit: int) -> SweepResult:
    return await store.expire_sessions(await held(store), limit)


async def begin(store: Store, job: str, holder: str = "test") -> BeginRunResult:
    return await store.begin_run(job, holder, new_id())


async def begun(store: Store, job: str, holder: str = "test") -> Fence:
    """The fence of a run that could begin."""
    found = await begin(store, job, holder)
    assert found.fence is not None, found
    return found.fence


def every(interval: int, name: str = "tidy", *, timeout: int = TIMEOUT, paused: bool = False) -> JobSettings:
    return JobSettings(name, interval, timeout, paused)


def sibling(database: Database) -> Store:
    """Another instance's store that goes by the same moved clock, on SQLite too."""
    if isinstance(database.clock, SqliteClock):
        return SqliteStore(make_url(database.url), readers=1, clock=database.clock.microseconds)
    return database.another_store()


Tables = Mapping[str, Sequence[Mapping[str, Any]]]


async def all_tables(database: Database) -> Tables:
    """Every row of every table, in the order of their keys."""
    return await database.run_sync(_all_tables)


def _all_tables(connection: Connection) -> Tables:
    return {
        table.name: [
            dict(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
        ]
        for table in metadata.sorted_tables
    }


async def table(database: Database, name: str) -> Sequence[Mapping[str, Any]]:
    return (await all_tables(database))[name]


async def put_row(database: Database, table_name: str, **values: Any) -> None:
    """Behind the store's back."""

    def put(connection: Connection) -> None:
        connection.execute(insert(metadata.tables[table_name]).values(**values))
        connection.commit()

    await database.run_sync(put)
