"""`list_next_lapses`: live sessions, next deadline first, for any filter. The cost does not grow with the table.

No index contains the deadline, because every heartbeat would have to change the index. So a page is read in one of two
ways:

- If an index has at most LAPSE_SCAN_MAX entries for the filter, all these entries are read and sorted.
- Otherwise sessions are read in the order of `check_at`, which is indexed and never after the deadline. The `check_at`
  of the first session that was not read is the *bound*: all sessions that were not read lapse at the bound or later. So
  the page is exact if it is full and its last deadline is before the bound, or if all sessions were read. The first
  statement reads LAPSE_LOOK_MAX sessions. If the page is not exact, a second statement reads LAPSE_SCAN_MAX sessions.
  If the page is still not exact, it contains the earliest deadlines among the sessions that were read.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, or_, select

from tenure.domain.scope import Scope
from tenure.domain.sessions import LapsePage, LapsePosition, SessionFilter, State
from tenure.store.expressions import unsearched
from tenure.store.limits import LAPSE_LOOK_MAX, LAPSE_SCAN_MAX
from tenure.store.reads.session_list import Path, live_paths, narrowed_filter
from tenure.store.reads.sessions import COLUMNS, read_now, session_from_row
from tenure.store.tables import sessions

_row = sessions.c


def list_next_lapses(
    connection: Connection, criteria: SessionFilter, after: LapsePosition | None, limit: int, scope: Scope
) -> LapsePage:
    narrowed = narrowed_filter(criteria, scope)
    if narrowed is None or not _admits_live(narrowed):
        return LapsePage([], exact=True)
    now = read_now(connection)
    for path in live_paths(narrowed):
        if path.is_small or not _exceeds_scan(connection, path):
            rows = connection.execute(sorted_statement(path, now, after, limit))
            return LapsePage([session_from_row(row) for row in rows], exact=True)
    return _by_check_at(connection, narrowed, now, after, limit)


def _admits_live(criteria: SessionFilter) -> bool:
    is_open = criteria.state in (None, State.CREATED, State.ACTIVE)
    return is_open and criteria.active is not False and criteria.close_reason is None


def _exceeds_scan(connection: Connection, path: Path) -> bool:
    return connection.execute(entries_statement(path)).first() is not None


def entries_statement(path: Path) -> Select[Any]:
    """Selects a row if the range of the path has more than LAPSE_SCAN_MAX entries, and none otherwise."""
    (searched,) = path.ranges
    return select(_row.started_at).where(*searched).order_by(_row.started_at.desc()).offset(LAPSE_SCAN_MAX).limit(1)


def sorted_statement(path: Path, now: datetime, after: LapsePosition | None, limit: int) -> Select[Any]:
    (searched,) = path.ranges
    return (
        select(*COLUMNS)
        .where(*searched, *path.rest, *_after(_row, now, after))
        .order_by(_row.deadline_at, _row.session_id)
        .limit(limit)
    )


def _by_check_at(
    connection: Connection, criteria: SessionFilter, now: datetime, after: LapsePosition | None, limit: int
) -> LapsePage:
    page = LapsePage([], exact=False)
    for scanned in (LAPSE_LOOK_MAX, LAPSE_SCAN_MAX):
        rows = connection.execute(checked_statement(criteria, now, after, scanned, limit)).all()
        # If there are rows, the bound is from the same statement as the rows.
        bound = rows[0].bound if rows else connection.execute(bound_statement(scanned)).scalar_one_or_none()
        found = [session_from_row(row) for row in rows]
        is_full = len(found) == limit
        page = LapsePage(found, exact=bound is None or (is_full and found[-1].deadline_at < bound))
        if page.exact:
            return page
    return page


def bound_statement(scanned: int) -> Select[Any]:
    """Selects the `check_at` of the first session that is not read. Returns no row if all are read."""
    return select(_row.check_at).where(_row.check_at.is_not(None)).order_by(_row.check_at).offset(scanned).limit(1)


def checked_statement(
    criteria: SessionFilter, now: datetime, after: LapsePosition | None, scanned: int, limit: int
) -> Select[Any]:
    """Selects the earliest deadlines among the first `scanned` sessions in the order of `check_at`."""
    read = select(*COLUMNS).where(_row.check_at.is_not(None)).order_by(_row.check_at).limit(scanned).subquery("read")
    equals = (
        (read.c.user_object_id, criteria.user),
        (read.c.capacity_id, criteria.capacity),
        (read.c.tenant_object_id, criteria.tenant),
        (read.c.kind, criteria.kind),
        (read.c.state, criteria.state),
    )
    return (
        select(read, bound_statement(scanned).scalar_subquery().label("bound"))
        .where(
            read.c.closed_at.is_(None),
            *_after(read.c, now, after),
            *(unsearched(column == value) for column, value in equals if value is not None),
        )
        .order_by(read.c.deadline_at, read.c.session_id)
        .limit(limit)
    )


def _after(row: Any, now: datetime, after: LapsePosition | None) -> Sequence[ColumnElement[bool]]:
    live = row.deadline_at > now
    if after is None:
        return [live]
    same = and_(row.deadline_at == after.deadline_at, row.session_id > after.session_id)
    return [live, or_(row.deadline_at > after.deadline_at, same)]
