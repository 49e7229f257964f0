"""Reads that all engines share: windows, chunks, deliveries and marks of usage."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, select
from sqlalchemy.util.concurrency import await_only, in_greenlet

from tenure.domain.doctor import UnsentUsage
from tenure.domain.submissions import AttemptOutcome
from tenure.domain.usage import (
    Chunk,
    ChunkDelivery,
    Era,
    Installation,
    Lag,
    Mark,
    Marks,
    MarkState,
    MarkSums,
    UndividedWindow,
    UnsentWindow,
    Window,
)
from tenure.store.limits import USAGE_KEPT
from tenure.store.reads.sessions import read_now
from tenure.store.reads.submissions import contract_of
from tenure.store.tables import (
    installation,
    submission_attempts,
    submissions,
    usage_chunks,
    usage_eras,
    usage_mark_sums,
    usage_marks,
    usage_windows,
)

PART_ROWS = 200
FACTORS = (usage_eras.c.factor_1, usage_eras.c.factor_2, usage_eras.c.factor_3)
CHUNK_COLUMNS = tuple(usage_chunks.c[name] for name in Chunk.__struct_fields__)
WINDOW_COLUMNS = (
    usage_windows.c.window_id,
    usage_windows.c.installation_id,
    usage_windows.c.started_at,
    usage_windows.c.ended_at,
    usage_windows.c.contract,
    usage_windows.c.chunked_at,
    usage_windows.c.sessions,
    usage_windows.c.usage_millionths,
    usage_windows.c.delivered_at,
    usage_eras.c.started_at.label("era_started_at"),
    *FACTORS,
)
_WINDOWS = select(*WINDOW_COLUMNS).join_from(usage_windows, usage_eras, usage_windows.c.era == usage_eras.c.era)
_LABELLED_CHUNK_COLUMNS = tuple(column.label(f"chunk_{column.name}") for column in CHUNK_COLUMNS)
_OF_WINDOW = usage_windows.c.window_id == usage_chunks.c.window_id


def window_from_row(row: Any) -> Window:
    return Window(
        window_id=row.window_id,
        installation_id=row.installation_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
        era=Era(row.era_started_at, (row.factor_1, row.factor_2, row.factor_3)),
        contract=None if row.contract is None else contract_of(row.contract),
        chunked_at=row.chunked_at,
        sessions=row.sessions,
        usage_millionths=row.usage_millionths,
        delivered_at=row.delivered_at,
    )


def list_windows(connection: Connection, before: int | None, limit: int) -> Sequence[Window]:
    return [window_from_row(row) for row in connection.execute(windows_statement(before, limit))]


def windows_statement(before: int | None, limit: int) -> Select[Any]:
    """Selects windows, newest first."""
    statement = _WINDOWS if before is None else _WINDOWS.where(usage_windows.c.window_id < before)
    return statement.order_by(usage_windows.c.window_id.desc()).limit(limit)


def selected_windows_statement(window_ids: Sequence[int]) -> Select[Any]:
    return _WINDOWS.where(usage_windows.c.window_id.in_(window_ids))


def get_window(connection: Connection, window_id: int) -> tuple[Window, Sequence[Chunk]] | None:
    rows = connection.execute(window_statement(window_id)).all()
    if not rows:
        return None
    return window_from_row(rows[0]), [_chunk(row) for row in rows if row.chunk_chunk is not None]


def window_statement(window_id: int) -> Select[Any]:
    """One statement for both tables, so that a window and its chunks are read at one instant."""
    return (
        _WINDOWS.add_columns(*_LABELLED_CHUNK_COLUMNS)
        .outerjoin(usage_chunks, _OF_WINDOW)
        .where(usage_windows.c.window_id == window_id)
        .order_by(usage_chunks.c.chunk)
    )


def list_undivided_windows(connection: Connection, limit: int) -> Sequence[UndividedWindow]:
    rows = connection.execute(undivided_statement(limit)).all()
    return [_undivided(connection, window_from_row(row)) for row in rows]


def undivided_statement(limit: int) -> Select[Any]:
    """Selects undivided windows, oldest first."""
    return _WINDOWS.where(usage_windows.c.chunked_at.is_(None)).order_by(usage_windows.c.window_id).limit(limit)


def _undivided(connection: Connection, window: Window) -> UndividedWindow:
    last = (
        select(usage_chunks.c.chunk, usage_chunks.c.last_session_id)
        .where(usage_chunks.c.window_id == window.window_id)
        .order_by(usage_chunks.c.chunk.desc())
        .limit(1)
    )
    row = connection.execute(last).one_or_none()
    return UndividedWindow(window, 0, None) if row is None else UndividedWindow(window, row.chunk, row.last_session_id)


def list_unsent_windows(
    connection: Connection, from_at: datetime, to_at: datetime | None, limit: int
) -> Sequence[UnsentWindow]:
    earliest_end = read_now(connection) - USAGE_KEPT
    return [UnsentWindow(*row) for row in connection.execute(unsent_statement(from_at, to_at, earliest_end, limit))]


def unsent_statement(from_at: datetime, to_at: datetime | None, earliest_end: datetime, limit: int) -> Select[Any]:
    window = usage_windows.c
    begins = window.started_at >= from_at
    if to_at is not None:
        begins = and_(begins, window.started_at < to_at)
    chunks = select(func.count()).select_from(usage_chunks).where(_OF_WINDOW).scalar_subquery()
    unsent = and_(window.contract.is_(None), window.chunked_at.is_not(None))
    return (
        select(window.window_id, chunks)
        .where(unsent, begins, window.ended_at >= earliest_end)
        .order_by(window.started_at)
        .limit(limit)
    )


def find_unsent_usage(connection: Connection) -> UnsentUsage:
    return UnsentUsage(*connection.execute(unsent_usage_statement(read_now(connection) - USAGE_KEPT)).one())


def unsent_usage_statement(earliest_end: datetime) -> Select[Any, Any]:
    window = usage_windows.c
    unsent = and_(window.contract.is_(None), window.chunked_at.is_not(None))
    return select(func.count(), func.min(window.started_at)).where(
        unsent, window.ended_at >= earliest_end, window.sessions > 0
    )


def find_chunks(connection: Connection, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
    rows = connection.execute(find_statement(submission_ids))
    return [(window_from_row(row), _chunk(row)) for row in rows]


def find_statement(submission_ids: Sequence[str]) -> Select[Any]:
    return (
        _WINDOWS.add_columns(*_LABELLED_CHUNK_COLUMNS)
        .join(usage_chunks, _OF_WINDOW)
        .where(usage_chunks.c.submission_id.in_(submission_ids), usage_chunks.c.submission_id.is_not(None))
    )


def find_delivered_windows(connection: Connection, submission_ids: Sequence[str]) -> Sequence[Window]:
    return [window_from_row(row) for row in connection.execute(delivered_statement(submission_ids))]


def delivered_statement(submission_ids: Sequence[str]) -> Select[Any]:
    chunk = usage_chunks.c
    theirs = select(chunk.window_id).where(chunk.submission_id.in_(submission_ids), chunk.submission_id.is_not(None))
    return _WINDOWS.where(usage_windows.c.window_id.in_(theirs), usage_windows.c.delivered_at.is_not(None))


def _chunk(row: Row[Any]) -> Chunk:
    values = row._mapping  # noqa: SLF001 - public in SQLAlchemy
    return Chunk(**{column.name: values[f"chunk_{column.name}"] for column in CHUNK_COLUMNS})


def read_lag(connection: Connection) -> Lag:
    now = read_now(connection)
    # Read the last cut before the windows: otherwise a window that is cut between the two reads would count as
    # delivered.
    last_cut_at = connection.execute(select(installation.c.last_cut_at)).scalar_one()
    return Lag(now, connection.execute(undelivered_statement()).scalar_one_or_none() or last_cut_at)


def undelivered_statement() -> Select[Any]:
    """Selects the start of the oldest window that has a contract and is not delivered yet."""
    undelivered = and_(usage_windows.c.delivered_at.is_(None), usage_windows.c.contract.is_not(None))
    return select(usage_windows.c.started_at).where(undelivered).order_by(usage_windows.c.window_id).limit(1)


# Reads of the audit and of marks.


def read_installation(connection: Connection) -> Installation:
    row = installation.c
    kept_from = func.coalesce(row.usage_kept_from, row.created_at)
    return Installation(
        *connection.execute(select(row.installation_id, kept_from, row.last_cut_at, row.last_window_id)).one()
    )


def list_deliveries(connection: Connection, window_id: int) -> Sequence[ChunkDelivery]:
    return [ChunkDelivery(*row) for row in connection.execute(deliveries_statement(window_id))]


def deliveries_statement(window_id: int) -> Select[Any]:
    chunk, attempt = usage_chunks.c, submission_attempts.c
    delivered = and_(attempt.submission_id == chunk.submission_id, attempt.outcome == AttemptOutcome.DELIVERED.value)
    return (
        select(
            chunk.chunk,
            chunk.delivered_at,
            chunk.submission_id,
            submissions.c.delivery_key,
            submissions.c.state,
            select(func.count()).select_from(submission_attempts).where(delivered).scalar_subquery(),
        )
        .join_from(usage_chunks, submissions, submissions.c.submission_id == chunk.submission_id, isouter=True)
        .where(chunk.window_id == window_id)
        .order_by(chunk.chunk)
    )


def list_marks(connection: Connection) -> Marks:
    row = installation.c
    last_cut_at, created_at, kept_from = connection.execute(
        select(row.last_cut_at, row.created_at, row.usage_kept_from)
    ).one()
    found = [Mark(at, series, MarkState(state)) for at, series, state in connection.execute(all_marks_statement())]
    return Marks(last_cut_at, created_at if kept_from is None else max(created_at, kept_from), found)


def all_marks_statement() -> Select[Any]:
    return select(usage_marks).order_by(usage_marks.c.marked_at)


def read_mark(connection: Connection, at: datetime) -> Sequence[MarkSums]:
    return [MarkSums(*row) for row in in_parts(connection, mark_rows_statement(at))]


def in_parts(connection: Connection, statement: Select[Any]) -> Iterator[Any]:
    """Yields the rows of a statement that returns thousands of rows.

    If an engine reads on the event loop, converting all rows at once would block the loop. So the loop runs other tasks
    between two parts.
    """
    for part in connection.execute(statement).partitions(PART_ROWS):
        yield from part
        if in_greenlet():
            await_only(asyncio.sleep(0))


def mark_rows_statement(at: datetime) -> Select[Any]:
    columns = [usage_mark_sums.c[name] for name in MarkSums._fields]
    return select(*columns).where(usage_mark_sums.c.marked_at == at)
