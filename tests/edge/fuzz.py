"""Random clients: shapes, sizes and speeds of HTTP requests and WebSocket frames, all from one seed."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable, Sequence

from websockets.frames import Frame, Opcode

from tests.http.client import chunked, open_body, request
from tests.support.streams import as_text, frame, handshake
from tests.support.streams import request as stream_request

CLIENTS = 16
CROWD = 300
LONGEST = 2_000_000
"""Approximately the longest input of one connection, in bytes."""

PATHS = [
    "/sessions",
    "/%73essions",
    "/v1/sessions",
    "/submissions",
    "/healthz",
    "/jobs",
    "/nowhere",
    "/openapi.json",
    "*",
]
METHODS = ["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PATCH", "PURGE", "get", ""]
HEADERS = [
    "Host: localhost",
    "Host: elsewhere.example",
    "Origin: https://elsewhere.example",
    "Sec-Fetch-Site: cross-site",
    "Connection: close",
    "Connection: keep-alive, Upgrade",
    "Upgrade: h2c",
    "Upgrade: websocket",
    "Expect: 100-continue",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Content-Length: 5",
    "Content-Length: -5",
    "Content-Length: 99999999999999999999",
    "Idempotency-Key: a-key",
    "Cookie: " + "x" * 5000,
    " folded",
    "no colon",
    "Nul: \0",
]


class Fuzz:
    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)  # must be repeatable
        self.connections = 0

    async def run(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(self._attack_forever() for _ in range(CLIENTS)))
        except TimeoutError:
            pass

    async def _attack_forever(self) -> None:
        shapes: list[Callable[[], bytes]] = [
            self._one_request,
            self._pipeline,
            self._chunks,
            self._mutated,
            self._stream,
        ]
        shapes += [self._stream, self._large, self._upgrades]
        while True:
            if self._random.random() < 0.01:
                await self._crowd()
            else:
                await self._connect(self._random.choice(shapes)())
            await asyncio.sleep(self._random.random() * 0.05)

    # How a client behaves.

    async def _connect(self, content: bytes) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(0.5 + self._random.random() * 4):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                self.connections += 1
                reading = asyncio.ensure_future(self._read(reader))
                try:
                    await self._send(writer, content)
                    await asyncio.wait({reading}, timeout=self._random.choice([0, 0, 0.1, 1]))
                finally:
                    reading.cancel()
                    self._end(writer)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Reads nothing, a little, or everything."""
        amount = self._random.choice([0, 1, 100, LONGEST, LONGEST, LONGEST])
        with contextlib.suppress(OSError):
            while amount > 0 and (data := await reader.read(min(amount, 65_536))):
                amount -= len(data)
        if amount <= 0:
            await asyncio.Event().wait()

    async def _send(self, writer: asyncio.StreamWriter, content: bytes) -> None:
        """Sends the content at once, in pieces or byte by byte. Sometimes the end is cut off."""
        if self._random.random() < 0.2:
            content = content[: self._random.randrange(len(content) + 1)]
        size = self._random.choice([1, 100, 4096, 65_536, LONGEST, LONGEST])
        pause = self._random.choice([0, 0, 0.001, 0.05])
        for start in range(0, len(content), size):
            writer.write(content[start : start + size])
            await writer.drain()
            await asyncio.sleep(pause)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        if self._random.random() < 0.3 and (connection := writer.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def _crowd(self) -> None:
        """Opens many connections, sends a part of a request on each, and waits."""
        part = self._random.choice([b"", b"GET /healthz HTTP/1.1\r\nHost: loc", request(open_body())[:-1]])
        writers: list[asyncio.StreamWriter] = []
        try:
            with contextlib.suppress(OSError):
                for _ in range(CROWD):
                    writers.append((await asyncio.open_connection("127.0.0.1", self._port))[1])
                    writers[-1].write(part)
                    self.connections += 1
            await asyncio.sleep(self._random.random() * 3)
        finally:
            for writer in writers:
                writer.transport.abort()

    # Requests over HTTP.

    def _one_request(self) -> bytes:
        chosen = self._random.choice
        headers = [chosen(HEADERS) for _ in range(chosen([0, 1, 3, 10, 200, 3000]))]
        target = chosen(PATHS) + chosen(["", "?", "?limit=" + "9" * 30, "?" + "x" * 40_000])
        version = chosen(["1.1", "1.1", "1.1", "1.0", "2.0", "9.9", "x"])
        body = chosen([b"", b"{}", b"[" * 10_000, b" " * 70_000, bytes(100), b'{"a":1}'])
        return request(body, *headers, method=chosen(METHODS), path=target, version=version)

    def _pipeline(self) -> bytes:
        kinds = [
            request(open_body()),
            request({}),
            request(open_body(), path="/%73essions"),
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\r\n",
        ]
        number = self._random.choice([2, 20, 500])
        many = b"".join(self._random.choice(kinds) for _ in range(number))
        return many + self._random.choice(
            [b"", b"nonsense\r\n\r\n", handshake("/sessions/stream"), self._one_request()]
        )

    def _chunks(self) -> bytes:
        parts = [bytes(self._random.randrange(1, 1000)) for _ in range(self._random.choice([1, 10, 300]))]
        trailers = b"".join(b"X-%d: 1\r\n" % number for number in range(self._random.choice([0, 3, 2000])))
        end = self._random.choice([b"\r\n", b"", b"X-Long: " + b"x" * 100_000, b"Host: a\r\n\r\n"])
        path = self._random.choice(PATHS)
        body = chunked(*parts)[:-2] + trailers + end
        return request(body, "Transfer-Encoding: chunked", method="PUT", path=path)

    def _mutated(self) -> bytes:
        content = bytearray(self._random.choice([request(open_body()), self._pipeline(), self._stream()]))
        for _ in range(self._random.choice([1, 5, 50])):
            content[self._random.randrange(len(content))] = self._random.randrange(256)
        return bytes(content)

    def _large(self) -> bytes:
        size = self._random.choice([100_000, LONGEST])
        starts = [
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ",
            b"GET /",
            b"",
            b"\r\n",
            request(b"", length=LONGEST * 1000),
            request(b"", "Connection: close", path="/nowhere", length=LONGEST * 1000),
            request(b"fffffff\r\n", "Transfer-Encoding: chunked"),
            request(b"1;", "Transfer-Encoding: chunked"),
        ]
        filler = self._random.choice([b"x", b" ", b"a: b\r\n", b"\r\n", bytes(1)])
        return self._random.choice(starts) + filler * (size // len(filler))

    def _upgrades(self) -> bytes:
        offers = ["Connection: Upgrade", "Upgrade: x"]
        one = request(b"", *offers, method=self._random.choice(METHODS), path="/healthz")
        return one * self._random.choice([1, 10, 1000])

    # Messages over WebSocket.

    def _stream(self) -> bytes:
        opening = frame(Opcode.TEXT, as_text({"type": "open", **stream_request()}).encode())
        path = self._random.choice(["/sessions/stream", "/sessions/stream", "/nowhere"])
        frames = b"".join(self._frames() for _ in range(self._random.choice([1, 5, 20])))
        return handshake(path) + self._random.choice([opening, opening, b""]) + frames[:LONGEST]

    def _frames(self) -> bytes:
        opcode = self._random.choice([Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.PING, Opcode.PONG, Opcode.CLOSE])
        is_control = opcode in (Opcode.PING, Opcode.PONG, Opcode.CLOSE)
        size = self._random.choice([0, 2, 125] if is_control else [0, 1, 1000, 70_000, 1_100_000])
        content = self._random.choice([bytes(size), b"x" * size, b"\xff" * size])
        fin = is_control or self._random.random() < 0.7
        number = self._random.choice([1, 1, 50, 5000] if size < 1000 else [1])
        one = frame(opcode, content, fin=fin)
        broken: Sequence[bytes] = [
            one,
            one,
            one,
            Frame(opcode, content, fin).serialize(mask=False),
            b"\xff" + one[1:],
            one[:1] + b"\xff\x7f" + one[2:],
            one[:-1],
        ]
        return self._random.choice(broken) * number
