"""What sessions lived, of a window or of any span, and what they used of it: reads that all engines share.

All of it is computed from a session's row alone: from its start, or the window's, to its end, or the window's. One that
nobody has closed ends at its deadline. None of this changes once the window is cut, so these statements may be run at
any time, by anybody, and give the same.
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
    null,
    or_,
    select,
    union_all,
)

from tenure.model.usage import (
    CHUNK_MAX,
    Chunk,
    Era,
    Factors,
    GroupBy,
    Life,
    Piece,
    UsageFilter,
    UsageGroup,
    UsageQuestion,
    UsageSums,
    Window,
)
from tenure.store.arithmetic import apart, earlier_of, later_of, microseconds_between, unindexed, usage_of
from tenure.store.sessions import read_now
from tenure.store.tables import installation, sessions, usage_eras
from tenure.store.types import Instant
from tenure.store.usage import FACTORS

_row = sessions.c
_OF_ANY_KIND = _row.kind > literal_column("0")
"""Without which `sessions_live_id` is not used."""


def divide_window(
    connection: Connection, window: Window, after: str | None, limit: int, index_hint: str = ""
) -> Sequence[Piece]:
    """The next `limit` chunks of a window, beginning after a session; fewer if there are no more."""
    pieces: list[Piece] = []
    first, before, counted = "", 0, 0
    for session_id, number, running, _next in connection.execute(divide_statement(window, after, limit, index_hint)):
        if number % CHUNK_MAX == 1:
            first = session_id
        if number % CHUNK_MAX == 0 or _next is None:
            pieces.append(Piece(first, session_id, number - counted, int(running) - before))
            before, counted = int(running), number
    return pieces


def divide_statement(window: Window, after: str | None, limit: int, index_hint: str = "") -> Select[Any]:
    """The first session of each chunk and the last, with what was used up to it, of all in the order of their ids."""
    lived = _first_lives(window, after, limit * CHUNK_MAX, index_hint)
    by_id: Any = {"order_by": lived.c.session_id}
    running = func.sum(cast(_used(lived), BigInteger)).over(rows=(None, 0), **by_id)
    numbered = select(
        lived.c.session_id,
        func.row_number().over(**by_id).label("number"),
        running.label("running"),
        func.lead(lived.c.session_id).over(**by_id).label("following"),
    ).subquery("numbered")
    at_an_end = or_(numbered.c.number % CHUNK_MAX < 2, numbered.c.following.is_(None))  # noqa: PLR2004 - the last, the first
    return select(numbered).where(at_an_end).order_by(numbered.c.number)


def _first_lives(window: Window, after: str | None, limit: int, index_hint: str) -> Subquery:
    """As many of each part as could be needed: what is live is then read in the order of its index, and no further.

    The limit also keeps PostgreSQL from computing what was lived once for each place where it is used.
    """
    parts = [
        (part if after is None else part.where(by_id > after)).order_by(by_id).limit(limit)
        for part, by_id in _parts(window, index_hint)
    ]
    lives = union_all(*(select(part.subquery()) for part in parts)).subquery("lives")
    return select(lives).order_by(lives.c.session_id).limit(limit).subquery("lived")


def read_lives(connection: Connection, window: Window, chunk: Chunk, index_hint: str = "") -> Sequence[Life]:
    rows = connection.execute(lives_statement(window, chunk.first_session_id, chunk.last_session_id, index_hint))
    return [Life(*row) for row in rows]


def lives_statement(window: Window, first: str, last: str, index_hint: str = "") -> Select[Any]:
    """In the order of ids, as an engine sorts them."""
    parts = [part.where(by_id >= first, by_id <= last) for part, by_id in _parts(window, index_hint)]
    return _lives_of(window, union_all(*parts).subquery("lived"))


def list_lives(
    connection: Connection, window: Window, after: str | None, limit: int, index_hint: str = ""
) -> Sequence[Life]:
    return [Life(*row) for row in connection.execute(list_statement(window, after, limit, index_hint))]


def list_statement(window: Window, after: str | None, limit: int, index_hint: str = "") -> Select[Any]:
    return _lives_of(window, _first_lives(window, after, limit, index_hint))


def _lives_of(window: Window, lived: Subquery) -> Select[Any]:
    return select(
        lived.c.session_id,
        lived.c.user_object_id,
        lived.c.tenant_object_id,
        lived.c.capacity_id,
        lived.c.kind,
        case((lived.c.from_at > window.started_at, lived.c.from_at)),
        case((lived.c.to_at < window.ended_at, lived.c.to_at)),
        lived.c.before,
        lived.c.total,
    ).order_by(lived.c.session_id)


def _parts(window: Window, index_hint: str) -> Sequence[tuple[Select[Any], ColumnElement[Any]]]:
    """Each session of a window, once; with each part, the id to choose and to sort it by.

    Those that are live by one index and those that closed since by another: in one statement, which sees one state of
    the table, so that none that is just being closed is missed or read twice. Where a statement may see a row before a
    change and another after it, an index hint says by which index all are read, each row once.
    """
    ids, other_ids = _row.session_id, unindexed(_row.session_id)
    if index_hint:
        end = func.coalesce(_row.closed_at, _row.deadline_at)
        return [(_lived_part(window, ids, end, (end > window.started_at,)).with_hint(sessions, index_hint), ids)]
    is_live = (_row.closed_at.is_(None), _OF_ANY_KIND, _row.deadline_at > window.started_at)
    live = _lived_part(window, ids, _row.deadline_at, is_live)
    closed = _lived_part(window, other_ids, _row.closed_at, (_row.closed_at > window.started_at,))
    return (live, ids), (closed, other_ids)


def _lived_part(window: Window, by_id: Any, end: Any, conditions: Sequence[ColumnElement[bool]]) -> Select[Any]:
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
    lives_from = later_of(_row.started_at, from_at)
    lives_to = earlier_of(end, to_at)
    counts_from = later_of(_row.started_at, era_started_at)
    # Most of those in a long span also began in it: that they lived nothing before is told without arithmetic.
    lived_before = and_(from_at > _row.started_at, from_at > era_started_at)
    return (
        lives_from.label("from_at"),
        lives_to.label("to_at"),
        case((lived_before, microseconds_between(counts_from, lives_from)), else_=literal_column("0")).label("before"),
        microseconds_between(counts_from, lives_to).label("total"),
    )


def _factor(factors: Factors) -> ColumnElement[int]:
    first, second, third = (literal(factor, BigInteger) for factor in factors)
    return case((_row.kind == 1, first), (_row.kind == 2, second), else_=third)  # noqa: PLR2004 - kinds


def _used(lived: FromClause) -> ColumnElement[int]:
    used_before = case((lived.c.before > 0, usage_of(lived.c.before, lived.c.factor)), else_=literal_column("0"))
    return usage_of(lived.c.total, lived.c.factor) - used_before


def _bound(instant: datetime) -> ColumnElement[Any]:
    """With its type in the text: not every driver sends it, and nothing beside it may say what it is."""
    return cast(literal(instant, Instant), Instant)


# Sums over any span.

SPAN = timedelta(days=30)
_Span = tuple[Era, datetime, datetime]
"""An era's part of a span."""
SPANS_MAX = 50
"""In one statement: databases differ in how many parameters and terms they take."""
_ALWAYS = datetime.min.replace(tzinfo=UTC)
KEYS = {
    GroupBy.TENANT: _row.tenant_object_id,
    GroupBy.CAPACITY: _row.capacity_id,
    GroupBy.USER: _row.user_object_id,
    GroupBy.KIND: _row.kind,
    GroupBy.SESSION: _row.session_id,
}


