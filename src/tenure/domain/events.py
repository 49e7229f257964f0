"""Events: what happened to sessions, in one order, and batches of events for gateways.

An event is derived from the row of a session. All its fields are facts that never change, so an event has the same
bytes whenever it is rendered. Events are ordered by instant. At the same instant a close comes before an opening,
because an upgrade ends one session and starts the next one at that instant.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from tenure.domain.submissions import Contract

FEED_KEPT = timedelta(days=7)
"""A client without a cursor starts this long before the horizon. A cursor is valid for at least this long."""
BATCH_EVENTS_MAX = 1000
"""The most events in one delivery to a gateway."""
EVENTS_LEASE = "events"
"""The lease of the instance that sends events to gateways."""
EVENTS_CALLER = " tenure"
"""The name under which Tenure itself submits batches of events. Each caller has its own idempotency keys, and no API
key has a name that begins with a blank, so no other caller can use up the idempotency key of a batch."""
NO_ID = "00000000-0000-0000-0000-000000000000"


class EventType(StrEnum):
    OPENED = "session.opened"
    UPGRADED = "session.upgraded"
    CLOSED = "session.closed"


class EventPosition(msgspec.Struct, frozen=True):
    """A position in the order of events: the position of an event, or the end of an instant."""

    at: datetime
    rank: int
    session_id: str

    @property
    def instant_and_rank(self) -> tuple[datetime, int]:
        return self.at, self.rank


CLOSE_RANK = 0
START_RANK = 1
END_RANK = 2
"""No event has this rank. It marks the position after all events of an instant."""


def end_of(instant: datetime) -> EventPosition:
    return EventPosition(instant, END_RANK, NO_ID)


class SessionEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: EventType
    at: datetime
    session_id: str
    user_object_id: str
    tenant_object_id: str
    capacity_id: str
    kind: int
    started_at: datetime
    previous_session_id: str | None = None
    """The session that an upgrade replaced."""
    close_reason: str | None = None

    @property
    def event_id(self) -> str:
        """Unique: a session has one event for its start (opened or upgraded) and at most one for its end."""
        return f"{self.session_id}-{self.type.removeprefix('session.')}"

    @property
    def position(self) -> EventPosition:
        rank = CLOSE_RANK if self.type is EventType.CLOSED else START_RANK
        return EventPosition(self.at, rank, self.session_id)


ALL_TYPES = tuple(EventType)


class EventFilter(msgspec.Struct, frozen=True):
    types: tuple[EventType, ...] = ALL_TYPES
    """In the order of `EventType`, without repetitions."""
    tenant: str | None = None

    def admits(self, event: SessionEvent) -> bool:
        return event.type in self.types and self.tenant in (None, event.tenant_object_id)


class EventPage(msgspec.Struct, frozen=True):
    events: Sequence[SessionEvent]
    position: EventPosition
    """Where the next page begins: after the last event, or at the end of the last instant that was searched."""
    horizon: datetime
    """The instant up to which all events were known when the page was read."""
    is_last: bool
    """Whether the page reaches the horizon."""


class EventSubscription(msgspec.Struct, frozen=True):
    """The position of a gateway in the feed."""

    gateway: str
    position: EventPosition
    number: int
    """The number of the last batch; 0 before the first one."""
    is_settled: bool
    """Whether the next batch may be saved: there is no batch yet, or the last one is delivered, cancelled or pruned."""


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of a gateway: all events of the batch's types after `start`, up to and including `end`."""

    gateway: str
    number: int
    start: EventPosition
    end: EventPosition
    types: tuple[EventType, ...]
    events: int
    digest: bytes
    """The digest of the body. Every later rendering must have the same digest."""
    submission_id: str


class NewEventBatch(EventBatch, frozen=True, kw_only=True):
    """The next batch of a gateway. A batch without events is not stored: it only moves the position of the gateway.

    The number of a batch is the number of the last stored batch plus one. So a batch without events and the batch after
    it have the same number.
    """

    contract: Contract


def delivery_key(installation_id: str, gateway: str, number: int) -> str:
    return f"{installation_id}-events-{gateway}-{number}"


def types_text(types: Sequence[EventType]) -> str:
    return ",".join(types)


def types_of(text: str) -> tuple[EventType, ...]:
    given = text.split(",")
    return tuple(each for each in EventType if each in given)
