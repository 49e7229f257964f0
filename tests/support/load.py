"""Many concurrent clients: a small HTTP/1.1 client that records when it sent each request and received the response.

Instants are microseconds of this host's clock. The database uses the same clock, so a response can be compared with the
session table.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from tenure.clock import wall_microseconds

ANSWER_SECONDS = 15
PAUSE_SECONDS = 0.02
RETRY_SECONDS = 20
END_SHARE = 0.2
TENANT = str(UUID(int=1))

Key = tuple[str, str]
"""Capacity and user: at most one session of a key is live."""


class Exchange(msgspec.Struct, kw_only=True):
    """One request and its response. `status` is 0 without a response: the request may have been executed or not."""

    method: str
    path: str
    key: Key = ("", "")
    kind: int = 0
    sent_at: int = 0
    received_at: int = 0
    status: int = 0
    headers: dict[bytes, bytes] = {}
    answer: Any = None

    @property
    def seconds(self) -> float:
        return (self.received_at - self.sent_at) / 1_000_000


class Client:
    """Sends one request after the other to an instance, and reconnects if necessary."""

    def __init__(self, address: str, exchanges: list[Exchange]) -> None:
        self._host, _, port = urlsplit(address).netloc.rpartition(":")
        self._port = int(port)
        self._connection: _Connection | None = None
        self._exchanges = exchanges

    async def open(self, key: Key, kind: int) -> Exchange:
        exchange = Exchange(method="PUT", path="/sessions", key=key, kind=kind)
        return await self._exchange(exchange, open_body(key, kind))

    async def end(self, key: Key, session_id: str) -> Exchange:
        return await self._exchange(Exchange(method="DELETE", path=f"/sessions/{session_id}", key=key), b"")

    async def get(self, path: str) -> Exchange:
        return await self._exchange(Exchange(method="GET", path=path), b"")

    async def send(self, method: str, path: str, body: Any = None, key: Key = ("", "")) -> Exchange:
        return await self._exchange(
            Exchange(method=method, path=path, key=key), b"" if body is None else msgspec.json.encode(body)
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None

    async def _exchange(self, exchange: Exchange, body: bytes) -> Exchange:
        self._exchanges.append(exchange)
        exchange.sent_at = wall_microseconds()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                connection = await self._connected()
                exchange.status, exchange.headers, content = await connection.send(exchange.method, exchange.path, body)
        except (OSError, TimeoutError):
            exchange.received_at = wall_microseconds()
            self.close()
            return exchange
        exchange.received_at = wall_microseconds()
        exchange.answer = msgspec.json.decode(content)
        return exchange

    async def _connected(self) -> "_Connection":
        if self._connection is None or self._connection.is_lost:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(_Connection, self._host, self._port)
        return self._connection


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, dict[bytes, bytes], bytes]] | None = None
        self.transport: asyncio.Transport
        self.is_lost = False

    async def send(self, method: str, path: str, body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request_bytes(method, path, body))
        return await self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = bytes(self._received).partition(b"\r\n\r\n")
        if not separator:
            return
        status_line, *lines = head.split(b"\r\n")
        headers = {name.lower(): value for name, value in (line.split(b": ", 1) for line in lines)}
        if len(body) < int(headers[b"content-length"]):
            return
        self._received.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(status_line.split()[1]), headers, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError())


def open_body(key: Key, kind: int) -> bytes:
    return msgspec.json.encode(
        {"capacityId": key[0], "userObjectId": key[1], "tenantObjectId": TENANT, "sessionKind": kind}
    )


def request_bytes(method: str, path: str, body: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def clients(
    addresses: Iterable[str], each: int, exchanges: list[Exchange] | None = None
) -> AsyncIterator[list[Client]]:
    """Yields `each` clients per instance, ordered so that adjacent clients use different instances."""
    recorded = [] if exchanges is None else exchanges
    made = [Client(address, recorded) for _ in range(each) for address in addresses]
    try:
        yield made
    finally:
        for client in made:
            client.close()


async def retry_until(
    send: Callable[[], Awaitable[Exchange]], enough: Callable[[Exchange], bool], seconds: float
) -> Exchange:
    """Sends a request, and repeats it after pauses of PAUSE_SECONDS until `enough` returns true for the response.
    Raises `TimeoutError` after `seconds`.
    """
    async with asyncio.timeout(seconds):
        while True:
            exchange = await send()
            if enough(exchange):
                return exchange
            await asyncio.sleep(PAUSE_SECONDS)


class Crowd:
    """Requests a session of every key many times, with different kinds, and ends some of the sessions.

    All clients take their requests from one queue. In this queue, the requests for a key follow each other, so clients
    of all instances send them at the same time.
    """

    def __init__(
        self,
        seed: int,
        *,
        keys: int,
        requests_per_key: int,
        end_share: float = END_SHARE / 2,
        retry_on: Collection[int] = (),
    ) -> None:
        """`retry_on`: statuses after which a client retries; 0 stands for a request without a response."""
        self._random = random.Random(seed)
        self._requests = iter(
            [
                (key, self._random.choices((1, 2, 3), (5, 3, 2))[0])
                for key in some_keys(keys, seed)
                for _ in range(requests_per_key)
            ]
        )
        self._end_share = end_share
        self._retry_on = retry_on

    async def run(self, members: Sequence[Client]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(self._work(member))

    async def _work(self, member: Client) -> None:
        for key, kind in self._requests:
            opened = await retry_until(partial(member.open, key, kind), self._is_answer, RETRY_SECONDS)
            if opened.status in (200, 201) and self._random.random() < self._end_share:
                session_id = opened.answer["sessionId"]
                await retry_until(partial(member.end, key, session_id), self._is_answer, RETRY_SECONDS)

    def _is_answer(self, exchange: Exchange) -> bool:
        return exchange.status not in self._retry_on


def some_keys(count: int, seed: int) -> list[Key]:
    source = random.Random(seed)
    return [(_some_id(source), _some_id(source)) for _ in range(count)]


def _some_id(source: random.Random) -> str:
    return str(UUID(int=source.getrandbits(128), version=4))


@asynccontextmanager
async def steady_load(
    addresses: Iterable[str], each: int, *, keys: Sequence[Key], seed: int
) -> AsyncIterator[list[Exchange]]:
    """Runs `each` clients per instance, which open and end sessions of random `keys` until the block exits. A client
    pauses for PAUSE_SECONDS if its request to open a session fails.
    """
    exchanges: list[Exchange] = []
    source = random.Random(seed)
    enough = asyncio.Event()

    async def work(client: Client) -> None:
        while not enough.is_set():
            key = source.choice(keys)
            opened = await client.open(key, source.choice((1, 2, 3)))
            if opened.status not in (200, 201):
                await asyncio.sleep(PAUSE_SECONDS)
            elif source.random() < END_SHARE:
                await client.end(key, opened.answer["sessionId"])

    async with clients(addresses, each, exchanges) as members, asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(work(member))
        try:
            yield exchanges
        finally:
            enough.set()
