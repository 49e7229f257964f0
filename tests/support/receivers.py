"""Running receivers: real processes that run the command `tenure receiver`."""

import time
from pathlib import Path

from tests.support.instances import RunningInstance, start_tenure


class RunningReceiver(RunningInstance):
    """`tenure receiver` in its own process, on a free port unless `port` is set."""

    def __init__(self, folder: Path, *flags: str, port: int = 0) -> None:
        self.ledger = folder / "ledger.db"
        self._log_path = folder / f"receiver-{time.monotonic_ns()}.log"
        self._log = self._log_path.open("w")
        self._output_path = self._log_path.with_suffix(".out")
        with self._output_path.open("w") as output:
            self.process = start_tenure(["receiver", "--port", str(port), *flags], folder, self._log, output)

    def output(self) -> str:
        """The standard output. It contains the totals once the receiver has stopped."""
        return self._output_path.read_text()
