"""Keeping one session at a time, as often as somebody holds its row. Each counter of a stream has its own value."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tenure.domain.capacities import Seats, WhenFull
from tenure.domain.sessions import Found, Heartbeat, HeartbeatResult, StreamCounters
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.store.contract import Store
from tests.support.open_requests import ROUNDS_MAX, SECOND

COUNTED = StreamCounters(1_001, 12, 103, 54, 205, 6, 307)
NOTHING = StreamCounters(0, 0, 0, 0, 0, 0, 0)
EVICTING = WhenFull.EVICT_OLDEST.value


async def keep_one(store: Store, session_id: str, *, active: bool = False) -> HeartbeatResult:
    return await _until_free(lambda: store.heartbeat([Heartbeat(session_id, active)]))


async def attach_one(store: Store, session_id: str, **limits: int) -> AttachResult:
    return await _until_free(lambda: store.attach_streams([attach(session_id, **limits)]))


async def update_one(store: Store, session_id: str, **said: Any) -> StreamUpdateResult:
    return await _until_free(lambda: store.update_streams([stream_update(session_id, **said)]))


async def _until_free(ask: Callable[[], Awaitable[Any]]) -> Any:
    for _ in range(ROUNDS_MAX):
        (answer,) = await ask()
        if answer.found is not Found.HELD:
            return answer
        await asyncio.sleep(0.005)
    raise AssertionError(f"the row was held for {ROUNDS_MAX} rounds")


def attach(
    session_id: str, *, lease: int = 60 * SECOND, idle: int = 300 * SECOND, every: int = 5 * SECOND
) -> AttachRequest:
    return AttachRequest(session_id, lease, idle, every)


def stream_update(session_id: str, **said: Any) -> StreamUpdate:
    """The first save of the first stream, with nothing in it but that it lives, unless told otherwise."""
    values: dict[str, Any] = {"attachment": 1, "save": 1, "active": False, "counted": NOTHING}
    return StreamUpdate(session_id, **{**values, **said})


def evicting(max_sessions: int) -> Seats:
    return Seats(max_sessions, EVICTING)
