"""Running instances: real processes, started as a user starts them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

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
        self.address = self._wait_for_address()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def log(self) -> str:
        return self._log_path.read_text()

    def wait_until_ready(self) -> "RunningInstance":
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.address}/readyz").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"not ready after {START_SECONDS} s:\n{self.log()}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._log.close()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self._log.close()
        return int(self.process.returncode)

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"http://[^\s\"]+", self.log())
            if found:
                return found.group()
            time.sleep(0.02)
        raise AssertionError(f"did not start:\n{self.log()}")
