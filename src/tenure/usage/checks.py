"""What an audit compares. Each check takes what was read, and tells in words what is not as it must be."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from tenure.clock import instant_text
from tenure.meter import decimal_text
from tenure.model.submissions import SubmissionState
from tenure.model.usage import Chunk, ChunkDelivery, Installation, Piece, Window


class Entry(NamedTuple):
    """What a receiver has under a key."""

    key: str
    digest: str
    records: int | None
    usage: str | None
    conflicts: int
    """Requests with this key and another body."""


def name_of(window: Window, chunk: int) -> str:
    return f"chunk {chunk} of window {window.window_id}"


def key_of(window: Window, chunk: int) -> str:
    return f"{window.installation_id}-{window.window_id}-{chunk}"


def check_place(installation: Installation, window: Window, newer: Window | None) -> Iterator[str]:
    """Among the others: `newer` is the next, or None if there is none."""
    next_id = installation.last_window_id + 1 if newer is None else newer.window_id
    next_at = installation.last_cut_at if newer is None else newer.started_at
    if window.window_id != next_id - 1:
        yield f"window {window.window_id} is followed by window {next_id}"
    if window.ended_at != next_at:
        yield (
            f"window {window.window_id} ends at {instant_text(window.ended_at)}, "
            f"and what follows begins at {instant_text(next_at)}"
        )
    if window.ended_at > _midnight_after(window.started_at):
        yield f"window {window.window_id} crosses a midnight"
    if window.started_at < window.era.started_at:
        yield f"window {window.window_id} begins before its era"
    if newer is not None and newer.era != window.era and newer.era.started_at != newer.started_at:
        yield f"window {newer.window_id} has other factors, but does not begin an era"


def check_oldest(installation: Installation, oldest: Window | None, later: Installation) -> Iterator[str]:
    """Where what is kept began before the windows were read and where it does after: some may have been pruned."""
    began_at = installation.last_cut_at if oldest is None else oldest.started_at
    if not installation.kept_from <= began_at <= later.kept_from:
        yield f"the oldest window begins at {instant_text(began_at)}, not at {instant_text(installation.kept_from)}"


def check_chunks(window: Window, chunks: Sequence[Chunk], pieces: Sequence[Piece]) -> Iterator[str]:
    """Against what the window would be divided into today."""
    by_number = {chunk.chunk: chunk for chunk in chunks}
    for number, piece in enumerate(pieces, 1):
        chunk = by_number.pop(number, None)
        if chunk is None:
            yield f"{name_of(window, number)} is missing"
        elif _piece_of(chunk) != piece:
            yield f"{name_of(window, number)} is not what its sessions lived: {_difference(_piece_of(chunk), piece)}"
    for number in by_number:
        yield f"{name_of(window, number)} has no sessions"
    sums = (sum(chunk.sessions for chunk in chunks), sum(chunk.usage_millionths for chunk in chunks))
    if sums != (window.sessions, window.usage_millionths):
        yield f"the chunks of window {window.window_id} do not add up to it"


def check_digests(
    window: Window, chunks: Sequence[Chunk], pieces: Sequence[Piece], digests: Sequence[bytes | None]
) -> Iterator[str]:
    """Against what its pieces render to today. One that is another piece, and so renders to others, is told as that."""
    by_number = dict(enumerate(zip(pieces, digests, strict=True), 1))
    for chunk in chunks:
        piece, digest = by_number.get(chunk.chunk, (None, None))
        if piece == _piece_of(chunk) and None not in (chunk.digest, digest) and chunk.digest != digest:
            yield f"{name_of(window, chunk.chunk)} does not render to what was sent"


def check_delivery(window: Window, chunk: Chunk, delivery: ChunkDelivery) -> Iterator[str]:
    name, state = name_of(window, chunk.chunk), delivery.state
    if delivery.delivered_at is None and state != SubmissionState.PENDING:
        yield f"{name} waits, but its submission is {state or 'gone'}"
    if delivery.delivered_at is not None and state not in (None, SubmissionState.DELIVERED):
        yield f"{name} is delivered, but its submission is {state}"
    if delivery.delivered_attempts > 1:
        yield f"{name} was delivered by {delivery.delivered_attempts} attempts"
    if delivery.delivered_at is not None and state == SubmissionState.DELIVERED and not delivery.delivered_attempts:
        yield f"{name} is delivered, but by none of its attempts"
    if delivery.delivered_at is not None and chunk.digest is None:
        yield f"{name} is delivered, but it was not noted what was sent"
    if delivery.delivery_key not in (None, key_of(window, chunk.chunk)):
        yield f"{name} has the key {delivery.delivery_key}"


def check_unsent(window: Window, chunks: Sequence[Chunk]) -> Iterator[str]:
    """Of a window that was cut while there was nobody to send it to."""
    for chunk in chunks:
        if (chunk.submission_id, chunk.digest, chunk.delivered_at) != (None, None, None):
            yield f"{name_of(window, chunk.chunk)} was sent, but its window says that there was nobody to send it to"


def check_window_delivery(earlier: Window, deliveries: Sequence[ChunkDelivery], later: Window) -> Iterator[str]:
    """Whether it says of itself what its chunks say, as it was read before them and after."""
    waiting = sum(delivery.delivered_at is None for delivery in deliveries)
    if earlier.delivered_at is not None and waiting:
        yield f"window {earlier.window_id} is delivered, but {waiting} of its chunks are not"
    if later.delivered_at is None and not waiting:
        yield f"window {later.window_id} is not delivered, but all of its chunks are"


def check_entry(window: Window, chunk: Chunk, *, delivered: bool, entry: Entry | None) -> Iterator[str]:
    """Against what the receiver has. What waits may have arrived: its answer may have been lost."""
    name = name_of(window, chunk.chunk)
    if entry is None:
        if delivered:
            yield f"{name} is delivered, but not in the ledger"
        return
    if chunk.digest is None or entry.digest != chunk.digest.hex():
        yield f"{name} has other bytes in the ledger than were sent"
    if entry.records != chunk.sessions or Decimal(entry.usage or 0) != Decimal(decimal_text(chunk.usage_millionths)):
        yield f"{name} is {entry.usage} for {entry.records} sessions in the ledger"
    if entry.conflicts:
        yield f"{name} was sent with other bytes, too"


def _piece_of(chunk: Chunk) -> Piece:
    return Piece(chunk.first_session_id, chunk.last_session_id, chunk.sessions, chunk.usage_millionths)


def _difference(chunk: Piece, piece: Piece) -> str:
    def words(each: Piece) -> str:
        ends = f"from {each.first_session_id} to {each.last_session_id}"
        return f"{decimal_text(each.usage_millionths)} for {each.sessions} {ends}"

    return f"{words(chunk)}, not {words(piece)}"


def _midnight_after(instant: datetime) -> datetime:
    return instant.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
