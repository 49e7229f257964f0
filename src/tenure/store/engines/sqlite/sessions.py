"""Heartbeats, ends, the sweep, and row access for other modules, under the write lock of the SQLite file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, select, text, update

from tenure.clock import to_microseconds
from tenure.domain.audit_log import Action, AuditDraft
from tenure.domain.deadlines import as_recorded, closed_session_of, end_now, renewed
from tenure.domain.scope import Scope
from tenure.domain.sessions import (
    CloseReason,
    EndManyResult,
    EndRequest,
    EndResult,
    Found,
    Heartbeat,
    HeartbeatResult,
    Session,
    SessionFilter,
    State,
    StreamCounters,
    SweepResult,
)
from tenure.store import tables
from tenure.store.engines.sqlite.audit_log import count_changes, write_audit_entry
from tenure.store.reads import sessions
from tenure.store.reads.keys import get_audit_entry

_table = tables.sessions


def heartbeat(connection: Connection, now: datetime, heartbeats: Sequence[Heartbeat]) -> Sequence[HeartbeatResult]:
    found = sessions_by_id(connection, (heartbeat.session_id for heartbeat in heartbeats))
    outcomes = [
        _renew_or_record(connection, now, in_scope(found.get(heartbeat.session_id), heartbeat.scope), heartbeat)
        for heartbeat in heartbeats
    ]
    renew(connection, [session for session, _ in outcomes if session is not None])
    return [result for _, result in outcomes]


def _renew_or_record(
    connection: Connection, now: datetime, session: Session | None, heartbeat: Heartbeat
) -> tuple[Session | None, HeartbeatResult]:
    """Returns the renewed session (None if it is not live) and the result. Records the end of a lapsed session."""
    if session is None:
        return None, HeartbeatResult(Found.UNKNOWN)
    if session.closed_at is None and session.deadline_at > now:
        live = renewed(session, now, active=heartbeat.active)
        return live, HeartbeatResult(Found.LIVE, live.state, live.deadline_at, live.heartbeat_microseconds)
    recorded = session.closed_at is None
    ended = close(connection, as_recorded(session, now)) if recorded else session
    closed = closed_session_of(ended) if recorded else None
    return None, HeartbeatResult(
        Found.OVER, ended.state, ended.deadline_at, ended.heartbeat_microseconds, ended.close_reason, closed
    )


def end_sessions(connection: Connection, now: datetime, ends: Sequence[EndRequest]) -> Sequence[EndResult]:
    found = sessions_by_id(connection, (end.session_id for end in ends))
    return [_end(connection, now, in_scope(found.get(end.session_id), end.scope), end) for end in ends]


def _end(connection: Connection, now: datetime, session: Session | None, end: EndRequest) -> EndResult:
    if session is None:
        return EndResult(Found.UNKNOWN)
    if session.closed_at is not None:
        return EndResult(Found.OVER, session)
    ended = close(connection, end_now(session, now, end.reason))
    if session.deadline_at > now:
        write_audit_entry(connection, now, end.actor, Action.SESSION_ENDED, end.session_id, end.reason)
    return EndResult(Found.OVER, ended, recorded=True)


def end_matching(
    connection: Connection, now: datetime, session_ids: Sequence[str], criteria: SessionFilter, draft: AuditDraft
) -> EndManyResult:
    entry = get_audit_entry(connection, draft.entry_id)
    if entry is not None and not draft.is_of(entry):
        return EndManyResult([], same=False)
    found = sessions_by_id(connection, session_ids).values()
    matching = [
        session
        for session in found
        if session.closed_at is None and criteria.matches(session) and (entry is None or session.started_at <= entry.at)
    ]
    ended = [session.session_id for session in matching if session.deadline_at > now]
    closed = [close(connection, end_now(session, now, CloseReason.TERMINATED.value)) for session in matching]
    connection.execute(
        update(_table).where(_table.c.session_id.in_(ended)).values(end_entry_id=draft.entry_id),
    )
    count_changes(connection, now, draft, len(ended))
    total = len(ended) + (0 if entry is None else entry.changes)
    return EndManyResult([closed_session_of(session) for session in closed], 0, total)


def expire_sessions(connection: Connection, now: datetime, limit: int) -> SweepResult:
    due = select(*sessions.COLUMNS).where(_table.c.check_at <= now).order_by(_table.c.check_at).limit(limit)
    found = [sessions.session_from_row(row) for row in connection.execute(due)]
    past_deadline = [session for session in found if session.deadline_at <= now]
    lapsed = [as_recorded(session, now) for session in past_deadline if session.closed_at is None]
    for session in lapsed:
        close(connection, session)
    _finish_closing(connection, [session for session in past_deadline if session.state == State.CLOSING])
    _postpone_check(connection, [session for session in found if session.deadline_at > now])
    return SweepResult([closed_session_of(session) for session in lapsed], len(found))


def _finish_closing(connection: Connection, closing: Sequence[Session]) -> None:
    for session in closing:
        connection.execute(
            update(_table)
            .where(_table.c.session_id == session.session_id)
            .values(state=State.CLOSED.value, check_at=None)
        )


def _postpone_check(connection: Connection, live: Sequence[Session]) -> None:
    if live:
        connection.execute(
            update(_table).where(_table.c.session_id == bindparam("id")).values(check_at=bindparam("at")),
            [{"id": session.session_id, "at": session.deadline_at} for session in live],
        )


_BY_ID = text(
    f"SELECT {', '.join(f's.{column.name}' for column in sessions.COLUMNS)}, "  # noqa: S608 - no input in it
    "s.attachment, s.attachment_saves, s.replaced_saves "
    "FROM json_each(:ids) AS requested CROSS JOIN sessions AS s WHERE s.session_id = requested.value"
).columns(*sessions.COLUMNS)


def rows_by_id(connection: Connection, session_ids: Iterable[str]) -> Sequence[Any]:
    """Returns rows with the columns of a `Session` and the columns of the attachment."""
    return connection.execute(_BY_ID, {"ids": json.dumps(list(session_ids))}).all()


Row = TypeVar("Row", bound=Any)


def in_scope(found: Row | None, scope: Scope) -> Row | None:
    """Returns `found`, which is a session or its row; None if the session is outside the scope."""
    return found if found is not None and scope.admits(found.tenant_object_id, found.user_object_id) else None


def sessions_by_id(connection: Connection, session_ids: Iterable[str]) -> Mapping[str, Session]:
    return {row.session_id: sessions.session_from_row(row) for row in rows_by_id(connection, session_ids)}


def close(connection: Connection, closed: Session) -> Session:
    connection.execute(sessions.close_statement(closed))
    return closed


_RENEW = """
UPDATE sessions
   SET last_heartbeat_at = ?, last_activity_at = ?, state = ?, deadline_at = ?, lapse_reason = ?, modified_at = ?
 WHERE session_id = ?
"""


def renew(connection: Connection, renewed: Sequence[Session]) -> None:
    if renewed:
        connection.exec_driver_sql(_RENEW, [_renewal(session) for session in renewed])


def _renewal(session: Session) -> tuple[Any, ...]:
    return (
        to_microseconds(session.last_heartbeat_at),
        to_microseconds(session.last_activity_at),
        session.state,
        to_microseconds(session.deadline_at),
        session.lapse_reason,
        to_microseconds(session.modified_at),
        session.session_id,
    )


def counters(stream: StreamCounters) -> dict[str, int]:
    """Returns the counters by column name."""
    return {f"stream_{name}": getattr(stream, name) for name in stream.__struct_fields__}
