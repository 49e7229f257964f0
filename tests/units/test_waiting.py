import asyncio

import pytest

from tenure.leases.waiting import is_set_within


async def test_tells_that_it_was_set_in_time() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(is_set_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    assert await waiting is True


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
async def test_tells_that_it_was_not_set(seconds: float) -> None:
    assert await is_set_within(asyncio.Event(), seconds) is False


async def test_needs_no_time_for_what_is_set() -> None:
    event = asyncio.Event()
    event.set()
    assert await is_set_within(event, 0) is True


@pytest.mark.parametrize("turns", range(8))
async def test_loses_no_cancellation_that_comes_as_it_is_set(turns: int) -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(is_set_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    taken = waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled() is taken
