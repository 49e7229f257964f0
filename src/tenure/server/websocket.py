"""WebSocket connections: the protocol that uvicorn's server uses for requests that ask for an upgrade.

The `websockets` package parses the frames, without doing I/O. Every connection has limits: reading pauses while too
many messages or bytes are buffered, `send` waits while the client does not read, the size of a message is bounded, and
a client that does not answer pings is disconnected. A client that sends too much gets an error message before its
connection is closed. No framework is used here, because frameworks close the connection without that message.
"""

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any, cast

from websockets.datastructures import Headers
from websockets.exceptions import PayloadTooBig
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from tenure.http.answers import Answer
from tenure.http.pipeline import Call, Pipeline, StreamRoute
from tenure.streams.handlers import Message
from tenure.streams.sockets import CloseCode, SocketGone, UnreadableMessage
from tenure.telemetry.events import StreamCrashed, Telemetry

WAITING_MESSAGES_MAX = 16
WAITING_BYTES_MAX = 1_048_576
FRAGMENTS_MAX = 1024
PING_SECONDS = 15.0
LAST_LOOK_SECONDS = 1.0
"""How much longer than PING_SECONDS the server waits for a pong before it closes the connection."""
GOODBYE_SECONDS = 2.0
EXCESS_SECONDS = 5.0
"""How long a client may take to close after it sent an unreadable message, before the connection is aborted."""


def websocket_protocol_for(pipeline: Pipeline, telemetry: Telemetry, message_max_bytes: int) -> type[asyncio.Protocol]:
    """Returns a subclass with these dependencies bound, because uvicorn creates the protocol instances."""

    class BoundProtocol(WebSocketProtocol):
        def __init__(self, config: Any, server_state: Any, app_state: Any) -> None:
            del config, app_state
            super().__init__(server_state.connections, pipeline, telemetry, message_max_bytes)

    return BoundProtocol


class WebSocketProtocol(asyncio.Protocol):
    """One WebSocket connection. It implements `Socket` for its stream."""

    def __init__(self, connections: set[Any], pipeline: Pipeline, telemetry: Telemetry, message_max_bytes: int) -> None:
        self._connections = connections
        self._pipeline = pipeline
        self._telemetry = telemetry
        self._message_max_bytes = message_max_bytes
        self._frames = ServerProtocol(max_size=message_max_bytes)
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._waiting: deque[Message | UnreadableMessage] = deque()
        self._waiting_bytes = 0
        self._receiver: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._fragments: list[bytes] = []
        self._is_text = False
        self._has_failed = False
        self._is_closing = False
        self._reading_is_paused = False
        self._ping_is_unanswered = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # Called by the stream

    async def receive(self) -> Message:
        while not self._waiting:
            if self.gone.done():
                raise SocketGone("the connection was lost")
            self._receiver = self._loop.create_future()
            await self._receiver
        message = self._waiting.popleft()
        if isinstance(message, UnreadableMessage):
            raise message
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
            # The close frame was held back until the client got the error message.
            self._write(Frame(Opcode.CLOSE, Close(code, "").serialize()))
        # From now on everything that arrives is discarded, except the client's close frame.
        self._is_closing = True
        self._waiting.clear()
        self._resume_reading()
        await asyncio.wait({self.gone}, timeout=EXCESS_SECONDS if self._has_failed else GOODBYE_SECONDS)
        # Not `close`, which would wait for a client that does not read.
        self._transport.abort()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        # Any byte counts as a pong: while a long frame arrives, the client cannot send one.
        self._ping_is_unanswered = False
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            else:
                self._frame_received(event)
        if isinstance(self._frames.parser_exc, PayloadTooBig) and not self._has_failed:
            self._discard_rest(_too_big(self._message_max_bytes))
        self._flush()

    def eof_received(self) -> None:
        self._frames.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._connections.discard(self)
        self._cancel_timer()
        if not self.gone.done():
            self.gone.set_result(None)
        self._wake_receiver()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def shutdown(self) -> None:
        """Uvicorn is stopping. All streams have ended; only connections without a stream are left."""
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.SHUTDOWN)
            self._flush()
        self._hang_up()

    # Internal

    def _shake_hands(self, request: Request) -> None:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.raw_items()]
        try:
            route, call = self._pipeline.accept_stream(request.path, headers)
        except Exception as error:  # noqa: BLE001 - sent as a problem; details are logged
            self._frames.send_response(_refusal(self._pipeline.failure(error)))
            return
        response = self._frames.accept(request)
        self._frames.send_response(response)
        self._flush()
        if self._frames.state is State.OPEN:
            self._ping()
            self._task = self._loop.create_task(self._run(route, call))

    async def _run(self, route: StreamRoute, call: Call) -> None:
        try:
            await route.serve(self, call)
        except Exception as error:  # noqa: BLE001 - reported, and the connection is closed
            self._telemetry.report(StreamCrashed(None, error))
            await self.close(CloseCode.FAILED)

    def _frame_received(self, frame: Any) -> None:
        if self._is_closing or self._has_failed:
            return
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._is_text = frame.opcode is Opcode.TEXT
        elif frame.opcode is not Opcode.CONT:
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
            self._reading_is_paused = True
            self._transport.pause_reading()
        self._wake_receiver()

    def _discard_rest(self, reason: UnreadableMessage) -> None:
        """Passes `reason` to the stream in place of the message, so that the stream closes, and discards further input.
        Closing at once would reset the connection, and the client would never receive the error message.
        """
        self._has_failed = True
        self._frames.data_to_send()
        self._waiting.append(reason)
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _resume_reading(self) -> None:
        if self._reading_is_paused and len(self._waiting) <= WAITING_MESSAGES_MAX // 2:
            self._reading_is_paused = False
            self._transport.resume_reading()

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            if data == SEND_EOF:
                self._hang_up()
            elif not self._transport.is_closing():
                self._transport.write(data)

    def _hang_up(self) -> None:
        """Closes the connection when the remaining output is sent, or aborts it after GOODBYE_SECONDS."""
        self._transport.close()
        self._cancel_timer()
        self._timer = self._loop.call_later(GOODBYE_SECONDS, self._transport.abort)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _write(self, frame: Frame) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame.serialize(mask=False))

    def _ping(self) -> None:
        """Detects clients that vanished without closing. While reading is paused, a missing pong does not count."""
        if self._ping_is_unanswered and not self._reading_is_paused:
            # If this process was paused, timers fire before input is read, so the pong may have arrived unread.
            self._timer = self._loop.call_later(LAST_LOOK_SECONDS, self._give_up)
        else:
            self._ping_again()

    def _give_up(self) -> None:
        if self._ping_is_unanswered and not self._reading_is_paused:
            self._transport.abort()
        else:
            self._ping_again()

    def _ping_again(self) -> None:
        if self._frames.state is State.OPEN:
            self._ping_is_unanswered = True
            self._frames.send_ping(b"")
            self._flush()
            self._timer = self._loop.call_later(PING_SECONDS, self._ping)


def _too_big(message_max_bytes: int) -> UnreadableMessage:
    return UnreadableMessage(CloseCode.TOO_BIG, "TOO_LARGE", f"a message may have at most {message_max_bytes} bytes")


def _refusal(answer: Answer) -> Response:
    body = answer.body()
    headers = Headers([(name.decode(), value.decode()) for name, value in answer.headers])
    headers["content-length"] = str(len(body))
    headers["connection"] = "close"
    return Response(answer.status, HTTPStatus(answer.status).phrase, headers, body)
