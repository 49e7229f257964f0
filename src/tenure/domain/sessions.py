"""Sessions, the requests on them, and the results of those requests."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from tenure.domain.audit_log import Actor
from tenure.domain.scope import Scope


class Kind(IntEnum):
    """A session of a higher kind also satisfies requests for lower kinds."""

    BASIC = 1
    STANDARD = 2
    PREMIUM = 3


class State(StrEnum):
    """created → active → closing → closed. A session may skip `active` and `closing`."""

    CREATED = "created"
    ACTIVE = "active"
    CLOSING = "closing"
    CLOSED = "closed"


class CloseReason(StrEnum):
    """Some lists read closed sessions reason by reason. These lists omit sessions whose reason is not in this enum.

    So add a new reason at least one release before the first release that records it.
    """

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
"""The reasons with which a session ends at its deadline.

If two limits fall on the same instant, the reason that comes first in this tuple applies.
"""


class StreamCounters(msgspec.Struct, frozen=True, rename="camel"):
    bytes_received: int
    chunks: int
    messages_sent: int
    partials_sent: int
    finals_sent: int
    errors_sent: int
    audio_duration_ms: int


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is recorded or, if it has lapsed and its end is not recorded yet, as it will be recorded."""

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
    imported_start_at: datetime | None = None
    """When an imported session began in the other service. Lists, events and usage use `started_at`, the time of the
    import."""
    modified_at: datetime
    stream: StreamCounters | None = None

    @property
    def is_active(self) -> bool:
        return self.closed_at is None


class Limits(msgspec.Struct, frozen=True):
    """The limits of a session: its term, the lease that heartbeats renew, and the idle limit that activity renews."""

    term: timedelta
    lease_microseconds: int | None = None
    idle_microseconds: int | None = None
    heartbeat_microseconds: int | None = None
    """The heartbeat interval for the client; None if there is no lease."""


class OpenRequest(msgspec.Struct, frozen=True):
    """A request for a session. Limits that are None were not requested.

    `session_id` is the id of the session if this request creates it, so a retry after a lost response recognises the
    session that the first attempt created.
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
        """The key of the session. At most one session per key is live. Batches are sorted by key."""
        return (self.capacity_id, self.user_object_id)


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A live session of another service, to be imported with the term that ends at `ends_at`."""

    session_id: str
    tenant_object_id: str
    user_object_id: str
    capacity_id: str
    kind: int
    started_at: datetime
    """When the session began in the other service."""
    ends_at: datetime
    lease_microseconds: int | None = None
    heartbeat_microseconds: int | None = None
    idle_microseconds: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        return (self.capacity_id, self.user_object_id)


class ImportOutcome(StrEnum):
    IMPORTED = "imported"
    EXISTING = "existing"
    """A session with this id is live, for instance because it was imported before."""
    OVER = "over"
    """A session with this id has ended in Tenure. It does not become live again."""
    ENDED = "ended"
    """The term of the session is over, and Tenure has no session with this id."""
    TENANT_MISMATCH = "tenant-mismatch"
    """The capacity is bound to another tenant."""
    CONFLICT = "conflict"
    """The user has another live session on the capacity."""


class ClosedSession(msgspec.Struct, frozen=True):
    """The end of a session. Store operations return it for each session that they closed because it had lapsed, because
    another session needed its seat, or because an action on many sessions ended it.
    """

    session_id: str
    reason: str
    ended_at: datetime
    user_object_id: str
    tenant_object_id: str
    capacity_id: str


class OpenOutcome(StrEnum):
    """The outcome of an open request.

    REOPEN, LIMITED, AGAIN and ID_TAKEN make `Opener` send the request to the store again, so clients never get them.
    REOPEN and LIMITED name the `OpenLane` to use; AGAIN starts over; ID_TAKEN starts over with another session id.
    """

    CREATED = "created"
    EXISTING = "existing"
    UPGRADED = "upgraded"
    TENANT_MISMATCH = "tenant-mismatch"
    CAPACITY_OF_ANOTHER_TENANT = "capacity-of-another-tenant"
    SESSION_LIMIT = "session-limit"
    REOPEN = "reopen"
    LIMITED = "limited"
    AGAIN = "again"
    ID_TAKEN = "id-taken"


