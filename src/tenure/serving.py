"""Runs instances: the listening socket, the HTTP server, signals, and one process per worker.

SIGTERM and SIGINT drain: the instance says that it is not ready, finishes what it has begun, goes on answering for a
moment so that a load balancer can see it, and ends. A second signal ends it at once.
"""

import asyncio
import multiprocessing
import signal
import socket
import sys
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from types import FrameType

import structlog
import uvicorn

from tenure.app import Instance
from tenure.config import Config
from tenure.errors import ConfigurationError
from tenure.http.protocol import protocol_for
from tenure.http.websockets import websocket_protocol_for
from tenure.logs import configure_logs

log = structlog.get_logger()

DRAIN_SECONDS = 10.0
DRAIN_LINGER_SECONDS = 0.5
KEEP_ALIVE_SECONDS = 75
BACKLOG = 2048
FILES_WANTED = 65_536
RESTART_PAUSE_SECONDS = 0.5
TICK_SECONDS = 0.1


def serve(config: Config) -> None:
    if config.workers == 1:
        listener = bind(config.host, config.port)
        listener.listen(BACKLOG)
        _announce(listener)
        run_instance(config, listener)
    else:
        Supervisor(config).run()


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio turns Nagle off only where it knows the protocol: 40 ms an answer without uvloop.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise ConfigurationError(f"host, port: cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def run_instance(config: Config, listener: socket.socket, supervisor: Connection | None = None) -> None:
    # A broken setting must be told before anything listens.
    instance = Instance(config)
    allow_many_connections()
    server = _Server(instance, config.streams.max_message_bytes)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(server.run(listener, supervisor))


def allow_many_connections() -> None:
    """Most systems give a process 1024 files, too few for a thousand streams, and let it have more if it asks."""
    try:
        import resource  # noqa: PLC0415 - there is none on every platform
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - there is none for every platform
    except ImportError:
        return None
    return uvloop.Loop


class _Server(uvicorn.Server):
    def __init__(self, instance: Instance, message_max_bytes: int) -> None:
        streams = instance.stream_routes
        super().__init__(
            uvicorn.Config(
                instance.router,
                http=protocol_for(instance.router),
                ws=websocket_protocol_for(streams.find, streams.serve, message_max_bytes),
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                backlog=BACKLOG,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(DRAIN_SECONDS),
            )
        )
        self._instance = instance
        self._draining: asyncio.Task[None] | None = None

    async def run(self, listener: socket.socket, supervisor: Connection | None) -> None:  # type: ignore[override]
        self._loop = asyncio.get_running_loop()
        if supervisor is not None:
            self._loop.add_reader(supervisor.fileno(), self._leave_with, supervisor)
        starting = self._instance.start()
        starting.add_done_callback(self._check_start)
        try:
            await self.serve(sockets=[listener])
        finally:
            await self._instance.stop()
            log.info("instance.stopped")
        if not starting.cancelled():
            starting.result()

    def _check_start(self, starting: asyncio.Task[None]) -> None:
        if not starting.cancelled() and starting.exception() is not None:
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        self._loop.call_soon_threadsafe(self._begin_to_drain, signal.Signals(sig).name)

    def _leave_with(self, supervisor: Connection) -> None:
        """The supervisor has closed its end of the pipe: it is stopping, or it is dead."""
        self._loop.remove_reader(supervisor.fileno())
        if self._draining is None:
            self._begin_to_drain("supervisor")

    def _begin_to_drain(self, reason: str) -> None:
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        log.info("instance.draining", reason=reason)
        self._instance.readiness.draining = True
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        # For a moment a load balancer can see it. Then uvicorn takes no more connections and lets requests finish.
        stopping = (self._instance.give_up(), self._instance.streams.stop())
        await asyncio.gather(asyncio.sleep(DRAIN_LINGER_SECONDS), *stopping)
        self.should_exit = True


class Supervisor:
    """One process per worker. A worker that dies is replaced; a stop is passed on and waited for.

    Each worker holds one end of a pipe, and stops when the other end is closed: on purpose, or by our own death.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[BaseProcess, Connection] = {}
        self._listening = self._context.Event()
        self._signals = 0
        self._misconfigured = False
        bind(config.host, config.port).close()
        # Held but never listened on: it keeps the port ours while workers come and go.
        self._reserved = bind(config.host, config.port, shared=True)

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for _ in range(self._config.workers):
            self._spawn()
        announced = False
        while not self._stopping:
            wait([worker.sentinel for worker in self._workers], timeout=TICK_SECONDS)
            self._replace_dead()
            if not announced and self._listening.is_set():
                _announce(self._reserved)
                announced = True
        self._stop_workers()
        if self._misconfigured:
            sys.exit(ConfigurationError.exit_code)

    @property
    def _stopping(self) -> bool:
        return self._signals > 0 or self._misconfigured

    def _spawn(self) -> None:
        theirs, ours = self._context.Pipe(duplex=False)
        port = self._reserved.getsockname()[1]
        worker = self._context.Process(target=_run_worker, args=(self._config, port, theirs, self._listening))
        worker.start()
        theirs.close()
        self._workers[worker] = ours

    def _replace_dead(self) -> None:
        dead = [worker for worker in self._workers if not worker.is_alive()]
        self._misconfigured = any(worker.exitcode == ConfigurationError.exit_code for worker in dead)
        if not dead or self._stopping:
            return
        log.warning("supervisor.worker_died", exit_codes=[worker.exitcode for worker in dead])
        # A worker that dies at once must not be started a hundred times a second.
        signal.sigtimedwait([], RESTART_PAUSE_SECONDS)
        for worker in dead:
            self._workers.pop(worker).close()
            self._spawn()

    def _stop_workers(self) -> None:
        for pipe in self._workers.values():
            pipe.close()
        while alive := [worker for worker in self._workers if worker.is_alive()]:
            wait([worker.sentinel for worker in alive], timeout=TICK_SECONDS)
            if self._signals > 1:
                for worker in alive:
                    worker.kill()

    def _stop(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self._signals += 1


def _run_worker(config: Config, port: int, supervisor: Connection, listening: Event) -> None:
    configure_logs()
    try:
        # A listener of its own on the same port: of a shared one, the first worker awake takes all waiting connections.
        listener = bind(config.host, port, shared=True)
        listener.listen(BACKLOG)
        listening.set()
        run_instance(config, listener, supervisor)
    except ConfigurationError as error:
        sys.stderr.write(f"tenure: {error}\n")
        sys.exit(error.exit_code)


def _announce(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    log.info("listening", address=address)
    sys.stderr.flush()
