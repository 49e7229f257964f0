"""Rendering chunks, and withholding those that are missing or unreadable, or differ from the stored sums or digests."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract, Envelope
from tenure.domain.usage import BillableInterval, Chunk, ChunkBounds, ChunkDigest, Window
from tenure.domain.usage_records import DividedChunk, Records, Template, render_records
from tenure.errors import DatabaseTooSlow, DatabaseUnavailable, LeaseLost
from tenure.submissions.payloads import Withheld
from tenure.telemetry.events import Telemetry, UsageDelivered
from tenure.usage import rendering
from tenure.usage.formats import FORMATS, render
from tenure.usage.rendering import RUN_MAX, RenderedAhead, UsagePayloads
from tests.support.telemetry import RecordedTelemetry
from tests.units.test_formats import INSIDE, THROUGHOUT, WINDOW, interval

FENCE = Fence("submission-executor", "us", 7)
CONTRACT = Contract((5.0,), None, (409,), 10.0, "tenure")
CHUNK = Chunk(
    window_id=WINDOW.window_id,
    chunk=1,
    first_session_id=THROUGHOUT.session_id,
    last_session_id=INSIDE.session_id,
    sessions=2,
    usage_millionths=78,
    submission_id="first",
)
OTHER = msgspec.structs.replace(
    CHUNK, chunk=2, sessions=1, usage_millionths=69, submission_id="second", first_session_id=interval(4).session_id
)


class UsageStore:
    """The store methods that the renderer calls, in memory."""

    def __init__(self) -> None:
        self.chunks: dict[str, tuple[Window, Chunk]] = {"first": (WINDOW, CHUNK), "second": (WINDOW, OTHER)}
        self.intervals: dict[int, Sequence[BillableInterval]] = {1: [THROUGHOUT, INSIDE], 2: [interval(4)]}
        self.digests: dict[str, bytes] = {}
        self.fences: list[Fence] = []
        self.error_of_call: Exception | None = None
        """Raised by `find_chunks`, `find_delivered_windows` and `store_digests`."""
        self.error_of_read: Exception | None = None
        """Raised by `render_chunks` if it is called for a chunk in `chunks_not_read`."""
        self.chunks_not_read = {1}
        self.reads: list[list[int]] = []

    async def find_chunks(self, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
        if self.error_of_call is not None:
            raise self.error_of_call
        return [self.chunks[each] for each in reversed(submission_ids) if each in self.chunks]

    async def find_delivered_windows(self, submission_ids: Sequence[str]) -> Sequence[Window]:
        windows = {window.window_id: window for window, _ in await self.find_chunks(submission_ids)}
        return [window for window in windows.values() if window.delivered_at is not None]

    async def render_chunks(self, window: Window, chunks: Sequence[Chunk], template: Template) -> Sequence[Records]:
        assert {window} == {self.chunks[str(chunk.submission_id)][0] for chunk in chunks}
        self.reads.append([chunk.chunk for chunk in chunks])
        if self.error_of_read is not None and self.chunks_not_read & set(self.reads[-1]):
            raise self.error_of_read
        return [render_records(template, window, self.intervals[chunk.chunk]) for chunk in chunks]

    async def store_digests(self, fence: Fence, digests: Sequence[ChunkDigest]) -> Mapping[str, bool]:
        if self.error_of_call is not None:
            raise self.error_of_call
        self.fences.append(fence)
        known = [each for each in digests if each.submission_id in self.chunks]
        return {
            each.submission_id: self.digests.setdefault(each.submission_id, each.digest) == each.digest
            for each in known
        }


@pytest.fixture
def store() -> UsageStore:
    return UsageStore()


@pytest.fixture
def payloads(store: UsageStore) -> UsagePayloads:
    return UsagePayloads(store, RenderedAhead(), Telemetry())  # type: ignore[arg-type]


def envelope(submission_id: str = "first", usage_format: str = "tenure") -> Envelope:
    return Envelope(
        submission_id, f"key of {submission_id}", b"", msgspec.structs.replace(CONTRACT, format=usage_format)
    )


def sent(**bodies: bytes) -> Sequence[Envelope]:
    return [msgspec.structs.replace(envelope(name), payload=body) for name, body in bodies.items()]


async def rendered(payloads: UsagePayloads, *envelopes: Envelope) -> Any:
    return await payloads.render(envelopes)


# Rendering.


@pytest.mark.parametrize("usage_format", ["tenure", "cloudevents"])
async def test_renderer_uses_format_of_contract(payloads: UsagePayloads, usage_format: str) -> None:
    bodies = await rendered(payloads, envelope(usage_format=usage_format))
    assert bodies == {"first": render(usage_format, WINDOW, [THROUGHOUT, INSIDE]).body}


async def test_renderer_renders_each_submission_from_its_own_chunk(payloads: UsagePayloads) -> None:
    bodies = await rendered(payloads, envelope(), envelope("second", "cloudevents"))
    assert bodies == {
        "first": render("tenure", WINDOW, [THROUGHOUT, INSIDE]).body,
        "second": render("cloudevents", WINDOW, [interval(4)]).body,
    }


async def test_renderer_returns_identical_bytes_on_repeat(payloads: UsagePayloads) -> None:
    assert await rendered(payloads, envelope()) == await rendered(payloads, envelope())


async def test_chunk_rendered_during_division_is_sent_without_reading_it(store: UsageStore) -> None:
    ahead = RenderedAhead()
    payloads = UsagePayloads(store, ahead, Telemetry())  # type: ignore[arg-type]
    bounds = ChunkBounds(CHUNK.first_session_id, CHUNK.last_session_id, CHUNK.sessions, CHUNK.usage_millionths)
    records = await store.render_chunks(WINDOW, [CHUNK], FORMATS["tenure"].template(WINDOW))
    store.reads.clear()
    ahead.add(WINDOW, CHUNK.chunk, "tenure", [DividedChunk(bounds, records[0])])
    first = await rendered(payloads, envelope(), envelope("second"))
    again = await rendered(payloads, envelope(), envelope("second"))
    assert (first, store.reads) == (again, [[2], [1, 2]])


async def test_chunk_rendered_during_division_is_dropped_in_time_while_others_are_added(
    store: UsageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "AHEAD_SECONDS", 0.3)
    ahead = RenderedAhead()
    bounds = ChunkBounds(CHUNK.first_session_id, CHUNK.last_session_id, CHUNK.sessions, CHUNK.usage_millionths)
    records = await store.render_chunks(WINDOW, [CHUNK], FORMATS["tenure"].template(WINDOW))
    numbers = []
    for number in range(5):
        ahead.add(WINDOW, number, "tenure", [DividedChunk(bounds, records[0])])
        await asyncio.sleep(0.1)
        numbers.append([key[1] for key in ahead._chunks])
    assert numbers[1] == [0, 1]
    assert 0 not in numbers[-1]
    assert 4 in numbers[-1]
    await asyncio.sleep(0.5)
    assert (ahead._chunks, ahead._expiry) == ({}, None)


async def test_renderer_raises_if_chunks_cannot_be_read(payloads: UsagePayloads, store: UsageStore) -> None:
    store.error_of_call = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        await rendered(payloads, envelope())


async def test_renderer_raises_if_database_is_away_while_sessions_are_read(
    payloads: UsagePayloads, store: UsageStore
) -> None:
    """Nothing is wrong with the chunk, so it must not be reported as withheld."""
    store.error_of_read = DatabaseUnavailable("the database cannot be reached")
    with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
        await rendered(payloads, envelope())


async def test_renderer_withholds_chunk_for_ten_seconds_if_its_sessions_cannot_be_read_in_time(
    payloads: UsagePayloads, store: UsageStore
) -> None:
    store.error_of_read = DatabaseTooSlow("the database did not answer within 30 seconds")
    (found,) = (await rendered(payloads, envelope())).values()
    assert found == Withheld("the chunk could not be read: the database did not answer within 30 seconds", 10)


async def test_renderer_withholds_only_the_chunk_that_cannot_be_read_in_time(
    payloads: UsagePayloads, store: UsageStore
) -> None:
    store.error_of_read = DatabaseTooSlow("the database did not answer within 30 seconds")
    bodies = await rendered(payloads, envelope(), envelope("second"))
    assert isinstance(bodies["first"], Withheld)
    assert bodies["second"] == render("tenure", WINDOW, [interval(4)]).body
    assert store.reads == [[1, 2], [1], [2]]


def add_chunks(store: UsageStore, numbers: Sequence[int], window: Window = WINDOW) -> list[Envelope]:
    names = {number: f"{window.window_id}-{number}" for number in numbers}
    for number, name in names.items():
        store.intervals[number] = [THROUGHOUT, INSIDE]
        chunk = msgspec.structs.replace(CHUNK, window_id=window.window_id, chunk=number, submission_id=name)
        store.chunks[name] = (window, chunk)
    return [envelope(name) for name in names.values()]


async def test_renderer_reads_adjacent_chunks_together(payloads: UsagePayloads, store: UsageStore) -> None:
    envelopes = add_chunks(store, [7, 3, 5, 4, 9])
    bodies = await rendered(payloads, *envelopes)
    assert store.reads == [[3, 4, 5], [7], [9]]
    assert list(bodies.values()) == [render("tenure", WINDOW, [THROUGHOUT, INSIDE]).body] * 5


async def test_renderer_limits_number_of_chunks_per_read(payloads: UsagePayloads, store: UsageStore) -> None:
    await rendered(payloads, *add_chunks(store, range(1, RUN_MAX + 3)))
    assert store.reads == [list(range(1, RUN_MAX + 1)), [RUN_MAX + 1, RUN_MAX + 2]]


async def test_renderer_reads_chunks_of_different_windows_separately(
    payloads: UsagePayloads, store: UsageStore
) -> None:
    other = msgspec.structs.replace(WINDOW, window_id=WINDOW.window_id + 1)
    await rendered(payloads, *add_chunks(store, [3]), *add_chunks(store, [4], other))
    assert store.reads == [[3], [4]]


# Withholding.


async def withheld(payloads: UsagePayloads, one: Envelope) -> str:
    """Returns why the first chunk is withheld, and checks that the second chunk is rendered."""
    bodies = await rendered(payloads, one, envelope("second"))
    assert bodies["second"] == render("tenure", WINDOW, [interval(4)]).body
    assert isinstance(bodies["first"], Withheld), bodies["first"]
    return bodies["first"].error


async def test_renderer_withholds_submission_without_chunk(payloads: UsagePayloads, store: UsageStore) -> None:
    del store.chunks["first"]
    assert await withheld(payloads, envelope()) == "there is no chunk for this submission"


@pytest.mark.parametrize(
    "intervals",
    [
        [THROUGHOUT],
        [],
        [THROUGHOUT, INSIDE, interval(3, kind=2, before_microseconds=5, total_microseconds=6)],
        [THROUGHOUT, INSIDE._replace(kind=2)],
        [THROUGHOUT, INSIDE._replace(total_microseconds=24_700_000)],
    ],
    ids=["one missing", "all missing", "one added without usage", "other kind", "other length"],
)
async def test_renderer_withholds_body_that_differs_from_chunk_sums(
    payloads: UsagePayloads, store: UsageStore, intervals: Sequence[BillableInterval]
) -> None:
    store.intervals[1] = intervals
    assert await withheld(payloads, envelope()) == "its sums differ from those stored when its window was divided"


# Storing digests.


async def test_renderer_stores_digest_of_each_body(payloads: UsagePayloads, store: UsageStore) -> None:
    assert await payloads.store_digests(FENCE, sent(first=b"one", second=b"two")) == {}
    assert store.digests == {"first": sha256(b"one").digest(), "second": sha256(b"two").digest()}
    assert store.fences == [FENCE]


async def test_renderer_accepts_body_with_stored_digest(payloads: UsagePayloads, store: UsageStore) -> None:
    store.digests["first"] = sha256(b"one").digest()
    assert await payloads.store_digests(FENCE, sent(first=b"one")) == {}


async def test_renderer_withholds_body_that_differs_from_stored_digest(
    payloads: UsagePayloads, store: UsageStore
) -> None:
    store.digests["first"] = sha256(b"one").digest()
    refused = await payloads.store_digests(FENCE, sent(first=b"one ", second=b"two"))
    assert refused == {"first": Withheld("its digest differs from the one stored before its first attempt")}


async def test_renderer_withholds_body_whose_digest_cannot_be_stored(
    payloads: UsagePayloads, store: UsageStore
) -> None:
    """The chunk was deleted after it was rendered."""
    del store.chunks["first"]
    assert list(await payloads.store_digests(FENCE, sent(first=b"one", second=b"two"))) == ["first"]


async def test_renderer_stores_no_digest_if_lease_is_lost(payloads: UsagePayloads, store: UsageStore) -> None:
    store.error_of_call = LeaseLost("another epoch")
    with pytest.raises(LeaseLost):
        await payloads.store_digests(FENCE, sent(first=b"one"))
    assert store.digests == {}


# Delivered windows.


@pytest.mark.parametrize("delivered", [[], ["first"], ["first", "second"]])
async def test_window_is_reported_once_when_its_last_chunk_is_delivered(
    store: UsageStore, delivered: Sequence[str]
) -> None:
    telemetry = RecordedTelemetry()
    payloads = UsagePayloads(store, RenderedAhead(), telemetry)  # type: ignore[arg-type]
    await payloads.report_delivered(delivered)
    assert telemetry.of(UsageDelivered) == []
    ended_at = WINDOW.ended_at + timedelta(seconds=1.5)
    whole = msgspec.structs.replace(WINDOW, sessions=3, delivered_at=ended_at)
    store.chunks = {name: (whole, chunk) for name, (_, chunk) in store.chunks.items()}
    await payloads.report_delivered(delivered)
    expected = UsageDelivered(WINDOW.window_id, WINDOW.ended_at, 3, 1.5)
    assert telemetry.of(UsageDelivered) == ([expected] if delivered else [])


async def test_report_of_delivery_does_not_raise_if_database_is_unavailable(
    store: UsageStore, payloads: UsagePayloads
) -> None:
    store.error_of_call = DatabaseUnavailable("away")
    await payloads.report_delivered(["first"])
