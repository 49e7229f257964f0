"""Receivers on a plain socket that misbehave, each in one way."""

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
"""A secret in the URL of every receiver. No error message may contain it."""


class Received(NamedTuple):
    line: str
    headers: list[tuple[str, str]]
    """The headers in the order of the request, with names in lower case."""
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


class OddReceiver:
    """Calls `respond` after each request or, if `reads_requests` is false, as soon as a sender connects."""

    def __init__(self, respond: Respond, *, reads_requests: bool) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self.port = 0
        self._respond = respond
        self._reads_requests = reads_requests
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{TOKEN}/?token={TOKEN}"

    @property
    def bodies(self) -> Sequence[bytes]:
        return [received.body for received in self.received]

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def disconnect_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while self._reads_requests and not writer.is_closing():
                self.received.append(await _read(reader))
                await self._respond(writer)
            if not self._reads_requests:
                await self._respond(writer)
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the sender has closed the connection
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
    respond: Respond, *, reads_requests: bool = True, tls: ssl.SSLContext | None = None
) -> AsyncIterator[OddReceiver]:
    receiver = OddReceiver(respond, reads_requests=reads_requests)
    server = await asyncio.start_server(receiver.connected, "127.0.0.1", 0, ssl=tls, backlog=1000)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.disconnect_all()


# Responses.


def http_response(head: str, body: bytes = b"", *headers: str) -> Respond:
    """`head` is the status line without the version, such as `200 OK`."""
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


def write_forever(head: bytes, piece: bytes, pause_seconds: float = 0.0) -> Respond:
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


async def never_respond(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


# Requests.


def gateway(url: str, **given: object) -> Gateway:
    return Gateway("crm", GatewayConfig(url=url, **given), PayloadSources())  # type: ignore[arg-type]


def envelope(payload: bytes = b"{}", timeout_seconds: float = 3.0) -> Envelope:
    submission_id = "01890000-0000-7000-8000-00000000beef"
    return Envelope(submission_id, submission_id, payload, Contract((5.0,), 20, (409,), timeout_seconds))
