"""Runs instances: the listening socket, the HTTP server, signals, and one process per worker.

SIGTERM and SIGINT drain: the instance says that it is not ready, finishes what it has begun, goes on answering for a
moment so that a load balancer can see it, and ends. A second signal ends it at once.
"""

import asyncio
import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import sys
from collections.abc import Sequence
from multiprocessing.connection import wait
from types import FrameType

import structlog
import uvicorn

from tenure.app import Instance
from tenure.clock import monotonic
from tenure.config import Config
from tenure.errors import ConfigurationError
from tenure.http.protocol import protocol_for
from tenure.logs import configure_logs

log = structlog.get_logger()

DRAIN_SECONDS = 10.0
DRAIN_LINGER_SECONDS = 0.5
KEEP_ALIVE_SECONDS = 75
BACKLOG = 2048
RESTART_PAUSE_SECONDS = 1.0


def serve(config: Config) -> None:
    if config.workers == 1:
        listener = listen(config.host, config.port)
        _announce(listener)
        run_instance(config, listener)
    else:
        Supervisor(config).run()


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
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


def run_instance(config: Config, listener: socket.socket) -> None:
    # A broken setting must be told before anything listens.
    instance = Instance(config)
    server = _Server(instance)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(server.run(listener))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - there is none for every platform
    except ImportError:
        return None
    return uvloop.Loop


class _Server(uvicorn.Server):
    def __init__(self, instance: Instance) -> None:
        super().__init__(
            uvicorn.Config(
                instance,
                http=protocol_for(instance.router),
                ws="none",
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

    async def run(self, listener: socket.socket) -> None:  # type: ignore[override]
        self._loop = asyncio.get_running_loop()
        _follow_parent(self._loop)
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

    def _begin_to_drain(self, reason: str) -> None:
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        log.info("instance.draining", reason=reason)
        self._instance.readiness.draining = True
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        ends_at = monotonic() + DRAIN_SECONDS
        await asyncio.sleep(DRAIN_LINGER_SECONDS)
        # The hot lane only counts: an event for the last one would be paid for by all.
        while self._instance.router.in_flight and monotonic() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.should_exit = True


def _follow_parent(loop: asyncio.AbstractEventLoop) -> None:
    """A worker whose supervisor was killed must not live on unseen."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def stop() -> None:
        loop.remove_reader(parent.sentinel)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(parent.sentinel, stop)


class Supervisor:
    """One process per worker. A worker that dies is replaced; a stop is passed on and waited for."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._context = multiprocessing.get_context("spawn")
        self._stopping = False
        self._misconfigured = False
        # Held but never listened on: it keeps the port ours while workers come and go.
        listen(config.host, config.port).close()
        self._reserved = listen(config.host, config.port, shared=True)
        self._port: int = self._reserved.getsockname()[1]

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        workers = [self._spawn() for _ in range(self._config.workers)]
        _announce(self._reserved)
        while not self._stopping:
            workers = self._replace_dead(workers)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        if self._misconfigured:
            sys.exit(ConfigurationError.exit_code)

    def _spawn(self) -> multiprocessing.process.BaseProcess:
        worker = self._context.Process(target=_run_worker, args=(self._config, self._port))
        worker.start()
        return worker

    def _replace_dead(
        self, workers: Sequence[multiprocessing.process.BaseProcess]
    ) -> list[multiprocessing.process.BaseProcess]:
        wait([worker.sentinel for worker in workers], timeout=RESTART_PAUSE_SECONDS)
        alive = [worker for worker in workers if worker.is_alive()]
        self._misconfigured = any(worker.exitcode == ConfigurationError.exit_code for worker in workers)
        self._stopping = self._stopping or self._misconfigured
        if self._stopping or len(alive) == len(workers):
            return alive
        log.warning("supervisor.worker_died", count=len(workers) - len(alive))
        signal.sigtimedwait([], RESTART_PAUSE_SECONDS)
        return alive + [self._spawn() for _ in range(len(workers) - len(alive))]

    def _stop(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self._stopping = True


def _run_worker(config: Config, port: int) -> None:
    configure_logs()
    # A listener of its own on the same port: of a shared one, the first worker awake takes all waiting connections.
    try:
        run_instance(config, listen(config.host, port, shared=True))
    except ConfigurationError as error:
        sys.stderr.write(f"tenure: {error}\n")
        sys.exit(ConfigurationError.exit_code)


def _announce(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    log.info("listening", address=address)
    sys.stderr.flush()
