"""Bounded waits that tell what the logs say at the end, not at the beginning."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

POLL_SECONDS = 0.03


class Logged(Protocol):
    def log(self) -> str: ...


async def until(condition: Callable[[], object], seconds: float, what: str, told_by: Iterable[Logged]) -> float:
    """Waits until `condition` holds and returns how long that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds} s: {what}\n{all_logs(told_by)}")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began


def all_logs(told_by: Iterable[Logged]) -> str:
    return "\n\n".join(f"--- {number}\n{each.log()}" for number, each in enumerate(told_by))
