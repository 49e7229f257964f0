"""The audit: whether every figure that was sent is what the sessions lived, from the data alone.

What it goes through, and what each step finds:

- *windows* touch, from the first that is kept to the last cut, and none crosses a midnight: a gap, an overlap;
- *chunks* are what their window would be divided into today, and render to the bytes that were sent: one that is
  missing, a session that was left out, added or altered since;
- *deliveries*: a chunk is delivered if its submission is, and by one attempt: one that was forgotten, or counted twice;
- *sums*: over all windows it is the same as over all sessions, each rounded once an era;
- *sessions* of a user on a capacity do not overlap;
- the *ledger* of the receiver, if it is given, has each delivered chunk once, with these bytes, and no others.

It may run while the service does: it looks at what was cut before it began, of which nothing changes but from waiting
to delivered. It costs about as much as it did to render all this.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Protocol

import msgspec

from tenure.meter import decimal_text
from tenure.model.usage import Chunk, ChunkDelivery, Installation, UsageQuestion, Window
from tenure.store.store import Store
from tenure.usage.checks import (
    Entry,
    check_chunks,
    check_delivery,
    check_digests,
    check_entry,
    check_oldest,
    check_place,
    check_unsent,
    check_window_delivery,
    key_of,
)
from tenure.usage.recount import Recount, recount, runs_of

PAGE = 1440
"""Windows of a minute in a day."""
OVERLAPS_MAX = 100
ID_LENGTH = 36


class Ledger(Protocol):
    """A receiver's."""

    def find(self, key: str) -> Entry | None: ...

    def entries(self) -> Iterator[Entry]:
        """In the order of their arrival."""

    def total(self) -> tuple[int, Decimal]:
        """How many keys the receiver says it has, and what it says they add up to."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it must be."""

    check: str
    detail: str


class LedgerTotals(msgspec.Struct, frozen=True):
    keys: int
    usage: Decimal
    unmatched: int
    """Keys of no window that was looked at: of other gateways and installations, or older."""
    unmatched_usage: Decimal


class Report(msgspec.Struct, frozen=True):
    installation_id: str
    from_at: datetime
    to_at: datetime
    windows: int
    chunks: int
    lived_millionths: int
    """What all sessions used in these windows."""
    delivered_millionths: int
    waiting_millionths: int
    """Divided into chunks, to be sent, and not yet delivered."""
    unsent_millionths: int
    """Not to be sent: there was no gateway."""
    ledger: LedgerTotals | None
    findings: Sequence[Finding]


