"""The deadline of a session, at which it ends automatically.

The deadline is the earliest of the term's end, the last heartbeat plus the lease, and the last activity plus the idle
limit. A session whose deadline has passed has *lapsed*: for every caller it has ended, even if its end is not recorded
yet.

All functions are pure. Engines that compute these values in SQL must get the same results.
"""

from datetime import datetime, timedelta

import msgspec

from tenure.clock import MICROSECOND
from tenure.domain.sessions import ClosedSession, CloseReason, Limits, OpenRequest, Session, State, StreamCounters
from tenure.domain.streams import AttachRequest

MICROSECONDS = 1_000_000
HEARTBEATS_PER_LEASE = 12


def earliest(
    term_ends_at: datetime,
    last_heartbeat_at: datetime,
    lease_microseconds: int | None,
    last_activity_at: datetime,
    idle_microseconds: int | None,
) -> tuple[datetime, CloseReason]:
    """Return the deadline and its reason. On a tie, the term counts before the lease, and the lease before the idle
    limit.
    """
    deadline_at, reason = term_ends_at, CloseReason.EXPIRED
    if lease_microseconds is not None:
        lease_ends_at = last_heartbeat_at + timedelta(microseconds=lease_microseconds)
        if lease_ends_at < deadline_at:
            deadline_at, reason = lease_ends_at, CloseReason.LEASE_EXPIRED
    if idle_microseconds is not None:
        idle_ends_at = last_activity_at + timedelta(microseconds=idle_microseconds)
        if idle_ends_at < deadline_at:
            deadline_at, reason = idle_ends_at, CloseReason.IDLE_TIMEOUT
    return deadline_at, reason


def as_recorded(session: Session, now: datetime) -> Session:
    """Return the session as callers see it at `now`. A lapsed session is returned as it will be recorded."""
    if session.closed_at is not None or session.deadline_at > now:
        return session
    return msgspec.structs.replace(
        session,
        state=State.CLOSED.value,
        closed_at=session.deadline_at,
        close_reason=session.lapse_reason,
        modified_at=session.deadline_at,
    )


def end_now(session: Session, now: datetime, reason: str) -> Session:
    """Return the session with its end: at `now` and for `reason` or, if the session has lapsed, at its deadline and for
    its lapse reason. A session lasts at least 1 µs.
    """
    if session.deadline_at <= now:
        return as_recorded(session, now)
    # The end is after the start, even if the clock was stepped back, and never after the deadline.
    closed_at = min(session.deadline_at, max(now, session.started_at + MICROSECOND))
    return msgspec.structs.replace(
        session, state=State.CLOSED.value, closed_at=closed_at, close_reason=reason, modified_at=closed_at
    )


def renewed(session: Session, now: datetime, *, active: bool) -> Session:
    """Return a live session after a heartbeat at `now` that also reports activity if `active` is true. If the clock was
    stepped back, the deadline does not become earlier.
    """
    last_heartbeat_at = max(session.last_heartbeat_at, now)
    last_activity_at = max(session.last_activity_at, now) if active else session.last_activity_at
    deadline_at, reason = earliest(
        session.term_ends_at,
        last_heartbeat_at,
        session.lease_microseconds,
        last_activity_at,
        session.idle_microseconds,
    )
    return msgspec.structs.replace(
        session,
        last_heartbeat_at=last_heartbeat_at,
        last_activity_at=last_activity_at,
        state=State.ACTIVE.value if active else session.state,
        deadline_at=deadline_at,
        lapse_reason=reason.value,
        modified_at=max(session.modified_at, now),
    )


