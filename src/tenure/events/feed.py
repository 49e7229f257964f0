"""The feed of events, shared by all followers of this instance.

Events are read up to the *horizon*: all later session writes get a timestamp after it (docs/explanation/events.md). So
the events up to the horizon, and their order, never change.

While there are followers, one task moves the horizon and reads the new events every POLL_SECONDS, into the *head*: the
newest events, encoded once. A follower whose position is in the head gets its events from the head, and followers at
the same position with the same filter share the bytes that they get. A follower that is further behind reads pages from
the database until it reaches the head. So a slow follower costs reads, but no memory: its next events are read only
after its client has taken the last ones, and the head keeps at most HEAD_MAX events, even if a follower needs older
ones.

Followers that use Server-Sent Events (`follow`) share these pages (`_Pages`). If each of them read its own pages, a
thousand followers that fell behind together, for example because their load balancer stood still, would need more reads
than the database can do while new events arrive, and would never reach the head again. A page ends at a whole second if
possible, so followers that started at different positions soon continue from the same position, and share their next
pages. Pages are read one at a time, and each page is only one read from the database, even if that read finds no
events. Otherwise the long search for a filter that admits few events would block all other followers.

The task that reads into the head ends IDLE_SECONDS after the last follower has left. While this task does not run,
requests that do not wait move the horizon themselves. Deliveries to gateways always move the horizon themselves.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextvars import Context
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from tenure.clock import monotonic
from tenure.domain.events import END_RANK, FEED_KEPT, EventFilter, EventPosition, SessionEvent, end_of
from tenure.errors import DatabaseUnavailable
from tenure.events.formats import event_json
from tenure.leases.waiting import is_set_within
from tenure.store.contract import Store
from tenure.telemetry.events import EventsDelayed, Telemetry

POLL_SECONDS = 0.25
PUBLISH_PAUSE_MICROSECONDS = 250_000
"""The shortest time between two moves of the horizon of an installation. A move waits for the session writes in
progress, and on SQLite and SQL Server, session writes also wait for the move."""
READ_MAX = 1000
"""The most events in one read from the database."""
PIECE_MAX = 1000
"""The most events that a follower gets at once."""
HEAD_MAX = 10_000
PAGES_MAX = 8
"""The most pages of PIECE_MAX events that are kept for followers behind the head: about 16 MB."""
PAGE_READS_MAX = 1
"""How many of these pages are read at the same time. The limit leaves the other database connections to other reads."""
IDLE_SECONDS = 2.0
"""How long the head is kept up to date after the last follower has left: the client of a long poll soon sends its next
request."""
RETRY_SECONDS = 1.0
MICROSECOND = timedelta(microseconds=1)
DELAYED_SECONDS = 10.0
"""If reads keep failing, the feed reports the failure each time this many seconds have passed."""

CursorOf = Callable[[EventPosition], str]


class EncodedEvent(NamedTuple):
    event: SessionEvent
    position: EventPosition
    json: bytes
    frame: bytes
    """The event in the format of Server-Sent Events."""


class Piece(NamedTuple):
    """The next events of a follower, and where it continues."""

    events: Sequence[EncodedEvent]
    position: EventPosition
    frames: bytes = b""


class Feed:
    def __init__(self, store: Store, cursor_of: CursorOf, telemetry: Telemetry) -> None:
        self._store = store
        self._cursor_of = cursor_of
        self._telemetry = telemetry
        self._head: _Head | None = None
        self._followers = 0
        self._left_at = 0.0
        self._moved = asyncio.Event()
        """Set when the head has moved. A new `asyncio.Event` replaces it at the same time, for the next move."""
        self._reading: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._pages = _Pages(self._read_page)
        self.is_stopped = False

    async def start_position(self) -> EventPosition:
        """The position at which a client without a cursor starts: FEED_KEPT before the horizon."""
        horizon = await self._store.publish_events(PUBLISH_PAUSE_MICROSECONDS)
        return end_of(horizon - FEED_KEPT)

    async def latest(self) -> EventPosition:
        """The position after all events so far."""
        return end_of(await self._store.publish_events(PUBLISH_PAUSE_MICROSECONDS))

    async def page(self, criteria: EventFilter, after: EventPosition, limit: int, wait_seconds: float) -> Piece:
        """Returns up to `limit` events once there are some, or none after `wait_seconds`. Raises if reads fail."""
        if wait_seconds <= 0 and self._head is None:
            await self._store.publish_events(PUBLISH_PAUSE_MICROSECONDS)
            return await self._search(criteria, after, limit)
        ends_at = monotonic() + wait_seconds
        with self._follow():
            while True:
                piece = await self._next(criteria, after, limit, self._search)
                after = piece.position
                remaining = ends_at - monotonic()
                if piece.events or remaining <= 0 or self.is_stopped:
                    if not piece.events and self._failure is not None:
                        raise self._failure
                    return piece
                if self._head is None or self._head.is_at_end(after):
                    await self._wait(remaining)

    async def follow(
        self, criteria: EventFilter, after: EventPosition, keep_alive_seconds: float
    ) -> AsyncGenerator[Piece]:
        """Yields pieces until the feed is stopped. A piece without events is a keep-alive."""
        sent_at = monotonic()
        with self._follow():
            while not self.is_stopped:
                due_in = max(0.0, keep_alive_seconds - (monotonic() - sent_at))
                piece = await self._next_if_available(criteria, after, due_in)
                after = piece.position
                if piece.events or monotonic() - sent_at >= keep_alive_seconds:
                    sent_at = monotonic()
                    yield piece
                elif self._head is None or self._head.is_at_end(after):
                    await self._wait(keep_alive_seconds - (monotonic() - sent_at))

    async def stop(self) -> None:
        """Ends all followers."""
        self.is_stopped = True
        self._notify()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._pages.stop()

    async def _next_if_available(self, criteria: EventFilter, after: EventPosition, seconds: float) -> Piece:
        """Returns a piece without events if no piece is available within `seconds`. The read of a page continues after
        such a timeout, and the next call waits for the same read.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._next(criteria, after, PIECE_MAX, self._pages.get)
        except TimeoutError:
            return Piece([], after)
        except DatabaseUnavailable:
            await self._wait(RETRY_SECONDS)
            return Piece([], after)

    async def _next(self, criteria: EventFilter, after: EventPosition, limit: int, search: "_Search") -> Piece:
        head = self._head
        if head is not None:
            piece = head.next(criteria, after, limit)
            if piece is not None:
                return piece
        if head is None or not head.is_at_end(after):
            return await search(criteria, after, limit)
        return Piece([], after)

    async def _read_page(self, criteria: EventFilter, after: EventPosition, limit: int) -> Piece:
        """Reads one page, which may have no events. The page is cut at the start of its last second, unless the page
        reaches the horizon or also begins in that second.
        """
        page = await self._store.read_events(criteria, after, None, limit)
        second = page.position.at.replace(microsecond=0)
        end = end_of(second - MICROSECOND)
        if page.is_last or end.instant_and_rank <= after.instant_and_rank:
            return self._piece(page.events, page.position)
        return self._piece([each for each in page.events if each.at < second], end)

    async def _search(self, criteria: EventFilter, after: EventPosition, limit: int) -> Piece:
        """Reads pages from the database until one has events or the horizon is reached."""
        while True:
            page = await self._store.read_events(criteria, after, None, limit)
            if page.events or page.is_last or page.position == after:
                return self._piece(page.events, page.position)
            after = page.position

    def _piece(self, events: Sequence[SessionEvent], position: EventPosition) -> Piece:
        encoded = [self._encode(event) for event in events]
        return Piece(encoded, position, _frames(encoded))

    def _encode(self, event: SessionEvent) -> EncodedEvent:
        position, text = event.position, event_json(event)
        frame = f"id: {self._cursor_of(position)}\nevent: {event.type}\ndata: {text}\n\n"
        return EncodedEvent(event, position, text.encode(), frame.encode())

    # The head.

    def _follow(self) -> "_Following":
        self._ensure_reading()
        return _Following(self)

    def _ensure_reading(self) -> None:
        if self._reading is None or self._reading.done():
            self._left_at = monotonic()
            # An empty context: the task reads for all followers, so it must not belong to the trace of one of them.
            self._reading = asyncio.create_task(self._read_head(), context=Context())

    def enter(self) -> None:
        self._followers += 1

    def leave(self) -> None:
        self._followers -= 1
        self._left_at = monotonic()

    async def _read_head(self) -> None:
        """Keeps the head up to date until the last follower has been gone for IDLE_SECONDS."""
        succeeded_at = monotonic()
        try:
            while self._followers or monotonic() - self._left_at < IDLE_SECONDS:
                try:
                    await self._refresh()
                    self._failure = None
                    succeeded_at = monotonic()
                except Exception as error:  # noqa: BLE001 - raised to waiting followers, and reported if it lasts
                    self._failure = error
                    if monotonic() - succeeded_at > DELAYED_SECONDS:
                        self._telemetry.report(EventsDelayed(_cause(error)))
                        succeeded_at = monotonic()
                await asyncio.sleep(POLL_SECONDS if self._failure is None else RETRY_SECONDS)
        finally:
            self._head = None
            self._pages.clear()

    async def _refresh(self) -> None:
        horizon = await self._store.publish_events(PUBLISH_PAUSE_MICROSECONDS)
        if self._head is None:
            self._head = _Head(end_of(horizon))
            self._notify()
            return
        head, is_last = self._head, False
        while not is_last:
            page = await self._store.read_events(EventFilter(), head.end, None, READ_MAX)
            is_last = page.is_last or page.position == head.end
            if page.position != head.end:
                head.extend([self._encode(event) for event in page.events], page.position)
        self._notify()

    def _notify(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _wait(self, seconds: float) -> None:
        """Waits for at most `seconds`, until the head has moved or the feed is stopped."""
        if not self.is_stopped:
            self._ensure_reading()
            await is_set_within(self._moved, seconds)


_Search = Callable[[EventFilter, EventPosition, int], Awaitable[Piece]]
_PageKey = tuple[EventFilter, EventPosition, int]


class _Pages:
    """The last pages that followers behind the head have read, and those that are being read."""

    def __init__(self, read: _Search) -> None:
        self._read = read
        self._pages: dict[_PageKey, asyncio.Task[Piece]] = {}
        self._kept: dict[_PageKey, None] = {}
        """The pages that have been read, in the order of their last use."""
        self._reads = asyncio.Semaphore(PAGE_READS_MAX)

    async def get(self, criteria: EventFilter, after: EventPosition, limit: int) -> Piece:
        """Returns a page, which is read once for all followers that ask for it. Raises the error of the read."""
        key = (criteria, after, limit)
        task = self._pages.get(key) or self._start(key)
        if key in self._kept:
            self._kept[key] = self._kept.pop(key)
        # A follower that leaves while it waits must not cancel the read of the others.
        return await asyncio.shield(task)

    def clear(self) -> None:
        """Drops the pages that have been read."""
        for key in self._kept:
            del self._pages[key]
        self._kept.clear()

    async def stop(self) -> None:
        running = [task for task in self._pages.values() if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _start(self, key: "_PageKey") -> asyncio.Task[Piece]:
        # An empty context: the page is read for several followers, so it must not belong to the trace of one of them.
        task = self._pages[key] = asyncio.create_task(self._read_one(*key), context=Context())
        task.add_done_callback(partial(self._ended, key))
        return task

    async def _read_one(self, criteria: EventFilter, after: EventPosition, limit: int) -> Piece:
        async with self._reads:
            return await self._read(criteria, after, limit)

    def _ended(self, key: "_PageKey", task: asyncio.Task[Piece]) -> None:
        if task.cancelled() or task.exception() is not None or task.result().position == key[1]:
            # Do not keep a page that failed, or that ends where it began: the next follower that asks reads it again.
            del self._pages[key]
            return
        self._kept[key] = None
        if len(self._kept) > PAGES_MAX:
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._pages[oldest]


class _Following:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __enter__(self) -> None:
        self._feed.enter()

    def __exit__(self, *_error: object) -> None:
        self._feed.leave()


class _Head:
    """The newest events: all events after `start`, up to and including `end`."""

    def __init__(self, start: EventPosition) -> None:
        self.start = start
        self.end = start
        self._events: list[EncodedEvent] = []
        self._keys: list[tuple[object, int]] = []
        self._shared: dict[tuple[EventPosition, EventFilter, int], Piece] = {}
        """The pieces that followers have got since the head was extended."""

    def extend(self, events: Sequence[EncodedEvent], end: EventPosition) -> None:
        self._shared.clear()
        self._events += events
        self._keys += [each.position.instant_and_rank for each in events]
        self.end = end
        if len(self._events) > HEAD_MAX:
            surplus = len(self._events) - HEAD_MAX
            self.start = self._events[surplus - 1].position
            del self._events[:surplus]
            del self._keys[:surplus]

    def is_at_end(self, position: EventPosition) -> bool:
        """Whether the head has no event after the position. The position may come from an instance that is ahead."""
        return position.instant_and_rank > self.end.instant_and_rank or position == self.end

    def next(self, criteria: EventFilter, after: EventPosition, limit: int) -> Piece | None:
        """Returns the next events, or None if the events after this position are not in the head."""
        key = (after, criteria, limit)
        found = self._shared.get(key)
        if found is None:
            index = self._index_after(after)
            if index is None:
                return None
            found = self._shared[key] = self._piece(criteria, index, limit)
        return found

    def _piece(self, criteria: EventFilter, index: int, limit: int) -> Piece:
        admitted: list[EncodedEvent] = []
        for each in self._events[index:]:
            if criteria.admits(each.event):
                admitted.append(each)
                if len(admitted) == limit:
                    return Piece(admitted, each.position, _frames(admitted))
        return Piece(admitted, self.end, _frames(admitted))

    def _index_after(self, after: EventPosition) -> int | None:
        """Returns the index of the first event after the position; None if the position is not in the head.

        Events of the same instant and rank are in the order in which the database sorts ids. Python may sort ids
        differently, so these events are searched one by one for the position.
        """
        if after == self.end:
            return len(self._events)
        if after == self.start:
            return 0
        key = after.instant_and_rank
        if not self.start.instant_and_rank <= key <= self.end.instant_and_rank:
            return None
        if after.rank == END_RANK:
            return bisect_right(self._keys, key)
        for index in range(bisect_left(self._keys, key), bisect_right(self._keys, key)):
            if self._events[index].position == after:
                return index + 1
        return None


def _cause(error: Exception) -> str:
    return error.detail if isinstance(error, DatabaseUnavailable) else f"{type(error).__name__}: {error}"


def _frames(events: Sequence[EncodedEvent]) -> bytes:
    return b"".join(each.frame for each in events)
