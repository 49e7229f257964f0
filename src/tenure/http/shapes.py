"""The JSON that goes in and out. The OpenAPI document is made from these structs, and both lanes use them."""

from datetime import datetime
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from tenure.clock import instant_text
from tenure.model.leases import Job, JobRun, Lease, RunOutcome
from tenure.model.sessions import (
    Capacity,
    CloseReason,
    Found,
    Kept,
    Opened,
    Outcome,
    Session,
    SessionCounts,
    State,
    StreamCounters,
    WhenFull,
)
from tenure.sessions.counters import Counters

UUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
MICROSECONDS = 1_000_000
LIMIT_MAX = 500
CURSOR_MAX = 300
HEARTBEATS_MAX = 1000
SEATS_MAX = 2_147_483_647

Uuid = Annotated[
    str,
    # The length, because `$` also matches before a newline at the end.
    Meta(pattern=UUID_PATTERN, max_length=36, extra_json_schema={"format": "uuid"}, extra={"must": "must be a UUID"}),
]
KindNumber = Annotated[Literal[1, 2, 3], Meta(extra={"must": "must be 1, 2 or 3"})]
Instant = Annotated[datetime, Meta(extra_json_schema={"format": "date-time"}, examples=["2026-01-02T03:04:05.000000Z"])]
PageLimit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, extra={"must": "must be a whole number from 1 to 500"})]
Cursor = Annotated[str, Meta(max_length=CURSOR_MAX, extra={"must": "must be the nextCursor of an answer"})]
IdCursor = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9_-]{22}$",
        max_length=22,
        extra={"must": "must be the nextCursor of an answer"},
    ),
]


class OpenBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    user_object_id: Uuid
    tenant_object_id: Uuid
    capacity_id: Uuid
    session_kind: KindNumber
    lease_seconds: (
        Annotated[int, Meta(ge=5, le=86_400, extra={"must": "must be a whole number from 5 to 86400"})] | None
    ) = None
    idle_seconds: (
        Annotated[int, Meta(ge=5, le=2_592_000, extra={"must": "must be a whole number from 5 to 2592000"})] | None
    ) = None


class SessionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    session_id: Uuid
    user_object_id: Uuid
    tenant_object_id: Uuid
    capacity_id: Uuid
    session_kind: KindNumber
    session_start_utc: Instant
    session_end_utc: Instant
    is_active: bool
    state: State
    lease_expires_at: Instant
    heartbeat_interval: float | int | None
    last_heartbeat: Instant
    last_activity: Instant
    close_reason: CloseReason | None
    previous_session_id: Uuid | None
    created_utc: Instant
    modified_utc: Instant
    stream: StreamCounters | None


class OpenAnswer(SessionAnswer, frozen=True, rename="camel", kw_only=True):
    status: Literal["created", "existing", "upgraded"]
    was_created: bool
    was_upgraded: bool


class SessionList(msgspec.Struct, frozen=True, rename="camel"):
    sessions: list[SessionAnswer]
    count: int
    next_cursor: str | None


class MetricsAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    active_sessions: int
    total_sessions: int
    active_by_kind: dict[str, int]
    active_by_state: dict[str, int]
    opened: int
    upgraded: int
    closed_by_reason: dict[str, int]
    total_bytes_received: int
    total_chunks: int
    total_messages_sent: int
    total_partials_sent: int
    total_finals_sent: int
    total_errors_sent: int
    total_audio_duration_ms: int


class HeartbeatBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    active: Annotated[bool, Meta(extra={"must": "must be true or false"})] = False


class HeartbeatsBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    session_ids: Annotated[
        list[Uuid],
        Meta(min_length=1, max_length=HEARTBEATS_MAX, extra={"must": "must be a list of 1 to 1000 UUIDs"}),
    ]
    active: Annotated[bool, Meta(extra={"must": "must be true or false"})] = False


class HeartbeatAnswer(msgspec.Struct, frozen=True, rename="camel"):
    session_id: Uuid
    lease_expires_at: Instant
    heartbeat_interval: float | int | None
    acknowledged: Literal[True]
    state: State


