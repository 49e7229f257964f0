"""The seats of capacities, under the file's write lock: nobody else can open, close or count meanwhile."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from tenure.deadlines import as_recorded, closing_of, end_now
from tenure.model.sessions import Capacity, CloseReason, Closing, Open, Outcome, Seats, WhenFull
from tenure.store import capacities, sessions, tables
from tenure.store.engines.sqlite.writing import close

_table = tables.capacities
_sessions = tables.sessions


class SeatsOf:
    """The seats of one capacity with rules, during one batch of opens."""

    def __init__(self, connection: Connection, now: datetime, row: Row[Any]) -> None:
        self._connection = connection
        self._now = now
        self._row = row
        self._slack: int = row.slack
        self._counted = False
        self._held: list[str] = []
        self._recorded: set[str] = set()

    def refuses(self, wish: Open) -> bool:
        return self._row.tenant_object_id not in (None, wish.tenant_object_id)

    def hold(self, session_id: str) -> None:
        """Somebody in this batch was told that they have this session: it cannot be evicted in the same breath."""
        self._held.append(session_id)

    def has_recorded(self, session_id: str) -> bool:
        """This batch has written down that lapse already, for somebody who needed the seat."""
        return session_id in self._recorded

    def take(self) -> tuple[Outcome, Sequence[Closing]]:
        """CREATED if a seat is free or could be made free, and what was closed for it."""
        closings: list[Closing] = []
        if self._row.max_sessions is None:
            return Outcome.CREATED, closings
        if self._slack < 1 and not self._counted:
            self._counted = True
            closings += self._record_lapsed()
            self._slack = max(self._row.max_sessions - self._taken(), 0)
        if self._slack < 1 and self._row.when_full == WhenFull.EVICT_OLDEST:
            closings += self._evict()
        if self._slack < 1:
            # Another batch may evict what this one holds.
            come_again = self._row.when_full == WhenFull.EVICT_OLDEST and self._held and self._row.max_sessions > 0
            return Outcome.LIMITED if come_again else Outcome.SESSION_LIMIT, closings
        self._slack -= 1
        return Outcome.CREATED, closings

    def free_from(self) -> datetime:
        """A seat that was left later than now, because the clock was stepped back or a session had to last its one
        microsecond, is taken no earlier.
        """
        last = self._connection.execute(
            select(func.max(_sessions.c.closed_at)).where(
                _sessions.c.closed_at > self._now, _sessions.c.capacity_id == self._row.capacity_id
            )
        ).scalar_one()
        return max(self._now, last or self._now)

    def save(self) -> None:
        if self._slack != self._row.slack:
            mine = _table.c.capacity_id == self._row.capacity_id
            self._connection.execute(update(_table).where(mine).values(slack=self._slack))

    def _taken(self) -> int:
        statement = select(func.count()).select_from(_sessions).where(*self._unclosed())
        return self._connection.execute(statement).scalar_one()

    def _unclosed(self) -> list[Any]:
        return [_sessions.c.capacity_id == self._row.capacity_id, _sessions.c.closed_at.is_(None)]

    def _record_lapsed(self) -> Iterable[Closing]:
        lapsed = select(*sessions.COLUMNS).where(*self._unclosed(), _sessions.c.deadline_at <= self._now)
        for row in self._connection.execute(lapsed).all():
            self._recorded.add(row.session_id)
            yield closing_of(close(self._connection, as_recorded(sessions.session_from_row(row), self._now)))

    def _evict(self) -> Sequence[Closing]:
        """As many as it takes to be within the limit with one more; nobody, if there are not that many."""
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
        return [closing_of(close(self._connection, session)) for session in ended]


def seats_of(connection: Connection, now: datetime, wishes: Sequence[Open]) -> Mapping[str, SeatsOf]:
    """By capacity, of those that are limited or bound to a tenant."""
    # Asked first, because most have none, and asking this way costs a tenth.
    if connection.exec_driver_sql("SELECT 1 FROM capacities LIMIT 1").first() is None:
        return {}
    restricted = select(_table).where(
        _table.c.capacity_id.in_({wish.capacity_id for wish in wishes}),
        (_table.c.max_sessions.is_not(None)) | (_table.c.tenant_object_id.is_not(None)),
    )
    return {row.capacity_id: SeatsOf(connection, now, row) for row in connection.execute(restricted)}


def put_capacity(connection: Connection, now: datetime, capacity_id: str, seats: Seats) -> Capacity:
    values = {
        "max_sessions": seats.max_sessions,
        "when_full": seats.when_full,
        "tenant_object_id": seats.tenant_object_id,
        "slack": 0,
    }
    old = capacities.get_capacity(connection, capacity_id)
    if old is None:
        connection.execute(insert(_table).values(capacity_id=capacity_id, created_at=now, modified_at=now, **values))
    else:
        modified_at = max(old.modified_at, now)
        mine = _table.c.capacity_id == capacity_id
        connection.execute(update(_table).where(mine).values(modified_at=modified_at, **values))
    capacity = capacities.get_capacity(connection, capacity_id)
    if capacity is None:
        raise AssertionError("a capacity that was just written is there")
    return capacity


def delete_capacity(connection: Connection, _now: datetime, capacity_id: str) -> Capacity | None:
    old = capacities.get_capacity(connection, capacity_id)
    connection.execute(delete(_table).where(_table.c.capacity_id == capacity_id))
    return old
