"""HTTP/1.1 connections that send one request at a time, and use as little CPU time as possible."""

import asyncio
import re
import ssl
from typing import NamedTuple, Self
from urllib.parse import urlsplit

ANSWER_SECONDS = 10.0
PORTS = {"http": 80, "https": 443}
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE).search


class Response(NamedTuple):
    status: int
    body: bytes


class NoResponse(Exception):
    """The connection failed or broke, or the response was late or not HTTP. The request may have been executed."""


class Destination:
    """Where requests go: the address of the service, the URL prefix of its routes, and the credential."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.port = parts.port or PORTS[parts.scheme]
        self.context = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        authorization = "" if key is None else f"Authorization: Bearer {key}\r\n"
        self._headers = f"Host: {parts.netloc}\r\nUser-Agent: tenure-bench\r\n{authorization}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        return f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}{content}\r\n".encode() + body


class Connection:
    """Connects with the first request, and again if the connection was closed or a request got no response."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._protocol: _Protocol | None = None

    async def send(self, request: bytes) -> Response:
        """Send a request and return the response. Raises `NoResponse` if there is none."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self._protocol is None or self._protocol.is_closed:
                    self._protocol = await _Protocol.connected(self._destination)
                return await self._protocol.send(request)
        except TimeoutError:
            self.close()
            raise NoResponse(f"no response within {ANSWER_SECONDS:g} seconds") from None
        except (OSError, ValueError) as error:
            self.close()
            raise NoResponse(str(error)) from error

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close()
            self._protocol = None


class _Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = bytearray()
        self._response: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport
        self.is_closed = False

    @classmethod
    async def connected(cls, destination: Destination) -> Self:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(cls, destination.host, destination.port, ssl=destination.context)
        return protocol

    async def send(self, request: bytes) -> Response:
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._response

    def close(self) -> None:
        self.is_closed = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end])
        length = _LENGTH(head)
        if length is None or not head.startswith(b"HTTP/1.1 "):
            self._fail(ValueError("the response does not come from Tenure"))
            return
        body = bytes(self._received[end + 4 :])
        if len(body) < int(length[1]):
            return
        self._received.clear()
        if _CLOSE(head):
            self.is_closed = True
        if self._response is not None and not self._response.done():
            self._response.set_result(Response(int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._fail(exc or ConnectionResetError("the service closed the connection"))

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
