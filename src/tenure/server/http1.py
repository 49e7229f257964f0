"""HTTP/1.1: uvicorn's protocol, with a fast path for the busiest routes (the hot lane) and limits on every request.

A request in the hot lane gets no ASGI scope, no task and no queue of messages. Its body is decoded as soon as the last
byte has arrived, its handler returns the answer through a callback, and the answer is sent in one write. Measured per
request on one core: 37 µs for an empty application through ASGI, 8 µs for the hot lane.

Every other request takes the ordinary lane, through ASGI. So does a request for a hot route if it is pipelined, uses
HTTP/1.0, or has an `Expect: 100-continue` header or a query. A test sends the same requests through both lanes and
compares the answers.

What a client may make the instance do is limited (`[http]` in the configuration, `http/edge.py`):

- **Bytes.** The bytes of the head (request line and headers) and of the trailers are limited, and so are the numbers of
  headers and trailers. Trailers are counted, and otherwise ignored.
- **Time.** A connection is in one of the phases below, and each phase in which the instance waits for the client has a
  time limit. `Connections` checks these limits once per second. Sending a long body or reading a long answer may take
  longer: each BYTES_PER_SECOND bytes give one more second.
- **Work.** Long input is parsed in slices, one per iteration of the event loop, so that other connections are served in
  between. While pipelined requests wait, nothing more is parsed.

Answers are sent in the order of the requests. So a refusal waits until the requests before it are answered, and so does
an upgrade to WebSocket. After a refusal because of a limit or of invalid HTTP, the connection *lingers*: the instance
has sent its last byte, and discards further input. If the instance closed the connection at once, the operating system
would reset it, and a client that is still sending would never read the answer. With TLS, the instance cannot close only
its own direction of the connection and still read. So over TLS, a lingering connection is closed when the client has
sent nothing for QUIET_SECONDS.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from http import HTTPStatus
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenure.clock import monotonic
from tenure.errors import (
    FieldError,
    HeadersTooLarge,
    Invalid,
    Problem,
    RequestTimeout,
    TooManyConnections,
    UriTooLong,
)
from tenure.http.answers import JSON, Answer, refusal
from tenure.http.decoding import too_large
from tenure.http.edge import Edge, Visit
from tenure.http.pipeline import HotRoute, Pipeline
from tenure.server.connections import SWEEP_SECONDS, Connections

SLICE_BYTES = 4096
"""How much is parsed in one iteration of the event loop. 4 KiB of the shortest requests keep the loop busy for 3 ms."""
BODY_SLICE_BYTES = 65_536
"""How much of a body is parsed in one iteration. Bodies cost less to parse than heads."""
BYTES_PER_SECOND = 1000
DISCARD_MAX_BYTES = 16 * 1024 * 1024
"""If a request is answered before its whole body has arrived, at most this much of the body is read. The connection of
a longer body is closed."""
LINGER_SECONDS = 5.0
LINGER_MAX_BYTES = 16 * 1024 * 1024
QUIET_SECONDS = 1.0
"""Over TLS, a lingering connection is closed when its client has sent nothing for this long."""
FIRST_SECONDS = 1.0
"""How long a stopping instance waits for the first request of a connection that it has just accepted."""
HEADER_EXTRA_BYTES = 4
"""The colon, the space and the line end of a header."""
NO_CHUNK = -1

# The phases of a connection.
IDLE, HEAD, BODY, HANDLING, LINGERING = range(5)
"""IDLE: waits for the next request. HEAD, BODY: waits for the rest of a request; a new connection is in HEAD. HANDLING:
the last request has arrived and is not answered yet. LINGERING: all further bytes are discarded.
"""

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_JSON_HEADS = {
    status: line + b"".join(b"%s: %s\r\n" % header for header in JSON) + b"x-request-id: "
    for status, line in _STATUS_LINES.items()
}


def protocol_for(pipeline: Pipeline, open_connections: Connections) -> type[HttpToolsProtocol]:
    """Returns a protocol class for `pipeline`. Uvicorn creates the instances, so dependencies are class attributes."""
    routes = pipeline.hot_routes()

    class BoundProtocol(HotProtocol):
        hot_exact: ClassVar = {(route.method, route.path): route for route in routes if route.path is not None}
        hot_by_id: ClassVar = [route for route in routes if route.path is None]
        request_pipeline = pipeline
        max_headers = pipeline.edge.limits.max_headers
        max_header_bytes = pipeline.edge.limits.max_header_bytes

    BoundProtocol.open_connections = open_connections
    BoundProtocol.edge = pipeline.edge
    return BoundProtocol


class HotProtocol(HttpToolsProtocol):
    hot_exact: ClassVar[Mapping[tuple[bytes, bytes], HotRoute]]
    hot_by_id: ClassVar[Sequence[HotRoute]]
    request_pipeline: Pipeline
    """Not named `pipeline`, because uvicorn uses that name for its queue of pipelined requests."""
    open_connections: Connections
    edge: Edge
    max_headers: int
    max_header_bytes: int
    flow: "_Flow"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.url = b""
        self.headers = []
        self.phase = HEAD
        self.since = monotonic()
        self.unfinished_bytes = 0
        self._unparsed = bytearray()
        self._defers_input = False
        """Whether new input is buffered for later or discarded, instead of being parsed as soon as it arrives."""
        self._is_scheduled = False
        self._upgrade_rest: bytes | None = None
        """The bytes after the head of an upgrade request that waits for earlier answers."""
        self._final_response: bytes | None = None
        """The refusal that is sent after the answers to earlier requests. Once it is set, no input is parsed."""
        self._refusal: tuple[Problem, str | None] | None = None
        self._begins = True
        """Whether the head or body that is arriving has begun in the current slice, so that its time starts now."""
        self._slice_bytes = 0
        self._head_bytes = 0
        self._first_slice_bytes = 0
        self._received = 0
        self._chunk_began_at = NO_CHUNK
        self._trailers = 0
        self._trailer_bytes = 0
        self._unsent = 0
        self._unsent_since = 0.0
        self._discarded = 0
        self._discarded_at = 0.0
        self._is_stopping = False
        self._context = copy_context()
        """A context without a request. Input that arrives during a request must not be parsed in the context of that
        request.
        """

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self.open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.remove(self)
        super().connection_lost(exc)
        self._drop_references()

    def data_received(self, data: bytes) -> None:
        if not self._defers_input and len(data) <= SLICE_BYTES:
            self._parse(data)
        elif self.phase == LINGERING:
            self._discard(len(data))
        elif not self._is_ending():
            self._defer(bytearray(data), after=True)
            self._parse_next()

    def shutdown(self) -> None:
        """Closes the connection if it is idle; otherwise after its request is answered.

        Uvicorn's method would close the connection even while a request is arriving.
        """
        self._is_stopping = True
        self._close_if_idle(monotonic())

    def pause_writing(self) -> None:
        # Pause reading too: otherwise a client that sends requests and reads no answers would fill the memory.
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self._schedule_if_deferred()

    # Parsing.

    def _parse(self, data: bytes) -> None:
        self._slice_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if self.phase != LINGERING:
                self._refuse(*(self._refusal or (_NOT_HTTP, None)))
        else:
            if IDLE < self.phase < HANDLING:
                self._check_unfinished()

    def _parse_next(self) -> None:
        """Parses one slice of the deferred input, unless earlier requests or answers must be finished first."""
        self._is_scheduled = False
        if not self._unparsed or self._is_ending() or self._must_wait():
            return
        size = BODY_SLICE_BYTES if self.phase == BODY else SLICE_BYTES
        piece = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        self._parse(piece)
        if self._unparsed:
            self._schedule()
        elif not self._is_ending() and self._upgrade_rest is None:
            self._defers_input = False
            self.flow.release()

    def _is_ending(self) -> bool:
        return self.phase == LINGERING or self._final_response is not None

    def _must_wait(self) -> bool:
        return bool(self.pipeline) or self.flow.write_paused

    def _defer(self, data: bytearray, *, after: bool) -> None:
        self._defers_input = True
        self.flow.hold()
        self._unparsed = self._unparsed + data if after else data + self._unparsed

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            parse = self._parse_next if self._upgrade_rest is None else self._finish_upgrade
            self.loop.call_soon(parse, context=self._context)

    def _schedule_if_deferred(self) -> None:
        if self._unparsed or self._upgrade_rest is not None:
            self._schedule()

    def _check_unfinished(self) -> None:
        """Checks the limits of a request of which only a part has arrived."""
        begins, self._begins = self._begins, False
        if begins:
            self.since = monotonic()
        if self.phase == HEAD:
            if begins:
                # Do not count this slice below, because a part of it may belong to the previous request.
                self._first_slice_bytes = self._slice_bytes
            self._head_bytes += self._slice_bytes
            if self._head_bytes - self._first_slice_bytes > self.max_header_bytes:
                self._refuse(self._head_too_long(), "max_header_bytes")
            elif len(self.headers) > self.max_headers:
                self._refuse(_too_many_headers(self.max_headers), "max_headers")
            return
        if self._received == self._chunk_began_at:
            # The current chunk has no content so far. It may be the last chunk, which is empty and which the trailers
            # follow. So count this slice as a part of the trailers.
            self._trailer_bytes += self._slice_bytes
            if self._trailer_bytes > self.max_header_bytes:
                self._refuse(_headers_too_long(self.max_header_bytes), "max_header_bytes")
                return
        if not self.cycle.response_complete:
            self.open_connections.note_unfinished(self, self._received)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Does not call uvicorn's method, which builds an ASGI scope: the hot lane needs none."""
        if self.phase == LINGERING:
            raise _Stop
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.phase = HEAD
        self._begins = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase != HEAD:
            self._trailers += 1
            if self._trailers > self.max_headers:
                self._stop(_too_many_headers(self.max_headers), "max_headers")
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if len(self.headers) > self.max_headers or self._head_bytes + self._slice_bytes > self.max_header_bytes:
            self._check_head()
        method = self.parser.get_method()
        if self.parser.should_upgrade():
            if method == b"CONNECT":
                self._stop(Invalid(FieldError("request", "must not be CONNECT")))
            return
        self.phase = BODY
        self._begins = True
        self._received = 0
        self._chunk_began_at = NO_CHUNK
        route = self._hot_route(method)
        if route is None or not self._is_plain():
            self._begin_ordinary()
            return
        visit = self.edge.check(self.headers, changes=True, peer=self.client)
        cycle = _HotCycle(self, route, visit)
        self.cycle = cycle  # type: ignore[assignment]
        if visit.problem is not None:
            cycle.refuse(visit.problem)

    def on_chunk_header(self) -> None:
        self._chunk_began_at = self._received
        self._trailers = 0
        # `_check_unfinished` adds this slice later. Start below 0 to leave the slice out, because a part of the slice
        # belongs to earlier chunks.
        self._trailer_bytes = -self._slice_bytes

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        self._received += len(body)
        if cycle.response_complete:
            if self._received > DISCARD_MAX_BYTES:
                raise _Stop
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() or self.phase == LINGERING:
            return
        if self.unfinished_bytes:
            self.open_connections.note_unfinished(self, 0)
        self.phase = HANDLING
        cycle = self.cycle
        if cycle.response_complete:
            self._wait_for_next_request()
        else:
            cycle.more_body = False
            cycle.message_event.set()

    def _check_head(self) -> None:
        if len(self.headers) > self.max_headers:
            self._stop(_too_many_headers(self.max_headers), "max_headers")
        # Compute the size of the head from the headers: the bytes that arrived may include a part of the previous
        # request or of the body.
        size = len(self.url) + sum(len(name) + len(value) + HEADER_EXTRA_BYTES for name, value in self.headers)
        if size > self.max_header_bytes:
            self._stop(self._head_too_long(), "max_header_bytes")

    def _head_too_long(self) -> Problem:
        if len(self.url) * 2 > self.max_header_bytes:
            return UriTooLong(f"the request line and the headers may have at most {self.max_header_bytes} bytes")
        return _headers_too_long(self.max_header_bytes)

    def _begin_ordinary(self) -> None:
        """Builds the ASGI scope and starts a task, as uvicorn does."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers if url[:1] == b"/" else _with_host_of(url, headers))
        super().on_headers_complete()
        if not self.parser.should_upgrade():
            self.cycle.transport = _LingeringTransport(self)  # type: ignore[assignment]
            self.cycle.keep_alive = self.cycle.keep_alive and not self.open_connections.is_draining

    def _hot_route(self, method: bytes) -> HotRoute | None:
        exact = self.hot_exact.get((method, self.url))
        if exact is not None:
            return exact
        for route in self.hot_by_id:
            if route.method == method and route.matches(self.url):
                return route
        return None

    def _is_plain(self) -> bool:
        cycle: Any = self.cycle
        return (
            (cycle is None or cycle.response_complete)
            and not self.expect_100_continue
            and self.parser.get_http_version() == "1.1"
        )

    def _stop(self, problem: Problem, limit: str | None = None) -> None:
        """Stops the parser in the middle of its input; then `_parse` refuses the request."""
        self._refusal = (problem, limit)
        raise _Stop

    # Upgrades.

    def _upgrade(self, rest: bytes) -> None:
        if self._should_upgrade():
            self._upgrade_rest = rest
            self._finish_upgrade()
        else:
            self._defer(bytearray(self._head_without_upgrade() + rest), after=False)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._schedule()

    def _head_without_upgrade(self) -> bytes:
        """Returns the head of a request that offers an upgrade to a protocol other than WebSocket, without the offer.

        With the offer, the parser would treat the body of the request as data of the other protocol. Java's HTTP client
        offers an upgrade to h2c by default.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
                lines.append(b"connection: " + b",".join(tokens))
            elif name != b"upgrade":
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def _finish_upgrade(self) -> None:
        """Hands the connection over to the WebSocket protocol as soon as all earlier requests are answered."""
        self._is_scheduled = False
        rest = self._upgrade_rest
        if rest is None or self.phase == LINGERING:
            return
        self.phase = HANDLING
        if self._has_pending_answer() or self._must_wait():
            self._defers_input = True
            self.flow.hold()
            return
        rest += self._unparsed
        self.open_connections.remove(self)
        self.flow.release()
        self.flow.resume_reading()
        self._begin_ordinary()
        self.handle_websocket_upgrade()
        self._drop_references()
        if rest:
            self.transport.get_protocol().data_received(rest)  # type: ignore[attr-defined]

    # Answers and refusals.

    def on_response_complete(self) -> None:
        """Does not call uvicorn's method, which starts a timer for every request."""
        self.server_state.total_requests += 1
        if self.phase == LINGERING or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._final_response is not None:
            self._send_final_response()
            return
        elif self.phase == HANDLING:
            self._wait_for_next_request()
        self._schedule_if_deferred()

    def close_after_response(self) -> None:
        """Closes after the last answer; lingers if the client may still be sending."""
        if self.phase in (HEAD, BODY) or self._defers_input:
            self._linger()
        else:
            self._begin_to_linger()
            self.transport.close()

    def _wait_for_next_request(self) -> None:
        self.phase = IDLE
        self.since = monotonic()

    def _has_pending_answer(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _refuse(self, problem: Problem, limit: str | None = None) -> None:
        """Refuses the request that is arriving: sends a problem after the answers to earlier requests, and closes."""
        if limit is not None:
            self.edge.refused(limit)
        visit = self.edge.incomplete_visit(self.headers, self.client)
        self._final_response = response(refusal(problem), visit, keep_alive=False)
        is_pending = self._drop_request() if self.phase == BODY else self._has_pending_answer()
        self.phase = HANDLING
        self._defers_input = True
        self._unparsed = bytearray()
        self.open_connections.note_unfinished(self, 0)
        if is_pending:
            self.flow.hold()
        else:
            self._send_final_response()

    def _drop_request(self) -> bool:
        """Ends the request whose body is incomplete. Returns whether earlier requests still wait for their answers."""
        cycle: Any = self.cycle
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
            return True
        if cycle.response_complete or cycle.response_started:
            self._final_response = b""
        cycle.disconnected = True
        cycle.message_event.set()
        return False

    def _send_final_response(self) -> None:
        if self._final_response:
            self.transport.write(self._final_response)
        self._linger()

    def _linger(self) -> None:
        """Ends the output, and discards the input until the client closes, for LINGER_SECONDS at most."""
        self._begin_to_linger()
        if not self.transport.is_closing():
            self.flow.release()
            self.flow.resume_reading()
            # The client may have reset the connection already.
            with suppress(OSError):
                if self.transport.can_write_eof():
                    self.transport.write_eof()

    def _begin_to_linger(self) -> None:
        self.phase = LINGERING
        self.since = monotonic()
        self._defers_input = True
        self._unparsed = bytearray()
        self.pipeline.clear()

    def _discard(self, size: int) -> None:
        self._discarded += size
        self._discarded_at = monotonic()
        if self._discarded > LINGER_MAX_BYTES:
            self.transport.abort()

    def _drop_references(self) -> None:
        """Breaks the reference cycles of a connection that has ended. Otherwise its buffers would stay in memory until
        the garbage collector finds them.
        """
        self.parser = None  # type: ignore[assignment]
        self.cycle = None  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]
        self.headers = []
        self.pipeline.clear()
        self._unparsed = bytearray()
        self._upgrade_rest = None

    # Called by `Connections`.

    @property
    def waiting_since(self) -> float | None:
        if self._unsent:
            return self._unsent_since
        if self.phase == HANDLING:
            return None
        return self.since + self._received / BYTES_PER_SECOND if self.phase == BODY else self.since

    def close_after_last_request(self) -> None:
        cycle: Any = self.cycle
        if self._has_pending_answer():
            cycle.keep_alive = False

    def check_time(self, now: float) -> None:
        limits = self.edge.limits
        if self._is_stopping:
            self._close_if_idle(now)
        if self._seconds_unread(now) > limits.body_seconds:
            self.edge.refused("body_seconds")
            self.evict()
        elif self.phase == LINGERING:
            self._check_lingering(now)
        elif self.phase in (HEAD, BODY) and not self.flow.reads:
            # Reading is paused, so the client waits for the instance: this time does not count.
            self.since += SWEEP_SECONDS
        elif self.phase == IDLE and now - self.since > limits.idle_seconds:
            self.transport.close()
        elif self.phase == HEAD and now - self.since > limits.head_seconds:
            self._end_head()
        elif self.phase == BODY and now - self.since - self._received / BYTES_PER_SECOND > limits.body_seconds:
            detail = f"the body must arrive within {limits.body_seconds:g} seconds, or at 1000 bytes per second or more"
            self._refuse(RequestTimeout(detail), "body_seconds")

    def _close_if_idle(self, now: float) -> None:
        """Closes the connection if it has no request. A new connection may wait FIRST_SECONDS for its first request."""
        if self._unparsed:
            return
        is_new = self.phase == HEAD and not self._head_bytes
        if self.phase == IDLE or (is_new and now - self.since > FIRST_SECONDS):
            self.transport.close()

    def _check_lingering(self, now: float) -> None:
        if self._unsent:
            return
        if now - self.since > LINGER_SECONDS:
            self.evict()
        elif not self.transport.can_write_eof() and now - max(self.since, self._discarded_at) > QUIET_SECONDS:
            self.transport.close()

    def refuse_connection(self, *, lingers: bool) -> None:
        visit = self.edge.incomplete_visit((), self.client)
        self.transport.write(response(_FULL, visit, keep_alive=False))
        if lingers:
            self._linger()
        else:
            self._begin_to_linger()
            self.transport.close()

    def evict(self) -> None:
        self.transport.abort()

    def _seconds_unread(self, now: float) -> float:
        """Returns for how many seconds the client has been reading its answers too slowly."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or not self._unsent:
            self._unsent_since = now
        else:
            read = max(self._unsent - unsent, 0)
            self._unsent_since = min(self._unsent_since + read / BYTES_PER_SECOND, now)
        self._unsent = unsent
        return now - self._unsent_since

    def _end_head(self) -> None:
        if self._head_bytes:
            seconds = self.edge.limits.head_seconds
            self._refuse(RequestTimeout(f"the headers must arrive within {seconds:g} seconds"), "head_seconds")
        else:
            # No request has begun, so send nothing: the client could take a refusal for the answer to the request that
            # it is sending now.
            self.edge.refused("head_seconds")
            self.transport.close()


class _Stop(Exception):
    """Raised in a callback of the parser to stop the parser."""


class _Flow(FlowControl):
    """Pauses reading while the buffer of a body is full, while input is deferred, and while the client does not read
    its answers.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.reads = True
        self._is_held = False

    def pause_reading(self) -> None:
        self.read_paused = True
        self._apply()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._apply()

    def hold(self) -> None:
        self._is_held = True
        self._apply()

    def release(self) -> None:
        self._is_held = False
        self._apply()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._apply()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._apply()

    def _apply(self) -> None:
        reads = not (self.read_paused or self._is_held or self.write_paused)
        if reads == self.reads or self._transport.is_closing():
            return
        self.reads = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


