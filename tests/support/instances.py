"""Running instances: real processes that run the command `tenure serve`."""

import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import psutil

from tests.support import nursery
from tests.support.processes import family

Process = subprocess.Popen[bytes] | nursery.Forked
START_SECONDS = 60
"""Long enough for a busy machine."""


class RunningInstance:
    """`tenure serve` in its own process. By default, `nursery.py` forks it from a prepared process, if possible."""

    def __init__(
        self, database: str, folder: Path, *flags: str, port: int = 0, forked: bool = True, **environment: str
    ) -> None:
        self._log_path = folder / f"instance-{time.monotonic_ns()}.log"
        self._log = self._log_path.open("w")
        self._folder = folder
        arguments = ["serve", "--database", database, "--port", str(port), *flags]
        self.process = start_tenure(arguments, folder, self._log, environment=environment, forked=forked)

    @cached_property
    def address(self) -> str:
        """The address from the log. The first access waits for the log line.

        The constructor does not wait, so instances can start concurrently.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"https?://[^\s\"]+", self.log())
            if found:
                return found.group()
            time.sleep(0.02)
        raise AssertionError(f"did not start:\n{self.log()}")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def log(self) -> str:
        return self._log_path.read_text()

    def wait_until_ready(self) -> "RunningInstance":
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._is_ready():
                return self
            time.sleep(0.02)
        raise AssertionError(f"not ready after {START_SECONDS} s:\n{self.log()}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._log.close()

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit code. Kills the process if it has not exited after 20 s."""
        self.terminate()
        return self.wait_for_exit()

    def terminate(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()

    def wait_for_exit(self) -> int:
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._log.close()
        return int(self.process.returncode)

    def _is_ready(self) -> bool:
        """Does not use httpx, because each new client spends 40 ms on reading certificates."""
        address = urlsplit(self.address)
        connection = HTTPConnection(str(address.hostname), address.port, timeout=START_SECONDS)
        if address.scheme == "https":
            unverified = ssl._create_unverified_context()
            connection = HTTPSConnection(str(address.hostname), address.port, timeout=START_SECONDS, context=unverified)
        with closing(connection), suppress(OSError, HTTPException):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        return False


def start_tenure(
    arguments: Sequence[str],
    folder: Path,
    log: IO[str],
    output: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    forked: bool = True,
) -> Process:
    """Starts `tenure` in `folder`, with the environment variables of the test process and those in `environment`."""
    added = environment or {}
    every = {**os.environ, **added}
    if forked and sys.platform == "linux" and not _needs_interpreter(arguments, added):
        return nursery.fork(arguments, folder, every, log.fileno(), 1 if output is None else output.fileno())
    command = [sys.executable, "-m", "tenure", *arguments]
    return subprocess.Popen(command, stdout=output, stderr=log, cwd=folder, env=every)


def _needs_interpreter(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Returns whether a forked process would behave differently from a new interpreter.

    A supervisor starts its workers with its own command line, which a forked process does not have. A variable without
    the prefix `TENURE_` may be meant for the interpreter, which reads its variables only when it starts.
    """
    is_supervisor = "--workers" in arguments or "TENURE_WORKERS" in environment
    return is_supervisor or any(not name.startswith("TENURE_") for name in environment)


def kill_all(instances: Iterable[RunningInstance]) -> None:
    """Kills the instances and their workers. This is faster than a clean stop, which other tests check."""
    for instance in instances:
        if instance.process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                for process in family(instance.process.pid):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
        instance.kill()


def stop_all(instances: Iterable[RunningInstance]) -> None:
    """Stops the instances at the same time, because each continues to serve for a moment after SIGTERM."""
    every = list(instances)
    for instance in every:
        instance.terminate()
    for instance in every:
        instance.wait_for_exit()
