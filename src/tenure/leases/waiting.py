"""Waiting for something, but not for ever."""

import asyncio
from contextlib import suppress


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), max(0.0, seconds))
    return event.is_set()
