"""Stops and continues processes with their descendants, measures scheduling delays, and waits for conditions."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

import psutil

POLL_SECONDS = 0.01


def family(pid: int) -> list[psutil.Process]:
    """The process and all its descendants, the process itself first."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Sends SIGSTOP to the process and its descendants, and SIGCONT on exit."""
    stopped = list[psutil.Process]()
    # Repeat until no new process is found: a child may fork before it is stopped.
    while new := [process for process in family(pid) if process not in stopped]:
        for process in new:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        stopped += new
    try:
        yield
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


class Lag:
    """Measures the longest scheduling delay of a thread in this process: a few milliseconds on a quiet machine.

    A response waits three times until a thread runs: the client's, the instance's, and the client's again. So a
    response may be late by three such delays.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    @property
    def of_answers(self) -> float:
        return 3 * self._seconds

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            time.sleep(POLL_SECONDS)
            self._seconds = max(self._seconds, time.monotonic() - began - POLL_SECONDS)


async def eventually(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Waits until `condition` holds and returns how long that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began
