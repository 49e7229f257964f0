"""Rows of the `sessions` table, read and written one by one under the file's write lock."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from tenure.clock import to_microseconds
from tenure.model.sessions import Session, StreamCounters
from tenure.store import sessions

_BY_ID = text(
    f"SELECT {', '.join(f's.{column.name}' for column in sessions.COLUMNS)}, "  # noqa: S608 - no input in it
    "s.attachment, s.attachment_saves, s.replaced_saves "
    "FROM json_each(:ids) AS wanted CROSS JOIN sessions AS s WHERE s.session_id = wanted.value"
).columns(*sessions.COLUMNS)


def rows_by_id(connection: Connection, session_ids: Iterable[str]) -> Sequence[Any]:
    """Whole rows, with the attachment that a session does not show."""
    return connection.execute(_BY_ID, {"ids": json.dumps(list(session_ids))}).all()


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
    """By the names of their columns."""
    return {f"stream_{name}": getattr(stream, name) for name in stream.__struct_fields__}
