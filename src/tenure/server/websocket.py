"""WebSocket connections: the protocol that uvicorn's server uses for requests that ask for an upgrade.

The `websockets` package parses the frames, without doing I/O. Every connection has limits:

- Reading pauses while too many messages or bytes are buffered, and `send` waits while the client does not read.
- The size of a message, the number of its fragments, and the number of pings and pongs per second are limited. A client
  that exceeds one of these limits gets an error message before its connection is closed. No framework is used here,
  because frameworks close the connection without that message.
- Long input is parsed in slices, one per iteration of the event loop, so that the loop serves other connections between
  two slices.
- Pings of a client that does not read are not answered, because the answers would fill the memory.
- A client that does not answer pings is disconnected.

The credential of a client is in the header `Authorization`. Browsers cannot set headers for a WebSocket, so a browser
offers two subprotocols instead: `tenure` and `tenure.bearer.<credential>`. The server selects `tenure`, and never
repeats the credential. If the client sends neither the header nor a credential as a subprotocol, the server uses the
credential in the sign-in cookie of the client (`access/cookies.py`).

Closing takes time, because a client may send for a while before it reads. After sending a close frame, the server keeps
reading, and discards the input, up to LINGER_SECONDS and LINGER_MAX_BYTES. If the server closed at once, the operating
system would reset the connection, and the client would never read the reason.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.utils import get_remote_addr
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeader, PayloadTooBig
from websockets.frames import Close, Frame, Opcode
from websockets.headers import parse_subprotocol
from websockets.http11 import Request, Response
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from tenure.access.caller import Caller
from tenure.access.cookies import credential_in_cookie
from tenure.access.oidc import SCHEME
from tenure.clock import monotonic
from tenure.errors import FieldError, Invalid, Problem, Unauthenticated
from tenure.http.answers import Answer
from tenure.http.edge import CASE_HEADER, REQUEST_ID_HEADER, Visit
from tenure.http.pipeline import Call, Pipeline, StreamRoute
from tenure.streams.handlers import Message
from tenure.streams.sockets import CloseCode, SocketGone, UnreadableMessage
from tenure.telemetry.events import StreamCrashed, Telemetry, current_request
from tenure.telemetry.logs import SILENT

WAITING_MESSAGES_MAX = 16
WAITING_BYTES_MAX = 1_048_576
FRAGMENTS_MAX = 1024
PING_SECONDS = 15.0
PONG_GRACE_SECONDS = 1.0
"""How much longer than PING_SECONDS the server waits for a pong before it closes the connection."""
SLICE_BYTES = 4096
"""How much is parsed in one iteration of the event loop. 4 KiB of empty frames keep the loop busy for 5 ms."""
CONTROL_FRAMES_PER_SECOND = 100
"""How many pings and pongs, counted together, a client may send per second."""
GOODBYE_SECONDS = 2.0
"""While the server lingers after its close frame, it aborts the connection when the client has sent nothing for this
long, unless the server has ended its output after an error. After `_hang_up`, the server aborts the connection after
this time even if the client is still sending."""
LINGER_SECONDS = 5.0
"""The connection is aborted this long after the server's close frame, even if the client is still sending."""
LINGER_MAX_BYTES = 64 * 1024 * 1024
CROWDED = 3 / 4
"""If more than this share of `max_connections` is taken, connections do not linger."""
AUTHORIZATION = b"authorization"
SUBPROTOCOL = Subprotocol("tenure")
"""The subprotocol that the server selects if the client offers it. It does not change the messages."""
CREDENTIAL_PREFIX = "tenure.bearer."
PROTOCOL_HEADER = "Sec-WebSocket-Protocol"
PROTOCOL = PROTOCOL_HEADER.lower().encode()
CASE_PREFIX = b"tenure."
CASES = frozenset({b"tenure.camel", b"tenure.snake"})
"""The subprotocols with which a browser chooses the case of field names: it cannot send the header `Tenure-JSON-Case`.
"""
PONG_START = bytes([0x80 | Opcode.PONG])
"""The first byte of a pong."""


def websocket_protocol_for(pipeline: Pipeline, telemetry: Telemetry, message_max_bytes: int) -> type[asyncio.Protocol]:
    """Returns a subclass that passes these dependencies to `WebSocketProtocol`: uvicorn creates the instances itself,
    and does not know the dependencies.
    """

    class BoundProtocol(WebSocketProtocol):
        def __init__(self, config: Any, server_state: Any, app_state: Any) -> None:
            del config, app_state
            super().__init__(server_state.connections, pipeline, telemetry, message_max_bytes)

    return BoundProtocol


