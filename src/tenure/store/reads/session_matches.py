"""`count_matches`: how many sessions match a filter. The cost does not grow with the table.

`session_list` explains the groups and paths. A group is counted by one of its paths. If a path has at most COUNT_MAX
index entries, all of them are checked, and the count is exact. If every path of the group has more entries, only
COUNT_MAX + 1 entries of one path are checked, and the count is a lower bound.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Subquery,
    and_,
    case,
    func,
    literal_column,
    select,
    union_all,
)

from tenure.domain.scope import Scope
from tenure.domain.sessions import MatchCount, SessionFilter
from tenure.store.expressions import unsearched
from tenure.store.limits import COUNT_MAX
from tenure.store.reads.session_list import Group, Path, groups_of, narrowed_filter
from tenure.store.reads.sessions import read_now
from tenure.store.tables import sessions

_ONE: ColumnElement[int] = literal_column("1", Integer)
_ZERO: ColumnElement[int] = literal_column("0", Integer)


def count_matches(
    connection: Connection, criteria: SessionFilter, scope: Scope, started_by: datetime | None = None
) -> MatchCount:
    narrowed = narrowed_filter(criteria, scope)
    if narrowed is None:
        return MatchCount(0, exact=True)
    # All groups use one instant, so that no session is counted both as live and as lapsed.
    groups = [_started_by(group, started_by) for group in groups_of(connection, narrowed, read_now(connection))]
    counts = [_count(connection, group) for group in groups]
    return MatchCount(sum(each.count for each in counts), exact=all(each.exact for each in counts))


def count_live(
    connection: Connection,
    session_ids: Sequence[str],
    criteria: SessionFilter,
    scope: Scope,
    started_by: datetime | None = None,
) -> int:
    narrowed = narrowed_filter(criteria, scope)
    if narrowed is None:
        return 0
    now = read_now(connection)
    found: int = connection.execute(live_statement(session_ids, narrowed, now, started_by or now)).scalar_one()
    return found


def live_statement(
    session_ids: Sequence[str], criteria: SessionFilter, now: datetime, started_by: datetime
) -> Select[Any]:
    row = sessions.c
    equals = (
        (row.user_object_id, criteria.user),
        (row.capacity_id, criteria.capacity),
        (row.tenant_object_id, criteria.tenant),
        (row.kind, criteria.kind),
        (row.state, criteria.state),
    )
    return select(func.count()).where(
        row.session_id.in_(session_ids),
        unsearched(and_(row.closed_at.is_(None), row.deadline_at > now, row.started_at <= started_by)),
        *(unsearched(column == value) for column, value in equals if value is not None),
    )


def _started_by(group: Group, instant: datetime | None) -> Group:
    """Limits each range to sessions that started at or before the instant. Nearly all indexes that the ranges belong to
    are ordered by start, so this condition shortens the ranges.
    """
    if instant is None:
        return group
    started = sessions.c.started_at <= instant
    paths = [path._replace(ranges=[[*searched, started] for searched in path.ranges]) for path in group.paths]
    return group._replace(paths=paths)


def _count(connection: Connection, group: Group) -> MatchCount:
    path = _fitting(connection, group) or group.paths[0]
    entries, count = connection.execute(count_statement(group, path)).one()
    return MatchCount(count, exact=entries <= COUNT_MAX)


def _fitting(connection: Connection, group: Group) -> Path | None:
    """Returns the first path whose `is_small` is true. If there is none, and the group has several paths, returns the
    first path with at most COUNT_MAX entries. Otherwise returns None, and the caller uses the first path of the group.
    """
    for path in group.paths:
        if path.is_small:
            return path
    return next((path for path in group.paths if len(group.paths) > 1 and _fits(connection, path)), None)


def _fits(connection: Connection, path: Path) -> bool:
    entries: int = connection.execute(entries_statement(path)).scalar_one()
    return entries <= COUNT_MAX


def entries_statement(path: Path) -> Select[Any]:
    """Selects the number of entries of the path, at most COUNT_MAX + 1."""
    return select(func.count()).select_from(_entries(path, _ONE.label("matches")))


def count_statement(group: Group, path: Path) -> Select[Any]:
    """Selects the number of entries, at most COUNT_MAX + 1, and how many of them match."""
    conditions = [*group.usual, *path.rest]
    matches: ColumnElement[int] = case((and_(*conditions), _ONE), else_=_ZERO) if conditions else _ONE
    entries = _entries(path, matches.label("matches"))
    return select(func.count(), func.coalesce(func.sum(entries.c.matches), _ZERO)).select_from(entries)


def _entries(path: Path, column: ColumnElement[Any]) -> Subquery:
    limit = COUNT_MAX + 1
    # Read the entries in the order of the index: without ORDER BY, the planner may scan the table until it has found
    # enough entries.
    parts = [
        select(column).where(*searched).order_by(sessions.c.started_at.desc()).limit(limit) for searched in path.ranges
    ]
    if len(parts) == 1:
        return parts[0].subquery("entries")
    merged = union_all(*(select(part.subquery()) for part in parts)).subquery("merged")
    return select(merged.c.matches).limit(limit).subquery("entries")
