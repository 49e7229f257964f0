"""Keeps a schedule in step with what is pending in the database.

What must hold: everything that is pending is in the schedule, however late its transaction commits. What makes that
hard: instants are read before a commit, so a row can appear behind what was read already, or beside it with the same
instant. What is done about it:

- the schedule is **built** from all that is pending, page by page, when leadership begins;
- every second it is **refreshed** by what was changed since the refresh before, less `TRAIL`, which is longer than any
  write may take. What comes twice is recognised by when it was changed;
- a hint that something was accepted has it **look** at the last moment only: cheap, and allowed to miss something;
- once a minute all that was changed in the last ten is **compared** with the schedule. What only that finds is counted,
  and must be none.

If the database's clock is set back, so is the cursor, with the next refresh.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from tenure.clock import monotonic, to_microseconds
from tenure.ids import number_of_id
from tenure.model.submissions import Change, Waiting, WaitingPage
from tenure.store.store import Store
from tenure.submissions.schedule import Entry, Schedule

SECOND = 1_000_000
TRAIL = 5 * SECOND
HINT_TRAIL = SECOND // 10
"""Of transactions under way at the same time the later one may commit first; few take longer than this."""
COMPARED = 600 * SECOND
PAGE = 1000
BUILDING_PAGE = 5000


class ServerClock:
    """The database's clock, as far as it can be told without asking. Microseconds since 1970."""

    def __init__(self) -> None:
        self._ahead = 0

    def set(self, now: datetime) -> None:
        """Read by an answer that has just come: at worst it is late by the time the answer took."""
        self._ahead = to_microseconds(now) - _monotonic_microseconds()

    def now_microseconds(self) -> int:
        return _monotonic_microseconds() + self._ahead


def _monotonic_microseconds() -> int:
    return int(monotonic() * SECOND)


class Intake:
    def __init__(self, store: Store, clock: ServerClock) -> None:
        self.schedule = Schedule()
        self._store = store
        self._clock = clock
        self._refreshed_at = 0
        self._looked_at = 0
        self._seen: dict[int, int] = {}
        """When what was read lately had been changed: what comes again unchanged is nothing new."""
        self._reads: list[set[int]] = []
        """Of each read that is under way, what was done meanwhile: it may still be told as waiting."""

    async def build(self) -> None:
        began_at = None
        async for page in self._pages(None, BUILDING_PAGE):
            began_at = began_at or to_microseconds(page.now)
            since = began_at - TRAIL
            self._seen.update({row.number: row.changed_microseconds for row in page.waiting if row[3] >= since})
            self.schedule.load(page.waiting)
        self.schedule.put_in_order()
        self._refreshed_at = self._looked_at = began_at or 0

    async def refresh(self) -> None:
        self._refreshed_at = await self._read_since(self._refreshed_at - TRAIL)
        horizon = self._refreshed_at - TRAIL
        self._seen = {each: changed_at for each, changed_at in self._seen.items() if changed_at >= horizon}

    async def look(self) -> None:
        await self._read_since(self._looked_at - HINT_TRAIL)

    async def compare(self) -> int:
        """Right after a refresh; tells how many it found that no refresh had."""
        found = 0
        with self._reading() as done:
            async for page in self._pages(Change(self._refreshed_at - COMPARED, 0), PAGE):
                missing = [row for row in page.waiting if self._is_missing(row) and row.number not in done]
                found += len(missing)
                self._take(missing)
        return found

    def forget(self, submission_id: str) -> None:
        """What was seen of it, too: it may have been retried since, and been read before its end was known here."""
        number = number_of_id(submission_id)
        self.schedule.forget(number)
        self._seen.pop(number, None)
        for done in self._reads:
            done.add(number)

    @contextmanager
    def _reading(self) -> Iterator[set[int]]:
        done: set[int] = set()
        self._reads.append(done)
        try:
            yield done
        finally:
            self._reads = [each for each in self._reads if each is not done]

    def _is_missing(self, row: Waiting) -> bool:
        """A refresh had passed it."""
        return row.changed_microseconds < self._refreshed_at - TRAIL and row.number not in self.schedule

    async def _read_since(self, instant: int) -> int:
        began_at = None
        with self._reading() as done:
            async for page in self._pages(Change(instant, 0), PAGE):
                began_at = began_at or to_microseconds(page.now)
                seen = self._seen.get
                # One that was done meanwhile is left to the next read, which tells whether it waits again.
                self._take([row for row in page.waiting if seen(row[0]) != row[3] and row[0] not in done])
        if began_at is None:
            raise AssertionError("there is always a first page")
        self._looked_at = began_at
        return began_at

    def _take(self, rows: Sequence[Waiting]) -> None:
        for number, gateway, due, changed_at in rows:
            self._seen[number] = changed_at
            # Without a next attempt, one is under way. If we do not know of it, we were never told of its beginning.
            self.schedule.add(Entry(number, gateway, due or 0))

    async def _pages(self, after: Change | None, size: int) -> AsyncIterator[WaitingPage]:
        while True:
            page = await self._store.list_waiting(after, size)
            self._clock.set(page.now)
            yield page
            if len(page.waiting) < size:
                return
            last = page.waiting[-1]
            after = Change(last.changed_microseconds, last.number)
