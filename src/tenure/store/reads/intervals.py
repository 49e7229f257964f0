"""Reads that all engines share: billable intervals and sums of usage, for a window or for any span.

A billable interval is computed from the session's row alone. It runs from the later of the two starts (of the session
and of the window) to the earlier of the two ends. A session that is not closed ends at its deadline. None of these
values changes after the window is cut, so these statements return the same result at any time after the cut.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    Select,
    Subquery,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    union_all,
)

from tenure.domain.sessions import Kind
from tenure.domain.usage import (
    CHUNK_MAX,
    BillableInterval,
    Chunk,
    ChunkBounds,
    Era,
    Factors,
    GroupBy,
    UsageFilter,
    UsageGroup,
    UsageSumQuery,
    UsageSums,
    Window,
)
from tenure.store.expressions import (
    LONG_SESSION,
    apart,
    earlier_of,
    later_of,
    microseconds_between,
    unindexed,
    usage_of,
    was_long,
)
from tenure.store.reads.sessions import OF_ANY_KIND, SEATED, in_scope, read_now
from tenure.store.reads.usage import FACTORS
from tenure.store.tables import installation, sessions, usage_eras
from tenure.store.types import Instant

_row = sessions.c


def divide_window(
    connection: Connection, window: Window, after: str | None, limit: int, index_hint: str = ""
) -> Sequence[ChunkBounds]:
    """The next `limit` chunks of a window after the session `after`; fewer at the end of the window."""
    bounds: list[ChunkBounds] = []
    first, before, counted = "", 0, 0
    for session_id, number, running, _next in connection.execute(divide_statement(window, after, limit, index_hint)):
        if number % CHUNK_MAX == 1:
            first = session_id
        if number % CHUNK_MAX == 0 or _next is None:
            bounds.append(ChunkBounds(first, session_id, number - counted, int(running) - before))
            before, counted = int(running), number
    return bounds


def divide_statement(window: Window, after: str | None, limit: int, index_hint: str = "") -> Select[Any]:
    """The first and last session of each chunk, by id, each with the running sum of usage up to it."""
    billable = _first_intervals(window, after, limit * CHUNK_MAX, index_hint)
    by_id: Any = {"order_by": billable.c.session_id}
    running = func.sum(cast(_used(billable), BigInteger)).over(rows=(None, 0), **by_id)
    numbered = select(
        billable.c.session_id,
        func.row_number().over(**by_id).label("number"),
        running.label("running"),
        func.lead(billable.c.session_id).over(**by_id).label("following"),
    ).subquery("numbered")
    at_an_end = or_(numbered.c.number % CHUNK_MAX < 2, numbered.c.following.is_(None))  # noqa: PLR2004 - the last, the first
    return select(numbered).where(at_an_end).order_by(numbered.c.number)


def _first_intervals(window: Window, after: str | None, limit: int, index_hint: str) -> Subquery:
    """The first `limit` intervals. Each part is limited too, so that an index scan of live sessions stops early.

    The limit also prevents PostgreSQL from computing an interval again for each use of it.
    """
    parts = [
        (part if after is None else part.where(by_id > after)).order_by(by_id).limit(limit)
        for part, by_id in _parts(window, index_hint)
    ]
    intervals = union_all(*(select(part.subquery()) for part in parts)).subquery("intervals")
    return select(intervals).order_by(intervals.c.session_id).limit(limit).subquery("billable")


def read_intervals(
    connection: Connection, window: Window, chunk: Chunk, index_hint: str = ""
) -> Sequence[BillableInterval]:
    rows = connection.execute(intervals_statement(window, chunk.first_session_id, chunk.last_session_id, index_hint))
    return [BillableInterval(*row) for row in rows]


def intervals_statement(window: Window, first: str, last: str, index_hint: str = "") -> Select[Any]:
    """Selects the intervals of the sessions `first` to `last`, ordered by id as the engine sorts ids."""
    parts = [part.where(by_id >= first, by_id <= last) for part, by_id in _parts(window, index_hint)]
    return _interval_columns(window, union_all(*parts).subquery("billable"))


def list_intervals(
    connection: Connection, window: Window, after: str | None, limit: int, index_hint: str = ""
) -> Sequence[BillableInterval]:
    return [BillableInterval(*row) for row in connection.execute(list_statement(window, after, limit, index_hint))]


def list_statement(window: Window, after: str | None, limit: int, index_hint: str = "") -> Select[Any]:
    return _interval_columns(window, _first_intervals(window, after, limit, index_hint))


def _interval_columns(window: Window, billable: Subquery) -> Select[Any]:
    return select(
        billable.c.session_id,
        billable.c.user_object_id,
        billable.c.tenant_object_id,
        billable.c.capacity_id,
        billable.c.kind,
        case((billable.c.from_at > window.started_at, billable.c.from_at)),
        case((billable.c.to_at < window.ended_at, billable.c.to_at)),
        billable.c.before,
        billable.c.total,
    ).order_by(billable.c.session_id)


def _parts(window: Window, index_hint: str) -> Sequence[tuple[Select[Any], ColumnElement[Any]]]:
    """Selects that together return each session of a window once. Each has the id column to filter and sort by.

    Live sessions are read by one index, and those that closed after the start of the window by another. Both are in one
    statement, which sees the table at one instant, so a session that is being closed is neither missed nor read twice.
    On an engine whose statements do not see one instant, `index_hint` names one index by which all rows are read.
    """
    ids, other_ids = _row.session_id, unindexed(_row.session_id)
    if index_hint:
        end = func.coalesce(_row.closed_at, _row.deadline_at)
        return [(_part(window, ids, end, (end > window.started_at,)).with_hint(sessions, index_hint), ids)]
    is_live = (_row.closed_at.is_(None), OF_ANY_KIND, _row.deadline_at > window.started_at)
    live = _part(window, ids, _row.deadline_at, is_live)
    closed = _part(window, other_ids, _row.closed_at, (_row.closed_at > window.started_at,))
    return (live, ids), (closed, other_ids)


def _part(window: Window, by_id: Any, end: Any, conditions: Sequence[ColumnElement[bool]]) -> Select[Any]:
    return select(
        by_id.label("session_id"),
        _row.user_object_id,
        _row.tenant_object_id,
        _row.capacity_id,
        _row.kind,
        *_measured(end, _bound(window.started_at), _bound(window.ended_at), _bound(window.era.started_at)),
        _factor(window.era.factors).label("factor"),
    ).where(_row.started_at < window.ended_at, *conditions)


def _measured(end: Any, from_at: Any, to_at: Any, era_started_at: Any) -> Sequence[ColumnElement[Any]]:
    live_from = later_of(_row.started_at, from_at)
    live_to = earlier_of(end, to_at)
    counts_from = later_of(_row.started_at, era_started_at)
    # Most sessions in a long span also began in it: they have no usage before it to subtract.
    live_before = and_(from_at > _row.started_at, from_at > era_started_at)
    return (
        live_from.label("from_at"),
        live_to.label("to_at"),
        case((live_before, microseconds_between(counts_from, live_from)), else_=literal_column("0")).label("before"),
        microseconds_between(counts_from, live_to).label("total"),
    )


def _factor(factors: Factors) -> ColumnElement[int]:
    first, second, third = (literal(factor, BigInteger) for factor in factors)
    return case((_row.kind == 1, first), (_row.kind == 2, second), else_=third)  # noqa: PLR2004 - kinds


def _used(billable: FromClause) -> ColumnElement[int]:
    used_before = case(
        (billable.c.before > 0, usage_of(billable.c.before, billable.c.factor)), else_=literal_column("0")
    )
    return usage_of(billable.c.total, billable.c.factor) - used_before


def _bound(instant: datetime) -> ColumnElement[Any]:
    """Returns a parameter with an explicit cast: not every driver sends its type, and the context may not imply it."""
    return cast(literal(instant, Instant), Instant)


# Sums over any span.

SPAN = timedelta(days=30)
_Span = tuple[Era, datetime, datetime]
"""The part of a span that lies in one era."""
SPANS_MAX = 50
"""The maximum number of spans in a statement: databases limit the number of parameters and terms."""
_BEGINNING = datetime.min.replace(tzinfo=UTC)
_END = datetime.max.replace(tzinfo=UTC)
_KINDS: Sequence[ColumnElement[int]] = [literal_column(str(kind.value)) for kind in Kind]
KEYS = {
    GroupBy.TENANT: _row.tenant_object_id,
    GroupBy.CAPACITY: _row.capacity_id,
    GroupBy.USER: _row.user_object_id,
    GroupBy.KIND: _row.kind,
    GroupBy.SESSION: _row.session_id,
}


def sum_usage(
    connection: Connection, sum_query: UsageSumQuery, after: str | None, limit: int, index_hint: str = ""
) -> UsageSums:
    """Sums usage as if the span began and ended with a cut. Pruned usage is not included."""
    final_until, kept_from = _kept(connection)
    # Usage up to the last cut is final, even if the clock was stepped back behind it.
    latest = max(read_now(connection), final_until)
    to_at = latest if sum_query.to_at is None else min(sum_query.to_at, latest)
    from_at = max(to_at - SPAN if sum_query.from_at is None else sum_query.from_at, kept_from)
    spans = _spans(from_at, to_at, _eras(connection, final_until, sum_query.factors))
    groups = _sums(connection, sum_query, spans, after, limit, index_hint)
    if from_at < _kept(connection)[1]:  # a part was pruned during the read
        return sum_usage(connection, sum_query, after, limit, index_hint)
    return UsageSums(final_until, groups, from_at, max(from_at, to_at))


def _kept(connection: Connection) -> tuple[datetime, datetime]:
    """The last cut, and the instant from which on no session has been pruned."""
    row = installation.c
    last_cut_at, created_at, kept_from = connection.execute(
        select(row.last_cut_at, row.created_at, row.usage_kept_from)
    ).one()
    return last_cut_at, kept_from if kept_from is not None and kept_from > created_at else _BEGINNING


def _sums(
    connection: Connection,
    sum_query: UsageSumQuery,
    spans: Sequence[_Span],
    after: str | None,
    limit: int,
    index_hint: str,
) -> Sequence[UsageGroup]:
    added: dict[Any, list[int]] = {} if sum_query.group_by else {None: [0, 0]}
    for begin in range(0, len(spans), SPANS_MAX):
        statement = sums_statement(sum_query, spans, after, limit, index_hint, begin)
        for key, usage, count in connection.execute(statement):
            sums = added.setdefault(key, [0, 0])
            sums[0] += int(usage or 0)
            sums[1] += int(count or 0)
    # Each of several statements returns its own first `limit` keys. So only the first `limit` keys of all
    # statements have complete sums.
    keys = list(added) if len(spans) <= SPANS_MAX else sorted(added)[:limit]
    return [_group(key, *added[key]) for key in keys]


def _group(key: Any, usage: int, count: int) -> UsageGroup:
    return UsageGroup(None if key is None else str(key), usage, count)


def _eras(connection: Connection, last_cut_at: datetime, factors: Factors) -> Sequence[Era]:
    """The stored eras, and the one that the next cut would begin if the factors have changed."""
    statement = select(usage_eras.c.started_at, *FACTORS).order_by(usage_eras.c.era)
    eras = [Era(started_at, tuple(of_kinds)) for started_at, *of_kinds in connection.execute(statement)]
    return eras if eras and eras[-1].factors == factors else [*eras, Era(last_cut_at, factors)]


def _spans(from_at: datetime, to_at: datetime, eras: Sequence[Era]) -> Sequence[_Span]:
    ends = [*(era.started_at for era in eras[1:]), to_at]
    parts = [(era, max(from_at, era.started_at), min(to_at, end)) for era, end in zip(eras, ends, strict=True)]
    return [(era, begins, ends) for era, begins, ends in parts if begins < ends]


def sums_statement(
    sum_query: UsageSumQuery,
    spans: Sequence[_Span],
    after: str | None,
    limit: int,
    index_hint: str = "",
    begin: int = 0,
) -> Select[Any]:
    """The sums over at most SPANS_MAX spans, from index `begin` on."""
    key = None if sum_query.group_by is None else KEYS[sum_query.group_by]
    # If the filter asks for another tenant than that of the scope, no session meets both conditions.
    conditions = [*in_scope(sum_query.scope), *_conditions(sum_query.criteria), *_after(sum_query.group_by, after)]
    some = spans[begin : begin + SPANS_MAX]
    billable = _intervals_in(some, spans[0][1], null() if key is None else key, conditions, index_hint)
    sums: Sequence[ColumnElement[Any]] = (
        func.sum(_used(billable)).label("usage"),
        func.sum(billable.c.counts).label("sessions"),
    )
    if key is None:
        return select(null().label("key"), *sums)
    # The groups are planned separately from the sort: otherwise PostgreSQL sorts all sessions, on disk,
    # to find the first groups.
    groups = apart(select(billable.c.key, *sums).group_by(billable.c.key)).subquery("groups")
    return select(groups).order_by(groups.c.key).limit(limit)


def _after(group_by: GroupBy | None, after: str | None) -> Sequence[ColumnElement[bool]]:
    if group_by is None or after is None:
        return []
    return [KEYS[group_by] > (int(after) if group_by is GroupBy.KIND else after)]


def _intervals_in(
    spans: Sequence[_Span],
    first_at: datetime,
    key: Any,
    conditions: Sequence[ColumnElement[bool]],
    index_hint: str,
) -> Subquery:
    """One row per session and era in which it was live. To count each session once, only its first row has `counts` 1.

    It is planned separately from the sums: otherwise PostgreSQL computes an interval again for each use of it.
    """
    span = _spans_table(spans)
    starts, ends = span.c.from_at, span.c.to_at
    factor = case((_row.kind == 1, span.c.factor_1), (_row.kind == 2, span.c.factor_2), else_=span.c.factor_3)  # noqa: PLR2004
    begins_here = or_(_row.started_at >= starts, starts == _bound(first_at))
    parts = [
        select(
            key.label("key"),
            *_measured(end, starts, ends, span.c.era_started_at),
            factor.label("factor"),
            case((begins_here, 1), else_=0).label("counts"),
        )
        .join_from(sessions, span, and_(_row.started_at < ends, end > starts))
        .where(*overlapping, *conditions)
        for end, overlapping in _ends(spans[0][1], spans[-1][2], index_hint)
    ]
    if index_hint:
        return parts[0].with_hint(sessions, index_hint).subquery("billable")
    return union_all(*(select(apart(part).subquery()) for part in parts)).subquery("billable")


def _ends(
    from_at: datetime, to_at: datetime, index_hint: str
) -> Sequence[tuple[ColumnElement[Any], Sequence[ColumnElement[bool]]]]:
    """The end of a session, and the conditions on sessions that may have been live in the span, as in `_parts`.

    The conditions include those of the indexes by user, capacity, tenant, kind and close reason. The start and the end
    of a closed session are bounded on both sides, so that each index is searched only near the span. Only a session
    that was long can be outside these bounds.
    """
    began = _row.started_at < to_at
    if index_hint:
        end = func.coalesce(_row.closed_at, _row.deadline_at)
        return [(end, (began, or_(_row.closed_at.is_(None), _row.closed_at > from_at)))]
    was_closed = (began, _row.closed_at > from_at, _row.close_reason.is_not(None))
    is_live = (began, _row.closed_at.is_(None), _row.close_reason.is_(None), SEATED, _row.kind.in_(_KINDS))
    near = and_(_row.started_at >= _moved(from_at, -LONG_SESSION), _row.closed_at <= _moved(to_at, LONG_SESSION))
    far = (*was_closed, was_long(_row.started_at, _row.closed_at), not_(near))
    return (_row.deadline_at, is_live), (_row.closed_at, (*was_closed, near)), (_row.closed_at, far)


def _moved(instant: datetime, by: timedelta) -> datetime:
    """The instant moved within the calendar."""
    try:
        return instant + by
    except OverflowError:
        return _BEGINNING if by < timedelta() else _END


def _spans_table(spans: Sequence[_Span]) -> Subquery:
    selects = [
        select(
            _bound(era.started_at).label("era_started_at"),
            _bound(from_at).label("from_at"),
            _bound(to_at).label("to_at"),
            *(literal(factor, BigInteger).label(f"factor_{kind}") for kind, factor in enumerate(era.factors, 1)),
        )
        for era, from_at, to_at in spans
    ]
    combined: Select[Any] | CompoundSelect[Any] = selects[0] if len(selects) == 1 else union_all(*selects)
    return combined.subquery("spans")


def _conditions(criteria: UsageFilter) -> Sequence[ColumnElement[bool]]:
    wanted = (
        (_row.tenant_object_id, criteria.tenant),
        (_row.capacity_id, criteria.capacity),
        (_row.user_object_id, criteria.user),
    )
    return [column == value for column, value in wanted if value is not None]
