"""A job has one run at a time and loses no tick, while processes compete for the job, are killed or stop, and while
runs fail.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.jobs import JobCommand, JobRun, RunOutcome
from tenure.ensemble import Ensemble
from tenure.jobs import runner as runner_module
from tenure.jobs.job import ActiveRun
from tenure.leases import waiting as cancelling
from tests.support.applications import install_jobs
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.members import Member, MemberConfig, Task, members
from tests.support.simple_http import send_request
from tests.support.terms import logged
from tests.support.waiting import all_logs, until

Start = Callable[..., RunningInstance]
StartMember = Callable[[MemberConfig], Member]

STARTED_WITHIN_SECONDS = 20
LOCK_TIMEOUT = 2
OUTLASTING = 1.75 * LOCK_TIMEOUT
"""The seconds of a run that takes longer than the lock timeout of its job."""
DAY = datetime(2026, 3, 1, tzinfo=UTC)
TICK = timedelta(seconds=10)
RARELY = 1_000_000
"""The seconds between two ticks of a job that has no tick during a test."""
GRACE_SECONDS = 3
TAKEN_OVER_WITHIN_SECONDS = 8
"""Long enough for a busy machine, and much shorter than a lock timeout of one minute."""
INTERVAL = 0.5
BEATS = {"beat": "Beat"}


@pytest.fixture
def start_member(tmp_path: Path) -> Iterator[StartMember]:
    with members(tmp_path) as start:
        yield start


def task(name: str, does: str = "wait", **given: float) -> Task:
    return Task(name=name, does=does, **{"interval_seconds": 1, "lock_timeout_seconds": LOCK_TIMEOUT, **given})  # type: ignore[arg-type]


async def start_members(start_member: StartMember, database: Database, *tasks: Task, count: int = 2) -> list[Member]:
    config = MemberConfig(database=database.url, tasks=list(tasks))
    started = [start_member(config) for _ in range(count)]
    await until(
        lambda: all(member.logged("member.ready") for member in started),
        STARTED_WITHIN_SECONDS,
        "all members are ready",
        started,
    )
    return started


# One run at a time


@pytest.mark.slow
async def test_job_longer_than_lock_timeout_runs_once_and_resigned_run_ends_before_next(
    postgres_database: Database, start_member: StartMember
) -> None:
    """The run of job `long` takes longer than the lock timeout. The lock of job `endless` is resigned during its first
    run.
    """
    both = await start_members(
        start_member,
        postgres_database,
        task("long", seconds=OUTLASTING, interval_seconds=RARELY),
        task("endless", seconds=60, interval_seconds=RARELY, lock_timeout_seconds=20),
    )
    for job in ("long", "endless"):
        await postgres_database.store.command_job(job, JobCommand.RUN, ACTOR)
    await until(lambda: begun("endless", both), 5, "job endless has begun", both)
    await postgres_database.store.resign_lease("job:endless", ACTOR)
    await until(lambda: len(begun("endless", both)) == 2, 5, "the next run has begun", both)
    first, second = sorted(begun("endless", both), key=lambda line: line["at"])
    cancelled = [
        line["at"]
        for line in happened("work.cancelled", both)
        if (line["lease"], line["epoch"]) == ("job:endless", first["epoch"])
    ]
    assert cancelled, f"the first run continues during the second\n{all_logs(both)}"
    assert cancelled[0] <= second["at"], all_logs(both)
    await until(lambda: happened("work.done", both), 20, "the long run is done", both)
    (run,) = await ended_runs(postgres_database, "long", 1)
    shown = f"{run}\n{all_logs(both)}"
    assert len(begun("long", both)) == 1, shown
    assert run.outcome == RunOutcome.SUCCEEDED, shown
    assert (ended(run) - run.started_at).total_seconds() >= OUTLASTING, shown


@pytest.mark.slow
async def test_runs_of_several_processes_never_overlap_and_miss_no_tick(
    sqlite_database: Database, start_member: StartMember
) -> None:
    """Each run takes half the interval of the job."""
    both = await start_members(
        start_member, sqlite_database, task("half", seconds=INTERVAL / 2, interval_seconds=INTERVAL), count=3
    )
    await until(lambda: len(happened("work.done", both)) >= 6, 15, "six runs", both)
    found = await runs(sqlite_database, "half")
    finished = [run for run in found if run.ended_at is not None]
    shown = f"{found}\n{all_logs(both)}"
    assert all(ended(one) <= other.started_at for one, other in pairwise(finished)), shown
    ticks = [int(run.started_at.timestamp() // INTERVAL) for run in found]
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks))), shown
    assert {run.outcome for run in finished} == {RunOutcome.SUCCEEDED}, shown


async def test_job_does_not_drift(database: Database) -> None:
    assert await ticks_run(database, 50) == [DAY + number * TICK for number in range(1, 51)]


async def ticks_run(database: Database, count: int) -> list[datetime | None]:
    """Lets two instances run the job in turn until it has run `count` times, and returns the ticks of the runs. A run
    takes half the interval of the job.
    """
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


# Killed holders


@pytest.mark.slow
async def test_run_of_dead_holder_is_abandoned_and_run_again(
    postgres_database: Database, start_member: StartMember, start: Start
) -> None:
    instance = start(postgres_database.url)
    both = await start_members(start_member, postgres_database, task("long", seconds=60, interval_seconds=RARELY))
    await postgres_database.store.command_job("long", JobCommand.RUN, ACTOR)
    await until(lambda: happened("work.begun", both), 5, "the run has begun", both)
    dead, successor = sorted(both, key=lambda member: not member.logged("work.begun"))
    dead.kill()
    await until(lambda: successor.logged("work.begun"), LOCK_TIMEOUT + 2, "the job is run again", both)
    await asyncio.to_thread(instance.wait_until_ready)
    second, first = send_request(instance.address, "/jobs/long/runs").body["runs"]
    (job,) = [job for job in send_request(instance.address, "/jobs").body["jobs"] if job["name"] == "long"]
    shown = f"{job}\n{first}\n{second}\n{all_logs(both)}"
    assert (first["outcome"], first["error"], second["outcome"]) == ("abandoned", "its lock expired", None), shown
    assert first["endedAt"] <= second["startedAt"], shown
    assert (job["failuresInARow"], job["lastError"]) == (1, f"abandoned by {first['holder']}"), shown
    (reclaimed,) = successor.logged("job.reclaimed")
    assert (reclaimed["holder"], reclaimed["epoch"]) == (first["holder"], first["epoch"]), shown


# Failures


@pytest.mark.slow
async def test_failing_job_backs_off_and_does_not_block_other_jobs(
    sqlite_database: Database, start_member: StartMember
) -> None:
    both = await start_members(start_member, sqlite_database, task("bad", "fail"), task("good"))
    await until(lambda: len(happened("job.failed", both)) == 3, 12, "job bad fails for the third time", both)
    failed = await ended_runs(sqlite_database, "bad", 3)
    fine = [run for run in await runs(sqlite_database, "good") if run.ended_at is not None]
    (bad,) = [job for job in await sqlite_database.store.list_jobs(None, 10) if job.name == "bad"]
    shown = f"{bad}\n{failed}\n{fine}\n{all_logs(both)}"
    backoff = [(other.started_at - ended(one)).total_seconds() for one, other in pairwise(failed)]
    assert all(pause >= wanted for pause, wanted in zip(backoff, (1, 2), strict=True)), shown
    assert bad.retry_at is not None, shown
    assert (bad.retry_at - ended(failed[-1])).total_seconds() == pytest.approx(4, abs=0.01), shown
    assert (bad.failures_in_a_row, bad.last_error) == (3, "ValueError: bad always fails"), shown
    assert {run.outcome for run in fine} == {RunOutcome.SUCCEEDED}, shown
    assert len(fine) >= 3, shown
    assert max(other.started_at - one.started_at for one, other in pairwise(fine)).total_seconds() < 2, shown


async def ended_runs(database: Database, job: str, count: int) -> Sequence[JobRun]:
    """Waits until the database contains the ends of `count` runs, because `work.done` and `job.failed` are logged
    before the end is recorded. Returns all runs of the job.
    """
    async with asyncio.timeout(10):
        while True:
            found = await runs(database, job)
            if sum(run.ended_at is not None for run in found) >= count:
                return found
            await asyncio.sleep(0.02)


# Stopping


@pytest.mark.slow
async def test_stop_lets_run_finish_within_grace_period(postgres_database: Database, start_member: StartMember) -> None:
    (only,) = await start_members(
        start_member, postgres_database, task("short", seconds=1, interval_seconds=RARELY), count=1
    )
    await postgres_database.store.command_job("short", JobCommand.RUN, ACTOR)
    await until(lambda: only.logged("work.begun"), 5, "the run has begun", [only])
    only.send(signal.SIGTERM)
    await asyncio.to_thread(only.process.wait, 8)
    (run,) = await runs(postgres_database, "short")
    assert (run.outcome, only.process.returncode) == (RunOutcome.SUCCEEDED, 0), only.log()


@pytest.mark.slow
async def test_run_of_stopped_instance_is_taken_over_immediately(
    sqlite_database: Database, start_member: StartMember
) -> None:
    """If the instance did not release the lock, the lock would expire only after a minute."""
    endless = task("endless", seconds=60, interval_seconds=RARELY, lock_timeout_seconds=60)
    both = await start_members(start_member, sqlite_database, endless)
    await sqlite_database.store.command_job("endless", JobCommand.RUN, ACTOR)
    await until(lambda: happened("work.begun", both), 5, "the run has begun", both)
    stopped, successor = sorted(both, key=lambda member: not member.logged("work.begun"))
    stopped.send(signal.SIGTERM)
    await until(
        lambda: successor.logged("work.begun"),
        GRACE_SECONDS + TAKEN_OVER_WITHIN_SECONDS,
        "the other member runs the job",
        both,
    )
    first, second = await runs(sqlite_database, "endless")
    shown = f"{first}\n{second}\n{all_logs(both)}"
    assert (first.outcome, first.error) == (RunOutcome.ABANDONED, "the instance is stopping"), shown
    assert (second.started_at - ended(first)).total_seconds() < TAKEN_OVER_WITHIN_SECONDS, shown
    assert stopped.logged("work.cancelled"), shown


async def test_job_that_ignores_cancellation_keeps_its_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other instance begins a run while the work may still be running, because the lock is not released."""
    monkeypatch.setattr(runner_module, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(cancelling, "CANCEL_SECONDS", 0.2)
    release, begun = asyncio.Event(), asyncio.Event()
    ensemble = Ensemble(database.store, holder="stubborn")
    ensemble.add_job("stuck", uncancellable(begun, release), interval_seconds=RARELY)
    await ensemble.start()
    await database.store.command_job("stuck", JobCommand.RUN, ACTOR)
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


# Jobs of an application, over HTTP


@pytest.mark.slow
async def test_application_job_runs_once_per_tick_and_immediately_when_requested(
    postgres_database: Database, start: Start, tmp_path: Path
) -> None:
    """Job `beat` has a tick every second. Job `rare` runs only when requested over HTTP, and such a run has no tick."""
    jobs = install_jobs(tmp_path, {"beat": "Beat", "rare": "Beat"})
    instances = await ready(start, postgres_database, jobs | {"TENURE_JOBS__BEAT__INTERVAL_SECONDS": "1"})
    requested_at = datetime.now(UTC)
    command(instances[0], "run", "rare")
    await until(lambda: any(line["tick_at"] is None for line in beats(instances)), 3, "the requested run", instances)
    await until(lambda: len(beats(instances)) >= 4, 8, "three ticks", instances)
    counted = Counter(line["tick_at"] for line in beats(instances))
    (requested,) = [line for line in beats(instances) if line["tick_at"] is None]
    ticks = sorted(datetime.fromisoformat(tick) for tick in counted if tick is not None)
    shown = f"{counted}\n{all_logs(instances)}"
    assert (requested["at"] - requested_at).total_seconds() < 0.7, shown
    assert set(counted.values()) == {1}, shown
    # If the machine pauses, one run covers several ticks. So the ticks of the runs need not be consecutive, but all of
    # them are on the grid.
    assert {tick.microsecond for tick in ticks} == {0}, shown
    job = shown_job(instances[0], "beat")
    assert (job["intervalSeconds"], job["lockTimeoutSeconds"]) == (1, 120), shown


@pytest.mark.slow
async def test_pause_resume_and_run_apply_to_all_instances(
    sqlite_database: Database, start: Start, tmp_path: Path
) -> None:
    environment = install_jobs(tmp_path, BEATS) | {"TENURE_JOBS__BEAT__INTERVAL_SECONDS": "1"}
    one, other = instances = await ready(start, sqlite_database, environment)
    await until(lambda: beats(instances), 5, "the first beat", instances)
    assert command(one, "pause")["paused"] is True
    paused_with = len(await runs(sqlite_database, "beat"))
    assert command(other, "run")["paused"] is True
    await until(lambda: len(beats(instances)) == paused_with + 1, 3, "one run while paused", instances)
    assert await settled(sqlite_database, instances) == paused_with + 1, all_logs(instances)
    assert command(other, "resume")["paused"] is False
    await until(lambda: len(beats(instances)) >= paused_with + 3, 4, "two more beats", instances)
    after_the_pause = beats(instances)[paused_with + 1 :]
    assert len({line["tick_at"] for line in after_the_pause}) == len(after_the_pause), all_logs(instances)


async def settled(database: Database, instances: Sequence[RunningInstance]) -> int:
    """Waits for more than one interval, and returns the number of runs. Asserts that each run has logged its beat."""
    until_then = datetime.now(UTC) + timedelta(seconds=1.2)
    await until(lambda: datetime.now(UTC) > until_then, 2, "time passes", instances)
    seen = len(beats(instances))
    assert len(await runs(database, "beat")) == seen, all_logs(instances)
    return seen


async def test_broken_application_job_is_named_and_aborts_start(
    sqlite_database: Database, start: Start, tmp_path: Path
) -> None:
    instance = start(sqlite_database.url, **install_jobs(tmp_path, {"broken": "Broken"}))
    await until(lambda: instance.process.poll() is not None, STARTED_WITHIN_SECONDS, "the instance exits", [instance])
    assert instance.process.returncode == 2, instance.log()
    assert "jobs.broken: cannot be loaded: on purpose" in instance.log()
    assert "Traceback" not in instance.log()


async def ready(start: Start, database: Database, environment: dict[str, str]) -> list[RunningInstance]:
    instances = [start(database.url, **environment) for _ in range(2)]
    for instance in instances:
        await asyncio.to_thread(instance.wait_until_ready)
    return instances


def beats(instances: Sequence[RunningInstance]) -> list[dict[str, Any]]:
    return sorted((line for each in instances for line in logged(each.log(), "beat")), key=lambda line: line["at"])


def command(instance: RunningInstance, what: str, job: str = "beat") -> dict[str, Any]:
    answered = send_request(instance.address, f"/jobs/{job}/{what}", "POST")
    assert answered.status == 202, f"{answered}\n{instance.log()}"
    shown: dict[str, Any] = answered.body
    return shown


def shown_job(instance: RunningInstance, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        job for job in send_request(instance.address, "/jobs").body["jobs"] if job["name"] == name
    )
    return found


# Runs and logs


async def runs(database: Database, job: str) -> list[JobRun]:
    """Returns the runs of the job, oldest first."""
    found = await database.store.list_runs(job, None, 1000)
    assert found is not None, f"there is no job {job}"
    return list(reversed(found))


def ended(run: JobRun) -> datetime:
    assert run.ended_at is not None, run
    return run.ended_at


def happened(event: str, started: Sequence[Member]) -> list[dict[str, Any]]:
    return [line for member in started for line in member.logged(event)]


def begun(job: str, started: Sequence[Member]) -> list[dict[str, Any]]:
    return [line for line in happened("work.begun", started) if line["job"] == job]
