"""Instances and workers of a supervisor that are stopped once, stopped twice, or killed."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.databases import Database
from tests.support.history import find_violations, read_sessions
from tests.support.instances import RunningInstance
from tests.support.load import Exchange, clients, some_keys, steady_load
from tests.support.locks import Holder, holding
from tests.support.processes import eventually, family
from tests.support.waiting import until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

STARTED_WITHIN_SECONDS = 30
CONNECTIONS = 12
LINGER_SECONDS = 0.8
"""How long a test keeps a request in progress after SIGTERM: longer than the 0.5 s after which an instance without
requests would stop, and shorter than any lock timeout."""


async def test_instance_finishes_open_requests_on_sigterm_and_is_not_ready(
    postgres_database: Database, start: Start
) -> None:
    instance = start(postgres_database.url).wait_until_ready()
    async with (
        waiting_upgrade(postgres_database, instance) as (upgrade, holder),
        clients([instance.address], 1) as (client,),
    ):
        instance.send(signal.SIGTERM)
        await eventually(lambda: "instance.draining" in instance.log(), 1, "draining")
        ready = await client.get("/readyz")
        await asyncio.sleep(LINGER_SECONDS)
        await holder.rollback()
        assert (await upgrade).status == 201
    assert await exit_code(instance, 3) == 0
    assert '"instance.stopped"' in instance.log()
    assert (ready.status, ready.answer["code"]) == (503, "DRAINING")


async def test_second_signal_stops_instance_immediately(postgres_database: Database, start: Start) -> None:
    instance = start(postgres_database.url).wait_until_ready()
    async with waiting_upgrade(postgres_database, instance):
        instance.send(signal.SIGTERM)
        await eventually(lambda: "instance.draining" in instance.log(), 1, "draining")
        instance.send(signal.SIGTERM)
        await exit_code(instance, 1)


async def test_stop_under_load_loses_no_session(postgres_database: Database, start: Start, seed: int) -> None:
    instance = start(postgres_database.url).wait_until_ready()
    async with steady_load([instance.address], 8, keys=some_keys(50, seed), seed=seed) as exchanges:
        await eventually(lambda: len(exchanges) > 100, 10, "the load has begun")
        instance.send(signal.SIGTERM)
        assert await exit_code(instance, 15) == 0
    assert find_violations(exchanges, await read_sessions(postgres_database), also=[0]) == [], f"seed {seed}"


async def test_instance_accepts_connections_when_it_logs_its_address(sqlite_database: Database, start: Start) -> None:
    instance = start(sqlite_database.url)
    async with clients([instance.address], 1) as (client,):
        assert (await client.get("/healthz")).status == 200


# Workers


async def test_supervisor_replaces_killed_worker_and_stops_all_workers(
    sqlite_database: Database, start: Start, short_folder: Path
) -> None:
    """Before and after the kill, every worker returns the figures of all workers for `GET /sessions/metrics`."""
    supervisor = start(sqlite_database.url, "--workers", "2", TMPDIR=str(short_folder))
    await all_ready(supervisor, 2)
    async with clients([supervisor.address], CONNECTIONS) as each:
        for client, key in zip(each, some_keys(CONNECTIONS, 0), strict=True):
            assert (await client.open(key, 1)).status == 201
    assert await metrics_of_workers(supervisor) == (CONNECTIONS, CONNECTIONS)

    victim = workers(supervisor)[0]
    victim.kill()
    await all_ready(supervisor, 3)
    current = workers(supervisor)
    assert (len(current), victim in current) == (2, False)
    # Only the counts in the memory of the killed worker are lost.
    total, opened = await metrics_of_workers(supervisor)
    assert (total, opened < CONNECTIONS) == (CONNECTIONS, True)

    supervisor.send(signal.SIGTERM)
    assert await exit_code(supervisor, 5) == 0
    assert [worker for worker in current if worker.is_running()] == []
    assert content(short_folder) == []


async def metrics_of_workers(supervisor: RunningInstance) -> tuple[int, int]:
    """Returns the total in the database and the number of opened sessions. All workers must show the same figures.

    There are so many connections that they reach both workers. On a busy machine, a worker may need more than a second
    to answer the other one, so the requests are repeated until each response contains the figures of both.
    """
    async with clients([supervisor.address], CONNECTIONS) as each, asyncio.timeout(STARTED_WITHIN_SECONDS):
        while True:
            answers = [(await client.get("/sessions/metrics")).answer for client in each]
            assert {answer["workers"] for answer in answers} == {2}
            if all(answer["workersAnswered"] == 2 for answer in answers):
                break
    ((total, opened),) = {(answer["totalSessions"], answer["opened"]) for answer in answers}
    return total, opened


async def test_workers_exit_after_supervisor_is_killed(
    sqlite_database: Database, start: Start, short_folder: Path
) -> None:
    supervisor = start(sqlite_database.url, "--workers", "2", TMPDIR=str(short_folder))
    await all_ready(supervisor, 2)
    own = workers(supervisor)
    supervisor.kill()
    await eventually(lambda: not any(worker.is_running() for worker in own), 5, "the workers have ended")
    assert content(short_folder) == []  # the last worker deletes the folder of the sockets


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for temporary files. The path of `tmp_path` may be too long for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def content(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_workers_finish_open_requests_when_process_group_gets_sigterm(
    postgres_database: Database, start: Start
) -> None:
    """Ctrl-C and service managers signal every process of the group."""
    supervisor = start(postgres_database.url, "--workers", "2")
    await all_ready(supervisor, 2)
    async with waiting_upgrade(postgres_database, supervisor) as (upgrade, holder):
        for process in family(supervisor.process.pid):
            process.send_signal(signal.SIGTERM)
        await asyncio.sleep(LINGER_SECONDS)
        await holder.rollback()
        assert (await upgrade).status == 201
    assert await exit_code(supervisor, 5) == 0


@asynccontextmanager
async def waiting_upgrade(
    database: Database, instance: RunningInstance
) -> AsyncIterator[tuple["asyncio.Task[Exchange]", Holder]]:
    """Starts an upgrade of a session whose row `holder` has locked. The upgrade waits until `holder` rolls back."""
    key = some_keys(1, 0)[0]
    async with clients([instance.address], 1) as (client,), holding(database) as holder:
        opened = await client.open(key, 1)
        await holder.lock_session(opened.answer["sessionId"])
        upgrade = asyncio.create_task(client.open(key, 2))
        await asyncio.sleep(0.1)  # the upgrade reaches the instance, which then retries until the row is free
        yield upgrade, holder
        await holder.rollback()
        await upgrade


async def exit_code(instance: RunningInstance, seconds: float) -> int | None:
    await eventually(lambda: instance.process.poll() is not None, seconds, f"ended\n{instance.log()}")
    return instance.process.poll()


async def all_ready(supervisor: RunningInstance, count: int) -> None:
    """Waits until `count` workers have become ready since the start."""
    what = f"{count} workers are ready"
    await until(lambda: supervisor.log().count("instance.ready") == count, STARTED_WITHIN_SECONDS, what, [supervisor])


def workers(supervisor: RunningInstance) -> list[psutil.Process]:
    return [process for process in family(supervisor.process.pid)[1:] if "spawn_main" in " ".join(process.cmdline())]
