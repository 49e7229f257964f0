"""Waits with a time limit. The message of a failed wait contains the logs of the processes at the end of the wait."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

POLL_SECONDS = 0.03


class Logged(Protocol):
    def log(self) -> str: ...


async def until(condition: Callable[[], object], seconds: float, what: str, processes: Iterable[Logged]) -> float:
    """Waits until `condition` holds, and returns the seconds that this took. Fails after `seconds`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds} s: {what}\n{all_logs(processes)}")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began


def all_logs(processes: Iterable[Logged]) -> str:
    return "\n\n".join(f"--- {number}\n{each.log()}" for number, each in enumerate(processes))
