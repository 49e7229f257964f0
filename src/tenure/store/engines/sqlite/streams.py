"""Attaches and updates the streams of sessions. The transaction holds the file's write lock."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import astuple, replace
from sqlalchemy import Connection, func, literal, update

from tenure.clock import MICROSECOND
from tenure.domain.deadlines import as_recorded, attached, closed_session_of, renewed
from tenure.domain.sessions import Found, Session, State, StreamCounters
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.store import tables
from tenure.store.engines.sqlite.sessions import close, counters, in_scope, renew, rows_by_id
from tenure.store.reads import sessions
from tenure.store.types import Instant

_table = tables.sessions


def attach_streams(connection: Connection, now: datetime, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
    found = {row.session_id: row for row in rows_by_id(connection, (attach.session_id for attach in attaches))}
    return [
        _attach(connection, now, in_scope(found.get(attach.session_id), attach.scope), attach) for attach in attaches
    ]


def _attach(connection: Connection, now: datetime, row: Any, attach: AttachRequest) -> AttachResult:
    if row is None:
        return AttachResult(Found.UNKNOWN)
    session = sessions.session_from_row(row)
    if session.closed_at is not None:
        return AttachResult(Found.OVER, session, row.attachment or 0, now)
    if session.deadline_at <= now:
        ended = close(connection, as_recorded(session, now))
        return AttachResult(Found.OVER, ended, row.attachment or 0, now, closed_session_of(ended))
    session = attached(session, now, attach)
    # Attaching may set a lease or an idle limit, which may make the deadline earlier. This statement moves `check_at`
    # to the new deadline or earlier. It must run before `renew` writes the new deadline, because a constraint of the
    # table requires that `check_at` is never after the deadline.
    connection.execute(
        update(_table)
        .where(_table.c.session_id == session.session_id)
        .values(
            attachment=(row.attachment or 0) + 1,
            attachment_saves=0,
            replaced_saves=row.attachment_saves or 0,
            lease_microseconds=session.lease_microseconds,
            heartbeat_microseconds=session.heartbeat_microseconds,
            idle_microseconds=session.idle_microseconds,
            check_at=func.min(_table.c.check_at, literal(session.deadline_at, Instant())),
            **counters(session.stream or _ZERO),
        )
    )
    renew(connection, [session])
    return AttachResult(Found.LIVE, session, (row.attachment or 0) + 1, now)


_ZERO = StreamCounters(0, 0, 0, 0, 0, 0, 0)


def update_streams(
    connection: Connection, now: datetime, updates: Sequence[StreamUpdate]
) -> Sequence[StreamUpdateResult]:
    found = {row.session_id: row for row in rows_by_id(connection, (each.session_id for each in updates))}
    return [_update(connection, now, found.get(each.session_id), each) for each in updates]


def _update(connection: Connection, now: datetime, row: Any, stream_update: StreamUpdate) -> StreamUpdateResult:
    if row is None:
        return StreamUpdateResult(Found.UNKNOWN)
    session = sessions.session_from_row(row)
    was_open = session.closed_at is None
    is_current = (row.attachment or 0) == stream_update.attachment
    column, saves = _saves_of(row, stream_update.attachment)
    is_new = stream_update.save > saves
    is_live = was_open and session.deadline_at > now
    is_added = is_new and (is_live or stream_update.end is not None or stream_update.finished)
    if is_added:
        session = replace(session, stream=_sum(session.stream or _ZERO, stream_update.counted))
    session = _with_update(session, now, stream_update, is_current=is_current)
    _write(connection, session, {column: stream_update.save} if column and is_added else {})
    counted = is_added or not is_new
    if session.closed_at is not None:
        return StreamUpdateResult(Found.OVER, session, now, recorded=was_open, counted=counted)
    return StreamUpdateResult(Found.LIVE if is_current else Found.REPLACED, session, now, counted=counted)


def _with_update(session: Session, now: datetime, stream_update: StreamUpdate, *, is_current: bool) -> Session:
    if session.closed_at is None and session.deadline_at <= now:
        return as_recorded(session, now)
    modified = replace(session, modified_at=max(session.modified_at, now))
    if not is_current:
        return modified
    if session.closed_at is not None:
        return replace(modified, state=State.CLOSED.value) if stream_update.finished else modified
    if stream_update.end is None:
        return renewed(session, now, active=stream_update.active)
    return replace(
        modified,
        last_activity_at=max(session.last_activity_at, now) if stream_update.active else session.last_activity_at,
        state=State.CLOSED.value if stream_update.finished else State.CLOSING.value,
        closed_at=max(now, session.started_at + MICROSECOND),
        close_reason=stream_update.end,
    )


def _sum(one: StreamCounters, other: StreamCounters) -> StreamCounters:
    return StreamCounters(*(first + second for first, second in zip(astuple(one), astuple(other), strict=True)))


def _saves_of(row: Any, attachment: int) -> tuple[str | None, int]:
    """Returns the column with the number of the latest save of a stream, and this number. Only the newest stream of a
    session and the stream before it have such a column; for earlier streams, returns None and 0.
    """
    newest = row.attachment or 0
    if attachment == newest:
        return "attachment_saves", row.attachment_saves or 0
    return ("replaced_saves", row.replaced_saves or 0) if attachment == newest - 1 else (None, 0)


def _write(connection: Connection, session: Session, saves: dict[str, int]) -> None:
    renew(connection, [session])
    values: dict[str, Any] = {**saves, **counters(session.stream or _ZERO)}
    if session.closed_at is not None:
        values |= {"closed_at": session.closed_at, "close_reason": session.close_reason}
    if session.state == State.CLOSED:
        values["check_at"] = None
    connection.execute(update(_table).where(_table.c.session_id == session.session_id).values(values))
