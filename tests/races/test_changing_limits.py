"""A limit that changes all the time while everybody opens and instances die: it holds from the instant it is set."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.races.test_one_session import Killer, started
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.load import Client, Exchange, clients
from tests.support.seats import LimitLog, Taken, Users, seats_taken
from tests.support.wishes import some_id

Start = Callable[..., RunningInstance]
LIMITS = (4, 12, 30)
USERS = 500
INSTANCES = 3
SECONDS = 5.0
KILLS_MIN = 2
CHANGE_SECONDS = 0.1
END_SHARE = 0.95
OVER = 410
LOST = 0


@pytest.mark.slow
@pytest.mark.parametrize("when_full", ["reject", "evictOldest"])
async def test_every_seat_is_taken_within_the_limit_of_that_instant(
    postgres_database: Database, start: Start, seed: int, when_full: str
) -> None:
    running = started(start, postgres_database, INSTANCES)
    log, capacity_id = LimitLog(postgres_database), some_id()
    await log.begin()
    exchanges: list[Exchange] = []
    kills = await _open_among_changes(start, postgres_database, running, capacity_id, when_full, seed, exchanges)
    limits = await log.limits(capacity_id)
    taken = await seats_taken(postgres_database, capacity_id, limits)
    statuses = Counter(exchange.status for exchange in exchanges)
    told = f"seed {seed}, {statuses}, {kills} kills, {len(limits)} limits, {len(taken)} seats taken"
    assert [seat for seat in taken if seat.live > seat.limit] == [], told
    assert set(statuses) <= {200, 201, OVER, 429, 503, LOST}, told
    assert _last_seats(taken), f"nobody has run into a limit: {told}"


def _last_seats(taken: Sequence[Taken]) -> set[int]:
    return {seat.limit for seat in taken if seat.live == seat.limit}


async def _open_among_changes(
    start: Start,
    database: Database,
    running: list[RunningInstance],
    capacity_id: str,
    when_full: str,
    seed: int,
    exchanges: list[Exchange],
) -> int:
    """How often an instance was killed meanwhile."""
    addresses = [instance.address for instance in running]
    killer = Killer(start, database.url, running, random.Random(seed))
    users = Users(capacity_id, [some_id() for _ in range(USERS)], seed, END_SHARE)
    async with clients(addresses, 1) as operators, clients(addresses, 20, exchanges) as members:
        operator = _Operator(operators, capacity_id, when_full, seed)
        first = await operator.change()
        assert first.status == 200, first
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(killer.run())
            tasks.create_task(operator.run())
            await users.come_and_go(members, SECONDS)
            while killer.kills < KILLS_MIN:
                await users.come_and_go(members, 1)
            killer.enough = operator.enough = True
    return killer.kills


class _Operator:
    """Sets one limit after the other, through any instance."""

    def __init__(self, operators: Sequence[Client], capacity_id: str, when_full: str, seed: int) -> None:
        self._operators = operators
        self._path = f"/capacities/{capacity_id}"
        self._when_full = when_full
        self._random = random.Random(seed)
        self.enough = False

    async def run(self) -> None:
        while not self.enough:
            await asyncio.sleep(CHANGE_SECONDS)
            await self.change()

    async def change(self) -> Exchange:
        rules = {"maxSessions": self._random.choice(LIMITS), "whenFull": self._when_full}
        return await self._random.choice(self._operators).send("PUT", self._path, rules)
