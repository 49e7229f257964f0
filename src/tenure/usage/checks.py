"""The checks of an audit. Each check takes rows that the audit has read, and yields a sentence for each fault."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from tenure.clock import instant_text
from tenure.domain.meter import decimal_text
from tenure.domain.submissions import SubmissionState
from tenure.domain.usage import Chunk, ChunkBounds, ChunkDelivery, Installation, Window


class Entry(NamedTuple):
    """An entry of a receiver's ledger."""

    key: str
    digest: str
    records: int | None
    usage: str | None
    conflicts: int
    """The number of requests with this key and a different body."""


def chunk_name(window: Window, chunk: int) -> str:
    return f"chunk {chunk} of window {window.window_id}"


def delivery_key(window: Window, chunk: int) -> str:
    return f"{window.installation_id}-{window.window_id}-{chunk}"


def check_position(installation: Installation, window: Window, newer: Window | None) -> Iterator[str]:
    """Compares a window with the next one, `newer`. If `newer` is None, compares the window with the last cut."""
    next_id = installation.last_window_id + 1 if newer is None else newer.window_id
    next_at = installation.last_cut_at if newer is None else newer.started_at
    if window.window_id != next_id - 1:
        yield _missing_windows(window.window_id + 1, next_id - 1)
    if window.ended_at != next_at:
        expected = f"{'the last cut was' if newer is None else 'the next one begins'} at {instant_text(next_at)}"
        yield f"window {window.window_id} ends at {instant_text(window.ended_at)}, but {expected}"
    if window.ended_at > _midnight_after(window.started_at):
        yield f"window {window.window_id} crosses a midnight"
    if window.started_at < window.era.started_at:
        yield f"window {window.window_id} begins before its era"
    if newer is not None and newer.era != window.era and newer.era.started_at != newer.started_at:
        yield f"window {newer.window_id} has different factors from window {window.window_id}, but begins no era"


def check_oldest(installation: Installation, oldest: Window | None, later: Installation) -> Iterator[str]:
    """Compares the start of the oldest window with `kept_from`.

    `installation` was read before the windows and `later` after them: windows may have been pruned in between.
    """
    began_at = installation.last_cut_at if oldest is None else oldest.started_at
    if not installation.kept_from <= began_at <= later.kept_from:
        kept_from = instant_text(installation.kept_from)
        yield f"the oldest window begins at {instant_text(began_at)}, but usage is kept from {kept_from}"


def check_chunks(window: Window, chunks: Sequence[Chunk], bounds: Sequence[ChunkBounds]) -> Iterator[str]:
    """Compares the stored chunks with `bounds`, the result of dividing the window again."""
    by_number = {chunk.chunk: chunk for chunk in chunks}
    for number, chunk_bounds in enumerate(bounds, 1):
        chunk = by_number.pop(number, None)
        if chunk is None:
            yield f"{chunk_name(window, number)} is missing"
        elif _bounds_of(chunk) != chunk_bounds:
            difference = f"stored {_bounds_text(_bounds_of(chunk))}, recounted {_bounds_text(chunk_bounds)}"
            yield f"{chunk_name(window, number)} does not match its sessions: {difference}"
    for number in by_number:
        yield f"{chunk_name(window, number)} has no sessions"
    sums = (sum(chunk.sessions for chunk in chunks), sum(chunk.usage_millionths for chunk in chunks))
    if sums != (window.sessions, window.usage_millionths):
        yield f"the chunks of window {window.window_id} do not add up to the sums of the window"


def check_digests(
    window: Window, chunks: Sequence[Chunk], bounds: Sequence[ChunkBounds], digests: Sequence[bytes | None]
) -> Iterator[str]:
    """Compares the stored digests with `digests`, those of the chunks rendered again.

    Skips chunks whose bounds differ from `bounds`: `check_chunks` reports them.
    """
    by_number = dict(enumerate(zip(bounds, digests, strict=True), 1))
    for chunk in chunks:
        chunk_bounds, digest = by_number.get(chunk.chunk, (None, None))
        if chunk_bounds == _bounds_of(chunk) and None not in (chunk.digest, digest) and chunk.digest != digest:
            yield f"{chunk_name(window, chunk.chunk)} does not render to the bytes that were sent"


