"""One table of routes, one pipeline for requests: check → match → identify → authorise → decode → handle → answer.

A route is data: its method, path, grants, structs, answers and refusals. Everything else is derived from the table: the
dispatch of all three transports, the checks of body and query, the OpenAPI and AsyncAPI documents, and the test that
every route is documented.

Requests arrive by three transports. All of them use the steps of `Pipeline` in the order of the first line, except
that the hot lane finds its route first:

| transport | enters at | module |
|---|---|---|
| ordinary lane | `Pipeline.__call__`, an ASGI application | this module |
| hot lane | `HotRoute.start`, without ASGI, a task or a queue | `server/http1.py` |
| WebSocket | `Pipeline.visit_stream` and `match_stream`, after the handshake request | `server/websocket.py` |

The check of `Host` and `Origin` (`http/edge.py`) decides first, so that the sender of a request for another host learns
nothing, not even which paths exist. The check returns the `Visit` of the request: the id of the request, the
headers that the edge adds to the response, and where the request comes from. The protocols in `server/` apply the
limits on bytes, counts and times. A preflight of an allowed origin needs no caller, because browsers send it without a
credential.

The caller is identified and authorised before the body is decoded. If identifying the caller needs no I/O, for instance
because the credential was used before, there is no `await`, so that the hot lane stays synchronous. Otherwise a task
finishes the hot request or the handshake.

Tenure uses no web framework. The framework of the first version took more time per request than the opening of a
session itself, so the busiest route would have needed a second pipeline outside the framework.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, NamedTuple, Protocol

import msgspec

from tenure.access.caller import UNIDENTIFIED, Caller, Identify
from tenure.access.grants import Grants, authorise
from tenure.clock import monotonic
from tenure.domain.audit_log import Actor
from tenure.domain.keys import Role
from tenure.errors import DatabaseUnavailable, Draining, Forbidden, MethodNotAllowed, NotFound, Problem, Unauthenticated
from tenure.http.answers import Answer, Headers, ProblemDetails, StreamedAnswer, failure, refusal
from tenure.http.decoding import (
    BODY_MAX_BYTES,
    Decoding,
    check_media_type,
    decoder_for,
    query_parser_for,
    read_body,
    reader_of_headers,
)
from tenure.http.edge import CASE_HEADER, NO_CONTENT, REQUEST_ID_HEADER, SAFE_METHODS, Edge, Visit, preflight
from tenure.http.pages import in_link
from tenure.naming import CAMEL, Names, field_names
from tenure.streams.sockets import Socket
from tenure.telemetry.events import UNMATCHED, RequestAnswered, Telemetry, current_request
from tenure.telemetry.trace_context import Trace, current_trace

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VERSION = "/v1"
PREFLIGHT_METHOD = "OPTIONS"
PREFLIGHT_MARK = b"access-control-request-method"
CORS_REQUEST_HEADERS = ("authorization", "content-type", CASE_HEADER.decode(), REQUEST_ID_HEADER.decode())
"""The headers that a page of an allowed origin may send to every route, in addition to those that the routes
declare."""
ID_LENGTH = 36


class Browser(msgspec.Struct, frozen=True):
    """How a browser reaches this instance, for routes that set cookies or redirect."""

    over_https: bool
    """Whether the browser uses HTTPS: to this instance, or to a trusted proxy that sends `X-Forwarded-Proto: https`."""
    host: str
    cookies: Sequence[bytes]
    """The values of all `Cookie` headers of the request."""

    @property
    def origin(self) -> str:
        return f"{'https' if self.over_https else 'http'}://{self.host}"

    def __repr__(self) -> str:
        return f"Browser({self.origin})"


class Call(msgspec.Struct):
    """A request that has passed all checks: its caller, and its parts decoded into the structs of its route."""

    caller: Caller
    path: Mapping[str, str] = {}
    query: Any = None
    body: Any = None
    headers: Any = None
    request_id: str | None = None
    names: Names = CAMEL
    """The names of fields in the response."""
    browser: "Browser | None" = None
    """Set if the route `sets_cookies`."""

    @property
    def actor(self) -> Actor:
        """The actor in the audit log for a change that this request makes."""
        return Actor(self.caller.subject, self.caller.name, self.request_id)


Respond = Callable[[Answer | Exception], None]


class HotRespond(Protocol):
    """Sends the answer to a hot request. The pipeline sets `subject`, the subject of the caller, as soon as it has
    identified the caller.
    """

    subject: str | None

    def __call__(self, answer: Answer | Exception, /) -> None: ...


Handler = Callable[[Call], Awaitable[Answer | StreamedAnswer | Exception]]
HotHandler = Callable[[Call, Respond], None]


class RawBody(msgspec.Struct, frozen=True):
    """A body that the handler gets as bytes, not decoded."""

    media_types: tuple[bytes, ...]
    max_bytes: int


class Hot(NamedTuple):
    """The handler of a hot route. It calls `Respond` with the answer, and serves both lanes."""

    handler: HotHandler


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP route. The path of a hot route contains at most one id."""

    method: str
    path: str
    handler: Handler | Hot
    grants: Grants
    summary: str
    tag: str
    description: str = ""
    query: type[msgspec.Struct] | None = None
    headers: type[msgspec.Struct] | None = None
    """The headers that are passed to the handler."""
    body: type[msgspec.Struct] | None = None
    body_max_bytes: int = BODY_MAX_BYTES
    body_required: bool = True
    """If False, a request without a body is decoded as an empty object, whatever its media type."""
    raw_body: RawBody | None = None
    answers: Mapping[int, type[msgspec.Struct] | None]
    refusals: Sequence[type[Problem]] = ()
    sets_cookies: bool = False
    """Whether the handler needs to know the `Browser`."""
    unprefixed: bool = False
    """If True, the route is served only at `path` itself, without the configured prefix and without `/v1`."""
    listed: bool = True
    """Whether the OpenAPI document contains the route."""


class StreamRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A WebSocket route. `serve` runs the connection to its end."""

    path: str
    serve: Callable[[Socket, Call], Awaitable[None]]
    grants: Grants
    summary: str
    tag: str
    description: str = ""
    first_message: type[msgspec.Struct] | None = None
    """The message that the client must send first; None if the route requires none."""
    query: type[msgspec.Struct] | None = None
    """The query of the handshake request. If None, a query is ignored."""

    @property
    def method(self) -> str:
        return "WS"


Table = Sequence[Route | StreamRoute]


def names_in(table: Table) -> set[str]:
    """Returns the names of all fields and parameters of the routes."""
    shapes = [
        shape
        for route in table
        for shape in (_shapes(route) if isinstance(route, Route) else [route.first_message, route.query])
        if shape is not None
    ]
    parameters = {name for route in table for name in re.findall(r"{(\w+)}", route.path)}
    return field_names([ProblemDetails, *shapes]) | parameters


def _shapes(route: Route) -> Sequence[type[msgspec.Struct] | None]:
    return [route.query, route.body, *route.answers.values()]


class OpenStream(Protocol):
    """The pipeline's record of an accepted WebSocket connection, or of a streamed answer."""

    @property
    def route(self) -> Route | StreamRoute: ...

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters of the path."""

    headers: Headers
    """The headers from which the caller of the request is identified."""

    def refuse(self, problem: Problem) -> None:
        """Ends the stream. A WebSocket client gets the problem as the reason; a streamed answer just ends."""


class Pipeline:
    def __init__(
        self,
        table: Table,
        prefix: str,
        identify: Identify,
        edge: Edge,
        telemetry: Telemetry,
        decoding: Decoding = Decoding(),  # noqa: B008 - immutable
    ) -> None:
        self.table = table
        self.identify = identify
        self.edge = edge
        self._prefix = prefix
        self._telemetry = telemetry
        self._unprefixed = {route.path for route in table if isinstance(route, Route) and route.unprefixed}
        self._endpoints = [_Endpoint(route, decoding) for route in table if isinstance(route, Route)]
        self._streams = [_StreamEndpoint(route, decoding) for route in table if isinstance(route, StreamRoute)]
        declared = {
            field.encode_name.lower()
            for endpoint in self._endpoints
            for field in ([] if endpoint.route.headers is None else msgspec.structs.fields(endpoint.route.headers))
        }
        self._cors_request_headers = ", ".join(sorted({*CORS_REQUEST_HEADERS, *declared}))
        self._exact = {(e.route.method, e.route.path): e for e in self._endpoints if "{" not in e.route.path}
        self.open_streams: set[OpenStream] = set()
        """The accepted WebSocket connections, and the streamed answers that are being sent."""
        self._asides: set[asyncio.Task[None]] = set()
        self.in_flight = 0
        self.is_draining = False
        """Whether handshakes of streams are refused, so that a load balancer tries another instance."""

    # The ordinary lane.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.in_flight += 1
        began, answered = monotonic(), _Answered()
        try:
            changes = scope["method"] not in SAFE_METHODS
            visit = self.edge.check(
                scope["headers"], changes=changes, http_version=scope["http_version"], peer=scope["client"]
            )
            # The server runs every request of this lane in its own task, so these variables need no reset.
            current_request.set(visit.request_id)
            current_trace.set(visit.trace)
            answer = await self._answer(scope, receive, visit, answered)
            headers = [*answer.headers, (REQUEST_ID_HEADER, visit.request_id.encode()), *visit.headers]
            if visit.names is not CAMEL:
                headers = [(name, in_link(value, visit.names) if name == b"link" else value) for name, value in headers]
            if isinstance(answer, StreamedAnswer):
                await self._send_stream(answer, headers, visit, answered, scope, receive, send)
                return
            body = answer.body(visit.request_id, visit.names)
            if answer.status != NO_CONTENT:
                headers.append((b"content-length", b"%d" % len(body)))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            self.report_answered(answered.route, answer.status, began, scope["method"], visit, answered.subject)
        finally:
            self.in_flight -= 1

    def report_answered(
        self, route: str, status: int, began: float, method: str, visit: Visit, subject: str | None
    ) -> None:
        seconds = monotonic() - began
        self._telemetry.report(RequestAnswered(route, status, seconds, method, visit.request_id, subject, visit.trace))

    async def _send_stream(
        self,
        answer: StreamedAnswer,
        headers: Headers,
        visit: Visit,
        answered: "_Answered",
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Sends a streamed answer. Each `send` waits while too many earlier bytes are still in the send buffer."""
        # A streamed answer may last for days. Reads from the database for it do not belong to the trace of this
        # request.
        current_trace.set(None)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if scope["method"] == "HEAD" or answered.endpoint is None:
            await answer.pieces.aclose()
        else:
            sending = asyncio.ensure_future(_send_pieces(answer.pieces, send))
            stream = _OpenAnswer(answered.endpoint.route, answered.parameters, scope["headers"], sending)
            gone = asyncio.ensure_future(_disconnected(receive))
            self.open_streams.add(stream)
            try:
                await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.open_streams.discard(stream)
                for task in (sending, gone):
                    task.cancel()
                await asyncio.wait({sending, gone})
                if not sending.cancelled() and (error := sending.exception()) is not None:
                    self.failure(error, visit)  # the status was sent, so the error is only logged
        await send({"type": "http.response.body", "body": b""})

    async def _answer(
        self, scope: Scope, receive: Receive, visit: Visit, answered: "_Answered"
    ) -> Answer | StreamedAnswer:
        try:
            if visit.problem is not None:
                return refusal(visit.problem)
            endpoint, parameters = self._match(scope["method"], scope["path"])
            answered.route, answered.endpoint, answered.parameters = endpoint.name, endpoint, parameters
            caller = await self._caller(endpoint.route.grants, scope["headers"], parameters)
            answered.subject = caller.subject
            query = endpoint.decode_query(scope["query_string"])
            body = await read_body(receive, endpoint.body_max_bytes) if endpoint.takes_body else b""
            call = endpoint.decode(caller, parameters, query, scope["headers"], body, visit)
            if endpoint.route.sets_cookies:
                call.browser = self._browser(scope, visit)
            answer = await endpoint.handle(call)
            return self.failure(answer, visit) if isinstance(answer, Exception) else answer
        except MethodNotAllowed as error:
            if visit.is_of_allowed_origin and _is_preflight(scope):
                return preflight(error.allow, self._cors_request_headers)
            return self.failure(error, visit)
        except Exception as error:  # noqa: BLE001 - the caller gets a problem, and the details are logged
            return self.failure(error, visit)

    def _browser(self, scope: Scope, visit: Visit) -> Browser:
        headers: Headers = scope["headers"]
        over_https = scope["scheme"] == "https" or self.edge.is_forwarded_https(headers, visit)
        host = next((value.decode("latin-1") for name, value in headers if name == b"host"), "")
        return Browser(over_https, host, [value for name, value in headers if name == b"cookie"])

    async def _caller(self, grants: Grants, headers: Headers, parameters: Mapping[str, str]) -> Caller:
        if grants.public:
            return await self._caller_of_public(headers) if grants.names_caller else UNIDENTIFIED
        identified = self.identify(headers)
        caller = identified if isinstance(identified, Caller) else await identified
        self.permit(caller, grants, parameters)
        return caller

    def permit(self, caller: Caller, grants: Grants, parameters: Mapping[str, str]) -> None:
        """Counts a request of the caller, and raises a `Problem` if the caller may not send it."""
        if self.edge.requests is not None:
            self.edge.count_request(caller)
        authorise(caller, grants, parameters)

    async def _caller_of_public(self, headers: Headers) -> Caller:
        try:
            identified = self.identify(headers)
            return identified if isinstance(identified, Caller) else await identified
        except Problem:
            return UNIDENTIFIED

    def _match(self, method: str, path: str) -> tuple["_Endpoint", Mapping[str, str]]:
        if path not in self._unprefixed:
            path = self._below_prefix(path)
        found = self._exact.get((method, path))
        if found is not None:
            return found, {}
        matches = [(endpoint, match) for endpoint in self._endpoints if (match := endpoint.match(path))]
        # A path without parameters takes precedence: `/sessions/metrics` is not the session with the id `metrics`.
        matches = [found for found in matches if found[0].route.path == path] or matches
        if not matches:
            raise NotFound("no resource has this address")
        for endpoint, match in matches:
            if method in endpoint.methods:
                return endpoint, match.groupdict()
        allowed = sorted({method for endpoint, _ in matches for method in endpoint.methods})
        raise MethodNotAllowed(f"this address supports {' and '.join(allowed)}", ", ".join(allowed))

    def _below_prefix(self, path: str) -> str:
        """Return the path as it is in the table: without the prefix and the version. For the path of an unprefixed
        route, return an empty path, which no route has.
        """
        if self._prefix:
            if not path.startswith(self._prefix + "/"):
                raise NotFound("no resource has this address")
            path = path.removeprefix(self._prefix)
        inner = path.removeprefix(VERSION) if path.startswith(VERSION + "/") else path
        return "" if inner in self._unprefixed else inner

    # The hot lane.

    def hot_routes(self) -> Sequence["HotRoute"]:
        """Returns a `HotRoute` for each path of a hot route: below the prefix, with and without `/v1`."""
        return [
            HotRoute(self, endpoint, f"{self._prefix}{version}{endpoint.route.path}")
            for endpoint in self._endpoints
            if isinstance(endpoint.route.handler, Hot)
            for version in ("", VERSION)
        ]

    # WebSockets.

    def visit_stream(self, headers: Headers, peer: tuple[str, int] | None) -> Visit:
        """Checks the headers of a handshake request. `match_stream` comes next."""
        # A stream may change something, although its handshake is a GET.
        return self.edge.check(headers, changes=True, peer=peer)

    def match_stream(self, path: str, visit: Visit) -> tuple[StreamRoute, Mapping[str, str]]:
        """Finds the route of a handshake request, or raises a `Problem`. Does not identify the caller."""
        if visit.problem is not None:
            raise visit.problem
        if self.is_draining:
            raise Draining("this instance is stopping")
        path = path.partition("?")[0]
        try:
            inner = self._below_prefix(path)
        except NotFound:
            inner = ""
        for endpoint in self._streams:
            if match := endpoint.match(inner):
                return endpoint.route, match.groupdict()
        raise NotFound("no stream has this address")

    def stream_query(self, route: StreamRoute, path: str) -> Any:
        """Decodes the query of a handshake request, or raises `Invalid`."""
        parse = next(endpoint.parse_query for endpoint in self._streams if endpoint.route is route)
        return None if parse is None else parse(path.partition("?")[2].encode())

    async def check_open_streams(self) -> None:
        """Closes the streams whose credential no longer allows them. Once the database is unavailable, checks only the
        credentials that need no I/O, because each of the others would wait for the database.
        """
        is_database_away = False
        for stream in list(self.open_streams):
            try:
                identified = self.identify(stream.headers)
                if isinstance(identified, Caller):
                    caller = identified
                elif is_database_away:
                    _discard(identified)
                    continue
                else:
                    caller = await identified
                authorise(caller, stream.route.grants, stream.parameters)
            except (Unauthenticated, Forbidden) as problem:
                stream.refuse(problem)
            except DatabaseUnavailable:
                is_database_away = True
            except Problem:
                # The keys of an OIDC issuer cannot be fetched, or too many API keys are being looked up. Other
                # credentials can still be checked.
                continue

    def run_aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work that waits until the caller of a hot request or handshake is identified. A connection has at most
        one such task.
        """
        task = asyncio.create_task(work)
        self._asides.add(task)  # asyncio itself keeps only a weak reference
        task.add_done_callback(self._asides.discard)

    def failure(self, error: BaseException, visit: Visit) -> Answer:
        if isinstance(error, Unauthenticated):
            error = self.edge.refusal_of_credential(error, visit)
        return failure(error, self._telemetry, visit.request_id)


def _discard(awaitable: Awaitable[object]) -> None:
    """Closes a coroutine that is not awaited. Otherwise Python warns about it."""
    if isinstance(awaitable, Coroutine):
        awaitable.close()


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == PREFLIGHT_METHOD and any(name == PREFLIGHT_MARK for name, _ in scope["headers"])


class _Answered:
    """What is known about a request so far, for its report and for a streamed answer. A request may be refused before
    all attributes are set.
    """

    __slots__ = ("endpoint", "parameters", "route", "subject")

    def __init__(self) -> None:
        self.route = UNMATCHED
        self.subject: str | None = None
        self.endpoint: _Endpoint | None = None
        self.parameters: Mapping[str, str] = {}


async def _send_pieces(pieces: AsyncGenerator[bytes], send: Send) -> None:
    async with aclosing(pieces):
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _OpenAnswer:
    """A streamed answer that is being sent. Implements `OpenStream`."""

    def __init__(
        self, route: "Route", parameters: Mapping[str, str], headers: Headers, sending: asyncio.Future[None]
    ) -> None:
        self.route = route
        self.parameters = parameters
        self.headers = headers
        self._sending = sending

    def refuse(self, problem: Problem) -> None:
        """Ends the body. The client gets the problem when it sends the request again."""
        del problem
        self._sending.cancel()


def _matcher(path: str) -> Callable[[str], re.Match[str] | None]:
    """Return a function that matches a path: `{name}` is one part of it, and `{name*}` all parts that are left."""
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
    return re.compile(re.sub(r"\\{(\w+)\\\*\\}", r"(?P<\1>.*)", pattern)).fullmatch


class _Endpoint:
    """A route with its precomputed matcher, decoders and handler."""

    def __init__(self, route: Route, decoding: Decoding) -> None:
        self.route = route
        if route.method not in SAFE_METHODS and Role.CLIENT not in route.grants.roles:
            # Never ignore unknown fields here: a misspelled filter of an operator would match more than intended.
            decoding = decoding.strict()
        self.name = f"{route.method} {route.path}"
        # HEAD is handled like GET; the server omits the body.
        self.methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        self.match = _matcher(route.path)
        self.takes_body = route.body is not None or route.raw_body is not None
        self.body_max_bytes = route.body_max_bytes if route.raw_body is None else route.raw_body.max_bytes
        self._decode_body = None if route.body is None else decoder_for(route.body, decoding)
        self._parse_query = query_parser_for(route.query, decoding)
        self._empty_body = None if route.body is None or route.body_required else route.body()
        self._read_headers = None if route.headers is None else reader_of_headers(route.headers)
        self.handle = _awaitable(route.handler.handler) if isinstance(route.handler, Hot) else route.handler

    def decode_query(self, query_string: bytes) -> Any:
        return self._parse_query(query_string) if self.route.query is not None or query_string else None

    def decode(
        self,
        caller: Caller,
        parameters: Mapping[str, str],
        query: Any,
        headers: Headers,
        body: bytes,
        visit: Visit,
    ) -> Call:
        content: Any = None
        if self._decode_body is not None:
            if not body and self._empty_body is not None:
                content = self._empty_body
            else:
                check_media_type(headers)
                content = self._decode_body(body)
        elif self.route.raw_body is not None:
            check_media_type(headers, self.route.raw_body.media_types)
            content = body
        own_headers = None if self._read_headers is None else self._read_headers(headers)
        return Call(caller, parameters, query, content, own_headers, visit.request_id, visit.names)


class _StreamEndpoint:
    def __init__(self, route: StreamRoute, decoding: Decoding) -> None:
        self.route = route
        self.match = _matcher(route.path)
        self.parse_query = None if route.query is None else query_parser_for(route.query, decoding)


def _awaitable(hot_handler: HotHandler) -> Handler:
    """Wrap a hot handler as an awaitable handler for the ordinary lane."""

    async def handle(call: Call) -> Answer | Exception:
        answered: asyncio.Future[Answer | Exception] = asyncio.get_running_loop().create_future()

        def respond(answer: Answer | Exception) -> None:
            # An exception is a result here. If it were raised, its traceback would refer to this frame and the frame to
            # the exception, and both would stay in memory until they are garbage collected.
            if not answered.done():
                answered.set_result(answer)

        hot_handler(call, respond)
        return await answered

    return handle


class HotRoute:
    """One path of a hot route, as it appears in a request line."""

    def __init__(self, pipeline: Pipeline, endpoint: _Endpoint, path: str) -> None:
        if not isinstance(endpoint.route.handler, Hot):
            raise TypeError(f"{path} is not a hot route")
        self.name = endpoint.name
        self.method_name = endpoint.route.method
        self.method = self.method_name.encode()
        self.body_max_bytes = endpoint.body_max_bytes
        self._pipeline = pipeline
        self._decode = endpoint.decode
        self._grants = endpoint.route.grants
        self._limits_requests = pipeline.edge.requests is not None
        self._hot_handler = endpoint.route.handler.handler
        before, brace, rest = path.partition("{")
        self._parameter, _, after = rest.partition("}")
        self._before, self._after = before.encode(), after.encode()
        self._length = len(before) + (ID_LENGTH if brace else 0) + len(after)

    @property
    def path(self) -> bytes | None:
        """The whole path; None if it contains an id."""
        return None if self._parameter else self._before

    def matches(self, url: bytes) -> bool:
        return len(url) == self._length and url.startswith(self._before) and url.endswith(self._after)

    def start(self, url: bytes, headers: Headers, body: bytes, visit: Visit, respond: HotRespond) -> None:
        parameters = {}
        if self._parameter:
            parameters = {self._parameter: url[len(self._before) : len(self._before) + ID_LENGTH].decode("latin-1")}
        identified = self._pipeline.identify(headers)
        if isinstance(identified, Caller):
            respond.subject = identified.subject
            if self._limits_requests:
                self._pipeline.edge.count_request(identified)
            authorise(identified, self._grants, parameters)
            call = self._decode(identified, parameters, None, headers, body, visit)
            if visit.trace is None:
                self._hot_handler(call, respond)
            else:
                # There is no task per request here, so set the position in a trace for this call only.
                copy_context().run(self._start_traced, visit.trace, call, respond)
        else:
            self._pipeline.run_aside(self._start_when_identified(identified, parameters, headers, body, visit, respond))

    def _start_traced(self, trace: Trace, call: Call, respond: HotRespond) -> None:
        current_trace.set(trace)
        self._hot_handler(call, respond)

    async def _start_when_identified(
        self,
        identified: Awaitable[Caller],
        parameters: Mapping[str, str],
        headers: Headers,
        body: bytes,
        visit: Visit,
        respond: HotRespond,
    ) -> None:
        """Continues after `start` if identifying the caller takes I/O. The client may disconnect during this I/O."""
        current_request.set(visit.request_id)
        current_trace.set(visit.trace)
        try:
            caller = await identified
            respond.subject = caller.subject
            self._pipeline.permit(caller, self._grants, parameters)
            self._hot_handler(self._decode(caller, parameters, None, headers, body, visit), respond)
        except Exception as error:  # noqa: BLE001 - the caller gets a problem, and the details are logged
            respond(error)
