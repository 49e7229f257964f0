"""Recounts windows from the sessions. The windows are recounted in runs: a run is a sequence of adjacent windows.

To find the sessions of an old window, the database reads every session that closed since the window began. So `recount`
reads the sessions of a whole run together: each session is read once instead of once per window, and `_split` divides
its billable interval into one interval per window.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from msgspec.structs import replace

from tenure.clock import to_microseconds
from tenure.domain.usage import CHUNK_MAX, BillableInterval, ChunkBounds, Window
from tenure.store.contract import Store
from tenure.usage.formats import FORMATS, render

PAGE = 5_000
"""Billable intervals per page: few enough that converting the rows takes far less than the transaction's idle
timeout."""
BUFFERED_MAX = 200_000
"""The limit on billable intervals in memory that are not yet rendered: at most one chunk per window of a run."""


class Recount(NamedTuple):
    """The chunks into which a window would be divided today."""

    bounds: Sequence[ChunkBounds]
    digests: Sequence[bytes | None]
    """The digest of each rendered chunk; None if the window has no contract, or if this release does not know the
    format that the contract names."""


def group_runs(windows: Sequence[Window]) -> Iterator[Sequence[Window]]:
    """Groups windows into runs: adjacent windows of one era, limited by BUFFERED_MAX.

    The windows must be divided, and in order from the newest to the oldest.
    """
    run: list[Window] = []
    buffered = 0
    for window in windows:
        buffered += min(window.sessions or 0, CHUNK_MAX)
        if run and (window.ended_at != run[-1].started_at or window.era != run[-1].era or buffered > BUFFERED_MAX):
            yield run
            run, buffered = [], min(window.sessions or 0, CHUNK_MAX)
        run.append(window)
    if run:
        yield run


async def recount(store: Store, run: Sequence[Window]) -> Sequence[Recount]:
    """Recounts each window of a run, in the order of the run."""
    counts = [_Count(window) for window in reversed(run)]
    ends = [count.ends for count in counts]
    whole = replace(run[0], started_at=run[-1].started_at)
    after: str | None = None
    while intervals := await store.list_intervals(whole, after, PAGE):
        for interval in intervals:
            _split(interval, counts, ends)
        after = intervals[-1].session_id
    return [count.finish() for count in reversed(counts)]


class _Count:
    """The chunks of one window that were recounted so far."""

    def __init__(self, window: Window) -> None:
        self.starts = to_microseconds(window.started_at)
        self.ends = to_microseconds(window.ended_at)
        self._window = window
        name = None if window.contract is None else window.contract.format
        self._is_hashed = name in FORMATS
        self._format = name if name in FORMATS else "tenure"
        self._intervals: list[BillableInterval] = []
        self._bounds: list[ChunkBounds] = []
        self._digests: list[bytes | None] = []

    def add(self, interval: BillableInterval) -> None:
        self._intervals.append(interval)
        if len(self._intervals) == CHUNK_MAX:
            self._end_chunk()

    def finish(self) -> Recount:
        if self._intervals:
            self._end_chunk()
        return Recount(self._bounds, self._digests)

    def _end_chunk(self) -> None:
        first, last = self._intervals[0].session_id, self._intervals[-1].session_id
        body, sessions, usage_millionths = render(self._format, self._window, self._intervals)
        self._bounds.append(ChunkBounds(first, last, sessions, usage_millionths))
        self._digests.append(sha256(body).digest() if self._is_hashed else None)
        self._intervals = []


def _split(interval: BillableInterval, counts: Sequence[_Count], ends: Sequence[int]) -> None:
    """Splits the billable interval of a session in the run into one interval for each window that it overlaps."""
    session_id, user, tenant, capacity, kind, from_at, to_at, before, _total = interval
    begins = counts[0].starts if from_at is None else to_microseconds(from_at)
    finishes = ends[-1] if to_at is None else to_microseconds(to_at)
    # At an instant `t` of the interval, the billable time since the start of the era is `offset + t`.
    offset = before - begins
    for count in counts[bisect_right(ends, begins) :]:
        if count.starts >= finishes:
            break
        count.add(
            BillableInterval(
                session_id,
                user,
                tenant,
                capacity,
                kind,
                from_at if begins > count.starts else None,
                to_at if finishes < count.ends else None,
                offset + max(begins, count.starts),
                offset + min(finishes, count.ends),
            )
        )
