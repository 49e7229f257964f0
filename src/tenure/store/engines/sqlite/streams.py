"""Streams of sessions, under the file's write lock."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import astuple, replace
from sqlalchemy import Connection, func, literal, update

from tenure.clock import MICROSECOND
from tenure.deadlines import as_recorded, attached, closing_of, renewed
from tenure.model.sessions import Attach, Attached, Found, Session, State, StreamCounters, StreamUpdate, StreamUpdated
from tenure.store import sessions, tables
from tenure.store.engines.sqlite.writing import close, counters, renew, rows_by_id
from tenure.store.types import Instant

_table = tables.sessions


def attach_streams(connection: Connection, now: datetime, attaches: Sequence[Attach]) -> Sequence[Attached]:
    found = {row.session_id: row for row in rows_by_id(connection, (attach.session_id for attach in attaches))}
    return [_attached(connection, now, found.get(attach.session_id), attach) for attach in attaches]


def _attached(connection: Connection, now: datetime, row: Any, attach: Attach) -> Attached:
    if row is None:
        return Attached(Found.UNKNOWN)
    session = sessions.session_from_row(row)
    if session.closed_at is not None:
        return Attached(Found.OVER, session, row.attachment, now)
    if session.deadline_at <= now:
        over = close(connection, as_recorded(session, now))
        return Attached(Found.OVER, over, row.attachment, now, closing_of(over))
    session = attached(session, now, attach)
    # First, because `check_at` may never lie after the deadline, and the deadline may now be nearer.
    connection.execute(
        update(_table)
        .where(_table.c.session_id == session.session_id)
        .values(
            attachment=row.attachment + 1,
            attachment_saves=0,
            replaced_saves=row.attachment_saves,
            lease_microseconds=session.lease_microseconds,
            heartbeat_microseconds=session.heartbeat_microseconds,
            idle_microseconds=session.idle_microseconds,
            check_at=func.min(_table.c.check_at, literal(session.deadline_at, Instant())),
            **counters(session.stream or _NOTHING),
        )
    )
    renew(connection, [session])
    return Attached(Found.LIVE, session, row.attachment + 1, now)


_NOTHING = StreamCounters(0, 0, 0, 0, 0, 0, 0)


def update_streams(connection: Connection, now: datetime, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
    found = {row.session_id: row for row in rows_by_id(connection, (each.session_id for each in updates))}
    return [_updated(connection, now, found.get(each.session_id), each) for each in updates]


def _updated(connection: Connection, now: datetime, row: Any, said: StreamUpdate) -> StreamUpdated:
    if row is None:
        return StreamUpdated(Found.UNKNOWN)
    session = sessions.session_from_row(row)
    was_open = session.closed_at is None
    is_current = row.attachment == said.attachment
    column, saves = _saves_of(row, said.attachment)
    if said.save > saves:
        session = replace(session, stream=_sum(session.stream or _NOTHING, said.counted))
    session = _as_said(session, now, said, is_current=is_current)
    _write(connection, session, {column: max(saves, said.save)} if column else {})
    if session.closed_at is not None:
        return StreamUpdated(Found.OVER, session, now, recorded=was_open)
    return StreamUpdated(Found.LIVE if is_current else Found.REPLACED, session, now)


def _as_said(session: Session, now: datetime, said: StreamUpdate, *, is_current: bool) -> Session:
    if session.closed_at is None and session.deadline_at <= now:
        return as_recorded(session, now)
    modified = replace(session, modified_at=max(session.modified_at, now))
    if not is_current:
        return modified
    if session.closed_at is not None:
        return replace(modified, state=State.CLOSED.value) if said.finished else modified
    if said.end is None:
        return renewed(session, now, active=said.active)
    return replace(
        modified,
        last_activity_at=max(session.last_activity_at, now) if said.active else session.last_activity_at,
        state=State.CLOSED.value if said.finished else State.CLOSING.value,
        closed_at=max(now, session.started_at + MICROSECOND),
        close_reason=said.end,
    )


def _sum(one: StreamCounters, other: StreamCounters) -> StreamCounters:
    return StreamCounters(*(mine + yours for mine, yours in zip(astuple(one), astuple(other), strict=True)))


def _saves_of(row: Any, attachment: int) -> tuple[str | None, int]:
    """Where the number of a stream's last save is kept, and what it is. Of those long replaced nothing is kept."""
    if attachment == row.attachment:
        return "attachment_saves", row.attachment_saves
    return ("replaced_saves", row.replaced_saves) if attachment == row.attachment - 1 else (None, 0)


def _write(connection: Connection, session: Session, saves: dict[str, int]) -> None:
    renew(connection, [session])
    values: dict[str, Any] = {**saves, **counters(session.stream or _NOTHING)}
    if session.closed_at is not None:
        values |= {"closed_at": session.closed_at, "close_reason": session.close_reason}
    if session.state == State.CLOSED:
        values["check_at"] = None
    connection.execute(update(_table).where(_table.c.session_id == session.session_id).values(values))
