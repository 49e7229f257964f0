"""Receivers over a bare socket, each of which does one thing that a well-behaved one would not."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from tenure.config import GatewayConfig
from tenure.domain.submissions import Contract, Envelope
from tenure.submissions.gateways import Gateway
from tenure.submissions.payloads import PayloadSources

TOKEN = "tok-hunter2"
"""In the path of every address: no message may show it."""


class Received(NamedTuple):
    line: str
    headers: list[tuple[str, str]]
    """Names in lower case, in their order."""
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


class OddReceiver:
    """Reads each request to its end, unless told not to, and then does its one thing."""

    def __init__(self, respond: Respond, *, listens: bool) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self.port = 0
        self._respond = respond
        self._listens = listens
        self._talking: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{TOKEN}/?token={TOKEN}"

    @property
    def bodies(self) -> Sequence[bytes]:
        return [received.body for received in self.received]

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        talking = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._talking.add(talking)
        talking.add_done_callback(self._talking.discard)

    async def hang_up(self) -> None:
        for talking in self._talking:
            talking.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while self._listens and not writer.is_closing():
                self.received.append(await _read(reader))
                await self._respond(writer)
            if not self._listens:
                await self._respond(writer)
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the other side has had enough
        except asyncio.CancelledError:
            writer.transport.abort()
        else:
            with suppress(OSError):
                await writer.wait_closed()
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    line, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (each.partition(":") for each in rest)]
    length = dict(headers)["content-length"]
    return Received(line, headers, await reader.readexactly(int(length)))


@asynccontextmanager
async def odd_receiver(
    respond: Respond, *, listens: bool = True, tls: ssl.SSLContext | None = None
) -> AsyncIterator[OddReceiver]:
    receiver = OddReceiver(respond, listens=listens)
    server = await asyncio.start_server(receiver.connected, "127.0.0.1", 0, ssl=tls, backlog=1000)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.hang_up()


# What it may do.


def answer(head: str, body: bytes = b"", *headers: str) -> Respond:
    """`head` is what stands behind the version: `200 OK`."""
    lines = [f"HTTP/1.1 {head}", *headers, f"Content-Length: {len(body)}", "", ""]
    return write("\r\n".join(lines).encode() + body)


def write(data: bytes) -> Respond:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return respond


def write_and_close(data: bytes) -> Respond:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    return respond


def write_for_ever(head: bytes, piece: bytes, pause_seconds: float = 0.0) -> Respond:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_seconds)

    return respond


def write_after(seconds: float, respond: Respond) -> Respond:
    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await respond(writer)

    return late


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def say_nothing(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


# What is sent to it.


def gateway(url: str, **given: object) -> Gateway:
    return Gateway("crm", GatewayConfig(url=url, **given), PayloadSources())  # type: ignore[arg-type]


def envelope(payload: bytes = b"{}", timeout_seconds: float = 3.0) -> Envelope:
    submission_id = "01890000-0000-7000-8000-00000000beef"
    return Envelope(submission_id, submission_id, payload, Contract((5.0,), 20, (409,), timeout_seconds))
