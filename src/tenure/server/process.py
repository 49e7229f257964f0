"""Runs one instance: the listening socket, the HTTP server and signals.

SIGTERM or SIGINT starts a drain: the instance reports that it is not ready, and continues to answer for
`[http] drain_seconds` so that the load balancer notices. Meanwhile every response has `Connection: close`. Then the
instance accepts no further connections, finishes the requests that have arrived, and stops. A second signal stops the
instance at once.

With TLS, an instance that receives SIGHUP reads the certificate and its key again. A supervisor that receives SIGHUP
writes RELOAD to the pipe of each worker (when this pipe is closed, the worker drains). The supervisor does not send
SIGHUP to a worker, because the signal would end a new worker that has no handler for it yet.
"""

import asyncio
import errno
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import uvicorn

from tenure.app import Instance
from tenure.config import Config
from tenure.errors import ConfigurationError
from tenure.server.connections import Connections
from tenure.server.http1 import protocol_for
from tenure.server.tls import Certificate, with_tls
from tenure.server.websocket import websocket_protocol_for
from tenure.telemetry.events import (
    InstanceDraining,
    InstanceStopped,
    Listening,
    Telemetry,
    TlsReloaded,
    TlsReloadFailed,
)
from tenure.telemetry.service_manager import has_service_manager
from tenure.telemetry.siblings import Siblings

DRAIN_SECONDS = 10.0
"""How long the requests in progress may take once the instance accepts no further connections."""
DRAIN_LINGER_SECONDS = 0.5
"""The minimum time for which a draining instance accepts connections, even if `[http] drain_seconds` is shorter."""
BACKLOG = 2048
FILES_WANTED = 65_536
RELOAD = b"reload"
"""The message of a supervisor to a worker that makes the worker read its certificate again."""
FILES_RESERVED = 128
"""Open files that are not for connections of clients: the database, the log, gateways and the listener."""


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without IPPROTO_TCP, asyncio (but not uvloop) leaves Nagle's algorithm on, which costs 40 ms per answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        taken = "; choose another port with --port" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"host, port: cannot listen on {host}:{port}: {error.strerror}{taken}") from error
    return listener


def run_instance(
    config: Config,
    listener: socket.socket,
    telemetry: Telemetry,
    supervisor: Connection | None = None,
    siblings: Siblings | None = None,
    certificate: Certificate | None = None,
) -> None:
    # Create the instance first, so that a wrong setting is reported before any connection is accepted.
    instance = Instance(config, telemetry, siblings)
    allow_many_connections()
    server = _Server(instance, config, telemetry, certificate)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(server.run(listener, supervisor))


def allow_many_connections() -> None:
    """Raises the limit on open files: the usual default of 1024 is too low for a thousand streams."""
    try:
        import resource  # noqa: PLC0415 - not available on every platform
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_possible(wanted: int) -> int:
    """Returns how many connections the limit on open files allows, at most `wanted` and at least 1.

    If an instance runs out of files, it can neither accept a connection nor refuse one.
    """
    try:
        import resource  # noqa: PLC0415 - not available on every platform
    except ImportError:
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files - FILES_RESERVED))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not available on every platform
    except ImportError:
        return None
    return uvloop.Loop


