"""Sessions, what can be asked of them, the seats they take and the streams they have."""

from collections.abc import Sequence
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


class Closing(msgspec.Struct, frozen=True):
    """A session whose end was recorded on the way to something else: it had lapsed, or its seat was taken."""

    session_id: str
    reason: str
    ended_at: datetime


class Outcome(StrEnum):
    """What became of an open. The last three are for the lanes only, no caller ever sees them."""

    CREATED = "created"
    EXISTING = "existing"
    UPGRADED = "upgraded"
    TENANT_MISMATCH = "tenant-mismatch"
    CAPACITY_OF_ANOTHER_TENANT = "capacity-of-another-tenant"
    SESSION_LIMIT = "session-limit"
    REOPEN = "reopen"
    LIMITED = "limited"
    AGAIN = "again"


class Opened(msgspec.Struct, frozen=True):
    """The answer to an open. `session` is there for created, existing and upgraded; what else was closed in the same
    transaction stands with one of its answers, whatever that is.
    """

    outcome: Outcome
    session: Session | None = None
    closings: Sequence[Closing] = ()


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


class Found(StrEnum):
    """What a write found under a session's id."""

    LIVE = "live"
    OVER = "over"
    UNKNOWN = "unknown"
    REPLACED = "replaced"
    """Live, but a newer stream has taken over."""
    HELD = "held"
    """Somebody else is writing it at this moment: to be asked again."""


class End(msgspec.Struct, frozen=True):
    session_id: str
    reason: str


class Ended(msgspec.Struct, frozen=True):
    """The answer to an end; `recorded` if this very request wrote it down."""

    found: Found
    session: Session | None = None
    recorded: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    session_id: str
    active: bool


class Kept(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: how long the session lives now, or why it is over."""

    found: Found
    state: str | None = None
    deadline_at: datetime | None = None
    heartbeat_microseconds: int | None = None
    close_reason: str | None = None
    closing: Closing | None = None


class Swept(msgspec.Struct, frozen=True):
    """One batch of the sweep. `looked_at` counts those that were not over yet, too."""

    closings: Sequence[Closing]
    looked_at: int


class WhenFull(StrEnum):
    REJECT = "reject"
    EVICT_OLDEST = "evictOldest"


class Seats(msgspec.Struct, frozen=True):
    """What can be set of a capacity. No limit and no tenant: as if it had never been set."""

    max_sessions: int | None = None
    when_full: str = WhenFull.REJECT.value
    tenant_object_id: str | None = None


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    capacity_id: str
    seats: Seats
    active_sessions: int
    created_at: datetime
    modified_at: datetime


class Attach(msgspec.Struct, frozen=True):
    """A stream that wants to be the session's. The limits are for a session that has none of its own."""

    session_id: str
    lease_microseconds: int
    idle_microseconds: int
    heartbeat_microseconds: int


class Attached(msgspec.Struct, frozen=True):
    """`attachment` is the stream's number; the newest of a session takes over. `now` is the database's."""

    found: Found
    session: Session | None = None
    attachment: int = 0
    now: datetime | None = None
    closing: Closing | None = None


class StreamUpdate(msgspec.Struct, frozen=True):
    """What the instance that holds a stream has to say about it.

    `counted` is what was counted since the last save; `save` numbers the saves of one attachment, so that a repetition
    after a lost answer adds nothing twice. `end` stamps the end and leaves the session `closing`; `finished` closes it.
    """

    session_id: str
    attachment: int
    save: int
    active: bool
    counted: StreamCounters
    end: str | None = None
    finished: bool = False


class StreamUpdated(msgspec.Struct, frozen=True):
    found: Found
    session: Session | None = None
    now: datetime | None = None
    recorded: bool = False
    """This update wrote down the session's end, by its own reason or because it had lapsed."""
