"""Instances that stop or die, and their streams."""

import asyncio
import signal
import time

import pytest

from tests.streams.conftest import ServeLocally
from tests.support.databases import Database, postgres_server
from tests.support.instances import RunningInstance
from tests.support.streams import Client, Json, Streaming, streaming

pytestmark = pytest.mark.slow

STREAMS = 200
LEASE_SECONDS = 2
SETTINGS = {
    "TENURE_STREAMS__LEASE_SECONDS": str(LEASE_SECONDS),
    "TENURE_STREAMS__IDLE_SECONDS": "60",
    "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1",
    "TENURE_JOBS__EXPIRE_SESSIONS__LOCK_TIMEOUT_SECONDS": "2",
}
"""One that is killed while it sweeps keeps its lock for so long."""
PATIENT = SETTINGS | {"TENURE_STREAMS__LEASE_SECONDS": "24"}


async def open_many(clients: Streaming, count: int = STREAMS) -> list[tuple[Client, str]]:
    """Streams that have said 320 bytes and were answered."""
    opened = await asyncio.gather(*(_open_and_talk(clients) for _ in range(count)))
    return list(opened)


async def _open_and_talk(clients: Streaming) -> tuple[Client, str]:
    client, session = await clients.open()
    await _talk(client)
    return client, session["sessionId"]


async def _talk(client: Client) -> None:
    await client.say(b"x" * 320)
    assert await client.receive() == b"x" * 320


def seen(session: Json) -> tuple[str, str, int, int]:
    stream = session["stream"]
    return session["state"], session["closeReason"], stream["bytesReceived"], stream["messagesSent"]


async def test_a_stop_is_told_to_every_stream(start: type[RunningInstance], database: Database) -> None:
    leaving, staying = (start(database.url, **PATIENT).wait_until_ready() for _ in range(2))  # type: ignore[arg-type]
    async with streaming(leaving.port) as here, streaming(staying.port) as there:
        opened = await open_many(here)
        began = time.monotonic()
        leaving.send(signal.SIGTERM)
        told = await asyncio.gather(*(client.last_words() for client, _ in opened))
        code = await asyncio.to_thread(leaving.process.wait, 15)
        took = time.monotonic() - began
        assert [(end["type"], end["reason"], end["metrics"]["chunks"], code) for end, code in told] == [
            ("session_end", "SHUTDOWN", 1, 1012)
        ] * STREAMS
        sessions = [await there.get(session_id) for _, session_id in opened]
        assert {seen(session) for session in sessions} == {("closed", "SHUTDOWN", 320, 1)}
        assert code == 0, leaving.log()
        assert took < 5, leaving.log()


async def test_the_streams_of_a_killed_instance_lapse(
    start: type[RunningInstance], postgres_database: Database
) -> None:
    dying, staying = (start(postgres_database.url, **SETTINGS).wait_until_ready() for _ in range(2))  # type: ignore[arg-type]
    async with streaming(dying.port) as here, streaming(staying.port) as there:
        opened = await open_many(here)
        # From its next keep-alive on everything is counted in the database.
        for _, session_id in opened:
            await there.until(session_id, lambda session: session["stream"]["chunks"] == 1, 5)
        dying.kill()
        sessions = [await there.until_closed(session_id, LEASE_SECONDS + 4) for _, session_id in opened]
        assert {seen(session) for session in sessions} == {("closed", "LEASE_EXPIRED", 320, 1)}
        await _until_recorded(postgres_database)


async def _until_recorded(database: Database) -> None:
    """By the instance that is left, not only read as it will be recorded."""
    for _ in range(150):
        (row,) = await database.rows("SELECT count(*) AS n FROM sessions WHERE closed_at IS NULL")
        if row["n"] == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{row['n']} sessions have lapsed, and nobody has written it down")


async def test_streams_outlive_a_database_that_stops_and_comes_back(start: type[RunningInstance]) -> None:
    with postgres_server() as server:
        instance = start(server.url(), **PATIENT).wait_until_ready()  # type: ignore[arg-type]
        async with streaming(instance.port) as clients:
            opened = await open_many(clients, 20)
            await asyncio.to_thread(server.stop)
            for _ in range(4):
                await asyncio.gather(*(_talk(client) for client, _ in opened))
                await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
            await asyncio.gather(*(_talk(client) for client, _ in opened))
            ends = await asyncio.gather(*(client.stop() for client, _ in opened))
            assert {(end["reason"], end["metrics"]["chunks"], code) for end, code in ends} == {("STOPPED", 6, 1000)}
            sessions = [await clients.get(session_id) for _, session_id in opened]
            assert {seen(session) for session in sessions} == {("closed", "STOPPED", 1920, 6)}


async def test_a_stop_waits_for_nobody_who_never_opened_a_session(
    start: type[RunningInstance], sqlite_database: Database
) -> None:
    instance = start(sqlite_database.url).wait_until_ready()  # type: ignore[call-arg]
    async with streaming(instance.port) as clients:
        client = await clients.connect("/sessions/stream")
        began = time.monotonic()
        instance.send(signal.SIGTERM)
        _, code = await client.ending()
        assert code == 1012
        await asyncio.to_thread(instance.process.wait, 15)
        assert time.monotonic() - began < 4, instance.log()


async def test_refuses_a_stream_while_it_stops(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database)
    await service.instance.streams.stop()
    client = await service.clients.connect("/sessions/stream")
    error, code = await client.last_words()
    assert (error["code"], code) == ("DRAINING", 1012)
