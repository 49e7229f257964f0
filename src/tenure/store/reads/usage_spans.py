"""Reads that all engines share: the billable intervals of sessions in any span of time.

A span may contain several eras. So it is first divided into parts, each of which lies in one era.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    Subquery,
    and_,
    case,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    union_all,
)

from tenure.domain.sessions import Kind
from tenure.domain.usage import Era, Factors, UsageFilter, UsageSumQuery
from tenure.store.expressions import LONG_SESSION, apart, unsearched, was_long
from tenure.store.reads.intervals import bound, measured
from tenure.store.reads.sessions import SEATED, in_scope
from tenure.store.reads.usage import FACTORS
from tenure.store.tables import sessions, usage_eras

_row = sessions.c
Span = tuple[Era, datetime, datetime]
"""An era, and the start and the end of the part of a span that lies in this era."""
_BEGINNING = datetime.min.replace(tzinfo=UTC)
_END = datetime.max.replace(tzinfo=UTC)
_KINDS: Sequence[ColumnElement[int]] = [literal_column(str(kind.value)) for kind in Kind]


def eras_until_now(connection: Connection, last_cut_at: datetime, factors: Factors) -> Sequence[Era]:
    """The stored eras and, if there are none yet or the factors have changed since the last one, the era that the next
    cut would begin.
    """
    eras = stored_eras(connection)
    return eras if eras and eras[-1].factors == factors else [*eras, Era(last_cut_at, factors)]


def stored_eras(connection: Connection) -> Sequence[Era]:
    statement = select(usage_eras.c.started_at, *FACTORS).order_by(usage_eras.c.era)
    return [Era(started_at, tuple(of_kinds)) for started_at, *of_kinds in connection.execute(statement)]


def spans_of(from_at: datetime, to_at: datetime, eras: Sequence[Era]) -> Sequence[Span]:
    ends = [*(era.started_at for era in eras[1:]), to_at]
    parts = [(era, max(from_at, era.started_at), min(to_at, end)) for era, end in zip(eras, ends, strict=True)]
    return [(era, begins, ends) for era, begins, ends in parts if begins < ends]


def intervals_in(
    spans: Sequence[Span],
    first_at: datetime | None,
    columns: Callable[[ColumnElement[Any], ColumnElement[Any]], Sequence[ColumnElement[Any]]],
    conditions: Sequence[ColumnElement[bool]],
    index_hint: str,
    *,
    by_user: bool = False,
    by_key: bool = False,
) -> Subquery:
    """Selects one row for each session and each of the spans in which the session was live. Each row begins with the
    columns that `columns` returns; its two arguments are the end of the session and the end of the span. The billable
    interval (see `measured`), `factor` and `counts` follow.

    To count each session once, `counts` is 1 in at most one row of a session: the row of the span in which the session
    started or, if the session started before `first_at`, the row of the span that begins at `first_at`. If `first_at`
    is None, a session that started before all spans is not counted.

    PostgreSQL plans the returned subquery separately from the sums over it. Otherwise PostgreSQL would compute an
    interval again wherever the sums use it.
    """
    span = _spans_table(spans)
    starts, ends = span.c.from_at, span.c.to_at
    factor = case((_row.kind == 1, span.c.factor_1), (_row.kind == 2, span.c.factor_2), else_=span.c.factor_3)  # noqa: PLR2004
    started_here = _row.started_at >= starts
    counts = started_here if first_at is None else or_(started_here, starts == bound(first_at))
    parts = [
        select(
            *columns(end, ends),
            *measured(end, starts, ends, span.c.era_started_at),
            factor.label("factor"),
            case((counts, 1), else_=0).label("counts"),
        )
        .join_from(sessions, span, and_(_row.started_at < ends, end > starts))
        .where(*overlapping, *conditions)
        for end, overlapping in ends_in(spans[0][1], spans[-1][2], index_hint, by_user=by_user, by_key=by_key)
    ]
    if index_hint:
        return parts[0].with_hint(sessions, index_hint).subquery("billable")
    return union_all(*(select(apart(part).subquery()) for part in parts)).subquery("billable")


def ends_in(
    from_at: datetime, to_at: datetime, index_hint: str, *, by_user: bool = False, by_key: bool = False
) -> Sequence[tuple[ColumnElement[Any], Sequence[ColumnElement[bool]]]]:
    """Returns pairs: an expression for the end of a session, and conditions that select sessions that may have been
    live in the span. Together, the pairs select each session once, like `_parts` of `intervals.py`.

    The conditions include those of the partial indexes by tenant, kind and close reason. The start and the end of a
    closed session are bounded on both sides, so that each index is searched only near the span. Only a session longer
    than LONG_SESSION can be outside these bounds although it was live in the span; the last pair selects such sessions.
    With `by_key`, for statements that look for a user or a capacity, the conditions also include those of the indexes
    of live sessions by user and capacity. These added conditions exclude no live session. Other statements omit them,
    because SQLite would read all live sessions to check them. With `by_user`, for statements that look for a range of
    users, the conditions are such that the planner can search only the indexes by user. With an `index_hint`, all
    sessions are read by that index, so there is only one pair.
    """
    began = _row.started_at < to_at
    if index_hint:
        end = func.coalesce(_row.closed_at, _row.deadline_at)
        return [(end, (began, or_(_row.closed_at.is_(None), _row.closed_at > from_at)))]
    if by_user:
        overlaps = unsearched(and_(began, _row.closed_at > from_at))
        return [
            (_row.deadline_at, (_row.closed_at.is_(None), unsearched(began))),
            (_row.closed_at, (_row.close_reason.is_not(None), overlaps)),
        ]
    was_closed = (began, _row.closed_at > from_at, _row.close_reason.is_not(None))
    is_live: tuple[ColumnElement[bool], ...] = (began, _row.close_reason.is_(None), _row.kind.in_(_KINDS))
    if by_key:
        is_live = (*is_live, _row.closed_at.is_(None), SEATED)
    near = and_(_row.started_at >= _moved(from_at, -LONG_SESSION), _row.closed_at <= _moved(to_at, LONG_SESSION))
    far = (*was_closed, was_long(_row.started_at, _row.closed_at), not_(near))
    return (_row.deadline_at, is_live), (_row.closed_at, (*was_closed, near)), (_row.closed_at, far)


def _moved(instant: datetime, by: timedelta) -> datetime:
    """The instant moved by `by`, but not beyond the first or last possible datetime."""
    try:
        return instant + by
    except OverflowError:
        return _BEGINNING if by < timedelta() else _END


def _spans_table(spans: Sequence[Span]) -> Subquery:
    selects = [
        select(
            bound(era.started_at).label("era_started_at"),
            bound(from_at).label("from_at"),
            bound(to_at).label("to_at"),
            *(literal(factor, BigInteger).label(f"factor_{kind}") for kind, factor in enumerate(era.factors, 1)),
        )
        for era, from_at, to_at in spans
    ]
    combined: Select[Any] | CompoundSelect[Any] = selects[0] if len(selects) == 1 else union_all(*selects)
    return combined.subquery("spans")


def session_conditions(sum_query: UsageSumQuery) -> Sequence[ColumnElement[bool]]:
    # If the filter names another tenant than the scope, no session meets both conditions.
    return [*in_scope(sum_query.scope), *_conditions(sum_query.criteria)]


def names_key(sum_query: UsageSumQuery) -> bool:
    """Whether only the sessions of one user or one capacity are summed."""
    criteria = sum_query.criteria
    return any(key is not None for key in (criteria.capacity, criteria.user, sum_query.scope.user))


def _conditions(criteria: UsageFilter) -> Sequence[ColumnElement[bool]]:
    wanted = (
        (_row.tenant_object_id, criteria.tenant),
        (_row.capacity_id, criteria.capacity),
        (_row.user_object_id, criteria.user),
    )
    return [column == value for column, value in wanted if value is not None]
