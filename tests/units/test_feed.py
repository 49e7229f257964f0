"""Followers of the feed that are behind its head share the pages that are read from the database for them."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenure.domain.events import EventFilter, EventPage, EventPosition, EventType, SessionEvent, end_of
from tenure.errors import DatabaseUnavailable
from tenure.events import feed
from tenure.events.feed import PAGE_READS_MAX, PAGES_MAX, Feed
from tenure.telemetry.events import Telemetry
from tests.support.open_requests import NOON

BEGIN = NOON.replace(microsecond=0)
EVERY = timedelta(milliseconds=10)
COUNT = 6000
FILTER = EventFilter()


def event(number: int) -> SessionEvent:
    return SessionEvent(
        type=EventType.OPENED,
        at=BEGIN + number * EVERY,
        session_id=f"00000000-0000-7000-8000-{number:012x}",
        user_object_id="u",
        tenant_object_id="t",
        capacity_id="c",
        kind=1,
        started_at=BEGIN + number * EVERY,
    )


EVENTS = [event(number) for number in range(COUNT)]


class EventStore:
    """A store with one minute of events, a hundred per second."""

    def __init__(self) -> None:
        self.reads: list[EventPosition] = []
        self.reading = self.most_at_once = 0
        self.error: Exception | None = None
        self.seconds = 0.001
        """How long a read takes."""
        self.reach: int | None = None
        """The most events that one read searches. If None, only the limit of the caller applies."""

    async def publish_events(self, _pause_microseconds: int) -> datetime:
        return EVENTS[-1].at

    async def read_events(
        self, criteria: EventFilter, after: EventPosition, _until: EventPosition | None, limit: int
    ) -> EventPage:
        self.reads.append(after)
        self.reading += 1
        self.most_at_once = max(self.most_at_once, self.reading)
        await asyncio.sleep(self.seconds)
        self.reading -= 1
        if self.error is not None:
            raise self.error
        start = next(
            (n for n, each in enumerate(EVENTS) if each.position.instant_and_rank > after.instant_and_rank), COUNT
        )
        end = start + min(limit, self.reach or limit)
        found = EVENTS[start:end]
        is_last = end >= COUNT
        position = end_of(found[-1].at if found else EVENTS[-1].at)
        return EventPage([each for each in found if criteria.admits(each)], position, EVENTS[-1].at, is_last)


@pytest.fixture
def store() -> EventStore:
    return EventStore()


@pytest.fixture
def followed(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> Feed:
    monkeypatch.setattr(feed, "PIECE_MAX", 250)
    stored: Any = store
    return Feed(stored, lambda position: position.session_id, Telemetry())


async def follow(feed: Feed, first: int) -> Sequence[str]:
    """Follows the feed from event number `first` to the last event, and returns the session ids of these events."""
    seen: list[str] = []
    async with aclosing(feed.follow(FILTER, EVENTS[first - 1].position, 60)) as pieces:
        async for piece in pieces:
            seen += [each.event.session_id for each in piece.events]
            if seen and seen[-1] == EVENTS[-1].session_id:
                return seen
    raise AssertionError("the feed ended before its last event")


@pytest.mark.parametrize("reach", [None, 230])
async def test_followers_at_different_positions_share_pages_after_the_first(
    followed: Feed, store: EventStore, reach: int | None
) -> None:
    """A page also ends at a whole second if its read searches fewer events than the limit of the page (`reach`)."""
    store.reach = reach
    begins = [1 + 7 * number for number in range(200)]
    async with asyncio.timeout(20):
        seen = await asyncio.gather(*(follow(followed, first) for first in begins))
    for first, ids in zip(begins, seen, strict=True):
        assert ids == [each.session_id for each in EVENTS[first:]]
    # Each follower reads its own first page. All later pages begin at a whole second and contain the 200 events of two
    # seconds, so there are at most 60 pages: 30 that begin at even seconds, and 30 that begin at odd seconds. Reads
    # that begin at the last event belong to the head, which is read again and again.
    of_pages = [position for position in store.reads if position.at < EVENTS[-1].at]
    assert len(of_pages) <= len(begins) + 2 * COUNT / 200
    assert store.most_at_once <= PAGE_READS_MAX + 1  # and the read of the head
    await followed.stop()


async def test_follower_whose_filter_admits_no_event_gets_keep_alives_during_the_search(
    followed: Feed, store: EventStore
) -> None:
    store.seconds, store.reach = 0.02, 200
    rare = EventFilter(types=(EventType.UPGRADED,))
    positions = []
    async with asyncio.timeout(20), aclosing(followed.follow(rare, EVENTS[0].position, 0.1)) as pieces:
        async for piece in pieces:
            assert not piece.events
            positions.append(piece.position.at)
            if positions[-1] == EVENTS[-1].at:
                break
    assert len(positions) > 3
    assert positions == sorted(positions)
    await followed.stop()


async def test_keep_alive_does_not_wait_for_a_slow_read(followed: Feed, store: EventStore) -> None:
    store.seconds = 0.5
    async with asyncio.timeout(20), aclosing(followed.follow(FILTER, EVENTS[0].position, 0.1)) as pieces:
        first = await anext(pieces)
        while not (found := await anext(pieces)).events:
            pass
    assert (first.events, first.position) == ([], EVENTS[0].position)
    assert found.events[0].event == EVENTS[1]
    assert store.reads.count(EVENTS[0].position) == 1
    await followed.stop()


async def test_number_of_pages_kept_for_followers_is_limited(followed: Feed) -> None:
    async with asyncio.timeout(20):
        await follow(followed, 1)
    assert len(followed._pages._pages) == len(followed._pages._kept) == PAGES_MAX
    await followed.stop()


async def test_follower_that_leaves_does_not_cancel_the_read_of_others(followed: Feed, store: EventStore) -> None:
    store.seconds = 0.1
    first, second = [asyncio.create_task(followed._pages.get(FILTER, EVENTS[0].position, 250)) for _ in range(2)]
    await asyncio.sleep(0.02)
    first.cancel()
    assert len((await second).events) == 199  # the page ends at 12:00:02, just before event 200
    assert len(store.reads) == 1
    await followed.stop()


async def test_page_is_read_again_after_its_read_failed(followed: Feed, store: EventStore) -> None:
    store.error = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        await followed._pages.get(FILTER, EVENTS[0].position, 250)
    store.error = None
    assert (await followed._pages.get(FILTER, EVENTS[0].position, 250)).events
    await followed.stop()


async def test_stop_ends_reads_in_progress(followed: Feed, store: EventStore) -> None:
    store.seconds = 60
    reading = asyncio.create_task(followed._pages.get(FILTER, EVENTS[0].position, 250))
    await asyncio.sleep(0.02)
    await followed.stop()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert followed._pages._pages == {}
