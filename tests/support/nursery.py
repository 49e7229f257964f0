"""Starts instances faster: the nursery, a process that has imported all modules, forks a process for each instance.

Three quarters of the time that `tenure serve` takes to start are imports, and the tests start it hundreds of times. A
forked process runs the command `tenure` with the arguments, environment, folder and log of its instance.
"""

import asyncio
import atexit
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

MODULES = [
    "tenure.cli.main",
    "tenure.cli.serve",
    "tenure.server.workers",
    "tenure.app",
    "tenure.store.engines.postgres.store",
    "tenure.store.engines.sqlite.store",
    "tenure.store.migrations.functions",
    "tenure.transcription.handler",
    "tenure.cli.receiver",
    "tenure.receiver.server",
    "alembic.migration",
    "typer._adapters",
    "uvloop",
]
"""The modules that `tenure serve` and `tenure receiver` import. The nursery skips a module that does not exist: some of
them exist only on some platforms, or in some versions of a package."""
ROOT = Path(__file__).parents[2]
STARTED_WITHIN_SECONDS = 60
REQUEST_MAX_BYTES = 1024 * 1024
POLL_SECONDS = 0.01
_one_at_a_time = threading.Lock()


class Forked:
    """A process that the nursery forked, with those methods of `Popen` that tests use."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Reads the exit code from a pipe: only the nursery, as the parent, can wait for the process."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            code = os.read(self._ended, 16)
            self.returncode = int(code) if code else -signal.SIGKILL
            os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("tenure", timeout or 0)
            time.sleep(POLL_SECONDS)
        return int(self.returncode or 0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], log: int, output: int) -> Forked:
    """Runs `tenure` with these arguments. The process writes its log and its output to the file descriptors `log` and
    `output`.
    """
    request = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
    reader, writer = os.pipe()
    try:
        with _one_at_a_time:
            nursery = _nursery()
            socket.send_fds(nursery, [json.dumps(request).encode()], [log, output, writer])
            pid = int(nursery.recv(16))
    finally:
        os.close(writer)
    return Forked(pid, reader)


@cache
def _nursery() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        cwd=ROOT,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    ours.settimeout(STARTED_WITHIN_SECONDS)
    return ours


# In the nursery.


async def _create_instance() -> None:
    """Creates an instance in order to fill caches, such as the schemas of all routes. The instance is not started, and
    connects to no database.
    """
    from tenure.app import Instance  # noqa: PLC0415 - the test process does not need these modules
    from tenure.config import Config  # noqa: PLC0415
    from tenure.telemetry.events import Telemetry  # noqa: PLC0415

    Instance(Config(database="sqlite:///never-created.db"), Telemetry())


def _serve_forks(requests: socket.socket) -> list[str] | None:
    """In each forked process, returns the arguments of `tenure`. In the nursery, returns None when the tests end."""
    ended: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(ended)
        if requests in ready:
            data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_MAX_BYTES, 3)
            if not data:
                return None
            *files, status = descriptors
            pid = os.fork()
            if pid == 0:
                return _become_instance(json.loads(data), *files)
            ended[pid] = status
            for descriptor in files:
                os.close(descriptor)
            requests.send(str(pid).encode())


def _report_ended(ended: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while ended:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            descriptor = ended.pop(pid)
            with suppress(BrokenPipeError):
                os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _become_instance(request: dict[str, object], log: int, output: int) -> list[str]:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.closerange(sys.stderr.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    os.chdir(str(request["folder"]))
    sys.path[0] = str(request["folder"])
    # `multiprocessing` passes the `__spec__` of `__main__` to the processes that it spawns. Set the same `__spec__` as
    # `python -m tenure` does.
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("tenure.__main__")
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    return list(request["arguments"])  # type: ignore[call-overload]


if __name__ == "__main__":
    _requests = socket.socket(fileno=int(sys.argv[1]))
    for _module in MODULES:
        with suppress(ImportError):
            importlib.import_module(_module)
    asyncio.run(_create_instance())
    gc.collect()
    gc.freeze()
    _arguments = _serve_forks(_requests)
    if _arguments is not None:
        gc.unfreeze()
        sys.argv = ["tenure", *_arguments]
        _requests.detach()
        importlib.import_module("tenure.cli.main").main()
