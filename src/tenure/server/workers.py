"""The worker processes, and the supervisor that starts, replaces and stops them."""

import asyncio
import multiprocessing
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tenure.config import Config, is_loopback
from tenure.domain.submissions import USAGES
from tenure.errors import ConfigurationError, DatabaseMissing, DatabaseUnavailable
from tenure.server.process import BACKLOG, RELOAD, announce, bind, run_instance
from tenure.server.tls import Certificate
from tenure.store.engines import open_store
from tenure.telemetry.events import SchemaWaiting, Telemetry, TlsReloadFailed, UsageHasNoGateway, WorkerDied
from tenure.telemetry.logs import configure_logs, log_events
from tenure.telemetry.service_manager import has_service_manager, notify_service_manager
from tenure.telemetry.siblings import Siblings, create_folder, delete_folder

RESTART_PAUSE_SECONDS = 0.5
TICK_SECONDS = 0.1
WAIT_SECONDS = 1.0


def serve(config: Config) -> None:
    """Runs one instance in this process, or a supervisor with one process per worker."""
    telemetry = _logged(config)
    certificate = certificate_of(config)
    if not config.insecure and not is_loopback(config.host) and config.oidc is None:
        asyncio.run(_require_keys(config, telemetry))
    if USAGES not in config.gateways:
        telemetry.report(UsageHasNoGateway())
    if config.workers == 1:
        listener = bind(config.host, config.port)
        listener.listen(BACKLOG)
        announce(listener, telemetry, config)
        run_instance(config, listener, telemetry, certificate=certificate)
    else:
        Supervisor(config, telemetry).run()


def certificate_of(config: Config) -> Certificate | None:
    """Reads the certificate; None without TLS. Raises `ConfigurationError` if it cannot be used."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    return Certificate(config.tls_certificate, config.tls_key)


def _logged(config: Config) -> Telemetry:
    logs = config.logs
    telemetry = log_events(Telemetry(), logs.level, logs.sessions, access=logs.access)
    notify_service_manager(telemetry)
    return telemetry


async def _require_keys(config: Config, telemetry: Telemetry) -> None:
    """Raises `ConfigurationError` if no API key was ever created, because then every client that reaches the address
    would have full access. Waits until the database can be read. The service does not listen before this check.
    """
    version = await _keys_version(config, telemetry)
    if version == 0:
        raise ConfigurationError(
            f"host: {config.host} is not a loopback address, and there is no API key, so every client would have full "
            "access; first run `tenure keys create --name admin --role operator --expires 90d`, with the same "
            "--database, or set insecure (--insecure)"
        )


async def _keys_version(config: Config, telemetry: Telemetry) -> int:
    """Returns the version of the API keys: 0 if no key was ever created, or if the SQLite file or the tables do not
    exist yet. Waits until the database can be read.
    """
    try:
        store = open_store(config.database, config.pool_size, must_exist=True)
    except DatabaseMissing:
        return 0
    try:
        while True:
            try:
                if await store.schema_revision() is None:
                    return 0
                return (await store.read_keys_version()).version
            except DatabaseUnavailable as error:
                telemetry.report(SchemaWaiting(error.detail))
                await asyncio.sleep(WAIT_SECONDS)
    finally:
        await store.close()


class Worker(NamedTuple):
    slot: int
    pipe: Connection
    """The supervisor's end of the pipe that keeps the worker running."""


