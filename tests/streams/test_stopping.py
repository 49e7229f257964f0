"""The streams of an instance that is stopped or killed."""

import asyncio
import signal
import time

import pytest

from tests.streams.conftest import ServeLocally
from tests.support.databases import Database, postgres_server
from tests.support.instances import RunningInstance
from tests.support.streams import Client, Json, Streaming, streaming

pytestmark = pytest.mark.slow

STREAMS = 100
LEASE_SECONDS = 2
SETTINGS = {
    "TENURE_STREAMS__LEASE_SECONDS": str(LEASE_SECONDS),
    "TENURE_STREAMS__IDLE_SECONDS": "60",
    "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1",
    "TENURE_JOBS__EXPIRE_SESSIONS__LOCK_TIMEOUT_SECONDS": "2",
}
"""If an instance is killed during a sweep, the lock of the sweep expires after two seconds."""
LONG_LEASE = SETTINGS | {"TENURE_STREAMS__LEASE_SECONDS": "24"}


async def open_many(clients: Streaming, count: int = STREAMS) -> list[tuple[Client, str]]:
    """Opens streams. Each has sent 320 bytes, and received them as an echo."""
    opened = await asyncio.gather(*(_open_and_talk(clients) for _ in range(count)))
    return list(opened)


async def _open_and_talk(clients: Streaming) -> tuple[Client, str]:
    client, session = await clients.open()
    await _talk(client)
    return client, session["sessionId"]


async def _talk(client: Client) -> None:
    await client.send(b"x" * 320)
    assert await client.receive() == b"x" * 320


def seen(session: Json) -> tuple[str, str, int, int]:
    stream = session["stream"]
    return session["state"], session["closeReason"], stream["bytesReceived"], stream["messagesSent"]


async def test_shutdown_sends_session_end_to_every_stream(start: type[RunningInstance], database: Database) -> None:
    leaving, staying = (start(database.url, **LONG_LEASE).wait_until_ready() for _ in range(2))  # type: ignore[arg-type]
    async with streaming(leaving.port) as clients, streaming(staying.port) as others:
        opened = await open_many(clients)
        began = time.monotonic()
        leaving.send(signal.SIGTERM)
        ends = await asyncio.gather(*(client.final_message() for client, _ in opened))
        code = await asyncio.to_thread(leaving.process.wait, 15)
        took = time.monotonic() - began
        assert '"streams.stopped"' in leaving.log()
        assert [(end["type"], end["reason"], end["metrics"]["chunks"], code) for end, code in ends] == [
            ("session_end", "SHUTDOWN", 1, 1012)
        ] * STREAMS
        sessions = [await others.get(session_id) for _, session_id in opened]
        assert {seen(session) for session in sessions} == {("closed", "SHUTDOWN", 320, 1)}
        assert code == 0, leaving.log()
        assert took < 5, leaving.log()


async def test_sessions_of_killed_instance_lapse(start: type[RunningInstance], postgres_database: Database) -> None:
    killed, staying = (start(postgres_database.url, **SETTINGS).wait_until_ready() for _ in range(2))  # type: ignore[arg-type]
    async with streaming(killed.port) as clients, streaming(staying.port) as others:
        opened = await open_many(clients)
        # The next keep-alive saves the counters in the database.
        for _, session_id in opened:
            await others.until(session_id, lambda session: session["stream"]["chunks"] == 1, 5)
        killed.kill()
        sessions = [await others.until_closed(session_id, LEASE_SECONDS + 4) for _, session_id in opened]
        assert {seen(session) for session in sessions} == {("closed", "LEASE_EXPIRED", 320, 1)}
        await _until_recorded(postgres_database)


async def _until_recorded(database: Database) -> None:
    """Waits until the other instance has recorded the ends. Reads show the ends earlier, because they compute the ends
    of lapsed sessions.
    """
    for _ in range(150):
        (row,) = await database.rows("SELECT count(*) AS n FROM sessions WHERE closed_at IS NULL")
        if row["n"] == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{row['n']} sessions have lapsed, and their ends are not recorded")


async def test_streams_survive_database_restart(start: type[RunningInstance]) -> None:
    with postgres_server() as server:
        instance = start(server.url(), **LONG_LEASE).wait_until_ready()  # type: ignore[arg-type]
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


async def test_shutdown_does_not_wait_for_client_without_session(
    start: type[RunningInstance], sqlite_database: Database
) -> None:
    instance = start(sqlite_database.url).wait_until_ready()  # type: ignore[call-arg]
    async with streaming(instance.port) as clients:
        client = await clients.connect("/sessions/stream")
        began = time.monotonic()
        instance.send(signal.SIGTERM)
        _, code = await client.read_to_end()
        assert code == 1012
        await asyncio.to_thread(instance.process.wait, 15)
        assert time.monotonic() - began < 4, instance.log()


async def test_stream_during_shutdown_is_rejected_as_draining(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database)
    await service.instance.streams.stop()
    client = await service.clients.connect("/sessions/stream")
    error, code = await client.final_message()
    assert (error["code"], code) == ("DRAINING", 1012)
