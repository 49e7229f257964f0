"""A WebSocket client that sends exactly the frames of a test, and an instance inside the test process."""

import asyncio
import base64
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeAlias, TypeVar
from uuid import uuid4

import httpx
import msgspec
from websockets.frames import Frame, Opcode

from tenure.app import Instance
from tenure.config import Config
from tenure.server.process import _Server, bind
from tests.support.telemetry import RecordedTelemetry

Json: TypeAlias = dict[str, Any]
Message: TypeAlias = bytes | str
T = TypeVar("T")

TIMEOUT_SECONDS = 15.0
POLL_SECONDS = 0.01
FULL_SECONDS = 0.3
CUT = 1006
"""The code of a connection that ended without a close frame, or whose close frame has no code."""
STOP = '{"type": "stop"}'


def request(**fields: Any) -> Json:
    """The body of a PUT with a new key."""
    ids = {name: str(uuid4()) for name in ("userObjectId", "tenantObjectId", "capacityId")}
    return {**ids, "sessionKind": 1, **fields}


def key_of(session: Json) -> Json:
    """The fields of a request for the key of this session."""
    return {name: session[name] for name in ("userObjectId", "tenantObjectId", "capacityId", "sessionKind")}


class Refused(Exception):
    """The response to the handshake was not 101."""

    def __init__(self, status: int, head: str, body: bytes) -> None:
        super().__init__(f"{status}: {body!r}")
        self.status = status
        self.head = head
        self.body = body


