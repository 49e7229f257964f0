"""The audit: checks from the stored data that every amount sent equals the usage of the sessions.

Each check verifies one rule:

- *windows*: from the oldest window that is kept to the last cut, each window begins where the previous one ends. No
  window crosses a midnight, and factors change only where an era begins. Finds gaps and overlaps.
- *chunks*: dividing a window again gives the same chunks, and they render to the bytes that were sent. Finds missing
  chunks, and sessions that were left out, added or altered.
- *deliveries*: a chunk is marked as delivered if and only if its submission was delivered, by exactly one attempt. The
  submission may have been pruned since. Finds chunks whose submission is missing or has failed, and chunks that were
  delivered twice.
- *sums*: the sum over all windows equals the sum over all sessions, where each session is rounded once per era.
- *sessions*: sessions of a user on a capacity do not overlap.
- *ledger*: the receiver's ledger, if given, has each delivered chunk with the bytes that were sent. The ledger may
  already have chunks whose delivery is not recorded yet. Of the audited windows, the ledger has no key of a chunk that
  does not exist or was not sent. The total of the ledger equals the sum of its entries.

The audit may run while the service runs. It reads only windows that were cut before it began. Their usage is final, but
during the audit a window can still be divided, submitted, delivered or pruned. The audit takes about as long as
rendering everything it checks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Protocol

import msgspec

from tenure.domain.meter import decimal_text
from tenure.domain.usage import Chunk, ChunkDelivery, Installation, UsageSumQuery, Window
from tenure.store.contract import Store
from tenure.usage.checks import (
    Entry,
    check_chunks,
    check_delivery,
    check_digests,
    check_entry,
    check_oldest,
    check_position,
    check_unsent,
    check_window_delivery,
    delivery_key,
)
from tenure.usage.recount import Recount, group_runs, recount

PAGE = 1440
"""Windows per page: a day of windows of one minute."""
OVERLAPS_MAX = 100
ID_LENGTH = 36


class Ledger(Protocol):
    """The ledger of a receiver: the deliveries that it counted."""

    def find(self, key: str) -> Entry | None: ...

    def entries(self) -> Iterator[Entry]:
        """Returns the entries in the order in which their deliveries arrived."""

    def total(self) -> tuple[int, Decimal]:
        """Returns the number of keys and the sum of their usage: the totals that the receiver itself maintains."""


class Finding(msgspec.Struct, frozen=True):
    """A fault, and the check that found it."""

    check: str
    detail: str


class LedgerTotals(msgspec.Struct, frozen=True):
    keys: int
    usage: Decimal
    unmatched: int
    """The number of keys that belong to no audited window: keys of other gateways, other installations or other
    windows."""
    unmatched_usage: Decimal


class Report(msgspec.Struct, frozen=True):
    installation_id: str
    from_at: datetime
    to_at: datetime
    windows: int
    chunks: int
    lived_millionths: int
    """The usage of all sessions in the audited windows."""
    delivered_millionths: int
    waiting_millionths: int
    """The usage in pending chunks."""
    unsent_millionths: int
    """The usage in windows that were cut without a gateway and have not been sent since then."""
    chunks_with_receipt: int
    chunks_without_receipt: int
    """The numbers of delivered chunks with and without a receipt."""
    ledger: LedgerTotals | None
    findings: Sequence[Finding]


class Audit:
    def __init__(self, store: Store, ledger: Ledger | None = None, from_at: datetime | None = None) -> None:
        """Audits the windows that end after `from_at`, or all windows that are kept if `from_at` is None."""
        self._store = store
        self._ledger = ledger
        self._from_at = from_at
        self._findings: list[Finding] = []
        self._counts: Counter[str] = Counter()
        self._chunk_counts: dict[str, int] = {}
        """The number of chunks that each audited window sends, by the prefix of their delivery keys."""
        self._newest: dict[str, int] = {}
        """The number of the newest known window per installation. A database that was restored from a backup also has
        windows of the installation that was backed up."""

    async def run(self) -> Report:
        installation = await self._store.read_installation()
        oldest, divided_until = await self._check_windows(installation)
        used = await self._sum_sessions(oldest, divided_until)
        later = await self._store.read_installation()
        self._add("windows", check_oldest(installation, oldest, later) if self._from_at is None else [])
        delivered, waiting, unsent = (self._counts[name] for name in ("delivered", "waiting", "unsent"))
        is_pruned = oldest is not None and oldest.started_at < later.kept_from
        if used != delivered + waiting + unsent and not is_pruned:
            billed = decimal_text(delivered + waiting + unsent)
            self._add("sums", [f"the sessions used {decimal_text(used)}, but the windows add up to {billed}"])
        overlaps = await self._store.find_overlaps(OVERLAPS_MAX)
        self._add("sessions", (f"sessions {each.session_id} and {each.other_session_id} overlap" for each in overlaps))
        return Report(
            installation_id=installation.installation_id,
            from_at=divided_until if oldest is None else oldest.started_at,
            to_at=divided_until,
            windows=self._counts["windows"],
            chunks=self._counts["chunks"],
            lived_millionths=used,
            delivered_millionths=delivered,
            waiting_millionths=waiting,
            unsent_millionths=unsent,
            chunks_with_receipt=self._counts["with receipt"],
            chunks_without_receipt=self._counts["without receipt"],
            ledger=None if self._ledger is None else await self._check_ledger(self._ledger),
            findings=self._findings,
        )

    def _add(self, check: str, details: Iterable[str]) -> None:
        self._findings += [Finding(check, detail) for detail in details]

    async def _check_windows(self, installation: Installation) -> tuple[Window | None, datetime]:
        """Checks the windows, newest first. Returns the oldest one, and the instant up to which all are divided."""
        newer: Window | None = None
        divided_until = installation.last_cut_at
        before = installation.last_window_id + 1
        while windows := await self._store.list_windows(before, PAGE):
            selected = [each for each in windows if self._from_at is None or each.ended_at > self._from_at]
            for window in selected:
                self._add("windows", check_position(installation, window, newer))
                self._newest.setdefault(window.installation_id, window.window_id)
                if window.chunked_at is None:
                    divided_until = window.started_at
                newer = window
            await self._check_divided([window for window in selected if window.chunked_at is not None])
            self._counts["windows"] += len(selected)
            if len(selected) < len(windows):
                break
            before = windows[-1].window_id
        return newer, divided_until

    async def _check_divided(self, windows: Sequence[Window]) -> None:
        for run in group_runs(windows):
            # The recount comes first. If `_check_window` then still finds a window, the recount saw all sessions of the
            # window.
            for window, counted in zip(run, await recount(self._store, run), strict=True):
                await self._check_window(window, counted)

    async def _check_window(self, window: Window, counted: Recount) -> None:
        # A chunk may be sent during the audit: its digest is stored, then the receiver counts it, then it is marked
        # delivered. The audit reads in the reverse order. So if it finds a step, it also finds all earlier steps.
        deliveries = await self._store.list_deliveries(window.window_id)
        entries = self._entries(window, deliveries)
        found = await self._store.get_window(window.window_id)
        if found is None:
            return  # pruned during the audit
        later, chunks = found
        self._counts["chunks"] += len(chunks)
        self._add("chunks", check_chunks(window, chunks, counted.bounds))
        self._add("chunks", check_digests(window, chunks, *counted))
        if window.contract is None and later.contract is not None:
            # The window got its contract during the audit, before or after its deliveries were read. The next audit
            # checks the deliveries.
            self._count_chunks(window, len(chunks))
            self._counts["waiting"] += sum(chunk.usage_millionths for chunk in chunks)
            return
        if window.contract is not None:
            self._add("deliveries", check_window_delivery(window, deliveries, later))
        self._check_deliveries(window, chunks, deliveries, entries)

    def _entries(self, window: Window, deliveries: Sequence[ChunkDelivery]) -> Mapping[int, Entry | None]:
        """Returns the ledger entries of the window by chunk number; empty if there is no ledger to compare with."""
        if self._ledger is None:
            return {}
        return {each.chunk: self._ledger.find(delivery_key(window, each.chunk)) for each in deliveries}

    def _check_deliveries(
        self,
        window: Window,
        chunks: Sequence[Chunk],
        deliveries: Sequence[ChunkDelivery],
        entries: Mapping[int, Entry | None],
    ) -> None:
        is_sent = window.contract is not None
        self._count_chunks(window, len(chunks) if is_sent else 0)
        if not is_sent:
            self._add("deliveries", check_unsent(window, chunks))
            self._counts["unsent"] += sum(chunk.usage_millionths for chunk in chunks)
            return
        by_number = {delivery.chunk: delivery for delivery in deliveries}
        for chunk in chunks:
            delivery = by_number[chunk.chunk]
            self._add("deliveries", check_delivery(window, chunk, delivery))
            delivered = delivery.delivered_at is not None
            self._counts["delivered" if delivered else "waiting"] += chunk.usage_millionths
            if delivered:
                self._counts["with receipt" if chunk.has_receipt else "without receipt"] += 1
            if chunk.chunk in entries:
                entry = entries[chunk.chunk]
                self._add("ledger", check_entry(window, chunk, delivered=delivered, entry=entry))

    def _count_chunks(self, window: Window, sent: int) -> None:
        self._chunk_counts[delivery_key(window, 0).rpartition("-")[0]] = sent

    async def _sum_sessions(self, oldest: Window | None, until: datetime) -> int:
        if oldest is None or until <= oldest.started_at:
            return 0
        sum_query = UsageSumQuery(from_at=oldest.started_at, to_at=until, factors=oldest.era.factors)
        (total,) = (await self._store.sum_usage(sum_query, None, 1)).groups
        return total.usage_millionths

    async def _check_ledger(self, ledger: Ledger) -> LedgerTotals:
        """Finds entries for chunks that were never sent, and compares the sum of the entries with the ledger's total.

        The total counts the first `keys` entries. The sum omits later entries, which arrive during the check.
        """
        (keys, stated_total), total = ledger.total(), Decimal(0)
        unmatched, unmatched_usage = 0, Decimal(0)
        unmatched_windows: dict[str, list[int]] = {}
        for number, entry in enumerate(ledger.entries(), 1):
            usage = Decimal(entry.usage or 0)
            total += usage if number <= keys else 0
            window_key, _, chunk = entry.key.rpartition("-")
            if window_key in self._chunk_counts:
                if not _is_chunk_number(chunk, self._chunk_counts[window_key]):
                    self._add("ledger", [f"no chunk has the delivery key {entry.key}"])
                continue
            unmatched, unmatched_usage = unmatched + 1, unmatched_usage + usage
            unmatched_windows.setdefault(window_key[:ID_LENGTH], []).append(_window_number(window_key))
        if total != stated_total:
            self._add("ledger", [f"the total is {stated_total}, but the entries add up to {total}"])
        # The last window is read after the ledger: by then, every window with an entry in the ledger has been cut.
        later = await self._store.read_installation()
        self._newest[later.installation_id] = later.last_window_id
        self._add("ledger", self._check_unmatched(unmatched_windows))
        return LedgerTotals(keys, total, unmatched, unmatched_usage)

    def _check_unmatched(self, unmatched_windows: Mapping[str, Sequence[int]]) -> Iterator[str]:
        """Finds windows in the ledger that are newer than the newest window of their installation in this database."""
        for installation_id, numbers in unmatched_windows.items():
            unknown = [number for number in numbers if number > self._newest.get(installation_id, number)]
            if unknown:
                numbers_text = f"windows {min(unknown)} to {max(unknown)}"
                yield f"{numbers_text} of installation {installation_id} are not in this database"


def _window_number(window_key: str) -> int:
    """Returns the number of the window in `window_key`; 0 if this is not the beginning of a delivery key of usage."""
    number = window_key[ID_LENGTH + 1 :]
    return int(number) if number.isdecimal() else 0


def _is_chunk_number(chunk: str, count: int) -> bool:
    return chunk.isdecimal() and 1 <= int(chunk) <= count
