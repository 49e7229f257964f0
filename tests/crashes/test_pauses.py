"""A stopped process holds nobody up: SIGSTOP at random moments, and everybody else is served meanwhile."""

import asyncio
import random
import signal
from collections.abc import Callable, Sequence

import pytest

from tenure.store.engines.postgres.connections import SETTINGS, connect
from tests.support.databases import Database
from tests.support.history import broken_promises, lived
from tests.support.instances import RunningInstance
from tests.support.load import Client, Exchange, Key, clients, repeated, some_keys, steady_load
from tests.support.locks import holding_the_file
from tests.support.processes import eventually
from tests.support.wishes import again, open_one, wish

Start = Callable[..., RunningInstance]

HELD_UP_SECONDS = 3
PAUSE_SECONDS = 2
PAUSES = 3
TOLD_WITHIN_SECONDS = 2
UNAVAILABLE = 503


@pytest.mark.slow
async def test_a_paused_instance_holds_nobody_up_on_postgresql(
    postgres_database: Database, start: Start, seed: int
) -> None:
    paused, other = (instance.wait_until_ready() for instance in [start(postgres_database.url) for _ in range(2)])
    keys, source = some_keys(16, seed), random.Random(seed)
    async with (
        steady_load([paused.address], 16, keys=keys, seed=seed) as theirs,
        steady_load([other.address], 16, keys=keys, seed=seed + 1) as ours,
    ):
        await under_way(ours)
        for _ in range(PAUSES):
            await pause(paused, source.uniform(0, 0.05))
    assert [one for one in ours if not is_served(one)] == [], f"seed {seed}"
    assert max(one.seconds for one in ours) < HELD_UP_SECONDS, f"seed {seed}"
    exchanges = [*theirs, *ours]
    broken = broken_promises(exchanges, await lived(postgres_database), also=[UNAVAILABLE])
    assert broken == [], f"seed {seed}\n{paused.log()}"


async def pause(instance: RunningInstance, after_seconds: float) -> None:
    await asyncio.sleep(after_seconds)
    instance.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_SECONDS)
    finally:
        instance.send(signal.SIGCONT)


@pytest.mark.slow
async def test_a_transaction_whose_owner_stands_still_is_ended_in_time(postgres_database: Database) -> None:
    """Work that needs several round trips, as writes outside the hot lane do, by an instance that was stopped in it."""
    one = wish(kind=1)
    await open_one(postgres_database.store, one)
    connection = await connect(postgres_database.url, SETTINGS)
    await connection.execute("BEGIN")
    await connection.execute("SELECT FROM sessions WHERE session_id = $1 FOR UPDATE", one.session_id)
    async with asyncio.timeout(HELD_UP_SECONDS):
        await open_one(postgres_database.store, again(one, kind=2))
    connection.terminate()


async def test_every_connection_bounds_what_it_can_hold(postgres_database: Database) -> None:
    """`transaction_timeout` alone ends a transaction whose last message never arrives."""
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
    connection = await connect(postgres_database.url, SETTINGS)
    limits = [
        int(await connection.fetchval(f"SELECT setting FROM pg_settings WHERE name = '{name}'")) for name in names
    ]
    await connection.close()
    assert all(0 < milliseconds <= 2000 for milliseconds in limits), dict(zip(names, limits, strict=True))


@pytest.mark.slow
async def test_others_are_told_while_a_paused_instance_keeps_the_file(
    sqlite_database: Database, start: Start, seed: int
) -> None:
    paused, other = (instance.wait_until_ready() for instance in [start(sqlite_database.url) for _ in range(2)])
    keys = some_keys(50, seed)
    async with steady_load([paused.address], 8, keys=keys, seed=seed) as theirs, clients([other.address], 8) as members:
        await under_way(theirs)
        refused = await stop_in_the_middle_of_a_write(paused, members, keys)
        paused.send(signal.SIGCONT)
        assert [one.headers[b"retry-after"] for one in refused] == [b"1"] * len(refused)
        assert max(one.seconds for one in refused) < TOLD_WITHIN_SECONDS
        await repeated(lambda: members[0].open(keys[0], 1), is_served, TOLD_WITHIN_SECONDS)


@pytest.mark.slow
async def test_a_paused_instance_that_is_killed_gives_the_file_back(
    sqlite_database: Database, start: Start, seed: int
) -> None:
    paused, other = (instance.wait_until_ready() for instance in [start(sqlite_database.url) for _ in range(2)])
    keys = some_keys(50, seed)
    async with steady_load([paused.address], 8, keys=keys, seed=seed) as theirs, clients([other.address], 8) as members:
        await under_way(theirs)
        await stop_in_the_middle_of_a_write(paused, members, keys)
        paused.kill()
        await repeated(lambda: members[0].open(keys[0], 1), is_served, TOLD_WITHIN_SECONDS)


async def test_reads_are_answered_while_somebody_keeps_the_file(sqlite_database: Database, start: Start) -> None:
    one = wish()
    await open_one(sqlite_database.store, one)
    instance = start(sqlite_database.url).wait_until_ready()
    async with clients([instance.address], 1) as (client,):
        with holding_the_file(sqlite_database):
            assert (await client.get(f"/sessions/{one.session_id}")).status == 200


async def stop_in_the_middle_of_a_write(
    instance: RunningInstance, others: Sequence[Client], keys: Sequence[Key]
) -> list[Exchange]:
    """Stops it until it happens to hold the file, which the others notice. Returns what they were told."""
    for attempt in range(40):
        instance.send(signal.SIGSTOP)
        answers = await asyncio.gather(*(client.open(key, 1) for client, key in zip(others, keys, strict=False)))
        refused = [one for one in answers if one.status == UNAVAILABLE]
        if refused:
            return refused
        instance.send(signal.SIGCONT)
        await asyncio.sleep(0.01 + attempt / 1000)
    raise AssertionError("never stopped in the middle of a write")


def is_served(exchange: Exchange) -> bool:
    return exchange.status in (200, 201)


async def under_way(exchanges: Sequence[Exchange]) -> None:
    await eventually(lambda: len(exchanges) > 100, 10, "the load is under way")
