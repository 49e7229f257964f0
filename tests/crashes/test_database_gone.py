"""The database stops, or stops answering: everybody is told so in time, and everything works once it is back."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import asyncpg
import pytest

from tenure.clock import wall_microseconds
from tenure.store.engines.postgres.connections import SETTINGS, connect
from tests.support.databases import Database, PostgresServer
from tests.support.history import broken_promises, lived
from tests.support.instances import RunningInstance
from tests.support.load import Exchange, clients, repeated, some_keys, steady_load
from tests.support.processes import eventually, frozen

Start = Callable[..., RunningInstance]

STOPPED_SECONDS = 5
FROZEN_SECONDS = 4
TOLD_WITHIN_SECONDS = 2
BACK_WITHIN_SECONDS = 5
UNAVAILABLE = 503
LOST = 0


@pytest.mark.slow
async def test_a_stopped_database_is_told_and_costs_no_session(
    own_postgres: PostgresServer, own_database: Database, start: Start, seed: int
) -> None:
    instance = start(own_database.url).wait_until_ready()
    async with steady_load([instance.address], 16, keys=some_keys(200, seed), seed=seed) as exchanges:
        await under_way(exchanges)
        await asyncio.to_thread(own_postgres.stop)
        gone_at = wall_microseconds()
        await asyncio.sleep(STOPPED_SECONDS)
        back_at = wall_microseconds()
        await asyncio.to_thread(own_postgres.start)
        await served_again(exchanges, wall_microseconds())
    assert untold(within(exchanges, gone_at, back_at)) == []
    assert slow(exchanges) == []
    assert broken_promises(exchanges, await lived(own_database), also=[UNAVAILABLE]) == [], f"seed {seed}"


@pytest.mark.slow
async def test_a_frozen_database_is_told_and_costs_no_session(
    own_postgres: PostgresServer, own_database: Database, start: Start, seed: int
) -> None:
    instance = start(own_database.url).wait_until_ready()
    async with steady_load([instance.address], 16, keys=some_keys(200, seed), seed=seed) as exchanges:
        await under_way(exchanges)
        with frozen(own_postgres.pid):
            gone_at = wall_microseconds()
            await asyncio.sleep(FROZEN_SECONDS)
            back_at = wall_microseconds()
        await served_again(exchanges, back_at)
    assert untold(within(exchanges, gone_at, back_at)) == []
    assert slow(exchanges) == []
    assert broken_promises(exchanges, await lived(own_database), also=[UNAVAILABLE]) == [], f"seed {seed}"


@pytest.mark.slow
async def test_probes_tell_a_frozen_database_from_a_dead_process(
    own_postgres: PostgresServer, own_database: Database, start: Start
) -> None:
    instance = start(own_database.url).wait_until_ready()
    async with clients([instance.address], 2) as (first, second):
        with frozen(own_postgres.pid):
            alive, ready = await asyncio.gather(first.get("/healthz"), second.get("/readyz"))
        assert (alive.status, ready.status) == (200, UNAVAILABLE)
        assert alive.seconds < 0.5
        assert ready.seconds < TOLD_WITHIN_SECONDS
        instance.wait_until_ready()


@pytest.mark.slow
async def test_a_frozen_database_does_not_keep_an_instance_from_stopping(
    own_postgres: PostgresServer, own_database: Database, start: Start
) -> None:
    instance = start(own_database.url).wait_until_ready()
    async with clients([instance.address], 1) as (client,):
        await client.open(some_keys(1, 0)[0], 1)
        with frozen(own_postgres.pid):
            instance.send(signal.SIGTERM)
            await eventually(lambda: instance.process.poll() is not None, 4, f"stopped\n{instance.log()}")
    assert instance.process.returncode == 0, instance.log()


@pytest.mark.slow
async def test_an_instance_that_starts_before_its_database_becomes_ready(
    own_postgres: PostgresServer, own_database: Database, start: Start
) -> None:
    with frozen(own_postgres.pid):
        instance = start(own_database.url)
        async with clients([instance.address], 1) as (client,):
            ready = await repeated(lambda: client.get("/readyz"), lambda exchange: exchange.status != LOST, 5)
    assert (ready.status, ready.answer["code"]) == (UNAVAILABLE, "STARTING")
    instance.wait_until_ready()


async def test_a_connection_that_freezes_while_it_is_set_up_is_not_kept(
    own_postgres: PostgresServer, own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every try that was given up leaves one behind, until the server takes no more."""
    made: list[asyncpg.Connection] = []
    really_connect = asyncpg.connect

    async def connect_and_freeze(*arguments: Any, **settings: Any) -> asyncpg.Connection:
        made.append(await really_connect(*arguments, **settings))
        frozen_server.enter_context(frozen(own_postgres.pid))
        limit.reschedule(asyncio.get_running_loop().time() + 0.2)
        return made[-1]

    with ExitStack() as frozen_server:
        monkeypatch.setattr(asyncpg, "connect", connect_and_freeze)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                await connect(own_database.url, SETTINGS)
        is_closed = [connection.is_closed() for connection in made]
    made[0].terminate()
    assert is_closed == [True]


async def under_way(exchanges: Sequence[Exchange]) -> None:
    await eventually(lambda: len(exchanges) > 200, 10, "the load is under way")


async def served_again(exchanges: Sequence[Exchange], back_at: int) -> None:
    """Waits for the first answer, and then for a hundred more, which must be answers as well."""

    def served() -> list[Exchange]:
        return [one for one in exchanges if one.sent_at > back_at and one.status in (200, 201)]

    await eventually(served, BACK_WITHIN_SECONDS, "served again")
    again_at = served()[0].received_at
    await eventually(lambda: len(served()) > 100, BACK_WITHIN_SECONDS, "served normally")
    refused = [one for one in exchanges if one.sent_at > again_at + 1_000_000 and one.status == UNAVAILABLE]
    assert refused == []


def within(exchanges: Sequence[Exchange], start: int, end: int) -> list[Exchange]:
    found = [one for one in exchanges if one.sent_at >= start and one.received_at <= end and one.received_at]
    assert found, "nobody asked while the database was gone"
    return found


def untold(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Those that were not answered as an unreachable database demands."""
    told = (UNAVAILABLE, b"application/problem+json", b"1")
    return [
        one
        for one in exchanges
        if (one.status, one.headers.get(b"content-type"), one.headers.get(b"retry-after")) != told
    ]


def slow(exchanges: Sequence[Exchange]) -> list[Exchange]:
    return [one for one in exchanges if one.seconds > TOLD_WITHIN_SECONDS]
