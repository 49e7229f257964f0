"""A recovered gateway gets all waiting submissions, beginning with the oldest. If the leader is killed meanwhile, the
next leader delivers the rest.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crashes.test_usage_delivery import free_port
from tests.support.databases import Database
from tests.support.deliveries import (
    LONG_LEASE,
    TIMING,
    Fleet,
    all_delivered,
    find_violations,
    gateways,
    poll,
    received,
    submitter,
)
from tests.support.instances import RunningInstance, stop_all
from tests.support.receivers import RunningReceiver

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

COUNT = 40
CONTRACT = {"schedule": [0.2, 3600], "max_attempts": 9, "timeout_seconds": 5, "concurrency": 4}
"""With this schedule, a submission waits for an hour after its second failure."""
WAITING_FOR_AN_HOUR = (
    "SELECT 1 FROM submissions WHERE state = 'pending' AND failures = 2 AND next_attempt_at IS NOT NULL"
)


async def all_wait(database: Database, fleet: Fleet) -> None:
    async def enough() -> bool:
        return len(await database.rows(WAITING_FOR_AN_HOUR)) == COUNT

    await poll(enough, 30, f"{COUNT} submissions wait for an hour", fleet.all)


@pytest.mark.timeout(120)
async def test_recovered_gateway_gets_all_waiting_submissions(database: Database, start: Start, tmp_path: Path) -> None:
    port = free_port()
    settings = {**LONG_LEASE, **gateways(orders={"url": f"http://127.0.0.1:{port}/", **CONTRACT})}
    fleet = await Fleet(start, database.url, settings, 1).ready()
    async with submitter(fleet.addresses) as client:
        waiting = await client.submit_all(range(COUNT))
        await all_wait(database, fleet)
        receiver = RunningReceiver(tmp_path, port=port)
        try:
            await asyncio.to_thread(lambda: receiver.address)
            newest = await client.submit(COUNT)
            await all_delivered(database, 30, fleet.all)
            await fleet.stop()
            assert await find_violations(database, receiver, [*waiting, newest]) == []
            order = sorted(received(receiver), key=received(receiver).__getitem__)
        finally:
            stop_all([receiver])
    assert order[:2] == [newest, min(waiting)]
    assert len(fleet.logged("gateway.failing")) == len(fleet.logged("gateway.recovered")) == 1
    assert f'"waiting":{COUNT}' in fleet.logged("gateway.recovered")[0]


@pytest.mark.timeout(120)
async def test_next_leader_continues_recovery_after_kill(
    postgres_database: Database, start: Start, tmp_path: Path
) -> None:
    database, port = postgres_database, free_port()
    settings = {**TIMING, **gateways(orders={"url": f"http://127.0.0.1:{port}/", **CONTRACT})}
    fleet = await Fleet(start, database.url, settings, 2).ready()
    async with submitter(fleet.addresses) as client:
        waiting = await client.submit_all(range(COUNT))
        await all_wait(database, fleet)
        slowly = '{"share": 1, "ways": [{"way": "delay", "seconds": 0.3}]}'
        receiver = RunningReceiver(tmp_path, "--fail", slowly, port=port)
        try:
            await asyncio.to_thread(lambda: receiver.address)
            newest = await client.submit(COUNT)

            async def recovering() -> bool:
                return len(received(receiver)) > COUNT // 5

            await poll(recovering, 20, "the gateway recovers", fleet.all)
            await fleet.kill_and_replace(await fleet.leader())
            await all_delivered(database, 40, fleet.all)
            await fleet.stop()
            assert await find_violations(database, receiver, [*waiting, newest]) == []
        finally:
            stop_all([receiver])
