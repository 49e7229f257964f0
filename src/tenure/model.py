"""The nouns of Tenure, as plain frozen records. No I/O, no SQL, no HTTP.

Durations are whole microseconds, instants are aware datetimes in UTC, ids are canonical strings.
"""

from datetime import datetime, timedelta
from enum import IntEnum, StrEnum

import msgspec


class Kind(IntEnum):
    """A higher kind includes the lower ones."""

    BASIC = 1
    STANDARD = 2
    PREMIUM = 3


class State(StrEnum):
    """created → active → closing → closed; a session may skip any of the middle ones."""

    CREATED = "created"
    ACTIVE = "active"
    CLOSING = "closing"
    CLOSED = "closed"


class CloseReason(StrEnum):
    UPGRADED = "UPGRADED"
    EXPIRED = "EXPIRED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    IDLE_TIMEOUT = "IDLE_TIMEOUT"
    STOPPED = "STOPPED"
    TERMINATED = "TERMINATED"
    EVICTED = "EVICTED"
    DISCONNECTED = "DISCONNECTED"
    SHUTDOWN = "SHUTDOWN"
    FAILED = "FAILED"


LAPSE_REASONS = (CloseReason.EXPIRED, CloseReason.LEASE_EXPIRED, CloseReason.IDLE_TIMEOUT)
"""Why a session can end by itself. In this order where two limits fall on the same instant."""


class StreamCounters(msgspec.Struct, frozen=True, rename="camel"):
    bytes_received: int
    chunks: int
    messages_sent: int
    partials_sent: int
    finals_sent: int
    errors_sent: int
    audio_duration_ms: int


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session as recorded, or, once it has lapsed, as it will be recorded."""

    session_id: str
    tenant_object_id: str
    user_object_id: str
    capacity_id: str
    kind: int
    state: str
    started_at: datetime
    term_ends_at: datetime
    deadline_at: datetime
    lapse_reason: str
    lease_microseconds: int | None
    idle_microseconds: int | None
    heartbeat_microseconds: int | None
    last_heartbeat_at: datetime
    last_activity_at: datetime
    closed_at: datetime | None = None
    close_reason: str | None = None
    previous_session_id: str | None = None
    modified_at: datetime
    stream: StreamCounters | None = None

    @property
    def is_active(self) -> bool:
        return self.closed_at is None


class Limits(msgspec.Struct, frozen=True):
    """How long a session may last: its term, and what a heartbeat and an activity renew."""

    term: timedelta
    lease_microseconds: int | None = None
    idle_microseconds: int | None = None
    heartbeat_microseconds: int | None = None
    """How often the client is told to say that it is there; goes with the lease."""


class Open(msgspec.Struct, frozen=True):
    """One wish for a session. `session_id` is the id the session gets if this wish opens it, so that a
    repetition after a lost answer recognises its own work. Limits of None were not asked for.
    """

    session_id: str
    tenant_object_id: str
    user_object_id: str
    capacity_id: str
    kind: int
    lease_microseconds: int | None = None
    idle_microseconds: int | None = None
    heartbeat_microseconds: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """At most one session of a key is live. Sorts as the databases sort (capacity, user)."""
        return (self.capacity_id, self.user_object_id)


class Outcome(StrEnum):
    """What became of an open. The last two are for the lanes only, no caller ever sees them."""

    CREATED = "created"
    EXISTING = "existing"
    UPGRADED = "upgraded"
    TENANT_MISMATCH = "tenant-mismatch"
    REOPEN = "reopen"
    AGAIN = "again"


class Opened(msgspec.Struct, frozen=True):
    """The answer to an open. `session` is there for created, existing and upgraded; `lapsed` is the session that
    was found over and recorded on the way.
    """

    outcome: Outcome
    session: Session | None = None
    lapsed: Session | None = None


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str | None = None
    user: str | None = None
    capacity: str | None = None
    kind: int | None = None
    state: str | None = None
    active: bool | None = None
    close_reason: str | None = None


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a page of sessions ended: the next one begins after it."""

    started_at: datetime
    session_id: str


class SessionCounts(msgspec.Struct, frozen=True):
    total: int
    active_by_kind: dict[int, int]
    active_by_state: dict[str, int]

    @property
    def active(self) -> int:
        return sum(self.active_by_kind.values())


class Ended(msgspec.Struct, frozen=True):
    """A session after somebody asked for its end; `recorded` if this very request wrote it down."""

    session: Session
    recorded: bool
