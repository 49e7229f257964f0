"""A changed limit applies from the instant at which it is set, under load and while instances are killed."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.races.test_one_session import Killer, started
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.load import Client, Exchange, clients
from tests.support.open_requests import some_id
from tests.support.seats import LimitLog, Users, seats_taken

Start = Callable[..., RunningInstance]
LIMITS = (4, 12, 30)
USERS = 500
INSTANCES = 3
SECONDS = 5.0
KILLS_MIN = 2
CHANGE_SECONDS = 0.1
END_SHARE = 0.95
"""The share of sessions that the users end. The other sessions are renewed or abandoned."""
OVER = 410
LOST = 0
"""The status of an exchange whose response was lost."""


@pytest.mark.slow
async def test_live_sessions_never_exceed_limit_while_limit_changes(
    postgres_database: Database, start: Start, seed: int
) -> None:
    """A capacity that rejects and one that evicts are under load at the same time, while instances are killed."""
    running = started(start, postgres_database, INSTANCES)
    log, capacities = LimitLog(postgres_database), {when_full: some_id() for when_full in ("reject", "evictOldest")}
    await log.begin()
    async with clients([running[0].address], 1) as operators:
        for when_full, capacity_id in capacities.items():
            first = await _Operator(operators, capacity_id, when_full, seed).change()
            assert first.status == 200, first
    exchanges: list[Exchange] = []
    killer = Killer(start, postgres_database.url, running, random.Random(seed))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(killer.run())
        loads = [_open_during_changes(running, capacities, each, seed, exchanges, killer) for each in capacities]
        await asyncio.gather(*loads)
        killer.enough = True
    statuses = Counter(exchange.status for exchange in exchanges)
    assert set(statuses) <= {200, 201, OVER, 429, 503, LOST}, f"seed {seed}, {statuses}"
    for when_full, capacity_id in capacities.items():
        limits = await log.limits(capacity_id)
        taken = await seats_taken(postgres_database, capacity_id, limits)
        shown = f"{when_full}, seed {seed}, {statuses}, {killer.kills} kills, {len(limits)} limits, {len(taken)} seats"
        assert [seat for seat in taken if seat.live > seat.limit] == [], shown
        assert any(seat.live == seat.limit for seat in taken), f"no limit was reached: {shown}"


async def _open_during_changes(
    running: Sequence[RunningInstance],
    capacities: Mapping[str, str],
    when_full: str,
    seed: int,
    exchanges: list[Exchange],
    killer: Killer,
) -> None:
    addresses = [instance.address for instance in running]
    users = Users(capacities[when_full], [some_id() for _ in range(USERS)], seed, END_SHARE)
    async with clients(addresses, 1) as operators, clients(addresses, 12, exchanges) as members:
        operator = _Operator(operators, capacities[when_full], when_full, seed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(operator.run())
            await users.run(members, SECONDS)
            while killer.kills < KILLS_MIN:
                await users.run(members, 1)
            operator.enough = True


class _Operator:
    """Changes the limit again and again, through random instances."""

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
