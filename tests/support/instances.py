"""Running instances: real processes, started as a user starts them."""

import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.support.processes import family

START_SECONDS = 20


class RunningInstance:
    """`tenure serve` in a process of its own."""

    def __init__(self, database: str, folder: Path, *flags: str, port: int = 0, **environment: str) -> None:
        self._log_path = folder / f"instance-{time.monotonic_ns()}.log"
        self._log = self._log_path.open("w")
        self._folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenure", "serve", "--database", database, "--port", str(port), *flags],
            stderr=self._log,
            cwd=folder,
            env={**os.environ, **environment},
        )

    @cached_property
    def address(self) -> str:
        """The address from the log. The first access waits for it, so several instances can start at the same time."""
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
        """Sends SIGTERM and returns the exit code."""
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


def kill_all(instances: Iterable[RunningInstance]) -> None:
    """Kills the instances and their workers. This is faster than a clean stop, which other tests check."""
    for instance in instances:
        for process in family(instance.process.pid) if instance.process.poll() is None else []:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        instance.kill()


def stop_all(instances: Iterable[RunningInstance]) -> None:
    """Stops the instances at the same time: each continues to serve for a moment after SIGTERM."""
    every = list(instances)
    for instance in every:
        instance.terminate()
    for instance in every:
        instance.wait_for_exit()
