"""Reads that all engines share: the billable intervals of a window, and the division of a window into chunks.

A billable interval is computed from the session's row alone. It runs from the later of the two starts (of the session
and of the window) to the earlier of the two ends. A session that is not closed ends at its deadline. After the window
is cut, no heartbeat or end changes the interval, so these statements return the same result at any time after the cut.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
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
    or_,
    select,
    union_all,
)

from tenure.domain.usage import (
    CHUNK_MAX,
    BillableInterval,
    Chunk,
    ChunkBounds,
    Factors,
    Window,
)
from tenure.domain.usage_records import DividedChunk, Records, Template, render_records
from tenure.store.expressions import (
    earlier_of,
    later_of,
    microseconds_between,
    unindexed,
    usage_of,
)
from tenure.store.reads.sessions import OF_ANY_KIND
from tenure.store.tables import sessions
from tenure.store.types import Instant

_row = sessions.c


def divide_window(
    connection: Connection, window: Window, after: str | None, limit: int, index_hint: str = ""
) -> Sequence[ChunkBounds]:
    """Returns the next `limit` chunks of a window after the session `after`, or fewer at the end of the window."""
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
    """Selects the first and last session of each chunk, in the order of ids, each with the sum of the usage of all
    sessions from the first selected one to this session.
    """
    billable = _first_intervals(window, after, limit * CHUNK_MAX, index_hint)
    by_id: Any = {"order_by": billable.c.session_id}
    running = func.sum(cast(used(billable), BigInteger)).over(rows=(None, 0), **by_id)
    numbered = select(
        billable.c.session_id,
        func.row_number().over(**by_id).label("number"),
        running.label("running"),
        func.lead(billable.c.session_id).over(**by_id).label("following"),
    ).subquery("numbered")
    # The remainder is 1 for the first session of a chunk, and 0 for the last session of a full chunk.
    at_an_end = or_(numbered.c.number % CHUNK_MAX < 2, numbered.c.following.is_(None))  # noqa: PLR2004
    return select(numbered).where(at_an_end).order_by(numbered.c.number)


def _first_intervals(window: Window, after: str | None, limit: int, index_hint: str) -> Subquery:
    """The first `limit` intervals after the session `after`. Each SELECT of `_parts` has the same limit, so that an
    index scan of live sessions stops early.

    The limit also prevents PostgreSQL from computing an interval again for each use of it.
    """
    parts = [
        (part if after is None else part.where(by_id > after)).order_by(by_id).limit(limit)
        for part, by_id in _parts(window, index_hint)
    ]
    intervals = union_all(*(select(part.subquery()) for part in parts)).subquery("intervals")
    return select(intervals).order_by(intervals.c.session_id).limit(limit).subquery("billable")


def divide_and_render(
    connection: Connection, window: Window, after: str | None, limit: int, template: Template, index_hint: str = ""
) -> Sequence[DividedChunk]:
    found = divide_window(connection, window, after, limit, index_hint)
    return [
        DividedChunk(
            bounds, render_records(template, window, _intervals_between(connection, window, bounds, index_hint))
        )
        for bounds in found
    ]


def read_intervals(
    connection: Connection, window: Window, chunk: Chunk, index_hint: str = ""
) -> Sequence[BillableInterval]:
    return _intervals_between(connection, window, chunk, index_hint)


def _intervals_between(
    connection: Connection, window: Window, bounds: Chunk | ChunkBounds, index_hint: str
) -> Sequence[BillableInterval]:
    rows = connection.execute(intervals_statement(window, bounds.first_session_id, bounds.last_session_id, index_hint))
    return [BillableInterval(*row) for row in rows]


def render_chunks(
    connection: Connection, window: Window, chunks: Sequence[Chunk], template: Template, index_hint: str = ""
) -> Sequence[Records]:
    return [render_records(template, window, read_intervals(connection, window, chunk, index_hint)) for chunk in chunks]


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
    """SELECT statements that together return each session of a window once. Each comes with the id column to filter and
    sort by.

    Live sessions are read by one index, and those that closed after the start of the window by another. Both reads
    become one statement, which sees the table at one instant, so a session that is being closed is neither missed nor
    read twice. On an engine whose statements do not see one instant, `index_hint` names one index by which all rows are
    read.
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
        *measured(end, bound(window.started_at), bound(window.ended_at), bound(window.era.started_at)),
        _factor(window.era.factors).label("factor"),
    ).where(_row.started_at < window.ended_at, *conditions)


def measured(end: Any, from_at: Any, to_at: Any, era_started_at: Any) -> Sequence[ColumnElement[Any]]:
    live_from = later_of(_row.started_at, from_at)
    live_to = earlier_of(end, to_at)
    counts_from = later_of(_row.started_at, era_started_at)
    # Most sessions in a long span also began in it. Their `before` is 0: they have no earlier usage to subtract.
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


def used(billable: FromClause) -> ColumnElement[int]:
    used_before = case(
        (billable.c.before > 0, usage_of(billable.c.before, billable.c.factor)), else_=literal_column("0")
    )
    return usage_of(billable.c.total, billable.c.factor) - used_before


def bound(instant: datetime) -> ColumnElement[Any]:
    """Returns a parameter with an explicit cast: not every driver sends the type, and not every context implies it."""
    return cast(literal(instant, Instant), Instant)
