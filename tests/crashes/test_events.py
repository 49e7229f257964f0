"""All events reach the gateway and the clients of the feed in one order while instances die and commits are late."""

import asyncio
import json
import os
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from tenure.events.formats import event_json
from tenure.leases.waiting import is_set_within
from tests.races.test_usage import widen
from tests.support.databases import Database
from tests.support.deliveries import TIMING, Fleet, gateways, poll
from tests.support.events import expected_events
from tests.support.following import Follower, LongPoller, StreamReader
from tests.support.instances import RunningInstance, stop_all
from tests.support.load import TENANT, Client, Key, clients, some_keys
from tests.support.open_requests import NOON, some_id
from tests.support.receivers import RunningReceiver
from tests.support.sessions import read_session
from tests.support.waiting import all_logs

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

SECONDS = float(os.environ.get("TENURE_TEST_EVENTS_SECONDS", "15"))
CAUGHT_UP_SECONDS = 30
LATE_SECONDS = 0.7
LEASE_SECONDS = 1
ENVIRONMENT = {
    **TIMING,
    "TENURE_JOBS__EXPIRE_SESSIONS__PAUSED": "false",
    "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "2",
    "TENURE_JOBS__EMIT_USAGE__PAUSED": "true",
    "TENURE_SESSIONS__LEASE_SECONDS": str(LEASE_SECONDS),
}
TYPES = ["session.opened", "session.upgraded", "session.closed"]
OPEN = """
SELECT * FROM tenure_open_one_1(
    $1::uuid, $2::uuid, $3::uuid, 1::smallint, $4::uuid, 1000000, 1000000, NULL, 60000000, NULL, NULL, NULL)
"""


HORIZON_WITHOUT_BARRIER = """
CREATE OR REPLACE FUNCTION tenure_finish_publishing_1(p_stamped_after timestamptz) RETURNS timestamptz
LANGUAGE sql VOLATILE AS
'UPDATE installation SET published_at = greatest(published_at, p_stamped_after) RETURNING published_at'
"""


class Run(NamedTuple):
    seconds: float
    kill_every_seconds: float
    clients_each: int
    seed: int


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path)
    yield started
    stop_all([started])


