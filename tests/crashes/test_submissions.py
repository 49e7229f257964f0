"""Leaders are killed, stopped and frozen in the middle of sending: everything arrives, and is counted once."""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.databases import Database, PostgresServer
from tests.support.deliveries import (
    LEASE,
    LONG_LEASE,
    TIMING,
    BlackHole,
    Fleet,
    all_delivered,
    broken_promises,
    comparing_often,
    found,
    gateways,
    set_faults,
    submitter,
    totals,
)
from tests.support.instances import RunningInstance, stop_all
from tests.support.processes import frozen
from tests.support.receivers import RunningReceiver
from tests.support.terms import leads
from tests.support.waiting import all_logs, until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

HASTY = {"schedule": [0.1, 0.5, 1], "concurrency": 64, "max_attempts": 1000, "timeout_seconds": 5}
EVERY_WAY = [
    {"way": "status", "status": 500},
    {"way": "status", "status": 503, "retryAfterSeconds": 1},
    {"way": "status", "status": 429, "retryAfterSeconds": 1, "retryAfterAs": "date"},
    {"way": "delay", "seconds": 0.5},
    {"way": "slow-body", "seconds": 0.05},
    {"way": "endless-body", "weight": 0.5},
    {"way": "drop"},
    {"way": "drop", "counted": False},
    {"way": "reject-duplicates"},
    {"way": "redirect"},
    {"way": "garbage"},
]
"""As a receiver fails that is told a share alone, but those that take their time take less of it."""
EPOCHS = f"SELECT epoch FROM lease_history WHERE name = '{LEASE}'"
DRAINED_WITHIN_SECONDS = 10
AT_ONCE_SECONDS = 15
"""For another instance to see that nobody leads, to build its schedule, and to send: long before a lease of a minute
would have run out."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path)
    yield started
    stop_all([started])


# Killed


@pytest.mark.timeout(240)
async def test_everything_arrives_once_however_often_the_leader_is_killed(
    postgres_database: Database, start: Start, receiver: RunningReceiver, tmp_path: Path, seed: int
) -> None:
    environment = shop(receiver, **TIMING, **comparing_often(tmp_path))
    fleet = await Fleet(start, postgres_database.url, environment, 4).ready()
    await survive_kills(postgres_database, receiver, fleet, Ordeal(5_000, 0.05, 5, seed))


@pytest.mark.timeout(180)
async def test_everything_arrives_once_on_a_file_too(
    sqlite_database: Database, start: Start, receiver: RunningReceiver, tmp_path: Path, seed: int
) -> None:
    environment = shop(receiver, **TIMING, **comparing_often(tmp_path))
    fleet = await Fleet(start, sqlite_database.url, environment, 2).ready()
    await survive_kills(sqlite_database, receiver, fleet, Ordeal(500, 0.2, 3, seed))


class Ordeal(NamedTuple):
    submissions_min: int
    pause_seconds: float
    """Of each of the clients, so that some are submitted around every kill."""
    kills: int
    seed: int


async def survive_kills(database: Database, receiver: RunningReceiver, fleet: Fleet, ordeal: Ordeal) -> None:
    await set_faults(receiver, {"share": 1 / 3, "seed": ordeal.seed, "ways": EVERY_WAY})
    async with submitter(fleet.addresses) as submitting:
        killing = asyncio.create_task(kill_leaders(fleet, ordeal.kills, random.Random(ordeal.seed)))
        numbers = list[int]()
        wanted = until_over(killing, ordeal.submissions_min, numbers)
        submission_ids = await submitting.submit_all(wanted, 32, ordeal.pause_seconds)
        await killing
    await all_delivered(database, 60, fleet.all)
    await fleet.stop()
    shown = f"{ordeal}, {submitting.repeated} repeated\n{all_logs(fleet.all)}"
    assert await broken_promises(database, receiver, submission_ids) == [], shown
    assert fleet.told("submissions.found_late") == [], shown
    assert len(set(submission_ids)) == len(set(numbers)) < len(numbers), shown
    assert submitting.repeated, f"nobody noticed\n{shown}"
    assert len(await database.rows(EPOCHS)) > ordeal.kills, shown


def until_over(killing: asyncio.Task[None], at_least: int, given: list[int]) -> Iterator[int]:
    """Numbers to submit, so that the last who is killed leaves work too; notes them in `given`.

    A tenth comes again, mostly to another instance: what was accepted under its key is what it gets.
    """
    for turn in count():
        if turn * 10 // 11 >= at_least and killing.done():
            return
        given.append(turn * 10 // 11)
        yield given[-1]


async def kill_leaders(fleet: Fleet, kills: int, source: random.Random) -> None:
    for _ in range(kills):
        leader = await fleet.leader()
        await asyncio.sleep(source.uniform(0.2, 2))
        await fleet.kill_and_replace(leader)


# Asked to stop


async def test_answers_that_are_on_the_way_are_recorded_before_it_stops(
    database: Database, start: Start, receiver: RunningReceiver
) -> None:
    await set_faults(receiver, {"share": 1, "ways": [{"way": "delay", "seconds": 1}]})
    fleet = await Fleet(start, database.url, shop(receiver, **LONG_LEASE), 2).ready()
    leader = await fleet.leader()
    async with submitter([leader.address]) as submitting:
        submission_ids = await submitting.submit_all(range(20))
        await under_way(receiver, 20)
    leader.send(signal.SIGTERM)
    assert await asyncio.to_thread(leader.wait_for_its_end) == 0
    outcomes = await database.rows("SELECT outcome, holder FROM submission_attempts")
    assert [each["outcome"] for each in outcomes] == ["delivered"] * 20, leader.log()
    await fleet.stop()
    assert await broken_promises(database, receiver, submission_ids) == [], all_logs(fleet.all)
    assert (await totals(receiver))["duplicates"] == 0


async def test_what_waits_when_it_stops_is_sent_by_another(
    database: Database, start: Start, receiver: RunningReceiver
) -> None:
    """Hundreds are due, of which few are under way."""
    await set_faults(receiver, {"share": 1, "ways": [{"way": "delay", "seconds": 0.3}]})
    fleet = await Fleet(start, database.url, shop(receiver, **LONG_LEASE), 2).ready()
    leader = await fleet.leader()
    async with submitter(fleet.addresses) as submitting:
        submission_ids = await submitting.submit_all(range(400), at_once=8)
    leader.send(signal.SIGTERM)
    assert await asyncio.to_thread(leader.wait_for_its_end) == 0
    await all_delivered(database, 15, fleet.all)
    await fleet.stop()
    assert await broken_promises(database, receiver, submission_ids) == [], all_logs(fleet.all)
    assert (await totals(receiver))["duplicates"] == 0
    outcomes = await database.rows("SELECT DISTINCT outcome FROM submission_attempts")
    assert {each["outcome"] for each in outcomes} <= {"delivered", "abandoned"}, all_logs(fleet.all)


async def test_who_never_answers_keeps_nobody_from_stopping(database: Database, start: Start) -> None:
    async with BlackHole() as hole:
        fleet = await Fleet(start, database.url, {**LONG_LEASE, **gateways(shop={"url": hole.address})}, 2).ready()
        leader = await fleet.leader()
        async with submitter([leader.address]) as submitting:
            submission_id = await submitting.submit(1)
        await until(lambda: hole.keys == [submission_id], AT_ONCE_SECONDS, "it is sent", fleet.all)
        began = time.monotonic()
        leader.send(signal.SIGTERM)
        await until(lambda: leader.process.poll() is not None, DRAINED_WITHIN_SECONDS, "it stops", fleet.all)
        ended_after = time.monotonic() - began
        await until(lambda: hole.keys == [submission_id] * 2, AT_ONCE_SECONDS, "it is sent again", fleet.all)
        first, second = await attempts(database, submission_id)
        fleet.kill()
    assert ended_after < DRAINED_WITHIN_SECONDS
    assert (leader.process.returncode, first["outcome"], second["outcome"]) == (0, "unknown", None), all_logs(fleet.all)
    assert first["error"] == "the instance stopped before an answer came"


async def test_who_stopped_with_an_attempt_open_sends_it_again_when_it_is_back(
    sqlite_database: Database, start: Start
) -> None:
    async with BlackHole() as hole:
        environment = {**TIMING, **gateways(shop={"url": hole.address})}
        first = await asyncio.to_thread(start(sqlite_database.url, **environment).wait_until_ready)
        async with submitter([first.address]) as submitting:
            submission_id = await submitting.submit(1)
        await until(lambda: len(hole.keys) == 1, 5, "it is sent", [first])
        first.kill()
        second = start(sqlite_database.url, **environment)
        await until(lambda: len(hole.keys) == 2, 10, "it is sent again", [first, second])
        (row,) = await sqlite_database.rows("SELECT failures FROM submissions")
        second.kill()
    assert hole.keys == [submission_id] * 2
    outcomes = [(each["number"], each["outcome"]) for each in await attempts(sqlite_database, submission_id)]
    assert (outcomes, row["failures"]) == ([(1, "unknown"), (2, None)], 0), second.log()


# Standing still


@pytest.mark.timeout(120)
async def test_a_leader_that_stood_still_past_its_lease_writes_nothing_more(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    """With requests on the way, answers unread, and more that is due."""
    await set_faults(receiver, {"share": 0.5, "seed": seed, "ways": [{"way": "delay", "seconds": 0.5}]})
    fleet = await Fleet(start, postgres_database.url, shop(receiver, **TIMING), 3).ready()
    source = random.Random(seed)
    async with submitter(fleet.addresses) as submitting:
        loading = asyncio.create_task(submitting.submit_all(range(3000), at_once=8))
        for _ in range(2):
            await stand_still(fleet, source)
        submission_ids = await loading
    await all_delivered(postgres_database, 30, fleet.all)
    await fleet.stop()
    shown = f"seed {seed}\n{all_logs(fleet.all)}"
    assert await broken_promises(postgres_database, receiver, submission_ids) == [], shown
    (unknown,) = await postgres_database.rows(
        "SELECT count(*) AS count FROM submission_attempts WHERE outcome = 'unknown'"
    )
    assert unknown["count"] > 0, f"nothing was under way\n{shown}"


async def stand_still(fleet: Fleet, source: random.Random) -> None:
    leader = await fleet.leader()
    await asyncio.sleep(source.uniform(0.5, 1))
    leader.send(signal.SIGSTOP)
    others = [instance for instance in fleet.running if instance is not leader]
    try:
        await until(lambda: any(leads(each.log()) for each in others), 10, "another one leads", fleet.all)
        await asyncio.sleep(source.uniform(0.5, 1))
    finally:
        leader.send(signal.SIGCONT)
    await until(lambda: not leads(leader.log()), 5, "the old one knows", fleet.all)


# The database goes away


@pytest.mark.timeout(120)
@pytest.mark.parametrize("trouble", ["restarts", "stands still"])
async def test_everything_arrives_once_whatever_the_database_does_meanwhile(
    own_postgres: PostgresServer, own_database: Database, start: Start, receiver: RunningReceiver, trouble: str
) -> None:
    await set_faults(receiver, {"share": 0.2, "ways": EVERY_WAY})
    fleet = await Fleet(start, own_database.url, shop(receiver, **TIMING), 2).ready()
    async with submitter(fleet.addresses) as submitting:
        troubling = asyncio.create_task(cause(trouble, own_postgres, receiver))
        wanted = until_over(troubling, 1500, [])
        submission_ids = await submitting.submit_all(wanted, at_once=8, pause_seconds=0.01)
        await troubling
    await all_delivered(own_database, 40, fleet.all)
    await fleet.stop()
    assert submitting.repeated, "nobody noticed"
    assert await broken_promises(own_database, receiver, submission_ids) == [], all_logs(fleet.all)


async def cause(trouble: str, server: PostgresServer, receiver: RunningReceiver) -> None:
    await under_way(receiver, 100)
    await (restart if trouble == "restarts" else stop_for_a_while)(server)


async def restart(server: PostgresServer) -> None:
    await asyncio.to_thread(server.stop)
    await asyncio.sleep(1)
    await asyncio.to_thread(server.start)


async def stop_for_a_while(server: PostgresServer) -> None:
    """For longer than a lease lasts."""
    with frozen(server.pid):
        await asyncio.sleep(4)


# What is used above


def shop(receiver: RunningReceiver, **environment: str) -> dict[str, str]:
    return {**environment, **gateways(shop={"url": receiver.address, **HASTY})}


async def under_way(receiver: RunningReceiver, count: int) -> None:
    async def have_come() -> bool:
        return bool((await totals(receiver))["requests"] >= count)

    await found(have_come, 10, f"{count} requests have come")


async def attempts(database: Database, submission_id: str) -> Sequence[dict[str, Any]]:
    rows = await database.rows("SELECT * FROM submission_attempts ORDER BY number")
    return [row for row in rows if str(row["submission_id"]) == submission_id]
