"""Waiting for something, but not for ever."""

import asyncio
from contextlib import suppress


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Not by `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes just as the event is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    return event.is_set()