class HeartbeatOfMany(msgspec.Struct, frozen=True, rename="camel"):
    """Acknowledged with its deadline, or refused with the status that a single heartbeat would have had."""

    session_id: Uuid
    acknowledged: bool
    lease_expires_at: Instant | msgspec.UnsetType = msgspec.UNSET
    heartbeat_interval: float | int | msgspec.UnsetType | None = msgspec.UNSET
    state: State | msgspec.UnsetType = msgspec.UNSET
    status: Literal[404, 410] | msgspec.UnsetType = msgspec.UNSET
    close_reason: CloseReason | msgspec.UnsetType = msgspec.UNSET


class HeartbeatsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    heartbeats: list[HeartbeatOfMany]
    count: int


class CapacityBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max_sessions: (
        Annotated[
            int, Meta(ge=0, le=SEATS_MAX, extra={"must": f"must be null or a whole number from 0 to {SEATS_MAX}"})
        ]
        | None
    ) = None
    when_full: Annotated[WhenFull, Meta(extra={"must": "must be reject or evictOldest"})] = WhenFull.REJECT
    tenant_object_id: Uuid | None = None


class CapacityAnswer(msgspec.Struct, frozen=True, rename="camel"):
    capacity_id: Uuid
    max_sessions: int | None
    when_full: WhenFull
    tenant_object_id: Uuid | None
    active_sessions: int
    created_at: Instant
    modified_at: Instant


class CapacityList(msgspec.Struct, frozen=True, rename="camel"):
    capacities: list[CapacityAnswer]
    count: int
    next_cursor: str | None


