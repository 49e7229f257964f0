"""Capacities and their seats. The file's write lock excludes other transactions that open or close sessions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from tenure.domain.audit_log import Action, Actor
from tenure.domain.capacities import Capacity, Seats, WhenFull, rules_text
from tenure.domain.deadlines import as_recorded, closed_session_of, end_now
from tenure.domain.scope import Scope
from tenure.domain.sessions import ClosedSession, CloseReason, OpenOutcome, OpenRequest
from tenure.store import tables
from tenure.store.engines.sqlite.audit_log import write_audit_entry
from tenure.store.engines.sqlite.sessions import close
from tenure.store.reads import capacities, sessions

_table = tables.capacities
_sessions = tables.sessions


class CapacitySeats:
    """The seats of one capacity that has rules (a limit or a tenant), during one batch of open requests."""

    def __init__(self, connection: Connection, now: datetime, row: Row[Any]) -> None:
        self._connection = connection
        self._now = now
        self._row = row
        self._slack: int = row.slack
        self._counted = False
        self._held: list[str] = []
        self._recorded: set[str] = set()

    def refuses(self, request: OpenRequest) -> bool:
        return self._row.tenant_object_id not in (None, request.tenant_object_id)

    def hold(self, session_id: str) -> None:
        """Protects a session that this batch returns to its user: the batch must not evict it."""
        self._held.append(session_id)

    def has_recorded(self, session_id: str) -> bool:
        """Whether this batch has already recorded the lapse of the session, because another request needed its seat."""
        return session_id in self._recorded

    def take(self) -> tuple[OpenOutcome, Sequence[ClosedSession]]:
        """Takes a seat if one is free or can be freed. Returns the outcome, and the sessions closed to free a seat."""
        closed_sessions: list[ClosedSession] = []
        if self._row.max_sessions is None:
            return OpenOutcome.CREATED, closed_sessions
        if self._slack < 1 and not self._counted:
            self._counted = True
            closed_sessions += self._record_lapsed()
            self._slack = max(self._row.max_sessions - self._taken(), 0)
        if self._slack < 1 and self._row.when_full == WhenFull.EVICT_OLDEST:
            closed_sessions += self._evict()
        if self._slack < 1:
            # LIMITED makes the caller retry: a later batch may evict the sessions that this batch must not evict.
            retry = self._row.when_full == WhenFull.EVICT_OLDEST and self._held and self._row.max_sessions > 0
            return OpenOutcome.LIMITED if retry else OpenOutcome.SESSION_LIMIT, closed_sessions
        self._slack -= 1
        return OpenOutcome.CREATED, closed_sessions

    def free_from(self) -> datetime:
        """Returns the earliest instant at which the new session may start: now or, if it is later, the latest end on
        this capacity. An end can be later than now because the clock was stepped back, or because a session lasts at
        least one microsecond.
        """
        last = self._connection.execute(
            select(func.max(_sessions.c.closed_at)).where(
                _sessions.c.closed_at > self._now, _sessions.c.capacity_id == self._row.capacity_id
            )
        ).scalar_one()
        return max(self._now, last or self._now)

    def save(self) -> None:
        if self._slack != self._row.slack:
            this_capacity = _table.c.capacity_id == self._row.capacity_id
            self._connection.execute(update(_table).where(this_capacity).values(slack=self._slack))

    def _taken(self) -> int:
        statement = select(func.count()).select_from(_sessions).where(*self._unclosed())
        return self._connection.execute(statement).scalar_one()

    def _unclosed(self) -> list[Any]:
        return [
            _sessions.c.capacity_id == self._row.capacity_id,
            _sessions.c.closed_at.is_(None),
            sessions.SEATED,
        ]

    def _record_lapsed(self) -> Iterable[ClosedSession]:
        lapsed = select(*sessions.COLUMNS).where(*self._unclosed(), _sessions.c.deadline_at <= self._now)
        for row in self._connection.execute(lapsed).all():
            self._recorded.add(row.session_id)
            yield closed_session_of(close(self._connection, as_recorded(sessions.session_from_row(row), self._now)))

    def _evict(self) -> Sequence[ClosedSession]:
        """Evicts the sessions that must end to free one seat. Evicts none if too few can be evicted."""
        needed = self._taken() - self._row.max_sessions + 1
        oldest = (
            select(*sessions.COLUMNS)
            .where(*self._unclosed(), _sessions.c.session_id.not_in(self._held))
            .order_by(_sessions.c.last_activity_at, _sessions.c.session_id)
            .limit(needed)
        )
        victims = self._connection.execute(oldest).all()
        if self._row.max_sessions < 1 or len(victims) < needed:
            return []
        self._slack = 1
        ended = [end_now(sessions.session_from_row(row), self._now, CloseReason.EVICTED.value) for row in victims]
        return [closed_session_of(close(self._connection, session)) for session in ended]


def seats_of(connection: Connection, now: datetime, requests: Sequence[OpenRequest]) -> Mapping[str, CapacitySeats]:
    """Returns the seats by capacity id, for those capacities that have a limit or a tenant."""
    # In most installations no capacity has rules, and this query takes a tenth of the time of the next one.
    if connection.exec_driver_sql("SELECT 1 FROM capacities LIMIT 1").first() is None:
        return {}
    restricted = select(_table).where(
        _table.c.capacity_id.in_({request.capacity_id for request in requests}),
        (_table.c.max_sessions.is_not(None)) | (_table.c.tenant_object_id.is_not(None)),
    )
    return {row.capacity_id: CapacitySeats(connection, now, row) for row in connection.execute(restricted)}


def put_capacity(
    connection: Connection, now: datetime, capacity_id: str, seats: Seats, scope: Scope, actor: Actor
) -> Capacity | None:
    old = capacities.get_capacity(connection, capacity_id, scope)
    if old is None and scope.tenant is not None:
        return None
    if old is not None and old.seats == seats:
        return old
    values = {
        "max_sessions": seats.max_sessions,
        "when_full": seats.when_full,
        "tenant_object_id": seats.tenant_object_id,
        "slack": 0,
    }
    if old is None:
        connection.execute(insert(_table).values(capacity_id=capacity_id, created_at=now, modified_at=now, **values))
    else:
        modified_at = max(old.modified_at, now)
        this_capacity = _table.c.capacity_id == capacity_id
        connection.execute(update(_table).where(this_capacity).values(modified_at=modified_at, **values))
    detail = f"{rules_text(None if old is None else old.seats)} -> {rules_text(seats)}"
    write_audit_entry(connection, now, actor, Action.CAPACITY_CHANGED, capacity_id, detail)
    return capacities.get_capacity(connection, capacity_id, scope)


def delete_capacity(
    connection: Connection, now: datetime, capacity_id: str, scope: Scope, actor: Actor
) -> Capacity | None:
    old = capacities.get_capacity(connection, capacity_id, scope)
    if old is None:
        return None
    connection.execute(delete(_table).where(_table.c.capacity_id == capacity_id))
    write_audit_entry(connection, now, actor, Action.CAPACITY_DELETED, capacity_id, rules_text(old.seats))
    return old
