"""Routes as data, and the small ASGI application that serves them.

A route names its method, path, structs, answers and refusals. From that one table come the dispatch, the checks of body
and query, the OpenAPI document and the test that every route is documented.

Why not a framework: opening a session costs Tenure less than any of them costs per request, so the busiest route would
have to be served beside it, twice. This way there is one lane.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec
import structlog

from tenure.errors import Internal, MethodNotAllowed, NotFound, Problem
from tenure.http.problems import MEDIA_TYPE, details
from tenure.http.requests import (
    BODY_MAX_BYTES,
    check_media_type,
    decoder_for,
    parse_query,
    read_body,
    reader_of_headers,
)

log = structlog.get_logger()

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

VERSION = "/v1"
ID_LENGTH = 36
JSON: Headers = ((b"content-type", b"application/json"),)
HTML: Headers = ((b"content-type", b"text/html; charset=utf-8"),)
PROBLEM: Headers = ((b"content-type", MEDIA_TYPE.encode()),)

_encode_json = msgspec.json.Encoder().encode


def encode(content: Any) -> bytes:
    return content if type(content) is bytes else _encode_json(content)


class Call(msgspec.Struct):
    """A request after its checks: what the route's own structs made of it."""

    path: Mapping[str, str] = {}
    query: Any = None
    body: Any = None
    headers: Any = None


class Answer(msgspec.Struct):
    """What goes back. `content` of bytes goes out as it is, anything else as JSON."""

    content: Any
    status: int = 200
    headers: Headers = JSON


Respond = Callable[[Answer], None]


class RawBody(msgspec.Struct, frozen=True):
    """A body that is taken as it is."""

    media_types: tuple[bytes, ...]
    max_bytes: int


class Route(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    handler: Callable[[Call], Awaitable[Answer]]
    summary: str
    tag: str
    description: str = ""
    query: type[msgspec.Struct] | None = None
    headers: type[msgspec.Struct] | None = None
    """Those that it needs; any others are none of its business."""
    body: type[msgspec.Struct] | None = None
    body_max_bytes: int = BODY_MAX_BYTES
    body_required: bool = True
    """If not, no body and no media type mean a body with nothing in it."""
    raw_body: RawBody | None = None
    answers: Mapping[int, type[msgspec.Struct] | None]
    refusals: Sequence[type[Problem]] = ()
    stays: bool = False
    """Answers at its own path only, whatever prefix the rest of the API has."""
    listed: bool = True
    """Stands in the OpenAPI document."""
    hot: Callable[[Call, Respond], None] | None = None
    """The same as `handler`, for the hot lane: calls back with the answer. Its path names one id at most."""


class Router:
    def __init__(self, routes: Sequence[Route], prefix: str) -> None:
        self.routes = routes
        self._prefix = prefix
        self._stays = {route.path for route in routes if route.stays}
        self._endpoints = [_Endpoint(route) for route in routes]
        self._exact = {(e.route.method, e.route.path): e for e in self._endpoints if "{" not in e.route.path}
        self.in_flight = 0

    def hot_routes(self) -> Sequence["HotRoute"]:
        """Every address of every hot route, as it stands in the request line."""
        return [
            HotRoute(endpoint, f"{self._prefix}{version}{endpoint.route.path}")
            for endpoint in self._endpoints
            if endpoint.route.hot is not None
            for version in ("", VERSION)
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.in_flight += 1
        try:
            answer = await self._answer(scope, receive)
            body = encode(answer.content)
            length = (b"content-length", b"%d" % len(body))
            await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, length]})
            await send({"type": "http.response.body", "body": body})
        finally:
            self.in_flight -= 1

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        try:
            endpoint, parameters = self._find(scope["method"], scope["path"])
            return await endpoint.call(scope, receive, parameters)
        except Exception as error:  # noqa: BLE001 - the caller gets a problem, the log the details
            return failure(error)

    def _find(self, method: str, path: str) -> tuple["_Endpoint", Mapping[str, str]]:
        if path not in self._stays:
            path = self._within(path)
        found = self._exact.get((method, path))
        if found is not None:
            return found, {}
        matches = [(endpoint, match) for endpoint in self._endpoints if (match := endpoint.match(path))]
        # `/sessions/metrics` is not a session: an address that is spelled out hides those that would match it.
        matches = [found for found in matches if found[0].route.path == path] or matches
        if not matches:
            raise NotFound("there is nothing at this address")
        for endpoint, match in matches:
            if method in endpoint.methods:
                return endpoint, match.groupdict()
        allowed = sorted({method for endpoint, _ in matches for method in endpoint.methods})
        raise MethodNotAllowed(f"this address takes {' and '.join(allowed)}", ", ".join(allowed))

    def _within(self, path: str) -> str:
        """The path as the routes have it: below the prefix, with or without the version."""
        if self._prefix:
            if not path.startswith(self._prefix + "/"):
                raise NotFound("there is nothing at this address")
            path = path.removeprefix(self._prefix)
        inner = path.removeprefix(VERSION) if path.startswith(VERSION + "/") else path
        return "" if inner in self._stays else inner


