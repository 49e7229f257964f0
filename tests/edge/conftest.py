"""Instances in the process of the test, with small limits, and clients on plain sockets."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import httptools
import msgspec
import pytest

from tenure.config import HttpConfig
from tenure.telemetry.events import RequestsRefused
from tests.http.client import TIMEOUT_SECONDS
from tests.http.local import LocalService, eventually, prepare_process
from tests.support.databases import Database

SWEEP_SECONDS = 0.05

ServeWith = Callable[..., Awaitable[LocalService]]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return msgspec.json.decode(self.body)["code"]  # type: ignore[no-any-return]


class Raw:
    """A client that sends bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def send_much(self, piece: bytes, total: int) -> int:
        """Sends until the instance closes the connection, or `total` is reached; returns the number of bytes sent."""
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < total and not self.writer.is_closing():
                await self.send(piece)
                sent += len(piece)
        return sent

    async def answer(self) -> Answer:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(line.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """Returns everything that arrives until the instance closes the connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.read()

    async def is_closed(self) -> bool:
        return await self.rest() == b""

    def close(self) -> None:
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def raw(service: LocalService, tls: ssl.SSLContext | None = None) -> AsyncIterator[Raw]:
    async with many(service, 1, tls) as (client,):
        yield client


@contextlib.asynccontextmanager
async def many(service: LocalService, number: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[list[Raw]]:
    """Clients that connect one after the other."""
    clients: list[Raw] = []
    try:
        for _ in range(number):
            # Not a comprehension: if one connection fails, the ones before it must still be closed.
            clients.append(Raw(*await asyncio.open_connection("127.0.0.1", service.port, ssl=tls)))  # noqa: PERF401
        yield clients
    finally:
        for client in clients:
            client.close()


def responses(data: bytes) -> list[int]:
    """The statuses of all responses in `data`."""
    statuses: list[int] = []

    class Parsed:
        def on_message_complete(self) -> None:
            statuses.append(parser.get_status_code())

    parser: Any = httptools.HttpResponseParser(Parsed())
    parser.feed_data(data)
    return statuses


async def refusals(service: LocalService, limit: str) -> int:
    """Waits until all refusals are reported, and returns how many are due to `limit`."""
    await eventually(lambda: not service.instance.pipeline.edge.has_unreported)
    return sum(event.count for event in service.telemetry.of(RequestsRefused) if event.limit == limit)


@pytest.fixture(scope="package", autouse=True)
def _prepared_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        prepare_process(patched)
        patched.setattr("tenure.server.connections.SWEEP_SECONDS", SWEEP_SECONDS)
        patched.setattr("tenure.server.http1.SWEEP_SECONDS", SWEEP_SECONDS)
        patched.setattr("tenure.http.edge.REPORT_SECONDS", 0.0)
        yield


@pytest.fixture
async def serve_with(sqlite_database: Database) -> AsyncIterator[ServeWith]:
    """Starts an instance. Keyword arguments are settings of `[http]`, and may be smaller than the configuration allows.
    `settings` contains the settings of other sections.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def serve(settings: Mapping[str, Any] | None = None, **limits: Any) -> LocalService:
            service = LocalService.on(sqlite_database, http=HttpConfig(**limits), **(settings or {}))
            return await stack.enter_async_context(service.running())

        yield serve
