"""The executor's schedule: pending submissions of each gateway, in the order in which they are due.

A million entries fit into 150 MB: an entry is one integer in a heap, with the due time in the bits above the id.
Entries are never searched or changed. A submission whose due time changes gets a second entry. The executor begins each
attempt in the database before it sends anything, and the database refuses an attempt for the surplus entry.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tenure.domain.submissions import PendingEntry
from tenure.ids import id_of_number, number_of_id

ID_BITS = 128
ID_MASK = (1 << ID_BITS) - 1


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
        """Adds many rows in any order, which is cheaper than `add` for each row. Call `put_in_order` before `take`."""
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
        """Returns the ids of due submissions, oldest first, each once. They stay known until `forget` is called."""
        heap = self._heaps.get(gateway, [])
        taken: dict[int, None] = {}
        while heap and len(taken) < limit and heap[0] >> ID_BITS <= now_microseconds:
            number = heappop(heap) & ID_MASK
            if number in self._known:
                taken[number] = None
        return [id_of_number(number) for number in taken]

    def forget(self, number: int) -> None:
        """Removes a submission that is delivered, failed or cancelled. `take` ignores its remaining entries."""
        self._known.discard(number)


def entry_of(submission_id: str, gateway: str, due_microseconds: int) -> Entry:
    return Entry(number_of_id(submission_id), gateway, due_microseconds)