def attached(session: Session, now: datetime, attach: AttachRequest) -> Session:
    """Return a live session after a stream was attached. A missing lease or idle limit is taken from `attach`.

    A new idle limit counts from `now`.
    """
    lease, heartbeat = session.lease_microseconds, session.heartbeat_microseconds
    if lease is None:
        lease, heartbeat = attach.lease_microseconds, attach.heartbeat_microseconds
    idle, last_activity_at = session.idle_microseconds, session.last_activity_at
    if idle is None:
        idle, last_activity_at = attach.idle_microseconds, max(last_activity_at, now)
    limited = msgspec.structs.replace(
        session,
        lease_microseconds=lease,
        heartbeat_microseconds=heartbeat,
        idle_microseconds=idle,
        last_activity_at=last_activity_at,
        stream=session.stream or StreamCounters(0, 0, 0, 0, 0, 0, 0),
    )
    return renewed(limited, now, active=False)


def closed_session_of(session: Session) -> ClosedSession:
    """Return the end of a session: the recorded end or, if there is none, the deadline that the session has passed."""
    return _ending(session, session.close_reason or session.lapse_reason, session.closed_at or session.deadline_at)


def lapse_of(session: Session) -> ClosedSession:
    """Return the end of a session that has lapsed: its deadline and the reason of the lapse."""
    return _ending(session, session.lapse_reason, session.deadline_at)


def _ending(session: Session, reason: str, ended_at: datetime) -> ClosedSession:
    whose = session.user_object_id, session.tenant_object_id, session.capacity_id
    return ClosedSession(session.session_id, reason, ended_at, *whose)


def heartbeat_microseconds(lease_microseconds: int | None, configured: int) -> int | None:
    """Return the client's heartbeat interval: `configured` or, if that is 0, a twelfth of the lease in whole seconds,
    at least one second. Without a lease, None.
    """
    if lease_microseconds is None:
        return None
    return configured or max(lease_microseconds // HEARTBEATS_PER_LEASE // MICROSECONDS, 1) * MICROSECONDS


class Span(msgspec.Struct, frozen=True):
    """The limits of a session that starts at a given instant, with its first deadline."""

    lease_microseconds: int | None
    idle_microseconds: int | None
    heartbeat_microseconds: int | None
    term_ends_at: datetime
    deadline_at: datetime
    lapse_reason: str


def span_of(limits: Limits, started_at: datetime) -> Span:
    lease, idle = limits.lease_microseconds, limits.idle_microseconds
    term_ends_at = started_at + limits.term
    deadline_at, lapse_reason = earliest(term_ends_at, started_at, lease, started_at, idle)
    return Span(lease, idle, limits.heartbeat_microseconds, term_ends_at, deadline_at, lapse_reason.value)


def own_limits(request: OpenRequest, limits: Limits) -> Limits:
    """Return the limits of the request; `limits` supplies those that the request does not set."""
    lease, heartbeat, idle = request.lease_microseconds, request.heartbeat_microseconds, request.idle_microseconds
    if lease is None:
        lease, heartbeat = limits.lease_microseconds, limits.heartbeat_microseconds
    return Limits(limits.term, lease, limits.idle_microseconds if idle is None else idle, heartbeat)


def opened(request: OpenRequest, limits: Limits, started_at: datetime, span: Span | None = None) -> Session:
    """Return the session that `request` created at `started_at`. The result must equal the row that the engine wrote.

    The caller may compute `span_of(limits, started_at)` once for a batch, and pass it as `span` with each request. A
    request with limits of its own ignores `span`.
    """
    if span is None or request.lease_microseconds is not None or request.idle_microseconds is not None:
        span = span_of(own_limits(request, limits), started_at)
    return Session(
        session_id=request.session_id,
        tenant_object_id=request.tenant_object_id,
        user_object_id=request.user_object_id,
        capacity_id=request.capacity_id,
        kind=request.kind,
        state="created",
        started_at=started_at,
        term_ends_at=span.term_ends_at,
        deadline_at=span.deadline_at,
        lapse_reason=span.lapse_reason,
        lease_microseconds=span.lease_microseconds,
        idle_microseconds=span.idle_microseconds,
        heartbeat_microseconds=span.heartbeat_microseconds,
        last_heartbeat_at=started_at,
        last_activity_at=started_at,
        modified_at=started_at,
    )