class _Frames(ServerProtocol):
    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        """Selects `tenure` if the client offers it. A browser that offers subprotocols requires that the server selects
        one.

        Overrides the method instead of passing a function as the constructor's argument `select_subprotocol`: the
        constructor would bind the function to the object and store it there, so the object would refer to itself.
        """
        return SUBPROTOCOL if SUBPROTOCOL in subprotocols else None


class WebSocketProtocol(asyncio.Protocol):
    """One WebSocket connection. It implements `Socket` for its stream, and `OpenStream` for the pipeline."""

    route: StreamRoute
    parameters: Mapping[str, str]
    headers: Sequence[tuple[bytes, bytes]]

    def __init__(self, connections: set[Any], pipeline: Pipeline, telemetry: Telemetry, message_max_bytes: int) -> None:
        self._connections = connections
        self._pipeline = pipeline
        self._telemetry = telemetry
        self._message_max_bytes = message_max_bytes
        # Replace the parser's own logger, which would log all headers, and with them the credential.
        self._frames = _Frames(max_size=message_max_bytes, logger=SILENT)
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._waiting: deque[Message | UnreadableMessage] = deque()
        self._waiting_bytes = 0
        self._receiver: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._fragments: list[bytes] = []
        self._is_text = False
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._unparsed = bytearray()
        self._is_scheduled = False
        self._is_full = False
        self._is_identifying = False
        """Whether the handshake waits until its caller is identified. Meanwhile nothing is parsed."""
        self._is_reading = True
        self._has_failed = False
        self._is_closing = False
        self._is_discarding = False
        self._output_has_ended = False
        self._discarded = 0
        self._last_byte_at = 0.0
        self._control_frames = 0
        self._control_second = 0.0
        self._ping_is_unanswered = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # Called by the stream.

    async def receive(self) -> Message:
        while not self._waiting:
            if self.gone.done() and not self._unparsed:
                raise SocketGone("the connection was lost")
            self._receiver = self._loop.create_future()
            await self._receiver
        message = self._waiting.popleft()
        if isinstance(message, UnreadableMessage):
            try:
                raise message
            finally:
                # The traceback refers to this frame, so the frame must not refer to the exception.
                del message
        self._waiting_bytes -= len(message)
        self._resume_reading()
        return message

    async def send(self, message: Message) -> None:
        if self.gone.done() or not (self._frames.state is State.OPEN or self._has_failed):
            return
        if isinstance(message, str):
            self._write(Frame(Opcode.TEXT, message.encode()))
        else:
            self._write(Frame(Opcode.BINARY, message))
        if self._drained is not None:
            await asyncio.wait({self._drained, self.gone}, return_when=asyncio.FIRST_COMPLETED)

    async def close(self, code: CloseCode) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_close(code)
            self._flush()
        elif self._has_failed:
            # `_discard_rest` dropped the parser's close frame, because the error message had to be sent first.
            self._write(Frame(Opcode.CLOSE, Close(code, "").serialize()))
        # From now on, all input except the client's close frame is discarded.
        self._is_closing = True
        self._waiting.clear()
        self._resume_reading()
        if self._has_failed:
            # Input is not parsed any more, so only the end of the connection shows that the client has closed.
            self._end_output()
        await self._linger()
        # `abort`, because `close` would wait for a client that does not read.
        self._transport.abort()

    # Called by the pipeline.

    def refuse(self, problem: Problem) -> None:
        self._pipeline.open_streams.discard(self)
        if self._frames.state is State.OPEN and not (self._is_closing or self._has_failed):
            self._discard_rest(UnreadableMessage(CloseCode.REFUSED, problem.code, problem.detail))

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        # Any byte counts as a pong: while a long frame arrives, the client cannot send one.
        self._ping_is_unanswered = False
        if self._is_discarding or self._is_closing:
            self._count_discarded(len(data))
        if self._is_discarding:
            return
        if not self._unparsed and not self._is_full and len(data) <= SLICE_BYTES:
            self._parse(data)
        else:
            self._unparsed += data
            self._parse_next()

    def eof_received(self) -> None:
        if not self._unparsed and not self._is_identifying:
            self._frames.receive_eof()
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._connections.discard(self)
        self._pipeline.open_streams.discard(self)
        self._cancel_timer()
        self._lost.set_result(None)
        self._set_gone()
        if self._is_closing or self._is_discarding:
            self._unparsed.clear()
        # Otherwise the messages that arrived before the connection was lost are still parsed.
        self._release_parser()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def shutdown(self) -> None:
        """Closes the connection when uvicorn stops. The instance ends all streams before that, so usually only
        connections without a stream are left.
        """
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.SHUTDOWN)
            self._flush()
        self._hang_up()

    # Parsing.

    def _parse(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Request):
                self._handshake(event)
            else:
                self._frame_received(event)
        if isinstance(self._frames.parser_exc, PayloadTooBig) and not self._has_failed:
            self._discard_rest(_too_big(self._message_max_bytes))
        self._flush()

    def _parse_next(self) -> None:
        """Parses one slice, unless too many messages already wait for the stream, or the caller is still being
        identified.
        """
        self._is_scheduled = False
        if self._unparsed and not self._is_full:
            piece = bytes(self._unparsed[:SLICE_BYTES])
            del self._unparsed[:SLICE_BYTES]
            self._parse(piece)
            if not self._is_full:
                self._schedule()
        self._update_reading()
        self._release_parser()
        if self.gone.done():
            self._wake_receiver()

    def _schedule(self) -> None:
        if self._unparsed and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._parse_next)

    def _release_parser(self) -> None:
        """Once the connection is lost and all input is parsed, breaks the reference cycles of the parser: one with its
        generator, and one with the traceback of its exception. Otherwise the parser would stay in memory until the
        garbage collector finds it.
        """
        if self._lost.done() and not self._unparsed:
            self._frames.parser.close()
            self._frames.parser_exc = None
            self._frames.reader.discard()
            self._fragments = []

    # Internal.

    def _handshake(self, request: Request) -> None:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.raw_items()]
        headers += _case(headers)
        visit = self._pipeline.visit_stream(headers, get_remote_addr(self._transport))
        try:
            self.route, self.parameters = self._pipeline.match_stream(request.path, visit)
            self.headers = _credentials(request, headers)
            identified = self._pipeline.identify(self.headers)
            if isinstance(identified, Caller):
                self._accept(request, identified, visit)
                return
        except Exception as error:  # noqa: BLE001 - sent as a problem; details are logged
            self._frames.send_response(_refusal(self._pipeline.failure(error, visit), visit))
            return
        self._is_identifying = self._is_full = True
        self._update_reading()
        self._pipeline.run_aside(self._accept_when_identified(request, identified, visit))

    async def _accept_when_identified(self, request: Request, identified: Awaitable[Caller], visit: Visit) -> None:
        """Continues after `_handshake` if identifying the caller takes I/O."""
        current_request.set(visit.request_id)
        try:
            caller = await identified
            if not self.gone.done():
                self._accept(request, caller, visit)
        except Exception as error:  # noqa: BLE001 - sent as a problem; details are logged
            answer = self._pipeline.failure(error, visit)
            if not self.gone.done():
                self._frames.send_response(_refusal(answer, visit))
                self._flush()
        self._is_identifying = self._is_full = False
        self._schedule()
        self._update_reading()

    def _accept(self, request: Request, caller: Caller, visit: Visit) -> None:
        self._pipeline.permit(caller, self.route.grants, self.parameters)
        query = self._pipeline.stream_query(self.route, request.path)
        response = self._frames.accept(request)
        response.headers[REQUEST_ID_HEADER.decode()] = visit.request_id
        self._frames.send_response(response)
        self._flush()
        if self._frames.state is State.OPEN:
            self._pipeline.open_streams.add(self)
            self._check_pong()
            call = Call(caller, self.parameters, query, request_id=visit.request_id, names=visit.names)
            self._task = self._loop.create_task(self._run(self.route, call))

    async def _run(self, route: StreamRoute, call: Call) -> None:
        current_request.set(call.request_id)
        try:
            await route.serve(self, call)
        except Exception as error:  # noqa: BLE001 - reported, and the connection is closed
            self._telemetry.report(StreamCrashed(None, error))
            await self.close(CloseCode.FAILED)
        finally:
            # No further message is received. This object may stay in memory for a while, so free the client's data now.
            self._unparsed.clear()
            self._waiting.clear()
            self._receiver = None
            self._release_parser()

    def _frame_received(self, frame: Any) -> None:
        if self._is_closing or self._has_failed:
            return
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._is_text = frame.opcode is Opcode.TEXT
        elif frame.opcode is not Opcode.CONT:
            self._count_control_frame()
            return
        if frame.fin and not self._fragments:
            self._message_received(bytes(frame.data))
            return
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            self._message_received(b"".join(self._fragments))
            self._fragments = []
        elif len(self._fragments) > FRAGMENTS_MAX:
            self._discard_rest(UnreadableMessage(CloseCode.REFUSED, "INVALID", "the message has too many fragments"))

    def _message_received(self, content: bytes) -> None:
        message: Message = content
        if self._is_text:
            try:
                message = content.decode()
            except UnicodeDecodeError:
                self._discard_rest(
                    UnreadableMessage(CloseCode.UNREADABLE, "INVALID", "the text message is not valid UTF-8")
                )
                return
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        if len(self._waiting) >= WAITING_MESSAGES_MAX or self._waiting_bytes >= WAITING_BYTES_MAX:
            self._is_full = True
            self._update_reading()
        self._wake_receiver()

    def _count_control_frame(self) -> None:
        now = monotonic()
        if now - self._control_second >= 1:
            self._control_second, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames > CONTROL_FRAMES_PER_SECOND:
            self._pipeline.edge.refused("pings")
            most = f"a client may send at most {CONTROL_FRAMES_PER_SECOND} pings and pongs per second"
            self._discard_rest(UnreadableMessage(CloseCode.REFUSED, "TOO_MANY_PINGS", most))

    def _discard_rest(self, reason: UnreadableMessage) -> None:
        """Queues `reason` behind the messages that already wait for the stream. When `receive` raises `reason`, the
        stream sends it as an error message and closes the connection.

        Discards further input: closing at once would reset the connection, and the client would never receive the error
        message.
        """
        self._has_failed = True
        self._discard_input()
        self._frames.data_to_send()
        self._waiting.append(reason)
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _discard_input(self) -> None:
        self._is_discarding = True
        self._unparsed.clear()

    def _count_discarded(self, size: int) -> None:
        self._last_byte_at = monotonic()
        self._discarded += size
        if self._discarded > LINGER_MAX_BYTES:
            self._transport.abort()

    def _resume_reading(self) -> None:
        if self._is_full and len(self._waiting) <= WAITING_MESSAGES_MAX // 2:
            self._is_full = False
            self._schedule()
            self._update_reading()

    def _update_reading(self) -> None:
        reads = not (self._is_full or self._unparsed)
        if reads == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _flush(self) -> None:
        does_not_read = self._drained is not None or self._is_closing
        for data in self._frames.data_to_send():
            if data == SEND_EOF:
                self._hang_up()
            elif self._may_write() and not (does_not_read and data.startswith(PONG_START)):
                self._transport.write(data)

    async def _linger(self) -> None:
        """Waits until the client has closed the connection, for LINGER_SECONDS at most.

        Returns earlier if more than the share CROWDED of all connections is taken, or if the client has sent nothing
        for GOODBYE_SECONDS. A client that gets an error message may be silent for LINGER_SECONDS: the server has ended
        its output, so the client closes the connection when it has read the message. With TLS the server cannot end its
        output without closing the connection, so a client with TLS may be silent only for GOODBYE_SECONDS.
        """
        self._last_byte_at = monotonic()
        ends_at = self._last_byte_at + LINGER_SECONDS
        while not self._lost.done() and not self._is_crowded():
            ends_output = self._has_failed and self._transport.can_write_eof()
            silent_at = ends_at if ends_output else self._last_byte_at + GOODBYE_SECONDS
            left = min(ends_at, silent_at) - monotonic()
            if left <= 0:
                return
            await asyncio.wait({self._lost}, timeout=left)

    def _hang_up(self) -> None:
        """Ends the output, or closes the connection if connections are scarce (`_is_crowded`). Discards further input,
        and aborts the connection after GOODBYE_SECONDS.
        """
        self._discard_input()
        self._set_gone()
        self._is_full = False
        self._update_reading()
        if self._is_crowded():
            self._transport.close()
        else:
            self._end_output()
        self._cancel_timer()
        self._timer = self._loop.call_later(GOODBYE_SECONDS, self._transport.abort)

    def _is_crowded(self) -> bool:
        return len(self._connections) > CROWDED * self._pipeline.edge.limits.max_connections

    def _end_output(self) -> None:
        if self._may_write():
            self._output_has_ended = True
            # The client may have reset the connection already.
            with suppress(OSError):
                if self._transport.can_write_eof():
                    self._transport.write_eof()
                elif not self._has_failed:
                    # With TLS the output cannot end without closing the connection. Usually the client has answered the
                    # close frame by now, and sends no more.
                    self._transport.close()

    def _set_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._wake_receiver()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, frame: Frame) -> None:
        if self._may_write():
            self._transport.write(frame.serialize(mask=False))

    def _may_write(self) -> bool:
        return not self._output_has_ended and not self._transport.is_closing()

    def _check_pong(self) -> None:
        """Detects clients that vanished without closing the connection. While reading is paused, a missing pong does
        not count.
        """
        if self._ping_is_unanswered and self._is_reading:
            # If this process was paused, its timers fire before it reads input. So a pong may have arrived that is not
            # read yet.
            self._timer = self._loop.call_later(PONG_GRACE_SECONDS, self._abort_or_ping)
        else:
            self._send_ping()

    def _abort_or_ping(self) -> None:
        if self._ping_is_unanswered and self._is_reading:
            self._transport.abort()
        else:
            self._send_ping()

    def _send_ping(self) -> None:
        if self._frames.state is State.OPEN:
            self._ping_is_unanswered = True
            self._frames.send_ping(b"")
            self._flush()
            self._timer = self._loop.call_later(PING_SECONDS, self._check_pong)


