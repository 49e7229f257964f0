"""Usage: cuts, windows, chunks and sums."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tenure.domain.leases import Fence
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
    PrunedUsage,
    UndividedWindow,
    UsageSumQuery,
    UsageSums,
    Window,
)


class UsageStore(Protocol):
    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        """Cuts up to `limit` windows. No window ends after the last instant of the grid."""

    async def list_undivided_windows(self, limit: int) -> Sequence[UndividedWindow]:
        """Returns windows that are not yet completely divided into chunks, oldest first."""

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[ChunkBounds]:
        """Returns the bounds of the next chunks after session `after`; fewer than `limit` at the window's end."""

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, bounds: Sequence[ChunkBounds], *, complete: bool
    ) -> None:
        """Saves at most BATCH_MAX chunks, numbered from `first`, each with a submission if the window has a
        contract.
        """

    async def find_chunks(self, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
        """Returns the chunk of each submission that has one, with its window, in any order."""

    async def read_intervals(self, window: Window, chunk: Chunk) -> Sequence[BillableInterval]:
        """Returns the intervals of a chunk, ordered by session id as the engine sorts ids.

        The result is the same at any time after the cut.
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
        """Returns one group per key after `after`, ordered by key.

        If the query does not group, returns one group without a key.
        """

    async def read_lag(self) -> Lag: ...

    async def read_installation(self) -> Installation: ...

    async def list_deliveries(self, window_id: int) -> Sequence[ChunkDelivery]:
        """Returns the deliveries of the window's chunks, in the order of the chunks, all read at one instant."""

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        """Deletes up to `limit` rows of each kind past its retention time, except those that an undelivered window
        needs.
        """