class Client:
    """Sends frames, even invalid ones. It answers pings unless `answers_pings` is false."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self._reader = reader
        self.writer = writer
        self.head = head
        self.answers_pings = True
        self.pongs = 0
        self.close_code: int | None = None

    @classmethod
    async def connect(
        cls, port: int, path: str, *headers: str, at_once: bytes = b"", tls: ssl.SSLContext | None = None
    ) -> Self:
        """Connects. `at_once` is sent in the same packet as the handshake."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        try:
            writer.write(handshake(path, *headers) + at_once)
            head = (await _in_time(reader.readuntil(b"\r\n\r\n"))).decode()
            status = int(head.split()[1])
            refused = None if status == 101 else Refused(status, head, await _in_time(reader.read()))
        except BaseException:  # the instance was killed, or the task was cancelled
            writer.close()
            raise
        if refused is not None:
            writer.close()
            raise refused
        return cls(reader, writer, head)

    # Send

    async def send(self, message: Message) -> None:
        opcode = Opcode.TEXT if isinstance(message, str) else Opcode.BINARY
        await self.send_frame(opcode, message.encode() if isinstance(message, str) else message)

    async def open(self, **fields: Any) -> Json:
        """Opens a session; returns its `session_start`."""
        await self.send(as_text({"type": "open", **request(**fields)}))
        return await self.receive_start()

    async def send_frame(self, opcode: Opcode, data: bytes, *, fin: bool = True) -> None:
        await self.send_raw(frame(opcode, data, fin=fin))

    async def send_raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def fill(self, most: int) -> int:
        """Sends until the peer stops reading for FULL_SECONDS, or until `most` bytes are sent. Returns how many bytes
        were sent.
        """
        sent, chunk = 0, frame(Opcode.BINARY, b"x" * 50_000)
        while sent < most:
            self.writer.write(chunk)
            try:
                await asyncio.wait_for(self.writer.drain(), FULL_SECONDS)
            except TimeoutError:
                return sent
            sent += len(chunk)
        return sent

    def stop_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    # Receive

    async def receive(self) -> Message | None:
        """Returns the next message. When the connection is closed, sets `close_code` and returns None."""
        while True:
            opcode, data = await _in_time(self._next())
            if opcode is Opcode.TEXT:
                return data.decode()
            if opcode is Opcode.BINARY:
                return data
            if opcode is Opcode.PING and self.answers_pings:
                self.writer.write(frame(Opcode.PONG, data))
            if opcode is Opcode.PONG:
                self.pongs += 1
            if opcode is Opcode.CLOSE:
                self.close_code = struct.unpack("!H", data[:2])[0] if data else CUT
                return None

    async def receive_json(self) -> Json:
        message = await self.receive()
        assert isinstance(message, str), f"expected a message, got {message!r}, close code {self.close_code}"
        return read(message)

    async def receive_start(self) -> Json:
        result = await self.receive_json()
        assert result["type"] == "session_start", result
        return result

    async def read_to_end(self) -> tuple[Sequence[Message], int]:
        """Returns all remaining messages and the close code. Answers the close frame."""
        messages: list[Message] = []
        while (message := await self.receive()) is not None:
            messages.append(message)
        if self.close_code != CUT:
            self.writer.write(frame(Opcode.CLOSE, struct.pack("!H", 1000)))
        self.writer.close()
        return messages, self.close_code or CUT

    async def final_message(self) -> tuple[Json, int]:
        """The last message, and the close code."""
        messages, code = await self.read_to_end()
        assert messages, f"closed with {code} and without a message"
        return read(messages[-1]), code

    async def stop(self) -> tuple[Json, int]:
        await self.send(STOP)
        return await self.final_message()

    async def _next(self) -> tuple[Opcode, bytes]:
        try:
            first, length = await self._reader.readexactly(2)
            if length == 126:
                (length,) = struct.unpack("!H", await self._reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self._reader.readexactly(8))
            return Opcode(first & 0x0F), await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return Opcode.CLOSE, struct.pack("!H", CUT)

    # Disconnect

    def disconnect(self) -> None:
        """Resets the connection without a close frame."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def handshake(path: str, *headers: str) -> bytes:
    nonce = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
    lines += [f"Sec-WebSocket-Key: {nonce}", "Sec-WebSocket-Version: 13", *headers, "", ""]
    return "\r\n".join(lines).encode()


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def as_text(content: Json) -> str:
    return msgspec.json.encode(content).decode()


def read(message: Message) -> Json:
    return msgspec.json.decode(message)  # type: ignore[no-any-return]


async def _in_time(waiting: Awaitable[T]) -> T:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await waiting


class Streaming:
    """An HTTP client and WebSocket clients of the instance on this port. `prefix` is put before each path."""

    def __init__(self, port: int, prefix: str = "") -> None:
        self.port = port
        self.prefix = prefix
        # Without `verify=False` each client would spend 40 ms on reading certificates.
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}{prefix}", timeout=TIMEOUT_SECONDS, verify=False
        )
        self._clients: list[Client] = []

    async def connect(self, path: str, *headers: str, at_once: bytes = b"") -> Client:
        client = await Client.connect(self.port, self.prefix + path, *headers, at_once=at_once)
        self._clients.append(client)
        return client

    async def open(self, **fields: Any) -> tuple[Client, Json]:
        """Opens a session by a stream. Returns the client of the stream, and its `session_start`."""
        client = await self.connect("/sessions/stream")
        return client, await client.open(**fields)

    async def attach(self, session_id: str) -> tuple[Client, Json]:
        client = await self.connect(f"/sessions/{session_id}/stream")
        return client, await client.receive_start()

    async def put(self, **fields: Any) -> Json:
        result = await self.http.put("/sessions", json=request(**fields))
        assert result.status_code in (200, 201), result.text
        return result.json()  # type: ignore[no-any-return]

    async def get(self, session_id: str) -> Json:
        result = await self.http.get(f"/sessions/{session_id}")
        assert result.status_code == 200, result.text
        return result.json()  # type: ignore[no-any-return]

    async def metrics(self) -> Json:
        return (await self.http.get("/sessions/metrics")).json()  # type: ignore[no-any-return]

    async def until(self, session_id: str, holds: Callable[[Json], object], seconds: float = TIMEOUT_SECONDS) -> Json:
        """Waits until `holds` is true for the session, and returns the session."""
        session = await self.get(session_id)
        try:
            async with asyncio.timeout(seconds):
                while not holds(session):
                    await asyncio.sleep(POLL_SECONDS)
                    session = await self.get(session_id)
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s; the session is {session}") from None
        return session

    async def until_closed(self, session_id: str, seconds: float = TIMEOUT_SECONDS) -> Json:
        return await self.until(session_id, lambda session: session["state"] == "closed", seconds)

    async def aclose(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()
        await self.http.aclose()


@asynccontextmanager
async def streaming(port: int, prefix: str = "") -> AsyncIterator[Streaming]:
    clients = Streaming(port, prefix)
    try:
        yield clients
    finally:
        await clients.aclose()


class LocalService:
    """An instance in the test process, served over a real socket."""

    def __init__(self, config: Config) -> None:
        self.telemetry = RecordedTelemetry()
        self.instance = Instance(config, self.telemetry)
        self._server = _Server(self.instance, config, self.telemetry)
        self._listener = bind("127.0.0.1", 0)
        self.clients = Streaming(self._listener.getsockname()[1], config.prefix)

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    async def start(self) -> None:
        """Does not call uvicorn's `serve`, which would replace the signal handlers of the test run."""
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[self._listener])
        await self.instance.start()

    async def settled(self) -> None:
        """Waits until no connection is open and all streams have ended."""
        await eventually(
            lambda: not self.connections and not self.instance.streams._admitted, "no connection and no stream is left"
        )
        await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.clients.aclose()
        for server in self._server.servers:
            server.close()
        await self.instance.stop()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        await eventually(lambda: not self.connections, "all connections closed")


async def eventually(holds: Callable[[], object], what: str, seconds: float = TIMEOUT_SECONDS) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - the service has no signal for tests
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None
