"""Reads and writes the small part of HTTP/1.1 that a receiver needs. No HTTP library is used, because the faults that
the receiver simulates need direct access to the connection.

A request without a `Content-Length` has no body. A request with a `Transfer-Encoding` gets 411. Pipelined requests are
read one after the other.
"""

import asyncio
from http import HTTPStatus
from typing import NamedTuple

from tenure.errors import TenureError

HEAD_MAX_BYTES = 65_536
BODY_MAX_BYTES = 16 * 1024 * 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Unreadable(TenureError):
    """The request cannot be read to its end, so the connection is closed after the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Request(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Names are in lower case."""
    body: bytes
    keep_alive: bool


class Response(NamedTuple):
    status: int
    content: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/plain; charset=utf-8"),)
    """The content type must be first: `render` drops the first header of a response without a body."""


def text_response(status: int, reason: str, *headers: tuple[str, str]) -> Response:
    response = Response(status, f"{reason}\n".encode())
    return response._replace(headers=response.headers + headers)


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """Return the next request, or None if the sender closed the connection before the request was complete."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise Unreadable(431, f"the head of a request must be at most {HEAD_MAX_BYTES} bytes") from error
    method, target, version, headers = _parse_head(head)
    size = _content_length(headers)
    if size and headers.get("expect", "").lower() == "100-continue":
        send(writer, CONTINUE)
    try:
        body = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
    path, _, query = target.partition("?")
    return Request(method, path, query, headers, body, keep_alive)


def _parse_head(head: bytes) -> tuple[str, str, str, dict[str, str]]:
    request_line, *lines = head[:-4].decode("latin-1").split("\r\n")
    parts = request_line.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):  # noqa: PLR2004 - method, target, version
        raise Unreadable(400, "the request line must be a method, a target, and HTTP/1.1 or HTTP/1.0")
    method, target, version = parts
    if not target.startswith("/"):
        raise Unreadable(400, "the request target must be a path")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise Unreadable(400, "a header must be a name, a colon and a value")
        headers[name.lower()] = value.strip(" \t")
    return method, target, version, headers


def _content_length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Unreadable(411, "Content-Length is required; transfer encodings are not supported")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Unreadable(400, "Content-Length must be a whole number")
    # Check the number of digits first, because `int` raises for thousands of digits.
    if len(length) > len(str(BODY_MAX_BYTES)) or int(length) > BODY_MAX_BYTES:
        raise Unreadable(413, f"a body must be at most {BODY_MAX_BYTES} bytes")
    return int(length)


def send(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Write, or raise `ConnectionResetError` if the sender has closed the connection.

    Without this check, asyncio would ignore a write to a closed connection, and uvloop would report a program error.
    """
    if writer.is_closing():
        raise ConnectionResetError("the sender closed the connection")
    writer.write(content)


def render_head(status: int, headers: tuple[tuple[str, str], ...], *, keep_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unnamed')}", *(f"{name}: {value}" for name, value in headers)]
    if not keep_alive:
        lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def render(response: Response, *, keep_alive: bool) -> bytes:
    if response.status in WITHOUT_BODY:
        return render_head(response.status, response.headers[1:], keep_alive=keep_alive)
    length = ("content-length", str(len(response.content)))
    return render_head(response.status, (*response.headers, length), keep_alive=keep_alive) + response.content