@pytest.mark.timeout(300)
async def test_every_event_arrives_in_order_while_instances_are_killed_and_commits_are_late(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    await widen(postgres_database)
    await run(postgres_database, start, receiver, Run(SECONDS, 4, 4, seed), instances=4)


@pytest.mark.timeout(120)
async def test_every_event_arrives_in_order_on_sqlite(
    sqlite_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    await run(sqlite_database, start, receiver, Run(min(SECONDS, 8), 5, 2, seed), instances=2)


@pytest.mark.timeout(120)
async def test_events_are_missing_if_horizon_does_not_wait_for_commits(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that `run` detects missing events: if the horizon moves without waiting for writes in progress, it passes
    the timestamps of late commits, and the followers of the feed miss the events of these commits.
    """
    await postgres_database.execute(HORIZON_WITHOUT_BARRIER)
    monkeypatch.setattr(sys.modules[__name__], "CAUGHT_UP_SECONDS", 1)
    with pytest.raises(AssertionError, match="LongPoller Run"):
        await run(postgres_database, start, receiver, Run(3, 3, 2, seed), instances=1)


async def run(database: Database, start: Start, receiver: RunningReceiver, plan: Run, instances: int) -> None:
    hooks = {"url": receiver.address, "schedule": [0.1, 0.5], "timeout_seconds": 5, "events": TYPES}
    fleet = await Fleet(start, database.url, {**ENVIRONMENT, **gateways(hooks=hooks)}, instances).ready()
    await poll(lambda: subscribed(database), 15, "the gateway has its position", fleet.all)
    followers: list[Follower] = [LongPoller(fleet.addresses), StreamReader(fleet.addresses)]
    following = [asyncio.create_task(follower.run()) for follower in followers]
    try:
        async with asyncio.TaskGroup() as tasks:
            disturbing = tasks.create_task(disturb(fleet, plan))
            if database.engine == "postgresql":
                tasks.create_task(commit_late(database.url, disturbing))
        await asyncio.sleep(LEASE_SECONDS + 0.5)
        expected = await expected_in(database)
        shown = f"{plan}\n{[follower.connections for follower in followers]}"
        for follower in followers:
            await caught_up(lambda follower=follower: follower.events, expected, f"{type(follower).__name__} {shown}")
        await caught_up(
            lambda: received_events(receiver.ledger), expected, f"the gateway, {shown}\n{all_logs(fleet.all)}"
        )
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    fleet.kill()
    types = {event["type"] for event in expected}
    reasons = {event.get("closeReason") for event in expected}
    assert types == set(TYPES), shown
    assert reasons >= {"LEASE_EXPIRED", "UPGRADED", "TERMINATED"}, shown
    assert len(expected) > 200, shown
    assert keys_seen(receiver.ledger) == sorted(keys_seen(receiver.ledger)), "batches did not arrive in order"


async def subscribed(database: Database) -> bool:
    return bool(await database.rows("SELECT 1 FROM event_subscriptions"))


async def disturb(fleet: Fleet, plan: Run) -> None:
    """Opens and closes sessions on all instances, and kills and replaces one instance after another."""
    source = random.Random(plan.seed)
    stopping = asyncio.Event()
    asyncio.get_running_loop().call_later(plan.seconds, stopping.set)
    async with asyncio.TaskGroup() as tasks:
        for number in range(len(fleet.addresses) * plan.clients_each):
            user = User(fleet.addresses, number, some_keys(80, plan.seed), random.Random(plan.seed + number))
            tasks.create_task(user.run(stopping))
        while not stopping.is_set():
            await asyncio.sleep(plan.kill_every_seconds)
            if not stopping.is_set():
                await fleet.kill_and_replace(source.choice(fleet.running))


class User:
    def __init__(self, addresses: Sequence[str], number: int, keys: Sequence[Key], source: random.Random) -> None:
        self._addresses, self._number, self._keys, self._random = addresses, number, keys, source

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            async with clients([self._addresses[self._number % len(self._addresses)]], 1) as (client,):
                while not stopping.is_set() and await self._act(client):
                    await is_set_within(stopping, self._random.uniform(0, 0.1))
            await is_set_within(stopping, 0.1)

    async def _act(self, client: Client) -> bool:
        """Returns whether the instance answered."""
        key = self._random.choice(self._keys)
        opened = await client.open(key, self._random.choices((1, 2, 3), (5, 3, 2))[0])
        if opened.status not in (200, 201):
            return opened.status != 0
        session_id = opened.answer["sessionId"]
        if self._random.random() < 0.3:
            await client.send("POST", f"/sessions/{session_id}/heartbeat")
        if self._random.random() < 0.3:
            return (await client.end(key, session_id)).status != 0
        return True


async def commit_late(url: str, disturbing: "asyncio.Task[None]") -> None:
    """Opens sessions in transactions that commit long after they have read the clock."""
    connection = await asyncpg.connect(url)
    try:
        while not disturbing.done():
            async with connection.transaction():
                await connection.fetch(OPEN, some_id(), some_id(), TENANT, some_id())
                await asyncio.sleep(LATE_SECONDS)
            await asyncio.sleep(LATE_SECONDS)
    finally:
        connection.terminate()


async def expected_in(database: Database) -> list[dict[str, Any]]:
    ids = [str(row["session_id"]) for row in await database.rows("SELECT session_id FROM sessions")]
    sessions = [await read_session(database, session_id) for session_id in ids]
    return [json.loads(event_json(event)) for event in expected_events(sessions, NOON.replace(year=2200))]


async def caught_up(seen: Callable[[], Sequence[dict[str, Any]]], expected: list[dict[str, Any]], shown: str) -> None:
    """Waits until as many events are seen as expected, and compares all events and their order."""
    for _ in range(CAUGHT_UP_SECONDS * 10):
        if len(seen()) >= len(expected):
            break
        await asyncio.sleep(0.1)
    found = list(seen())
    missing = [event for event in expected if event not in found][:3]
    extra = [event for event in found if event not in expected][:3]
    assert (missing, extra) == ([], []), shown
    assert found == expected, f"another order, or an event twice: {shown}"


def received_events(ledger: Path) -> list[dict[str, Any]]:
    with sqlite3.connect(ledger) as connection:
        rows = connection.execute("SELECT content FROM events ORDER BY position").fetchall()
    return [json.loads(content) for (content,) in rows]


def keys_seen(ledger: Path) -> list[int]:
    with sqlite3.connect(ledger) as connection:
        rows = connection.execute("SELECT key FROM deliveries ORDER BY position").fetchall()
    return [int(key.rpartition("-")[2]) for (key,) in rows]