class _Server(uvicorn.Server):
    def __init__(
        self,
        instance: Instance,
        config: Config,
        telemetry: Telemetry,
        certificate: Certificate | None = None,
    ) -> None:
        edge = instance.pipeline.edge
        self._connections = connections = Connections(edge, connections_possible(edge.limits.max_connections))
        http: type[asyncio.Protocol] = protocol_for(instance.pipeline, connections)
        if certificate is not None:
            http = with_tls(protocol_for(instance.pipeline, connections), certificate, connections)
        super().__init__(
            uvicorn.Config(
                instance.pipeline,
                http=http,
                ws=websocket_protocol_for(instance.pipeline, telemetry, config.streams.max_message_bytes),
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                backlog=BACKLOG,
                proxy_headers=False,
                timeout_graceful_shutdown=int(DRAIN_SECONDS),
            )
        )
        self._instance = instance
        self._telemetry = telemetry
        self._certificate = certificate
        self._linger_seconds = max(DRAIN_LINGER_SECONDS, config.http.drain_seconds)
        self._draining: asyncio.Task[None] | None = None

    async def run(self, listener: socket.socket, supervisor: Connection | None) -> None:  # type: ignore[override]
        self._loop = asyncio.get_running_loop()
        if supervisor is not None:
            self._loop.add_reader(supervisor.fileno(), self._on_supervisor, supervisor)
        # A service manager sends SIGHUP to reload. Handle it even without TLS: by default, SIGHUP ends the process.
        if self._certificate is not None or has_service_manager():
            self._loop.add_signal_handler(signal.SIGHUP, self.reload_certificate)
        starting = self._instance.start()
        starting.add_done_callback(self._check_start)
        try:
            await self.serve(sockets=[listener])
        finally:
            await self._instance.stop()
            self._telemetry.report(InstanceStopped())
        if not starting.cancelled():
            starting.result()

    def _check_start(self, starting: asyncio.Task[None]) -> None:
        if not starting.cancelled() and starting.exception() is not None:
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        self._loop.call_soon_threadsafe(self._begin_to_drain, signal.Signals(sig).name)

    def reload_certificate(self) -> None:
        """Reads the certificate again, for new connections. If the files are not valid, keeps the old certificate."""
        if self._certificate is None:
            return
        try:
            self._certificate.reload()
        except ConfigurationError as error:
            self._telemetry.report(TlsReloadFailed(str(error)))
        else:
            self._telemetry.report(TlsReloaded(self._certificate.path, self._certificate.sha256))

    def _on_supervisor(self, supervisor: Connection) -> None:
        try:
            supervisor.recv_bytes()
        except EOFError:
            self._on_supervisor_gone(supervisor)
        else:
            self.reload_certificate()

    def _on_supervisor_gone(self, supervisor: Connection) -> None:
        """Starts a drain when the supervisor has closed its end of the pipe: it is stopping or has died."""
        self._loop.remove_reader(supervisor.fileno())
        if self._draining is None:
            self._begin_to_drain("supervisor")

    def _begin_to_drain(self, reason: str) -> None:
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        self._telemetry.report(InstanceDraining(reason))
        self._instance.readiness.draining = self._instance.pipeline.is_draining = True
        self._connections.begin_to_drain()
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        # Give the load balancer time to notice. Then uvicorn accepts no more connections and finishes requests.
        stopping = (self._instance.stop_leading(), self._instance.streams.stop(), self._instance.feed.stop())
        await asyncio.gather(asyncio.sleep(self._linger_seconds), *stopping)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts the connections that wait in the queue of the listener, before uvicorn closes the listener.

        Closing a listener resets the connections in its queue, and their clients may have sent a request already.
        """
        arrived = list[socket.socket]()
        for listener in sockets or ():
            listener.setblocking(False)
            with suppress(OSError):  # no further connection waits
                while len(arrived) < BACKLOG:
                    arrived.append(listener.accept()[0])
            with suppress(OSError):
                # Stop listening now. The listener is closed only in a later iteration of the event loop, and until then
                # further connections could arrive.
                listener.shutdown(socket.SHUT_RDWR)
        for server in self.servers:
            server.close()
        for connection in arrived:
            with suppress(OSError):
                await self._loop.connect_accepted_socket(self._new_protocol, connection)
        await super().shutdown(sockets)

    def _new_protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


def announce(listener: socket.socket, telemetry: Telemetry, config: Config) -> None:
    scheme = "http" if config.tls_certificate is None else "https"
    host, port = listener.getsockname()[:2]
    address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    telemetry.report(Listening(address, config.profile))
    sys.stderr.flush()