class _LingeringTransport:
    """The transport of a request in the ordinary lane. `close` lets the connection linger if the client may still be
    sending.
    """

    __slots__ = ("_protocol",)

    def __init__(self, protocol: HotProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        # The connection may be closed before the code that handles the request has noticed it.
        if not self.is_closing():
            self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.phase == LINGERING or self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close_after_response()


def response(answer: Answer, visit: Visit, keep_alive: bool) -> bytes:
    request_id = visit.request_id
    content = answer.body(request_id, visit.names)
    if answer.headers is JSON and not visit.headers and keep_alive:
        # Most answers are built here, in half the time that joining the headers takes.
        return b"%s%s\r\ncontent-length: %d\r\n\r\n%s" % (
            _JSON_HEADS[answer.status],
            request_id.encode(),
            len(content),
            content,
        )
    lines = [_STATUS_LINES[answer.status], b"x-request-id: ", request_id.encode(), b"\r\n"]
    for name, value in answer.headers:
        lines += (name, b": ", value, b"\r\n")
    if visit.headers:
        for name, value in visit.headers:
            lines += (name, b": ", value, b"\r\n")
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"content-length: %d\r\n\r\n" % len(content))
    lines.append(content)
    return b"".join(lines)


_NOT_HTTP = Invalid(FieldError("request", "must be valid HTTP/1.1"))
_FULL = refusal(TooManyConnections("this instance has no free connection"))


