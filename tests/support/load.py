"""Many clients at once: a small HTTP/1.1 client over keep-alive connections that notes when it sent and received.

Instants are microseconds of this host's clock, which is the database's clock here, so that what a client was told can
be compared with what the table says.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from tenure.clock import wall_microseconds

ANSWER_SECONDS = 15
PAUSE_SECONDS = 0.02
REPEATS_MAX = 500

Key = tuple[str, str]
"""Capacity and user: at most one session of a key is live."""


class Exchange(msgspec.Struct, kw_only=True):
    """One request and what came back. `status` is 0 if nothing did: then it may or may not have been carried out."""

    method: str
    path: str
    key: Key
    kind: int = 0
    sent_at: int = 0
    received_at: int = 0
    status: int = 0
    headers: dict[bytes, bytes] = {}
    answer: Any = None

    @property
    def seconds(self) -> float:
        return (self.received_at - self.sent_at) / 1_000_000


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, dict[bytes, bytes], bytes]] | None = None
        self.transport: asyncio.Transport
        self.is_lost = False

    async def send(self, method: str, path: str, body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        if self.is_lost:
            raise ConnectionResetError
        self._answer = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\nhost: tenure\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        return await self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = bytes(self._received).partition(b"\r\n\r\n")
        if not separator:
            return
        status_line, *lines = head.split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        if len(body) < int(headers[b"content-length"]):
            return
        self._received.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(status_line.split()[1]), headers, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError())


class Client:
    """Sends one request after the other to an instance, and connects anew where that is needed."""

    def __init__(self, address: str, exchanges: list[Exchange]) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname, parts.port
        self._connection: Connection | None = None
        self._exchanges = exchanges

    async def open(self, key: Key, kind: int, tenant: str = str(UUID(int=1))) -> Exchange:
        body = {"capacityId": key[0], "userObjectId": key[1], "tenantObjectId": tenant, "sessionKind": kind}
        exchange = Exchange(method="PUT", path="/sessions", key=key, kind=kind)
        return await self._exchange(exchange, msgspec.json.encode(body))

    async def end(self, key: Key, session_id: str) -> Exchange:
        return await self._exchange(Exchange(method="DELETE", path=f"/sessions/{session_id}", key=key), b"")

    async def get(self, path: str) -> Exchange:
        return await self._exchange(Exchange(method="GET", path=path, key=("", "")), b"")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()

    async def _exchange(self, exchange: Exchange, body: bytes) -> Exchange:
        self._exchanges.append(exchange)
        exchange.sent_at = wall_microseconds()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                connection = await self._connected()
                exchange.status, exchange.headers, content = await connection.send(exchange.method, exchange.path, body)
        except (OSError, TimeoutError):
            self.close()
            self._connection = None
            exchange.received_at = wall_microseconds()
            return exchange
        exchange.received_at = wall_microseconds()
        exchange.answer = msgspec.json.decode(content)
        return exchange

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_lost:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(Connection, self._host, self._port)
        return self._connection


@asynccontextmanager
async def clients(addresses: Iterable[str], each: int, exchanges: list[Exchange]) -> AsyncIterator[list[Client]]:
    """`each` clients per instance, in turn one of each instance."""
    made = [Client(address, exchanges) for _ in range(each) for address in addresses]
    try:
        yield made
    finally:
        for client in made:
            client.close()


class Crowd:
    """Asks for every key many times at once, with mixed kinds, and ends some of the sessions meanwhile.

    The requests for a key stand next to each other in the queue that all clients take from, so those for a key are
    under way on all instances at the same time.
    """

    def __init__(self, keys: Sequence[Key], requests_per_key: int, end_share: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._requests = [
            (key, self._random.choices((1, 2, 3), (5, 3, 2))[0]) for key in keys for _ in range(requests_per_key)
        ]
        self._end_share = end_share
        self._next = iter(self._requests)
        self.repeat_on: Sequence[int] = ()
        """What a client takes for a reason to ask again: 0 stands for a lost connection."""

    async def ask(self, crowd: Sequence[Client]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for client in crowd:
                tasks.create_task(self._work(client))

    async def _work(self, client: Client) -> None:
        for key, kind in self._next:
            opened = await self._until_answered(lambda key=key, kind=kind: client.open(key, kind))
            if opened.status in (200, 201) and self._random.random() < self._end_share:
                session_id = opened.answer["sessionId"]
                await self._until_answered(lambda key=key, session_id=session_id: client.end(key, session_id))

    async def _until_answered(self, ask: Callable[[], Any]) -> Exchange:
        for _ in range(REPEATS_MAX):
            exchange: Exchange = await ask()
            if exchange.status not in self.repeat_on:
                return exchange
            await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError(f"not answered after {REPEATS_MAX} repeats, last: {exchange}")


def some_keys(count: int, seed: int) -> list[Key]:
    source = random.Random(seed)
    return [(_some_id(source), _some_id(source)) for _ in range(count)]


def _some_id(source: random.Random) -> str:
    return str(UUID(int=source.getrandbits(128), version=4))
