"""A model of sessions in plain Python, without SQL, locks and races. The tests compare the engines with the model.

Engines have one choice: when an engine counts the seats of a capacity, it may record the ends of lapsed sessions of the
capacity, but need not. The model receives the ends that the engine recorded, and records the same ends, except those
of sessions that have not lapsed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import astuple, replace

from tenure.domain.capacities import Capacity, Seats, WhenFull
from tenure.domain.sessions import (
    ClosedSession,
    CloseReason,
    Found,
    Heartbeat,
    HeartbeatResult,
    Limits,
    OpenOutcome,
    OpenRequest,
    OpenResult,
    Session,
    SessionCounts,
    State,
    StreamCounters,
    SweepResult,
)
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tests.support.open_requests import ending

MICROSECOND = timedelta(microseconds=1)
NOTHING = StreamCounters(0, 0, 0, 0, 0, 0, 0)


def with_deadline(session: Session) -> Session:
    """Sets the deadline: the earliest end of term, lease and idle limit. On a tie, the first in this order decides the
    close reason.
    """
    limits = [(session.term_ends_at, 0, CloseReason.EXPIRED)]
    if session.lease_microseconds is not None:
        lease = session.last_heartbeat_at + session.lease_microseconds * MICROSECOND
        limits.append((lease, 1, CloseReason.LEASE_EXPIRED))
    if session.idle_microseconds is not None:
        idle = session.last_activity_at + session.idle_microseconds * MICROSECOND
        limits.append((idle, 2, CloseReason.IDLE_TIMEOUT))
    deadline_at, _, reason = min(limits)
    return replace(session, deadline_at=deadline_at, lapse_reason=reason.value)


def as_read(session: Session, now: datetime) -> Session:
    if session.closed_at is None and session.deadline_at <= now:
        return closed(session, session.deadline_at, session.lapse_reason)
    return session


def closed(session: Session, closed_at: datetime, reason: str) -> Session:
    return replace(session, state="closed", closed_at=closed_at, close_reason=str(reason), modified_at=closed_at)


class SessionModel:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.recorded: dict[str, Session] = {}
        self.check_at: dict[str, datetime | None] = {}
        self.attachments: dict[str, int] = {}
        self.saves: Counter[tuple[str, int]] = Counter()
        self.capacities: dict[str, Capacity] = {}

    # Opening

    def open(self, request: OpenRequest, now: datetime, closed_sessions: Sequence[ClosedSession]) -> OpenResult:
        """`closed_sessions` are the sessions that the engine closed for this request."""
        own = self._unended(request.key)
        if own is not None and own.deadline_at > now:
            if own.tenant_object_id != request.tenant_object_id:
                return OpenResult(OpenOutcome.TENANT_MISMATCH)
            if own.kind >= request.kind:
                return OpenResult(OpenOutcome.EXISTING, own)
        seats = self._seats(request.capacity_id)
        if seats.tenant_object_id not in (None, request.tenant_object_id):
            return OpenResult(OpenOutcome.CAPACITY_OF_ANOTHER_TENANT)
        if own is not None and own.deadline_at > now:
            return self._upgrade(request, own, max(now, own.started_at + MICROSECOND))
        if seats == replace(Seats(), when_full=seats.when_full):
            return self._open_freely(request, own, now)
        return self._open_seated(request, own, now, seats, closed_sessions)

    def _open_freely(self, request: OpenRequest, own: Session | None, now: datetime) -> OpenResult:
        closed = [] if own is None else [self._lapse(own)]
        return self._begin(request, self._after_ends(now, request.key), closed)

    def _open_seated(
        self,
        request: OpenRequest,
        own: Session | None,
        now: datetime,
        seats: Seats,
        closed_sessions: Sequence[ClosedSession],
    ) -> OpenResult:
        closed = [] if own is None else [self._lapse(own)]
        lapsed = {s.session_id: s for s in self._unended_on(request.capacity_id) if s.deadline_at <= now}
        closed += [self._lapse(lapsed[one.session_id]) for one in closed_sessions if one.session_id in lapsed]
        live = [s for s in self._unended_on(request.capacity_id) if s.deadline_at > now]
        if seats.max_sessions is not None and len(live) >= seats.max_sessions:
            if seats.when_full == WhenFull.REJECT or seats.max_sessions == 0:
                return OpenResult(OpenOutcome.SESSION_LIMIT, None, closed)
            closed += [self._evict(victim, now) for victim in _oldest(live, len(live) - seats.max_sessions + 1)]
        return self._begin(request, self._after_ends(now, (request.capacity_id,)), closed)

    def _evict(self, session: Session, now: datetime) -> ClosedSession:
        ended_at = min(session.deadline_at, max(now, session.started_at + MICROSECOND))
        return self._close(session, ended_at, CloseReason.EVICTED)

    def _upgrade(self, request: OpenRequest, old: Session, now: datetime) -> OpenResult:
        self._close(old, now, CloseReason.UPGRADED)
        inherited = Limits(self._limits.term, old.lease_microseconds, old.idle_microseconds, old.heartbeat_microseconds)
        new = replace(_begun(request, inherited, now), previous_session_id=old.session_id)
        self._add(new)
        return OpenResult(OpenOutcome.UPGRADED, new)

    def _begin(self, request: OpenRequest, now: datetime, closed: Sequence[ClosedSession]) -> OpenResult:
        session = _begun(request, self._limits, now)
        self._add(session)
        return OpenResult(OpenOutcome.CREATED, session, closed)

    def _add(self, session: Session) -> None:
        self.recorded[session.session_id] = session
        self.check_at[session.session_id] = session.deadline_at
        self.attachments[session.session_id] = 0

    # Heartbeats, ends and the sweep

    def heartbeat(self, heartbeat: Heartbeat, now: datetime) -> HeartbeatResult:
        session = self.recorded.get(heartbeat.session_id)
        if session is None:
            return HeartbeatResult(Found.UNKNOWN)
        closing = self._lapse(session) if session.closed_at is None and session.deadline_at <= now else None
        if session.closed_at is None and closing is None:
            self._renew(session, now, active=heartbeat.active)
        session = self.recorded[session.session_id]
        found = Found.LIVE if session.closed_at is None else Found.OVER
        return HeartbeatResult(
            found, session.state, session.deadline_at, session.heartbeat_microseconds, session.close_reason, closing
        )

    def end(self, session_id: str, reason: CloseReason, now: datetime) -> Session:
        session = self.recorded[session_id]
        if session.closed_at is None:
            if session.deadline_at <= now:
                self._lapse(session)
            else:
                self._close(session, max(now, session.started_at + MICROSECOND), reason)
        return self.recorded[session_id]

    def sweep(self, now: datetime) -> SweepResult:
        due = [session_id for session_id, at in self.check_at.items() if at is not None and at <= now]
        closed = []
        for session_id in due:
            session = self.recorded[session_id]
            if session.deadline_at > now:
                self.check_at[session_id] = session.deadline_at
            elif session.closed_at is None:
                closed.append(self._lapse(session))
            else:
                self.recorded[session_id] = replace(session, state="closed")
                self.check_at[session_id] = None
        return SweepResult(closed, len(due))

    def _renew(self, session: Session, now: datetime, *, active: bool) -> None:
        changes: dict[str, Any] = {"last_heartbeat_at": max(session.last_heartbeat_at, now)}
        if active:
            changes |= {"state": "active", "last_activity_at": max(session.last_activity_at, now)}
        changes["modified_at"] = max(session.modified_at, now)
        self.recorded[session.session_id] = with_deadline(replace(session, **changes))

    # Streams

    def attach(self, attach: AttachRequest, now: datetime) -> AttachResult:
        session = self.recorded[attach.session_id]
        closing = self._lapse(session) if session.closed_at is None and session.deadline_at <= now else None
        if session.closed_at is not None or closing is not None:
            return self._attached(Found.OVER, attach, now, closing)
        changes: dict[str, Any] = {"stream": session.stream or NOTHING}
        if session.lease_microseconds is None:
            changes |= {
                "lease_microseconds": attach.lease_microseconds,
                "heartbeat_microseconds": attach.heartbeat_microseconds,
            }
        if session.idle_microseconds is None:
            changes |= {
                "idle_microseconds": attach.idle_microseconds,
                "last_activity_at": max(session.last_activity_at, now),
            }
        self._renew(replace(session, **changes), now, active=False)
        check_at = self.check_at[attach.session_id]
        self.check_at[attach.session_id] = check_at and min(check_at, self.recorded[attach.session_id].deadline_at)
        self.attachments[attach.session_id] += 1
        return self._attached(Found.LIVE, attach, now, None)

    def _attached(
        self, found: Found, attach: AttachRequest, now: datetime, closing: ClosedSession | None
    ) -> AttachResult:
        session_id = attach.session_id
        return AttachResult(found, self.recorded[session_id], self.attachments[session_id], now, closing)

    def update_stream(self, stream_update: StreamUpdate, now: datetime) -> StreamUpdateResult:
        session_id = stream_update.session_id
        session = self.recorded[session_id]
        is_current = self.attachments[session_id] == stream_update.attachment
        was_open = session.closed_at is None
        stream = (session_id, stream_update.attachment)
        is_new = stream_update.save > self.saves[stream]
        is_live = was_open and session.deadline_at > now
        is_added = is_new and (is_live or stream_update.end is not None or stream_update.finished)
        if is_added:
            session = replace(session, stream=_sum(session.stream or NOTHING, stream_update.counted))
            self.saves[stream] = stream_update.save
        counted = is_added or not is_new
        self._apply_update(session, stream_update, now, is_current=is_current)
        session = self.recorded[session_id]
        if session.closed_at is not None:
            return StreamUpdateResult(Found.OVER, session, now, recorded=was_open, counted=counted)
        return StreamUpdateResult(Found.LIVE if is_current else Found.REPLACED, session, now, counted=counted)

    def _apply_update(self, session: Session, stream_update: StreamUpdate, now: datetime, *, is_current: bool) -> None:
        updated = replace(session, modified_at=max(session.modified_at, now))
        if session.closed_at is None and session.deadline_at <= now:
            self._lapse(session)
        elif not is_current:
            self.recorded[session.session_id] = updated
        elif session.closed_at is not None:
            self._settle(updated, finished=stream_update.finished or updated.state == State.CLOSED)
        elif stream_update.end is None:
            self._renew(session, now, active=stream_update.active)
        else:
            ended_at = max(now, session.started_at + MICROSECOND)
            activity = max(session.last_activity_at, now) if stream_update.active else session.last_activity_at
            ended = replace(updated, closed_at=ended_at, close_reason=stream_update.end, last_activity_at=activity)
            self._settle(ended, finished=stream_update.finished)

    def _settle(self, session: Session, *, finished: bool) -> None:
        self.recorded[session.session_id] = replace(session, state="closed" if finished else "closing")
        if finished:
            self.check_at[session.session_id] = None

    # Capacities and reads

    def put_capacity(self, capacity_id: str, seats: Seats, now: datetime) -> Capacity:
        old = self.capacities.get(capacity_id)
        if old is not None and old.seats == seats:
            return self.read_capacities(now)[capacity_id]
        self.capacities[capacity_id] = Capacity(
            capacity_id=capacity_id,
            seats=seats,
            active_sessions=0,
            created_at=now if old is None else old.created_at,
            modified_at=now if old is None else max(now, old.modified_at),
        )
        return self.read_capacities(now)[capacity_id]

    def delete_capacity(self, capacity_id: str, now: datetime) -> Capacity | None:
        old = self.read_capacities(now).get(capacity_id)
        self.capacities.pop(capacity_id, None)
        return old

    def read(self, now: datetime) -> dict[str, Session]:
        return {session_id: as_read(session, now) for session_id, session in self.recorded.items()}

    def read_capacities(self, now: datetime) -> Mapping[str, Capacity]:
        live = [s.capacity_id for s in self.read(now).values() if s.closed_at is None]
        return {one: replace(capacity, active_sessions=live.count(one)) for one, capacity in self.capacities.items()}

    def count(self, now: datetime) -> SessionCounts:
        live = [s for s in self.read(now).values() if s.closed_at is None]
        by_kind = {kind: sum(s.kind == kind for s in live) for kind in (1, 2, 3)}
        by_state = {state: sum(s.state == state for s in live) for state in ("created", "active")}
        return SessionCounts(len(self.recorded), by_kind, by_state)

    def _lapse(self, session: Session) -> ClosedSession:
        return self._close(session, session.deadline_at, session.lapse_reason)

    def _close(self, session: Session, closed_at: datetime, reason: str) -> ClosedSession:
        self.recorded[session.session_id] = closed(session, closed_at, reason)
        self.check_at[session.session_id] = None
        return ending(session, str(reason), closed_at)

    def _seats(self, capacity_id: str) -> Seats:
        capacity = self.capacities.get(capacity_id)
        return Seats() if capacity is None else capacity.seats

    def _after_ends(self, now: datetime, key: tuple[str, ...]) -> datetime:
        """Returns `now`, or the latest end of a session of the key, whichever is later. A key with only a capacity
        matches all sessions of the capacity.
        """
        ends = [s.closed_at for s in self.recorded.values() if (s.capacity_id, s.user_object_id)[: len(key)] == key]
        return max([now, *(end for end in ends if end is not None)])

    def _unended_on(self, capacity_id: str) -> Iterable[Session]:
        return [s for s in self.recorded.values() if s.capacity_id == capacity_id and s.closed_at is None]

    def _unended(self, key: tuple[str, str]) -> Session | None:
        return next((s for s in self._unended_on(key[0]) if s.user_object_id == key[1]), None)


def _begun(request: OpenRequest, limits: Limits, now: datetime) -> Session:
    lease, heartbeat = request.lease_microseconds, request.heartbeat_microseconds
    if lease is None:
        lease, heartbeat = limits.lease_microseconds, limits.heartbeat_microseconds
    return with_deadline(
        Session(
            session_id=request.session_id,
            tenant_object_id=request.tenant_object_id,
            user_object_id=request.user_object_id,
            capacity_id=request.capacity_id,
            kind=request.kind,
            state="created",
            started_at=now,
            term_ends_at=now + limits.term,
            deadline_at=now,
            lapse_reason="",
            lease_microseconds=lease,
            idle_microseconds=limits.idle_microseconds
            if request.idle_microseconds is None
            else request.idle_microseconds,
            heartbeat_microseconds=heartbeat,
            last_heartbeat_at=now,
            last_activity_at=now,
            modified_at=now,
        )
    )


def _oldest(live: Iterable[Session], count: int) -> Sequence[Session]:
    return sorted(live, key=lambda s: (s.last_activity_at, s.session_id))[:count]


def _sum(one: StreamCounters, other: StreamCounters) -> StreamCounters:
    return StreamCounters(*(left + right for left, right in zip(astuple(one), astuple(other), strict=True)))
