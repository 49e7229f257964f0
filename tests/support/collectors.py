"""A collector of traces: receives OTLP over HTTP, and decodes it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class CollectedSpan(NamedTuple):
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    nanoseconds: int
    failed: bool


class Collector:
    def __init__(self) -> None:
        self.raw = b""
        """All received headers and bodies."""
        self.services: set[str] = set()
        self.spans: list[CollectedSpan] = []
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def named(self, name: str) -> Sequence[CollectedSpan]:
        return [span for span in self.spans if span.name == name]

    def receive(self, head: str, body: bytes) -> None:
        self.raw += head.encode() + body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {each.value.string_value for each in resource.resource.attributes if each.key == SERVICE}
            self.spans += [_span(span) for scope in resource.scope_spans for span in scope.spans]


SERVICE = "service.name"


def _span(span: Any) -> CollectedSpan:
    return CollectedSpan(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes},
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        span.end_time_unix_nano - span.start_time_unix_nano,
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.receive(f"{self.requestline}\r\n{self.headers}", self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
