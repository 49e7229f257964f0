"""The models of Tenure's requests and responses.

Fields of a response that this version does not know are ignored. Fields that may get new values (`state`,
`close_reason`, `outcome`, …) are plain strings, so that a new value does not break an old client. Times are aware
datetimes in UTC; usage is an exact `Decimal`.
"""

from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

Seconds = float | int


class Model(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Body(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A request body or query. Fields with their default value are not sent."""


# Sessions.


class StreamCounters(Model, frozen=True, kw_only=True):
    bytes_received: int
    chunks: int
    messages_sent: int
    partials_sent: int
    finals_sent: int
    errors_sent: int
    audio_duration_ms: int


class Session(Model, frozen=True, kw_only=True):
    session_id: str
    user_object_id: str
    tenant_object_id: str
    capacity_id: str
    session_kind: int
    session_start_utc: datetime
    session_end_utc: datetime
    is_active: bool
    state: str
    lease_expires_at: datetime
    heartbeat_interval: Seconds | None
    last_heartbeat: datetime
    last_activity: datetime
    close_reason: str | None
    previous_session_id: str | None
    created_utc: datetime
    modified_utc: datetime
    stream: StreamCounters | None


class OpenedSession(Session, frozen=True, kw_only=True):
    status: str
    was_created: bool
    was_upgraded: bool
    session_token: str | None = None

    def __repr__(self) -> str:
        return _without(self, "session_token")


class EndedSession(Session, frozen=True, kw_only=True):
    status: str
    """`closed` if this request ended the session, otherwise `already_closed`."""


class OpenBody(Body, frozen=True, kw_only=True):
    user_object_id: str
    tenant_object_id: str
    capacity_id: str
    session_kind: int
    lease_seconds: int | None = None
    idle_seconds: int | None = None
    with_token: bool = False


class MatchQuery(Body, frozen=True, kw_only=True):
    tenant: str | None = None
    user: str | None = None
    capacity: str | None = None
    kind: int | None = None
    state: str | None = None
    active: bool | None = None
    close_reason: str | None = None


class SessionQuery(MatchQuery, frozen=True, kw_only=True):
    order: str | None = None
    limit: int | None = None
    cursor: str | None = None


class SessionList(Model, frozen=True, kw_only=True):
    sessions: list[Session]
    count: int
    next_cursor: str | None
    exact: bool = True
    """If false, sessions whose deadlines are earlier than those on this page may be missing. False only with
    `order="lapse"`."""


class SessionCount(Model, frozen=True, kw_only=True):
    """If `exact` is false, `count` is a lower bound."""

    count: int
    exact: bool


class EndBody(Body, frozen=True, kw_only=True):
    tenant: str | None = None
    user: str | None = None
    capacity: str | None = None
    kind: int | None = None
    state: str | None = None
    session_ids: list[str] | None = None
    all: bool = False
    action_id: str | None = None
    limit: int | None = None
    dry_run: bool = False


class EndedSessions(Model, frozen=True, kw_only=True):
    """The response to one request of an action. Repeat the request with the same `action_id` until `done` is true."""

    action_id: str | None
    ended: int
    """How many sessions this request ended."""
    total_ended: int
    """How many sessions the action has ended so far, over all its requests."""
    remaining: int
    """How many sessions the action must still end."""
    exact: bool
    """If false, `remaining` is a lower bound."""
    done: bool


class HeartbeatBody(Body, frozen=True, kw_only=True):
    active: bool = False


class Heartbeat(Model, frozen=True, kw_only=True):
    session_id: str
    lease_expires_at: datetime
    heartbeat_interval: Seconds | None
    acknowledged: bool
    state: str


class HeartbeatsBody(Body, frozen=True, kw_only=True):
    session_ids: list[str]
    active: bool = False


class HeartbeatResult(Model, frozen=True, kw_only=True):
    """The result for one session. If the heartbeat is not acknowledged, `status` is the HTTP status that a single
    heartbeat request would get: 404 or 410.
    """

    session_id: str
    acknowledged: bool
    lease_expires_at: datetime | None = None
    heartbeat_interval: Seconds | None = None
    state: str | None = None
    status: int | None = None
    close_reason: str | None = None


class Heartbeats(Model, frozen=True, kw_only=True):
    heartbeats: list[HeartbeatResult]
    count: int


class Fact(Model, frozen=True, kw_only=True):
    """One fact of a session's history: `fact` is the name of what happened, and `text` describes it in one line.

    Only the fields that apply to this `fact` are set.
    """

    at: datetime
    fact: str
    text: str
    user_object_id: str | None = None
    tenant_object_id: str | None = None
    capacity_id: str | None = None
    session_kind: int | None = None
    term_ends_at: datetime | None = None
    lease_seconds: Seconds | None = None
    idle_seconds: Seconds | None = None
    heartbeat_interval: Seconds | None = None
    previous_session_id: str | None = None
    next_session_id: str | None = None
    session_ids: list[str] | None = None
    until: datetime | None = None
    close_reason: str | None = None
    recorded: bool | None = None
    subject: str | None = None
    name: str | None = None
    request_id: str | None = None
    stream: StreamCounters | None = None
    window_id: int | None = None
    last_window_id: int | None = None
    windows: int | None = None
    from_: datetime | None = msgspec.field(default=None, name="from")
    to: datetime | None = None
    usage: Decimal | None = None
    delivery: str | None = None
    delivered_at: datetime | None = None
    chunk: int | None = None
    submission_id: str | None = None
    gateway: str | None = None
    attempt: int | None = None
    attempts: int | None = None
    status: int | None = None
    error: str | None = None
    receipt: bool | None = None


class History(Model, frozen=True, kw_only=True):
    session: Session
    facts: list[Fact]
    count: int
    next_cursor: str | None


class SessionMetrics(Model, frozen=True, kw_only=True):
    """Counts of sessions. If the credential is bound to a tenant, only the first four fields are set, and they count
    the sessions of this tenant.
    """

    active_sessions: int
    total_sessions: int
    active_by_kind: dict[str, int]
    active_by_state: dict[str, int]
    opened: int | None = None
    upgraded: int | None = None
    closed_by_reason: dict[str, int] | None = None
    total_bytes_received: int | None = None
    total_chunks: int | None = None
    total_messages_sent: int | None = None
    total_partials_sent: int | None = None
    total_finals_sent: int | None = None
    total_errors_sent: int | None = None
    total_audio_duration_ms: int | None = None
    workers: int | None = None
    workers_answered: int | None = None


# Capacities.


class NextLapse(Model, frozen=True, kw_only=True):
    session_id: str
    deadline: datetime


class Capacity(Model, frozen=True, kw_only=True):
    capacity_id: str
    max_sessions: int | None
    when_full: str
    tenant_object_id: str | None
    active_sessions: int
    created_at: datetime
    modified_at: datetime
    next_lapse: NextLapse | None = None
    """The session that lapses next, or None if no session is live. On a capacity with more than 10 000 live sessions,
    it may be another session that lapses soon. Only `capacities.get` returns this field."""


class CapacityBody(Body, frozen=True, kw_only=True):
    max_sessions: int | None = None
    when_full: str = "reject"
    tenant_object_id: str | None = None


class CapacityQuery(Body, frozen=True, kw_only=True):
    tenant: str | None = None
    limit: int | None = None
    cursor: str | None = None


class CapacityList(Model, frozen=True, kw_only=True):
    capacities: list[Capacity]
    count: int
    next_cursor: str | None


# Transcription.


class TranscribeQuery(Body, frozen=True, kw_only=True):
    user_object_id: str
    tenant_object_id: str
    capacity_id: str
    session_kind: int


class Transcription(Model, frozen=True, kw_only=True):
    text: str


# Submissions.


class SubmitBody(Body, frozen=True, kw_only=True):
    gateway: str
    payload: Any


class Accepted(Model, frozen=True, kw_only=True):
    submission_id: str
    state: str


class SubmissionQuery(Body, frozen=True, kw_only=True):
    gateway: str | None = None
    state: str | None = None
    limit: int | None = None
    cursor: str | None = None


class ListedSubmission(Model, frozen=True, kw_only=True):
    submission_id: str
    gateway: str
    state: str
    attempt_count: int
    next_attempt_at: datetime | None
    last_error: str | None
    request_id: str | None = None
    created_at: datetime
    ended_at: datetime | None


class Attempt(Model, frozen=True, kw_only=True):
    number: int
    epoch: int
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    status: int | None
    error: str | None
    early: bool
    receipt: bool


class Submission(ListedSubmission, frozen=True, kw_only=True):
    attempts: list[Attempt]


class SubmissionCount(Model, frozen=True, kw_only=True):
    gateway: str
    state: str
    count: int
    exact: bool


class SubmissionCounts(Model, frozen=True, kw_only=True):
    counts: list[SubmissionCount]


class SubmissionList(Model, frozen=True, kw_only=True):
    submissions: list[ListedSubmission]
    count: int
    next_cursor: str | None


class CommandBody(Body, frozen=True, kw_only=True):
    gateway: str | None = None
    state: str | None = None


class Commanded(Model, frozen=True, kw_only=True):
    count: int


# Usage.


class UsageQuery(Body, frozen=True, kw_only=True):
    from_: datetime | None = msgspec.field(default=None, name="from")
    to: datetime | None = None
    tenant: str | None = None
    capacity: str | None = None
    user: str | None = None
    group_by: str | None = None
    quick: bool | None = None
    limit: int | None = None
    cursor: str | None = None


class UsageGroup(Model, frozen=True, kw_only=True):
    """One group of the sum. Of the last five fields, only the one that the request grouped by is set."""

    usage: Decimal
    sessions: int
    tenant_object_id: str | None = None
    capacity_id: str | None = None
    user_object_id: str | None = None
    session_kind: int | None = None
    session_id: str | None = None


class Usage(Model, frozen=True, kw_only=True):
    from_: datetime = msgspec.field(name="from")
    to: datetime
    final_until: datetime
    """The usage before this instant does not change any more."""
    group_by: str | None
    groups: list[UsageGroup]
    count: int
    next_cursor: str | None


class PageQuery(Body, frozen=True, kw_only=True):
    limit: int | None = None
    cursor: str | None = None


class UsageWindow(Model, frozen=True, kw_only=True):
    window_id: int
    start_at: datetime
    end_at: datetime
    factors: dict[str, Decimal]
    sessions: int | None
    usage: Decimal | None
    delivered_at: datetime | None
    delivery: str


class Chunk(Model, frozen=True, kw_only=True):
    chunk: int
    submission_id: str | None
    sessions: int
    usage: Decimal
    digest: str | None
    delivered_at: datetime | None
    receipt: bool


class WholeUsageWindow(UsageWindow, frozen=True, kw_only=True):
    chunks: list[Chunk]


class UsageWindowList(Model, frozen=True, kw_only=True):
    windows: list[UsageWindow]
    count: int
    next_cursor: str | None


class SendBody(Body, frozen=True, kw_only=True):
    from_: datetime = msgspec.field(name="from")
    to: datetime | None = None


class Sent(Model, frozen=True, kw_only=True):
    windows: int
    chunks: int
    complete: bool


# Leases and jobs.


class Lease(Model, frozen=True, kw_only=True):
    name: str
    holder: str
    epoch: int
    held: bool
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime


class TermQuery(Body, frozen=True, kw_only=True):
    from_: datetime | None = msgspec.field(default=None, name="from")
    to: datetime | None = None
    limit: int | None = None
    cursor: str | None = None


class Term(Model, frozen=True, kw_only=True):
    name: str
    epoch: int
    holder: str
    acquired_at: datetime
    ended_at: datetime | None
    how: str | None


class TermList(Model, frozen=True, kw_only=True):
    terms: list[Term]
    count: int
    next_cursor: str | None


class LeaseList(Model, frozen=True, kw_only=True):
    leases: list[Lease]
    count: int
    next_cursor: str | None


class Job(Model, frozen=True, kw_only=True):
    name: str
    interval_seconds: Seconds
    lock_timeout_seconds: Seconds
    next_run_at: datetime | None
    retry_at: datetime | None
    last_start_at: datetime | None
    last_success_at: datetime | None
    last_duration_seconds: Seconds | None
    run_count: int
    failures_in_a_row: int
    last_error: str | None
    paused: bool


class JobList(Model, frozen=True, kw_only=True):
    jobs: list[Job]
    count: int
    next_cursor: str | None


class Run(Model, frozen=True, kw_only=True):
    started_at: datetime
    ended_at: datetime | None
    holder: str
    epoch: int
    outcome: str | None
    error: str | None


class RunList(Model, frozen=True, kw_only=True):
    runs: list[Run]
    count: int
    next_cursor: str | None


# Keys and the audit log.


class SignInBody(Body, frozen=True, kw_only=True):
    credential: str

    def __repr__(self) -> str:
        return "SignInBody([redacted])"


class OidcOption(Model, frozen=True, kw_only=True):
    issuer: str
    address: str


class SignInOptions(Model, frozen=True, kw_only=True):
    credentials_required: bool
    oidc: OidcOption | None


class Caller(Model, frozen=True, kw_only=True):
    subject: str
    name: str
    role: str
    tenant_object_id: str | None
    user_object_id: str | None
    anonymous: bool
    expires_at: datetime | None
    may_change: bool
    now: datetime


class SignedOut(Model, frozen=True, kw_only=True):
    signed_in: bool


class KeyBody(Body, frozen=True, kw_only=True):
    name: str
    role: str
    expires_at: datetime | None = None
    others_expire_at: datetime | None = None
    tenant_object_id: str | None = None


class Key(Model, frozen=True, kw_only=True):
    public_id: str
    name: str
    role: str
    tenant_object_id: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class CreatedKey(Key, frozen=True, kw_only=True):
    key: str

    def __repr__(self) -> str:
        return _without(self, "key")


class KeyQuery(Body, frozen=True, kw_only=True):
    name: str | None = None
    limit: int | None = None
    cursor: str | None = None


class KeyList(Model, frozen=True, kw_only=True):
    keys: list[Key]
    count: int
    next_cursor: str | None


class AuditQuery(Body, frozen=True, kw_only=True):
    subject: str | None = None
    action: str | None = None
    target: str | None = None
    from_: datetime | None = msgspec.field(default=None, name="from")
    to: datetime | None = None
    limit: int | None = None
    cursor: str | None = None


class AuditEntry(Model, frozen=True, kw_only=True):
    entry_id: str
    at: datetime
    subject: str
    name: str
    action: str
    target: str
    detail: str | None
    request_id: str | None
    changes: int
    """How many resources were changed by the request or command, or by all requests of the action."""


class AuditLog(Model, frozen=True, kw_only=True):
    entries: list[AuditEntry]
    count: int
    next_cursor: str | None


# Alerts and events.


class AlertQuery(Body, frozen=True, kw_only=True):
    name: str | None = None
    subject: str | None = None
    state: str | None = None
    limit: int | None = None
    cursor: str | None = None


class Alert(Model, frozen=True, kw_only=True):
    alert_id: str
    name: str
    subject: str | None
    state: str
    detail: str
    raised_at: datetime
    cleared_at: datetime | None


class AlertList(Model, frozen=True, kw_only=True):
    alerts: list[Alert]
    count: int
    next_cursor: str | None


class Instance(Model, frozen=True, kw_only=True):
    instance: str
    holder: str
    host: str
    pid: int
    worker: int
    version: str
    started_at: datetime
    last_seen_at: datetime
    stopped_at: datetime | None
    alive: bool
    leads: list[str]


class InstanceList(Model, frozen=True, kw_only=True):
    instances: list[Instance]
    count: int
    next_cursor: str | None


class ActivityQuery(Body, frozen=True, kw_only=True):
    from_: datetime | None = msgspec.field(name="from", default=None)
    to: datetime | None = None
    step: int | None = None


class ActivityPoint(Model, frozen=True, kw_only=True):
    at: datetime
    opened: int
    upgraded: int
    existing: int
    refused: int
    heartbeats: int
    late_heartbeats: int
    closed: dict[str, int]
    lapsed: int


class Activity(Model, frozen=True, kw_only=True):
    from_: datetime = msgspec.field(name="from")
    to: datetime
    step_seconds: int
    points: list[ActivityPoint]


class EventQuery(Body, frozen=True, kw_only=True):
    after: str | None = None
    limit: int | None = None
    type: str | None = None
    wait: int | None = None


class Event(Model, frozen=True, kw_only=True):
    """An event of a session.

    Only `session.upgraded` has `previous_session_id`; only `session.closed` has `session_start_utc` and `close_reason`.
    """

    id: str
    type: str
    at: datetime
    session_id: str
    user_object_id: str
    tenant_object_id: str
    capacity_id: str
    session_kind: int
    previous_session_id: str | None = None
    session_start_utc: datetime | None = None
    close_reason: str | None = None


class FollowedEvent(Event, frozen=True, kw_only=True):
    """An event, and the cursor to store once you have processed the event. A follower that starts at this cursor misses
    no later event.

    The last event of a page has the cursor after the page. All other events of the page have the cursor before the
    page: a follower that starts at that cursor gets all events of the page again, with the same ids.
    """

    cursor: str


class EventList(Model, frozen=True, kw_only=True):
    events: list[Event]
    count: int
    next_cursor: str
    """The cursor from which to continue, also if `events` is empty."""


# Probes.


class Liveness(Model, frozen=True, kw_only=True):
    status: str


class LeaseWithRole(Lease, frozen=True, kw_only=True):
    role: str


class Readiness(Model, frozen=True, kw_only=True):
    status: str
    instance: str
    mode: str
    leases: list[LeaseWithRole]


class Health(Model, frozen=True, kw_only=True):
    status: str
    version: str
    active_sessions: int


def _without(model: Model, secret: str) -> str:
    shown = (
        f"{name}={'[redacted]' if name == secret and value else value!r}"
        for name, value in ((name, getattr(model, name)) for name in model.__struct_fields__)
    )
    return f"{type(model).__name__}({', '.join(shown)})"
