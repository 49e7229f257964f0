"""Running receivers: real processes, started as a user starts them."""

import subprocess
import sys
import time
from pathlib import Path

from tests.support.instances import RunningInstance


class RunningReceiver(RunningInstance):
    """`tenure receiver` in a process of its own, on a free port unless told another."""

    def __init__(self, folder: Path, *flags: str, port: int = 0) -> None:
        self.ledger = folder / "ledger.db"
        self._log_path = folder / f"receiver-{time.monotonic_ns()}.log"
        self._log = self._log_path.open("w")
        self._told_path = self._log_path.with_suffix(".out")
        with self._told_path.open("w") as told:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tenure", "receiver", "--port", str(port), *flags],
                stdout=told,
                stderr=self._log,
                cwd=folder,
            )

    def told(self) -> str:
        """What it has printed: its totals, once it has stopped."""
        return self._told_path.read_text()
