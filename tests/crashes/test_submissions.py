"""Every submission is delivered, and the receiver counts it once, when leaders are killed, paused or stopped while they
send, and when the database restarts or freezes.
"""

import asyncio
import random
import signal
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
    Fleet,
    SilentReceiver,
    all_delivered,
    comparing_often,
    find_violations,
    gateways,
    poll,
    set_faults,
    submitter,
    totals,
)
from tests.support.instances import RunningInstance, stop_all
from tests.support.processes import frozen
from tests.support.receivers import RunningReceiver
from tests.support.terms import leads, terms
from tests.support.waiting import all_logs, until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

CONCURRENCY = 64
CONTRACT = {"schedule": [0.1, 0.5, 1], "concurrency": CONCURRENCY, "max_attempts": 1000, "timeout_seconds": 5}
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
"""All faults of the receiver, with shorter delays than its defaults."""
EPOCHS = f"SELECT epoch FROM lease_history WHERE name = '{LEASE}'"
UNKNOWN_EPOCHS = "SELECT DISTINCT epoch FROM submission_attempts WHERE outcome = 'unknown'"
DRAINED_WITHIN_SECONDS = 10
TAKEN_OVER_WITHIN_SECONDS = 15
"""How long another instance may take to acquire the released lease and to send: much less than the
60 seconds that a lease lasts with LONG_LEASE."""
FROZEN_SECONDS = 3
"""Longer than the lease duration of two seconds that TIMING sets."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path)
    yield started
    stop_all([started])


# Kill and pause


class Disturbance(NamedTuple):
    faults: Sequence[str]
    """What happens to the current leader, in order: `kill` or `pause`."""
    submissions_min: int
    pause_seconds: float
    """The pause of each client after each submission. It limits how much is submitted until the last fault is over."""
    seed: int


@pytest.mark.timeout(240)
async def test_every_submission_is_delivered_once_while_leaders_are_killed_and_paused(
    postgres_database: Database, start: Start, receiver: RunningReceiver, tmp_path: Path, seed: int
) -> None:
    environment = {**TIMING, **comparing_often(tmp_path), **gateways(orders=to(receiver))}
    fleet = await Fleet(start, postgres_database.url, environment, 3).ready()
    disturbance = Disturbance(["kill", "pause", "kill", "pause"], 3_000, 0.05, seed)
    await survive(postgres_database, receiver, fleet, disturbance)


@pytest.mark.timeout(180)
async def test_every_submission_is_delivered_once_while_leaders_are_killed_on_sqlite(
    sqlite_database: Database, start: Start, receiver: RunningReceiver, tmp_path: Path, seed: int
) -> None:
    environment = {**TIMING, **comparing_often(tmp_path), **gateways(orders=to(receiver))}
    fleet = await Fleet(start, sqlite_database.url, environment, 2).ready()
    await survive(sqlite_database, receiver, fleet, Disturbance(["kill", "kill"], 300, 0.2, seed))


async def survive(database: Database, receiver: RunningReceiver, fleet: Fleet, disturbance: Disturbance) -> None:
    await set_faults(receiver, {"share": 1 / 3, "seed": disturbance.seed, "ways": EVERY_WAY})
    async with submitter(fleet.addresses) as submitting:
        disturbing = asyncio.create_task(disturb_leaders(fleet, disturbance))
        numbers = list[int]()
        submitted = until_done(disturbing, disturbance.submissions_min, numbers)
        submission_ids = await submitting.submit_all(submitted, 32, disturbance.pause_seconds)
        paused_epochs = await disturbing
    await all_delivered(database, 60, fleet.all)
    await fleet.stop()
    shown = f"{disturbance}, {submitting.repeated} repeated\n{all_logs(fleet.all)}"
    assert await find_violations(database, receiver, submission_ids) == [], shown
    assert fleet.logged("submissions.found_late") == [], shown
    assert len(set(submission_ids)) == len(set(numbers)) < len(numbers), shown
    assert submitting.repeated, f"no client had to retry\n{shown}"
    assert len(await database.rows(EPOCHS)) > len(disturbance.faults), shown
    unknown = {row["epoch"] for row in await database.rows(UNKNOWN_EPOCHS)}
    in_flight = not paused_epochs or paused_epochs & unknown
    assert in_flight, f"nothing was in flight at the pauses: {paused_epochs}, {unknown}\n{shown}"


def until_done(disturbing: "asyncio.Task[Any]", at_least: int, given: list[int]) -> Iterator[int]:
    """Yields at least `at_least` numbers to submit, and further numbers until the last fault is over. Appends each
    number to `given`.

    One number in ten is submitted twice, and must be accepted as the same submission.
    """
    for turn in count():
        if turn * 10 // 11 >= at_least and disturbing.done():
            return
        given.append(turn * 10 // 11)
        yield given[-1]


async def disturb_leaders(fleet: Fleet, disturbance: Disturbance) -> set[int]:
    """Kills and pauses leaders. Returns the epochs in which leaders were paused."""
    source, paused = random.Random(disturbance.seed), set[int]()
    for fault in disturbance.faults:
        leader = await fleet.leader()
        await asyncio.sleep(source.uniform(0.2, 1.5))
        if fault == "kill":
            await fleet.kill_and_replace(leader)
        else:
            paused.add(terms([leader.log()])[-1].epoch)
            await pause(fleet, leader, source)
    return paused


async def pause(fleet: Fleet, leader: RunningInstance, source: random.Random) -> None:
    """Pauses the leader, with requests in flight, until another instance has led for some time."""
    leader.send(signal.SIGSTOP)
    others = [instance for instance in fleet.running if instance is not leader]
    try:
        await until(lambda: any(leads(each.log()) for each in others), 10, "another instance leads", fleet.all)
        await asyncio.sleep(source.uniform(0.5, 1))
    finally:
        leader.send(signal.SIGCONT)
    await until(lambda: not leads(leader.log()), 5, "the paused leader has lost its lease", fleet.all)


async def test_submission_with_open_attempt_is_sent_again_after_kill_and_restart(
    sqlite_database: Database, start: Start
) -> None:
    async with SilentReceiver() as silent:
        environment = {**TIMING, **gateways(orders={"url": silent.address})}
        first = await asyncio.to_thread(start(sqlite_database.url, **environment).wait_until_ready)
        async with submitter([first.address]) as submitting:
            submission_id = await submitting.submit(1)
        await until(lambda: len(silent.keys) == 1, 5, "the submission is sent", [first])
        first.kill()
        second = start(sqlite_database.url, **environment)
        await until(lambda: len(silent.keys) == 2, 10, "the submission is sent again", [first, second])
        (row,) = await sqlite_database.rows("SELECT failures FROM submissions")
        second.kill()
    assert silent.keys == [submission_id] * 2
    outcomes = [(each["number"], each["outcome"]) for each in await attempts(sqlite_database, submission_id)]
    assert (outcomes, row["failures"]) == ([(1, "unknown"), (2, None)], 0), second.log()


# Stop


async def test_stopped_leader_records_responses_and_next_leader_sends_the_rest(
    database: Database, start: Start, receiver: RunningReceiver
) -> None:
    """More submissions are due than may be in flight at once, and the receiver of another gateway does not respond."""
    await set_faults(receiver, {"share": 1, "ways": [{"way": "delay", "seconds": 1}]})
    async with SilentReceiver() as silent:
        environment = {**LONG_LEASE, **gateways(orders=to(receiver), silent={"url": silent.address})}
        fleet = await Fleet(start, database.url, environment, 2).ready()
        leader = await fleet.leader()
        async with submitter([leader.address], "silent") as submitting:
            unanswered = await submitting.submit(1)
        await until(lambda: silent.keys == [unanswered], TAKEN_OVER_WITHIN_SECONDS, "sent to `silent`", fleet.all)
        async with submitter([leader.address]) as submitting:
            submission_ids = await submitting.submit_all(range(200), at_once=16)
        await requests_received(receiver, CONCURRENCY)
        await stop_in_time(leader, fleet)
        outcomes = await outcomes_of(database, terms([leader.log()])[-1].epoch)
        await until(
            lambda: silent.keys == [unanswered] * 2, TAKEN_OVER_WITHIN_SECONDS, "sent twice to `silent`", fleet.all
        )
        silent.accept_all()
        await all_delivered(database, 15, fleet.all)
        await fleet.stop()
    logs = all_logs(fleet.all)
    assert set(outcomes) <= {"delivered", "abandoned", "unknown"}, f"{outcomes}\n{logs}"
    assert (outcomes.count("delivered") >= CONCURRENCY, outcomes.count("unknown")) == (True, 1), f"{outcomes}\n{logs}"
    assert outcomes.count("delivered") < len(submission_ids), f"nothing was left for the next leader\n{logs}"
    first, second = await attempts(database, unanswered)
    assert (first["outcome"], second["outcome"]) == ("unknown", "delivered"), logs
    assert first["error"] == "the instance stopped before it got a response"
    assert await find_violations(database, receiver, submission_ids, elsewhere=1) == [], logs
    assert (await totals(receiver))["duplicates"] == 0


async def outcomes_of(database: Database, epoch: int) -> list[str | None]:
    rows = await database.rows(f"SELECT outcome FROM submission_attempts WHERE epoch = {epoch}")
    return [row["outcome"] for row in rows]


async def stop_in_time(leader: RunningInstance, fleet: Fleet) -> None:
    leader.send(signal.SIGTERM)
    await until(lambda: leader.process.poll() is not None, DRAINED_WITHIN_SECONDS, "the leader stops", fleet.all)
    assert leader.process.returncode == 0, leader.log()


# The database is unavailable


@pytest.mark.timeout(120)
async def test_every_submission_is_delivered_once_when_database_restarts_and_freezes(
    own_postgres: PostgresServer, own_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    await set_faults(receiver, {"share": 0.2, "ways": EVERY_WAY})
    fleet = await Fleet(start, own_database.url, {**TIMING, **gateways(orders=to(receiver))}, 2).ready()
    async with submitter(fleet.addresses) as submitting:
        disturbing = asyncio.create_task(restart_and_freeze(own_postgres, receiver))
        submitted = until_done(disturbing, 1500, [])
        submission_ids = await submitting.submit_all(submitted, at_once=8, pause_seconds=0.01)
        await disturbing
    await all_delivered(own_database, 40, fleet.all)
    await fleet.stop()
    assert submitting.repeated, "no client had to retry"
    assert await find_violations(own_database, receiver, submission_ids) == [], all_logs(fleet.all)


async def restart_and_freeze(server: PostgresServer, receiver: RunningReceiver) -> None:
    await requests_received(receiver, 100)
    await asyncio.to_thread(server.stop)
    await asyncio.sleep(1)
    await asyncio.to_thread(server.start)
    await requests_received(receiver, 100 + (await totals(receiver))["requests"])
    with frozen(server.pid):
        await asyncio.sleep(FROZEN_SECONDS)


# Helpers


def to(receiver: RunningReceiver) -> dict[str, Any]:
    return {"url": receiver.address, **CONTRACT}


async def requests_received(receiver: RunningReceiver, count: int) -> None:
    async def enough() -> bool:
        return bool((await totals(receiver))["requests"] >= count)

    await poll(enough, 20, f"{count} requests were received")


async def attempts(database: Database, submission_id: str) -> Sequence[dict[str, Any]]:
    rows = await database.rows("SELECT * FROM submission_attempts ORDER BY number")
    return [row for row in rows if str(row["submission_id"]) == submission_id]
