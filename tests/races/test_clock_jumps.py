"""The database's clock jumps by minutes, forward and back, in the middle of leases and runs.

What must hold whatever it does: no write of an old epoch after the next acquire; no tick lost; none run to success
twice.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tenure.errors import LeaseLost
from tenure.model.leases import BeginFound, Fence, JobCommand, RunOutcome
from tenure.schedule import grid_after
from tenure.store import Store
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, acquire, begin, begun, every, sibling, table, taken
from tests.support.processes import eventually
from tests.support.wishes import NOON, SECOND

MINUTES = timedelta(minutes=1)
MINUTE = 60 * SECOND
TICK = grid_after(MINUTE, NOON)
SUCCEEDED, FAILED = RunOutcome.SUCCEEDED, RunOutcome.FAILED
BUSY_SECONDS = 30


@pytest.fixture
async def tidy(database: Database) -> Database:
    """With a job that runs every minute, at its first tick."""
    await database.clock.set(NOON)
    await database.store.register_jobs([every(MINUTE)])
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


async def test_a_jump_forward_past_its_end_takes_a_lease_from_its_holder_for_good(database: Database) -> None:
    """Also when the clock jumps back to where it would hold again."""
    await database.clock.set(NOON)
    old = await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 10 * MINUTES)
    new = await taken(database.store, "leader", "two")
    for jump in (timedelta(0), -10 * MINUTES, 5 * MINUTES, -60 * MINUTES):
        await database.clock.set(NOON + jump)
        assert not await may_write(database.store, old), f"after a jump to noon and {jump}"
        with pytest.raises(LeaseLost):
            await database.store.renew_lease(old, MINUTE)
        assert await may_write(database.store, new), f"after a jump to noon and {jump}"


async def test_a_lease_that_nobody_took_meanwhile_survives_a_jump_there_and_back(database: Database) -> None:
    await database.clock.set(NOON)
    fence = await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 10 * MINUTES)
    assert not await may_write(database.store, fence)
    await database.clock.set(NOON + MINUTES - MICROSECOND)
    assert await may_write(database.store, fence)
    assert (await database.store.renew_lease(fence, MINUTE)).epoch == 1


async def test_a_jump_back_gives_nobody_a_lease_that_is_held(database: Database) -> None:
    await database.clock.set(NOON)
    fence = await taken(database.store, "leader", "one")
    await database.clock.set(NOON - 10 * MINUTES)
    assert not (await acquire(database.store, "leader", "two")).taken
    assert await may_write(database.store, fence)


async def test_what_was_released_stays_released_after_a_jump_back(database: Database) -> None:
    await database.clock.set(NOON)
    fence = await taken(database.store, "leader", "one")
    await database.store.release_lease(fence)
    await database.clock.set(NOON - 10 * MINUTES)
    assert not await may_write(database.store, fence)
    assert (await acquire(database.store, "leader", "two")).taken


# Runs


async def test_a_run_that_lost_its_lock_in_a_jump_cannot_finish_what_another_has_run(tidy: Database) -> None:
    old = await begun(tidy.store, "tidy", "one")
    await tidy.clock.set(TICK + 5 * MINUTES)
    found = await begin(tidy.store, "tidy", "two")
    assert (found.tick_at, found.reclaimed) == (TICK, old)
    await tidy.clock.set(TICK)
    assert not await finishes(tidy.store, old)
    assert found.fence is not None
    assert await finishes(tidy.store, found.fence)
    assert not await finishes(tidy.store, old)
    assert await successes(tidy) == [(2, TICK)]


@pytest.mark.parametrize("minutes", [-10, -1, 1])
async def test_a_jump_during_a_run_within_its_lock_changes_nothing_for_it(tidy: Database, minutes: int) -> None:
    fence = await begun(tidy.store, "tidy", "one")
    await tidy.clock.set(TICK + minutes * MINUTES)
    assert (await begin(tidy.store, "tidy", "two")).fence is None
    assert await finishes(tidy.store, fence)
    assert (await the_job(tidy)).next_run_at == TICK + MINUTES


async def test_a_tick_that_was_run_is_not_run_again_when_the_clock_comes_by_once_more(tidy: Database) -> None:
    assert await finishes(tidy.store, await begun(tidy.store, "tidy"))
    for instant in (TICK - 5 * MINUTES, TICK - MICROSECOND, TICK, TICK + MINUTES - MICROSECOND):
        await tidy.clock.set(instant)
        assert (await begin(tidy.store, "tidy")).found is BeginFound.IDLE, instant
    await tidy.clock.set(TICK + MINUTES)
    assert (await begin(tidy.store, "tidy")).tick_at == TICK + MINUTES


async def test_ticks_that_a_jump_forward_skipped_are_run_once_and_not_again_after_the_jump_back(tidy: Database) -> None:
    await tidy.clock.set(TICK + 10 * MINUTES)
    assert await finishes(tidy.store, await begun(tidy.store, "tidy"))
    for minutes in range(11):
        await tidy.clock.set(TICK + minutes * MINUTES)
        assert (await begin(tidy.store, "tidy")).found is BeginFound.IDLE, minutes
    await tidy.clock.set(TICK + 11 * MINUTES)
    assert (await begin(tidy.store, "tidy")).tick_at == TICK + 11 * MINUTES


async def test_a_tick_that_failed_before_a_jump_back_is_run_once_its_pause_is_over(tidy: Database) -> None:
    assert await finishes(tidy.store, await begun(tidy.store, "tidy"), FAILED)
    await tidy.clock.set(TICK - 10 * MINUTES)
    assert (await begin(tidy.store, "tidy")).found is BeginFound.IDLE
    await tidy.clock.set(TICK + timedelta(seconds=7))
    assert (await begin(tidy.store, "tidy")).tick_at == TICK


async def test_a_run_can_be_asked_for_after_a_jump_back_although_its_tick_is_far(tidy: Database) -> None:
    await tidy.clock.set(TICK + 10 * MINUTES)
    assert await finishes(tidy.store, await begun(tidy.store, "tidy"))
    await tidy.clock.set(TICK)
    await tidy.store.command_job("tidy", JobCommand.RUN)
    found = await begin(tidy.store, "tidy")
    assert (found.found, found.tick_at) == (BeginFound.BEGUN, None)
    assert found.fence is not None
    assert await finishes(tidy.store, found.fence)
    assert (await the_job(tidy)).next_run_at == TICK + 11 * MINUTES


async def the_job(database: Database) -> Any:
    (job,) = await database.store.list_jobs(None, 9)
    return job


async def successes(database: Database) -> list[tuple[int, datetime]]:
    """Epoch and oldest tick of each run that succeeded, in their order."""
    rows = await table(database, "job_runs")
    return [(row["epoch"], row["tick_at"]) for row in rows if row["outcome"] == SUCCEEDED]


# Many instances, and a clock that never rests


class Ensemble:
    """Instances that begin runs and finish them, die, or come back too late, while the clock jumps under them."""

    def __init__(self, database: Database, stores: Sequence[Store], seed: int) -> None:
        self._database, self._stores = database, stores
        self._random = random.Random(seed)
        self._enough = False
        self._epochs: set[int] = set()
        self.breaches: list[str] = []
        self.jumps = self.refused = self.succeeded = 0

    async def work(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, store in enumerate(self._stores):
                tasks.create_task(self._run_jobs(store, f"holder {number}"))
            tasks.create_task(self._jump())
            await asyncio.sleep(seconds)
            # On a machine with other things to do it takes longer to prove anything.
            await eventually(lambda: self.succeeded > seconds, BUSY_SECONDS, "enough runs have succeeded")
            self._enough = True

    async def _jump(self) -> None:
        """On the whole forward, by minutes either way."""
        now = NOON
        while not self._enough:
            now += self._random.choice((-5, -2, -1, 1, 2, 4, 9)) * MINUTES + self._random.randrange(60) * MICROSECOND
            await self._database.clock.set(now)
            self.jumps += 1
            await asyncio.sleep(0.005 + 0.01 * self._random.random())

    async def _run_jobs(self, store: Store, holder: str) -> None:
        old: list[Fence] = []
        while not self._enough:
            found = await begin(store, "tidy", holder)
            if found.fence is not None:
                self._note(found.fence)
                await asyncio.sleep(0.006 * self._random.random())
                if self._random.random() < 0.8:
                    await self._finish(store, found.fence)
                old.append(found.fence)
            for fence in old[-3:]:
                await self._try(store, fence)
            await asyncio.sleep(0.003 * self._random.random())

    def _note(self, fence: Fence) -> None:
        if fence.epoch in self._epochs:
            self.breaches.append(f"epoch {fence.epoch} was begun twice")
        self._epochs.add(fence.epoch)

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


@pytest.mark.parametrize("seconds", [1.0, pytest.param(4.0, marks=pytest.mark.slow)])
async def test_no_tick_is_lost_or_run_twice_while_the_clock_jumps_under_an_ensemble(
    tidy: Database, seconds: float, seed: int
) -> None:
    stores = [sibling(tidy) for _ in range(4)]
    ensemble = Ensemble(tidy, stores, seed)
    await ensemble.work(seconds)
    for store in stores:
        await store.close()
    rows = [row for row in await table(tidy, "job_runs") if row["outcome"] == SUCCEEDED]
    told = f"seed {seed}: {ensemble.jumps} jumps, {len(rows)} successes, {ensemble.refused} refused"
    assert ensemble.breaches == [], told
    assert [one for one in pairwise(rows) if not follows(*one)] == [], told
    await tidy.clock.set(rows[-1]["started_at"] + 600 * MINUTES)
    assert (await begin(tidy.store, "tidy")).tick_at == grid_after(MINUTE, rows[-1]["started_at"]), told


def follows(one: Any, next_one: Any) -> bool:
    """The next success is for the tick that is the first after those that this one was for."""
    return bool(next_one["tick_at"] == grid_after(MINUTE, one["started_at"]))
