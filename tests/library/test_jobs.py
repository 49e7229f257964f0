"""Jobs that an application adds to an ensemble."""

import asyncio
from datetime import datetime

import pytest

from tenure.clock import EPOCH
from tenure.ensemble import Ensemble
from tenure.jobs.job import ActiveRun
from tests.library.conftest import QUICK, Join
from tests.support.databases import Database

INTERVAL = 0.05
RUNS = 12
BOUND_SECONDS = 30.0


class RecordedRuns:
    """The runs of a job on all instances. `most_running` is the largest number of runs at the same time."""

    def __init__(self) -> None:
        self.ticks: list[datetime | None] = []
        self.holders: list[str] = []
        self.running = 0
        self.most_running = 0
        self.ran = asyncio.Event()

    async def run(self, run: ActiveRun) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.ticks.append(run.tick_at)
        self.holders.append(run.fence.holder)
        await asyncio.sleep(0.005)
        self.running -= 1
        self.ran.set()

    def add_to(self, ensemble: Ensemble) -> None:
        ensemble.add_job("report", self.run, interval_seconds=INTERVAL)

    async def after(self, count: int) -> None:
        async with asyncio.timeout(BOUND_SECONDS):
            while len(self.ticks) < count:
                self.ran.clear()
                await self.ran.wait()


async def test_job_runs_on_one_instance_at_a_time_and_once_per_tick_of_the_grid(join: Join) -> None:
    recorded = RecordedRuns()
    for _ in range(3):
        await join(recorded.add_to)
    await recorded.after(RUNS)
    assert recorded.most_running == 1
    assert len(set(recorded.ticks)) == len(recorded.ticks), recorded.ticks
    assert recorded.ticks == sorted(recorded.ticks, key=str)
    off_grid = [tick for tick in recorded.ticks if tick is None or (tick - EPOCH).microseconds % 50_000]
    assert off_grid == []


async def test_remaining_instance_runs_job_after_another_exits(join: Join, database: Database) -> None:
    recorded = RecordedRuns()
    staying = await join(recorded.add_to)
    leaving = Ensemble(database.url, holder="leaving", timing=QUICK)
    recorded.add_to(leaving)
    async with leaving:
        await recorded.after(3)
    before = len(recorded.ticks)
    await recorded.after(before + 3)
    assert set(recorded.holders[before:]) == {staying.holder}


async def test_paused_job_does_not_run_and_failing_job_does_not_block_others(join: Join, database: Database) -> None:
    paused, other = RecordedRuns(), RecordedRuns()

    async def fail(_run: ActiveRun) -> None:
        raise ValueError("always")

    def add(ensemble: Ensemble) -> None:
        ensemble.add_job("paused", paused.run, interval_seconds=INTERVAL, paused=True)
        ensemble.add_job("broken", fail, interval_seconds=INTERVAL)
        ensemble.add_job("other", other.run, interval_seconds=INTERVAL)

    await join(add)
    await other.after(5)
    assert paused.ticks == []
    jobs = {job.name: job.paused for job in await database.store.list_jobs(None, 10)}
    assert jobs == {"paused": True, "broken": False, "other": False}


async def test_run_is_cancelled_when_its_instance_exits(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.jobs.runner.GRACE_SECONDS", 0.1)
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def run_until_cancelled(_run: ActiveRun) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    ensemble = Ensemble(database.url, timing=QUICK)
    ensemble.add_job("endless", run_until_cancelled, interval_seconds=INTERVAL)
    async with ensemble, asyncio.timeout(BOUND_SECONDS):
        await began.wait()
    assert cancelled.is_set()
    runs = await database.store.list_runs("endless", None, 10)
    assert runs is not None
    assert [run.outcome for run in runs] == ["abandoned"]