class Audit:
    def __init__(self, store: Store, ledger: Ledger | None = None, from_at: datetime | None = None) -> None:
        """Of the windows that end after `from_at`, or of all that are kept."""
        self._store = store
        self._ledger = ledger
        self._from_at = from_at
        self._findings: list[Finding] = []
        self._counts: Counter[str] = Counter()
        self._chunk_counts: dict[str, int] = {}
        """Of each window that was looked at, by what the keys of its chunks begin with."""
        self._newest: dict[str, int] = {}
        """Window that is known, by installation: a restored one has windows of its original."""

    async def run(self) -> Report:
        installation = await self._store.read_installation()
        oldest, divided_until = await self._check_windows(installation)
        lived = await self._lived(oldest, divided_until)
        later = await self._store.read_installation()
        self._note("windows", check_oldest(installation, oldest, later) if self._from_at is None else [])
        delivered, waiting, unsent = (self._counts[name] for name in ("delivered", "waiting", "unsent"))
        is_pruned = oldest is not None and oldest.started_at < later.kept_from
        if lived != delivered + waiting + unsent and not is_pruned:
            billed = decimal_text(delivered + waiting + unsent)
            self._note("sums", [f"{decimal_text(lived)} was lived, but the windows have {billed}"])
        overlaps = await self._store.find_overlaps(OVERLAPS_MAX)
        self._note("sessions", (f"{each.session_id} and {each.other_session_id} overlap" for each in overlaps))
        return Report(
            installation_id=installation.installation_id,
            from_at=divided_until if oldest is None else oldest.started_at,
            to_at=divided_until,
            windows=self._counts["windows"],
            chunks=self._counts["chunks"],
            lived_millionths=lived,
            delivered_millionths=delivered,
            waiting_millionths=waiting,
            unsent_millionths=unsent,
            ledger=None if self._ledger is None else await self._check_ledger(self._ledger),
            findings=self._findings,
        )

    def _note(self, check: str, details: Iterable[str]) -> None:
        self._findings += [Finding(check, detail) for detail in details]

    async def _check_windows(self, installation: Installation) -> tuple[Window | None, datetime]:
        """From the newest to the oldest; tells which that is, and up to when all windows are divided."""
        newer: Window | None = None
        divided_until = installation.last_cut_at
        before = installation.last_window_id + 1
        while windows := await self._store.list_windows(before, PAGE):
            wanted = [each for each in windows if self._from_at is None or each.ended_at > self._from_at]
            for window in wanted:
                self._note("windows", check_place(installation, window, newer))
                self._newest.setdefault(window.installation_id, window.window_id)
                if window.chunked_at is None:
                    divided_until = window.started_at
                newer = window
            await self._check_divided([window for window in wanted if window.chunked_at is not None])
            self._counts["windows"] += len(wanted)
            if len(wanted) < len(windows):
                break
            before = windows[-1].window_id
        return newer, divided_until

    async def _check_divided(self, windows: Sequence[Window]) -> None:
        for run in runs_of(windows):
            # Before the windows are read again: one that is there then was not pruned, nor was what lived in it.
            for window, counted in zip(run, await recount(self._store, run), strict=True):
                await self._check_window(window, counted)

    async def _check_window(self, window: Window, counted: Recount) -> None:
        # It may be on its way just now: its digest is stored, then the receiver counts it, then it is delivered. Read
        # the other way round, nothing is found without what must have come before it.
        deliveries = await self._store.list_deliveries(window.window_id)
        entries = self._entries(window, deliveries)
        found = await self._store.get_window(window.window_id)
        if found is None:
            return  # it was pruned a moment ago
        later, chunks = found
        self._counts["chunks"] += len(chunks)
        self._note("chunks", check_chunks(window, chunks, counted.pieces))
        self._note("chunks", check_digests(window, chunks, *counted))
        if window.contract is not None:
            self._note("deliveries", check_window_delivery(window, deliveries, later))
        self._check_deliveries(window, chunks, deliveries, entries)

    def _entries(self, window: Window, deliveries: Sequence[ChunkDelivery]) -> Mapping[int, Entry | None]:
        """By the numbers of the chunks; empty if there is no ledger to compare with."""
        if self._ledger is None:
            return {}
        return {each.chunk: self._ledger.find(key_of(window, each.chunk)) for each in deliveries}

    def _check_deliveries(
        self,
        window: Window,
        chunks: Sequence[Chunk],
        deliveries: Sequence[ChunkDelivery],
        entries: Mapping[int, Entry | None],
    ) -> None:
        is_sent = window.contract is not None
        self._chunk_counts[key_of(window, 0).rpartition("-")[0]] = len(chunks) if is_sent else 0
        if not is_sent:
            self._note("deliveries", check_unsent(window, chunks))
            self._counts["unsent"] += sum(chunk.usage_millionths for chunk in chunks)
            return
        by_number = {delivery.chunk: delivery for delivery in deliveries}
        for chunk in chunks:
            delivery = by_number[chunk.chunk]
            self._note("deliveries", check_delivery(window, chunk, delivery))
            delivered = delivery.delivered_at is not None
            self._counts["delivered" if delivered else "waiting"] += chunk.usage_millionths
            if chunk.chunk in entries:
                entry = entries[chunk.chunk]
                self._note("ledger", check_entry(window, chunk, delivered=delivered, entry=entry))

    async def _lived(self, oldest: Window | None, until: datetime) -> int:
        if oldest is None or until <= oldest.started_at:
            return 0
        question = UsageQuestion(from_at=oldest.started_at, to_at=until, factors=oldest.era.factors)
        (total,) = (await self._store.sum_usage(question, None, 1)).groups
        return total.usage_millionths

    async def _check_ledger(self, ledger: Ledger) -> LedgerTotals:
        """Whether it has more than was sent, and adds it up. What arrives meanwhile comes behind what was there."""
        (keys, told), total = ledger.total(), Decimal(0)
        unmatched, unmatched_usage = 0, Decimal(0)
        strangers: dict[str, list[int]] = {}
        for number, entry in enumerate(ledger.entries(), 1):
            usage = Decimal(entry.usage or 0)
            total += usage if number <= keys else 0
            window_key, _, chunk = entry.key.rpartition("-")
            if window_key in self._chunk_counts:
                if not _is_among(chunk, self._chunk_counts[window_key]):
                    self._note("ledger", [f"there is no chunk with the key {entry.key}"])
                continue
            unmatched, unmatched_usage = unmatched + 1, unmatched_usage + usage
            strangers.setdefault(window_key[:ID_LENGTH], []).append(_number(window_key))
        if total != told:
            self._note("ledger", [f"its total is {told}, but its entries add up to {total}"])
        # Read after the ledger: whatever was cut before is known by now.
        later = await self._store.read_installation()
        self._newest[later.installation_id] = later.last_window_id
        self._note("ledger", self._check_numbers(strangers))
        return LedgerTotals(keys, total, unmatched, unmatched_usage)

    def _check_numbers(self, strangers: Mapping[str, Sequence[int]]) -> Iterator[str]:
        """Windows of an installation that is known here, beyond its last."""
        for installation_id, numbers in strangers.items():
            unknown = [number for number in numbers if number > self._newest.get(installation_id, number)]
            if unknown:
                yield (
                    f"it has windows {min(unknown)} to {max(unknown)} of installation {installation_id}, "
                    "which are not here"
                )


def _number(window_key: str) -> int:
    """Of the window, if it is a key of ours."""
    number = window_key[ID_LENGTH + 1 :]
    return int(number) if number.isdecimal() else 0


def _is_among(chunk: str, count: int) -> bool:
    return chunk.isdecimal() and 1 <= int(chunk) <= count
