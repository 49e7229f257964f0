"""Reads that all engines share: sums of usage over any span.

A span is summed as if it began and ended with a cut, so it consists of whole windows, and its sum is the sum of these
windows. Therefore the sums of adjacent spans add up to the sum of the combined span, to the last digit, and the sum
between two marks of one series is the difference of the marks. If a span contains such marks, only its *edges* are
summed from sessions: the part before its first mark and the part after its last mark. A sum by user or session, or of
one user, is computed from sessions only, because marks contain neither users nor sessions.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Subquery,
    and_,
    case,
    func,
    literal_column,
    null,
    select,
    union_all,
)

from tenure.domain.usage import (
    Era,
    GroupBy,
    MarkState,
    MarkSums,
    UsageGroup,
    UsageSumQuery,
    UsageSums,
)
from tenure.store.expressions import apart
from tenure.store.limits import EDGE_SESSIONS_MAX, USER_ENTRIES_MIN, USER_ROUNDS
from tenure.store.reads.intervals import bound, used
from tenure.store.reads.sessions import read_now
from tenure.store.reads.usage import in_parts
from tenure.store.reads.usage_spans import (
    Span,
    ends_in,
    eras_until_now,
    intervals_in,
    names_key,
    session_conditions,
    spans_of,
    stored_eras,
)
from tenure.store.tables import installation, sessions, usage_mark_sums, usage_marks

_row = sessions.c
_mark = usage_mark_sums.c

SPAN = timedelta(days=30)
"""The length of the span if the query has no start."""
_MarkPair = tuple[datetime, datetime]
"""The instants of two marks of one series, the earlier one first."""
SPANS_MAX = 50
"""The maximum number of spans in a statement, where each era of a span counts as a span of its own: databases limit the
number of parameters and terms.
"""
_BEGINNING = datetime.min.replace(tzinfo=UTC)
KEYS = {
    GroupBy.TENANT: _row.tenant_object_id,
    GroupBy.CAPACITY: _row.capacity_id,
    GroupBy.USER: _row.user_object_id,
    GroupBy.KIND: _row.kind,
    GroupBy.SESSION: _row.session_id,
}
MARK_KEYS = {
    GroupBy.TENANT: _mark.tenant_object_id,
    GroupBy.CAPACITY: _mark.capacity_id,
    GroupBy.KIND: _mark.kind,
}


def sum_usage(
    connection: Connection, sum_query: UsageSumQuery, after: str | None, limit: int, index_hint: str = ""
) -> UsageSums:
    """Sums usage as if the span began and ended with a cut. Pruned usage is not included."""
    return cast("UsageSums", _sum(connection, sum_query, after, limit, index_hint))


def sum_shortly(
    connection: Connection, sum_query: UsageSumQuery, after: str | None, limit: int, index_hint: str = ""
) -> UsageSums | None:
    """Returns the same sum as `sum_usage`, or None if too many sessions would have to be read for it.

    So this function can run as a short read, which does not wait for long reads.
    """
    return _sum(connection, sum_query, after, limit, index_hint, is_short=True)


def _sum(
    connection: Connection,
    sum_query: UsageSumQuery,
    after: str | None,
    limit: int,
    index_hint: str,
    *,
    is_short: bool = False,
) -> UsageSums | None:
    final_until, kept_from = _kept(connection)
    # Usage up to the last cut is final. So it is summed even if the clock has been stepped back to before the cut.
    latest = max(read_now(connection), final_until)
    to_at = latest if sum_query.to_at is None else min(sum_query.to_at, latest)
    from_at = max(to_at - SPAN if sum_query.from_at is None else sum_query.from_at, kept_from)
    eras = eras_until_now(connection, final_until, sum_query.factors)
    marks = _marks_in(connection, from_at, to_at) if can_use_marks(sum_query) else None
    if sum_query.quick and can_use_marks(sum_query):
        from_at, to_at, marks = _quick_span(connection, sum_query, eras, (from_at, to_at), marks, index_hint)
    edges = [] if marks is None else [spans_of(from_at, marks[0], eras), spans_of(marks[1], to_at, eras)]
    if marks is None or max(map(len, edges)) > SPANS_MAX:
        spans, marks = spans_of(from_at, to_at, eras), None
        found = _sums_of_sessions(connection, sum_query, spans, after, limit, index_hint, is_short=is_short)
        if found is None:
            return None
        groups = found
    else:
        statement = marked_statement(sum_query, marks, edges, after, limit, index_hint)
        groups = [_group(key, int(usage or 0), int(count or 0)) for key, usage, count in connection.execute(statement)]
    # Read again if a part of the span was pruned during the read, or if one of the marks was deleted.
    if from_at < _kept(connection)[1] or (marks is not None and _marks_in(connection, *marks) != marks):
        return _sum(connection, sum_query, after, limit, index_hint, is_short=is_short)
    return UsageSums(final_until, groups, from_at, max(from_at, to_at))


def _kept(connection: Connection) -> tuple[datetime, datetime]:
    """The last cut, and the instant from which on no session has been pruned."""
    row = installation.c
    last_cut_at, created_at, kept_from = connection.execute(
        select(row.last_cut_at, row.created_at, row.usage_kept_from)
    ).one()
    return last_cut_at, kept_from if kept_from is not None and kept_from > created_at else _BEGINNING


# Marks


def can_use_marks(sum_query: UsageSumQuery) -> bool:
    of_user = sum_query.criteria.user is not None or sum_query.scope.user is not None
    return not of_user and (sum_query.group_by is None or sum_query.group_by in MARK_KEYS)


def _marks_in(connection: Connection, from_at: datetime, to_at: datetime) -> _MarkPair | None:
    """The first and the last complete mark in the span that belong to the series of the span's last complete mark. None
    if the two are the same mark, or if the span contains no complete mark.
    """
    found = connection.execute(marks_statement(from_at, to_at)).all()
    if not found:
        return None
    last_at, series = found[0]
    first_at = min(marked_at for marked_at, each in found if each == series)
    return None if first_at == last_at else (first_at, last_at)


def marks_statement(from_at: datetime, to_at: datetime) -> Select[Any]:
    row = usage_marks.c
    in_span = (row.marked_at >= from_at, row.marked_at <= to_at, row.state == MarkState.COMPLETE.value)
    return select(row.marked_at, row.series).where(*in_span).order_by(row.marked_at.desc())


def _quick_span(
    connection: Connection,
    sum_query: UsageSumQuery,
    eras: Sequence[Era],
    span: tuple[datetime, datetime],
    marks: _MarkPair | None,
    index_hint: str,
) -> tuple[datetime, datetime, _MarkPair | None]:
    """Returns the span without those edges for which too many sessions would have to be read, and its marks.

    If the span does not contain two marks of one series, but too many sessions, returns another span: from the last
    mark before its beginning to the last mark before its end. If these are not two marks of one series, returns the
    span unchanged.
    """
    from_at, to_at = span
    if marks is None:
        if _exceeds(connection, sum_query, spans_of(from_at, to_at, eras), index_hint):
            marks = _marks_before(connection, from_at, to_at)
        return (from_at, to_at, None) if marks is None else (*marks, marks)
    if _exceeds(connection, sum_query, spans_of(from_at, marks[0], eras), index_hint):
        from_at = marks[0]
    if _exceeds(connection, sum_query, spans_of(marks[1], to_at, eras), index_hint):
        to_at = marks[1]
    return from_at, to_at, marks


def _marks_before(connection: Connection, from_at: datetime, to_at: datetime) -> _MarkPair | None:
    """The same as `_marks_in`, for the span that begins at the last complete mark up to `from_at`. None if there is no
    such mark.
    """
    first_at = connection.execute(marks_statement(_BEGINNING, from_at).limit(1)).scalar()
    return None if first_at is None else _marks_in(connection, first_at, to_at)


def _exceeds(connection: Connection, sum_query: UsageSumQuery, spans: Sequence[Span], index_hint: str) -> bool:
    """Whether one of `count_statements` finds more than EDGE_SESSIONS_MAX sessions that may have been live in the
    spans. Each statement stops counting beyond that number.
    """
    if not spans:
        return False
    statements = count_statements(sum_query, spans[0][1], spans[-1][2], index_hint)
    return any(connection.execute(each).scalar_one() > EDGE_SESSIONS_MAX for each in statements)


def count_statements(
    sum_query: UsageSumQuery, from_at: datetime, to_at: datetime, index_hint: str = ""
) -> Sequence[Select[Any]]:
    conditions = session_conditions(sum_query)
    found: list[Select[Any]] = [
        select(literal_column("1").label("found")).select_from(sessions).where(*overlapping, *conditions)
        for _, overlapping in ends_in(from_at, to_at, index_hint, by_key=names_key(sum_query))
    ]
    hinted = [each.with_hint(sessions, index_hint, "mssql") if index_hint else each for each in found]
    return [select(func.count()).select_from(each.limit(EDGE_SESSIONS_MAX + 1).subquery("found")) for each in hinted]


def marked_statement(
    sum_query: UsageSumQuery,
    marks: _MarkPair,
    edges: Sequence[Sequence[Span]],
    after: str | None,
    limit: int,
    index_hint: str = "",
) -> Select[Any]:
    """The sums between two marks, and over the edges before and after them.

    A session is counted where it starts. The sessions that were already live when the span began are counted by the
    first edge, or by the first mark if the span begins with this mark. A mark also has rows for groups without sessions
    in the span; such groups are not returned.
    """
    before, behind = edges
    parts = list(_differences(sum_query, marks, after, counts_live=not before))
    if before:
        parts.append(_edge(sum_query, before, after, index_hint, before[0][1]))
    if behind:
        parts.append(_edge(sum_query, behind, after, index_hint, None))
    united = union_all(*(select(apart(part).subquery()) for part in parts)).subquery("parts")
    sums: Sequence[ColumnElement[Any]] = (
        func.sum(united.c.usage).label("usage"),
        func.sum(united.c.sessions).label("sessions"),
    )
    if sum_query.group_by is None:
        return select(null().label("key"), *sums)
    by_key = select(united.c.key, *sums).group_by(united.c.key).having(func.sum(united.c.sessions) > 0)
    return by_key.order_by(united.c.key).limit(limit)


def _differences(
    sum_query: UsageSumQuery, marks: _MarkPair, after: str | None, *, counts_live: bool
) -> Sequence[Select[Any]]:
    """Two statements: the sums of the last mark, and the negated sums of the first mark.

    The marks are grouped separately, because SQLite can group the rows of one mark by tenant without sorting them.
    """
    first_at, last_at = marks
    at_first = _mark.live - _mark.started if counts_live else -_mark.started
    wanted = [
        (_mark.tenant_object_id, sum_query.scope.tenant),
        (_mark.tenant_object_id, sum_query.criteria.tenant),
        (_mark.capacity_id, sum_query.criteria.capacity),
    ]
    conditions = [column == value for column, value in wanted if value is not None]
    keys = [] if sum_query.group_by is None else [MARK_KEYS[sum_query.group_by]]
    if sum_query.group_by is not None and after is not None:
        conditions.append(keys[0] > _key_value(sum_query.group_by, after))
    return [
        select(*(key.label("key") for key in keys), func.sum(usage).label("usage"), func.sum(count).label("sessions"))
        .where(_mark.marked_at == bound(at), *conditions)
        .group_by(*keys)
        for at, usage, count in (
            (last_at, _mark.usage_millionths, _mark.started),
            (first_at, -_mark.usage_millionths, at_first),
        )
    ]


def _edge(
    sum_query: UsageSumQuery, spans: Sequence[Span], after: str | None, index_hint: str, first_at: datetime | None
) -> Select[Any]:
    conditions = [*session_conditions(sum_query), *_after(sum_query.group_by, after)]
    keys = [] if sum_query.group_by is None else [KEYS[sum_query.group_by].label("key")]
    by_key = names_key(sum_query)
    billable = intervals_in(spans, first_at, lambda _end, _to: keys, conditions, index_hint, by_key=by_key)
    if not keys:
        return select(*_sums(billable))
    return select(billable.c.key, *_sums(billable)).group_by(billable.c.key)


def sum_mark(
    connection: Connection, from_at: datetime, at: datetime, limit: int, index_hint: str = ""
) -> Sequence[MarkSums] | None:
    """Returns the sums from the previous mark, at `from_at`, to the mark at `at`. None if they have more than `limit`
    rows.
    """
    spans = spans_of(from_at, at, stored_eras(connection))
    added: dict[tuple[str, str, int], list[int]] = {}
    for begin in range(0, len(spans), SPANS_MAX):
        for row in in_parts(connection, mark_statement(spans[begin : begin + SPANS_MAX], at, limit + 1, index_hint)):
            sums = added.setdefault((row[0], row[1], row[2]), [0, 0, 0])
            for index, number in enumerate(row[3:]):
                sums[index] += int(number)
    return None if len(added) > limit else [MarkSums(*key, *sums) for key, sums in added.items()]


def mark_statement(spans: Sequence[Span], at: datetime, limit: int, index_hint: str = "") -> Select[Any]:
    """Selects for each tenant, capacity and kind: the usage in the spans, the number of sessions that started in the
    spans, and the number of all sessions that were live at the mark.
    """
    keys = [_row.tenant_object_id, _row.capacity_id, _row.kind]

    def columns(end: ColumnElement[Any], to_at: ColumnElement[Any]) -> Sequence[ColumnElement[Any]]:
        is_live = and_(end > bound(at), to_at == bound(at))
        return [*keys, case((is_live, literal_column("1")), else_=literal_column("0")).label("live")]

    billable = intervals_in(spans, None, columns, [], index_hint)
    by_key = [billable.c[key.name] for key in keys]
    live = func.sum(billable.c.live).label("live")
    return select(*by_key, *_sums(billable), live).group_by(*by_key).limit(limit)


# Sessions


def _sums_of_sessions(
    connection: Connection,
    sum_query: UsageSumQuery,
    spans: Sequence[Span],
    after: str | None,
    limit: int,
    index_hint: str,
    *,
    is_short: bool,
) -> Sequence[UsageGroup] | None:
    """The sums over the spans, read from sessions. None if the read must be short and would read too many sessions.

    If there are too many sessions, a page of sums by user reads one range of users after the other until the page is
    full. So the page does not sum all users to return the first ones. If the page is not full after USER_ROUNDS ranges,
    all remaining users are read at once, or a short read returns None.
    """
    is_of_users = sum_query.group_by is GroupBy.USER and sum_query.criteria.user is None and not index_hint
    is_long = (is_short or is_of_users) and _exceeds(connection, sum_query, spans, index_hint)
    if is_long and not is_of_users:
        return None
    if not is_long:
        return _sums_of_spans(connection, sum_query, spans, after, limit, index_hint)
    groups: list[UsageGroup] = []
    entries = max(USER_ENTRIES_MIN, 2 * limit)
    for _ in range(USER_ROUNDS):
        until = _user_after(connection, after, entries)
        groups += _sums_of_spans(connection, sum_query, spans, after, limit - len(groups), index_hint, until)
        if until is None or len(groups) == limit:
            return groups
        after = until
        entries *= 4
    if is_short:
        return None
    return [*groups, *_sums_of_spans(connection, sum_query, spans, after, limit - len(groups), index_hint)]


def _user_after(connection: Connection, after: str | None, entries: int) -> str | None:
    """The last user of the next range of users, which begins after the user `after`. The range is chosen so that it has
    at most about `entries` entries in each of the two indexes by user. None if neither index has more entries than
    that.
    """
    found = [connection.execute(each).scalar() for each in users_statements(after, entries)]
    return min((user for user in found if user is not None), default=None)


def users_statements(after: str | None, entries: int) -> Sequence[Select[Any]]:
    later = [] if after is None else [_row.user_object_id > after]
    return [
        select(_row.user_object_id).where(condition, *later).order_by(_row.user_object_id).offset(entries).limit(1)
        for condition in (_row.closed_at.is_(None), _row.close_reason.is_not(None))
    ]


def _sums_of_spans(
    connection: Connection,
    sum_query: UsageSumQuery,
    spans: Sequence[Span],
    after: str | None,
    limit: int,
    index_hint: str,
    until: str | None = None,
) -> Sequence[UsageGroup]:
    added: dict[Any, list[int]] = {} if sum_query.group_by else {None: [0, 0]}
    for begin in range(0, len(spans), SPANS_MAX):
        statement = sums_statement(sum_query, spans, after, limit, index_hint, begin, until)
        for key, usage, count in connection.execute(statement):
            sums = added.setdefault(key, [0, 0])
            sums[0] += int(usage or 0)
            sums[1] += int(count or 0)
    # Each of several statements returns its own first `limit` groups. So only the first `limit` groups of all
    # statements have complete sums.
    keys = list(added) if len(spans) <= SPANS_MAX else sorted(added)[:limit]
    return [_group(key, *added[key]) for key in keys]


def _group(key: Any, usage: int, count: int) -> UsageGroup:
    return UsageGroup(None if key is None else str(key), usage, count)


def sums_statement(
    sum_query: UsageSumQuery,
    spans: Sequence[Span],
    after: str | None,
    limit: int,
    index_hint: str = "",
    begin: int = 0,
    until: str | None = None,
) -> Select[Any]:
    """The sums over at most SPANS_MAX spans, from index `begin` on, for users up to `until`."""
    conditions = [*session_conditions(sum_query), *_after(sum_query.group_by, after)]
    some = spans[begin : begin + SPANS_MAX]
    keys = [] if sum_query.group_by is None else [KEYS[sum_query.group_by].label("key")]
    if sum_query.group_by is not None and until is not None:
        conditions.append(KEYS[sum_query.group_by] <= until)
    billable = intervals_in(
        some,
        spans[0][1],
        lambda _end, _to: keys,
        conditions,
        index_hint,
        by_user=until is not None,
        by_key=names_key(sum_query),
    )
    if not keys:
        return select(null().label("key"), *_sums(billable))
    # The groups are planned separately from the sort: otherwise PostgreSQL sorts all sessions, on disk, to find the
    # first groups.
    groups = apart(select(billable.c.key, *_sums(billable)).group_by(billable.c.key)).subquery("groups")
    return select(groups).order_by(groups.c.key).limit(limit)


def _sums(billable: Subquery) -> Sequence[ColumnElement[Any]]:
    return func.sum(used(billable)).label("usage"), func.sum(billable.c.counts).label("sessions")


def _after(group_by: GroupBy | None, after: str | None) -> Sequence[ColumnElement[bool]]:
    return [] if group_by is None or after is None else [KEYS[group_by] > _key_value(group_by, after)]


def _key_value(group_by: GroupBy, key: str) -> str | int:
    return int(key) if group_by is GroupBy.KIND else key
