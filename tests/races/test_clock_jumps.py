"""The database's clock jumps by minutes, forward and back, while leases are held and jobs run.

After a new epoch of a lease has begun, no write with the fence of an earlier epoch succeeds. No tick is lost. No tick
has two successful runs, except after the clock was stepped back by more than an interval of the job: then the ticks
that the clock passes again also run again.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tenure.domain.job_grid import grid_after
from tenure.domain.jobs import BeginRunOutcome, RunOutcome
from tenure.domain.leases import Fence
from tenure.errors import LeaseLost
from tenure.store.contract import Store
from tests.support.databases import Database
from tests.support.leases import (
    MICROSECOND,
    acquire,
    acquire_free_lease,
    begin_due_run,
    begin_run,
    job_every,
    read_table,
    sibling_store,
)
from tests.support.open_requests import NOON, SECOND
from tests.support.processes import eventually

MINUTES = timedelta(minutes=1)
MINUTE = 60 * SECOND
TICK = grid_after(MINUTE, NOON)
SUCCEEDED, FAILED = RunOutcome.SUCCEEDED, RunOutcome.FAILED
BUSY_SECONDS = 30


@pytest.fixture
async def tidy(database: Database) -> Database:
    """A database with a job that runs every minute. The clock is at the first tick of the job."""
    await database.clock.set(NOON)
    await database.store.register_jobs([job_every(MINUTE)])
    await database.clock.set(TICK)
    return database


async def may_write(store: Store, fence: Fence) -> bool:
    try:
        await store.prune(fence, 9)
    except LeaseLost:
        return False
    return True


async def finishes(store: Store, fence: Fence, outcome: RunOutcome = SUCCEEDED) -> bool:
    try:
        await store.finish_run(fence, outcome, None, 7 * SECOND)
    except LeaseLost:
        return False
    return True


# Leases


async def test_holder_loses_lease_permanently_once_another_acquires_it(database: Database) -> None:
    """The clock jumps past the expiry, another holder acquires the lease, and the clock jumps back."""
    await database.clock.set(NOON)
    old = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 10 * MINUTES)
    new = await acquire_free_lease(database.store, "leader", "two")
    for jump in (timedelta(0), -10 * MINUTES, 5 * MINUTES, -60 * MINUTES):
        await database.clock.set(NOON + jump)
        assert not await may_write(database.store, old), f"after a jump to noon plus {jump}"
        with pytest.raises(LeaseLost):
            await database.store.renew_lease(old, MINUTE)
        assert await may_write(database.store, new), f"after a jump to noon plus {jump}"


async def test_lease_not_acquired_by_another_survives_clock_jump_forward_and_back(database: Database) -> None:
    await database.clock.set(NOON)
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 10 * MINUTES)
    assert not await may_write(database.store, fence)
    await database.clock.set(NOON + MINUTES - MICROSECOND)
    assert await may_write(database.store, fence)
    assert (await database.store.renew_lease(fence, MINUTE)).epoch == 1


async def test_held_lease_cannot_be_acquired_after_clock_jumps_back(database: Database) -> None:
    await database.clock.set(NOON)
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON - 10 * MINUTES)
    assert not (await acquire(database.store, "leader", "two")).taken
    assert await may_write(database.store, fence)


async def test_released_lease_stays_released_after_clock_jumps_back(database: Database) -> None:
    await database.clock.set(NOON)
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.store.release_lease(fence)
    await database.clock.set(NOON - 10 * MINUTES)
    assert not await may_write(database.store, fence)
    assert (await acquire(database.store, "leader", "two")).taken


# Runs


async def test_reclaimed_run_cannot_finish_after_clock_jumps_back(tidy: Database) -> None:
    old = await begin_due_run(tidy.store, "tidy", "one")
    await tidy.clock.set(TICK + 5 * MINUTES)
    found = await begin_run(tidy.store, "tidy", "two")
    assert (found.tick_at, found.reclaimed) == (TICK, old)
    await tidy.clock.set(TICK)
    assert not await finishes(tidy.store, old)
    assert found.fence is not None
    assert await finishes(tidy.store, found.fence)
    assert not await finishes(tidy.store, old)
    assert await successes(tidy) == [(2, TICK)]


@pytest.mark.parametrize("minutes", [-10, -1, 1])
async def test_run_finishes_after_clock_jump_if_its_lock_has_not_expired(tidy: Database, minutes: int) -> None:
    fence = await begin_due_run(tidy.store, "tidy", "one")
    await tidy.clock.set(TICK + minutes * MINUTES)
    assert (await begin_run(tidy.store, "tidy", "two")).fence is None
    assert await finishes(tidy.store, fence)
    assert (await the_job(tidy)).next_run_at == TICK + MINUTES


async def test_completed_tick_does_not_run_again_after_clock_jumps_back_by_an_interval(tidy: Database) -> None:
    assert await finishes(tidy.store, await begin_due_run(tidy.store, "tidy"))
    for instant in (TICK - MINUTES, TICK - MICROSECOND, TICK, TICK + MINUTES - MICROSECOND):
        await tidy.clock.set(instant)
        assert (await begin_run(tidy.store, "tidy")).found is BeginRunOutcome.IDLE, instant
    await tidy.clock.set(TICK + MINUTES)
    assert (await begin_run(tidy.store, "tidy")).tick_at == TICK + MINUTES


async def test_ticks_run_again_after_clock_jumps_back(tidy: Database) -> None:
    await tidy.clock.set(TICK + 10 * MINUTES)
    assert await finishes(tidy.store, await begin_due_run(tidy.store, "tidy"))
    for minutes in range(12):
        await tidy.clock.set(TICK + minutes * MINUTES)
        found = await begin_run(tidy.store, "tidy")
        assert found.tick_at == TICK + minutes * MINUTES
        assert (found.clock_behind is not None) == (minutes == 0)
        assert found.fence is not None
        assert await finishes(tidy.store, found.fence)


async def test_failed_tick_does_not_delay_runs_after_clock_jumps_back(tidy: Database) -> None:
    assert await finishes(tidy.store, await begin_due_run(tidy.store, "tidy"), FAILED)
    await tidy.clock.set(TICK - 10 * MINUTES)
    found = await begin_run(tidy.store, "tidy")
    assert (found.tick_at, found.clock_behind) == (TICK - 10 * MINUTES, TICK)


async def the_job(database: Database) -> Any:
    (job,) = await database.store.list_jobs(None, 9)
    return job


async def successes(database: Database) -> list[tuple[int, datetime]]:
    """Returns, in order, the epoch of each successful run and the oldest tick that the run covers."""
    rows = await read_table(database, "job_runs")
    return [(row["epoch"], row["tick_at"]) for row in rows if row["outcome"] == SUCCEEDED]


# Many instances and a clock that jumps continuously


class Ensemble:
    """Instances that begin runs and finish them, abandon them or finish too late, while the clock jumps."""

    def __init__(self, database: Database, stores: Sequence[Store], seed: int) -> None:
        self._database, self._stores = database, stores
        self._random = random.Random(seed)
        self._enough = False
        self._epochs: set[int] = set()
        self.stepped_back: set[int] = set()
        """Epochs of the runs that began before the planned tick, because the clock was stepped back."""
        self.breaches: list[str] = []
        self.jumps = self.refused = self.succeeded = 0

    async def work(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, store in enumerate(self._stores):
                tasks.create_task(self._run_jobs(store, f"holder {number}"))
            tasks.create_task(self._jump())
            await asyncio.sleep(seconds)
            # On a busy machine, it takes longer until enough runs have succeeded.
            await eventually(lambda: self.succeeded > seconds, BUSY_SECONDS, "enough runs have succeeded")
            self._enough = True

    async def _jump(self) -> None:
        """Moves the clock by minutes in either direction, on average forward."""
        now = NOON
        while not self._enough:
            now += self._random.choice((-5, -2, -1, 1, 2, 4, 9)) * MINUTES + self._random.randrange(60) * MICROSECOND
            await self._database.clock.set(now)
            self.jumps += 1
            await asyncio.sleep(0.005 + 0.01 * self._random.random())

    async def _run_jobs(self, store: Store, holder: str) -> None:
        old: list[Fence] = []
        while not self._enough:
            found = await begin_run(store, "tidy", holder)
            if found.fence is not None:
                self._record(found.fence, stepped_back=found.clock_behind is not None)
                await asyncio.sleep(0.006 * self._random.random())
                if self._random.random() < 0.8:
                    await self._finish(store, found.fence)
                old.append(found.fence)
            for fence in old[-3:]:
                await self._try(store, fence)
            await asyncio.sleep(0.003 * self._random.random())

    def _record(self, fence: Fence, *, stepped_back: bool) -> None:
        if fence.epoch in self._epochs:
            self.breaches.append(f"epoch {fence.epoch} was begun twice")
        self._epochs.add(fence.epoch)
        if stepped_back:
            self.stepped_back.add(fence.epoch)

    def follows(self, one: Any, next_one: Any) -> bool:
        """Returns whether the tick of `next_one` is right for the successful run after `one`: the first tick after the
        start of `one`, or an earlier tick if the clock was stepped back between the two.
        """
        expected = grid_after(MINUTE, one["started_at"])
        if any(one["epoch"] < epoch <= next_one["epoch"] for epoch in self.stepped_back):
            return bool(next_one["tick_at"] < expected)
        return bool(next_one["tick_at"] == expected)

    async def _finish(self, store: Store, fence: Fence) -> None:
        outcome = self._random.choice((SUCCEEDED, SUCCEEDED, FAILED))
        if not await finishes(store, fence, outcome):
            self.refused += 1
        elif outcome is SUCCEEDED:
            self.succeeded += 1

    async def _try(self, store: Store, fence: Fence) -> None:
        newest = max(self._epochs)
        if await may_write(store, fence) and fence.epoch < newest:
            self.breaches.append(f"{fence} wrote after epoch {newest} had begun")


async def test_ensemble_loses_no_tick_and_repeats_ticks_only_after_step_back(tidy: Database, seed: int) -> None:
    stores = [sibling_store(tidy) for _ in range(4)]
    ensemble = Ensemble(tidy, stores, seed)
    await ensemble.work(1.5)
    for store in stores:
        await store.close()
    rows = [row for row in await read_table(tidy, "job_runs") if row["outcome"] == SUCCEEDED]
    shown = f"seed {seed}: {ensemble.jumps} jumps, {len(rows)} successes, {ensemble.refused} refused"
    assert ensemble.breaches == [], shown
    assert [one for one in pairwise(rows) if not ensemble.follows(*one)] == [], shown
    oldest_tick = (await the_job(tidy)).next_run_at
    assert oldest_tick <= grid_after(MINUTE, rows[-1]["started_at"]), shown
    await tidy.clock.set(max(oldest_tick, rows[-1]["started_at"]) + 600 * MINUTES)
    assert (await begin_run(tidy.store, "tidy")).tick_at == oldest_tick, shown
