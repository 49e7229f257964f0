"""HTTP/1.1, as little of it as a receiver needs, read and written by hand: a fault needs the bare connection."""

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
    """The request cannot be read to its end, so the connection cannot go on after the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Request(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    keeps_alive: bool


class Answer(NamedTuple):
    status: int
    content: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/plain; charset=utf-8"),)


def text(status: int, reason: str, *headers: tuple[str, str]) -> Answer:
    answer = Answer(status, f"{reason}\n".encode())
    return answer._replace(headers=answer.headers + headers)


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request on the connection; None when there is none any more."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise Unreadable(431, f"the head of a request must be at most {HEAD_MAX_BYTES} bytes") from error
    method, target, version, headers = _parse(head)
    size = _content_length(headers)
    if size and headers.get("expect", "").lower() == "100-continue":
        send(writer, CONTINUE)
    try:
        body = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
    connection = headers.get("connection", "").lower()
    keeps_alive = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
    path, _, query = target.partition("?")
    return Request(method, path, query, headers, body, keeps_alive)


def _parse(head: bytes) -> tuple[str, str, str, dict[str, str]]:
    request_line, *lines = head[:-4].decode("latin-1").split("\r\n")
    parts = request_line.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):  # noqa: PLR2004 - method, target, version
        raise Unreadable(400, "this is not HTTP/1.1")
    method, target, version = parts
    if not target.startswith("/"):
        raise Unreadable(400, "the address must be a path")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise Unreadable(400, "a header is not a name, a colon and a value")
        headers[name.lower()] = value.strip(" \t")
    return method, target, version, headers


def _content_length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Unreadable(411, "Content-Length must be given; a transfer encoding is not taken")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Unreadable(400, "Content-Length must be a whole number")
    if len(length) > len(str(BODY_MAX_BYTES)) or int(length) > BODY_MAX_BYTES:
        raise Unreadable(413, f"a body must be at most {BODY_MAX_BYTES} bytes")
    return int(length)


def send(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Says that the sender has gone, which asyncio ignores here and uvloop takes for a mistake."""
    if writer.is_closing():
        raise ConnectionResetError("the sender has gone")
    writer.write(content)


def head_of(status: int, headers: tuple[tuple[str, str], ...], *, keeps_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unnamed')}", *(f"{name}: {value}" for name, value in headers)]
    if not keeps_alive:
        lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def rendered(answer: Answer, *, keeps_alive: bool) -> bytes:
    if answer.status in WITHOUT_BODY:
        return head_of(answer.status, answer.headers[1:], keeps_alive=keeps_alive)
    length = ("content-length", str(len(answer.content)))
    return head_of(answer.status, (*answer.headers, length), keeps_alive=keeps_alive) + answer.content
