"""Opening sessions under the file's write lock. One pass does the work of all opening lanes."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Select, func, select, text

from tenure.clock import to_microseconds
from tenure.domain.deadlines import as_recorded, closed_session_of, end_now, opened, span_of
from tenure.domain.sessions import (
    ClosedSession,
    CloseReason,
    ImportedSession,
    Limits,
    OpenOutcome,
    OpenRequest,
    OpenResult,
    Session,
)
from tenure.store import tables
from tenure.store.engines.sqlite.capacities import CapacitySeats, seats_of
from tenure.store.engines.sqlite.sessions import close
from tenure.store.reads import sessions


def open_sessions(
    connection: Connection, now: datetime, requests: Sequence[OpenRequest], limits: Limits
) -> Sequence[OpenResult]:
    live = live_sessions(connection, requests)
    last_ends = ends_after(connection, now)
    seats = seats_of(connection, now, requests)
    for session in live.values():
        if session.capacity_id in seats:
            # Protects the session from eviction: a later request of this batch may return it.
            seats[session.capacity_id].hold(session.session_id)
    span = span_of(limits, now)
    results: list[OpenResult] = []
    new: list[Session] = []
    for request in requests:
        old = live.get(request.key)
        limited = seats.get(request.capacity_id)
        if limited is not None:
            result = _decide_limited(connection, now, request, old, limits, limited)
        elif old is None and request.key not in last_ends:
            result = OpenResult(OpenOutcome.CREATED, opened(request, limits, now, span))
        else:
            result = _decide(connection, max(now, last_ends.get(request.key, now)), request, old, limits)
        results.append(result)
        if limited is None and result.outcome in _INSERTED_OUTCOMES and result.session is not None:
            new.append(result.session)
    _insert(connection, new)
    for each in seats.values():
        each.save()
    return results


_INSERTED_OUTCOMES = (OpenOutcome.CREATED, OpenOutcome.UPGRADED)


def _decide(
    connection: Connection, now: datetime, request: OpenRequest, old: Session | None, limits: Limits
) -> OpenResult:
    if old is None:
        return OpenResult(OpenOutcome.CREATED, opened(request, limits, now))
    if old.deadline_at <= now:
        lapsed = close(connection, as_recorded(old, now))
        return OpenResult(OpenOutcome.CREATED, opened(request, limits, now), [closed_session_of(lapsed)])
    return _existing_or_mismatch(request, old) or _upgraded(connection, now, request, old, limits)


def _existing_or_mismatch(request: OpenRequest, old: Session) -> OpenResult | None:
    if old.tenant_object_id != request.tenant_object_id:
        return OpenResult(OpenOutcome.TENANT_MISMATCH)
    return OpenResult(OpenOutcome.EXISTING, old) if old.kind >= request.kind else None


def _upgraded(connection: Connection, now: datetime, request: OpenRequest, old: Session, limits: Limits) -> OpenResult:
    ended = close(connection, end_now(old, now, CloseReason.UPGRADED.value))
    inherited = Limits(limits.term, old.lease_microseconds, old.idle_microseconds, old.heartbeat_microseconds)
    session = opened(request, inherited, ended.closed_at or now)
    return OpenResult(OpenOutcome.UPGRADED, replace(session, previous_session_id=old.session_id))


def _decide_limited(
    connection: Connection,
    now: datetime,
    request: OpenRequest,
    old: Session | None,
    limits: Limits,
    seats: CapacitySeats,
) -> OpenResult:
    """Decides a request for a capacity with rules: checks the live session, then the tenant, then the seats. A new
    session is inserted immediately, so that the next request counts it.
    """
    result = _existing_or_mismatch(request, old) if old is not None and old.deadline_at > now else None
    if result is None and seats.refuses(request):
        result = OpenResult(OpenOutcome.CAPACITY_OF_ANOTHER_TENANT)
    if result is None and old is not None and old.deadline_at > now:
        result = _upgraded(connection, now, request, old, limits)
    if result is None:
        unrecorded = old is not None and not seats.has_recorded(old.session_id)
        lapsed = [closed_session_of(close(connection, as_recorded(old, now)))] if old is not None and unrecorded else ()
        result = _take_seat(request, limits, seats, lapsed)
    if result.session is not None:
        seats.hold(result.session.session_id)
        if result.outcome in _INSERTED_OUTCOMES:
            _insert(connection, [result.session])
    return result


def _take_seat(
    request: OpenRequest, limits: Limits, seats: CapacitySeats, lapsed: Sequence[ClosedSession]
) -> OpenResult:
    taken, closed_sessions = seats.take()
    if taken is OpenOutcome.CREATED:
        return OpenResult(taken, opened(request, limits, seats.free_from()), [*lapsed, *closed_sessions])
    return OpenResult(taken, None, [*lapsed, *closed_sessions])


LIVE_OF = text(
    # CROSS JOIN fixes the join order: one index search per request, never a scan of the table.
    f"SELECT {', '.join(f's.{column.name}' for column in sessions.COLUMNS)} "  # noqa: S608 - no input in it
    "FROM json_each(:keys) AS request CROSS JOIN sessions AS s "
    "WHERE s.capacity_id = json_extract(request.value, '$[0]') "
    "AND s.user_object_id = json_extract(request.value, '$[1]') AND s.closed_at IS NULL"
).columns(*sessions.COLUMNS)


def live_sessions(
    connection: Connection, requests: Sequence[OpenRequest | ImportedSession]
) -> dict[tuple[str, str], Session]:
    keys = json.dumps([request.key for request in requests])
    found = map(sessions.session_from_row, connection.execute(LIVE_OF, {"keys": keys}))
    return {(session.capacity_id, session.user_object_id): session for session in found}


def ends_after(connection: Connection, now: datetime) -> dict[tuple[str, str], datetime]:
    """Returns the latest end of each key whose latest end is after `now`. A new session of the key must not start
    before this end. An end can be after `now` if the clock was stepped back, or if a session ended in the microsecond
    of its start: the recorded end is then one microsecond later than the start.
    """
    if connection.exec_driver_sql(_ANY_END_AFTER, (to_microseconds(now),)).first() is None:
        return {}
    rows = connection.execute(ends_after_statement(now))
    return {(capacity_id, user_object_id): closed_at for capacity_id, user_object_id, closed_at in rows}


# Almost always no end is later than now, and this query takes a third of the time of `ends_after_statement`.
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
# Plain SQL, because inserting a row through SQLAlchemy Core takes three times as long as SQLite itself needs.
_INSERT = f"INSERT INTO sessions ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})"  # noqa: S608


def _insert(connection: Connection, new: Sequence[Session]) -> None:
    if new:
        connection.exec_driver_sql(_INSERT, [_row(session) for session in new])


def _row(session: Session) -> tuple[Any, ...]:
    """The values of a session that has just started, in the order of `_INSERTED`."""
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
