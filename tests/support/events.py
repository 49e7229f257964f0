"""Events for tests: the whole feed, and the events that it must contain according to the session table."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tenure.domain.events import (
    ALL_TYPES,
    EventFilter,
    EventPosition,
    EventType,
    NewEventBatch,
    SessionEvent,
    end_of,
)
from tenure.domain.sessions import Session
from tenure.ids import new_id
from tenure.store.contract import Store
from tests.support.open_requests import NOON
from tests.support.usage import CONTRACT

EVERY_EVENT = EventFilter()

BEFORE = end_of(NOON.replace(year=2020))
"""A position before all events."""


async def feed(
    store: Store, criteria: EventFilter = EVERY_EVENT, after: EventPosition = BEFORE, limit: int = 500
) -> Sequence[SessionEvent]:
    """Moves the horizon to now, and reads all events after `after`, in pages of `limit` events."""
    await store.publish_events(0)
    return await read_all(store, criteria, after, limit)


async def read_all(
    store: Store, criteria: EventFilter = EVERY_EVENT, after: EventPosition = BEFORE, limit: int = 500
) -> Sequence[SessionEvent]:
    events: list[SessionEvent] = []
    while True:
        page = await store.read_events(criteria, after, None, limit)
        events += page.events
        if page.is_last:
            return events
        assert page.position != after, "a page that neither advances nor is the last"
        after = page.position


def expected_events(sessions: Sequence[Session], horizon: datetime) -> list[SessionEvent]:
    """The events of these sessions up to the horizon, in order."""
    events = [event for session in sessions for event in _events_of(session, horizon)]
    return sorted(events, key=lambda event: (event.at, event.type is not EventType.CLOSED, event.session_id))


def _events_of(session: Session, horizon: datetime) -> list[SessionEvent]:
    facts: dict[str, Any] = {
        name: getattr(session, name)
        for name in ("session_id", "user_object_id", "tenant_object_id", "capacity_id", "kind", "started_at")
    }
    previous = session.previous_session_id
    started = EventType.OPENED if previous is None else EventType.UPGRADED
    ended_at = session.deadline_at if session.closed_at is None else session.closed_at
    reason = session.close_reason or session.lapse_reason
    events = [
        SessionEvent(type=started, at=session.started_at, previous_session_id=previous, **facts),
        SessionEvent(type=EventType.CLOSED, at=ended_at, close_reason=reason, **facts),
    ]
    return [event for event in events if event.at <= horizon]


def new_batch(number: int, start: EventPosition, end: EventPosition, **given: Any) -> NewEventBatch:
    values: dict[str, Any] = {
        "gateway": "hooks",
        "number": number,
        "start": start,
        "end": end,
        "types": ALL_TYPES,
        "events": 2,
        "digest": b"7" * 32,
        "submission_id": new_id(),
        "contract": CONTRACT,
    }
    return NewEventBatch(**{**values, **given})
