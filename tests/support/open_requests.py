"""Requests to open sessions, with new ids in all fields, and calls that open or end one session."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import (
    ClosedSession,
    CloseReason,
    EndRequest,
    EndResult,
    Found,
    Limits,
    OpenOutcome,
    OpenRequest,
    OpenResult,
    Session,
)
from tenure.ids import new_id
from tenure.store.contract import Store
from tenure.store.contract.sessions import OpenLane
from tests.support.audit_log import ACTOR

LIMITS = Limits(timedelta(days=30))
NOON = datetime(2041, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
"""An instant in the future. The migration of a new database records the real time as the last cut, and no session write
gets an instant before the last cut."""
SECOND = 1_000_000
ROUNDS_MAX = 300


def some_id() -> str:
    return str(uuid4())


def request(**given: Any) -> OpenRequest:
    """A request for a new key, unless `given` contains one."""
    values: dict[str, Any] = {
        "session_id": new_id(),
        "tenant_object_id": some_id(),
        "user_object_id": some_id(),
        "capacity_id": some_id(),
        "kind": 1,
    }
    return OpenRequest(**{**values, **given})


def same_key_request(old: OpenRequest, **given: Any) -> OpenRequest:
    """Another request for the same key."""
    same = {name: getattr(old, name) for name in ("tenant_object_id", "user_object_id", "capacity_id", "kind")}
    return request(**{**same, **given})


def ending(of: OpenRequest | Session, reason: str, ended_at: datetime) -> ClosedSession:
    """The end of a session, as returned by the operation that recorded it."""
    return ClosedSession(of.session_id, reason, ended_at, of.user_object_id, of.tenant_object_id, of.capacity_id)


async def open_one(store: Store, one: OpenRequest, limits: Limits = LIMITS) -> OpenResult:
    """Repeats the request in the lanes that the store returns, until it has a final outcome."""
    lane = OpenLane.CREATE
    for _ in range(ROUNDS_MAX):
        (result,) = await store.open_sessions(lane, [one], limits)
        if result.outcome not in (OpenOutcome.REOPEN, OpenOutcome.LIMITED, OpenOutcome.AGAIN):
            return result
        if lane.value == result.outcome.value:
            await asyncio.sleep(0.005)  # the same lane again: another transaction holds the row
        lane = OpenLane.CREATE if result.outcome is OpenOutcome.AGAIN else OpenLane(result.outcome.value)
    raise AssertionError(f"no result after {ROUNDS_MAX} rounds, last {result.outcome}")


async def end_one(store: Store, session_id: str, reason: CloseReason) -> EndResult | None:
    """Ends the session, and retries while its row is held. Returns None if the session does not exist."""
    for _ in range(ROUNDS_MAX):
        (ended,) = await store.end_sessions([EndRequest(session_id, reason.value, EVERYTHING, ACTOR)])
        if ended.found is not Found.HELD:
            return None if ended.found is Found.UNKNOWN else ended
        await asyncio.sleep(0.005)
    raise AssertionError(f"the row of {session_id} was held for {ROUNDS_MAX} rounds")
