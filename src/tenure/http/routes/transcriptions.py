"""`POST /transcribe` transcribes a whole recording, in the user's live session or as a short stream of a new session.
`WS /transcribe/stream` opens a session as soon as a client connects, so the first message may already contain audio.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tenure.access.grants import CLIENTS, narrowed
from tenure.config import TranscriptionConfig
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import CloseReason, Heartbeat, OpenOutcome, OpenRequest, OpenResult, Session
from tenure.errors import (
    CapacityOfAnotherTenant,
    DatabaseUnavailable,
    FieldError,
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
from tenure.http.answers import JSON, Answer
from tenure.http.fields import Uuid
from tenure.http.pipeline import Call, RawBody, Route, StreamRoute
from tenure.http.routes.sessions import check_scope, open_answer, refusal_of, refusal_of_open
from tenure.http.routes.streams import check_admission, serve_admitted
from tenure.ids import canonical_id, new_id
from tenure.sessions.ends import SessionEnds
from tenure.sessions.heartbeat import Renewer
from tenure.sessions.open import Opener
from tenure.streams.handlers import HandlerFactory, Message, StreamHandler
from tenure.streams.output import SocketOutput, Tally, as_json
from tenure.streams.registry import Streams
from tenure.streams.sockets import CloseCode, Socket
from tenure.telemetry.events import Telemetry
from tenure.transcription.wav import BYTES_PER_SECOND, read_pcm

FILE_MAX_BYTES = 32 * 1024 * 1024
AT_ONCE_MAX = 4
"""The most files that an instance transcribes at the same time. Each needs a CPU core, and memory for the file."""
HEARTBEAT_SECONDS = 5.0
WAV = RawBody((b"audio/wav", b"audio/x-wav", b"audio/vnd.wave", b"application/octet-stream"), FILE_MAX_BYTES)
STOP = '{"type":"stop"}'


class TranscribeQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    user_object_id: Uuid
    tenant_object_id: Uuid
    capacity_id: Uuid
    session_kind: Annotated[Literal["1", "2", "3"], Meta(extra={"must": "must be 1, 2 or 3"})]


class TranscribeStreamQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A missing tenant or user comes from the credential. If the credential names no tenant, the tenant comes from the
    settings; if the credential names no user, Tenure generates a user id. A missing capacity comes from the settings.
    """

    user: Uuid | None = None
    tenant: Uuid | None = None
    capacity: Uuid | None = None
    kind: Annotated[Literal["1", "2", "3"], Meta(extra={"must": "must be 1, 2 or 3"})] = "1"


class TranscribeAnswer(msgspec.Struct, frozen=True):
    text: str


