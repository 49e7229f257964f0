"""Many concurrent clients of several instances, and a check of all responses against the session table.

`tests/support/history.py` contains the checks: a key has at most one live session at every instant, each session ends
after it starts, every response was true at some instant of its request, each session is reported as opened by exactly
one response (unless that response was lost), and a series of upgrades ends with the highest kind that was requested.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from tests.support.databases import Database
from tests.support.history import find_violations, read_sessions
from tests.support.instances import RunningInstance
from tests.support.load import Crowd, Exchange, clients

Start = Callable[..., RunningInstance]
LOST = 0
"""The status of an exchange whose response was lost."""
KILLS_MIN = 2


@pytest.mark.slow
async def test_responses_are_consistent_under_concurrency_and_kills_on_postgresql(
    postgres_database: Database, start: Start, seed: int
) -> None:
    await check_consistency(postgres_database, start, seed, instances=4, keys=200, each=24)


@pytest.mark.slow
async def test_responses_are_consistent_under_concurrency_and_kills_on_sqlite(
    sqlite_database: Database, start: Start, seed: int
) -> None:
    await check_consistency(sqlite_database, start, seed, instances=2, keys=100, each=16)


async def check_consistency(
    database: Database, start: Start, seed: int, *, instances: int, keys: int, each: int
) -> None:
    """Runs the load twice: without kills, where no response may be lost, and while instances are killed."""
    running = started(start, database, instances)
    exchanges = await run(running, Crowd(seed, keys=keys, requests_per_key=32), each)
    assert find_violations(exchanges, await read_sessions(database)) == [], f"seed {seed}"
    exchanges += await run_during_kills(start, database, running, keys=keys, each=each, seed=seed + 1)
    assert find_violations(exchanges, await read_sessions(database), also=[LOST]) == [], f"seed {seed}, with kills"


def started(start: Start, database: Database, count: int) -> list[RunningInstance]:
    return [instance.wait_until_ready() for instance in [start(database.url) for _ in range(count)]]


async def run(instances: Sequence[RunningInstance], crowd: Crowd, each: int) -> list[Exchange]:
    exchanges: list[Exchange] = []
    async with clients([instance.address for instance in instances], each, exchanges) as members:
        await crowd.run(members)
    return exchanges


async def run_during_kills(
    start: Start, database: Database, instances: list[RunningInstance], *, keys: int, each: int, seed: int
) -> list[Exchange]:
    """Runs one crowd after another until `KILLS_MIN` instances have been killed."""
    killer = Killer(start, database.url, instances, random.Random(seed))
    killing = asyncio.create_task(killer.run())
    exchanges: list[Exchange] = []
    while killer.kills < KILLS_MIN and not killing.done():
        crowd = Crowd(seed + len(exchanges), keys=keys, requests_per_key=32, retry_on=[LOST])
        exchanges += await run(instances, crowd, each)
    killer.enough = True
    await killing
    return exchanges


class Killer:
    """Kills random instances with SIGKILL, one at a time, and restarts each at the same address."""

    def __init__(
        self, start: Start, database: str, instances: list[RunningInstance], random_source: random.Random
    ) -> None:
        self._start, self._database = start, database
        self._instances = instances
        self._random = random_source
        self.enough = False
        self.kills = 0

    async def run(self) -> None:
        while not self.enough:
            victim = self._random.randrange(len(self._instances))
            port = self._instances[victim].port
            self._instances[victim].kill()
            self.kills += 1
            self._instances[victim] = await asyncio.to_thread(self._start, self._database, port=port)
            await asyncio.to_thread(self._instances[victim].wait_until_ready)
