"""All usage is billed exactly once, even if instances are killed or paused while they cut, divide and send usage, or if
the database restarts.
"""

import asyncio
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database, PostgresServer
from tests.support.deliveries import Fleet, poll
from tests.support.instances import RunningInstance, stop_all
from tests.support.receivers import RunningReceiver
from tests.support.usage_points import CHUNKS, CUT, DIGEST, JOB, OUTCOME, PAGE, SECOND_PAGE, barrier, small_pages
from tests.support.usage_running import (
    assert_billed_once,
    cutting_environment,
    instance_of,
    last_window,
    session_load,
    windows_delivered,
)
from tests.support.waiting import until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

SECRET = "whsec_dXNhZ2UtaXMtYmlsbGVkLW9uY2U="
RESTARTS = 2
PUT_SESSIONS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, kind, state, started_at, term_ends_at,
    deadline_at, last_heartbeat_at, last_activity_at, modified_at, lapse_reason, closed_at, close_reason)
SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1 + n % 3, 'closed', began,
       began + 2000 * m, began + 1000 * m, began, began + m, began + n % 99 * m, 'EXPIRED', began + (1 + n % 997) * m,
       'TERMINATED'
  FROM generate_series(1, {count}) AS n, installation,
       LATERAL (SELECT last_cut_at + n * interval '1 microsecond' AS began, interval '1 microsecond' AS m) AS each
"""
"""Inserts sessions that start and end within the first window."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path, "--secret", SECRET)
    yield started
    stop_all([started])


# Kill


async def test_usage_is_billed_once_after_kill_at_each_write(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    """At each write, two instances are killed. The write of the first instance is cancelled, the write of the second
    instance is executed.
    """
    fleet = await Fleet(start, postgres_database.url, cutting_environment(receiver.address, SECRET), 2).ready()
    async with session_load(fleet.addresses, seed):
        for point in (CUT, CHUNKS, DIGEST, OUTCOME):
            async with barrier(postgres_database, point) as at_write:
                for release in (at_write.cancel_write, at_write.allow_write):
                    await at_write.close()
                    victim = instance_of(fleet, await at_write.blocked_pid())
                    victim.kill()
                    await release()
                    await fleet.kill_and_replace(victim)
    await assert_billed_once(postgres_database, receiver.ledger, fleet, f"seed {seed}")


async def test_next_holder_resumes_after_kill_between_chunks(
    postgres_database: Database, start: Start, receiver: RunningReceiver, tmp_path: Path
) -> None:
    await postgres_database.execute(PUT_SESSIONS.format(count=PAGE * 1000 + 1500))
    environment = cutting_environment(receiver.address, SECRET, **small_pages(tmp_path))
    async with barrier(postgres_database, SECOND_PAGE) as at_write:
        await at_write.close()
        fleet = await Fleet(start, postgres_database.url, environment, 1).ready()
        victim = instance_of(fleet, await at_write.blocked_pid())
        victim.kill()
        await at_write.cancel_write()
        saved = await chunks(postgres_database)
        await fleet.kill_and_replace(victim)
    await windows_delivered(postgres_database, 1, fleet.all)
    await assert_billed_once(postgres_database, receiver.ledger, fleet)
    assert saved == list(range(1, PAGE + 1)), "the kill was not between two pages"
    assert await chunks(postgres_database) == list(range(1, PAGE + 3))


async def chunks(database: Database) -> Sequence[int]:
    """Returns the chunk numbers of the first window."""
    return [
        row["chunk"] for row in await database.rows("SELECT * FROM usage_chunks WHERE window_id = 1 ORDER BY chunk")
    ]


@pytest.mark.timeout(120)
async def test_usage_is_billed_once_on_sqlite_after_random_kills(
    sqlite_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    source = random.Random(seed)
    fleet = await Fleet(start, sqlite_database.url, cutting_environment(receiver.address, SECRET), 2).ready()
    async with session_load(fleet.addresses, seed):
        for _ in range(3):
            await asyncio.sleep(source.uniform(0.2, 1.2))
            await fleet.kill_and_replace(source.choice(fleet.running))
        await windows_delivered(sqlite_database, 3, fleet.all)
    await assert_billed_once(sqlite_database, receiver.ledger, fleet, f"seed {seed}")


# Database restart


@pytest.mark.timeout(120)
async def test_usage_is_billed_once_when_database_restarts(
    own_postgres: PostgresServer, own_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    fleet = await Fleet(start, own_database.url, cutting_environment(receiver.address, SECRET), 2).ready()
    async with session_load(fleet.addresses, seed):
        for _ in range(RESTARTS):
            await windows_delivered(own_database, 1, fleet.all, after=await last_window(own_database))
            await asyncio.to_thread(own_postgres.stop)
            await asyncio.to_thread(own_postgres.start)
        await windows_delivered(own_database, 1, fleet.all, after=await last_window(own_database))
    await assert_billed_once(own_database, receiver.ledger, fleet, f"seed {seed}")


# Pause


async def test_usage_is_billed_once_when_instance_is_paused_until_its_job_lock_expires(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    """During the pause, the write that the instance has sent is executed, and another instance runs the job."""
    fleet = await Fleet(start, postgres_database.url, cutting_environment(receiver.address, SECRET), 2).ready()
    async with session_load(fleet.addresses, seed):
        for point in (CUT, CHUNKS):
            async with barrier(postgres_database, point) as at_write:
                await at_write.close()
                paused = instance_of(fleet, await at_write.blocked_pid())
                epoch = await lock_epoch(postgres_database)
                lost_before = lock_losses(paused)
                paused.send(signal.SIGSTOP)
                try:
                    await at_write.allow_write()
                    await poll(lambda: run_by_another(postgres_database, epoch), 20, f"next run after {point.name}")  # noqa: B023
                finally:
                    paused.send(signal.SIGCONT)
                await until(lambda: lock_losses(paused) > lost_before, 5, f"lock lost at {point.name}", fleet.all)  # noqa: B023
    await assert_billed_once(postgres_database, receiver.ledger, fleet, f"seed {seed}")


def lock_losses(instance: RunningInstance) -> int:
    return sum("job.abandoned" in line or "job.lock_lost" in line for line in instance.log().splitlines())


async def run_by_another(database: Database, epoch: int) -> bool:
    """Returns whether a run after `epoch` has succeeded. Such a run has divided all windows that were cut before it."""
    runs: list[dict[str, Any]] = await database.rows(
        f"SELECT 1 FROM job_runs WHERE job = 'emit-usage' AND epoch > {epoch} AND outcome = 'succeeded'"
    )
    return bool(runs)


async def lock_epoch(database: Database) -> int:
    (row,) = await database.rows(f"SELECT epoch FROM leases WHERE name = '{JOB}'")
    return int(row["epoch"])
