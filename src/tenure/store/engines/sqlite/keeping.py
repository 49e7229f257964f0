"""Heartbeats, ends and the sweep, under the file's write lock."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, update

from tenure.deadlines import as_recorded, closing_of, end_now, renewed
from tenure.model.sessions import End, Ended, Found, Heartbeat, Kept, Session, State, Swept
from tenure.store import sessions, tables
from tenure.store.engines.sqlite.writing import close, renew, sessions_by_id


def heartbeat(connection: Connection, now: datetime, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
    found = sessions_by_id(connection, (heartbeat.session_id for heartbeat in heartbeats))
    answers = [_kept(connection, now, found.get(heartbeat.session_id), heartbeat) for heartbeat in heartbeats]
    renew(connection, [session for session, _ in answers if session is not None])
    return [kept for _, kept in answers]


def _kept(
    connection: Connection, now: datetime, session: Session | None, heartbeat: Heartbeat
) -> tuple[Session | None, Kept]:
    """What to write, and what to answer."""
    if session is None:
        return None, Kept(Found.UNKNOWN)
    if session.closed_at is None and session.deadline_at > now:
        alive = renewed(session, now, active=heartbeat.active)
        return alive, Kept(Found.LIVE, alive.state, alive.deadline_at, alive.heartbeat_microseconds)
    recorded = session.closed_at is None
    over = close(connection, as_recorded(session, now)) if recorded else session
    closing = closing_of(over) if recorded else None
    return None, Kept(Found.OVER, over.state, over.deadline_at, over.heartbeat_microseconds, over.close_reason, closing)


def end_sessions(connection: Connection, now: datetime, ends: Sequence[End]) -> Sequence[Ended]:
    found = sessions_by_id(connection, (end.session_id for end in ends))
    return [_ended(connection, now, found.get(end.session_id), end) for end in ends]


def _ended(connection: Connection, now: datetime, session: Session | None, end: End) -> Ended:
    if session is None:
        return Ended(Found.UNKNOWN)
    if session.closed_at is not None:
        return Ended(Found.OVER, session)
    return Ended(Found.OVER, close(connection, end_now(session, now, end.reason)), recorded=True)


def expire_sessions(connection: Connection, now: datetime, limit: int) -> Swept:
    table = tables.sessions
    due = select(*sessions.COLUMNS).where(table.c.check_at <= now).order_by(table.c.check_at).limit(limit)
    found = [sessions.session_from_row(row) for row in connection.execute(due)]
    over = [session for session in found if session.deadline_at <= now]
    lapsed = [as_recorded(session, now) for session in over if session.closed_at is None]
    for session in lapsed:
        close(connection, session)
    _finish(connection, [session for session in over if session.state == State.CLOSING])
    _look_again(connection, [session for session in found if session.deadline_at > now])
    return Swept([closing_of(session) for session in lapsed], len(found))


def _finish(connection: Connection, left: Sequence[Session]) -> None:
    table = tables.sessions
    for session in left:
        connection.execute(
            update(table)
            .where(table.c.session_id == session.session_id)
            .values(state=State.CLOSED.value, check_at=None)
        )


def _look_again(connection: Connection, alive: Sequence[Session]) -> None:
    table = tables.sessions
    if alive:
        connection.execute(
            update(table).where(table.c.session_id == bindparam("id")).values(check_at=bindparam("at")),
            [{"id": session.session_id, "at": session.deadline_at} for session in alive],
        )
