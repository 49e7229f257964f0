"""The events of sessions, in order: `read_events`, and the reads of batches. The cost of a read does not grow with the
table.

No table contains events. Each event is derived from a session: its start from `started_at`, and its end from
`closed_at`, or from `deadline_at` if it has lapsed and its end is not recorded yet. A page is merged from ranges of
indexes that other features need anyway, so opening a session writes no index that only the feed needs:

| events | range |
|---|---|
| starts of live sessions | `sessions_live_kind`, for each kind; of one tenant: `sessions_live_tenant` |
| starts of closed sessions | `sessions_closed_reason`, by reason and kind; of one tenant: `sessions_closed_tenant` |
| recorded ends | `sessions_closed_at` |
| lapses that are not recorded | `sessions_check_at`: `check_at` is never after the deadline |

Lapses are read first, then the starts of live sessions, and then, in one statement, the starts of closed sessions and
the recorded ends. So a session whose end is recorded between two statements is found at least once, even if a statement
does not see the table at one instant. An event that is found twice is the same event, and is returned once.

A condition that no index checks, such as the tenant of an end, could make a page search the whole table. So the page
searches at most SCAN_MAX entries of live and of closed sessions each, and ends at the *reach*: the instant up to which
all entries have been searched. Lapses have a reach, too: if more than LAPSES_MAX sessions wait for the sweep, only
those with the earliest `check_at` are searched. The other sessions lapse after the last `check_at` that was searched,
so the page ends at that instant, and the feed waits for the sweep.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, func, literal_column, or_, select, union_all

from tenure.domain.events import (
    CLOSE_RANK,
    START_RANK,
    EventBatch,
    EventFilter,
    EventPage,
    EventPosition,
    EventType,
    SessionEvent,
    end_of,
    types_of,
)
from tenure.domain.sessions import CloseReason, Kind
from tenure.store.expressions import unsearched
from tenure.store.limits import LAPSES_MAX, SCAN_MAX
from tenure.store.tables import event_batches, installation, sessions

_row = sessions.c
_Conditions = Sequence[ColumnElement[bool]]
IdOrder = Callable[[str], Any]
"""Returns a key that sorts session ids as the engine sorts them."""

_UNENDED = _row.close_reason.is_(None)
_ENDED = _row.close_reason.is_not(None)
_FACTS = (
    _row.session_id,
    _row.user_object_id,
    _row.tenant_object_id,
    _row.capacity_id,
    _row.kind,
    _row.started_at,
    _row.previous_session_id,
)


class Range(NamedTuple):
    """The events that one index is searched for."""

    at: ColumnElement[datetime]
    rank: int
    searched: _Conditions
    """The conditions that the index checks."""
    rest: _Conditions = ()
    """The conditions that the index does not check."""


def read_events(
    connection: Connection,
    criteria: EventFilter,
    after: EventPosition,
    until: EventPosition | None,
    limit: int,
    id_order: IdOrder = str,
) -> EventPage:
    # Read the horizon before the sessions: all events up to the horizon were committed before it was moved.
    horizon: datetime | None = connection.execute(select(installation.c.published_at)).scalar_one()
    if horizon is None:
        return EventPage([], after, after.at, is_last=True)
    end = _earlier(end_of(horizon), until)
    reach = end.at
    groups = _groups(criteria)
    for found in _reaches(connection, criteria, groups, after, end.at):
        reach = min(reach, found)
    if reach < end.at:
        end = end_of(reach)
    if end.instant_and_rank < after.instant_and_rank:
        return EventPage([], after, horizon, is_last=reach >= horizon)
    events: dict[EventPosition, SessionEvent] = {}
    if EventType.CLOSED in criteria.types:
        for row in connection.execute(lapses_statement(criteria, after, end, limit)):
            _add(events, row)
    for group in groups:
        for row in connection.execute(page_statement(group, after, end, limit)):
            _add(events, row)
    ordered = sorted(events.values(), key=lambda event: (event.at, event.position.rank, id_order(event.session_id)))
    if len(ordered) >= limit:
        shown = ordered[:limit]
        return EventPage(shown, shown[-1].position, horizon, is_last=False)
    return EventPage(ordered, end, horizon, is_last=end.at >= horizon)


def _earlier(end: EventPosition, until: EventPosition | None) -> EventPosition:
    # The ids need not be compared: `end` is after all events of its instant.
    return end if until is None or until.instant_and_rank > end.instant_and_rank else until


def _add(events: dict[EventPosition, SessionEvent], row: Row[Any]) -> None:
    event = _event(row)
    events.setdefault(event.position, event)


def _event(row: Row[Any]) -> SessionEvent:
    if row.rank == CLOSE_RANK:
        kind, reason, previous = EventType.CLOSED, row.reason, None
    else:
        previous, reason = row.previous_session_id, None
        kind = EventType.OPENED if previous is None else EventType.UPGRADED
    return SessionEvent(
        type=kind,
        at=row.at,
        session_id=row.session_id,
        user_object_id=row.user_object_id,
        tenant_object_id=row.tenant_object_id,
        capacity_id=row.capacity_id,
        kind=row.kind,
        started_at=row.started_at,
        previous_session_id=previous,
        close_reason=reason,
    )


def _groups(criteria: EventFilter) -> Sequence[Sequence[Range]]:
    """The ranges of each statement, in the order in which the statements must run."""
    live, closed = [], []
    if EventType.OPENED in criteria.types or EventType.UPGRADED in criteria.types:
        rest = _of_start(criteria)
        if criteria.tenant is None:
            live = [Range(_row.started_at, START_RANK, [_UNENDED, _row.kind == kind], rest) for kind in Kind]
            closed = [
                Range(_row.started_at, START_RANK, [_row.close_reason == reason.value, _row.kind == kind], rest)
                for reason in CloseReason
                for kind in Kind
            ]
        else:
            own = _row.tenant_object_id == criteria.tenant
            live = [Range(_row.started_at, START_RANK, [_UNENDED, own], rest)]
            closed = [Range(_row.started_at, START_RANK, [_ENDED, own], rest)]
    if EventType.CLOSED in criteria.types:
        others = [] if criteria.tenant is None else [unsearched(_row.tenant_object_id == criteria.tenant)]
        closed.append(Range(_row.closed_at, CLOSE_RANK, [_row.closed_at.is_not(None)], others))
    return [group for group in (live, closed) if group]


def _of_start(criteria: EventFilter) -> _Conditions:
    if EventType.UPGRADED not in criteria.types:
        return [_row.previous_session_id.is_(None)]
    if EventType.OPENED not in criteria.types:
        return [_row.previous_session_id.is_not(None)]
    return []


def page_statement(group: Sequence[Range], after: EventPosition, end: EventPosition, limit: int) -> Select[Any]:
    """Merges the ranges by position, and reads complete rows only for the sessions on the page."""
    parts = [
        select(_row.session_id, each.at.label("at"), literal_column(str(each.rank)).label("rank"))
        .where(*each.searched, *each.rest, *between(each.at, each.rank, after, end))
        .order_by(each.at, _row.session_id)
        .limit(limit)
        for each in group
    ]
    merged = union_all(*(select(part.subquery()) for part in parts)).subquery("merged")
    order = (merged.c.at, merged.c.rank, merged.c.session_id)
    page = select(merged).order_by(*order).limit(limit).subquery("page")
    return select(*_FACTS, page.c.at, page.c.rank, _row.close_reason.label("reason")).join_from(
        page, sessions, _row.session_id == page.c.session_id
    )


def lapses_statement(criteria: EventFilter, after: EventPosition, end: EventPosition, limit: int) -> Select[Any]:
    """Selects the lapses that are not recorded. `check_at` is never after the deadline, so the index on `check_at`
    finds all of them.
    """
    own = [] if criteria.tenant is None else [unsearched(_row.tenant_object_id == criteria.tenant)]
    return (
        select(
            *_FACTS,
            _row.deadline_at.label("at"),
            literal_column(str(CLOSE_RANK)).label("rank"),
            _row.lapse_reason.label("reason"),
        )
        .where(
            _row.check_at <= end.at,
            unsearched(_row.closed_at.is_(None)),
            *own,
            *between(_row.deadline_at, CLOSE_RANK, after, end),
        )
        .order_by(_row.deadline_at, _row.session_id)
        .limit(limit)
    )


def between(at: ColumnElement[datetime], rank: int, after: EventPosition, end: EventPosition) -> _Conditions:
    """The events of this rank after `after`, up to and including `end`."""
    return [*_after(at, rank, after), *_until(at, rank, end)]


def _after(at: ColumnElement[datetime], rank: int, after: EventPosition) -> _Conditions:
    if rank < after.rank:
        return [at > after.at]
    if rank > after.rank:
        return [at >= after.at]
    # The first condition is redundant, but an index can be searched by it.
    return [at >= after.at, or_(at > after.at, _row.session_id > after.session_id)]


def _until(at: ColumnElement[datetime], rank: int, end: EventPosition) -> _Conditions:
    if rank < end.rank:
        return [at <= end.at]
    if rank > end.rank:
        return [at < end.at]
    return [at <= end.at, or_(at < end.at, _row.session_id <= end.session_id)]


def _reaches(
    connection: Connection,
    criteria: EventFilter,
    groups: Sequence[Sequence[Range]],
    after: EventPosition,
    end: datetime,
) -> Iterator[datetime]:
    """For the lapses, and for each group with conditions that no index checks, yields the instant up to which to
    search. Yields nothing where all entries can be searched.
    """
    if EventType.CLOSED in criteria.types:
        found = connection.execute(lapses_reach_statement(end)).scalar_one_or_none()
        if found is not None:
            yield found
    for group in groups:
        long = [each for each in group if each.rest]
        if long:
            found = connection.execute(reach_statement(long, after, end)).scalar_one_or_none()
            if found is not None:
                yield found


def lapses_reach_statement(end: datetime) -> Select[Any]:
    return select(_row.check_at).where(_row.check_at <= end).order_by(_row.check_at).offset(LAPSES_MAX).limit(1)


def reach_statement(group: Sequence[Range], after: EventPosition, end: datetime) -> Select[Any]:
    """Selects the instant up to which a page may search; NULL if the page may search all entries of the ranges."""
    parts = [
        select(each.at.label("at"))
        .where(*each.searched, each.at >= after.at, each.at <= end)
        .order_by(each.at)
        .offset(SCAN_MAX // len(group))
        .limit(1)
        for each in group
    ]
    ends = union_all(*(select(part.subquery()) for part in parts)).subquery("ends")
    return select(func.min(ends.c.at))


def find_event_batches(connection: Connection, submission_ids: Sequence[str]) -> Sequence[EventBatch]:
    return [_batch(row) for row in connection.execute(batches_statement(submission_ids))]


def batches_statement(submission_ids: Sequence[str]) -> Select[Any]:
    return select(event_batches).where(event_batches.c.submission_id.in_(submission_ids))


def _batch(row: Row[Any]) -> EventBatch:
    return EventBatch(
        gateway=row.gateway,
        number=row.number,
        start=EventPosition(row.from_at, row.from_rank, row.from_id),
        end=EventPosition(row.to_at, row.to_rank, row.to_id),
        types=types_of(row.types),
        events=row.events,
        digest=row.digest,
        submission_id=row.submission_id,
    )
