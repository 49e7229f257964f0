"""The open connections of an instance: how many there may be, and how long a client may keep each of them waiting.

No HTTP connection has a timer. Each records in `phase` what it waits for, and in `since` the start of the wait.
`Connections` checks all connections once per SWEEP_SECONDS. So the time limits cost a request in the hot lane only one
reading of the clock.

When the maximum number of connections is open, a new connection replaces the one that has kept the instance waiting
longest: for the TLS handshake, for the first or next request, for the rest of a request, for the client to read its
answer, or for the client to close. So clients that open connections and send nothing cannot lock out clients that send
requests. If every connection is busy with a request or a stream, the new connection gets 503; a new TLS connection is
closed without a response.

The bytes of bodies that have not arrived completely are limited, too, for all connections together. When this limit is
exceeded, `Connections` closes the connection that has kept the instance waiting longest for the rest of its body.
"""

import asyncio
from heapq import nsmallest
from typing import Any, Protocol

from tenure.clock import monotonic
from tenure.http.edge import Edge

SWEEP_SECONDS = 1.0
CANDIDATES = 1024
"""How many connections one search collects at most: those that have kept the instance waiting longest. A search looks
at all connections, so a search for each new connection would cost too much.
"""
MIN_SEARCH_YIELD = 1 / 16
SEARCH_SECONDS = 0.05
"""If a search collects less than the share MIN_SEARCH_YIELD of the open connections, no search follows for
SEARCH_SECONDS. If no candidate is left in this time, a new connection is refused.
"""
REFUSED_MAX = 128
"""How many connections over the limit may linger after their 503. Further ones are closed directly after their 503."""


class TimedConnection(Protocol):
    connections: set[Any]
    loop: asyncio.AbstractEventLoop

    @property
    def waiting_since(self) -> float | None:
        """When the instance began to wait for this client; None while the client waits for the instance."""

    unfinished_bytes: int
    """How many bytes have arrived of a body that is incomplete; 0 if no body is incomplete."""

    def close_after_last_request(self) -> None:
        """Makes the connection close after the answer to the last request, if that request is not answered yet."""

    def check_time(self, now: float) -> None:
        """Ends the connection if its client has taken too long."""

    def refuse_connection(self, *, lingers: bool) -> None:
        """Answers with 503, and closes the connection, after lingering if `lingers` is true."""

    def evict(self) -> None:
        """Closes at once."""


class Connections:
    def __init__(self, edge: Edge, max_connections: int) -> None:
        self.edge = edge
        self.is_draining = False
        """Whether every response has `Connection: close`, so that clients connect to another instance."""
        self._max_connections = max_connections
        self._open: set[TimedConnection] = set()
        self._all: set[Any] = set()
        """Uvicorn's set, which contains the connections of streams too."""
        self._candidates: list[tuple[float, TimedConnection]] = []
        self._may_search_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._unfinished_bytes = 0

    def add(self, connection: TimedConnection) -> None:
        """Called after the connection was added to the set of uvicorn."""
        self._open.add(connection)
        self._all = connection.connections
        if self._timer is None:
            self._timer = connection.loop.call_later(SWEEP_SECONDS, self._sweep, connection.loop)
        taken = len(self._all)
        if taken > self._max_connections:
            self.edge.refused("max_connections")
            if not self._make_room(connection):
                connection.refuse_connection(lingers=taken <= self._max_connections + REFUSED_MAX)

    def begin_to_drain(self) -> None:
        self.is_draining = True
        for connection in self._open:
            connection.close_after_last_request()

    def remove(self, connection: TimedConnection) -> None:
        self._open.discard(connection)
        self._unfinished_bytes -= connection.unfinished_bytes
        connection.unfinished_bytes = 0

    def note_unfinished(self, connection: TimedConnection, size: int) -> None:
        """Records the size of an unfinished body. Closes the slowest connections until the sum is within the limit."""
        if connection not in self._open:
            return  # It was evicted in this turn of the loop.
        self._unfinished_bytes += size - connection.unfinished_bytes
        connection.unfinished_bytes = size
        while self._unfinished_bytes > self.edge.limits.max_unfinished_bytes:
            self.edge.refused("max_unfinished_bytes")
            slowest = min((each for each in self._open if each.unfinished_bytes), key=_age)
            self._evict(slowest)

    def _make_room(self, newcomer: TimedConnection) -> bool:
        """Closes the connection that has kept the instance waiting longest. Returns False if none was found."""
        now = monotonic()
        while True:
            since: float | None
            while self._candidates:
                since, candidate = self._candidates.pop()
                # Since the search, the candidate may have sent a request, or have been closed.
                if candidate in self._open and candidate.waiting_since == since:
                    self._evict(candidate)
                    return True
            if now < self._may_search_at:
                return False
            waiting = [(since, each) for each in self._open if (since := each.waiting_since) is not None]
            self._candidates = [pair for pair in nsmallest(CANDIDATES, waiting, key=_since) if pair[1] is not newcomer]
            self._candidates.reverse()
            if len(self._candidates) < MIN_SEARCH_YIELD * len(self._open):
                self._may_search_at = now + SEARCH_SECONDS
            if not self._candidates:
                return False

    def _evict(self, connection: TimedConnection) -> None:
        self.remove(connection)
        # `connection_lost` runs only in the next turn of the event loop, but `add` must not count this connection any
        # more.
        self._all.discard(connection)
        connection.evict()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        is_needed = self._all or self.edge.has_unreported
        # Schedule the next call first, so that an unexpected error in one check does not stop all later checks.
        self._timer = loop.call_later(SWEEP_SECONDS, self._sweep, loop) if is_needed else None
        # Candidates that were closed in the meantime must not stay in memory.
        self._candidates.clear()
        now = monotonic()
        self.edge.report(now)
        for connection in list(self._open):
            connection.check_time(now)


def _since(pair: tuple[float, TimedConnection]) -> float:
    return pair[0]


def _age(connection: TimedConnection) -> float:
    return connection.waiting_since or 0.0
