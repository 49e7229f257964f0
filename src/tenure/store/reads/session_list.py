"""`list_sessions`: a page of sessions, newest start first, for any filter. The cost does not grow with the table.

Each index of the list contains either the live or the closed sessions, and it begins with a column of the filter: the
user, the capacity, the tenant, the kind, or the close reason and the kind. Within one value of that column it is
ordered by start, as the list is. So a page is merged from *ranges* of indexes, and only the first entries of each range
are read. If a filter names no kind or no reason, there is one range for each possible value. Other indexes are used
where so few sessions match that all of them can be read (`Path.is_small`): for live sessions of a user, for sessions in
the state `closing`, and for lapsed sessions if few sessions are due for the sweep.

Several indexes may fit a filter, and perhaps none checks all its conditions. A `Path` is one way to read the matching
sessions: the ranges of one index, and the conditions that the index does not check. If every path has such conditions,
the sessions that match may be anywhere in their ranges. Then the page reads at most SCAN_MAX entries of live and of
closed sessions each. It uses the path on which these entries go back furthest in time, and ends at the *reach*: all
entries with this start or a later one have been checked. The next page continues from there. So such a page may be
short or empty although more sessions match.

The reach is read first, and the page is read down to it. So sessions that open or close between the two statements are
neither missed nor listed twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Select, func, or_, select, union_all

from tenure.domain.deadlines import as_recorded
from tenure.domain.scope import Scope
from tenure.domain.sessions import (
    FIRST_ID,
    LAPSE_REASONS,
    CloseReason,
    Kind,
    Position,
    SessionFilter,
    SessionPage,
    State,
)
from tenure.store.expressions import unsearched
from tenure.store.limits import SCAN_MAX
from tenure.store.reads.sessions import COLUMNS, SEATED, read_now, session_from_row
from tenure.store.tables import sessions

_row = sessions.c
_Conditions = Sequence[ColumnElement[bool]]
_Equals = Mapping[str, ColumnElement[bool]]
"""The conditions of a filter on single columns, by column name."""

_UNENDED = _row.close_reason.is_(None)
_ORDER = (_row.started_at.desc(), _row.session_id.desc())


class Path(NamedTuple):
    """One way to read the sessions of a group that match the filter."""

    ranges: Sequence[_Conditions]
    """Each range is searched in one partial index, and repeats the condition of that index. Together the ranges contain
    each matching session once."""
    rest: _Conditions = ()
    """The conditions that the index does not check."""
    is_small: bool = False
    """Whether so few sessions are in the ranges that they can all be read."""

    @property
    def is_direct(self) -> bool:
        """Whether the page can be read without a limit on the entries."""
        return self.is_small or not self.rest


class Group(NamedTuple):
    """The sessions of one part of the list (active, lapsed, live or closed, see `groups_of`), and the paths to read
    them, in order of preference.
    """

    paths: Sequence[Path]
    usual: _Conditions = ()
    """Conditions that nearly all sessions of the group meet, so that a read need not skip many entries because of
    them."""


class _Chosen(NamedTuple):
    group: Group
    path: Path


def list_sessions(
    connection: Connection, criteria: SessionFilter, after: Position | None, limit: int, scope: Scope
) -> SessionPage:
    narrowed = narrowed_filter(criteria, scope)
    return SessionPage([]) if narrowed is None else _read_page(connection, narrowed, after, limit)


def narrowed_filter(criteria: SessionFilter, scope: Scope) -> SessionFilter | None:
    """The filter within the scope; None if the filter asks for another tenant or user than that of the scope."""
    if criteria.tenant not in (None, scope.tenant) and scope.tenant is not None:
        return None
    if criteria.user not in (None, scope.user) and scope.user is not None:
        return None
    return replace(criteria, tenant=scope.tenant or criteria.tenant, user=scope.user or criteria.user)


def _read_page(connection: Connection, criteria: SessionFilter, after: Position | None, limit: int) -> SessionPage:
    # The whole page uses one instant: a session that passes the filter as live must also be returned as live.
    now = read_now(connection)
    chosen, reach = _choose(connection, groups_of(connection, criteria, now), after)
    if not chosen:
        return SessionPage([])
    rows = connection.execute(page_statement(chosen, after, reach, limit)).all()
    found = [as_recorded(session_from_row(row), now) for row in rows]
    if reach is None or len(found) == limit:
        return SessionPage(found)
    return SessionPage(found, Position(reach, FIRST_ID))


def page_statement(
    chosen: Sequence[_Chosen], after: Position | None, reach: datetime | None, limit: int
) -> Select[Any]:
    """Merges the ids and starts of the ranges, and reads complete rows only for the sessions on the page."""
    bounds = [*_after(after), *([] if reach is None else [_row.started_at >= reach])]
    parts = [
        select(_row.session_id, _row.started_at)
        .where(*searched, *group.usual, *path.rest, *bounds)
        .order_by(*_ORDER)
        .limit(limit)
        for group, path in chosen
        for searched in path.ranges
    ]
    merged = union_all(*(select(part.subquery()) for part in parts)).subquery("merged")
    ids = select(merged.c.session_id).order_by(merged.c.started_at.desc(), merged.c.session_id.desc()).limit(limit)
    return select(*COLUMNS).where(_row.session_id.in_(ids)).order_by(*_ORDER)


def _after(after: Position | None) -> _Conditions:
    if after is None:
        return []
    if after.session_id == FIRST_ID:
        return [_row.started_at < after.started_at]
    # An index can be searched by the condition on `started_at` alone. `earlier` then excludes the sessions that started
    # at the same instant as the last session of the previous page, and are on that page or an earlier one.
    earlier = or_(_row.started_at < after.started_at, _row.session_id < after.session_id)
    return [_row.started_at <= after.started_at, earlier]


def _choose(
    connection: Connection, groups: Iterable[Group], after: Position | None
) -> tuple[Sequence[_Chosen], datetime | None]:
    """Returns a path for each group, and the reach of the page, which is None if the page is not limited."""
    chosen: list[_Chosen] = []
    reaches: list[datetime] = []
    for group in groups:
        path, reach = _furthest(connection, group, after)
        chosen.append(_Chosen(group, path))
        if reach is not None:
            reaches.append(reach)
    return chosen, max(reaches, default=None)


def _furthest(connection: Connection, group: Group, after: Position | None) -> tuple[Path, datetime | None]:
    for path in group.paths:
        if path.is_direct:
            return path, None
    best: tuple[Path, datetime] | None = None
    for path in group.paths:
        reach: datetime | None = connection.execute(reach_statement(path, after)).scalar_one_or_none()
        if reach is None:
            return path, None
        if best is None or reach < best[1]:
            best = path, reach
    if best is None:
        raise AssertionError("a group without paths")
    return best


def reach_statement(path: Path, after: Position | None) -> Select[Any]:
    """Selects the start of the last entry that a page may read. Returns no row, or NULL, if the page may read all
    entries.
    """
    parts = [
        select(_row.started_at)
        .where(*searched, *_after(after))
        .order_by(_row.started_at.desc())
        .offset(SCAN_MAX // len(path.ranges))
        .limit(1)
        for searched in path.ranges
    ]
    if len(parts) == 1:
        return parts[0]
    ends = union_all(*(select(part.subquery()) for part in parts)).subquery("ends")
    return select(func.max(ends.c.started_at))


def groups_of(connection: Connection, criteria: SessionFilter, now: datetime) -> Sequence[Group]:
    """The groups that the filter admits: active sessions, lapsed sessions whose end is not recorded, and closed
    sessions. Active and lapsed sessions form one group if the filter admits both.
    """
    equals = _equals(criteria)
    active = criteria.active is not False and criteria.state not in (State.CLOSING, State.CLOSED)
    active = active and criteria.close_reason is None
    lapsed = criteria.active is not True and criteria.state in (None, State.CLOSED)
    lapsed = lapsed and criteria.close_reason in (None, *LAPSE_REASONS)
    closed = criteria.active is not True and criteria.state in (None, State.CLOSING, State.CLOSED)
    groups = [_closed(criteria, equals)] if closed else []
    if active and lapsed:
        groups.append(_live(criteria, equals))
    elif active or lapsed:
        few_due = not _exceeds_scan(connection, now)
        live = _active if active else _lapsed
        groups.append(live(criteria, equals, now, few_due=few_due))
    return groups


def live_paths(criteria: SessionFilter) -> Sequence[Path]:
    """The paths by user, capacity and tenant to the sessions whose end is not recorded. Each has one range."""
    rest = [] if criteria.state is None else [_row.state == criteria.state]
    return _live(criteria, _equals(criteria), *rest).paths[:-1]


def _equals(criteria: SessionFilter) -> _Equals:
    return {
        column.name: column == value
        for column, value in (
            (_row.user_object_id, criteria.user),
            (_row.capacity_id, criteria.capacity),
            (_row.tenant_object_id, criteria.tenant),
            (_row.kind, criteria.kind),
        )
        if value is not None
    }


def _exceeds_scan(connection: Connection, now: datetime) -> bool:
    """Whether more than SCAN_MAX sessions are due for the sweep. Only a session that is due can have lapsed without a
    recorded end.
    """
    return connection.execute(due_statement(now)).one_or_none() is not None


def due_statement(now: datetime) -> Select[Any]:
    return select(_row.check_at).where(_row.check_at <= now).order_by(_row.check_at).offset(SCAN_MAX).limit(1)


def _live(criteria: SessionFilter, equals: _Equals, *rest: ColumnElement[bool], usual: _Conditions = ()) -> Group:
    """Sessions whose end is not recorded."""
    paths: list[Path] = []
    if "user_object_id" in equals:
        paths.append(_path(equals, ["user_object_id", "capacity_id"], [_row.closed_at.is_(None)], rest, is_small=True))
    if "capacity_id" in equals:
        paths.append(_path(equals, ["capacity_id"], [_row.closed_at.is_(None), SEATED], rest))
    if "tenant_object_id" in equals:
        paths.append(_path(equals, ["tenant_object_id"], [_UNENDED], rest))
    ranges = [[_row.kind == kind, _UNENDED] for kind in _kinds(criteria)]
    return Group([*paths, Path(ranges, _others(equals, ["kind"], rest))], usual)


def _active(criteria: SessionFilter, equals: _Equals, now: datetime, *, few_due: bool) -> Group:
    before_deadline = _row.deadline_at > now
    rest = [] if criteria.state is None else [_row.state == criteria.state]
    if few_due:
        return _live(criteria, equals, *rest, usual=[before_deadline])
    return _live(criteria, equals, before_deadline, *rest)


def _lapsed(criteria: SessionFilter, equals: _Equals, now: datetime, *, few_due: bool) -> Group:
    rest = [_row.deadline_at <= now]
    if criteria.close_reason is not None:
        rest.append(_row.lapse_reason == criteria.close_reason)
    group = _live(criteria, equals, *rest)
    if not few_due:
        return group
    due = _path(equals, [], [_row.check_at <= now], [unsearched(_row.closed_at.is_(None)), *rest], is_small=True)
    return group._replace(paths=[*group.paths, due])


def _closed(criteria: SessionFilter, equals: _Equals) -> Group:
    if criteria.close_reason is not None:
        equals = {**equals, "close_reason": _row.close_reason == criteria.close_reason}
    if criteria.state == State.CLOSING:
        closing = [_row.closed_at.is_not(None), _row.check_at.is_not(None)]
        return Group([_path(equals, [], closing, [_row.state == criteria.state], is_small=True)])
    by_id = [name for name in ("user_object_id", "capacity_id", "tenant_object_id") if name in equals]
    paths = [_path(equals, [name], [_row.close_reason.is_not(None)]) for name in by_id]
    reasons = [*CloseReason] if criteria.close_reason is None else [criteria.close_reason]
    ranges = [[_row.close_reason == reason, _row.kind == kind] for reason in reasons for kind in _kinds(criteria)]
    usual = [] if criteria.state is None else [_row.state == criteria.state]
    return Group([*paths, Path(ranges, _others(equals, ["close_reason", "kind"]))], usual)


def _kinds(criteria: SessionFilter) -> Sequence[int]:
    return [*Kind] if criteria.kind is None else [criteria.kind]


def _path(
    equals: _Equals, searched: Sequence[str], condition: _Conditions, rest: _Conditions = (), *, is_small: bool = False
) -> Path:
    """A path with one range, by the columns `searched` of an index that has the `condition`."""
    given = [equals[name] for name in searched if name in equals]
    return Path([[*given, *condition]], _others(equals, searched, rest), is_small)


def _others(equals: _Equals, searched: Sequence[str], rest: _Conditions = ()) -> _Conditions:
    """The conditions that the index of the path does not check. They are written so that the planner cannot search
    another index by them: more entries of that index could match.
    """
    return [*(unsearched(condition) for name, condition in equals.items() if name not in searched), *rest]