def sum_usage(
    connection: Connection, question: UsageQuestion, after: str | None, limit: int, index_hint: str = ""
) -> UsageSums:
    """As if the span began and ended with a cut. What is no longer kept is not in it."""
    final_until, kept_from = _kept(connection)
    # What is cut is final, also where the clock was stepped back behind it.
    latest = max(read_now(connection), final_until)
    to_at = latest if question.to_at is None else min(question.to_at, latest)
    from_at = max(to_at - SPAN if question.from_at is None else question.from_at, kept_from)
    spans = _spans(from_at, to_at, _eras(connection, final_until, question.factors))
    groups = _sums(connection, question, spans, after, limit, index_hint)
    if from_at < _kept(connection)[1]:  # some of it was pruned meanwhile
        return sum_usage(connection, question, after, limit, index_hint)
    return UsageSums(final_until, groups, from_at, max(from_at, to_at))


def _kept(connection: Connection) -> tuple[datetime, datetime]:
    """The last cut, and from when on everything is kept that ever lived: from before it something may be gone."""
    row = installation.c
    last_cut_at, created_at, kept_from = connection.execute(
        select(row.last_cut_at, row.created_at, row.usage_kept_from)
    ).one()
    return last_cut_at, kept_from if kept_from is not None and kept_from > created_at else _ALWAYS


def _sums(
    connection: Connection,
    question: UsageQuestion,
    spans: Sequence[_Span],
    after: str | None,
    limit: int,
    index_hint: str,
) -> Sequence[UsageGroup]:
    added: dict[Any, list[int]] = {} if question.group_by else {None: [0, 0]}
    for begin in range(0, len(spans), SPANS_MAX):
        statement = sums_statement(question, spans, after, limit, index_hint, begin)
        for key, usage, count in connection.execute(statement):
            sums = added.setdefault(key, [0, 0])
            sums[0] += int(usage or 0)
            sums[1] += int(count or 0)
    # Of many eras, each statement has told of the first keys it found: the first of all are complete.
    keys = list(added) if len(spans) <= SPANS_MAX else sorted(added)[:limit]
    return [_group(key, *added[key]) for key in keys]


