"""Other instances respond in time while one instance is paused by SIGSTOP at random moments."""

import asyncio
import random
import signal
from collections.abc import Callable, Sequence

import pytest

from tenure.store.engines.postgres.connections import SETTINGS, connect
from tests.support.databases import Database
from tests.support.history import find_violations, read_sessions
from tests.support.instances import RunningInstance
from tests.support.load import Client, Exchange, Key, clients, retry_until, some_keys, steady_load
from tests.support.locks import locked_file
from tests.support.open_requests import open_one, request, same_key_request
from tests.support.processes import eventually

Start = Callable[..., RunningInstance]

DELAYED_SECONDS = 3
PAUSE_SECONDS = 2
PAUSES = 2
ANSWERED_WITHIN_SECONDS = 2
UNAVAILABLE = 503


@pytest.mark.slow
async def test_paused_instance_does_not_block_others_on_postgresql(
    postgres_database: Database, start: Start, seed: int
) -> None:
    paused, other = (instance.wait_until_ready() for instance in [start(postgres_database.url) for _ in range(2)])
    keys, source = some_keys(16, seed), random.Random(seed)
    async with (
        steady_load([paused.address], 16, keys=keys, seed=seed) as of_paused,
        steady_load([other.address], 16, keys=keys, seed=seed + 1) as of_other,
    ):
        await wait_for_load(of_other)
        for _ in range(PAUSES):
            await pause(paused, source.uniform(0, 0.05))
    assert [one for one in of_other if not is_served(one)] == [], f"seed {seed}"
    assert max(one.seconds for one in of_other) < DELAYED_SECONDS, f"seed {seed}"
    exchanges = [*of_paused, *of_other]
    broken = find_violations(exchanges, await read_sessions(postgres_database), also=[UNAVAILABLE])
    assert broken == [], f"seed {seed}\n{paused.log()}"


async def pause(instance: RunningInstance, after_seconds: float) -> None:
    await asyncio.sleep(after_seconds)
    instance.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_SECONDS)
    finally:
        instance.send(signal.SIGCONT)


@pytest.mark.slow
async def test_transaction_of_paused_owner_is_terminated_in_time(postgres_database: Database) -> None:
    """The paused owner of the transaction is a connection of the test, which locks a row and sends nothing more. An
    instance would rarely be paused within a transaction, because most of its transactions need only one round trip.
    """
    one = request(kind=1)
    await open_one(postgres_database.store, one)
    connection = await connect(postgres_database.url, SETTINGS)
    await connection.execute("BEGIN")
    await connection.execute("SELECT FROM sessions WHERE session_id = $1 FOR UPDATE", one.session_id)
    async with asyncio.timeout(DELAYED_SECONDS):
        await open_one(postgres_database.store, same_key_request(one, kind=2))
    connection.terminate()


async def test_connection_sets_all_server_timeouts(postgres_database: Database) -> None:
    """If the last message of a client never arrives, the backend waits for it within the transaction, but does not
    count as idle. Only `transaction_timeout` ends such a transaction.
    """
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
    connection = await connect(postgres_database.url, SETTINGS)
    limits = [
        int(await connection.fetchval(f"SELECT setting FROM pg_settings WHERE name = '{name}'")) for name in names
    ]
    await connection.close()
    assert all(0 < milliseconds <= 2000 for milliseconds in limits), dict(zip(names, limits, strict=True))


@pytest.mark.slow
async def test_other_instance_returns_503_while_paused_instance_locks_file(
    sqlite_database: Database, start: Start, seed: int
) -> None:
    paused, other = (instance.wait_until_ready() for instance in [start(sqlite_database.url) for _ in range(2)])
    keys = some_keys(50, seed)
    async with (
        steady_load([paused.address], 8, keys=keys, seed=seed) as exchanges,
        clients([other.address], 8) as others,
    ):
        await wait_for_load(exchanges)
        for release in (lambda: paused.send(signal.SIGCONT), paused.kill):
            refused = await pause_during_write(paused, others, keys)
            release()
            assert [one.headers[b"retry-after"] for one in refused] == [b"1"] * len(refused)
            assert max(one.seconds for one in refused) < ANSWERED_WITHIN_SECONDS
            await retry_until(lambda: others[0].open(keys[0], 1), is_served, ANSWERED_WITHIN_SECONDS)


async def test_reads_succeed_while_file_is_locked(sqlite_database: Database, start: Start) -> None:
    one = request()
    await open_one(sqlite_database.store, one)
    instance = start(sqlite_database.url).wait_until_ready()
    async with clients([instance.address], 1) as (client,):
        with locked_file(sqlite_database):
            assert (await client.get(f"/sessions/{one.session_id}")).status == 200


async def pause_during_write(
    instance: RunningInstance, others: Sequence[Client], keys: Sequence[Key]
) -> list[Exchange]:
    """Pauses the instance repeatedly until it is paused during a write, so that the other instance responds with 503.

    Returns the 503 responses. The instance is still paused then.
    """
    for attempt in range(40):
        instance.send(signal.SIGSTOP)
        responses = await asyncio.gather(*(client.open(key, 1) for client, key in zip(others, keys, strict=False)))
        refused = [one for one in responses if one.status == UNAVAILABLE]
        if refused:
            return refused
        instance.send(signal.SIGCONT)
        await asyncio.sleep(0.01 + attempt / 1000)
    raise AssertionError("never paused during a write")


def is_served(exchange: Exchange) -> bool:
    return exchange.status in (200, 201)


async def wait_for_load(exchanges: Sequence[Exchange]) -> None:
    await eventually(lambda: len(exchanges) > 100, 10, "the load has begun")
