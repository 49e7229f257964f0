"""One table of routes, and one pipeline for every request: match → identify → decode → handle → answer.

A route is data: its method, path, structs, answers and refusals. Everything else is derived from the table: the
dispatch of all three transports, the checks of body and query, the OpenAPI and AsyncAPI documents, and the test that
every route is documented.

Requests arrive by three transports. All of them use the steps of `Pipeline` in the same order:

| transport | enters at | module |
|---|---|---|
| ordinary lane | `Pipeline.__call__`, an ASGI application | this module |
| hot lane | `HotRoute.start`, without ASGI, a task or a queue | `server/http1.py` |
| WebSocket | `Pipeline.accept_stream`, after the handshake request | `server/websocket.py` |

Limits on incoming requests (header size, request rate) belong between match and identify, before credentials are read.

Tenure uses no web framework, because any framework costs more time per request than opening a session does. With a
framework, the busiest route would have to be served outside it, by a second pipeline.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec

from tenure.access.caller import Caller, Identify
from tenure.errors import MethodNotAllowed, NotFound, Problem
from tenure.http.answers import Answer, Headers, failure
from tenure.http.decoding import (
    BODY_MAX_BYTES,
    check_media_type,
    decoder_for,
    parse_query,
    read_body,
    reader_of_headers,
)
from tenure.streams.sockets import Socket
from tenure.telemetry.events import Telemetry

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VERSION = "/v1"
ID_LENGTH = 36


class Call(msgspec.Struct):
    """A request that has passed all checks: its caller, and its parts decoded into the structs of its route."""

    caller: Caller
    path: Mapping[str, str] = {}
    query: Any = None
    body: Any = None
    headers: Any = None


Respond = Callable[[Answer | Exception], None]
Handler = Callable[[Call], Awaitable[Answer]]
HotHandler = Callable[[Call, Respond], None]


class RawBody(msgspec.Struct, frozen=True):
    """A body that the handler gets as bytes, not decoded."""

    media_types: tuple[bytes, ...]
    max_bytes: int


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP route. It has either `handler` or `hot_handler`."""

    method: str
    path: str
    handler: Handler | None = None
    hot_handler: HotHandler | None = None
    """Calls `Respond` with the answer. Serves both lanes. The path of a hot route contains at most one id."""
    summary: str
    tag: str
    description: str = ""
    query: type[msgspec.Struct] | None = None
    headers: type[msgspec.Struct] | None = None
    """The headers that the route needs; all others are ignored."""
    body: type[msgspec.Struct] | None = None
    body_max_bytes: int = BODY_MAX_BYTES
    body_required: bool = True
    """If False, a request without body and media type is decoded as an empty object."""
    raw_body: RawBody | None = None
    answers: Mapping[int, type[msgspec.Struct] | None]
    refusals: Sequence[type[Problem]] = ()
    stays: bool = False
    """If True, the route is served only at `path` itself, without the configured prefix and without `/v1`."""
    listed: bool = True
    """Whether the OpenAPI document contains the route."""


class StreamRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A WebSocket route. `serve` runs the connection to its end."""

    path: str
    serve: Callable[[Socket, Call], Awaitable[None]]
    summary: str
    tag: str
    description: str = ""
    first_message: type[msgspec.Struct] | None = None
    """The message that the client must send first; None if the route requires none."""

    @property
    def method(self) -> str:
        return "WS"


Table = Sequence[Route | StreamRoute]


class Pipeline:
    def __init__(self, table: Table, prefix: str, identify: Identify, telemetry: Telemetry) -> None:
        self.table = table
        self.identify = identify
        self._prefix = prefix
        self._telemetry = telemetry
        self._stays = {route.path for route in table if isinstance(route, Route) and route.stays}
        self._endpoints = [_Endpoint(route) for route in table if isinstance(route, Route)]
        self._streams = [_StreamEndpoint(route) for route in table if isinstance(route, StreamRoute)]
        self._exact = {(e.route.method, e.route.path): e for e in self._endpoints if "{" not in e.route.path}
        self.in_flight = 0

    # The ordinary lane.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.in_flight += 1
        try:
            answer = await self._answer(scope, receive)
            body = answer.body()
            length = (b"content-length", b"%d" % len(body))
            await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, length]})
            await send({"type": "http.response.body", "body": body})
        finally:
            self.in_flight -= 1

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        try:
            endpoint, parameters = self._match(scope["method"], scope["path"])
            caller = self.identify(scope["headers"])
            query = endpoint.decode_query(scope["query_string"])
            body = await read_body(receive, endpoint.body_max_bytes) if endpoint.takes_body else b""
            return await endpoint.handle(endpoint.decode(caller, parameters, query, scope["headers"], body))
        except Exception as error:  # noqa: BLE001 - the caller gets a problem, and the details are logged
            return self.failure(error)

    def _match(self, method: str, path: str) -> tuple["_Endpoint", Mapping[str, str]]:
        if path not in self._stays:
            path = self._below_prefix(path)
        found = self._exact.get((method, path))
        if found is not None:
            return found, {}
        matches = [(endpoint, match) for endpoint in self._endpoints if (match := endpoint.match(path))]
        # A path without parameters takes precedence: `/sessions/metrics` is not the session `metrics`.
        matches = [found for found in matches if found[0].route.path == path] or matches
        if not matches:
            raise NotFound("no resource has this address")
        for endpoint, match in matches:
            if method in endpoint.methods:
                return endpoint, match.groupdict()
        allowed = sorted({method for endpoint, _ in matches for method in endpoint.methods})
        raise MethodNotAllowed(f"this address supports {' and '.join(allowed)}", ", ".join(allowed))

    def _below_prefix(self, path: str) -> str:
        """Return the path as it is in the table: without the prefix and the version."""
        if self._prefix:
            if not path.startswith(self._prefix + "/"):
                raise NotFound("no resource has this address")
            path = path.removeprefix(self._prefix)
        inner = path.removeprefix(VERSION) if path.startswith(VERSION + "/") else path
        return "" if inner in self._stays else inner

    # The hot lane.

    def hot_routes(self) -> Sequence["HotRoute"]:
        """Every address of every hot route, as it appears in a request line."""
        return [
            HotRoute(self, endpoint, f"{self._prefix}{version}{endpoint.route.path}")
            for endpoint in self._endpoints
            if endpoint.route.hot_handler is not None
            for version in ("", VERSION)
        ]

    # WebSockets.

    def accept_stream(self, path: str, headers: Headers) -> tuple[StreamRoute, Call]:
        """Matches and identifies a handshake request; raises a `Problem` to refuse it."""
        path = path.partition("?")[0]
        try:
            inner = self._below_prefix(path)
        except NotFound:
            inner = ""
        for endpoint in self._streams:
            if match := endpoint.match(inner):
                return endpoint.route, Call(self.identify(headers), match.groupdict())
        raise NotFound("no stream has this address")

    def failure(self, error: Exception) -> Answer:
        return failure(error, self._telemetry)


def _matcher(path: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))).fullmatch


class _Endpoint:
    """A route with its precomputed matcher, decoders and handler."""

    def __init__(self, route: Route) -> None:
        self.route = route
        # HEAD is handled like GET; the server omits the body.
        self.methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        self.match = _matcher(route.path)
        self.takes_body = route.body is not None or route.raw_body is not None
        self.body_max_bytes = route.body_max_bytes if route.raw_body is None else route.raw_body.max_bytes
        self._decode_body = None if route.body is None else decoder_for(route.body)
        self._read_headers = None if route.headers is None else reader_of_headers(route.headers)
        if route.handler is not None:
            self.handle = route.handler
        elif route.hot_handler is not None:
            self.handle = _awaitable(route.hot_handler)
        else:
            raise TypeError(f"{route.method} {route.path} has no handler")

    def decode_query(self, query_string: bytes) -> Any:
        return parse_query(query_string, self.route.query) if self.route.query is not None or query_string else None

    def decode(self, caller: Caller, parameters: Mapping[str, str], query: Any, headers: Headers, body: bytes) -> Call:
        content: Any = None
        if self._decode_body is not None:
            if not body and not self.route.body_required and self.route.body is not None:
                content = self.route.body()
            else:
                check_media_type(headers)
                content = self._decode_body(body)
        elif self.route.raw_body is not None:
            check_media_type(headers, self.route.raw_body.media_types)
            content = body
        own_headers = None if self._read_headers is None else self._read_headers(headers)
        return Call(caller, parameters, query, content, own_headers)


class _StreamEndpoint:
    def __init__(self, route: StreamRoute) -> None:
        self.route = route
        self.match = _matcher(route.path)


def _awaitable(hot_handler: HotHandler) -> Handler:
    """Wrap a hot handler as an awaitable handler for the ordinary lane."""

    async def handle(call: Call) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def respond(answer: Answer | Exception) -> None:
            if answered.done():
                return
            if isinstance(answer, Exception):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        hot_handler(call, respond)
        return await answered

    return handle


class HotRoute:
    """One address of a hot route."""

    def __init__(self, pipeline: Pipeline, endpoint: _Endpoint, path: str) -> None:
        if endpoint.route.hot_handler is None:
            raise TypeError(f"{path} is not a hot route")
        self.method = endpoint.route.method.encode()
        self.body_max_bytes = endpoint.body_max_bytes
        self._pipeline = pipeline
        self._decode = endpoint.decode
        self._hot_handler = endpoint.route.hot_handler
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

    def start(self, url: bytes, headers: Headers, body: bytes, respond: Respond) -> None:
        parameters = {}
        if self._parameter:
            parameters = {self._parameter: url[len(self._before) : len(self._before) + ID_LENGTH].decode("latin-1")}
        caller = self._pipeline.identify(headers)
        self._hot_handler(self._decode(caller, parameters, None, headers, body), respond)
