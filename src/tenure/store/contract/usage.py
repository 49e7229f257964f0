"""Usage: cuts, windows, chunks and sums."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from tenure.domain.audit_log import AuditDraft
from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract
from tenure.domain.usage import (
    BillableInterval,
    Chunk,
    ChunkBounds,
    ChunkDelivery,
    ChunkDigest,
    Cut,
    CutRules,
    Installation,
    Lag,
    Mark,
    Marks,
    MarkSums,
    PrunedUsage,
    UndividedWindow,
    UnsentWindow,
    UsageSumQuery,
    UsageSums,
    Window,
    WindowToSend,
)
from tenure.domain.usage_records import DividedChunk, Records, Template


class UsageStore(Protocol):
    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        """Cuts windows up to the last tick of the grid of job `emit-usage`, but at most `limit` windows."""

    async def list_undivided_windows(self, limit: int) -> Sequence[UndividedWindow]:
        """Returns windows that are not yet completely divided into chunks, oldest first."""

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[ChunkBounds]:
        """Returns the bounds of the next `limit` chunks after session `after`; fewer at the end of the window."""

    async def divide_and_render(
        self, window: Window, after: str | None, limit: int, template: Template
    ) -> Sequence[DividedChunk]:
        """Does the same as `divide_window`, and also renders the records of each chunk. So `limit` must be small.

        Raises `DatabaseTooSlow` if the read takes too long. On PostgreSQL, this read has only the time limit of short
        reads.
        """

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, bounds: Sequence[ChunkBounds], *, complete: bool
    ) -> None:
        """Saves at most BATCH_MAX chunks, numbered from `first`, each with a submission if the window has a contract.
        If `complete`, also saves the sums of the window, which is then divided.
        """

    async def list_unsent_windows(
        self, from_at: datetime, to_at: datetime | None, limit: int
    ) -> Sequence[UnsentWindow]:
        """Returns divided windows without a contract that begin at `from_at` or later, and before `to_at` unless it is
        None. Oldest first.

        Leaves out windows past their retention time, because `prune_usage` may be deleting them.
        """

    async def send_windows(
        self, contract: Contract, windows: Sequence[WindowToSend], draft: AuditDraft
    ) -> Sequence[int]:
        """Gives each window the contract, and each of its chunks a submission. Returns the ids of the windows for which
        this call did so, in any order.

        Skips windows that have a contract. So a repeated call does nothing, and does not return the windows of the
        first call, even if the answer to that call was lost. Also skips windows that `list_unsent_windows` would not
        return now, and windows that do not have the number of chunks given in `windows`. Adds the number of windows to
        the audit entry `draft`.
        """

    async def find_chunks(self, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
        """Returns the chunk of each submission that has one, with its window, in any order."""

    async def find_delivered_windows(self, submission_ids: Sequence[str]) -> Sequence[Window]:
        """Returns those windows of these submissions that are completely delivered, in any order."""

    async def read_intervals(self, window: Window, chunk: Chunk) -> Sequence[BillableInterval]:
        """Returns the intervals of a chunk, ordered by session id as the engine sorts ids.

        The result is the same at any time after the cut.
        """

    async def render_chunks(self, window: Window, chunks: Sequence[Chunk], template: Template) -> Sequence[Records]:
        """Returns the records of each chunk, and their sums.

        The chunks are adjacent, in the order of their numbers. The result is the same at any time after the cut. If
        several chunks cannot be read in time, the caller can still read each of them alone: a call for a single chunk
        gets the time of a long read.
        """

    async def list_intervals(self, window: Window, after: str | None, limit: int) -> Sequence[BillableInterval]:
        """Returns the next `limit` intervals after the session `after`.

        `window` can be any span of one era, cut or not.
        """

    async def store_digests(self, fence: Fence, digests: Sequence[ChunkDigest]) -> Mapping[str, bool]:
        """Stores the digest of each chunk that has none. Returns whether each chunk now has the given digest."""

    async def list_windows(self, before: int | None, limit: int) -> Sequence[Window]:
        """Returns the windows before the window `before`, newest first."""

    async def get_window(self, window_id: int) -> tuple[Window, Sequence[Chunk]] | None: ...

    async def sum_usage(self, sum_query: UsageSumQuery, after: str | None, limit: int) -> UsageSums:
        """Returns up to `limit` groups, one per value of the column that the query groups by, ordered by this value,
        starting after the value `after`.

        If the query does not group, returns one group, whose `key` is None.
        """

    async def list_marks(self) -> Marks:
        """Returns all marks, with the last cut."""

    async def read_mark(self, at: datetime) -> Sequence[MarkSums]:
        """Returns the rows of a mark, in any order."""

    async def sum_mark(self, from_at: datetime, at: datetime, limit: int) -> Sequence[MarkSums] | None:
        """Returns, by tenant, capacity and kind, the usage and the number of started sessions from `from_at` to `at`,
        and the number of sessions that are live at `at`. In any order; None if there are more than `limit` rows.

        `add_sums` adds these rows to those of a mark at `from_at`, to get the rows of a mark at `at`. If `at` lies
        before the last cut, the result is the same at any later time.
        """

    async def save_mark(self, fence: Fence, mark: Mark, sums: Sequence[MarkSums]) -> None:
        """Saves at most MARK_BATCH_MAX rows of a mark that is incomplete or does not exist, and the state of the mark.

        Does not change rows that exist, or a mark that is complete or skipped.
        """

    async def delete_mark(self, fence: Fence, at: datetime, limit: int) -> int:
        """Deletes up to `limit` rows of a mark. A call that deletes fewer than `limit` rows also deletes the mark.
        Returns the number of deleted rows.
        """

    async def read_lag(self) -> Lag: ...

    async def read_installation(self) -> Installation: ...

    async def list_deliveries(self, window_id: int) -> Sequence[ChunkDelivery]:
        """Returns the deliveries of the window's chunks, in the order of the chunks, all read at one instant."""

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        """Deletes chunks, windows and sessions that are past their retention time, up to `limit` of each. Keeps those
        that a window still needs because it is undivided or waits for its delivery.
        """
