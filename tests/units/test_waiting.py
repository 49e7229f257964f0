"""`is_set_within` waits for an event, but not longer than a time limit."""

import asyncio

import pytest

from tenure.leases.waiting import is_set_within


async def test_is_set_within_returns_true_when_event_is_set_in_time() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(is_set_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    assert await waiting is True


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
async def test_is_set_within_returns_false_on_timeout(seconds: float) -> None:
    assert await is_set_within(asyncio.Event(), seconds) is False


async def test_is_set_within_returns_true_immediately_for_set_event() -> None:
    event = asyncio.Event()
    event.set()
    assert await is_set_within(event, 0) is True


async def test_is_set_within_propagates_cancellation_racing_with_set() -> None:
    for turns in range(8):
        event = asyncio.Event()
        waiting = asyncio.create_task(is_set_within(event, 60))
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        requested = waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled() is requested, turns
