"""A service and a receiver in a temporary folder. After `Installation.stop`, no process, file or port is left.

The service is a process of its own, as in a real installation. It stops when this process closes its end of a pipe, so
it also stops if this process is killed (but then the folder is left). The receiver runs in this process.
"""

import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from secrets import token_bytes
from typing import Self

from tenure.config import Config, load
from tenure.receiver.faults import read_faults
from tenure.receiver.server import ReceiverSettings, Server
from tenure.server.process import BACKLOG, bind, run_instance
from tenure.telemetry.events import Telemetry
from tenure.telemetry.logs import configure_logs, log_events

HOST = "127.0.0.1"
STOP_SECONDS = 8.0
SIGNALS = {signal.SIGINT, signal.SIGTERM}

SETTINGS = """\
# The settings of the demonstration. A usage window is three seconds long, so that usage is soon billed.
host = "{host}"
port = {port}
database = "sqlite:///{folder}/tenure.db"

# For sessions that request no lease.
[sessions]
lease_seconds = 3
heartbeat_seconds = 1

[jobs.expire-sessions]
interval_seconds = 1

[jobs.emit-usage]
interval_seconds = 3

# A session of kind 1 uses one unit a minute, kind 2 two, and kind 3 three.
[usage]
factors = {{ 1 = 43200, 2 = 86400, 3 = 129600 }}

[gateways.usages]
url = "{receiver}/usages"
secret = "{secret}"
"""


class Installation:
    """The service and the receiver of the demonstration. `stop` can be called at any time, and more than once."""

    url: str
    receiver_url: str

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
        self._receiver: Server | None = None
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def log(self) -> str:
        """The log of the service."""
        path = self.folder / "service.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    async def start(self) -> Self:
        secret = f"whsec_{b64encode(token_bytes(24)).decode()}"
        receiver = Server(
            ReceiverSettings(host=HOST, port=0, ledger=self.ledger, secrets=[secret], faults=read_faults("0"))
        )
        self.receiver_url = await receiver.start()
        self._receiver = receiver
        with bind(HOST, 0) as listener:
            listener.listen(BACKLOG)
            port = listener.getsockname()[1]
            self.url = f"http://{HOST}:{port}"
            settings = self._configure(port, secret)
            self._start_service(settings, listener)
        return self

    async def stop(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.join(STOP_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
            self._process = None
        if self._receiver is not None:
            await self._receiver.stop()
            self._receiver = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _configure(self, port: int, secret: str) -> Config:
        """Write the settings to a file, where the user can read them, and load only this file: environment variables
        have no effect.
        """
        file = self.folder / "tenure.toml"
        text = SETTINGS.format(host=HOST, port=port, folder=self.folder, receiver=self.receiver_url, secret=secret)
        file.write_text(text, encoding="utf-8")
        return load({}, {}, file)

    def _start_service(self, settings: Config, listener: socket.socket) -> None:
        context = multiprocessing.get_context("spawn")
        theirs, self._pipe = context.Pipe(duplex=False)
        arguments = (settings, listener, theirs, str(self.folder / "service.log"))
        self._process = context.Process(target=_serve, args=arguments, name="tenure-demo-service")
        with _signals_blocked(), theirs:
            self._process.start()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGNALS in this process, and in processes that it starts meanwhile. Otherwise ctrl-C, which reaches all
    processes of a terminal, could end a process that is still starting.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(settings: Config, listener: socket.socket, pipe: Connection, log: str) -> None:
    """The process of the service. It leaves the session of the terminal, so ctrl-C reaches only its parent process."""
    os.setsid()
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    configure_logs(settings.logs.level)
    run_instance(settings, listener, log_events(Telemetry(), settings.logs.level), pipe)
