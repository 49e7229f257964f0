"""`read_history`: everything that the tables contain about one session. The cost of this read does not grow with the
tables.

The number of the last window is read before the session. The part of a session in a window that is already cut never
changes, so the two reads agree.

Windows are numbered without gaps in the order of time. A run of windows (`WindowRun`) is a series of consecutive
windows of one era in the same state; a window that waits for its delivery is a run of its own. The read finds the
first and the last window of a run in indexes. So a run of a million windows is found as fast as a run of one window.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    literal_column,
    select,
    union_all,
)

from tenure.domain.audit_log import Action, AuditEntry, AuditFilter
from tenure.domain.deadlines import as_recorded
from tenure.domain.history import (
    ATTEMPTS_MAX,
    NEWCOMERS_MAX,
    RUNS_MAX,
    ChunkHistory,
    RunState,
    SessionHistory,
    View,
    WindowRun,
)
from tenure.domain.scope import Scope
from tenure.domain.sessions import CloseReason, Session
from tenure.domain.submissions import Attempt, Submission
from tenure.domain.usage import Window
from tenure.store.expressions import unsearched
from tenure.store.limits import UNSENT_SPANS_MAX
from tenure.store.reads import sessions
from tenure.store.reads.keys import get_audit_entry, list_audit_log
from tenure.store.reads.sessions import SEATED, in_scope, session_from_row
from tenure.store.reads.submissions import ATTEMPT_COLUMNS
from tenure.store.reads.submissions import COLUMNS as SUBMISSION_COLUMNS
from tenure.store.reads.usage import selected_windows_statement, window_from_row
from tenure.store.tables import installation, submission_attempts, submissions, usage_chunks, usage_eras, usage_windows
from tenure.store.tables import sessions as session_table

_row = session_table.c
_ENDED_ON_REQUEST = (CloseReason.STOPPED, CloseReason.TERMINATED)


def read_history(
    connection: Connection, session_id: str, scope: Scope, view: View, after: int | None
) -> SessionHistory | None:
    """Returns the section of the history that follows the window `after` or, if `after` is None, the first section.
    Returns None if the session does not exist or is outside the scope.
    """
    last_cut_at, last_window_id = connection.execute(
        select(installation.c.last_cut_at, installation.c.last_window_id)
    ).one()
    row = connection.execute(sessions.get_statement(session_id, scope)).one_or_none()
    if row is None:
        return None
    stored = session_from_row(row)
    session = as_recorded(stored, row.now)
    section = _Section((), None)
    if view.usage:
        section = _read_section(connection, session, view, after, last_window_id)
    return SessionHistory(
        session=session,
        now=row.now,
        is_recorded=stored.closed_at is not None,
        previous=_previous(connection, session),
        following=_following(connection, session),
        newcomers=_newcomers(connection, session, scope),
        ended_by=_ended_by(connection, session) if view.audit else None,
        last_cut_at=last_cut_at if view.usage else None,
        runs=section.runs,
        is_first=after is None,
        resume_after=section.resume_after,
    )


def _previous(connection: Connection, session: Session) -> Session | None:
    if session.previous_session_id is None:
        return None
    row = connection.execute(sessions.whole_statement(session.previous_session_id)).one_or_none()
    return None if row is None else session_from_row(row)


def _following(connection: Connection, session: Session) -> Session | None:
    if session.close_reason != CloseReason.UPGRADED or session.closed_at is None:
        return None
    row = connection.execute(following_statement(session, session.closed_at)).one_or_none()
    return None if row is None else session_from_row(row)


def following_statement(session: Session, closed_at: datetime) -> Select[Any]:
    """Selects the session to which `session` was upgraded. One index finds a live session, another a closed one."""
    replaced = unsearched(_row.previous_session_id == session.session_id)
    of_user = _row.user_object_id == session.user_object_id
    of_key = and_(of_user, _row.capacity_id == session.capacity_id)
    live = select(_row.session_id).where(of_key, _row.closed_at.is_(None), replaced)
    closed = select(_row.session_id).where(
        of_user, _row.started_at == closed_at, _row.close_reason.is_not(None), replaced
    )
    found = union_all(live, closed).subquery("found")
    return select(*sessions.COLUMNS).where(_row.session_id.in_(select(found.c.session_id)))


def _newcomers(connection: Connection, session: Session, scope: Scope) -> Sequence[Session]:
    """Returns the sessions that may have taken the seat of an evicted session. Of the sessions that were opened on its
    capacity at the instant of the eviction or later, these are the ones with the earliest start. Upgrades do not count.

    A transaction can evict several sessions and open several, and does not store which session replaced which.
    """
    if session.close_reason != CloseReason.EVICTED or session.closed_at is None:
        return ()
    rows = connection.execute(newcomers_statement(session.capacity_id, session.closed_at, scope))
    found = [session_from_row(row) for row in rows]
    return [newcomer for newcomer in found if newcomer.started_at == found[0].started_at]


def newcomers_statement(capacity_id: str, closed_at: datetime, scope: Scope) -> Select[Any]:
    took_seat = unsearched(_row.previous_session_id.is_(None))
    narrowed = [unsearched(condition) for condition in in_scope(scope)]
    parts = [
        select(_row.session_id, _row.started_at)
        .where(_row.capacity_id == capacity_id, _row.started_at >= closed_at, *group, took_seat, *narrowed)
        .order_by(_row.started_at, _row.session_id)
        .limit(NEWCOMERS_MAX)
        for group in ((_row.closed_at.is_(None), SEATED), (_row.close_reason.is_not(None),))
    ]
    merged = union_all(*(select(part.subquery()) for part in parts)).subquery("merged")
    ids = select(merged.c.session_id).order_by(merged.c.started_at, merged.c.session_id).limit(NEWCOMERS_MAX)
    return select(*sessions.COLUMNS).where(_row.session_id.in_(ids)).order_by(_row.started_at, _row.session_id)


def _ended_by(connection: Connection, session: Session) -> AuditEntry | None:
    if session.close_reason not in _ENDED_ON_REQUEST:
        return None
    # If one action ended many sessions, the row of each session has the id of the action's audit entry.
    entry_id = connection.execute(end_entry_statement(session.session_id)).scalar_one_or_none()
    if entry_id is not None:
        return get_audit_entry(connection, entry_id)
    criteria = AuditFilter(target=session.session_id, action=Action.SESSION_ENDED.value)
    return next(iter(list_audit_log(connection, criteria, None, 1)), None)


def end_entry_statement(session_id: str) -> Select[Any]:
    return select(_row.end_entry_id).where(_row.session_id == session_id)


# Windows.


class _Section(NamedTuple):
    runs: Sequence[WindowRun]
    resume_after: int | None


class _Bounds(NamedTuple):
    """The numbers of the first and last window of a run."""

    first: int
    last: int
    state: RunState


def _read_section(
    connection: Connection, session: Session, view: View, after: int | None, last_window_id: int
) -> _Section:
    ended_at = session.closed_at or session.deadline_at
    first: int | None = after and after + 1
    if first is None:
        first = connection.execute(first_window_statement(session.started_at)).scalar_one_or_none()
    last = connection.execute(last_window_statement(ended_at)).scalar_one_or_none() or last_window_id
    last = min(last, last_window_id)
    if first is None or first > last:
        return _Section((), None)
    found = _bounds(connection, first, last, view)[:RUNS_MAX]
    resume_after = found[-1].last if found[-1].last < last else None
    return _Section(_runs(connection, session.session_id, found, view), resume_after)


def first_window_statement(instant: datetime | ColumnElement[Any]) -> Select[Any]:
    """Selects the first window that ends after the instant."""
    window = usage_windows.c
    return select(window.window_id).where(window.ended_at > instant).order_by(window.ended_at).limit(1)


def last_window_statement(ended_at: datetime) -> Select[Any]:
    """Selects the last window in which a session with this end was live. Selects no row if that window is not cut
    yet.
    """
    window = usage_windows.c
    return select(window.window_id).where(window.ended_at >= ended_at).order_by(window.ended_at).limit(1)


def _bounds(connection: Connection, first: int, last: int, view: View) -> list[_Bounds]:
    """Returns the runs of the windows from `first` to `last`. Stops early after UNSENT_SPANS_MAX spans without a
    contract, or after RUNS_MAX windows that wait for their delivery.

    The windows without a contract are read before those that wait for their delivery, and a contract is never removed.
    So a window that is in neither result is delivered.
    """
    starts = {first, *_first_windows_of_eras(connection, first, last)}
    unsent: Sequence[tuple[int, int]] = []
    waiting: set[int] = set()
    if view.deliveries:
        unsent = _unsent_spans(connection, first, last)
        if len(unsent) == UNSENT_SPANS_MAX:
            last = unsent[-1][1]
        waiting = set(connection.execute(waiting_statement(first, last)).scalars())
        if len(waiting) > RUNS_MAX:
            last = max(waiting) - 1
            waiting.discard(last + 1)
    starts |= waiting | {window_id + 1 for window_id in waiting}
    starts |= {bound for from_id, to_id in unsent for bound in (from_id, to_id + 1)}
    ordered = sorted(start for start in starts if first <= start <= last)
    return [
        _Bounds(start, end, _state(start, unsent, waiting) if view.deliveries else RunState.HIDDEN)
        for start, end in zip(ordered, [*(start - 1 for start in ordered[1:]), last], strict=True)
    ]


def _state(window_id: int, unsent: Sequence[tuple[int, int]], waiting: AbstractSet[int]) -> RunState:
    if window_id in waiting:
        return RunState.WAITING
    is_unsent = any(from_id <= window_id <= to_id for from_id, to_id in unsent)
    return RunState.NOT_SENT if is_unsent else RunState.DELIVERED


def _first_windows_of_eras(connection: Connection, first: int, last: int) -> Sequence[int]:
    return connection.execute(eras_statement(first, last)).scalars().all()


def eras_statement(first: int, last: int) -> Select[Any]:
    """Selects the first window of each era, if that window is between `first` and `last`."""
    begins = first_window_statement(usage_eras.c.started_at).correlate(usage_eras).scalar_subquery()
    found = select(begins.label("window_id")).select_from(usage_eras).subquery("found")
    return select(found.c.window_id).where(found.c.window_id >= first, found.c.window_id <= last)


def _unsent_spans(connection: Connection, first: int, last: int) -> Sequence[tuple[int, int]]:
    """Returns the first and last window of each span of windows without a contract, at most UNSENT_SPANS_MAX spans."""
    spans: list[tuple[int, int]] = []
    start = connection.execute(next_without_contract_statement(first, last)).scalar_one_or_none()
    while start is not None and len(spans) < UNSENT_SPANS_MAX:
        after = connection.execute(next_with_contract_statement(start, last)).scalar_one_or_none()
        spans.append((start, last if after is None else after - 1))
        start = after and connection.execute(next_without_contract_statement(after, last)).scalar_one_or_none()
    return spans


def next_without_contract_statement(first: int, last: int) -> Select[Any]:
    return _next(first, last, usage_windows.c.contract.is_(None))


def next_with_contract_statement(first: int, last: int) -> Select[Any]:
    return _next(first, last, usage_windows.c.contract.is_not(None))


def _next(first: int, last: int, condition: ColumnElement[bool]) -> Select[Any]:
    window = usage_windows.c
    return (
        select(window.window_id)
        .where(window.window_id >= first, window.window_id <= last, condition, window.era > literal_column("0"))
        .order_by(window.window_id)
        .limit(1)
    )


def waiting_statement(first: int, last: int) -> Select[Any]:
    window = usage_windows.c
    return (
        select(window.window_id)
        .where(
            window.window_id >= first,
            window.window_id <= last,
            window.delivered_at.is_(None),
            window.contract.is_not(None),
        )
        .order_by(window.window_id)
        .limit(RUNS_MAX + 1)
    )


def _runs(connection: Connection, session_id: str, found: Sequence[_Bounds], view: View) -> Sequence[WindowRun]:
    ids = sorted({window_id for bounds in found for window_id in (bounds.first, bounds.last)})
    windows: Mapping[int, Window] = {
        row.window_id: window_from_row(row) for row in connection.execute(selected_windows_statement(ids))
    }
    single = [bounds.first for bounds in found if bounds.first == bounds.last] if view.deliveries else []
    chunks = _chunks(connection, session_id, single) if single else {}
    return [
        WindowRun(
            first=windows[bounds.first],
            last=windows[bounds.last],
            state=bounds.state,
            chunk=chunks.get(bounds.first) if bounds.first == bounds.last else None,
        )
        for bounds in found
    ]


_LABELLED = tuple(
    column.label(f"{prefix}_{column.name}")
    for prefix, columns in (("submission", SUBMISSION_COLUMNS), ("attempt", ATTEMPT_COLUMNS))
    for column in columns
)


def _chunks(connection: Connection, session_id: str, window_ids: Sequence[int]) -> Mapping[int, ChunkHistory]:
    by_window: dict[int, list[Any]] = {}
    for row in connection.execute(chunks_statement(session_id, window_ids)).mappings():
        by_window.setdefault(row["window_id"], []).append(row)
    return {window_id: _chunk(rows) for window_id, rows in by_window.items()}


def chunks_statement(session_id: str, window_ids: Sequence[int]) -> Select[Any]:
    """Selects the chunk that contains the session in each of the windows, with its submission and the newest
    attempts.
    """
    chunk, attempt = usage_chunks.c, submission_attempts.c
    newest = and_(attempt.submission_id == chunk.submission_id, attempt.number > submissions.c.attempts - ATTEMPTS_MAX)
    return (
        select(chunk.window_id, chunk.chunk, chunk.delivered_at, chunk.has_receipt, *_LABELLED)
        .select_from(usage_chunks)
        .outerjoin(submissions, submissions.c.submission_id == chunk.submission_id)
        .outerjoin(submission_attempts, newest)
        .where(
            chunk.window_id.in_(window_ids),
            chunk.first_session_id <= session_id,
            chunk.last_session_id >= session_id,
        )
        .order_by(chunk.window_id, attempt.number)
    )


def _chunk(rows: Sequence[Any]) -> ChunkHistory:
    row = rows[0]
    submission = None
    if row["submission_submission_id"] is not None:
        submission = Submission(**{column.name: row[f"submission_{column.name}"] for column in SUBMISSION_COLUMNS})
    return ChunkHistory(
        chunk=row["chunk"],
        delivered_at=row["delivered_at"],
        has_receipt=row["has_receipt"],
        submission=submission,
        attempts=[
            Attempt(**{column.name: each[f"attempt_{column.name}"] for column in ATTEMPT_COLUMNS})
            for each in rows
            if each["attempt_number"] is not None
        ],
    )
