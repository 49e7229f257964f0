"""Jobs whose processes compete, die, fail and are told to stop: one run at a time, none lost, none too many."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tenure.ensemble import Ensemble
from tenure.jobs import runner as runner_module
from tenure.jobs.jobs import ActiveRun
from tenure.leases import cancelling
from tenure.model.leases import JobCommand, JobRun, RunOutcome
from tests.support.applications import installed
from tests.support.asking import ask
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.members import Member, Orders, Task, members
from tests.support.terms import told
from tests.support.waiting import all_logs, until

Start = Callable[..., RunningInstance]
StartMember = Callable[[Orders], Member]

STARTED_WITHIN_SECONDS = 20
LOCK_TIMEOUT = 2
OUTLASTING = 1.75 * LOCK_TIMEOUT
DAY = datetime(2026, 3, 1, tzinfo=UTC)
TICK = timedelta(seconds=10)
RARELY = 1_000_000
"""Seconds between two ticks that no test lives to see."""
GRACE_SECONDS = 3
AT_ONCE_SECONDS = 8
"""On a machine with other things to do, and long before a lock of a minute runs out."""
INTERVAL = 0.5
BEATS = {"beat": "Beat"}


@pytest.fixture
def start_member(tmp_path: Path) -> Iterator[StartMember]:
    with members(tmp_path) as start:
        yield start


def task(name: str, does: str = "wait", **given: float) -> Task:
    return Task(name=name, does=does, **{"interval_seconds": 1, "lock_timeout_seconds": LOCK_TIMEOUT, **given})  # type: ignore[arg-type]


async def start_both(start_member: StartMember, database: Database, *tasks: Task, count: int = 2) -> list[Member]:
    orders = Orders(database=database.url, tasks=list(tasks))
    started = [start_member(orders) for _ in range(count)]
    await until(
        lambda: all(member.told("member.ready") for member in started), STARTED_WITHIN_SECONDS, "they start", started
    )
    return started


# One run at a time


@pytest.mark.slow
async def test_a_run_that_outlasts_its_lock_timeout_is_not_run_twice(
    postgres_database: Database, start_member: StartMember
) -> None:
    rivals = await start_both(
        start_member, postgres_database, task("long", seconds=OUTLASTING, interval_seconds=RARELY)
    )
    await postgres_database.store.command_job("long", JobCommand.RUN)
    await until(lambda: happened("work.done", rivals), 20, "it is done", rivals)
    (run,) = await noted(postgres_database, "long", 1)
    shown = f"{run}\n{all_logs(rivals)}"
    assert len(happened("work.begun", rivals)) == 1, shown
    assert run.outcome == RunOutcome.SUCCEEDED, shown
    assert (ended(run) - run.started_at).total_seconds() >= OUTLASTING, shown


@pytest.mark.slow
async def test_runs_of_several_processes_never_overlap_and_miss_no_tick(
    sqlite_database: Database, start_member: StartMember
) -> None:
    """A run takes half its interval, for eight ticks."""
    rivals = await start_both(
        start_member, sqlite_database, task("half", seconds=INTERVAL / 2, interval_seconds=INTERVAL), count=3
    )
    await until(lambda: len(happened("work.done", rivals)) >= 8, 15, "eight runs", rivals)
    kept = await runs(sqlite_database, "half")
    over = [run for run in kept if run.ended_at is not None]
    shown = f"{kept}\n{all_logs(rivals)}"
    assert all(ended(one) <= other.started_at for one, other in pairwise(over)), shown
    ticks = [int(run.started_at.timestamp() // INTERVAL) for run in kept]
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks))), shown
    assert {run.outcome for run in over} == {RunOutcome.SUCCEEDED}, shown


@pytest.mark.slow
async def test_a_job_does_not_drift_in_a_thousand_ticks(postgres_database: Database) -> None:
    assert await ticks_run(postgres_database, 1000) == grid(1000)


async def test_a_job_does_not_drift_on_a_file(sqlite_database: Database) -> None:
    assert await ticks_run(sqlite_database, 100) == grid(100)


async def ticks_run(database: Database, count: int) -> list[datetime | None]:
    """Two instances look in turn; a run takes half its interval."""
    ran: list[datetime | None] = []

    async def half(run: ActiveRun) -> None:
        ran.append(run.tick_at)
        await database.clock.set(run.started_at + TICK / 2)

    await database.clock.set(DAY + timedelta(seconds=3))
    ensembles = [Ensemble(database.store, holder=holder) for holder in ("one", "other")]
    for ensemble in ensembles:
        ensemble.add_job("half", half, interval_seconds=TICK.total_seconds())
        await ensemble.jobs.register()
    while len(ran) < count:
        now = database.clock.now()
        assert now is not None
        assert now < DAY + (count + 2) * TICK, f"only {len(ran)} ticks were run"
        await database.clock.set(now + timedelta(seconds=4))
        await ensembles[len(ran) % 2].jobs.run_once("half")
    return ran


def grid(count: int) -> list[datetime]:
    return [DAY + number * TICK for number in range(1, count + 1)]


# Holders that die


@pytest.mark.slow
async def test_a_dead_holders_run_is_abandoned_and_run_again(
    postgres_database: Database, start_member: StartMember, start: Start
) -> None:
    instance = start(postgres_database.url)
    rivals = await start_both(start_member, postgres_database, task("long", seconds=60, interval_seconds=RARELY))
    await postgres_database.store.command_job("long", JobCommand.RUN)
    await until(lambda: happened("work.begun", rivals), 5, "it is begun", rivals)
    dead, heir = sorted(rivals, key=lambda member: not member.told("work.begun"))
    dead.kill()
    await until(lambda: heir.told("work.begun"), LOCK_TIMEOUT + 2, "it is run again", rivals)
    await asyncio.to_thread(instance.wait_until_ready)
    second, first = ask(instance.address, "/jobs/long/runs").body["runs"]
    (job,) = [job for job in ask(instance.address, "/jobs").body["jobs"] if job["name"] == "long"]
    shown = f"{job}\n{first}\n{second}\n{all_logs(rivals)}"
    assert (first["outcome"], first["error"], second["outcome"]) == ("abandoned", "its lock ran out", None), shown
    assert first["endedAt"] <= second["startedAt"], shown
    assert (job["failuresInARow"], job["lastError"]) == (1, f"abandoned by {first['holder']}"), shown
    (reclaimed,) = heir.told("job.reclaimed")
    assert (reclaimed["holder"], reclaimed["epoch"]) == (first["holder"], first["epoch"]), shown


@pytest.mark.slow
async def test_a_run_whose_lock_is_resigned_stops_before_another_begins(
    postgres_database: Database, start_member: StartMember
) -> None:
    endless = task("endless", seconds=60, interval_seconds=RARELY, lock_timeout_seconds=20)
    rivals = await start_both(start_member, postgres_database, endless)
    await postgres_database.store.command_job("endless", JobCommand.RUN)
    await until(lambda: happened("work.begun", rivals), 5, "it is begun", rivals)
    await postgres_database.store.resign_lease("job:endless")
    await until(lambda: len(happened("work.begun", rivals)) == 2, 5, "it is begun again", rivals)
    first, second = sorted(happened("work.begun", rivals), key=lambda line: line["at"])
    stops = [line["at"] for line in happened("work.cancelled", rivals) if line["epoch"] == first["epoch"]]
    assert stops, f"the first run goes on beside the second\n{all_logs(rivals)}"
    assert stops[0] <= second["at"], all_logs(rivals)


# Failures


@pytest.mark.slow
async def test_a_job_that_always_fails_neither_spins_nor_blocks_others(
    sqlite_database: Database, start_member: StartMember
) -> None:
    rivals = await start_both(start_member, sqlite_database, task("bad", "fail"), task("good"))
    await until(lambda: len(happened("job.failed", rivals)) == 3, 12, "it fails for the third time", rivals)
    failed = await noted(sqlite_database, "bad", 3)
    fine = [run for run in await runs(sqlite_database, "good") if run.ended_at is not None]
    (bad,) = [job for job in await sqlite_database.store.list_jobs(None, 10) if job.name == "bad"]
    shown = f"{bad}\n{failed}\n{fine}\n{all_logs(rivals)}"
    pauses = [(other.started_at - ended(one)).total_seconds() for one, other in pairwise(failed)]
    assert all(pause >= wanted for pause, wanted in zip(pauses, (1, 2), strict=True)), shown
    assert bad.retry_at is not None, shown
    assert (bad.retry_at - ended(failed[-1])).total_seconds() == pytest.approx(4, abs=0.01), shown
    assert (bad.failures_in_a_row, bad.last_error) == (3, "ValueError: bad always fails"), shown
    assert {run.outcome for run in fine} == {RunOutcome.SUCCEEDED}, shown
    assert len(fine) >= 3, shown
    assert max(other.started_at - one.started_at for one, other in pairwise(fine)).total_seconds() < 2, shown


async def noted(database: Database, job: str, count: int) -> Sequence[JobRun]:
    """So many runs with their ends, which are noted after they are told."""
    async with asyncio.timeout(10):
        while True:
            found = await runs(database, job)
            if sum(run.ended_at is not None for run in found) >= count:
                return found
            await asyncio.sleep(0.02)


# Stopping


@pytest.mark.slow
async def test_a_run_that_ends_in_time_is_not_cut_short_by_a_stop(
    postgres_database: Database, start_member: StartMember
) -> None:
    (only,) = await start_both(
        start_member, postgres_database, task("short", seconds=1, interval_seconds=RARELY), count=1
    )
    await postgres_database.store.command_job("short", JobCommand.RUN)
    await until(lambda: only.told("work.begun"), 5, "it is begun", [only])
    only.send(signal.SIGTERM)
    await asyncio.to_thread(only.process.wait, 8)
    (run,) = await runs(postgres_database, "short")
    assert (run.outcome, only.process.returncode) == (RunOutcome.SUCCEEDED, 0), only.log()


@pytest.mark.slow
async def test_a_stopped_instances_run_is_taken_up_by_another_at_once(
    sqlite_database: Database, start_member: StartMember
) -> None:
    """Its lock would have lasted for a minute."""
    endless = task("endless", seconds=60, interval_seconds=RARELY, lock_timeout_seconds=60)
    rivals = await start_both(start_member, sqlite_database, endless)
    await sqlite_database.store.command_job("endless", JobCommand.RUN)
    await until(lambda: happened("work.begun", rivals), 5, "it is begun", rivals)
    stopped, heir = sorted(rivals, key=lambda member: not member.told("work.begun"))
    stopped.send(signal.SIGTERM)
    await until(lambda: heir.told("work.begun"), GRACE_SECONDS + AT_ONCE_SECONDS, "the other one runs it", rivals)
    first, second = await runs(sqlite_database, "endless")
    shown = f"{first}\n{second}\n{all_logs(rivals)}"
    assert (first.outcome, first.error) == (RunOutcome.ABANDONED, "the instance stops"), shown
    assert (second.started_at - ended(first)).total_seconds() < AT_ONCE_SECONDS, shown
    assert stopped.told("work.cancelled"), shown


async def test_a_job_that_will_not_be_cancelled_keeps_its_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else may begin while it may still be at it; the lock runs out by itself."""
    monkeypatch.setattr(runner_module, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(cancelling, "PATIENCE_SECONDS", 0.2)
    release, begun = asyncio.Event(), asyncio.Event()
    ensemble = Ensemble(database.store, holder="stubborn")
    ensemble.add_job("stuck", uncancellable(begun, release), interval_seconds=RARELY)
    await ensemble.start()
    await database.store.command_job("stuck", JobCommand.RUN)
    await asyncio.wait_for(begun.wait(), 3)
    await ensemble.stop()
    (lock,) = [lease for lease in await database.store.list_leases(None, 10) if lease.name == "job:stuck"]
    (run,) = await runs(database, "stuck")
    release.set()
    assert (lock.held, lock.holder, run.ended_at) == (True, "stubborn", None)


def uncancellable(begun: asyncio.Event, release: asyncio.Event) -> Callable[[ActiveRun], Any]:
    async def work(_run: ActiveRun) -> None:
        begun.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    return work


# Through HTTP, with an application's own job


@pytest.mark.slow
async def test_an_applications_job_is_found_and_run_by_one_instance_a_tick(
    postgres_database: Database, start: Start, tmp_path: Path
) -> None:
    environment = installed(tmp_path, BEATS) | {"TENURE_JOBS__BEAT__INTERVAL_SECONDS": "1"}
    instances = await ready(start, postgres_database, environment)
    await until(lambda: len(beats(instances)) >= 3, 8, "three beats", instances)
    counted = Counter(line["tick_at"] for line in beats(instances))
    ticks = sorted(datetime.fromisoformat(tick) for tick in counted)
    shown = f"{counted}\n{all_logs(instances)}"
    assert set(counted.values()) == {1}, shown
    # One that came too late is left out: then the machine stood still, and the next is on the grid again.
    assert {tick.microsecond for tick in ticks} == {0}, shown
    job = shown_job(instances[0], "beat")
    assert (job["intervalSeconds"], job["lockTimeoutSeconds"]) == (1, 120), shown


@pytest.mark.slow
async def test_pause_resume_and_run_hold_for_all_instances(
    sqlite_database: Database, start: Start, tmp_path: Path
) -> None:
    environment = installed(tmp_path, BEATS) | {"TENURE_JOBS__BEAT__INTERVAL_SECONDS": "1"}
    one, other = instances = await ready(start, sqlite_database, environment)
    await until(lambda: beats(instances), 5, "it beats", instances)
    assert command(one, "pause")["paused"] is True
    paused_with = len(await runs(sqlite_database, "beat"))
    assert command(other, "run")["paused"] is True
    await until(lambda: len(beats(instances)) == paused_with + 1, 3, "it runs once though it is paused", instances)
    assert await settled(sqlite_database, instances) == paused_with + 1, all_logs(instances)
    assert command(other, "resume")["paused"] is False
    await until(lambda: len(beats(instances)) >= paused_with + 3, 4, "it beats again", instances)
    after_the_pause = beats(instances)[paused_with + 1 :]
    assert len({line["tick_at"] for line in after_the_pause}) == len(after_the_pause), all_logs(instances)


async def settled(database: Database, instances: Sequence[RunningInstance]) -> int:
    """How often it was run, once more than a tick has passed in which nothing is due."""
    until_then = datetime.now(UTC) + timedelta(seconds=1.2)
    await until(lambda: datetime.now(UTC) > until_then, 2, "time passes", instances)
    seen = len(beats(instances))
    assert len(await runs(database, "beat")) == seen, all_logs(instances)
    return seen


@pytest.mark.slow
async def test_a_run_asked_for_over_http_begins_at_once(
    postgres_database: Database, start: Start, tmp_path: Path
) -> None:
    instances = await ready(start, postgres_database, installed(tmp_path, BEATS))
    asked_at = datetime.now(UTC)
    command(instances[0], "run")
    await until(lambda: beats(instances), 3, "it beats", instances)
    (line,) = beats(instances)
    assert ((line["at"] - asked_at).total_seconds() < 0.7, line["tick_at"]) == (True, None), all_logs(instances)


async def test_a_broken_job_of_an_application_is_named_and_stops_the_start(
    sqlite_database: Database, start: Start, tmp_path: Path
) -> None:
    instance = start(sqlite_database.url, **installed(tmp_path, {"heartless": "Broken"}))
    await until(lambda: instance.process.poll() is not None, STARTED_WITHIN_SECONDS, "it ends", [instance])
    assert instance.process.returncode == 2, instance.log()
    assert "jobs.heartless: cannot be loaded: no beat without a heart" in instance.log()
    assert "Traceback" not in instance.log()


async def ready(start: Start, database: Database, environment: dict[str, str]) -> list[RunningInstance]:
    instances = [start(database.url, **environment) for _ in range(2)]
    for instance in instances:
        await asyncio.to_thread(instance.wait_until_ready)
    return instances


def beats(instances: Sequence[RunningInstance]) -> list[dict[str, Any]]:
    return sorted((line for each in instances for line in told(each.log(), "beat")), key=lambda line: line["at"])


def command(instance: RunningInstance, what: str) -> dict[str, Any]:
    answered = ask(instance.address, f"/jobs/beat/{what}", "POST")
    assert answered.status == 202, f"{answered}\n{instance.log()}"
    job: dict[str, Any] = answered.body
    return job


def shown_job(instance: RunningInstance, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(job for job in ask(instance.address, "/jobs").body["jobs"] if job["name"] == name)
    return found


# What the database and the logs say


async def runs(database: Database, job: str) -> list[JobRun]:
    """Oldest first."""
    found = await database.store.list_runs(job, None, 1000)
    assert found is not None, f"there is no job {job}"
    return list(reversed(found))


def ended(run: JobRun) -> datetime:
    assert run.ended_at is not None, run
    return run.ended_at


def happened(event: str, started: Sequence[Member]) -> list[dict[str, Any]]:
    return [line for member in started for line in member.told(event)]
