"""The worker processes, and the supervisor that starts, replaces and stops them."""

import multiprocessing
import signal
import sys
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from types import FrameType

from tenure.config import Config
from tenure.errors import ConfigurationError
from tenure.server.process import BACKLOG, announce, bind, run_instance
from tenure.telemetry.events import Telemetry, WorkerDied
from tenure.telemetry.logs import configure_logs, log_events

RESTART_PAUSE_SECONDS = 0.5
TICK_SECONDS = 0.1


def serve(config: Config) -> None:
    """Runs one instance in this process, or a supervisor with one process per worker."""
    telemetry = log_events(Telemetry())
    if config.workers == 1:
        listener = bind(config.host, config.port)
        listener.listen(BACKLOG)
        announce(listener, telemetry)
        run_instance(config, listener, telemetry)
    else:
        Supervisor(config, telemetry).run()


class Supervisor:
    """Starts one process per worker, replaces workers that die, and stops all workers when it is stopped.

    Each worker holds one end of a pipe and stops when the other end is closed. The supervisor closes that end to stop
    the worker; the operating system closes it if the supervisor dies.
    """

    def __init__(self, config: Config, telemetry: Telemetry) -> None:
        self._config = config
        self._telemetry = telemetry
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[BaseProcess, Connection] = {}
        self._listening = self._context.Event()
        self._signals = 0
        self._misconfigured = False
        bind(config.host, config.port).close()
        # This socket is bound but never listens. It keeps the port reserved while workers are replaced.
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
                announce(self._reserved, self._telemetry)
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
        self._telemetry.report(WorkerDied([worker.exitcode for worker in dead]))
        # Without a pause, a worker that dies at its start would be restarted a hundred times a second.
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
        # Each worker has its own listener on the port. With a shared listener, the worker that wakes first would accept
        # all connections.
        listener = bind(config.host, port, shared=True)
        listener.listen(BACKLOG)
        listening.set()
        run_instance(config, listener, log_events(Telemetry()), supervisor)
    except ConfigurationError as error:
        sys.stderr.write(f"tenure: {error}\n")
        sys.exit(error.exit_code)
