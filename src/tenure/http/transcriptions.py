"""`POST /transcribe`: a whole recording as one short stream."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tenure.errors import (
    CapacityOfAnotherTenant,
    DatabaseUnavailable,
    Internal,
    Invalid,
    NotInstalled,
    Overloaded,
    SessionLimit,
    SessionOver,
    TenantMismatch,
    TooLarge,
    Unavailable,
    UnsupportedMediaType,
)
from tenure.http.routing import JSON, Answer, Call, RawBody, Route
from tenure.http.shapes import OpenBody, Uuid
from tenure.model.sessions import CloseReason, Heartbeat, Outcome, Session
from tenure.sessions.keeping import Keeper
from tenure.sessions.opening import Opener
from tenure.streams.handlers import HandlerFactory, Message
from tenure.streams.output import SocketOutput, as_json
from tenure.streams.sockets import CloseCode
from tenure.streams.streams import Streams
from tenure.streams.tally import Tally
from tenure.transcription.wav import BYTES_PER_SECOND, read_pcm

FILE_MAX_BYTES = 32 * 1024 * 1024
AT_ONCE_MAX = 4
"""Each takes a core and its file's memory."""
HEARTBEAT_SECONDS = 5.0
WAV = RawBody((b"audio/wav", b"audio/x-wav", b"audio/vnd.wave", b"application/octet-stream"), FILE_MAX_BYTES)
STOP = '{"type":"stop"}'


class TranscribeQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    user_object_id: Uuid
    tenant_object_id: Uuid
    capacity_id: Uuid
    session_kind: Annotated[Literal["1", "2", "3"], Meta(extra={"must": "must be 1, 2 or 3"})]


class TranscribeAnswer(msgspec.Struct, frozen=True):
    text: str


class TranscriptionRoutes:
    """`make_handler` is None where the extra is not installed."""

    def __init__(self, streams: Streams, opener: Opener, keeper: Keeper, make_handler: HandlerFactory | None) -> None:
        self._streams = streams
        self._opener = opener
        self._keeper = keeper
        self._make_handler = make_handler
        self._running = 0

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="POST",
                path="/transcribe",
                handler=self.transcribe,
                tag="streams",
                summary="Transcribe a whole WAV file",
                description="Mono, 16 kHz, 16 bits. A short session of its own, named in `X-Session-ID`; one that was "
                "already live is used and left open.",
                query=TranscribeQuery,
                raw_body=WAV,
                answers={200: TranscribeAnswer},
                refusals=(
                    Invalid,
                    CapacityOfAnotherTenant,
                    TenantMismatch,
                    SessionOver,
                    TooLarge,
                    UnsupportedMediaType,
                    SessionLimit,
                    NotInstalled,
                    Unavailable,
                ),
            )
        ]

    async def transcribe(self, call: Call) -> Answer:
        if self._make_handler is None:
            raise NotInstalled("install tenure[transcription] to have this")
        pcm = read_pcm(call.body)
        with self._turn(), self._streams.place():
            opened = await self._opener.open(self._opener.wish(_open_body(call.query)))
            if opened.session is None:
                raise Internal("an open without a session")
            if opened.outcome is Outcome.EXISTING:
                text = await self._within(opened.session, pcm, self._make_handler)
            else:
                text = await self._as_stream(opened.session, pcm, self._make_handler)
        headers = [*JSON, (b"x-session-id", opened.session.session_id.encode())]
        return Answer(TranscribeAnswer(text), 200, headers)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._running >= AT_ONCE_MAX:
            raise Overloaded(f"this instance transcribes {AT_ONCE_MAX} files already")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _as_stream(self, session: Session, pcm: bytes, make_handler: HandlerFactory) -> str:
        """A session of its own is kept alive, counted and ended as that of any stream is."""
        recording = Recording(pcm)
        attached = await self._streams.attach(session.session_id)
        await self._streams.run(recording, attached, as_json({"type": "session_start"}), make_handler)
        if recording.reason == CloseReason.FAILED:
            raise Internal("the recording could not be transcribed; the log has the details")
        if recording.reason != CloseReason.STOPPED:
            raise SessionOver(str(recording.reason))
        return recording.text

    async def _within(self, session: Session, pcm: bytes, make_handler: HandlerFactory) -> str:
        """A live session is used: it is neither attached to, which would take its stream away, nor ended."""
        recording = Recording(pcm)
        handler = make_handler()
        keeping = asyncio.ensure_future(self._keep(session.session_id))
        try:
            await handler.open(session, SocketOutput(recording, Tally(Counter())))
            try:
                while (message := await recording.receive()) != STOP:
                    await handler.chunk(message)
            finally:
                await handler.finish()
        finally:
            keeping.cancel()
        return recording.text

    async def _keep(self, session_id: str) -> None:
        while True:
            with suppress(DatabaseUnavailable):
                await self._keeper.heartbeat(Heartbeat(session_id, active=True))
            await asyncio.sleep(HEARTBEAT_SECONDS)


class Recording:
    """A whole recording as the socket of a stream: it says all it has to say, then stop, and keeps what it hears."""

    def __init__(self, pcm: bytes) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason: str | None = None
        self._finals: list[str] = []
        self._messages: Iterator[Message] = chain(
            (pcm[start : start + BYTES_PER_SECOND] for start in range(0, len(pcm), BYTES_PER_SECOND)), [STOP]
        )

    @property
    def text(self) -> str:
        return " ".join(self._finals)

    async def receive(self) -> Message:
        return next(self._messages)

    async def send(self, message: Message) -> None:
        heard = msgspec.json.decode(message)
        if heard["type"] == "final" and heard["text"]:
            self._finals.append(heard["text"])
        elif heard["type"] == "session_end":
            self.reason = heard["reason"]

    async def close(self, code: CloseCode) -> None:
        pass


def _open_body(query: TranscribeQuery) -> OpenBody:
    kind: Any = int(query.session_kind)
    return OpenBody(query.user_object_id, query.tenant_object_id, query.capacity_id, kind)
