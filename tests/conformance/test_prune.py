"""Pruning deletes only rows past their retention time, on every engine."""

from datetime import datetime, timedelta

import pytest

from tenure.domain.jobs import Pruned
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, all_tables, hold_lease, insert_row, read_table
from tests.support.open_requests import NOON

pytestmark = pytest.mark.usefixtures("noon")

HISTORY_KEPT = timedelta(days=30)
RUNS_KEPT = timedelta(days=7)
LOCK = "job:prune"


async def put_history(database: Database, epoch: int, acquired_at: datetime, ended_at: datetime | None) -> None:
    how = None if ended_at is None else "released"
    await insert_row(
        database,
        "lease_history",
        name="leader",
        epoch=epoch,
        holder=f"holder {epoch}",
        acquired_at=acquired_at,
        ended_at=ended_at,
        how=how,
    )


async def put_run(database: Database, epoch: int, started_at: datetime) -> None:
    ended_at = started_at + timedelta(seconds=epoch)
    await insert_row(
        database,
        "job_runs",
        job="tidy",
        epoch=epoch,
        holder=f"holder {epoch}",
        started_at=started_at,
        ended_at=ended_at,
        outcome="succeeded",
    )


async def epochs(database: Database, name: str) -> list[int]:
    return [row["epoch"] for row in await read_table(database, name)]


async def test_prune__keeps_lease_history_for_thirty_days_after_end(database: Database) -> None:
    old = NOON - HISTORY_KEPT
    await put_history(database, 1, old - timedelta(days=9), old - MICROSECOND)
    await put_history(database, 2, old - timedelta(days=8), old)
    await put_history(database, 3, old - timedelta(days=7), old + MICROSECOND)
    assert await database.store.prune(await hold_lease(database.store, LOCK), 9) == Pruned(
        lease_history=1, job_runs=0, submissions=0
    )
    assert await epochs(database, "lease_history") == [2, 3]


async def test_prune__keeps_history_of_lease_that_has_not_ended(database: Database) -> None:
    await put_history(database, 1, NOON - timedelta(days=999), None)
    assert await database.store.prune(await hold_lease(database.store, LOCK), 9) == Pruned(0, 0, 0)
    assert await epochs(database, "lease_history") == [1]


async def test_prune__keeps_runs_for_seven_days_after_start(database: Database) -> None:
    old = NOON - RUNS_KEPT
    for epoch, started_at in enumerate((old - MICROSECOND, old, old + MICROSECOND), start=1):
        await put_run(database, epoch, started_at)
    assert await database.store.prune(await hold_lease(database.store, LOCK), 9) == Pruned(
        lease_history=0, job_runs=1, submissions=0
    )
    assert await epochs(database, "job_runs") == [2, 3]


async def test_prune__deletes_at_most_limit_rows_per_table(database: Database) -> None:
    for epoch in range(1, 6):
        await put_run(database, epoch, NOON - timedelta(days=100 - epoch))
    for epoch in range(1, 4):
        await put_history(database, epoch, NOON - timedelta(days=99), NOON - timedelta(days=90 + epoch))
    fence = await hold_lease(database.store, LOCK)
    pruned = [await database.store.prune(fence, 2) for _ in range(4)]
    assert pruned == [Pruned(2, 2, 0), Pruned(1, 2, 0), Pruned(0, 1, 0), Pruned(0, 0, 0)]


async def test_prune__deletes_oldest_runs_first(database: Database) -> None:
    for epoch, days in enumerate((20, 40, 10, 30), start=1):
        await put_run(database, epoch, NOON - timedelta(days=days))
    await database.store.prune(await hold_lease(database.store, LOCK), 2)
    assert await epochs(database, "job_runs") == [1, 3]


async def test_prune__leaves_other_tables_unchanged(database: Database) -> None:
    """A lease that was resigned long ago keeps its row and its epoch."""
    await database.clock.set(NOON - timedelta(days=999))
    await hold_lease(database.store, "leader")
    await database.store.resign_lease("leader", ACTOR)
    await database.clock.set(NOON)
    fence = await hold_lease(database.store, LOCK)
    before = await all_tables(database)
    assert await database.store.prune(fence, 9) == Pruned(1, 0, 0, 1)
    assert await all_tables(database) == {**before, "lease_history": [], "audit_log": []}