class OpenResult(msgspec.Struct, frozen=True):
    """The result of an open request. `session` is set for created, existing and upgraded.

    If the transaction of a batch also closed other sessions, each of them is in the `closed_sessions` of exactly one
    result. That result can have any outcome.
    """

    outcome: OpenOutcome
    session: Session | None = None
    closed_sessions: Sequence[ClosedSession] = ()


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str | None = None
    user: str | None = None
    capacity: str | None = None
    kind: int | None = None
    state: str | None = None
    active: bool | None = None
    close_reason: str | None = None

    def matches(self, session: Session) -> bool:
        """Whether a live session matches. `active` and `close_reason` are not compared."""
        wanted = (
            (self.tenant, session.tenant_object_id),
            (self.user, session.user_object_id),
            (self.capacity, session.capacity_id),
            (self.kind, session.kind),
            (self.state, session.state),
        )
        return all(value in (None, actual) for value, actual in wanted)


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The last session of a page. The next page begins after it."""

    started_at: datetime
    session_id: str


FIRST_ID = "00000000-0000-0000-0000-000000000000"
"""Sorts before all session ids. Lists are sorted newest first, so a position with this id comes after all sessions that
started at its instant."""


class SessionPage(msgspec.Struct, frozen=True):
    """A page of a list of sessions.

    A read searches a limited number of entries. If the read reaches this limit and the page is not full yet, the next
    page begins after `resume_after`. Otherwise `resume_after` is None.
    """

    sessions: Sequence[Session]
    resume_after: Position | None = None


class LapsePosition(NamedTuple):
    """The last session of a page, in a list of live sessions that is sorted by deadline."""

    deadline_at: datetime
    session_id: str


class LapsePage(msgspec.Struct, frozen=True):
    """Live sessions, next deadline first. If `exact` is false, the page may lack sessions that belong on it."""

    sessions: Sequence[Session]
    exact: bool


class MatchCount(msgspec.Struct, frozen=True):
    """If `exact` is false, `count` is a lower bound."""

    count: int
    exact: bool


class SessionCounts(msgspec.Struct, frozen=True):
    total: int
    active_by_kind: dict[int, int]
    active_by_state: dict[str, int]

    @property
    def active(self) -> int:
        return sum(self.active_by_kind.values())


class Found(StrEnum):
    """The state in which a write found the session."""

    LIVE = "live"
    OVER = "over"
    UNKNOWN = "unknown"
    REPLACED = "replaced"
    """Live, but a newer stream has taken over."""
    HELD = "held"
    """Nothing was written, usually because another transaction holds the session: retry."""


class EndRequest(msgspec.Struct, frozen=True):
    session_id: str
    reason: str
    scope: Scope
    actor: Actor


class EndResult(msgspec.Struct, frozen=True):
    """The result of an end request. `recorded` is true if this request recorded the end."""

    found: Found
    session: Session | None = None
    recorded: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    session_id: str
    active: bool
    scope: Scope


class HeartbeatResult(msgspec.Struct, frozen=True):
    """The result of a heartbeat: the new deadline of a live session, or the close reason of one that has ended."""

    found: Found
    state: str | None = None
    deadline_at: datetime | None = None
    heartbeat_microseconds: int | None = None
    close_reason: str | None = None
    closed_session: ClosedSession | None = None


class EndManyResult(msgspec.Struct, frozen=True):
    """The result of ending many sessions in one transaction of an action."""

    closed: Sequence[ClosedSession]
    """The ends that this transaction recorded, including lapses. `total` does not count lapses."""
    held: int = 0
    """How many sessions were skipped because another transaction holds them. They may still be live."""
    total: int = 0
    """How many sessions the action has ended so far."""
    same: bool = True
    """False if the id of the action belongs to an action of another caller or with another filter. Then nothing was
    changed."""


class SweepResult(msgspec.Struct, frozen=True):
    """The result of one batch of the sweep. `looked_at` counts all sessions that it checked, including live ones."""

    closed_sessions: Sequence[ClosedSession]
    looked_at: int
