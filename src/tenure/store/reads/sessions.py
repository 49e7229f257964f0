"""Statements and rows of the `sessions` table that all engines share: the reads, and ending a session.

`get_session` and the counts of live sessions compare deadlines with the database's clock. `get_session` returns a
lapsed session as the sweep will record it, and the counts leave it out.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    RowMapping,
    Select,
    Update,
    and_,
    func,
    literal_column,
    select,
    update,
)

from tenure.domain.deadlines import as_recorded
from tenure.domain.scope import Scope
from tenure.domain.sessions import Session, SessionCounts, State, StreamCounters
from tenure.domain.usage import Overlap
from tenure.store.expressions import database_now, unsearched
from tenure.store.tables import sessions
from tenure.store.types import Id

COUNTERS = tuple(column for column in sessions.c if column.name.startswith("stream_"))
_ENGINE_ONLY = ("check_at", "attachment", "attachment_saves", "replaced_saves", "end_entry_id")
FACTS = tuple(column for column in sessions.c if column.name not in _ENGINE_ONLY and column not in COUNTERS)
COLUMNS = (*FACTS, *COUNTERS)
"""The columns of a `Session`: all except those that only the engines use."""
OF_ANY_KIND = sessions.c.kind > literal_column("0")
"""Always true. Without it the planner does not use the index `sessions_live_id`."""
SEATED = sessions.c.kind < literal_column("4")
"""Always true. Without it the planner does not use the index `sessions_live_capacity`."""


def session_from_row(row: Row[Any]) -> Session:
    return session_from_values(row._mapping)  # noqa: SLF001 - public in SQLAlchemy


def session_from_values(values: RowMapping | Mapping[str, Any]) -> Session:
    """Returns a session from the values of a table row by column name."""
    counters: list[Any] = [values[column.name] for column in COUNTERS]
    stream = None if counters[0] is None else StreamCounters(*counters)
    facts: dict[str, Any] = {column.name: values[column.name] for column in FACTS}
    if facts["last_activity_at"] is None:
        facts["last_activity_at"] = facts["started_at"]
    if facts["modified_at"] is None:
        facts["modified_at"] = facts["closed_at"] or facts["last_heartbeat_at"]
    return Session(stream=stream, **facts)


def get_session(connection: Connection, session_id: str, scope: Scope) -> Session | None:
    row = connection.execute(get_statement(session_id, scope)).one_or_none()
    return None if row is None else as_recorded(session_from_row(row), row.now)


def get_statement(session_id: str, scope: Scope) -> Select[Any]:
    # The row is found by its id, and only then compared with the scope, so that every id costs the same work.
    narrowed = [unsearched(condition) for condition in in_scope(scope)]
    return select(*COLUMNS, database_now().label("now")).where(sessions.c.session_id == session_id, *narrowed)


def in_scope(scope: Scope) -> Sequence[ColumnElement[bool]]:
    """The conditions that select the sessions of a scope; none if the scope is not bound."""
    wanted = ((sessions.c.tenant_object_id, scope.tenant), (sessions.c.user_object_id, scope.user))
    return [column == value for column, value in wanted if value is not None]


def read_now(connection: Connection) -> datetime:
    now: datetime = connection.execute(select(database_now())).scalar_one()
    return now


def count_sessions(connection: Connection, scope: Scope) -> SessionCounts:
    total = connection.execute(total_statement(scope)).scalar_one()
    by_kind: dict[int, int] = dict.fromkeys((1, 2, 3), 0)
    by_state: dict[str, int] = {State.CREATED.value: 0, State.ACTIVE.value: 0}
    for kind, state, count in connection.execute(count_statement(read_now(connection), scope)):
        by_kind[kind] += count
        by_state[state] += count
    return SessionCounts(total, by_kind, by_state)


def total_statement(scope: Scope) -> Select[Any]:
    count = select(func.count()).select_from(sessions)
    if not scope.is_bound:
        return count
    # One index has the live sessions of a tenant, another one the closed sessions.
    live, closed = (
        count.where(*in_scope(scope), end).scalar_subquery()
        for end in (sessions.c.close_reason.is_(None), sessions.c.close_reason.is_not(None))
    )
    return select(live + closed)


def count_active_sessions(connection: Connection, scope: Scope) -> int:
    return sum(count for _, _, count in connection.execute(count_statement(read_now(connection), scope)))


def count_statement(now: datetime, scope: Scope) -> Select[Any]:
    live = and_(sessions.c.closed_at.is_(None), sessions.c.deadline_at > now)
    if scope.is_bound:
        # Repeat the condition of the index by tenant. Otherwise the planner could not use this index.
        live = and_(live, sessions.c.close_reason.is_(None), *in_scope(scope))
    return (
        select(sessions.c.kind, sessions.c.state, func.count()).where(live).group_by(sessions.c.kind, sessions.c.state)
    )


def whole_statement(session_id: str) -> Select[Any]:
    return select(*COLUMNS).where(sessions.c.session_id == session_id)


def close_statement(closed: Session) -> Update:
    """Records the end of `closed`. Finds the row by id and `state`. With a condition on `closed_at` instead, the
    planner might choose a partial index.
    """
    return (
        update(sessions)
        .where(
            sessions.c.session_id == closed.session_id,
            sessions.c.state.in_((State.CREATED.value, State.ACTIVE.value)),
        )
        .values(
            state=closed.state,
            closed_at=closed.closed_at,
            close_reason=closed.close_reason,
            check_at=None,
            modified_at=closed.modified_at,
        )
    )


def find_overlaps(connection: Connection, limit: int) -> Sequence[Overlap]:
    return [Overlap(*row) for row in connection.execute(overlaps_statement(limit))]


def overlaps_statement(limit: int) -> Select[Any]:
    """Compares consecutive sessions only: if any two sessions of a key overlap, two consecutive ones overlap too."""
    by_key: Any = {
        "partition_by": (sessions.c.capacity_id, sessions.c.user_object_id),
        "order_by": (sessions.c.started_at, sessions.c.session_id),
    }
    ordered = select(
        sessions.c.session_id,
        func.coalesce(sessions.c.closed_at, sessions.c.deadline_at).label("ended_at"),
        func.lead(sessions.c.session_id, type_=Id()).over(**by_key).label("next_session_id"),
        func.lead(sessions.c.started_at).over(**by_key).label("next_started_at"),
    ).subquery("ordered")
    overlaps = ordered.c.next_started_at < ordered.c.ended_at
    return select(ordered.c.session_id, ordered.c.next_session_id).where(overlaps).limit(limit)