def _headers_too_long(most: int) -> HeadersTooLarge:
    return HeadersTooLarge(f"the request line and the headers may have at most {most} bytes, and so may the trailers")


def _too_many_headers(most: int) -> HeadersTooLarge:
    return HeadersTooLarge(f"a request may have at most {most} headers and {most} trailers")


def _with_host_of(url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
    """Returns the headers with the host of an absolute request target, which takes precedence over `Host`."""
    target: Any = httptools.parse_url(url)
    if target.host is None:
        return headers
    host = target.host if target.port is None else b"%s:%d" % (target.host, target.port)
    return [(name, host if name == b"host" else value) for name, value in headers]


class _HotCycle:
    """Replaces uvicorn's request cycle and the cycle's `message_event`: the protocol calls `set` whenever a part of the
    body arrives, and uvicorn calls `set` when the connection is lost.
    """

    __slots__ = (
        "_began",
        "_protocol",
        "_route",
        "_started",
        "_url",
        "body",
        "disconnected",
        "keep_alive",
        "more_body",
        "response_complete",
        "subject",
        "visit",
    )
    response_started: ClassVar = False
    """Always false, because an answer is sent in one write: it is either complete, or has not begun."""

    def __init__(self, protocol: HotProtocol, route: HotRoute, visit: Visit) -> None:
        self._began = monotonic()
        self._protocol = protocol
        self.visit = visit
        self._route = route
        self._url = protocol.url
        self._started = False
        self.body = bytearray()
        self.more_body = True
        self.keep_alive = protocol.parser.should_keep_alive()
        self.disconnected = False
        self.response_complete = False
        self.subject: str | None = None
        protocol.request_pipeline.in_flight += 1

    @property
    def message_event(self) -> "_HotCycle":
        """The cycle itself. A property rather than an attribute, because an object that refers to itself stays in
        memory until it is garbage collected.
        """
        return self

    def set(self) -> None:
        if self._started or self.response_complete:
            return
        if self.disconnected:
            self._end()
        elif len(self.body) > self._route.body_max_bytes:
            # The rest of the body is discarded. Closing now would reset the connection while the client still sends,
            # and the client would never see the answer.
            self.refuse(too_large(self._route.body_max_bytes))
            self._protocol.flow.resume_reading()
        elif self.more_body:
            # `on_body` pauses reading after 64 KiB until `resume_reading` is called.
            self._protocol.flow.resume_reading()
        else:
            self._started = True
            self._begin()

    def refuse(self, problem: Problem) -> None:
        self._started = True
        self.body = bytearray()
        self(refusal(problem))

    def _begin(self) -> None:
        body, self.body = bytes(self.body), bytearray()
        try:
            self._route.start(self._url, self._protocol.headers, body, self.visit, self)
        except Exception as error:  # noqa: BLE001 - the caller gets a problem, and the details are logged
            self(error)

    def __call__(self, answer: Answer | Exception) -> None:
        """Sends the answer. The route calls the cycle as the callback for the answer."""
        self._end()
        protocol = self._protocol
        pipeline, route = protocol.request_pipeline, self._route
        if isinstance(answer, Exception):
            answer = pipeline.failure(answer, self.visit)
        # Invalid bytes after this request may have closed the connection before the answer is written.
        if self.disconnected or protocol.phase == LINGERING or protocol.transport.is_closing():
            return
        keep_alive = self.keep_alive and not protocol.open_connections.is_draining
        protocol.transport.write(response(answer, self.visit, keep_alive))
        pipeline.report_answered(route.name, answer.status, self._began, route.method_name, self.visit, self.subject)
        if not keep_alive:
            protocol.close_after_response()
        protocol.on_response_complete()

    def _end(self) -> None:
        self.response_complete = True
        self._protocol.request_pipeline.in_flight -= 1
