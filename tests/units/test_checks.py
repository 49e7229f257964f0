"""Each check of an audit reports the fault that it looks for, and reports nothing for valid data."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.domain.submissions import SubmissionState
from tenure.domain.usage import Chunk, ChunkBounds, ChunkDelivery, Era, Installation, Window
from tenure.usage.checks import (
    Entry,
    check_chunks,
    check_delivery,
    check_digests,
    check_entry,
    check_oldest,
    check_position,
    check_unsent,
    check_window_delivery,
    delivery_key,
)

MINUTE = timedelta(minutes=1)
MIDNIGHT = datetime(2026, 11, 17, tzinfo=UTC)
ERA = Era(MIDNIGHT - timedelta(days=3), (1_000_000, 2_000_000, 3_000_000))
DIGEST = sha256(b"the sent body").digest()


def window(window_id: int = 12, **given: Any) -> Window:
    """Each window covers one minute. Window 12 is the minute before midnight."""
    values: dict[str, Any] = {
        "installation_id": "01a1e319-8e37-70d8-90e0-8dd76b11e610",
        "started_at": MIDNIGHT + (window_id - 13) * MINUTE,
        "ended_at": MIDNIGHT + (window_id - 12) * MINUTE,
        "era": ERA,
        "contract": None,
        "sessions": 1003,
        "usage_millionths": 70_000,
    }
    return Window(window_id=window_id, **{**values, **given})


def chunk(number: int = 1, **given: Any) -> Chunk:
    values: dict[str, Any] = {
        "window_id": 12,
        "first_session_id": f"first of {number}",
        "last_session_id": f"last of {number}",
        "sessions": 1000 if number == 1 else 3,
        "usage_millionths": 69_500 if number == 1 else 500,
        "submission_id": f"submission {number}",
        "digest": DIGEST,
    }
    return Chunk(chunk=number, **{**values, **given})


def chunk_bounds(of: Chunk, **given: Any) -> ChunkBounds:
    return replace(ChunkBounds(of.first_session_id, of.last_session_id, of.sessions, of.usage_millionths), **given)


INSTALLATION = Installation("an id", kept_from=window(5).started_at, last_cut_at=window(12).ended_at, last_window_id=12)
CHUNKS = [chunk(1), chunk(2)]
BOUNDS = [chunk_bounds(each) for each in CHUNKS]


# Positions of windows.


@pytest.mark.parametrize(
    ("one", "newer"),
    [
        (window(12), None),
        (window(11), window(12)),
        (window(13), window(14)),
        (window(12, started_at=MIDNIGHT - timedelta(days=1)), None),
        (window(11), window(12, era=Era(window(12).started_at, (1, 2, 3)))),
    ],
    ids=["newest", "with a newer one", "after midnight", "whole day", "before another era"],
)
def test_audit_accepts_window_in_valid_position(one: Window, newer: Window | None) -> None:
    assert list(check_position(INSTALLATION, one, newer)) == []


MISPLACED = {
    "missing window": (
        window(10, ended_at=window(12).started_at),
        window(12),
        "window 11 is missing",
    ),
    "several missing windows": (
        window(8, ended_at=window(12).started_at),
        window(12),
        "windows 9 to 11 are missing",
    ),
    "missing newest window": (
        window(11, ended_at=MIDNIGHT),
        None,
        "window 12 is missing",
    ),
    "gap": (
        window(11, ended_at=window(11).ended_at - timedelta(microseconds=1)),
        window(12),
        "window 11 ends at 2026-11-16T23:58:59.999999Z, but the next one begins at 2026-11-16T23:59:00.000000Z",
    ),
    "overlap": (
        window(11, ended_at=window(11).ended_at + timedelta(seconds=1)),
        window(12),
        "window 11 ends at 2026-11-16T23:59:01.000000Z, but the next one begins at 2026-11-16T23:59:00.000000Z",
    ),
    "newest window does not end at the last cut": (
        window(12, ended_at=MIDNIGHT - timedelta(seconds=2)),
        None,
        "window 12 ends at 2026-11-16T23:59:58.000000Z, but the last cut was at 2026-11-17T00:00:00.000000Z",
    ),
    "across midnight": (
        window(12, ended_at=MIDNIGHT + timedelta(microseconds=1)),
        window(13, started_at=MIDNIGHT + timedelta(microseconds=1)),
        "window 12 crosses a midnight",
    ),
    "different factors without an era": (
        window(11),
        window(12, era=Era(ERA.started_at, (1_000_000, 2_000_000, 4_000_000))),
        "window 12 has different factors from window 11, but begins no era",
    ),
}


@pytest.mark.parametrize("fault", MISPLACED)
def test_audit_reports_misplaced_window(fault: str) -> None:
    one, newer, finding = MISPLACED[fault]
    assert list(check_position(INSTALLATION, one, newer)) == [finding]


@pytest.mark.parametrize(
    ("installation", "oldest"),
    [(INSTALLATION, window(5)), (replace(INSTALLATION, kept_from=INSTALLATION.last_cut_at), None)],
    ids=["windows kept", "no windows cut"],
)
def test_audit_accepts_oldest_window_at_start_of_retention(installation: Installation, oldest: Window | None) -> None:
    assert list(check_oldest(installation, oldest, installation)) == []


@pytest.mark.parametrize(
    ("oldest", "begins"),
    [(window(6), "23:53:00"), (window(4), "23:51:00"), (None, None)],
    ids=["oldest missing", "one too many", "all missing"],
)
def test_audit_reports_oldest_window_that_does_not_match_retention(oldest: Window | None, begins: str | None) -> None:
    instant = "2026-11-17T00:00:00.000000Z" if begins is None else f"2026-11-16T{begins}.000000Z"
    finding = f"the oldest window begins at {instant}, but usage is kept from 2026-11-16T23:52:00.000000Z"
    assert list(check_oldest(INSTALLATION, oldest, INSTALLATION)) == [finding]


def test_audit_accepts_windows_pruned_during_audit() -> None:
    later = replace(INSTALLATION, kept_from=INSTALLATION.kept_from + 2 * MINUTE)
    for oldest in (window(5), window(6), window(7)):
        assert list(check_oldest(INSTALLATION, oldest, later)) == []


# Chunks.


@pytest.mark.parametrize("order", [1, -1])
def test_audit_accepts_chunks_that_match_recomputed_bounds_and_sums(order: int) -> None:
    assert list(check_chunks(window(), CHUNKS[::order], BOUNDS)) == []


def test_audit_accepts_window_without_sessions() -> None:
    assert list(check_chunks(window(sessions=0, usage_millionths=0), [], [])) == []


@pytest.mark.parametrize("number", [1, 2])
def test_audit_reports_missing_chunk(number: int) -> None:
    chunks = [each for each in CHUNKS if each.chunk != number]
    assert list(check_chunks(window(), chunks, BOUNDS)) == [
        f"chunk {number} of window 12 is missing",
        "the chunks of window 12 do not add up to the sums of the window",
    ]


def test_audit_reports_chunk_without_sessions() -> None:
    chunks = [*CHUNKS, chunk(3, sessions=0, usage_millionths=0)]
    assert list(check_chunks(window(), chunks, BOUNDS)) == ["chunk 3 of window 12 has no sessions"]


@pytest.mark.parametrize(
    ("changed", "recounted"),
    [
        ({"sessions": 4}, "from first of 2 to last of 2 (sessions: 4, usage: 0.0005)"),
        ({"usage_millionths": 501}, "from first of 2 to last of 2 (sessions: 3, usage: 0.000501)"),
        ({"first_session_id": "another"}, "from another to last of 2 (sessions: 3, usage: 0.0005)"),
        ({"last_session_id": "another"}, "from first of 2 to another (sessions: 3, usage: 0.0005)"),
    ],
    ids=["count", "usage", "first", "last"],
)
def test_audit_reports_chunk_that_differs_from_recomputed_bounds_or_sums(
    changed: dict[str, Any], recounted: str
) -> None:
    (found,) = check_chunks(window(), CHUNKS, [BOUNDS[0], chunk_bounds(CHUNKS[1], **changed)])
    stored = "from first of 2 to last of 2 (sessions: 3, usage: 0.0005)"
    assert found == f"chunk 2 of window 12 does not match its sessions: stored {stored}, recounted {recounted}"


@pytest.mark.parametrize("changed", [{"sessions": 1002}, {"usage_millionths": 69_999}], ids=str)
def test_audit_reports_window_whose_chunks_do_not_add_up_to_its_sums(changed: dict[str, int]) -> None:
    found = list(check_chunks(window(**changed), CHUNKS, BOUNDS))
    assert found == ["the chunks of window 12 do not add up to the sums of the window"]


# Deliveries of chunks, for the tests below.


def delivery(number: int = 1, **given: Any) -> ChunkDelivery:
    """The delivery of a pending chunk."""
    values: dict[str, Any] = {
        "delivered_at": None,
        "submission_id": f"submission {number}",
        "delivery_key": delivery_key(window(), number),
        "state": SubmissionState.PENDING.value,
        "delivered_attempts": 0,
    }
    return ChunkDelivery(number, **{**values, **given})


def delivered(number: int = 1, **given: Any) -> ChunkDelivery:
    values = {"delivered_at": MIDNIGHT, "state": SubmissionState.DELIVERED.value, "delivered_attempts": 1}
    return delivery(number, **{**values, **given})


PRUNED = {"state": None, "delivery_key": None, "delivered_attempts": 0}


# Digests.


OTHER = sha256(b"another body").digest()


@pytest.mark.parametrize(
    ("stored", "recounted"),
    [((DIGEST, OTHER), (DIGEST, OTHER)), ((None, DIGEST), (OTHER, DIGEST)), ((DIGEST, DIGEST), (None, DIGEST))],
    ids=["same bytes", "not rendered yet", "not recounted, because the window has no contract"],
)
def test_audit_accepts_chunks_whose_digests_match_or_are_unknown(
    stored: Sequence[bytes | None], recounted: Sequence[bytes | None]
) -> None:
    chunks = [chunk(number, digest=digest) for number, digest in enumerate(stored, 1)]
    assert list(check_digests(window(), chunks, BOUNDS, recounted)) == []


def test_audit_reports_chunk_that_renders_to_other_bytes() -> None:
    found = list(check_digests(window(), CHUNKS, BOUNDS, [DIGEST, OTHER]))
    assert found == ["chunk 2 of window 12 does not render to the bytes that were sent"]


def test_audit_reports_digest_only_of_chunks_with_matching_bounds() -> None:
    """`check_chunks` already reports a chunk whose bounds differ. The bytes of such a chunk always differ too."""
    for bounds in ([chunk_bounds(CHUNKS[0], sessions=7), BOUNDS[1]], BOUNDS[1:], []):
        assert list(check_digests(window(), CHUNKS[:1], bounds, [OTHER] * len(bounds))) == []


# Windows without a contract.


NEVER_SENT: dict[str, Any] = {"submission_id": None, "digest": None}


def test_audit_accepts_unsent_chunks_of_window_without_contract() -> None:
    assert list(check_unsent(window(), [chunk(1, **NEVER_SENT), chunk(2, **NEVER_SENT)])) == []


@pytest.mark.parametrize("trace", [{"submission_id": "one"}, {"digest": DIGEST}, {"delivered_at": MIDNIGHT}])
def test_audit_reports_sent_chunk_of_window_without_contract(trace: dict[str, Any]) -> None:
    found = list(check_unsent(window(), [chunk(1, **NEVER_SENT), chunk(2, **{**NEVER_SENT, **trace})]))
    assert found == ["chunk 2 of window 12 was sent, but its window has no contract"]


# Deliveries.


def test_delivery_key_consists_of_installation_window_and_chunk() -> None:
    assert delivery_key(window(), 3) == "01a1e319-8e37-70d8-90e0-8dd76b11e610-12-3"


@pytest.mark.parametrize(
    ("one", "digest"),
    [(delivery(), None), (delivery(), DIGEST), (delivered(), DIGEST), (delivered(**PRUNED), DIGEST)],
    ids=["not sent yet", "sent, not delivered", "delivered", "delivered and pruned"],
)
def test_audit_accepts_pending_and_delivered_chunks(one: ChunkDelivery, digest: bytes | None) -> None:
    assert list(check_delivery(window(), chunk(digest=digest), one)) == []


INCONSISTENT = {
    "pending chunk, failed submission": (delivery(state="failed"), "is pending, but its submission is failed"),
    "pending chunk, cancelled submission": (delivery(state="cancelled"), "is pending, but its submission is cancelled"),
    "pending chunk, delivered submission": (delivery(state="delivered"), "is pending, but its submission is delivered"),
    "pending chunk, no submission": (delivery(**PRUNED), "is pending, but its submission is missing"),
    "delivered chunk, pending submission": (delivered(state="pending"), "is delivered, but its submission is pending"),
    "delivered chunk, cancelled submission": (
        delivered(state="cancelled"),
        "is delivered, but its submission is cancelled",
    ),
    "two delivered attempts": (delivered(delivered_attempts=2), "was delivered by 2 attempts"),
    "no delivered attempt": (delivered(delivered_attempts=0), "is delivered, but none of its attempts is"),
    "key of another installation": (
        delivery(delivery_key="x-12-1"),
        f"has the delivery key x-12-1 instead of {delivery_key(window(), 1)}",
    ),
    "key of another chunk": (
        delivered(delivery_key=delivery_key(window(), 2)),
        f"has the delivery key {delivery_key(window(), 2)} instead of {delivery_key(window(), 1)}",
    ),
}


@pytest.mark.parametrize("fault", INCONSISTENT)
def test_audit_reports_inconsistent_chunk_delivery(fault: str) -> None:
    one, finding = INCONSISTENT[fault]
    assert list(check_delivery(window(), chunk(), one)) == [f"chunk 1 of window 12 {finding}"]


def test_audit_reports_delivered_chunk_without_digest() -> None:
    (found,) = check_delivery(window(), chunk(digest=None), delivered())
    assert found == "chunk 1 of window 12 is delivered, but has no digest"


@pytest.mark.parametrize(
    ("delivered_at", "deliveries"),
    [
        (None, [delivered(1), delivery(2)]),
        (None, [delivery(1)]),
        (MIDNIGHT, [delivered(1), delivered(2)]),
        (MIDNIGHT, []),
    ],
    ids=["one pending", "all pending", "all delivered", "no chunks"],
)
def test_audit_accepts_window_delivery_that_matches_its_chunks(
    delivered_at: datetime | None, deliveries: Sequence[ChunkDelivery]
) -> None:
    read = window(delivered_at=delivered_at)
    assert list(check_window_delivery(read, deliveries, read)) == []


def test_audit_accepts_window_delivered_during_audit() -> None:
    earlier, later = window(delivered_at=None), window(delivered_at=MIDNIGHT)
    assert list(check_window_delivery(earlier, [delivered(1), delivery(2)], later)) == []
    assert list(check_window_delivery(earlier, [delivered(1)], later)) == []


def test_audit_reports_undelivered_window_with_all_chunks_delivered() -> None:
    read = window(delivered_at=None)
    (found,) = check_window_delivery(read, [delivered(1), delivered(2)], read)
    assert found == "window 12 is not delivered, but all of its chunks are"


def test_audit_reports_delivered_window_with_undelivered_chunks() -> None:
    deliveries = [delivered(1), delivery(2), delivery(3)]
    read = window(delivered_at=MIDNIGHT)
    (found,) = check_window_delivery(read, deliveries, read)
    assert found == "window 12 is delivered, but 2 of its chunks are not"


# The ledger.


def entry(**given: Any) -> Entry:
    values = {"digest": DIGEST.hex(), "records": 1000, "usage": "0.069500", "conflicts": 0}
    return Entry(delivery_key(window(), 1), **{**values, **given})


@pytest.mark.parametrize(
    ("one", "is_delivered"),
    [(entry(), True), (entry(usage="0.0695"), True), (entry(), False), (None, False)],
    ids=["delivered", "other spelling of the amount", "response lost", "not sent yet"],
)
def test_audit_accepts_matching_entry_and_missing_entry_of_pending_chunk(
    one: Entry | None, *, is_delivered: bool
) -> None:
    assert list(check_entry(window(), chunk(), delivered=is_delivered, entry=one)) == []


EXPECTED = "in the ledger instead of usage 0.0695 (sessions: 1000)"


@pytest.mark.parametrize(
    ("one", "finding"),
    [
        (entry(digest=sha256(b"x").hexdigest()), "has a different digest in the ledger"),
        (entry(records=999), f"has usage 0.069500 (sessions: 999) {EXPECTED}"),
        (entry(usage="0.069501"), f"has usage 0.069501 (sessions: 1000) {EXPECTED}"),
        (entry(records=None, usage=None), f"has no usage {EXPECTED}"),
        (entry(conflicts=1), "was also sent with different bytes"),
    ],
    ids=["digest", "sessions", "usage", "no usage", "conflict"],
)
def test_audit_reports_ledger_entry_that_differs_from_chunk(one: Entry, finding: str) -> None:
    for is_delivered in (True, False):
        found = list(check_entry(window(), chunk(), delivered=is_delivered, entry=one))
        assert found == [f"chunk 1 of window 12 {finding}"], is_delivered


def test_audit_reports_delivered_chunk_missing_from_ledger() -> None:
    (found,) = check_entry(window(), chunk(), delivered=True, entry=None)
    assert found == "chunk 1 of window 12 is delivered, but is not in the ledger"


def test_audit_reports_ledger_entry_of_chunk_never_sent() -> None:
    (found,) = check_entry(window(), chunk(digest=None), delivered=False, entry=entry())
    assert found == "chunk 1 of window 12 has a different digest in the ledger"
