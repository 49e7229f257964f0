"""Measures how crowded the machine is: the number of runnable tasks per core.

The ensemble shares its machine with the process of the proof, and often with other tests. A time limit means little
while other processes use all cores.
"""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from proof.history import SAMPLE, Crowding, History, now

STAT = Path("/proc/stat")
RUNNING = "procs_running "


class CrowdingWatch:
    """A context manager whose thread adds samples to a history. Without `/proc/stat`, the thread does not start."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if STAT.exists():
            self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        cores = os.cpu_count() or 1
        while not self._ended.wait(SAMPLE / 1e6):
            self._history.crowding.append(Crowding(at=now(), tasks_per_core=_running() / cores))


def _running() -> int:
    lines = STAT.read_text(encoding="ascii").splitlines()
    return next((int(line.removeprefix(RUNNING)) for line in lines if line.startswith(RUNNING)), 0)
