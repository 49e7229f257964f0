"""Everybody at once: instances in processes of their own, one database, and a reckoning afterwards.

What is checked is in `tests/support/history.py`: one live session per key at every instant, no overlap, each end after
its start, every answer true while its request was under way, every opening reported once, the highest kind given.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from tests.support.databases import Database
from tests.support.history import broken_promises, lived
from tests.support.instances import RunningInstance
from tests.support.load import Crowd, Exchange, clients

Start = Callable[..., RunningInstance]
LOST = 0
KILLS_MIN = 2


@pytest.mark.slow
async def test_everybody_is_told_the_truth_on_postgresql(postgres_database: Database, start: Start, seed: int) -> None:
    crowd = Crowd(seed, keys=250, requests_per_key=32)
    exchanges = await asked(started(start, postgres_database, 4), crowd, each=32)
    assert broken_promises(exchanges, await lived(postgres_database)) == [], f"seed {seed}"


@pytest.mark.slow
async def test_everybody_is_told_the_truth_on_sqlite(sqlite_database: Database, start: Start, seed: int) -> None:
    crowd = Crowd(seed, keys=100, requests_per_key=32)
    exchanges = await asked(started(start, sqlite_database, 2), crowd, each=16)
    assert broken_promises(exchanges, await lived(sqlite_database)) == [], f"seed {seed}"


@pytest.mark.slow
async def test_killed_instances_cost_nothing_on_postgresql(
    postgres_database: Database, start: Start, seed: int
) -> None:
    exchanges = await asked_among_kills(start, postgres_database, 4, keys=300, seed=seed)
    assert broken_promises(exchanges, await lived(postgres_database), also=[LOST]) == [], f"seed {seed}"


@pytest.mark.slow
async def test_killed_instances_cost_nothing_on_sqlite(sqlite_database: Database, start: Start, seed: int) -> None:
    exchanges = await asked_among_kills(start, sqlite_database, 2, keys=250, seed=seed)
    assert broken_promises(exchanges, await lived(sqlite_database), also=[LOST]) == [], f"seed {seed}"


def started(start: Start, database: Database, count: int) -> list[RunningInstance]:
    return [instance.wait_until_ready() for instance in [start(database.url) for _ in range(count)]]


async def asked(instances: Sequence[RunningInstance], crowd: Crowd, each: int) -> list[Exchange]:
    exchanges: list[Exchange] = []
    async with clients([instance.address for instance in instances], each, exchanges) as members:
        await crowd.ask(members)
    return exchanges


async def asked_among_kills(start: Start, database: Database, count: int, *, keys: int, seed: int) -> list[Exchange]:
    """One crowd after the other, until instances have been killed and started again often enough to prove something."""
    instances = started(start, database, count)
    killer = Killer(start, database.url, instances, random.Random(seed))
    killing = asyncio.create_task(killer.run())
    exchanges: list[Exchange] = []
    while killer.kills < KILLS_MIN and not killing.done():
        crowd = Crowd(seed + len(exchanges), keys=keys, requests_per_key=32, repeat_on=[LOST])
        exchanges += await asked(instances, crowd, each=16)
    killer.enough = True
    await killing
    return exchanges


class Killer:
    """Kills one instance after the other, without warning, and starts it again at the same address."""

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