def check_delivery(window: Window, chunk: Chunk, delivery: ChunkDelivery) -> Iterator[str]:
    name, state = chunk_name(window, chunk.chunk), delivery.state
    if delivery.delivered_at is None and state != SubmissionState.PENDING:
        yield f"{name} is pending, but its submission is {state or 'missing'}"
    if delivery.delivered_at is not None and state not in (None, SubmissionState.DELIVERED):
        yield f"{name} is delivered, but its submission is {state}"
    if delivery.delivered_attempts > 1:
        yield f"{name} was delivered by {delivery.delivered_attempts} attempts"
    if delivery.delivered_at is not None and state == SubmissionState.DELIVERED and not delivery.delivered_attempts:
        yield f"{name} is delivered, but none of its attempts is"
    if delivery.delivered_at is not None and chunk.digest is None:
        yield f"{name} is delivered, but has no digest"
    key = delivery_key(window, chunk.chunk)
    if delivery.delivery_key not in (None, key):
        yield f"{name} has the delivery key {delivery.delivery_key} instead of {key}"


def check_unsent(window: Window, chunks: Sequence[Chunk]) -> Iterator[str]:
    """Checks a window without a contract: its chunks must not have been sent."""
    for chunk in chunks:
        if (chunk.submission_id, chunk.digest, chunk.delivered_at) != (None, None, None):
            yield f"{chunk_name(window, chunk.chunk)} was sent, but its window has no contract"


def check_window_delivery(earlier: Window, deliveries: Sequence[ChunkDelivery], later: Window) -> Iterator[str]:
    """Compares the delivery of a window with that of its chunks. `earlier` is the window as read before the chunks,
    `later` as read after them.
    """
    pending = sum(delivery.delivered_at is None for delivery in deliveries)
    if earlier.delivered_at is not None and pending:
        yield f"window {earlier.window_id} is delivered, but {pending} of its chunks are not"
    if later.delivered_at is None and not pending:
        yield f"window {later.window_id} is not delivered, but all of its chunks are"


def check_entry(window: Window, chunk: Chunk, *, delivered: bool, entry: Entry | None) -> Iterator[str]:
    """Compares a chunk with its ledger entry.

    A chunk that is not delivered may have an entry: the receiver counted it, but its response is not recorded.
    """
    name = chunk_name(window, chunk.chunk)
    if entry is None:
        if delivered:
            yield f"{name} is delivered, but is not in the ledger"
        return
    if chunk.digest is None or entry.digest != chunk.digest.hex():
        yield f"{name} has a different digest in the ledger"
    usage = decimal_text(chunk.usage_millionths)
    if entry.records != chunk.sessions or Decimal(entry.usage or 0) != Decimal(usage):
        counted = "no usage" if entry.records is None else f"usage {entry.usage} (sessions: {entry.records})"
        yield f"{name} has {counted} in the ledger instead of usage {usage} (sessions: {chunk.sessions})"
    if entry.conflicts:
        yield f"{name} was also sent with different bytes"


def _bounds_of(chunk: Chunk) -> ChunkBounds:
    return ChunkBounds(chunk.first_session_id, chunk.last_session_id, chunk.sessions, chunk.usage_millionths)


def _bounds_text(bounds: ChunkBounds) -> str:
    ends = f"from {bounds.first_session_id} to {bounds.last_session_id}"
    return f"{ends} (sessions: {bounds.sessions}, usage: {decimal_text(bounds.usage_millionths)})"


def _missing_windows(first: int, last: int) -> str:
    return f"window {first} is missing" if first == last else f"windows {first} to {last} are missing"


def _midnight_after(instant: datetime) -> datetime:
    return instant.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
