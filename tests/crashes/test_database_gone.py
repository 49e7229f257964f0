"""The database stops or freezes: instances respond with 503 in time, lose no session, and recover with the database."""

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
from tests.support.history import find_violations, read_sessions
from tests.support.instances import RunningInstance
from tests.support.load import Exchange, clients, retry_until, some_keys, steady_load
from tests.support.processes import Lag, eventually, frozen

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

ANSWERED_WITHIN_SECONDS = 2
UNAVAILABLE_SECONDS = 2 * ANSWERED_WITHIN_SECONDS + 1
"""Long enough for each client to get the response to its current request and to the next one."""
RECOVERED_WITHIN_SECONDS = 5
UNAVAILABLE = 503
LOST = 0
"""The status of an `Exchange` without a response."""


async def test_instance_returns_503_and_loses_no_session_while_database_is_stopped_or_frozen(
    own_postgres: PostgresServer, own_database: Database, start: Start, seed: int, lag: Lag
) -> None:
    """While the database is frozen, `/healthz` succeeds, and the instance can be stopped."""
    instance = start(own_database.url).wait_until_ready()
    async with steady_load([instance.address], 16, keys=some_keys(200, seed), seed=seed) as exchanges:
        await eventually(lambda: len(exchanges) > 200, 60, "the load has begun")
        await asyncio.to_thread(own_postgres.stop)
        stopped = await unavailable()
        await asyncio.to_thread(own_postgres.start)
        await served_again(exchanges, wall_microseconds())
        with frozen(own_postgres.pid):
            check = asyncio.create_task(check_health(instance, lag))
            froze = await unavailable()
            await check
        await served_again(exchanges, wall_microseconds())
    for what, (gone_at, back_at) in (("stopped", stopped), ("frozen", froze)):
        during = [one for one in exchanges if one.sent_at >= gone_at and 0 < one.received_at <= back_at]
        assert during, f"no request was sent while the database was {what}"
        assert [one for one in during if not is_503_with_retry_after(one)] == [], f"{what}, seed {seed}"
    assert [one for one in exchanges if one.seconds > ANSWERED_WITHIN_SECONDS + lag.of_answers] == []
    broken = find_violations(exchanges, await read_sessions(own_database), also=[UNAVAILABLE])
    assert broken == [], f"seed {seed}"
    with frozen(own_postgres.pid):
        instance.send(signal.SIGTERM)
        await eventually(lambda: instance.process.poll() is not None, 4, f"stopped\n{instance.log()}")
    assert instance.process.returncode == 0, instance.log()


async def unavailable() -> tuple[int, int]:
    gone_at = wall_microseconds()
    await asyncio.sleep(UNAVAILABLE_SECONDS)
    return gone_at, wall_microseconds()


async def check_health(instance: RunningInstance, lag: Lag) -> None:
    async with clients([instance.address], 2) as (first, second):
        alive, ready = await asyncio.gather(first.get("/healthz"), second.get("/readyz"))
    assert (alive.status, ready.status) == (200, UNAVAILABLE)
    assert alive.seconds < 0.5 + lag.of_answers
    assert ready.seconds < ANSWERED_WITHIN_SECONDS + lag.of_answers


def is_503_with_retry_after(one: Exchange) -> bool:
    shown = (one.status, one.headers.get(b"content-type"), one.headers.get(b"retry-after"))
    return shown == (UNAVAILABLE, b"application/problem+json", b"1")


async def served_again(exchanges: Sequence[Exchange], back_at: int) -> None:
    """Waits until a request that was sent after `back_at` succeeds, and then until more than a hundred have succeeded.

    No request that is sent more than a second after the first success may get 503.
    """

    def served() -> list[Exchange]:
        return [one for one in exchanges if one.sent_at > back_at and one.status in (200, 201)]

    await eventually(served, RECOVERED_WITHIN_SECONDS, "one request succeeds")
    again_at = served()[0].received_at
    await eventually(lambda: len(served()) > 100, RECOVERED_WITHIN_SECONDS, "a hundred requests succeed")
    refused = [one for one in exchanges if one.sent_at > again_at + 1_000_000 and one.status == UNAVAILABLE]
    assert refused == []


async def test_instance_becomes_ready_if_database_was_frozen_at_startup(
    own_postgres: PostgresServer, own_database: Database, start: Start
) -> None:
    with frozen(own_postgres.pid):
        instance = start(own_database.url)
        async with clients([instance.address], 1) as (client,):
            ready = await retry_until(lambda: client.get("/readyz"), lambda exchange: exchange.status != LOST, 5)
        await eventually(lambda: '"schema.waiting"' in instance.log(), 30, "the instance logs that it waits")
    assert (ready.status, ready.answer["code"]) == (UNAVAILABLE, "STARTING")
    instance.wait_until_ready()


async def test_connection_that_freezes_during_setup_is_closed(
    own_postgres: PostgresServer, own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the connection stayed open, repeated attempts would use up the connections of the server."""
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
