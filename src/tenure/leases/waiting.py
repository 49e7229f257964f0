"""Waits with a timeout, and cancels work whose lease was withdrawn."""

import asyncio
from contextlib import suppress
from typing import Any

from tenure.telemetry.events import Telemetry, WorkWillNotStop

CANCEL_SECONDS = 5.0


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits until the event is set, for at most `seconds`. Returns whether it is set.

    Does not use `asyncio.wait_for`: before Python 3.12, it loses a cancellation that arrives just as the event is set.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    return event.is_set()


async def cancel(work: asyncio.Future[Any], lease: str, telemetry: Telemetry) -> bool:
    """Cancels `work`, and waits up to CANCEL_SECONDS until it has ended. Returns whether it has ended.

    The caller withdraws the lease first. So work that ignores the cancellation gets no fence for a further write. But
    such work may still have effects outside the database.
    """
    work.cancel()
    await asyncio.wait({work}, timeout=CANCEL_SECONDS)
    if work.done():
        if not work.cancelled():
            work.exception()  # retrieved, so that asyncio logs no warning
        return True
    telemetry.report(WorkWillNotStop(lease))
    return False
