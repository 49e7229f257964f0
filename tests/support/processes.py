"""Stop, continue and wait for processes and their descendants."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

POLL_SECONDS = 0.01


def family(pid: int) -> list[psutil.Process]:
    """The process and all its descendants, the process itself first."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Send SIGSTOP to the process and its descendants, and SIGCONT on exit."""
    stopped = list[psutil.Process]()
    # Repeat until no process is left: a child may fork before it is stopped.
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


async def eventually(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Waits until `condition` holds and returns how long that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began
