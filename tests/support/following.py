"""Clients that follow the feed of events by long polls or Server-Sent Events, and survive the end of an instance."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any
from urllib.parse import urlsplit

RETRY_SECONDS = 0.1
LINE_MAX = 1 << 20


class Follower:
    """Reads the feed from its beginning, and continues on another instance whenever the connection is lost."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._turns = count()
        self.events: list[dict[str, Any]] = []
        self.cursor: str | None = None
        self.connections = 0

    async def run(self) -> None:
        while True:
            address = self._addresses[next(self._turns) % len(self._addresses)]
            with suppress(OSError, asyncio.IncompleteReadError, ValueError, TimeoutError):
                await self._follow(*urlsplit(address).netloc.split(":"))
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self, host: str, port: str) -> None:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(host, int(port), limit=LINE_MAX)
        self.connections += 1
        try:
            await self._read(reader, writer)
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class LongPoller(Follower):
    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            after = "" if self.cursor is None else f"&after={self.cursor}"
            writer.write(f"GET /events?wait=5&limit=50{after} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            async with asyncio.timeout(15):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
            if not head.startswith(b"HTTP/1.1 200"):
                return
            assert body["count"] == len(body["events"])
            self.events += body["events"]
            self.cursor = body["nextCursor"]


class StreamReader(Follower):
    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        last = "" if self.cursor is None else f"last-event-id: {self.cursor}\r\n"
        writer.write(f"GET /events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{last}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            return
        assert b"content-type: text/event-stream" in head.lower()
        text = b""
        while True:
            size = int(await reader.readuntil(b"\r\n"), 16)
            piece = (await reader.readexactly(size + 2))[:-2]
            if not size:
                return
            *blocks, text = (text + piece).split(b"\n\n")
            for block in blocks:
                self._take(dict(line.split(": ", 1) for line in block.decode().split("\n") if line[0] != ":"))

    def _take(self, fields: dict[str, str]) -> None:
        self.cursor = fields.get("id", self.cursor)
        if "data" in fields:
            event = json.loads(fields["data"])
            assert fields["event"] == event["type"]
            self.events.append(event)
