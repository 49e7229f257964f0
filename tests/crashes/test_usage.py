"""Instances are killed, stopped and cut off in the middle of cutting, dividing and sending: all is billed, and once."""

import asyncio
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database, PostgresServer
from tests.support.deliveries import Fleet, found
from tests.support.instances import RunningInstance, stop_all
from tests.support.receivers import RunningReceiver
from tests.support.usage_points import CHUNKS, CUT, DIGEST, JOB, OUTCOME, SECOND_PAGE, Point, barrier
from tests.support.usage_running import assert_billed_once, cutting, instance_of, used, windows_delivered
from tests.support.waiting import until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

SECRET = "whsec_dXNhZ2UtaXMtYmlsbGVkLW9uY2U="
PAGE = 128
"""Chunks that are saved in one transaction."""
PUT_SESSIONS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, kind, state, started_at, term_ends_at,
    deadline_at, last_heartbeat_at, last_activity_at, modified_at, lapse_reason, closed_at, close_reason)
SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1 + n % 3, 'closed', began,
       began + 2000 * m, began + 1000 * m, began, began + m, began + n % 99 * m, 'EXPIRED', began + (1 + n % 997) * m,
       'TERMINATED'
  FROM generate_series(1, {count}) AS n, installation,
       LATERAL (SELECT last_cut_at + n * interval '1 microsecond' AS began, interval '1 microsecond' AS m) AS each
"""
"""All within the first second of the first window, and closed in it: no other has them."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path, "--secret", SECRET)
    yield started
    stop_all([started])


# Killed at a named point


@pytest.mark.parametrize("point", [CHUNKS, DIGEST, OUTCOME], ids=lambda point: point.told)
async def test_who_is_killed_at_any_point_leaves_nothing_out_and_bills_nothing_twice(
    postgres_database: Database, start: Start, receiver: RunningReceiver, point: Point, seed: int
) -> None:
    """Before it is written, when the cut, the attempt or the receiver's count is there already; then right after it."""
    fleet = await Fleet(start, postgres_database.url, cutting(receiver.address, SECRET), 2).ready()
    async with used(fleet.addresses, seed), barrier(postgres_database, point) as held_up:
        for go_on in (held_up.call_off, held_up.carry_out):
            await held_up.raise_()
            victim = instance_of(fleet, await held_up.caught())
            victim.kill()
            await go_on()
            await fleet.kill_and_replace(victim)
    await assert_billed_once(postgres_database, receiver.ledger, fleet, f"seed {seed}")


@pytest.mark.timeout(120)
async def test_who_is_killed_between_the_chunks_of_a_window_is_followed_by_one_who_goes_on_there(
    postgres_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    await postgres_database.execute(PUT_SESSIONS.format(count=PAGE * 1000 + 1500))
    async with barrier(postgres_database, SECOND_PAGE) as held_up:
        await held_up.raise_()
        fleet = await Fleet(start, postgres_database.url, cutting(receiver.address, SECRET), 1).ready()
        victim = instance_of(fleet, await held_up.caught())
        victim.kill()
        await held_up.call_off()
        saved = await chunks(postgres_database)
        await fleet.kill_and_replace(victim)
    await windows_delivered(postgres_database, 1, fleet.all)
    await assert_billed_once(postgres_database, receiver.ledger, fleet)
    assert saved == list(range(1, PAGE + 1)), "it was not between two pages"
    assert await chunks(postgres_database) == list(range(1, PAGE + 3))


async def chunks(database: Database) -> Sequence[int]:
    """Of the first window."""
    return [
        row["chunk"] for row in await database.rows("SELECT * FROM usage_chunks WHERE window_id = 1 ORDER BY chunk")
    ]


@pytest.mark.timeout(120)
async def test_all_is_billed_once_on_a_file_however_often_somebody_is_killed(
    sqlite_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    """At any moment, by chance."""
    source = random.Random(seed)
    fleet = await Fleet(start, sqlite_database.url, cutting(receiver.address, SECRET), 2).ready()
    async with used(fleet.addresses, seed):
        for _ in range(3):
            await asyncio.sleep(source.uniform(0.5, 1.5))
            await fleet.kill_and_replace(source.choice(fleet.running))
        await windows_delivered(sqlite_database, 3, fleet.all)
    await assert_billed_once(sqlite_database, receiver.ledger, fleet, f"seed {seed}")


# The database goes away


@pytest.mark.timeout(120)
async def test_all_is_billed_once_although_the_database_restarts(
    own_postgres: PostgresServer, own_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    fleet = await Fleet(start, own_database.url, cutting(receiver.address, SECRET), 2).ready()
    async with used(fleet.addresses, seed):
        for number in (2, 4):
            await windows_delivered(own_database, number, fleet.all)
            await asyncio.to_thread(own_postgres.stop)
            await asyncio.to_thread(own_postgres.start)
        await windows_delivered(own_database, 6, fleet.all)
    await assert_billed_once(own_database, receiver.ledger, fleet, f"seed {seed}")


# Standing still


@pytest.mark.parametrize("point", [CUT, CHUNKS], ids=lambda point: point.told)
async def test_who_stood_still_in_a_run_past_its_lock_writes_nothing_twice(
    postgres_database: Database, start: Start, receiver: RunningReceiver, point: Point, seed: int
) -> None:
    """What it had sent is carried out; when it goes on, it reads the answer, and another has done the rest."""
    fleet = await Fleet(start, postgres_database.url, cutting(receiver.address, SECRET), 2).ready()
    async with used(fleet.addresses, seed), barrier(postgres_database, point) as held_up:
        await held_up.raise_()
        slow = instance_of(fleet, await held_up.caught())
        epoch = await lock_epoch(postgres_database)
        slow.send(signal.SIGSTOP)
        try:
            await held_up.carry_out()
            await found(lambda: run_by_another(postgres_database, epoch), 20, "another one runs it", [])
        finally:
            slow.send(signal.SIGCONT)
        await until(lambda: "job.abandoned" in slow.log() or "job.lock_lost" in slow.log(), 5, "it knows", fleet.all)
    await assert_billed_once(postgres_database, receiver.ledger, fleet, f"seed {seed}")


async def run_by_another(database: Database, epoch: int) -> bool:
    """All that was cut before is divided, and more was cut."""
    runs: list[dict[str, Any]] = await database.rows(
        f"SELECT 1 FROM job_runs WHERE job = 'emit-usage' AND epoch > {epoch} AND outcome = 'succeeded'"
    )
    return bool(runs)


async def lock_epoch(database: Database) -> int:
    (row,) = await database.rows(f"SELECT epoch FROM leases WHERE name = '{JOB}'")
    return int(row["epoch"])
