"""What an audit compares: each check finds its fault, says which it is, and is silent otherwise."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.model.submissions import SubmissionState
from tenure.model.usage import Chunk, ChunkDelivery, Era, Installation, Piece, Window
from tenure.usage.checks import (
    Entry,
    check_chunks,
    check_delivery,
    check_entry,
    check_oldest,
    check_place,
    check_window_delivery,
    key_of,
)

MINUTE = timedelta(minutes=1)
MIDNIGHT = datetime(2026, 11, 17, tzinfo=UTC)
ERA = Era(MIDNIGHT - timedelta(days=3), (1_000_000, 2_000_000, 3_000_000))
DIGEST = sha256(b"what was sent").digest()


def window(window_id: int = 12, **given: Any) -> Window:
    """The minute before midnight is number 12; each other lies as far from it as its number."""
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


def piece(of: Chunk, **given: Any) -> Piece:
    """What it must have been made of."""
    return replace(Piece(of.first_session_id, of.last_session_id, of.sessions, of.usage_millionths), **given)


INSTALLATION = Installation("an id", kept_from=window(5).started_at, last_cut_at=window(12).ended_at, last_window_id=12)
CHUNKS = [chunk(1), chunk(2)]
PIECES = [piece(each) for each in CHUNKS]


# Where a window lies.


@pytest.mark.parametrize(
    ("one", "newer"),
    [
        (window(12), None),
        (window(11), window(12)),
        (window(13), window(14)),
        (window(12, started_at=MIDNIGHT - timedelta(days=1)), None),
        (window(11), window(12, era=Era(window(12).started_at, (1, 2, 3)))),
    ],
    ids=["the last", "with a next", "after midnight", "a whole day", "before another era"],
)
def test_a_window_in_its_place_is_no_fault(one: Window, newer: Window | None) -> None:
    assert list(check_place(INSTALLATION, one, newer)) == []


MISPLACED = {
    "a number is missing": (
        window(10, ended_at=window(12).started_at),
        window(12),
        "window 10 is followed by window 12",
    ),
    "a number is missing at the end": (
        window(11, ended_at=MIDNIGHT),
        None,
        "window 11 is followed by window 13",
    ),
    "a gap": (
        window(11, ended_at=window(11).ended_at - timedelta(microseconds=1)),
        window(12),
        "window 11 ends at 2026-11-16T23:58:59.999999Z, and what follows begins at 2026-11-16T23:59:00.000000Z",
    ),
    "an overlap": (
        window(11, ended_at=window(11).ended_at + timedelta(seconds=1)),
        window(12),
        "window 11 ends at 2026-11-16T23:59:01.000000Z, and what follows begins at 2026-11-16T23:59:00.000000Z",
    ),
    "the last cut is another": (
        window(12, ended_at=MIDNIGHT - timedelta(seconds=2)),
        None,
        "window 12 ends at 2026-11-16T23:59:58.000000Z, and what follows begins at 2026-11-17T00:00:00.000000Z",
    ),
    "across midnight": (
        window(12, ended_at=MIDNIGHT + timedelta(microseconds=1)),
        window(13, started_at=MIDNIGHT + timedelta(microseconds=1)),
        "window 12 crosses a midnight",
    ),
    "other factors without an era": (
        window(11),
        window(12, era=Era(ERA.started_at, (1_000_000, 2_000_000, 4_000_000))),
        "window 12 has other factors, but does not begin an era",
    ),
}


@pytest.mark.parametrize("fault", MISPLACED)
def test_finds_a_window_out_of_place(fault: str) -> None:
    one, newer, words = MISPLACED[fault]
    assert list(check_place(INSTALLATION, one, newer)) == [words]


@pytest.mark.parametrize(
    ("installation", "oldest"),
    [(INSTALLATION, window(5)), (replace(INSTALLATION, kept_from=INSTALLATION.last_cut_at), None)],
    ids=["some are kept", "none was cut"],
)
def test_windows_from_the_first_that_is_kept_are_no_fault(installation: Installation, oldest: Window | None) -> None:
    assert list(check_oldest(installation, oldest, installation)) == []


@pytest.mark.parametrize(
    ("oldest", "begins"),
    [(window(6), "23:53:00"), (window(4), "23:51:00"), (None, None)],
    ids=["the first is gone", "one is too many", "all are gone"],
)
def test_finds_that_the_first_windows_are_not_those_that_are_kept(oldest: Window | None, begins: str | None) -> None:
    instant = "2026-11-17T00:00:00.000000Z" if begins is None else f"2026-11-16T{begins}.000000Z"
    words = f"the oldest window begins at {instant}, not at 2026-11-16T23:52:00.000000Z"
    assert list(check_oldest(INSTALLATION, oldest, INSTALLATION)) == [words]


def test_windows_that_are_pruned_meanwhile_are_no_fault() -> None:
    later = replace(INSTALLATION, kept_from=INSTALLATION.kept_from + 2 * MINUTE)
    for oldest in (window(5), window(6), window(7)):
        assert list(check_oldest(INSTALLATION, oldest, later)) == []


# Chunks.


@pytest.mark.parametrize("order", [1, -1])
def test_chunks_of_what_their_sessions_lived_are_no_fault(order: int) -> None:
    assert list(check_chunks(window(), CHUNKS[::order], PIECES)) == []


def test_a_window_in_which_nobody_lived_is_no_fault() -> None:
    assert list(check_chunks(window(sessions=0, usage_millionths=0), [], [])) == []


@pytest.mark.parametrize("number", [1, 2])
def test_finds_a_chunk_that_is_missing(number: int) -> None:
    chunks = [each for each in CHUNKS if each.chunk != number]
    assert list(check_chunks(window(), chunks, PIECES)) == [
        f"chunk {number} of window 12 is missing",
        "the chunks of window 12 do not add up to it",
    ]


def test_finds_a_chunk_without_sessions() -> None:
    chunks = [*CHUNKS, chunk(3, sessions=0, usage_millionths=0)]
    assert list(check_chunks(window(), chunks, PIECES)) == ["chunk 3 of window 12 has no sessions"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sessions": 4}, "0.0005 for 4 from first of 2 to last of 2"),
        ({"usage_millionths": 501}, "0.000501 for 3 from first of 2 to last of 2"),
        ({"first_session_id": "another"}, "0.0005 for 3 from another to last of 2"),
        ({"last_session_id": "another"}, "0.0005 for 3 from first of 2 to another"),
    ],
    ids=["count", "usage", "first", "last"],
)
def test_finds_a_chunk_that_is_not_what_its_sessions_lived(changed: dict[str, Any], words: str) -> None:
    (found,) = check_chunks(window(), CHUNKS, [PIECES[0], piece(CHUNKS[1], **changed)])
    name = "chunk 2 of window 12 is not what its sessions lived"
    assert found == f"{name}: 0.0005 for 3 from first of 2 to last of 2, not {words}"


@pytest.mark.parametrize("changed", [{"sessions": 1002}, {"usage_millionths": 69_999}], ids=str)
def test_finds_a_window_that_its_chunks_do_not_add_up_to(changed: dict[str, int]) -> None:
    found = list(check_chunks(window(**changed), CHUNKS, PIECES))
    assert found == ["the chunks of window 12 do not add up to it"]


# Deliveries.


def delivery(number: int = 1, **given: Any) -> ChunkDelivery:
    """Of a chunk that waits."""
    values: dict[str, Any] = {
        "delivered_at": None,
        "submission_id": f"submission {number}",
        "delivery_key": key_of(window(), number),
        "state": SubmissionState.PENDING.value,
        "delivered_attempts": 0,
    }
    return ChunkDelivery(number, **{**values, **given})


def delivered(number: int = 1, **given: Any) -> ChunkDelivery:
    values = {"delivered_at": MIDNIGHT, "state": SubmissionState.DELIVERED.value, "delivered_attempts": 1}
    return delivery(number, **{**values, **given})


PRUNED = {"state": None, "delivery_key": None, "delivered_attempts": 0}


def test_a_key_is_made_of_installation_window_and_chunk() -> None:
    assert key_of(window(), 3) == "01a1e319-8e37-70d8-90e0-8dd76b11e610-12-3"


@pytest.mark.parametrize(
    ("one", "digest"),
    [(delivery(), None), (delivery(), DIGEST), (delivered(), DIGEST), (delivered(**PRUNED), DIGEST)],
    ids=["not sent yet", "sent, not delivered", "delivered", "delivered and pruned"],
)
def test_a_chunk_that_waits_or_is_delivered_is_no_fault(one: ChunkDelivery, digest: bytes | None) -> None:
    assert list(check_delivery(window(), chunk(digest=digest), one)) == []


FORGOTTEN = {
    "failed": (delivery(state="failed"), "waits, but its submission is failed"),
    "cancelled": (delivery(state="cancelled"), "waits, but its submission is cancelled"),
    "delivered and not noted": (delivery(state="delivered"), "waits, but its submission is delivered"),
    "gone": (delivery(**PRUNED), "waits, but its submission is gone"),
    "noted and pending": (delivered(state="pending"), "is delivered, but its submission is pending"),
    "noted and cancelled": (delivered(state="cancelled"), "is delivered, but its submission is cancelled"),
    "delivered twice": (delivered(delivered_attempts=2), "was delivered by 2 attempts"),
    "another key": (delivery(delivery_key="x-12-1"), "has the key x-12-1"),
    "the key of another chunk": (
        delivered(delivery_key=key_of(window(), 2)),
        "has the key 01a1e319-8e37-70d8-90e0-8dd76b11e610-12-2",
    ),
}


@pytest.mark.parametrize("fault", FORGOTTEN)
def test_finds_a_delivery_that_cannot_be(fault: str) -> None:
    one, words = FORGOTTEN[fault]
    assert list(check_delivery(window(), chunk(), one)) == [f"chunk 1 of window 12 {words}"]


def test_finds_that_it_was_not_noted_what_was_sent() -> None:
    (found,) = check_delivery(window(), chunk(digest=None), delivered())
    assert found == "chunk 1 of window 12 is delivered, but it was not noted what was sent"


@pytest.mark.parametrize(
    ("delivered_at", "deliveries"),
    [
        (None, [delivered(1), delivery(2)]),
        (None, [delivery(1)]),
        (MIDNIGHT, [delivered(1), delivered(2)]),
        (MIDNIGHT, []),
    ],
    ids=["one waits", "all wait", "all are delivered", "nothing to deliver"],
)
def test_a_window_that_says_what_its_chunks_say_is_no_fault(
    delivered_at: datetime | None, deliveries: Sequence[ChunkDelivery]
) -> None:
    told = window(delivered_at=delivered_at)
    assert list(check_window_delivery(told, deliveries, told)) == []


def test_a_window_that_is_delivered_while_it_is_read_is_no_fault() -> None:
    earlier, later = window(delivered_at=None), window(delivered_at=MIDNIGHT)
    assert list(check_window_delivery(earlier, [delivered(1), delivery(2)], later)) == []
    assert list(check_window_delivery(earlier, [delivered(1)], later)) == []


def test_finds_a_window_that_is_not_delivered_though_its_chunks_are() -> None:
    told = window(delivered_at=None)
    (found,) = check_window_delivery(told, [delivered(1), delivered(2)], told)
    assert found == "window 12 is not delivered, but all of its chunks are"


def test_finds_a_window_that_is_delivered_before_its_chunks() -> None:
    deliveries = [delivered(1), delivery(2), delivery(3)]
    told = window(delivered_at=MIDNIGHT)
    (found,) = check_window_delivery(told, deliveries, told)
    assert found == "window 12 is delivered, but 2 of its chunks are not"


# The ledger.


def entry(**given: Any) -> Entry:
    values = {"digest": DIGEST.hex(), "records": 1000, "usage": "0.069500", "conflicts": 0}
    return Entry(key_of(window(), 1), **{**values, **given})


@pytest.mark.parametrize(
    ("one", "is_delivered"),
    [(entry(), True), (entry(usage="0.0695"), True), (entry(), False), (None, False)],
    ids=["it has it", "spelled otherwise", "the answer was lost", "not sent yet"],
)
def test_a_ledger_that_has_what_was_sent_is_no_fault(one: Entry | None, *, is_delivered: bool) -> None:
    assert list(check_entry(window(), chunk(), delivered=is_delivered, entry=one)) == []


@pytest.mark.parametrize("is_delivered", [True, False])
@pytest.mark.parametrize(
    ("one", "words"),
    [
        (entry(digest=sha256(b"x").hexdigest()), "has other bytes in the ledger than were sent"),
        (entry(records=999), "is 0.069500 for 999 sessions in the ledger"),
        (entry(usage="0.069501"), "is 0.069501 for 1000 sessions in the ledger"),
        (entry(records=None, usage=None), "is None for None sessions in the ledger"),
        (entry(conflicts=1), "was sent with other bytes, too"),
    ],
    ids=["bytes", "count", "figures", "no usage", "conflict"],
)
def test_finds_a_ledger_that_has_something_else(one: Entry, words: str, *, is_delivered: bool) -> None:
    found = list(check_entry(window(), chunk(), delivered=is_delivered, entry=one))
    assert found == [f"chunk 1 of window 12 {words}"]


def test_finds_what_is_delivered_and_not_in_the_ledger() -> None:
    (found,) = check_entry(window(), chunk(), delivered=True, entry=None)
    assert found == "chunk 1 of window 12 is delivered, but not in the ledger"


def test_finds_what_is_in_the_ledger_and_was_never_sent() -> None:
    (found,) = check_entry(window(), chunk(digest=None), delivered=False, entry=entry())
    assert found == "chunk 1 of window 12 has other bytes in the ledger than were sent"