def _case(headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
    """Returns a header `Tenure-JSON-Case` for each offered subprotocol `tenure.camel` or `tenure.snake`."""
    offered = [each.strip() for name, value in headers if name == PROTOCOL for each in value.split(b",")]
    return [(CASE_HEADER, each.removeprefix(CASE_PREFIX)) for each in offered if each in CASES]


def _credentials(request: Request, headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
    """Returns the `Authorization` headers of a handshake. A credential that is offered as a subprotocol, or that is
    only in the sign-in cookie, is returned as such a header.

    Raises `Invalid` if the subprotocols are malformed, and `Unauthenticated` if the client sends two different
    credentials.
    """
    given = [header for header in headers if header[0] == AUTHORIZATION]
    try:
        offered = [each for value in request.headers.get_all(PROTOCOL_HEADER) for each in parse_subprotocol(value)]
    except InvalidHeader:
        # Omit the details: they would repeat the header, and with it the credential.
        raise Invalid(FieldError(PROTOCOL_HEADER, "must be a list of subprotocols")) from None
    credentials = {each.removeprefix(CREDENTIAL_PREFIX) for each in offered if each.startswith(CREDENTIAL_PREFIX)}
    if not credentials:
        cookie = None if given else credential_in_cookie(headers)
        return given if cookie is None else [(AUTHORIZATION, SCHEME + cookie)]
    as_subprotocol = [(AUTHORIZATION, f"Bearer {credential}".encode("latin-1")) for credential in credentials]
    if len(as_subprotocol) > 1 or (given and not _are_same(given, as_subprotocol[0])):
        raise Unauthenticated("the handshake has two different credentials")
    return as_subprotocol


def _are_same(given: Sequence[tuple[bytes, bytes]], offered: tuple[bytes, bytes]) -> bool:
    """Whether `given` is a single header with the credential of `offered`. The scheme `Bearer` is case-insensitive; the
    credential is not.
    """
    (scheme, _, credential), (_, _, other) = (value.partition(b" ") for value in (given[0][1], offered[1]))
    return len(given) == 1 and scheme.lower() == b"bearer" and credential == other


def _too_big(message_max_bytes: int) -> UnreadableMessage:
    return UnreadableMessage(CloseCode.TOO_BIG, "TOO_LARGE", f"a message may have at most {message_max_bytes} bytes")


def _refusal(answer: Answer, visit: Visit) -> Response:
    body = answer.body(visit.request_id, visit.names)
    headers = Headers([(name.decode(), value.decode("latin-1")) for name, value in (*answer.headers, *visit.headers)])
    headers[REQUEST_ID_HEADER.decode()] = visit.request_id
    headers["content-length"] = str(len(body))
    headers["connection"] = "close"
    return Response(answer.status, HTTPStatus(answer.status).phrase, headers, body)