class TranscriptionRoutes:
    """`make_handler` is None if the handler of `tenure[transcription]` is not installed or refuses the configured
    options. `identity` has the tenant and the capacity for clients that name none.
    """

    def __init__(
        self,
        streams: Streams,
        opener: Opener,
        renewer: Renewer,
        ends: SessionEnds,
        make_handler: HandlerFactory | None,
        identity: TranscriptionConfig,
    ) -> None:
        self._streams = streams
        self._opener = opener
        self._renewer = renewer
        self._ends = ends
        self._make_handler = make_handler
        self._identity = identity
        self._running = 0

    def routes(self) -> Sequence[Route | StreamRoute]:
        return [
            StreamRoute(
                path="/transcribe/stream",
                serve=self.serve,
                grants=narrowed(CLIENTS),
                tag="streams",
                summary="Open a session and transcribe a stream of audio",
                description=(
                    "The session starts with the connection, so the client may send audio at once: mono, 16 kHz, "
                    "16 bits. The tenant comes from `tenant`, or else from the credential, or else from the settings."
                ),
                query=TranscribeStreamQuery,
            ),
            Route(
                method="POST",
                path="/transcribe",
                handler=self.transcribe,
                grants=narrowed(CLIENTS),
                tag="streams",
                summary="Transcribe a whole WAV file",
                description="The file must be mono, 16 kHz, 16 bits. Opens a session, ends the session with the "
                "response, and returns the session id in `X-Session-ID`. If the user already has a live session on the "
                "capacity, uses that session and leaves it open.",
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
            ),
        ]

    async def serve(self, socket: Socket, call: Call) -> None:
        query: TranscribeStreamQuery = call.query
        given = (query.user or call.caller.scope.user, query.capacity or self._identity.capacity)
        key = tuple(canonical_id(each or "") for each in given)

        def replaces(session: Session) -> bool:
            return (session.user_object_id, session.capacity_id) == key

        await serve_admitted(self._streams, self._stream, socket, call, replaces)

    async def _stream(self, socket: Socket, call: Call) -> None:
        if self._make_handler is None:
            raise NotInstalled(_NOT_INSTALLED)
        scope = call.caller.scope
        opened = await self._opener.open(self._stream_request(call.query, scope))
        if (problem := refusal_of_open(opened, scope)) is not None or opened.session is None:
            raise problem or Internal("the open request returned no session")
        session_id = opened.session.session_id
        attached = await self._streams.attach(session_id, scope)
        if (problem := refusal_of(attached, session_id)) is not None:
            raise problem
        answer = open_answer(OpenResult(opened.outcome, attached.session))
        # Add `session_id` even if other names are in camelCase: clients of this route expect this name.
        greeting = as_json({"type": "session_start", "session_id": session_id, **call.names.builtins(answer)})
        await self._streams.run(socket, attached, greeting, self._make_handler, call.names)

    def _stream_request(self, query: TranscribeStreamQuery, scope: Scope) -> OpenRequest:
        tenant = _id_of("tenant", query.tenant or scope.tenant or self._identity.tenant)
        capacity = _id_of("capacity", query.capacity or self._identity.capacity)
        user = query.user or scope.user or new_id()
        check_scope(scope, tenant, user)
        return self._opener.request(user=user, tenant=tenant, capacity=capacity, kind=int(query.kind))

    async def transcribe(self, call: Call) -> Answer:
        if self._make_handler is None:
            raise NotInstalled(_NOT_INSTALLED)
        query: TranscribeQuery = call.query
        scope = call.caller.scope
        check_scope(scope, query.tenant_object_id, query.user_object_id)
        pcm = read_pcm(call.body)
        with self._slot(), self._streams.admit() as admission:
            check_admission(admission, self._streams)
            opened = await self._opener.open(_open_request(self._opener, query))
            problem = refusal_of_open(opened, scope)
            if problem is not None or opened.session is None:
                raise problem or Internal("the open request returned no session")
            if opened.outcome is OpenOutcome.EXISTING:
                text = await self._in_live_session(opened.session, pcm, self._make_handler)
            else:
                text = await self._as_stream(opened.session, pcm, self._make_handler)
        headers = [*JSON, (b"x-session-id", opened.session.session_id.encode())]
        return Answer(TranscribeAnswer(text), 200, headers)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if self._running >= AT_ONCE_MAX:
            raise Overloaded(f"this instance already transcribes {AT_ONCE_MAX} files")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _as_stream(self, session: Session, pcm: bytes, make_handler: HandlerFactory) -> str:
        """Transcribes in a new session. Renews the session, counts its messages and ends it as for any stream."""
        recording = Recording(pcm)
        attached = await self._streams.attach(session.session_id, EVERYTHING)
        if (problem := refusal_of(attached, session.session_id)) is not None:
            raise problem
        await self._streams.run(recording, attached, as_json({"type": "session_start"}), make_handler)
        if recording.reason == CloseReason.FAILED:
            raise Internal("the recording could not be transcribed; the log has the details")
        if recording.reason != CloseReason.STOPPED:
            raise SessionOver(str(recording.reason))
        return recording.text

    async def _in_live_session(self, session: Session, pcm: bytes, make_handler: HandlerFactory) -> str:
        """Transcribes in a session that was already live.

        Leaves the session open. Does not attach to the session, because a new attachment would replace its stream. If
        the session ends during the transcription, cancels the transcription and raises `SessionOver`.
        """
        transcribing = asyncio.ensure_future(_transcribe(session, Recording(pcm), make_handler()))
        heartbeats = asyncio.ensure_future(self._send_heartbeats(session.session_id))
        reasons: list[str] = []

        def end(reason: str) -> None:
            # Cancel only once: a second cancellation would interrupt the handler while it finishes.
            if not reasons:
                transcribing.cancel()
            reasons.append(reason)

        try:
            with self._ends.watch(session.session_id, end):
                return await transcribing
        except asyncio.CancelledError:
            if not reasons:
                raise
            raise SessionOver(reasons[0]) from None
        finally:
            heartbeats.cancel()

    async def _send_heartbeats(self, session_id: str) -> None:
        """Sends heartbeats until cancelled. If a heartbeat finds that the session has ended, the renewer calls the
        watchers of the session, and `_in_live_session` stops.
        """
        while True:
            with suppress(DatabaseUnavailable, Overloaded):
                await self._renewer.heartbeat(Heartbeat(session_id, active=True, scope=EVERYTHING))
            await asyncio.sleep(HEARTBEAT_SECONDS)


async def _transcribe(session: Session, recording: "Recording", handler: StreamHandler) -> str:
    # Use telemetry without subscribers. The transcription is not a stream of the session, so its messages must not
    # appear in the stream counters of the session and of `GET /sessions/metrics`.
    await handler.open(session, SocketOutput(recording, Tally(Telemetry())))
    try:
        while (message := await recording.receive()) != STOP:
            await handler.chunk(message)
    finally:
        await handler.finish()
    return recording.text


class Recording:
    """Implements `Socket` for a file: `receive` returns the audio, then STOP, and `send` collects the results."""

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
        result = msgspec.json.decode(message)
        if result["type"] == "final" and result["text"]:
            self._finals.append(result["text"])
        elif result["type"] == "session_end":
            self.reason = result["reason"]

    async def close(self, code: CloseCode) -> None:
        pass


_NOT_INSTALLED = "tenure[transcription] is not installed on this instance"


def _id_of(name: str, given: str | None) -> str:
    canonical = None if given is None else canonical_id(given)
    if canonical is None:
        raise Invalid(FieldError(name, f"is missing: neither the query nor [transcription] {name} names one"))
    return canonical


def _open_request(opener: Opener, query: TranscribeQuery) -> OpenRequest:
    return opener.request(
        user=query.user_object_id,
        tenant=query.tenant_object_id,
        capacity=query.capacity_id,
        kind=int(query.session_kind),
    )
