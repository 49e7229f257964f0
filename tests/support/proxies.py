"""A proxy to a PostgreSQL server that can cut or silently drop the traffic of one instance."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import make_url

T = TypeVar("T")

CHUNK = 65_536
ANSWER_SECONDS = 10
SETTLE_SECONDS = 0.02
"""Time for aborted transports to close their sockets."""


class Proxy:
    """Listens on a loopback port and forwards to the server's Unix socket.

    It runs in a thread with its own event loop, because tests that wait for an instance block theirs.
    """

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._socket = Path(str(self._url.query["host"])) / ".s.PGSQL.5432"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._connections: set[asyncio.Task[None]] = set()
        self._swallows = False
        self._port = 0
        self._call(self._listen)

    @property
    def url(self) -> str:
        through = self._url.set(host="127.0.0.1", port=self._port, query={})
        return through.render_as_string(hide_password=False)

    def cut(self) -> None:
        """Closes all connections and refuses new ones."""
        self._call(self._cut)

    def swallow(self) -> None:
        """Accepts connections and bytes, and forwards nothing in either direction."""
        self._swallows = True

    def resume(self) -> None:
        """Forwards again, on the same connections. The bytes that were dropped are lost."""
        self._swallows = False

    def restore(self) -> None:
        """Closes all connections, which may have lost bytes, and forwards new ones."""
        self._call(self._cut)
        self._swallows = False
        self._call(self._listen)

    def close(self) -> None:
        self._call(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
        self._loop.close()

    def _call(self, act: Callable[[], Awaitable[T]]) -> T:
        return asyncio.run_coroutine_threadsafe(_awaited(act), self._loop).result(ANSWER_SECONDS)

    async def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accepts manually: asyncio's accept loses a connection that arrives while it is cancelled."""
        with suppress(OSError):
            accepted, _ = self._listener.accept()
            accepted.setblocking(False)
            serving = self._loop.create_task(self._serve(accepted))
            self._connections.add(serving)
            serving.add_done_callback(partial(self._forget, accepted))

    def _forget(self, accepted: socket.socket, serving: asyncio.Task[None]) -> None:
        self._connections.discard(serving)
        accepted.close()

    async def _cut(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        ending = list(self._connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await asyncio.sleep(SETTLE_SECONDS)

    async def _serve(self, accepted: socket.socket) -> None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(sock=accepted)
            try:
                await self._forward(reader, writer)
            finally:
                writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(str(self._socket))
        pumps = [
            asyncio.create_task(self._pump(reader, to_server)),
            asyncio.create_task(self._pump(from_server, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            to_server.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(CHUNK):
            if not self._swallows:
                sink.write(chunk)
                await sink.drain()


async def _awaited(act: Callable[[], Awaitable[T]]) -> T:
    return await act()


@contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
