"""Processes and their families: stopped, continued, waited for."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

POLL_SECONDS = 0.01


def family(pid: int) -> list[psutil.Process]:
    """The process and all its descendants, the eldest first."""
    eldest = psutil.Process(pid)
    return [eldest, *eldest.children(recursive=True)]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP for the whole family, so that nothing of it answers, and SIGCONT afterwards."""
    stopped = list[psutil.Process]()
    # Until nobody is left: one that was not stopped yet may have had another child.
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


async def eventually(condition: Callable[[], object], seconds: float, told: str) -> float:
    """Waits until `condition` holds and returns how long that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds} s: {told}")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began
