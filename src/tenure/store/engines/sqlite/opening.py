"""Opening sessions, under the file's write lock: one pass needs no lanes."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Select, func, select, text

from tenure.clock import to_microseconds
from tenure.deadlines import as_recorded, closing_of, end_now, opened, span_of
from tenure.model.sessions import CloseReason, Closing, Limits, Open, Opened, Outcome, Session
from tenure.store import sessions, tables
from tenure.store.engines.sqlite.seats import SeatsOf, seats_of
from tenure.store.engines.sqlite.writing import close


def open_sessions(connection: Connection, now: datetime, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
    live = _live_of(connection, wishes)
    last_ends = _ends_after(connection, now)
    seats = seats_of(connection, now, wishes)
    for session in live.values():
        if session.capacity_id in seats:
            # Whoever asks for it later in this batch must still find it.
            seats[session.capacity_id].hold(session.session_id)
    span = span_of(limits, now)
    answers: list[Opened] = []
    new: list[Session] = []
    for wish in wishes:
        old = live.get(wish.key)
        limited = seats.get(wish.capacity_id)
        if limited is not None:
            answer = _decide_limited(connection, now, wish, old, limits, limited)
        elif old is None and wish.key not in last_ends:
            answer = Opened(Outcome.CREATED, opened(wish, limits, now, span))
        else:
            answer = _decide(connection, max(now, last_ends.get(wish.key, now)), wish, old, limits)
        answers.append(answer)
        if limited is None and answer.outcome in _NEW and answer.session is not None:
            new.append(answer.session)
    _insert(connection, new)
    for each in seats.values():
        each.save()
    return answers


_NEW = (Outcome.CREATED, Outcome.UPGRADED)


def _decide(connection: Connection, now: datetime, wish: Open, old: Session | None, limits: Limits) -> Opened:
    if old is None:
        return Opened(Outcome.CREATED, opened(wish, limits, now))
    if old.deadline_at <= now:
        lapsed = close(connection, as_recorded(old, now))
        return Opened(Outcome.CREATED, opened(wish, limits, now), [closing_of(lapsed)])
    return _of_live(wish, old) or _upgraded(connection, now, wish, old, limits)


def _of_live(wish: Open, old: Session) -> Opened | None:
    if old.tenant_object_id != wish.tenant_object_id:
        return Opened(Outcome.TENANT_MISMATCH)
    return Opened(Outcome.EXISTING, old) if old.kind >= wish.kind else None


def _upgraded(connection: Connection, now: datetime, wish: Open, old: Session, limits: Limits) -> Opened:
    ended = close(connection, end_now(old, now, CloseReason.UPGRADED.value))
    inherited = Limits(limits.term, old.lease_microseconds, old.idle_microseconds, old.heartbeat_microseconds)
    session = opened(wish, inherited, ended.closed_at or now)
    return Opened(Outcome.UPGRADED, replace(session, previous_session_id=old.session_id))


def _decide_limited(
    connection: Connection, now: datetime, wish: Open, old: Session | None, limits: Limits, seats: SeatsOf
) -> Opened:
    """On a capacity with rules: a live session, then the tenant, then the seats. What is new is inserted at once, so
    that the next wish counts it.
    """
    answer = _of_live(wish, old) if old is not None and old.deadline_at > now else None
    if answer is None and seats.refuses(wish):
        answer = Opened(Outcome.CAPACITY_OF_ANOTHER_TENANT)
    if answer is None and old is not None and old.deadline_at > now:
        answer = _upgraded(connection, now, wish, old, limits)
    if answer is None:
        unrecorded = old is not None and not seats.has_recorded(old.session_id)
        lapsed = [closing_of(close(connection, as_recorded(old, now)))] if old is not None and unrecorded else ()
        answer = _seated(wish, limits, seats, lapsed)
    if answer.session is not None:
        seats.hold(answer.session.session_id)
        if answer.outcome in _NEW:
            _insert(connection, [answer.session])
    return answer


def _seated(wish: Open, limits: Limits, seats: SeatsOf, lapsed: Sequence[Closing]) -> Opened:
    taken, closings = seats.take()
    if taken is Outcome.CREATED:
        return Opened(taken, opened(wish, limits, seats.free_from()), [*lapsed, *closings])
    return Opened(taken, None, [*lapsed, *closings])


LIVE_OF = text(
    # CROSS JOIN keeps the order: for each wish one search of the index, never a scan of the table.
    f"SELECT {', '.join(f's.{column.name}' for column in sessions.COLUMNS)} "  # noqa: S608 - no input in it
    "FROM json_each(:keys) AS wish CROSS JOIN sessions AS s "
    "WHERE s.capacity_id = json_extract(wish.value, '$[0]') AND s.user_object_id = json_extract(wish.value, '$[1]') "
    "AND s.closed_at IS NULL"
).columns(*sessions.COLUMNS)


def _live_of(connection: Connection, wishes: Sequence[Open]) -> dict[tuple[str, str], Session]:
    keys = json.dumps([wish.key for wish in wishes])
    found = map(sessions.session_from_row, connection.execute(LIVE_OF, {"keys": keys}))
    return {(session.capacity_id, session.user_object_id): session for session in found}


def _ends_after(connection: Connection, now: datetime) -> dict[tuple[str, str], datetime]:
    """Ends that lie after the clock, because it was stepped back or a session had to last its one microsecond.
    A new session of the same key begins no earlier.
    """
    if connection.exec_driver_sql(_ANY_END_AFTER, (to_microseconds(now),)).first() is None:
        return {}
    rows = connection.execute(ends_after_statement(now))
    return {(capacity_id, user_object_id): closed_at for capacity_id, user_object_id, closed_at in rows}


# Almost always there is none, and asking this way costs a third.
_ANY_END_AFTER = "SELECT 1 FROM sessions WHERE closed_at > ? LIMIT 1"


def ends_after_statement(now: datetime) -> Select[Any]:
    ended = tables.sessions.c
    return (
        select(ended.capacity_id, ended.user_object_id, func.max(ended.closed_at))
        .where(ended.closed_at > now)
        .group_by(ended.capacity_id, ended.user_object_id)
    )


_INSERTED = (
    "session_id",
    "tenant_object_id",
    "user_object_id",
    "capacity_id",
    "previous_session_id",
    "kind",
    "state",
    "lapse_reason",
    "lease_microseconds",
    "idle_microseconds",
    "heartbeat_microseconds",
    "term_ends_at",
    "deadline_at",
    "check_at",
    "started_at",
    "last_heartbeat_at",
    "last_activity_at",
    "modified_at",
)
# Written out: through Core, a row costs three times as much as SQLite itself takes for it.
_INSERT = f"INSERT INTO sessions ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})"  # noqa: S608


def _insert(connection: Connection, new: Sequence[Session]) -> None:
    if new:
        connection.exec_driver_sql(_INSERT, [_row(session) for session in new])


def _row(session: Session) -> tuple[Any, ...]:
    """A session that has just begun, in the order of `_INSERTED`."""
    started_at = to_microseconds(session.started_at)
    deadline_at = to_microseconds(session.deadline_at)
    return (
        session.session_id,
        session.tenant_object_id,
        session.user_object_id,
        session.capacity_id,
        session.previous_session_id,
        session.kind,
        session.state,
        session.lapse_reason,
        session.lease_microseconds,
        session.idle_microseconds,
        session.heartbeat_microseconds,
        to_microseconds(session.term_ends_at),
        deadline_at,
        deadline_at,
        started_at,
        started_at,
        started_at,
        started_at,
    )
