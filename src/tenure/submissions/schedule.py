"""What waits to be sent, and when: of each gateway the next one first.

A million of them fit into 150 MB: an entry is one integer, the instant above the id, and a heap of integers is as good
as a heap of records. Entries are never looked for or changed. What is due at another time gets another entry, and the
database, which is asked before anything is sent, refuses the one that is too many.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tenure.ids import id_of_number, number_of_id
from tenure.model.submissions import Waiting

ID_BITS = 128
ID_MASK = (1 << ID_BITS) - 1


class Entry(NamedTuple):
    number: int
    """Of the submission's id."""
    gateway: str
    due_microseconds: int
    """Since 1970, by the database's clock."""


class Schedule:
    def __init__(self) -> None:
        self._heaps: dict[str, list[int]] = {}
        self._known: set[int] = set()

    def __len__(self) -> int:
        """Submissions, however often each is in it."""
        return len(self._known)

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def load(self, rows: Iterable[Waiting]) -> None:
        """Many at once, in any order: cheaper than one by one. Nothing can be taken before they are put in order."""
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
        """The ids of what is due, oldest first, each once; it stays known until it is forgotten."""
        heap = self._heaps.get(gateway, [])
        taken: dict[int, None] = {}
        while heap and len(taken) < limit and heap[0] >> ID_BITS <= now_microseconds:
            number = heappop(heap) & ID_MASK
            if number in self._known:
                taken[number] = None
        return [id_of_number(number) for number in taken]

    def forget(self, number: int) -> None:
        """It is delivered, given up or cancelled: what entries it has left mean nothing."""
        self._known.discard(number)


def entry_of(submission_id: str, gateway: str, due_microseconds: int) -> Entry:
    return Entry(number_of_id(submission_id), gateway, due_microseconds)
