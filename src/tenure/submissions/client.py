"""An HTTP/1.1 client that sends one request at a time per connection, and never assigns a response to the wrong
request.

Most clients treat all bytes that arrive on a kept-alive connection as the response to the last request. If a receiver,
or a proxy in front of it, sends a second response, such a client returns that response for the next request, although
the receiver never read that request. The payload would count as delivered and be lost. So this client uses a connection
again only if

- the last response has ended, the receiver keeps the connection open, and no byte followed the response;
- nothing arrived while the connection was idle: if bytes arrive, or the receiver closes its side, the client closes the
  connection at once;
- the kernel holds no unread bytes right before the next request is written.

If a receiver sent bytes after a response, the client uses a new connection for each request to it during the next
DISTRUST_SECONDS: such bytes may also arrive right after the next request was written, and then cannot be distinguished
from the response to that request.

The limits on a response are in `response_reader.py`. If a response exceeds one, the connection is closed at once.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tenure.clock import monotonic
from tenure.errors import TenureError
from tenure.submissions.response_reader import ResponseHead, ResponseReader

BODY_SECONDS = 1.0
"""How long the client waits for the rest of a body, so that the connection can be reused."""
KEEP_ALIVE_SECONDS = 15.0
RESOLVED_SECONDS = 10.0
"""How long the addresses of a host name are used before it is resolved again."""
NEXT_ADDRESS_SECONDS = 0.25
"""How long a connection attempt may take before the client also tries the next address of the host."""
DISTRUST_SECONDS = 600.0
STRAY_SECONDS = 1.0
"""Bytes that arrive later than this after a connection became idle are not treated as a surplus response: a receiver
may send a 408, for example, before it closes an idle connection."""
PORTS = {"http": 80, "https": 443}

Address = tuple[socket.AddressFamily, Any]


class RequestFailed(TenureError):
    """There was no response. The error that caused the failure, if any, is `__cause__`."""


class NotResolved(RequestFailed):
    """The host name could not be resolved to an address."""


class NotConnected(RequestFailed):
    """No address of the host accepts a connection."""


class NotSecured(RequestFailed):
    """The TLS handshake failed."""


class Disconnected(RequestFailed):
    """The receiver closed the connection before a response."""


class AnsweredTooEarly(RequestFailed):
    """The receiver sent bytes before the request was sent, so these bytes are not the response to it."""


class Endpoint(msgspec.Struct, frozen=True):
    """The parts of a URL that a request needs. The target is sent exactly as it is configured."""

    scheme: str
    host: str
    port: int
    name: str
    """The host and port as the header `host` names them."""
    target: str


@cache
def endpoint_of(url: str) -> Endpoint:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    literal = f"[{host}]" if ":" in host else host
    name = literal if port == PORTS[parts.scheme] else f"{literal}:{port}"
    rest = url.split("://", 1)[1][len(parts.netloc) :]
    return Endpoint(parts.scheme, host, port, name, rest if rest.startswith("/") else f"/{rest}")


class HttpClient:
    """Sends requests, and keeps idle connections for later requests. It limits neither rate nor concurrency."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str, int], _Pool] = {}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> ResponseHead:
        """Sends a request, waits BODY_SECONDS at most for the body of the response, and returns the head.

        Raises `TimeoutError` if the head does not arrive within `seconds`, and `RequestFailed`, `NotHttp` or
        `HeadTooLarge` if there is no valid response.
        """
        endpoint = endpoint_of(url)
        pool = self._pool(endpoint)
        deadline = monotonic() + seconds
        connection = pool.take()
        if connection is None:
            async with asyncio.timeout(seconds):
                connection = await pool.connect()
        request = _request(endpoint, headers, body)
        return await connection.send(request, deadline - monotonic())

    def _pool(self, endpoint: Endpoint) -> "_Pool":
        origin = (endpoint.scheme, endpoint.host, endpoint.port)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = _Pool(endpoint)
        return pool

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def _request(endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = (
        f"POST {endpoint.target} HTTP/1.1\r\nhost: {endpoint.name}\r\naccept: */*\r\n{''.join(lines)}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


class _Pool:
    """The idle connections to one receiver, and its addresses."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: list[_Connection] = []
        self._addresses: Sequence[Address] = ()
        self._resolved_at = 0.0
        self._distrusted_until = 0.0
        self._pruning: asyncio.TimerHandle | None = None

    def take(self) -> "_Connection | None":
        """Returns the most recently used connection that can be used again, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.abort()
        return None

    def give_back(self, connection: "_Connection") -> None:
        if monotonic() < self._distrusted_until:
            connection.abort()
            return
        connection.idle_since = monotonic()
        self._idle.append(connection)
        if self._pruning is None:
            self._prune_later()

    def discard(self, connection: "_Connection") -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def distrust(self) -> None:
        """Called when the receiver sent bytes after a response. Closes idle connections: they may hold such bytes."""
        self._distrusted_until = monotonic() + DISTRUST_SECONDS
        self.close()

    def close(self) -> None:
        if self._pruning is not None:
            self._pruning.cancel()
            self._pruning = None
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def _prune_later(self) -> None:
        self._pruning = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS, self._prune)

    def _prune(self) -> None:
        """Closes connections that were idle for KEEP_ALIVE_SECONDS. One timer serves all connections to a receiver."""
        self._pruning = None
        used_after = monotonic() - KEEP_ALIVE_SECONDS
        for connection in [each for each in self._idle if each.idle_since <= used_after]:
            self._idle.remove(connection)
            connection.abort()
        if self._idle:
            self._prune_later()

    async def connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        raw = await _connect(await self._resolve())
        tls, name = (_tls(), self._endpoint.host) if self._endpoint.scheme == "https" else (None, None)
        connection = _Connection(self, raw, is_plain=tls is None)
        try:
            # From here on the event loop owns the socket, and closes it if the handshake fails.
            await loop.create_connection(lambda: connection, sock=raw, ssl=tls, server_hostname=name)
        except OSError as error:  # also `ssl.SSLError`
            raise NotSecured from error
        return connection

    async def _resolve(self) -> Sequence[Address]:
        if not self._addresses or monotonic() - self._resolved_at > RESOLVED_SECONDS:
            loop, endpoint = asyncio.get_running_loop(), self._endpoint
            try:
                found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                raise NotResolved from error
            self._addresses = _alternating([(family, address) for family, _, _, _, address in found])
            self._resolved_at = monotonic()
        return self._addresses


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _alternating(addresses: Sequence[Address]) -> Sequence[Address]:
    """Alternates between IPv6 and IPv4, so that a host is reached soon if one address family does not work."""
    first = [each for each in addresses if each[0] == addresses[0][0]]
    other = [each for each in addresses if each[0] != addresses[0][0]]
    return [each for each in chain.from_iterable(zip_longest(first, other)) if each is not None]


async def _connect(addresses: Sequence[Address]) -> socket.socket:
    """Tries the addresses one after the other. If an attempt takes longer than NEXT_ADDRESS_SECONDS, the next address
    is tried at the same time (happy eyeballs).
    """
    untried: Iterator[Address] = iter(addresses)
    trying: set[asyncio.Task[socket.socket]] = set()
    failed: OSError | None = None
    try:
        while True:
            address = next(untried, None)
            if address is not None:
                trying.add(asyncio.ensure_future(_connect_to(address)))
            if not trying:
                raise NotConnected from failed
            patience = None if address is None else NEXT_ADDRESS_SECONDS
            done, trying = await asyncio.wait(trying, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                if (error := each.exception()) is None:
                    done.discard(each)
                    trying |= done
                    return each.result()
                failed = failed or (error if isinstance(error, OSError) else None)
    finally:
        for each in trying:
            each.cancel()
            each.add_done_callback(_close_unused)


async def _connect_to(address: Address) -> socket.socket:
    family, destination = address
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connecting, destination)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _close_unused(connecting: asyncio.Task[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class _Connection(asyncio.Protocol):
    """A connection, which serves one request at a time."""

    def __init__(self, pool: _Pool, raw: socket.socket, *, is_plain: bool) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = monotonic()
        self._pool = pool
        self._raw = raw
        self._is_plain = is_plain
        self._is_new = True
        self._is_closed = False
        self._has_stray_bytes = False
        """Whether bytes arrived while there was no request."""
        self._reader: ResponseReader | None = None
        """The reader of the response to the current request; None while there is no request."""
        self._response: asyncio.Future[ResponseHead] | None = None
        self._timer: asyncio.TimerHandle
        self._awaits_body = False

    async def send(self, request: bytes, seconds: float) -> ResponseHead:
        """Returns the head of the response. By then, the client has read the body or stopped waiting for it, and has
        returned the connection to the pool or closed it.
        """
        loop = asyncio.get_running_loop()
        if self._is_new:
            self._is_new = False
            self._check_new()
        response: asyncio.Future[ResponseHead] = loop.create_future()
        self._response = response
        self._reader = ResponseReader()
        self._awaits_body = False
        self._timer = loop.call_later(seconds, self._time_out)
        if self.transport is not None:
            self.transport.write(request)
        try:
            return await response
        except asyncio.CancelledError:
            self._end_request()
            self.abort()
            raise
        finally:
            # The traceback of an error refers to this frame, and to the bytes of the response. If this frame still
            # referred to the error, through `response`, all three would stay in memory until a garbage collection.
            del response

    def _check_new(self) -> None:
        """Raises if the receiver closed the connection, or sent bytes, before there was a request.

        On a new TLS connection, the kernel may hold bytes of the TLS protocol itself, such as session tickets. So on a
        new TLS connection only decrypted bytes count.
        """
        unread = self._unread() if self._is_plain else None
        if unread or self._has_stray_bytes:
            self.abort()
            raise AnsweredTooEarly
        if unread == b"" or self._is_closed:
            self.abort()
            raise Disconnected

    def is_quiet(self) -> bool:
        """Whether the connection is open and holds no unread bytes."""
        if self._is_closed:
            return False
        unread = self._unread()
        if unread:
            self._note_stray_bytes()
        return unread is None

    def _unread(self) -> bytes | None:
        """Returns an unread byte if there is one, empty bytes at the end of the stream or after an error, else None."""
        try:
            return self._raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _note_stray_bytes(self) -> None:
        self._has_stray_bytes = True
        if monotonic() - self.idle_since < STRAY_SECONDS and not self._is_new:
            self._pool.distrust()

    def abort(self) -> None:
        self._is_closed = True
        if self.transport is not None:
            self.transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream protocol gets a `Transport`

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            self._pool.discard(self)
            self.abort()
            self._note_stray_bytes()
            return
        try:
            reader.feed(data)
        except TenureError as error:
            self._fail(error)
            return
        if reader.is_done:
            self._finish(reader)
        elif reader.head is not None and not self._awaits_body:
            self._awaits_body = True
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(BODY_SECONDS, self._time_out)

    def eof_received(self) -> None:
        self._lose(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(error)
        self.transport = None  # so that connection and transport do not refer to each other

    def _lose(self, error: Exception | None) -> None:
        self._is_closed = True
        reader = self._reader
        if reader is None:
            self._pool.discard(self)
        elif reader.head is not None:
            self._finish(reader)
        else:
            failure = Disconnected()
            failure.__cause__ = error
            self._fail(failure)

    def _time_out(self) -> None:
        reader = self._reader
        if reader is not None and reader.head is not None:
            self._finish(reader)
        else:
            self._fail(TimeoutError())

    def _finish(self, reader: ResponseReader) -> None:
        """Called when the response is complete, or when the client stops waiting for the rest of its body."""
        response = self._end_request()
        unsent = self.transport is None or self.transport.get_write_buffer_size() > 0
        if reader.has_surplus:
            self._pool.distrust()
        if reader.is_reusable and not unsent and not self._is_closed:
            self._pool.give_back(self)
        else:
            self.abort()
        if reader.head is not None and response is not None and not response.done():
            response.set_result(reader.head)

    def _fail(self, error: Exception) -> None:
        response = self._end_request()
        self.abort()
        if response is not None and not response.done():
            response.set_exception(error)

    def _end_request(self) -> asyncio.Future[ResponseHead] | None:
        """Detaches the current request, so that the connection may serve another one."""
        self._reader = None
        self._timer.cancel()
        response, self._response = self._response, None
        return response
