"""Links that can break: TCP relays on loopback ports, between clients and instances and between instances and database.

All relays of a network run in one thread with its own event loop. So the clients of a run, which keep the main event
loop busy, do not slow the relays down, and a test that blocks its own loop does not stop them.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")

CHUNK = 65_536
CALL_SECONDS = 10
CLOSE_SECONDS = 5
BACKLOG = 512

Target = str | tuple[str, int]
"""The path of a Unix socket, or a host and a port."""


class Network:
    """The thread of all relays."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._links: list[Link] = []

    def link(self, name: str, target: Target) -> "Link":
        link = Link(self, name, target)
        self._links.append(link)
        return link

    def call(self, act: Callable[[], Awaitable[T]]) -> T:
        """Runs `act` in the thread of the relays, and waits for its result."""

        async def awaited() -> T:
            return await act()

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(CALL_SECONDS)

    def close(self) -> None:
        for link in self._links:
            link.cut()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CALL_SECONDS)
        self.loop.close()


class Link:
    """Listens on a port and forwards to `target`, which may change. Its methods may be called from any thread except
    that of the relays.
    """

    def __init__(self, network: Network, name: str, target: Target) -> None:
        self.name = name
        self.target = target
        self.port = 0
        self._network = network
        self._delay_seconds = 0.0
        self._swallows = False
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._passes: asyncio.Event
        network.call(self._open)

    def cut(self) -> None:
        """Closes all connections and refuses new ones."""
        self._network.call(self._cut)

    def slow(self, seconds: float) -> None:
        """From now on, waits this long before forwarding each piece of data, in each direction."""
        self._delay_seconds = seconds

    def stall(self) -> None:
        """Holds all data back until `restore`. Then delivers the data, even if the sender has closed its connection."""
        self._network.loop.call_soon_threadsafe(self._passes.clear)

    def swallow(self) -> None:
        """Accepts connections, and discards all data in both directions."""
        self._swallows = True

    def resume(self) -> None:
        """Forwards again, on the same connections. The data that was swallowed is lost."""
        self._swallows = False

    def restore(self) -> None:
        """Undoes `cut`, `slow`, `stall` and `swallow`. After `swallow`, closes all connections, because they may have
        lost data.
        """
        self._delay_seconds = 0.0
        self._network.loop.call_soon_threadsafe(self._passes.set)
        if self._swallows or self._listener is None:
            self._network.call(self._cut)
            self._swallows = False
            self._network.call(self._open)

    async def _open(self) -> None:
        self._passes = asyncio.Event()
        self._passes.set()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._network.loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        """Calls `accept` of the socket: asyncio's `sock_accept` would lose a connection that arrives during its
        cancellation.
        """
        with suppress(OSError):
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            task = self._network.loop.create_task(self._serve(accepted))
            self._connections.add(task)
            task.add_done_callback(partial(self._closed, accepted))

    def _closed(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        accepted.close()

    async def _cut(self) -> None:
        if self._listener is not None:
            self._network.loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        ending = list(self._connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _serve(self, accepted: socket.socket) -> None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(sock=accepted)
            try:
                await self._forward(reader, writer)
            finally:
                writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self.target, str):
            from_server, to_server = await asyncio.open_unix_connection(self.target)
        else:
            from_server, to_server = await asyncio.open_connection(*self.target)
        sending = asyncio.create_task(self._pump(reader, to_server))
        answering = asyncio.create_task(self._pump(from_server, writer))
        try:
            await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not answering.done():
                await asyncio.wait([answering], timeout=CLOSE_SECONDS)
        finally:
            for pump in (sending, answering):
                pump.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)
            to_server.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(CHUNK):
            if self._delay_seconds:
                await asyncio.sleep(self._delay_seconds)
            await self._passes.wait()
            if not self._swallows:
                sink.write(chunk)
                await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
