"""A TCP proxy that can swallow packets, as a partition does: connections stay open, but nothing arrives."""

import select
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

CHUNK = 65_536


class Proxy:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (str(parts.hostname), parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._swallowed: set[socket.socket] = set()
        self.swallows = False
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def swallow(self) -> None:
        """From now on, forward nothing. New connections are accepted, but nothing is forwarded on them either."""
        self.swallows = True
        self._swallowed.update(self._sockets)

    def heal(self) -> None:
        """Forward new connections again. The connections that were open before stay dead."""
        self.swallows = False

    def close(self) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                if self.swallows:
                    self._swallowed.update((client, server))
                threading.Thread(target=self._pump, args=(client, server), daemon=True).start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError, ValueError):
            while True:
                ready, _, _ = select.select([client, server], [], [], 1)
                for source in ready:
                    data = source.recv(CHUNK)
                    if source not in self._swallowed:
                        (server if source is client else client).sendall(data)
                    if not data:
                        return