class LeaseAnswer(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    holder: str
    epoch: int
    held: bool
    acquired_at: Instant
    renewed_at: Instant
    expires_at: Instant


class LeaseWithRole(LeaseAnswer, frozen=True, rename="camel", kw_only=True):
    role: Literal["leader", "follower"]


class LeaseList(msgspec.Struct, frozen=True, rename="camel"):
    leases: list[LeaseAnswer]
    count: int
    next_cursor: str | None


class JobAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    interval_seconds: float | int
    lock_timeout_seconds: float | int
    next_run_at: Instant
    retry_at: Instant | None
    last_start_at: Instant | None
    last_success_at: Instant | None
    last_duration_seconds: float | int | None
    run_count: int
    failures_in_a_row: int
    last_error: str | None
    paused: bool


class JobList(msgspec.Struct, frozen=True, rename="camel"):
    jobs: list[JobAnswer]
    count: int
    next_cursor: str | None


class RunAnswer(msgspec.Struct, frozen=True, rename="camel"):
    started_at: Instant
    ended_at: Instant | None
    holder: str
    epoch: int
    outcome: RunOutcome | None
    error: str | None


class RunList(msgspec.Struct, frozen=True, rename="camel"):
    runs: list[RunAnswer]
    count: int
    next_cursor: str | None


class HealthAnswer(msgspec.Struct, frozen=True, rename="camel"):
    status: Literal["ok"]
    version: str
    active_sessions: int


class LivenessAnswer(msgspec.Struct, frozen=True):
    status: Literal["ok"]


class ReadinessAnswer(msgspec.Struct, frozen=True):
    status: Literal["ready"]
    leases: list[LeaseWithRole]


def instant(value: datetime) -> datetime:
    """ISO 8601 in UTC with six decimals, always. msgspec writes just that, ten times as fast as `isoformat`, but that
    it leaves out six zeros: one instant in a million is written here.
    """
    return value if value.microsecond else cast("Any", instant_text(value))


def seconds_number(microseconds: int | None) -> float | int | None:
    """A number of seconds that is whole where it can be."""
    if microseconds is None:
        return None
    whole, rest = divmod(microseconds, MICROSECONDS)
    return microseconds / MICROSECONDS if rest else whole


def _session_values(session: Session) -> tuple[Any, ...]:
    started_at = instant(session.started_at)
    closed_at = session.closed_at
    return (
        session.session_id,
        session.user_object_id,
        session.tenant_object_id,
        session.capacity_id,
        session.kind,
        started_at,
        instant(session.term_ends_at if closed_at is None else closed_at),
        closed_at is None,
        session.state,
        instant(session.deadline_at),
        seconds_number(session.heartbeat_microseconds),
        instant(session.last_heartbeat_at),
        instant(session.last_activity_at),
        session.close_reason,
        session.previous_session_id,
        started_at,
        instant(session.modified_at),
        session.stream,
    )


def session_answer(session: Session) -> SessionAnswer:
    return SessionAnswer(*_session_values(session))


def open_answer(answer: Opened) -> OpenAnswer:
    if answer.session is None:
        raise ValueError(f"an open that ended as {answer.outcome} has no session to show")
    outcome = answer.outcome
    return OpenAnswer(
        *_session_values(answer.session),
        status=outcome.value,  # type: ignore[arg-type]
        was_created=outcome is not Outcome.EXISTING,
        was_upgraded=outcome is Outcome.UPGRADED,
    )


def heartbeat_answer(session_id: str, kept: Kept) -> HeartbeatAnswer:
    if kept.deadline_at is None:
        raise ValueError(f"a heartbeat that found {kept.found} has no deadline to show")
    return HeartbeatAnswer(
        session_id,
        instant(kept.deadline_at),
        seconds_number(kept.heartbeat_microseconds),
        acknowledged=True,
        state=kept.state,  # type: ignore[arg-type]
    )


def heartbeat_of_many(session_id: str, kept: Kept) -> HeartbeatOfMany:
    if kept.found is Found.LIVE and kept.deadline_at is not None:
        return HeartbeatOfMany(
            session_id,
            True,
            instant(kept.deadline_at),
            seconds_number(kept.heartbeat_microseconds),
            kept.state,  # type: ignore[arg-type]
        )
    if kept.found is Found.OVER:
        return HeartbeatOfMany(session_id, False, status=410, close_reason=kept.close_reason)  # type: ignore[arg-type]
    return HeartbeatOfMany(session_id, False, status=404)


def capacity_answer(capacity: Capacity) -> CapacityAnswer:
    return CapacityAnswer(
        capacity.capacity_id,
        capacity.seats.max_sessions,
        WhenFull(capacity.seats.when_full),
        capacity.seats.tenant_object_id,
        capacity.active_sessions,
        instant(capacity.created_at),
        instant(capacity.modified_at),
    )


def _lease_values(lease: Lease) -> tuple[Any, ...]:
    instants = (instant(lease.acquired_at), instant(lease.renewed_at), instant(lease.expires_at))
    return (lease.name, lease.holder, lease.epoch, lease.held, *instants)


def lease_answer(lease: Lease) -> LeaseAnswer:
    return LeaseAnswer(*_lease_values(lease))


def lease_with_role(lease: Lease, leads: bool) -> LeaseWithRole:
    return LeaseWithRole(*_lease_values(lease), role="leader" if leads else "follower")


def job_answer(job: Job) -> JobAnswer:
    return JobAnswer(
        name=job.name,
        interval_seconds=seconds_number(job.interval_microseconds) or 0,
        lock_timeout_seconds=seconds_number(job.lock_timeout_microseconds) or 0,
        next_run_at=instant(job.next_run_at),
        retry_at=job.retry_at and instant(job.retry_at),
        last_start_at=job.last_start_at and instant(job.last_start_at),
        last_success_at=job.last_success_at and instant(job.last_success_at),
        last_duration_seconds=seconds_number(job.last_duration_microseconds),
        run_count=job.run_count,
        failures_in_a_row=job.failures_in_a_row,
        last_error=job.last_error,
        paused=job.paused,
    )


def run_answer(run: JobRun) -> RunAnswer:
    ended_at = run.ended_at and instant(run.ended_at)
    outcome = run.outcome and RunOutcome(run.outcome)
    return RunAnswer(instant(run.started_at), ended_at, run.holder, run.epoch, outcome or None, run.error)


def metrics_answer(counts: SessionCounts, counters: Counters) -> MetricsAnswer:
    def total(outcome: Outcome) -> int:
        return sum(count for (name, _), count in counters.opened.items() if name == outcome)

    return MetricsAnswer(
        active_sessions=counts.active,
        total_sessions=counts.total,
        active_by_kind={str(kind): count for kind, count in counts.active_by_kind.items()},
        active_by_state=counts.active_by_state,
        opened=total(Outcome.CREATED) + total(Outcome.UPGRADED),
        upgraded=total(Outcome.UPGRADED),
        closed_by_reason={reason.value: counters.closed.get(reason, 0) for reason in CloseReason},
        **{f"total_{name}": counters.streamed[name] for name in StreamCounters.__struct_fields__},
    )