def _group(key: Any, usage: int, count: int) -> UsageGroup:
    return UsageGroup(None if key is None else str(key), usage, count)


def _eras(connection: Connection, last_cut_at: datetime, factors: Factors) -> Sequence[Era]:
    """Those that were, and the one that the next cut would begin, if it did."""
    statement = select(usage_eras.c.started_at, *FACTORS).order_by(usage_eras.c.era)
    eras = [Era(started_at, tuple(of_kinds)) for started_at, *of_kinds in connection.execute(statement)]
    return eras if eras and eras[-1].factors == factors else [*eras, Era(last_cut_at, factors)]


def _spans(from_at: datetime, to_at: datetime, eras: Sequence[Era]) -> Sequence[_Span]:
    ends = [*(era.started_at for era in eras[1:]), to_at]
    parts = [(era, max(from_at, era.started_at), min(to_at, end)) for era, end in zip(eras, ends, strict=True)]
    return [(era, begins, ends) for era, begins, ends in parts if begins < ends]


def sums_statement(
    question: UsageQuestion,
    spans: Sequence[_Span],
    after: str | None,
    limit: int,
    index_hint: str = "",
    begin: int = 0,
) -> Select[Any]:
    """Of as many spans as a statement can have, from `begin` on."""
    key = None if question.group_by is None else KEYS[question.group_by]
    conditions = [*_conditions(question.criteria), *_after(question.group_by, after)]
    some = spans[begin : begin + SPANS_MAX]
    lived = _lived_in(some, spans[0][1], null() if key is None else key, conditions, index_hint)
    sums: Sequence[ColumnElement[Any]] = (
        func.sum(_used(lived)).label("usage"),
        func.sum(lived.c.counts).label("sessions"),
    )
    if key is None:
        return select(null().label("key"), *sums)
    # Apart from the sorting: PostgreSQL would otherwise sort all sessions, on disk, to find the first groups.
    groups = apart(select(lived.c.key, *sums).group_by(lived.c.key)).subquery("groups")
    return select(groups).order_by(groups.c.key).limit(limit)


def _after(group_by: GroupBy | None, after: str | None) -> Sequence[ColumnElement[bool]]:
    if group_by is None or after is None:
        return []
    return [KEYS[group_by] > (int(after) if group_by is GroupBy.KIND else after)]


def _lived_in(
    spans: Sequence[_Span],
    first_at: datetime,
    key: Any,
    conditions: Sequence[ColumnElement[bool]],
    index_hint: str,
) -> Subquery:
    """A line for each session and era that it lived in, the first of which counts as the session.

    Apart from the sums: PostgreSQL would otherwise compute what was lived once for each place where it is used.
    """
    span = _spans_table(spans)
    end = func.coalesce(_row.closed_at, _row.deadline_at)
    starts, ends = span.c.from_at, span.c.to_at
    factor = case((_row.kind == 1, span.c.factor_1), (_row.kind == 2, span.c.factor_2), else_=span.c.factor_3)  # noqa: PLR2004
    begins_here = or_(_row.started_at >= starts, starts == _bound(first_at))
    lived = (
        select(
            key.label("key"),
            *_measured(end, starts, ends, span.c.era_started_at),
            factor.label("factor"),
            case((begins_here, 1), else_=0).label("counts"),
        )
        .join_from(sessions, span, and_(_row.started_at < ends, end > starts))
        .where(or_(_row.closed_at.is_(None), _row.closed_at > spans[0][1]), *conditions)
    )
    return apart(lived.with_hint(sessions, index_hint) if index_hint else lived).subquery("lived")


def _spans_table(spans: Sequence[_Span]) -> Subquery:
    lines = [
        select(
            _bound(era.started_at).label("era_started_at"),
            _bound(from_at).label("from_at"),
            _bound(to_at).label("to_at"),
            *(literal(factor, BigInteger).label(f"factor_{kind}") for kind, factor in enumerate(era.factors, 1)),
        )
        for era, from_at, to_at in spans
    ]
    both: Select[Any] | CompoundSelect[Any] = lines[0] if len(lines) == 1 else union_all(*lines)
    return both.subquery("spans")


def _conditions(criteria: UsageFilter) -> Sequence[ColumnElement[bool]]:
    wanted = (
        (_row.tenant_object_id, criteria.tenant),
        (_row.capacity_id, criteria.capacity),
        (_row.user_object_id, criteria.user),
    )
    return [column == value for column, value in wanted if value is not None]