class Supervisor:
    """Starts one process per worker and replaces workers that die. Stops all workers when it is stopped, or when a
    worker ends because of a wrong setting.

    Each worker holds one end of a pipe and stops when the other end is closed. The supervisor closes that end to stop
    the worker; the operating system closes it if the supervisor dies. A worker that replaces another one takes over the
    slot, so that the other workers find the new worker (`telemetry/siblings.py`).
    """

    def __init__(self, config: Config, telemetry: Telemetry) -> None:
        self._config = config
        self._telemetry = telemetry
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[BaseProcess, Worker] = {}
        self._listening = self._context.Event()
        self._signals = 0
        self._reload_requested = False
        self._misconfigured = False
        bind(config.host, config.port).close()
        # This socket is bound but never listens. It keeps the port reserved while workers are replaced.
        self._reserved = bind(config.host, config.port, shared=True)
        self._folder = create_folder()

    def run(self) -> None:
        try:
            self._supervise()
        finally:
            delete_folder(self._folder)
        if self._misconfigured:
            sys.exit(ConfigurationError.exit_code)

    def _supervise(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        # A service manager sends SIGHUP to reload. Handle it even without TLS: by default, SIGHUP ends the process.
        if self._config.tls_certificate is not None or has_service_manager():
            signal.signal(signal.SIGHUP, self._request_reload)
        for slot in range(self._config.workers):
            self._spawn(slot)
        announced = False
        while not self._stopping:
            wait([process.sentinel for process in self._workers], timeout=TICK_SECONDS)
            self._replace_dead()
            self._pass_on_reload()
            if not announced and self._listening.is_set():
                announce(self._reserved, self._telemetry, self._config)
                announced = True
        self._stop_workers()

    @property
    def _stopping(self) -> bool:
        return self._signals > 0 or self._misconfigured

    def _spawn(self, slot: int) -> None:
        theirs, ours = self._context.Pipe(duplex=False)
        port = self._reserved.getsockname()[1]
        arguments = (self._config, port, theirs, self._listening, self._folder, slot)
        process = self._context.Process(target=_run_worker, args=arguments)
        process.start()
        theirs.close()
        self._workers[process] = Worker(slot, ours)

    def _replace_dead(self) -> None:
        dead = [process for process in self._workers if not process.is_alive()]
        self._misconfigured = any(process.exitcode == ConfigurationError.exit_code for process in dead)
        if not dead or self._stopping:
            return
        self._telemetry.report(WorkerDied([process.exitcode for process in dead]))
        # Pause first: otherwise a worker that dies during its start would be restarted many times a second.
        signal.sigtimedwait([], RESTART_PAUSE_SECONDS)
        for process in dead:
            worker = self._workers.pop(process)
            worker.pipe.close()
            self._spawn(worker.slot)

    def _pass_on_reload(self) -> None:
        if self._reload_requested:
            self._reload_requested = False
            for worker in self._workers.values():
                with suppress(OSError):  # the worker has died; `_replace_dead` will replace it
                    worker.pipe.send_bytes(RELOAD)

    def _stop_workers(self) -> None:
        for worker in self._workers.values():
            worker.pipe.close()
        while alive := [process for process in self._workers if process.is_alive()]:
            wait([process.sentinel for process in alive], timeout=TICK_SECONDS)
            if self._signals > 1:
                for process in alive:
                    process.kill()

    def _stop(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self._signals += 1

    def _request_reload(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self._reload_requested = True


def _run_worker(config: Config, port: int, supervisor: Connection, listening: Event, folder: Path, slot: int) -> None:
    configure_logs(config.logs.level)
    telemetry = _logged(config)
    try:
        certificate = _wait_for_certificate(config, telemetry, supervisor)
        # Each worker has its own listener on the port. With a shared listener, the worker that wakes first would accept
        # all connections.
        listener = bind(config.host, port, shared=True)
        listener.listen(BACKLOG)
        listening.set()
        siblings = Siblings(folder, slot, config.workers)
        run_instance(config, listener, telemetry, supervisor, siblings, certificate)
    except ConfigurationError as error:
        sys.stderr.write(f"tenure: {error}\n")
        sys.exit(error.exit_code)
    finally:
        # The pipe is readable if its other end is closed: the supervisor is stopping or has died. If it has died, the
        # last worker must delete the folder. While other workers have their sockets in the folder, `rmdir` fails.
        if supervisor.poll():
            with suppress(OSError):
                folder.rmdir()


def _wait_for_certificate(config: Config, telemetry: Telemetry, supervisor: Connection) -> Certificate | None:
    """Reads the certificate, and waits while it is not valid. Raises `ConfigurationError` only if the supervisor stops
    or dies in the meantime.

    The supervisor has checked the certificate at the start. If it is not valid now, this worker replaces another one
    while the files are being changed, and the other workers still use the old certificate.
    """
    while True:
        try:
            return certificate_of(config)
        except ConfigurationError as error:
            telemetry.report(TlsReloadFailed(str(error)))
            supervisor.poll(WAIT_SECONDS)
            if _has_gone(supervisor):
                raise


def _has_gone(supervisor: Connection) -> bool:
    try:
        while supervisor.poll():
            supervisor.recv_bytes()
    except EOFError:
        return True
    return False
