"""All streams of this instance: the limit on their number, their keep-alives, and their end when the instance stops."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from msgspec.structs import replace

from tenure.clock import monotonic
from tenure.config import SessionsConfig, StreamsConfig
from tenure.domain.deadlines import MICROSECONDS, heartbeat_microseconds
from tenure.domain.scope import Scope
from tenure.domain.sessions import Found, Session
from tenure.domain.streams import AttachRequest, AttachResult
from tenure.naming import CAMEL, Names
from tenure.sessions.ends import SessionEnds
from tenure.store.contract import Store
from tenure.streams.batches import StreamBatches
from tenure.streams.handlers import HandlerFactory
from tenure.streams.output import Tally
from tenure.streams.sockets import Socket
from tenure.streams.stream import REPLACED, SHUTDOWN, Stream
from tenure.telemetry.events import StreamRefused, StreamsStopped, Telemetry

TICK_SECONDS = 0.25
STOP_SECONDS = 8.0


class Admission(Enum):
    """Whether this instance accepts one more stream."""

    ADMITTED = "admitted"
    FULL = "full"
    STOPPING = "stopping"


class Streams:
    def __init__(
        self,
        store: Store,
        config: StreamsConfig,
        sessions: SessionsConfig,
        make_handler: HandlerFactory,
        ends: SessionEnds,
        telemetry: Telemetry,
    ) -> None:
        self._batches = StreamBatches(store, ends, telemetry)
        self._ends = ends
        self.max = config.max_per_instance
        self._lease = round(config.lease_seconds * MICROSECONDS)
        self._idle = round(config.idle_seconds * MICROSECONDS)
        configured = round(sessions.heartbeat_seconds * MICROSECONDS)
        self._heartbeat = heartbeat_microseconds(self._lease, configured) or self._lease
        self._make_handler = make_handler
        self._telemetry = telemetry
        self._newest: dict[str, Stream] = {}
        self._running: dict[Stream, asyncio.Future[None]] = {}
        self._admitted = 0
        self._replacing: set[str] = set()
        """The sessions whose stream is about to be replaced by one that was admitted beyond `max`."""
        self._is_stopping = False

    @property
    def open_count(self) -> int:
        return self._admitted

    @contextmanager
    def admit(self, replaces: Callable[[Session], bool] | None = None) -> Iterator[Admission]:
        """Reserves room for one stream, before the stream opens a session or attaches to one. Frees the room when the
        context exits.

        A full instance still admits a new stream if it already has a stream of a session for which `replaces` is true:
        the new stream is about to replace that one. The client may have lost a connection that the instance still
        holds. While such a replacement is in progress, the instance admits no second one for the same session.
        """
        replaced = self._replaceable(replaces) if replaces and self._admitted >= self.max else None
        if self._is_stopping:
            yield Admission.STOPPING
        elif self._admitted >= self.max and replaced is None:
            self._telemetry.report(StreamRefused())
            yield Admission.FULL
        else:
            self._admitted += 1
            if replaced is not None:
                self._replacing.add(replaced)
            try:
                yield Admission.ADMITTED
            finally:
                self._admitted -= 1
                if replaced is not None:
                    self._replacing.discard(replaced)

    def _replaceable(self, replaces: Callable[[Session], bool]) -> str | None:
        newest = self._newest.items()
        return next((key for key, each in newest if key not in self._replacing and replaces(each.session)), None)

    async def attach(self, session_id: str, scope: Scope) -> AttachResult:
        """Makes a stream the newest of its session. The caller then calls `run`, without awaiting in between.

        While this method waits for the response of the database, it watches the session: `run` starts to watch only
        later, and would not be notified of an end in between. If the instance learns of an end during this wait, the
        result is `Found.OVER`.
        """
        reasons: list[str] = []
        with self._ends.watch(session_id, reasons.append):
            attached = await self._batches.attach(
                AttachRequest(session_id, self._lease, self._idle, self._heartbeat, scope)
            )
        if not reasons or attached.found is not Found.LIVE or attached.session is None:
            return attached
        return replace(attached, found=Found.OVER, session=replace(attached.session, close_reason=reasons[0]))

    async def run(
        self,
        socket: Socket,
        attached: AttachResult,
        greeting: str,
        make_handler: HandlerFactory | None = None,
        names: Names = CAMEL,
    ) -> None:
        """Runs a stream to its end, with the configured handler unless another one is given."""
        make = make_handler or self._make_handler
        stream = Stream(socket, attached, make, self._batches, self._telemetry, Tally(self._telemetry), names)
        session_id = stream.session.session_id
        self._replace_older(session_id, stream)
        if self._is_stopping:
            stream.end(SHUTDOWN)
        running = self._running[stream] = asyncio.ensure_future(stream.run(greeting))
        try:
            with self._ends.watch(session_id, stream.session_ended):
                await running
        finally:
            del self._running[stream]
            if self._newest.get(session_id) is stream:
                del self._newest[session_id]

    def _replace_older(self, session_id: str, stream: Stream) -> None:
        """Ends the older of two streams of one session.

        Responses of the database can arrive out of order, so the attachment numbers decide which stream is older.
        """
        other = self._newest.get(session_id)
        if other is not None and other.attachment > stream.attachment:
            stream.end(REPLACED)
            return
        if other is not None:
            other.end(REPLACED)
            self._replacing.discard(session_id)
        self._newest[session_id] = stream

    async def keep_alive(self) -> None:
        """Starts the keep-alive of each stream when it is due. Runs until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = monotonic()
            for stream in list(self._running):
                if stream.due_at <= now:
                    stream.keep_alive()

    def check_sessions(self) -> None:
        """Called when notifications of ends may have been lost. Starts a keep-alive of every stream, to find the
        sessions that have ended.
        """
        for stream in self._running:
            stream.keep_alive()

    async def stop(self) -> None:
        """Ends every stream, and waits up to STOP_SECONDS until all are saved and closed."""
        self._is_stopping = True
        for stream in self._running:
            stream.end(SHUTDOWN)
        running = list(self._running.values())
        if running:
            _, left = await asyncio.wait(running, timeout=STOP_SECONDS)
            self._telemetry.report(StreamsStopped(len(running), len(left)))
