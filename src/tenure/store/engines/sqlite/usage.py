"""Windows, chunks and marks of usage. Every function runs under the file's write lock, so a cut excludes all other
writes.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, func, insert, or_, select, tuple_, update

from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.audit_log import AuditDraft
from tenure.domain.leases import Fence
from tenure.domain.submissions import USAGES, Contract, SubmissionState, SubmissionStatus
from tenure.domain.usage import (
    ChunkBounds,
    ChunkDigest,
    Cut,
    CutRules,
    Mark,
    MarkState,
    MarkSums,
    PrunedUsage,
    WindowToSend,
)
from tenure.ids import new_id
from tenure.store.engines.sqlite.audit_log import count_changes
from tenure.store.engines.sqlite.leases import check_fence
from tenure.store.engines.sqlite.submissions import insert_generated
from tenure.store.limits import USAGE_KEPT
from tenure.store.reads.submissions import contract_text
from tenure.store.tables import (
    installation,
    sessions,
    usage_chunks,
    usage_eras,
    usage_mark_sums,
    usage_marks,
    usage_windows,
)

_window = usage_windows.c
_chunk = usage_chunks.c


def cut_usage(connection: Connection, now: datetime, fence: Fence, rules: CutRules, limit: int) -> Cut:
    check_fence(connection, fence)
    interval = rules.interval_microseconds
    grid = from_microseconds(to_microseconds(now) // interval * interval)
    installation_id, begins_at, window_id = connection.execute(
        select(installation.c.installation_id, installation.c.last_cut_at, installation.c.last_window_id)
    ).one()
    if begins_at >= grid:
        return Cut(now, begins_at, 0)
    contract = None if rules.contract is None else contract_text(rules.contract)
    era = _era(connection, begins_at, rules)
    common = {"installation_id": installation_id, "era": era, "cut_at": now, "contract": contract}
    cuts = 0
    while begins_at < grid and cuts < limit:
        ends_at = min(grid, _midnight_after(begins_at))
        cuts += 1
        bounds = {"window_id": window_id + cuts, "started_at": begins_at, "ended_at": ends_at}
        connection.execute(insert(usage_windows).values(**bounds, **common))
        begins_at = ends_at
    connection.execute(update(installation).values(last_cut_at=begins_at, last_window_id=window_id + cuts))
    return Cut(now, begins_at, cuts)


def _era(connection: Connection, begins_at: datetime, rules: CutRules) -> int:
    last = connection.execute(select(usage_eras).order_by(usage_eras.c.era.desc()).limit(1)).one_or_none()
    if last is not None and (last.factor_1, last.factor_2, last.factor_3) == rules.factors:
        return int(last.era)
    era = 1 if last is None else last.era + 1
    connection.execute(insert(usage_eras).values((era, begins_at, *rules.factors)))
    return int(era)


def _midnight_after(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def save_chunks(
    connection: Connection,
    now: datetime,
    fence: Fence,
    window_id: int,
    first: int,
    bounds: Sequence[ChunkBounds],
    *,
    complete: bool,
) -> None:
    check_fence(connection, fence)
    window = connection.execute(select(usage_windows).where(_window.window_id == window_id)).one()
    if window.chunked_at is not None:
        return
    saved = connection.execute(select(func.max(_chunk.chunk)).where(_chunk.window_id == window_id)).scalar() or 0
    if first > saved + 1:
        raise ValueError(f"chunk {first} of window {window_id} would follow chunk {saved}")
    if first == saved + 1:
        for number, chunk_bounds in enumerate(bounds, first):
            _save_chunk(connection, now, window, number, chunk_bounds)
    if complete:
        _complete(connection, now, window)


def _save_chunk(connection: Connection, now: datetime, window: Any, number: int, chunk_bounds: ChunkBounds) -> None:
    submission_id = None if window.contract is None else new_id()
    connection.execute(
        insert(usage_chunks).values(
            window_id=window.window_id,
            chunk=number,
            first_session_id=chunk_bounds.first_session_id,
            last_session_id=chunk_bounds.last_session_id,
            sessions=chunk_bounds.sessions,
            usage_millionths=chunk_bounds.usage_millionths,
            submission_id=submission_id,
        )
    )
    if submission_id is not None:
        _submit(connection, now, window, number, submission_id, window.contract)


def _submit(connection: Connection, now: datetime, window: Any, number: int, submission_id: str, contract: str) -> None:
    key = f"{window.installation_id}-{window.window_id}-{number}"
    insert_generated(
        connection, now, submission_id=submission_id, gateway=USAGES, caller="tenure", key=key, contract=contract
    )


def _complete(connection: Connection, now: datetime, window: Any) -> None:
    sums = select(
        func.coalesce(func.sum(_chunk.sessions), 0),
        func.coalesce(func.sum(_chunk.usage_millionths), 0),
        func.count() - func.count(_chunk.delivered_at),
    ).where(_chunk.window_id == window.window_id)
    count, usage, undelivered = connection.execute(sums).one()
    delivered_at = now if window.contract is not None and undelivered == 0 else None
    connection.execute(
        update(usage_windows)
        .where(_window.window_id == window.window_id)
        .values(chunked_at=now, sessions=count, usage_millionths=usage, delivered_at=delivered_at)
    )


def send_windows(
    connection: Connection, now: datetime, contract: Contract, windows: Sequence[WindowToSend], draft: AuditDraft
) -> Sequence[int]:
    text = contract_text(contract)
    sent = [each.window_id for each in windows if _send_window(connection, now, text, each)]
    count_changes(connection, now, draft, len(sent))
    return sent


def _send_window(connection: Connection, now: datetime, contract: str, sending: WindowToSend) -> bool:
    unsent = and_(_window.contract.is_(None), _window.chunked_at.is_not(None), _window.ended_at >= now - USAGE_KEPT)
    window = connection.execute(
        select(usage_windows).where(_window.window_id == sending.window_id, unsent)
    ).one_or_none()
    chunks = select(func.count()).where(_chunk.window_id == sending.window_id)
    if window is None or connection.execute(chunks).scalar() != len(sending.submission_ids):
        return False
    for number, submission_id in enumerate(sending.submission_ids, 1):
        this_chunk = and_(_chunk.window_id == window.window_id, _chunk.chunk == number)
        connection.execute(update(usage_chunks).where(this_chunk).values(submission_id=submission_id))
        _submit(connection, now, window, number, submission_id, contract)
    delivered_at = None if sending.submission_ids else now
    this_window = _window.window_id == window.window_id
    connection.execute(update(usage_windows).where(this_window).values(contract=contract, delivered_at=delivered_at))
    return True


def store_digests(connection: Connection, fence: Fence, digests: Sequence[ChunkDigest]) -> Mapping[str, bool]:
    check_fence(connection, fence)
    for each in digests:
        without_digest = and_(_chunk.submission_id == each.submission_id, _chunk.digest.is_(None))
        connection.execute(update(usage_chunks).where(without_digest).values(digest=each.digest))
    wanted = {each.submission_id: each.digest for each in digests}
    stored = select(_chunk.submission_id, _chunk.digest).where(_chunk.submission_id.in_(list(wanted)))
    return {submission_id: digest == wanted[submission_id] for submission_id, digest in connection.execute(stored)}


def deliver_chunks(
    connection: Connection, now: datetime, moved: Sequence[SubmissionStatus], receipts: Collection[str]
) -> None:
    """Records the delivery of the chunks of delivered submissions, and of windows whose chunks are all delivered."""
    delivered = [each.submission_id for each in moved if each.state == SubmissionState.DELIVERED]
    arrived = and_(_chunk.submission_id.in_(delivered), _chunk.delivered_at.is_(None))
    changes = {"delivered_at": now, "has_receipt": _chunk.submission_id.in_(list(receipts))}
    rows = connection.execute(update(usage_chunks).where(arrived).values(changes).returning(_chunk.window_id))
    windows = {row.window_id for row in rows}
    outstanding = exists().where(_chunk.window_id == _window.window_id, _chunk.delivered_at.is_(None))
    connection.execute(
        update(usage_windows)
        .where(_window.window_id.in_(windows), _window.chunked_at.is_not(None), ~outstanding)
        .values(delivered_at=now)
    )


def save_mark(connection: Connection, fence: Fence, mark: Mark, sums: Sequence[MarkSums]) -> None:
    check_fence(connection, fence)
    this_mark = usage_marks.c.marked_at == mark.at
    state = connection.execute(select(usage_marks.c.state).where(this_mark)).scalar()
    if state not in (None, MarkState.INCOMPLETE):
        return
    if state is None:
        connection.execute(insert(usage_marks).values((mark.at, mark.series, MarkState.INCOMPLETE.value)))
    if sums:
        names = ("marked_at", *MarkSums._fields)
        rows = [dict(zip(names, (mark.at, *each), strict=True)) for each in sums]
        connection.execute(insert(usage_mark_sums).prefix_with("OR IGNORE"), rows)
    values = {"series": mark.series, "state": mark.state.value}
    connection.execute(update(usage_marks).where(this_mark).values(**values))


def delete_mark(connection: Connection, fence: Fence, at: datetime, limit: int) -> int:
    check_fence(connection, fence)
    this_mark = usage_marks.c.marked_at == at
    connection.execute(update(usage_marks).where(this_mark).values(state=MarkState.INCOMPLETE.value))
    key = list(usage_mark_sums.primary_key)
    some = select(*key).where(usage_mark_sums.c.marked_at == at).order_by(*key).limit(limit)
    deleted = connection.execute(delete(usage_mark_sums).where(tuple_(*key).in_(some))).rowcount
    if deleted < limit:
        connection.execute(delete(usage_marks).where(this_mark))
    return deleted


def prune_usage(connection: Connection, now: datetime, fence: Fence, limit: int) -> PrunedUsage:
    check_fence(connection, fence)
    end = _first_kept(connection, now, limit)
    old = select(_chunk.window_id, _chunk.chunk).where(_chunk.window_id < end).order_by(*usage_chunks.primary_key)
    chunks = connection.execute(
        delete(usage_chunks).where(tuple_(_chunk.window_id, _chunk.chunk).in_(old.limit(limit)))
    ).rowcount
    left = connection.execute(select(func.min(_chunk.window_id))).scalar()
    windows = connection.execute(
        delete(usage_windows).where(_window.window_id < (end if left is None else min(end, left)))
    ).rowcount
    if windows:
        kept_from = connection.execute(select(_window.started_at).order_by(_window.window_id).limit(1)).scalar()
        connection.execute(update(installation).values(usage_kept_from=kept_from or installation.c.last_cut_at))
    return PrunedUsage(chunks, windows, _prune_sessions(connection, limit))


def _first_kept(connection: Connection, now: datetime, limit: int) -> int:
    """Returns the id of the first window that must be kept, looking only at the `limit` oldest windows. If none of
    these must be kept, returns the id after the last of them. Windows before the returned id may be deleted.
    """
    prunable = and_(
        _window.ended_at < now - USAGE_KEPT,
        _window.chunked_at.is_not(None),
        or_(_window.delivered_at.is_not(None), _window.contract.is_(None)),
    )
    oldest = select(_window.window_id, prunable.label("prunable")).order_by(_window.window_id).limit(limit)
    last = 0
    for window_id, is_prunable in connection.execute(oldest):
        if not is_prunable:
            return int(window_id)
        last = window_id
    return last + 1


def _prune_sessions(connection: Connection, limit: int) -> int:
    kept_from = select(installation.c.usage_kept_from).scalar_subquery()
    old = (
        select(sessions.c.session_id)
        .where(sessions.c.closed_at < kept_from, sessions.c.state == "closed")
        .order_by(sessions.c.closed_at)
        .limit(limit)
    )
    return connection.execute(delete(sessions).where(sessions.c.session_id.in_(old))).rowcount