class _Endpoint:
    """A route with everything that can be prepared for it."""

    def __init__(self, route: Route) -> None:
        self.route = route
        # HEAD is GET without the body, which the server leaves out.
        self.methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.path))
        self.match = re.compile(pattern).fullmatch
        self._decode = decoder_for(route.body) if route.body is not None else None
        self.read_headers = reader_of_headers(route.headers) if route.headers is not None else _read_no_headers

    async def call(self, scope: Scope, receive: Receive, parameters: Mapping[str, str]) -> Answer:
        query = None
        if self.route.query is not None or scope["query_string"]:
            query = parse_query(scope["query_string"], self.route.query)
        body = None
        if self._decode is not None:
            body = self.decode(scope["headers"], await read_body(receive, self.route.body_max_bytes))
        elif self.route.raw_body is not None:
            raw = self.route.raw_body
            body = await read_body(receive, raw.max_bytes)
            check_media_type(scope["headers"], raw.media_types)
        return await self.route.handler(Call(parameters, query, body, self.read_headers(scope["headers"])))

    def decode(self, headers: Headers, body: bytes) -> Any:
        if self._decode is None or self.route.body is None:
            raise TypeError(f"{self.route.path} takes no body")
        if not body and not self.route.body_required:
            return self.route.body()
        check_media_type(headers)
        return self._decode(body)


def _read_no_headers(_headers: Headers) -> None:
    return None


def handler_of(hot: Callable[[Call, Respond], None]) -> Callable[[Call], Awaitable[Answer]]:
    """What the hot lane does, for the ordinary one."""

    async def handle(call: Call) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        hot(call, lambda answer: None if answered.done() else answered.set_result(answer))
        return await answered

    return handle


class HotRoute:
    """One address of a hot route."""

    def __init__(self, endpoint: _Endpoint, path: str) -> None:
        self.method = endpoint.route.method.encode()
        self.body_max_bytes = endpoint.route.body_max_bytes
        self._decode = endpoint.decode
        self._read_headers = endpoint.read_headers
        self._hot = endpoint.route.hot
        before, brace, rest = path.partition("{")
        self._parameter, _, after = rest.partition("}")
        self._before, self._after = before.encode(), after.encode()
        self._length = len(before) + (ID_LENGTH if brace else 0) + len(after)

    @property
    def path(self) -> bytes | None:
        """As it stands, unless it names an id."""
        return None if self._parameter else self._before

    def matches(self, url: bytes) -> bool:
        return len(url) == self._length and url.startswith(self._before) and url.endswith(self._after)

    def start(self, url: bytes, headers: Headers, body: bytes, respond: Respond) -> None:
        if self._hot is None:
            raise TypeError(f"{url!r} is not a hot route")
        path = {}
        if self._parameter:
            path = {self._parameter: url[len(self._before) : len(self._before) + ID_LENGTH].decode("latin-1")}
        self._hot(Call(path, None, self._decode(headers, body), self._read_headers(headers)), respond)


def failure(error: Exception) -> Answer:
    """What a caller is told about any exception. No stack trace leaves the process."""
    if isinstance(error, Problem):
        return refusal(error)
    log.error("http.failed", exc_info=error)
    return refusal(Internal("an unexpected error; the log has the details"))


def refusal(problem: Problem) -> Answer:
    headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    return Answer(details(problem), problem.status, [*PROBLEM, *headers])
