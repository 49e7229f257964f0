"""All streams of this instance: how many there may be, who keeps them alive, and how they end with it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from tenure.clock import monotonic
from tenure.config import SessionsConfig, StreamsConfig
from tenure.deadlines import MICROSECONDS, heartbeat_microseconds
from tenure.errors import Draining, SessionLimit
from tenure.model.sessions import Attach, Attached
from tenure.sessions.counters import Counters
from tenure.store.store import Store
from tenure.streams.handlers import HandlerFactory
from tenure.streams.saving import StreamStore
from tenure.streams.sockets import Socket
from tenure.streams.stream import REPLACED, SHUTDOWN, Stream
from tenure.streams.tally import Tally

log = structlog.get_logger()

TICK_SECONDS = 0.25
STOP_SECONDS = 8.0


class Streams:
    def __init__(
        self,
        store: Store,
        config: StreamsConfig,
        sessions: SessionsConfig,
        make_handler: HandlerFactory,
        counters: Counters,
    ) -> None:
        self._store = StreamStore(store, counters)
        self._max = config.max_per_instance
        self._lease = round(config.lease_seconds * MICROSECONDS)
        self._idle = round(config.idle_seconds * MICROSECONDS)
        configured = round(sessions.heartbeat_seconds * MICROSECONDS)
        self._heartbeat = heartbeat_microseconds(self._lease, configured) or self._lease
        self._make_handler = make_handler
        self._counters = counters
        self._newest: dict[str, Stream] = {}
        self._running: dict[Stream, asyncio.Future[None]] = {}
        self._places = 0
        self._is_stopping = False

    @contextmanager
    def place(self) -> Iterator[None]:
        """Room for one stream, from before its session is opened."""
        if self._is_stopping:
            raise Draining("this instance is stopping")
        if self._places >= self._max:
            raise SessionLimit(f"this instance has {self._max} streams already")
        self._places += 1
        try:
            yield
        finally:
            self._places -= 1

    async def attach(self, session_id: str) -> Attached:
        return await self._store.attach(Attach(session_id, self._lease, self._idle, self._heartbeat))

    async def run(
        self, socket: Socket, attached: Attached, greeting: str, make_handler: HandlerFactory | None = None
    ) -> None:
        """To its end, whatever that is; with the configured handler, unless told otherwise."""
        make = make_handler or self._make_handler
        stream = Stream(socket, attached, make, self._store, Tally(self._counters.streamed))
        session_id = stream.session.session_id
        self._take_over(session_id, stream)
        if self._is_stopping:
            stream.end(SHUTDOWN)
        running = self._running[stream] = asyncio.ensure_future(stream.run(greeting))
        try:
            await running
        finally:
            del self._running[stream]
            if self._newest.get(session_id) is stream:
                del self._newest[session_id]

    def _take_over(self, session_id: str, stream: Stream) -> None:
        """Answers of the database may overtake each other, the numbers in them do not."""
        other = self._newest.get(session_id)
        if other is not None and other.attachment > stream.attachment:
            stream.end(REPLACED)
            return
        if other is not None:
            other.end(REPLACED)
        self._newest[session_id] = stream

    async def keep_alive(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = monotonic()
            for stream in list(self._running):
                if stream.due_at <= now:
                    stream.keep_alive()

    async def stop(self) -> None:
        """Every stream is told, flushed and closed, within a bounded time."""
        self._is_stopping = True
        for stream in self._running:
            stream.end(SHUTDOWN)
        running = list(self._running.values())
        if running:
            _, left = await asyncio.wait(running, timeout=STOP_SECONDS)
            log.info("streams.stopped", told=len(running), left=len(left))
