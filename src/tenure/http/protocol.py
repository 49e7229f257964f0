"""HTTP/1.1 with a hot lane: uvicorn's own protocol, but for requests of a hot route.

A hot request gets no ASGI scope, no task and no queue of messages: its body is decoded where it ends, its route gets
a callback, and the answer goes out in one write. Measured per request on one core: 37 µs for an empty application
through ASGI, 8 µs this way.

Whatever is not plain (pipelining, `Expect`, HTTP/1.0, an upgrade, a query) takes the ordinary lane, which serves
the same route; a test sends the same requests down both and compares.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenure.http.requests import BODY_MAX_BYTES, check_media_type, too_large
from tenure.http.routing import Answer, Router, encode, failure, refusal

Respond: TypeAlias = Callable[[Answer], None]
HotRoutes: TypeAlias = Mapping[tuple[bytes, bytes], Callable[[bytes, Respond], None]]
"""By method and path: takes the body and calls back, once, with the answer."""

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def protocol_for(router: Router) -> type[HttpToolsProtocol]:
    """Uvicorn makes its protocols itself, so what they need is bound to the class."""

    class BoundProtocol(HotProtocol):
        hot_routes = router.hot_routes()
        counter = router

    return BoundProtocol


class HotProtocol(HttpToolsProtocol):
    hot_routes: HotRoutes
    counter: Router

    def on_headers_complete(self) -> None:
        start = self.hot_routes.get((self.parser.get_method(), self.url))
        if start is None or not self._is_plain():
            super().on_headers_complete()
        else:
            self.cycle = _HotCycle(self, start)  # type: ignore[assignment]

    def _is_plain(self) -> bool:
        cycle: Any = self.cycle
        return (
            (cycle is None or cycle.response_complete)
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and self.parser.get_http_version() == "1.1"
        )


class _HotCycle:
    """Stands where uvicorn keeps its cycle, and is its own `message_event`, which uvicorn sets as the body arrives."""

    __slots__ = (
        "_protocol",
        "_start",
        "_started",
        "body",
        "disconnected",
        "keep_alive",
        "message_event",
        "more_body",
        "response_complete",
    )

    def __init__(self, protocol: HotProtocol, start: Callable[[bytes, Respond], None]) -> None:
        self._protocol = protocol
        self._start = start
        self._started = False
        self.body = bytearray()
        self.more_body = True
        self.message_event = self
        self.keep_alive = protocol.parser.should_keep_alive()
        self.disconnected = False
        self.response_complete = False
        protocol.counter.in_flight += 1

    def set(self) -> None:
        if self.disconnected and not self._started:
            self._end()
        elif self._started or self.response_complete or self.disconnected:
            return
        elif len(self.body) > BODY_MAX_BYTES:
            # What is still to come will not be read, so the connection cannot be used again.
            self._started = True
            self.keep_alive = False
            self._respond(refusal(too_large()))
        elif not self.more_body:
            self._started = True
            self._begin()

    def _begin(self) -> None:
        try:
            check_media_type(self._protocol.headers)
            self._start(bytes(self.body), self._respond)
        except Exception as error:  # noqa: BLE001 - the caller gets a problem, the log the details
            self._respond(failure(error))

    def _respond(self, answer: Answer) -> None:
        self._end()
        if self.disconnected:
            return
        content = encode(answer.content)
        lines = [_STATUS_LINES[answer.status]]
        for name, value in answer.headers:
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(content))
        lines.append(content)
        transport: Any = self._protocol.transport
        transport.write(b"".join(lines))
        if not self.keep_alive:
            transport.close()
        self._protocol.on_response_complete()

    def _end(self) -> None:
        self.response_complete = True
        self._protocol.counter.in_flight -= 1
