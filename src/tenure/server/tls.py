"""TLS: the certificate of an instance, and connections until their TLS handshake is complete.

**Replacing a certificate.** `Certificate.reload` reads both files into a new context. If the files cannot be read, or
do not match, it raises, and the context in use is kept. A connection uses the context that was current when the
connection was accepted, so replacing a certificate affects no open connection, and no handshake in progress.

**Handshakes.** The event loop accepts plain connections, and `Handshake` starts TLS on each of them. So a connection
counts towards `max_connections` from the start and has `head_seconds` for its handshake. Like every connection for
whose client the instance waits, it can be closed to make room for others (`server/connections.py`). If the event loop
accepted TLS connections instead, it would hand over a connection only after the handshake. Connections that never
finish the handshake would then be neither counted nor limited.

`Handshake` keeps bytes that arrive too early, and passes them on. uvloop reads from a new connection even if
`connection_made` pauses reading, so bytes of the handshake may arrive before TLS has started: they are passed to TLS.
After the handshake, a request may arrive before the task that waits for the handshake continues: the bytes of this
request are passed to the HTTP protocol.

**The end of a connection.** Over TLS, an instance cannot end its output and continue to read. A connection lingers so
that a client that is still sending can read a refusal. Over TLS, a lingering connection is closed when its client has
sent nothing for a moment; see `server/http1.py`.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenure.clock import monotonic
from tenure.errors import ConfigurationError
from tenure.server.connections import Connections

SHUTDOWN_SECONDS = 5.0
"""How long a client may take to confirm the end of a connection."""
_END = "-----END CERTIFICATE-----"


class Certificate:
    """The certificate chain and private key in two PEM files."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises `ConfigurationError` if the files cannot be used."""
        self.path = certificate
        self._key_path = key
        self.reload()

    def reload(self) -> None:
        """Reads both files again. Raises `ConfigurationError` and changes nothing if they cannot be used."""
        context = _context(self.path, self._key_path)
        first, end, _ = _text("tls_certificate", self.path).partition(_END)
        self.sha256 = hashlib.sha256(ssl.PEM_cert_to_DER_cert(_without_preamble(first) + end)).hexdigest()
        self.context = context


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _text("tls_key", key)
    if _END not in _text("tls_certificate", certificate):
        raise ConfigurationError(f"tls_certificate: {certificate} contains no certificate in PEM format")
    try:
        # Without this function, OpenSSL would ask on the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else "not valid"
        raise ConfigurationError(
            f"tls_certificate, tls_key: {certificate} and {key} must be a certificate chain and its private key in PEM "
            f"format, not encrypted ({reason.replace('_', ' ').lower()})"
        ) from error
    return context


def _text(setting: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="latin-1")
    except OSError as error:
        raise ConfigurationError(f"{setting}: {path} cannot be read: {error.strerror}") from error


def _without_preamble(text: str) -> str:
    """Removes the comments that a PEM file may have before the certificate."""
    begin = "-----BEGIN CERTIFICATE-----"
    return begin + text.partition(begin)[2]


def with_tls(
    http: Callable[..., HttpToolsProtocol], certificate: Certificate, open_connections: Connections
) -> type[asyncio.Protocol]:
    """Returns the factory that uvicorn calls for every new connection, in place of the class of the HTTP protocol."""

    def protocol(*, server_state: Any, **arguments: Any) -> asyncio.Protocol:
        def make_http() -> HttpToolsProtocol:
            return http(server_state=server_state, **arguments)

        return Handshake(make_http, server_state.connections, certificate, open_connections)

    return cast("type[asyncio.Protocol]", protocol)


class Handshake(asyncio.Protocol):
    """A connection until its TLS handshake is complete. Implements `TimedConnection`."""

    unfinished_bytes = 0

    def __init__(
        self,
        make_http: Callable[[], HttpToolsProtocol],
        connections: set[Any],
        certificate: Certificate,
        open_connections: Connections,
    ) -> None:
        self.connections = connections
        self.loop = asyncio.get_running_loop()
        self._make_http = make_http
        self._certificate = certificate
        self._open_connections = open_connections
        self._since = monotonic()
        self._received = b""
        self._has_ended = False
        self._task: asyncio.Task[None] | None = None

    # Called by the transport: first by the plain transport, and after the handshake by the TLS transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # The client begins the handshake at once. The TLS protocol must read the first bytes, not this protocol.
        self._transport.pause_reading()
        self.connections.add(self)
        self._open_connections.add(self)
        if not self._transport.is_closing():
            self._task = self.loop.create_task(self._start_tls())

    def data_received(self, data: bytes) -> None:
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._has_ended = True
        self._leave()

    async def _start_tls(self) -> None:
        starting = self.loop.create_task(
            self.loop.start_tls(
                self._transport,
                self,
                self._certificate.context,
                server_side=True,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        )
        # `start_tls` schedules callbacks when its task begins. `_pass_on_to_tls` must run after these callbacks, and
        # before the loop reads again. So `_pass_on_to_tls` is not scheduled here, but by a callback that runs after the
        # task has begun.
        self.loop.call_soon(self.loop.call_soon, self._pass_on_to_tls)
        try:
            secured = await starting
        except (OSError, asyncio.CancelledError):
            # The client offered no accepted version of TLS, sent bytes that are not TLS, or closed the connection.
            self._transport.abort()
            return
        finally:
            # Break a reference cycle: an exception refers to this frame, and the frame to the task and its exception.
            del starting
            self._leave()
        if secured is None or self._has_ended:
            return
        http = self._make_http()
        secured.set_protocol(http)
        http.connection_made(secured)
        if self._received:
            http.data_received(self._received)

    def _pass_on_to_tls(self) -> None:
        """Passes the bytes that arrived before TLS had started to the TLS protocol. Runs as soon as `start_tls` has
        connected that protocol to the transport, before the transport reads again.
        """
        protocol: Any = self._transport.get_protocol()
        while self._received and protocol is not self and not self._has_ended:
            buffer = protocol.get_buffer(len(self._received))
            piece, self._received = self._received[: len(buffer)], self._received[len(buffer) :]
            buffer[: len(piece)] = piece
            protocol.buffer_updated(len(piece))

    def _leave(self) -> None:
        self.connections.discard(self)
        self._open_connections.remove(self)

    # Called by uvicorn when it stops.

    def shutdown(self) -> None:
        self._transport.abort()

    # Called by `Connections`.

    @property
    def waiting_since(self) -> float | None:
        return self._since

    def close_after_last_request(self) -> None:
        """Does nothing, because no request has arrived yet."""

    def check_time(self, now: float) -> None:
        if now - self._since > self._open_connections.edge.limits.head_seconds:
            self._open_connections.edge.refused("head_seconds")
            self.evict()

    def refuse_connection(self, *, lingers: bool) -> None:
        """Closes without a response: a response would need a handshake, which takes too much CPU time for a refusal."""
        del lingers
        self._transport.abort()

    def evict(self) -> None:
        self._transport.abort()
