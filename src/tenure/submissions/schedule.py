"""The executor's schedule: pending submissions of each gateway, in the order in which they are due.

A million entries fit into 150 MB: an entry is one integer in a heap, with the due time in the bits above the id.
Entries are never searched or changed. If the due time of a submission changes, the submission gets a second entry, and
the old one stays. This is harmless: the executor begins each attempt in the database before it sends the request, and
the database refuses an attempt of a submission that is not due, unless it is an early attempt.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import chain
from typing import NamedTuple

from tenure.domain.submissions import PendingEntry
from tenure.ids import id_of_number, number_of_id

ID_BITS = 128
ID_MASK = (1 << ID_BITS) - 1
SORT_MAX = 5_000
"""The maximum number of backlog entries that one step sorts. A step takes about two milliseconds, so it does not block
the event loop for long."""


class Entry(NamedTuple):
    number: int
    """The submission's id as an integer."""
    gateway: str
    due_microseconds: int
    """Microseconds since 1970, by the database's clock."""


class Schedule:
    def __init__(self) -> None:
        self._heaps: dict[str, list[int]] = {}
        self._known: set[int] = set()

    def __len__(self) -> int:
        """The number of submissions, however many entries each has."""
        return len(self._known)

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def load(self, rows: Iterable[PendingEntry]) -> None:
        """Adds many rows in any order, which is cheaper than `add` for each row. Afterwards, call `put_in_order` before
        you call `take` or `next_due`.
        """
        for number, gateway, due, _ in rows:
            self._known.add(number)
            self._heap(gateway).append((due or 0) << ID_BITS | number)

    def _heap(self, gateway: str) -> list[int]:
        heap = self._heaps.get(gateway)
        if heap is None:
            heap = self._heaps[gateway] = []
        return heap

    def put_in_order(self) -> None:
        for heap in self._heaps.values():
            heapify(heap)

    def add(self, entry: Entry) -> None:
        self._known.add(entry.number)
        heappush(self._heap(entry.gateway), entry.due_microseconds << ID_BITS | entry.number)

    def gateways(self) -> list[str]:
        return [gateway for gateway, heap in self._heaps.items() if heap]

    def next_due(self, gateway: str) -> int | None:
        heap = self._heaps.get(gateway)
        return heap[0] >> ID_BITS if heap else None

    def take(self, gateway: str, now_microseconds: int, limit: int) -> list[str]:
        """Returns the ids of at most `limit` due submissions, earliest due first, each once.

        Their entries are removed, but the submissions still count for `len` and `in` until `forget` is called.
        """
        heap = self._heaps.get(gateway, [])
        taken: dict[int, None] = {}
        while heap and len(taken) < limit and heap[0] >> ID_BITS <= now_microseconds:
            number = heappop(heap) & ID_MASK
            if number in self._known:
                taken[number] = None
        return [id_of_number(number) for number in taken]

    def backlog(self, gateway: str, last: Collection[int]) -> "Backlog":
        """Returns the submissions of the gateway that have an entry, due or not. Those in `last` come last."""
        return Backlog(self._heaps.get(gateway, []), self._known, last)

    def backlog_of(self, submission_id: str) -> "Backlog":
        """Returns a sorted backlog of one submission."""
        backlog = Backlog([number_of_id(submission_id)], self._known, ())
        backlog.sort_some()
        return backlog

    def forget(self, number: int) -> None:
        """Removes a submission that is delivered, failed or cancelled. `take` ignores its remaining entries."""
        self._known.discard(number)


class Backlog:
    """The submissions that wait for a gateway at one instant, in the order in which they were accepted. However, the
    submissions in `last` come after all others, and those that `append` adds come at the end.

    A million entries take a second to sort. So `sort_some` sorts them in steps, and `take` merges the sorted runs as
    far as it needs them. The entries stay in the schedule.
    """

    def __init__(self, entries: list[int], known: Collection[int], last: Collection[int]) -> None:
        self.is_sorted = False
        self.size = 0
        """The number of submissions, known once the backlog is sorted. A submission with two entries may be counted
        twice."""
        self._entries = entries.copy()
        self._known = known
        self._last = last
        self._runs: list[list[int]] = []
        self._runs_of_last: list[list[int]] = []
        self._merged: Iterator[int] = iter(())
        self._behind: deque[Backlog] = deque()
        self._taken = -1

    def sort_some(self) -> bool:
        """Sorts the next part. Returns whether all parts are sorted."""
        some = [entry for entry in self._entries[-SORT_MAX:] if entry & ID_MASK in self._known]
        del self._entries[-SORT_MAX:]
        self.size += len(some)
        some.sort(key=_number_of)
        if self._last:
            self._runs_of_last.append([entry for entry in some if entry & ID_MASK in self._last])
            some = [entry for entry in some if entry & ID_MASK not in self._last]
        self._runs.append(some)
        if not self._entries:
            merged = (merge(*runs, key=_number_of) for runs in (self._runs, self._runs_of_last))
            self._merged = chain.from_iterable(merged)
            self.is_sorted = True
        return self.is_sorted

    def append(self, other: "Backlog") -> None:
        """Adds the submissions of a sorted backlog behind those of this one."""
        self._behind.append(other)

    def take(self, limit: int) -> list[str]:
        """Returns the ids of the next submissions that still wait, each once. Returns `limit` ids, or fewer only if no
        further submission is left.
        """
        taken: list[str] = []
        while len(taken) < limit and (entry := next(self._merged, None)) is not None:
            number = entry & ID_MASK
            if number != self._taken and number in self._known:
                taken.append(id_of_number(number))
            self._taken = number
        while len(taken) < limit and self._behind:
            more = self._behind[0].take(limit - len(taken))
            if not more:
                self._behind.popleft()
            taken += more
        return taken


_number_of = ID_MASK.__and__
"""Returns the submission number of an entry. The bound method of the mask is faster than a Python function."""


def entry_of(submission_id: str, gateway: str, due_microseconds: int) -> Entry:
    return Entry(number_of_id(submission_id), gateway, due_microseconds)
