"""Intake: keeps the executor's schedule up to date with the pending submissions in the database.

Guarantee: every pending submission gets into the schedule, however late its transaction commits. A cursor over the time
of change is not enough: a transaction reads the clock before it commits, so a row can become visible with a timestamp
that the cursor has already reached or passed. Therefore:

- when leadership begins, the schedule is **built** from all pending submissions, page by page;
- every `refresh_seconds`, or less often if refreshes are slow, the schedule is **refreshed** with all submissions that
  changed since the last refresh, or in the five seconds (TRAIL) before it. TRAIL is longer than any write may take.
  Rows that were read before are recognised by the time of their change;
- after a hint, and between slow refreshes, only the most recent changes are read (`read_recent`). This read is cheap,
  and may miss some changes;
- once a minute all changes of the last ten minutes are **compared** with the schedule, and once an hour all pending
  submissions. Submissions that only the comparison finds are reported, because a refresh that misses a submission is a
  bug.

If the database's clock is stepped back, the cursor follows with the next refresh. If the clock is corrected soon after,
submissions that were accepted while it was wrong may have too early a time of change for refreshes and comparisons to
read them. So a refresh that finds that the clock was stepped by more than STEP, in either direction, reads all pending
submissions.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from tenure.clock import ServerClock, monotonic, to_microseconds
from tenure.domain.submissions import Change, PendingEntry, PendingPage
from tenure.ids import number_of_id
from tenure.store.contract import Store
from tenure.submissions.schedule import Entry, Schedule

SECOND = 1_000_000
STEP = 5 * SECOND
"""If, between two refreshes, the database's clock advances by this much more or less than this host's monotonic clock,
the database's clock was stepped. A smaller step is not noticed, but the next refresh still finds everything, because it
reads back by TRAIL. So STEP must be at most TRAIL."""
TRAIL = 5 * SECOND
HINT_TRAIL = SECOND // 10
"""How far back `read_recent` reads at least. `read_recent` can miss the few transactions that take longer to commit."""
COMPARED = 600 * SECOND
COMPLETE_EVERY = 60
"""One comparison in this many reads all pending submissions."""
PAGE = 1000
BUILDING_PAGE = 5000


class Intake:
    def __init__(self, store: Store, clock: ServerClock) -> None:
        self.schedule = Schedule()
        self._store = store
        self._clock = clock
        self._refreshed_at = 0
        self._called_at = 0.0
        """When the last refresh began, on the clock of this process."""
        self._comparisons = 0
        self._read_at = 0
        self._took = 0
        """How long the last read took, in microseconds."""
        self._seen: dict[int, int] = {}
        """The time of change of recently read rows, by submission number: recognises rows that have not changed."""
        self._reads: list[set[int]] = []
        """For each read in progress, the submissions that ended during the read. The rows that this read returns may
        still show these submissions as pending."""

    async def build(self) -> None:
        began_at, self._called_at = None, monotonic()
        async for page in self._pages(None, BUILDING_PAGE):
            began_at = began_at or to_microseconds(page.now)
            since = began_at - TRAIL
            self._seen.update({row.number: row.changed_microseconds for row in page.waiting if row[3] >= since})
            self.schedule.load(page.waiting)
        self.schedule.put_in_order()
        self._refreshed_at = self._read_at = began_at or 0

    async def refresh(self) -> None:
        refreshed_at, called_at = self._refreshed_at, self._called_at
        self._called_at = monotonic()
        self._refreshed_at = await self._read_since(refreshed_at - TRAIL)
        elapsed = int((self._called_at - called_at) * SECOND)
        if abs(self._refreshed_at - refreshed_at - elapsed) > STEP:
            await self._read_all()
        horizon = self._refreshed_at - TRAIL
        self._seen = {each: changed_at for each, changed_at in self._seen.items() if changed_at >= horizon}

    async def read_recent(self) -> None:
        # If reads are slow, commits probably are too, so a row becomes visible longer after its time of change.
        await self._read_since(self._read_at - min(max(HINT_TRAIL, 2 * self._took), TRAIL))

    async def compare(self) -> int:
        """Call it right after a refresh. Returns how many submissions it found that no refresh had found."""
        found = 0
        self._comparisons += 1
        is_complete = self._comparisons % COMPLETE_EVERY == 0
        after = None if is_complete else Change(self._refreshed_at - COMPARED, 0)
        with self._reading() as done:
            async for page in self._pages(after, BUILDING_PAGE if is_complete else PAGE):
                missing = [row for row in page.waiting if self._is_missing(row) and row.number not in done]
                found += len(missing)
                self._take(missing)
        return found

    def forget(self, submission_id: str) -> None:
        """Removes a submission that needs no more attempts. Also forgets its time of change.

        A caller may already have retried the submission, and a read may have returned that retry before this executor
        knew that the submission had ended. The next read must then take the retry again.
        """
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

    def _is_missing(self, row: PendingEntry) -> bool:
        """Whether the refreshes should have found this row and did not."""
        return row.changed_microseconds < self._refreshed_at - TRAIL and row.number not in self.schedule

    async def _read_since(self, instant: int) -> int:
        began_at, called_at = None, monotonic()
        with self._reading() as done:
            async for page in self._pages(Change(instant, 0), PAGE):
                began_at = began_at or to_microseconds(page.now)
                seen = self._seen.get
                # Skip a submission that ended during this read: the next read shows whether it is pending again.
                self._take([row for row in page.waiting if seen(row[0]) != row[3] and row[0] not in done])
        if began_at is None:
            raise AssertionError("there is always a first page")
        self._read_at, self._took = began_at, int((monotonic() - called_at) * SECOND)
        return began_at

    async def _read_all(self) -> None:
        with self._reading() as done:
            async for page in self._pages(None, BUILDING_PAGE):
                self._take([row for row in page.waiting if row.number not in self.schedule and row.number not in done])

    def _take(self, rows: Sequence[PendingEntry]) -> None:
        for number, gateway, due, changed_at in rows:
            self._seen[number] = changed_at
            # A row without a due time has an open attempt. If this executor does not know the attempt, the response to
            # `begin_attempts` was lost. So treat the submission as due.
            self.schedule.add(Entry(number, gateway, due or 0))

    async def _pages(self, after: Change | None, size: int) -> AsyncIterator[PendingPage]:
        while True:
            page = await self._store.list_pending(after, size)
            self._clock.set(page.now)
            yield page
            if len(page.waiting) < size:
                return
            last = page.waiting[-1]
            after = Change(last.changed_microseconds, last.number)
