"""Stopping what is no longer allowed to go on."""

import asyncio
from typing import Any

import structlog

log = structlog.get_logger()

PATIENCE_SECONDS = 5.0


async def cancel(work: asyncio.Future[Any], name: str) -> bool:
    """Cancels `work` and waits until it has ended; False if it would not.

    What does not end can still compute, but not write: its fence is withdrawn before this is called.
    """
    work.cancel()
    await asyncio.wait({work}, timeout=PATIENCE_SECONDS)
    if work.done():
        if not work.cancelled():
            work.exception()  # looked at, so that asyncio does not complain
        return True
    log.error("work_will_not_stop", lease=name)
    return False
