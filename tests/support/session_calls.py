"""Heartbeats, attaches and stream updates of one session, retried while its row is held."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tenure.domain.capacities import Seats, WhenFull
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import Found, Heartbeat, HeartbeatResult, StreamCounters
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.store.contract import Store
from tests.support.open_requests import ROUNDS_MAX, SECOND

COUNTERS = StreamCounters(1_001, 12, 103, 54, 205, 6, 307)
"""A different value for each counter."""
NO_COUNTERS = StreamCounters(0, 0, 0, 0, 0, 0, 0)
EVICTING = WhenFull.EVICT_OLDEST.value


async def heartbeat_one(store: Store, session_id: str, *, active: bool = False) -> HeartbeatResult:
    return await _until_free(lambda: store.heartbeat([Heartbeat(session_id, active, EVERYTHING)]))


async def attach_one(store: Store, session_id: str, **limits: int) -> AttachResult:
    return await _until_free(lambda: store.attach_streams([attach_to(session_id, **limits)]))


async def update_one(store: Store, session_id: str, **fields: Any) -> StreamUpdateResult:
    return await _until_free(lambda: store.update_streams([stream_update(session_id, **fields)]))


async def _until_free(call: Callable[[], Awaitable[Any]]) -> Any:
    for _ in range(ROUNDS_MAX):
        (result,) = await call()
        if result.found is not Found.HELD:
            return result
        await asyncio.sleep(0.005)
    raise AssertionError(f"the row was held for {ROUNDS_MAX} rounds")


def attach_to(
    session_id: str, *, lease: int = 60 * SECOND, idle: int = 300 * SECOND, every: int = 5 * SECOND
) -> AttachRequest:
    return AttachRequest(session_id, lease, idle, every, EVERYTHING)


def stream_update(session_id: str, **fields: Any) -> StreamUpdate:
    """The first save of the first stream, without activity and counters unless `fields` has them."""
    values: dict[str, Any] = {"attachment": 1, "save": 1, "active": False, "counted": NO_COUNTERS}
    return StreamUpdate(session_id, **{**values, **fields})


def evicting_seats(max_sessions: int) -> Seats:
    return Seats(max_sessions, EVICTING)
