"""HAProxy and nginx in front of three instances that are restarted one after the other under load."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.deployment.proxies import (
    free_port,
    haproxy_command,
    needs_haproxy,
    needs_nginx,
    nginx_command,
    running,
)
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.load import Client, Exchange
from tests.support.streams import Client as StreamClient
from tests.support.streams import Refused

pytestmark = [pytest.mark.slow, needs_haproxy, needs_nginx]

INSTANCES = 3
SETTINGS = {"TENURE_HTTP__DRAIN_SECONDS": "2", "TENURE_HTTP__TRUSTED_PROXIES": '["127.0.0.1"]'}
HEARTBEATS_PER_SESSION = 4
CLIENTS = 6
STREAMS = 4
PAUSE_SECONDS = 0.02
NOTICED_SECONDS = 2.5
"""How long the proxies may take to use an instance again. HAProxy needs up to a second on a quiet machine."""

Start = Callable[..., RunningInstance]


class Load:
    """Clients of one proxy: opens and heartbeats on reused and on new connections, and streams that reconnect."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self._port = port
        self.exchanges: list[Exchange] = []
        self.stream_ends: Counter[object] = Counter()
        self.messages = 0
        self._is_over = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._request(keeps_connection=number % 2 == 0))
            for _ in range(STREAMS):
                tasks.create_task(self._stream())
            yield
            self._is_over = True

    @property
    def failures(self) -> list[tuple[str, str, int, object]]:
        return [
            (exchange.method, exchange.path, exchange.status, exchange.answer)
            for exchange in self.exchanges
            if exchange.status not in (200, 201)
        ]

    async def _request(self, *, keeps_connection: bool) -> None:
        client = Client(f"http://127.0.0.1:{self._port}", self.exchanges)
        while not self._is_over:
            opened = await client.open((str(uuid4()), str(uuid4())), 1)
            for _ in range(HEARTBEATS_PER_SESSION if opened.status in (200, 201) else 0):
                if not keeps_connection:
                    client.close()
                await client.send("POST", f"/sessions/{opened.answer['sessionId']}/heartbeat")
                await asyncio.sleep(PAUSE_SECONDS)
        client.close()

    async def _stream(self) -> None:
        while not self._is_over:
            try:
                self.stream_ends[await self._use_stream()] += 1
            except (Refused, OSError, EOFError, AssertionError) as error:
                self.stream_ends[repr(error)] += 1
                await asyncio.sleep(PAUSE_SECONDS)

    async def _use_stream(self) -> object:
        """Sends and receives until the stream ends; returns its close reason and code."""
        client = await StreamClient.connect(self._port, "/sessions/stream")
        try:
            return await self._talk(client)
        finally:
            client.writer.transport.abort()

    async def _talk(self, client: StreamClient) -> object:
        await client.open(userObjectId=str(uuid4()), tenantObjectId=str(UUID(int=1)), capacityId=str(uuid4()))
        ending = asyncio.create_task(client.final_message())
        for number in count():
            if ending.done() or self._is_over:
                break
            await client.send(f"message {number}")
            self.messages += 1
            await asyncio.sleep(PAUSE_SECONDS)
        if not ending.done():
            await client.send('{"type": "stop"}')
        last, code = await ending
        return last.get("reason"), code


@pytest.fixture
def ports() -> list[int]:
    return [free_port() for _ in range(INSTANCES)]


@pytest.fixture
def proxy_ports(ports: list[int], tmp_path: Path) -> Iterator[dict[str, int]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running(command, folder(tmp_path, name), ports))
            for name, command in (("haproxy", haproxy_command), ("nginx", nginx_command))
        }


def folder(parent: Path, name: str) -> Path:
    path = parent / name
    path.mkdir()
    parent.chmod(0o755)
    return path


async def test_rolling_restart_fails_no_request(
    postgres_database: Database, start: Start, ports: list[int], proxy_ports: dict[str, int]
) -> None:
    instances = [start(postgres_database.url, port=port, **SETTINGS) for port in ports]
    for instance in instances:
        await asyncio.to_thread(instance.wait_until_ready)
    await asyncio.sleep(NOTICED_SECONDS)
    loads = [Load(name, port) for name, port in proxy_ports.items()]
    async with loads[0].running(), loads[1].running():
        for index, instance in enumerate(instances):
            await asyncio.sleep(NOTICED_SECONDS)
            assert await asyncio.to_thread(instance.stop) == 0
            instances[index] = start(postgres_database.url, port=ports[index], **SETTINGS)
            await asyncio.to_thread(instances[index].wait_until_ready)
        await asyncio.sleep(NOTICED_SECONDS)
    for load in loads:
        assert load.failures == [], load.name
        assert set(load.stream_ends) == {("SHUTDOWN", 1012), ("STOPPED", 1000)}, (load.name, load.stream_ends)
        assert load.stream_ends["SHUTDOWN", 1012] >= INSTANCES, load.name
        # A smaller load would be too small to show anything.
        assert len(load.exchanges) > 100, load.name
