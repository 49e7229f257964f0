"""Acquiring a lease for a while, and waiting for one that somebody holds."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tenure.clock import boottime, monotonic
from tenure.config import LeasesConfig
from tenure.ids import new_id
from tenure.leases.held import LATEST_RENEWAL, MICROSECONDS, HeldLease
from tenure.leases.keeping import KeptLease
from tenure.leases.waiting import is_set_within
from tenure.model.leases import Acquired, Board
from tenure.store.store import Store


class Acquirer:
    """Looks at the board for what became of the leases that it has given out."""

    def __init__(self, store: Store, holder: str, timing: LeasesConfig) -> None:
        self._store = store
        self._holder = holder
        self._timing = timing
        self._changed = asyncio.Event()
        self._kept: set[KeptLease] = set()
        self._unwanted: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> Sequence[str]:
        return [kept.name for kept in self._kept]

    def look(self, board: Board) -> None:
        leases = {lease.name: lease for lease in board.leases}
        for kept in self._kept:
            if kept.name in leases:
                kept.compare(leases[kept.name])

    def lose_sight(self, error: Exception) -> None:
        """A lease is kept for as long as it may be trusted."""

    async def acquire(self, name: str, wait_seconds: float, duration_seconds: float) -> KeptLease | None:
        until = monotonic() + wait_seconds
        while True:
            changed = self._changed
            held = await self._take(name, round(duration_seconds * MICROSECONDS))
            if held is not None:
                return self._keep(held, min(self._timing.renew_seconds, LATEST_RENEWAL * duration_seconds))
            left = until - monotonic()
            if left <= 0:
                return None
            await is_set_within(changed, min(left, self._timing.refresh_seconds))

    def wake(self) -> None:
        """Somebody has ended a lease: whoever waits for one may try."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def release_all(self) -> None:
        await asyncio.gather(*self._unwanted, *(kept.release() for kept in self._kept), return_exceptions=True)

    def _keep(self, held: HeldLease, renew_seconds: float) -> KeptLease:
        kept = KeptLease(held, renew_seconds, self._kept.discard)
        self._kept.add(kept)
        return kept

    async def _take(self, name: str, duration_microseconds: int) -> HeldLease | None:
        asked_at = boottime()
        taking = asyncio.ensure_future(self._store.acquire_lease(name, self._holder, new_id(), duration_microseconds))
        try:
            acquired = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._unwanted.add(unwanted := asyncio.create_task(self._give_back(taking)))
            unwanted.add_done_callback(self._unwanted.discard)
            raise
        return HeldLease(self._store, acquired.lease.fence, duration_microseconds, asked_at) if acquired.taken else None

    async def _give_back(self, taking: asyncio.Future[Acquired]) -> None:
        """What was acquired for somebody who no longer waits for it."""
        with suppress(Exception):
            acquired = await taking
            if acquired.taken:
                await self._store.release_lease(acquired.lease.fence)
