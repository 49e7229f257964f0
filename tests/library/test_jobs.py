"""Jobs as an application adds them."""

import asyncio
from datetime import datetime

import pytest

from tenure.clock import EPOCH
from tenure.ensemble import Ensemble
from tenure.jobs.jobs import ActiveRun
from tests.library.conftest import QUICK, Join
from tests.support.databases import Database

INTERVAL = 0.05
RUNS = 12
BOUND_SECONDS = 30.0


class Reports:
    """What the runs of a job in all ensembles have seen of each other."""

    def __init__(self) -> None:
        self.ticks: list[datetime | None] = []
        self.holders: list[str] = []
        self.at_work = 0
        self.most_at_work = 0
        self.ran = asyncio.Event()

    async def run(self, run: ActiveRun) -> None:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        self.ticks.append(run.tick_at)
        self.holders.append(run.fence.holder)
        await asyncio.sleep(0.005)
        self.at_work -= 1
        self.ran.set()

    def add_to(self, ensemble: Ensemble) -> None:
        ensemble.add_job("report", self.run, interval_seconds=INTERVAL)

    async def after(self, count: int) -> None:
        async with asyncio.timeout(BOUND_SECONDS):
            while len(self.ticks) < count:
                self.ran.clear()
                await self.ran.wait()


@pytest.mark.slow
async def test_one_of_all_runs_a_job_at_a_time_and_once_for_each_tick(join: Join) -> None:
    reports = Reports()
    for _ in range(3):
        await join(reports.add_to)
    await reports.after(RUNS)
    assert reports.most_at_work == 1
    assert len(set(reports.ticks)) == len(reports.ticks), reports.ticks
    assert reports.ticks == sorted(reports.ticks, key=str)


async def test_ticks_lie_on_the_grid(join: Join) -> None:
    reports = Reports()
    await join(reports.add_to)
    await reports.after(3)
    off = [tick for tick in reports.ticks if tick is None or (tick - EPOCH).microseconds % 50_000]
    assert off == []


@pytest.mark.slow
async def test_an_ensemble_that_ends_leaves_its_job_to_the_others(join: Join, empty_database: Database) -> None:
    reports = Reports()
    staying = await join(reports.add_to)
    leaving = Ensemble(empty_database.url, holder="leaving", timing=QUICK)
    reports.add_to(leaving)
    async with leaving:
        await reports.after(3)
    before = len(reports.ticks)
    await reports.after(before + 3)
    assert set(reports.holders[before:]) == {staying.holder}


@pytest.mark.slow
async def test_a_job_that_is_paused_from_the_first_is_not_run(join: Join, empty_database: Database) -> None:
    reports = Reports()
    other = Reports()

    def add(ensemble: Ensemble) -> None:
        ensemble.add_job("report", reports.run, interval_seconds=INTERVAL, paused=True)
        ensemble.add_job("other", other.run, interval_seconds=INTERVAL)

    await join(add)
    await other.after(3)
    assert reports.ticks == []
    (job,) = [job for job in await empty_database.store.list_jobs(None, 10) if job.name == "report"]
    assert job.paused


async def test_a_job_that_always_fails_does_not_keep_others_from_running(join: Join) -> None:
    other = Reports()

    async def fail(_run: ActiveRun) -> None:
        raise ValueError("always")

    def add(ensemble: Ensemble) -> None:
        ensemble.add_job("broken", fail, interval_seconds=INTERVAL)
        ensemble.add_job("other", other.run, interval_seconds=INTERVAL)

    await join(add)
    await other.after(5)


@pytest.mark.slow
async def test_a_run_is_cancelled_when_the_ensemble_ends(empty_database: Database) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_run: ActiveRun) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    ensemble = Ensemble(empty_database.url)
    ensemble.add_job("endless", endless, interval_seconds=INTERVAL)
    async with ensemble, asyncio.timeout(BOUND_SECONDS):
        await began.wait()
    assert cancelled.is_set()
    runs = await empty_database.store.list_runs("endless", None, 10)
    assert runs is not None
    assert [run.outcome for run in runs] == ["abandoned"]
