"""An instance that is stopping, as a load balancer sees it."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.load import clients, some_keys
from tests.support.processes import eventually, frozen
from tests.support.streams import Client as StreamClient
from tests.support.streams import Refused

pytestmark = pytest.mark.slow

DRAIN_SECONDS = 2.0
PAUSE_SECONDS = 0.02
SETTINGS = {"TENURE_HTTP__DRAIN_SECONDS": "2"}
HALF = b"POST /sessions/heartbeats HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
REST = b'content-length: 55\r\n\r\n{"sessionIds":["00000000-0000-7000-8000-000000000001"]}'

Start = Callable[..., RunningInstance]


async def test_draining_instance_serves_for_drain_seconds_and_closes_connections(
    sqlite_database: Database, start: Start
) -> None:
    """Both lanes answer with `Connection: close`, and the handshake of a stream is refused."""
    instance = start(sqlite_database.url, **SETTINGS).wait_until_ready()
    async with clients([instance.address], 2) as (kept, fresh):
        before = await kept.open(some_keys(1, 0)[0], 1)
        assert (before.status, b"connection" in before.headers) == (201, False)
        arrived = time.monotonic()
        await draining(instance)
        for client in (kept, fresh):
            hot = await client.open(some_keys(1, 0)[0], 1)
            client.close()
            ordinary = await client.get("/sessions")
            client.close()
            assert [(each.status, each.headers[b"connection"]) for each in (hot, ordinary)] == [(200, b"close")] * 2
        with pytest.raises(Refused) as refused:
            await StreamClient.connect(instance.port, "/sessions/stream")
        assert (refused.value.status, json.loads(refused.value.body)["code"]) == (503, "DRAINING")
        while instance.process.poll() is None and time.monotonic() - arrived < DRAIN_SECONDS - 0.5:
            assert (await fresh.open(some_keys(1, 0)[0], 1)).status == 200
            fresh.close()
            await asyncio.sleep(PAUSE_SECONDS)
        assert instance.process.poll() is None
    await eventually(lambda: instance.process.poll() is not None, 10, "stopped")
    assert (instance.process.returncode, time.monotonic() - arrived >= DRAIN_SECONDS) == (0, True)


async def test_stopping_instance_answers_requests_that_are_still_arriving(
    sqlite_database: Database, start: Start
) -> None:
    """The requests arrive on a connection that was used before, on an idle connection, and on a connection that was
    opened after SIGTERM.
    """
    instance = start(sqlite_database.url).wait_until_ready()
    used, new = [await asyncio.open_connection("127.0.0.1", instance.port) for _ in range(2)]
    used[1].write(HALF + REST)
    assert (await used[0].readuntil(b'"count":1}')).startswith(b"HTTP/1.1 200")
    await draining(instance)
    used[1].write(HALF)
    new[1].write(HALF)
    last = await last_connection(instance.port)
    last[1].write(HALF)
    await asyncio.sleep(0.1)
    for reader, writer in (used, new, last):
        writer.write(REST)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert b"connection: close" in answer
        writer.close()
    await eventually(lambda: instance.process.poll() == 0, 5, "stopped")


async def test_stopping_instance_answers_connections_in_its_accept_queue(
    sqlite_database: Database, start: Start
) -> None:
    """The connections arrive while the process is paused, so the instance accepts them only after its drain time is
    over.
    """
    instance = start(sqlite_database.url).wait_until_ready()
    await draining(instance)
    with frozen(instance.process.pid):
        connections = [socket.create_connection(("127.0.0.1", instance.port)) for _ in range(20)]
        for connection in connections:
            connection.sendall(HALF + REST)
        await asyncio.sleep(0.6)
    for connection in connections:
        with closing(connection):
            connection.settimeout(5)
            assert (await asyncio.to_thread(connection.recv, 100)).startswith(b"HTTP/1.1 200")
    await eventually(lambda: instance.process.poll() == 0, 5, "stopped")


async def draining(instance: RunningInstance) -> None:
    instance.send(signal.SIGTERM)
    await eventually(lambda: "instance.draining" in instance.log(), 2, "draining")


async def last_connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects until the instance refuses connections, and returns the last one that it accepted."""
    last = await asyncio.open_connection("127.0.0.1", port)
    while True:
        try:
            next_one = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return last
        last[1].transport.abort()
        last = next_one
        await asyncio.sleep(PAUSE_SECONDS)
