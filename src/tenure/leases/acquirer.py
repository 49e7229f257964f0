"""Acquires leases for an application, and waits for leases that another process holds."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tenure.clock import boottime, monotonic
from tenure.config import LeasesConfig
from tenure.domain.jobs import Board
from tenure.domain.leases import AcquireResult
from tenure.ids import new_id
from tenure.leases.held import LATEST_RENEWAL, MICROSECONDS, AcquiredLease, HeldLease
from tenure.leases.waiting import is_set_within
from tenure.store.contract import Store
from tenure.telemetry.events import Telemetry


class Acquirer:
    """A board subscriber. When the board shows that one of its leases has ended, it withdraws that lease, so that no
    further write gets a fence.
    """

    def __init__(self, store: Store, holder: str, timing: LeasesConfig, telemetry: Telemetry) -> None:
        self._store = store
        self._holder = holder
        self._timing = timing
        self._telemetry = telemetry
        self._changed = asyncio.Event()
        self._acquired: set[AcquiredLease] = set()
        self._unwanted: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> Sequence[str]:
        return [acquired.name for acquired in self._acquired]

    def on_board(self, board: Board) -> None:
        leases = {lease.name: lease for lease in board.leases}
        for acquired in self._acquired:
            if acquired.name in leases:
                acquired.compare(leases[acquired.name])

    def on_board_unavailable(self, error: Exception) -> None:
        """Does nothing: without the board, a lease can be used until it is no longer trusted."""

    async def acquire(self, name: str, wait_seconds: float, duration_seconds: float) -> AcquiredLease | None:
        """Acquires the lease. Returns None if it does not become free within `wait_seconds`."""
        until = monotonic() + wait_seconds
        while True:
            changed = self._changed
            held = await self._try_acquire(name, round(duration_seconds * MICROSECONDS))
            if held is not None:
                return self._keep(held, min(self._timing.renew_seconds, LATEST_RENEWAL * duration_seconds))
            left = until - monotonic()
            if left <= 0:
                return None
            await is_set_within(changed, min(left, self._timing.refresh_seconds))

    def wake(self) -> None:
        """Makes all callers that wait for a lease retry now, because a lease may have ended."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def release_all(self) -> None:
        releases = (acquired.release() for acquired in self._acquired)
        await asyncio.gather(*self._unwanted, *releases, return_exceptions=True)

    def _keep(self, held: HeldLease, renew_seconds: float) -> AcquiredLease:
        acquired = AcquiredLease(held, renew_seconds, self._telemetry, self._acquired.discard)
        self._acquired.add(acquired)
        return acquired

    async def _try_acquire(self, name: str, duration_microseconds: int) -> HeldLease | None:
        sent_at = boottime()
        trying = asyncio.ensure_future(self._store.acquire_lease(name, self._holder, new_id(), duration_microseconds))
        try:
            result = await asyncio.shield(trying)
        except asyncio.CancelledError:
            # The database may still grant the lease. Without a release, no process could acquire it until it expires.
            self._unwanted.add(unwanted := asyncio.create_task(self._release_when_acquired(trying)))
            unwanted.add_done_callback(self._unwanted.discard)
            raise
        return HeldLease(self._store, result.lease.fence, duration_microseconds, sent_at) if result.taken else None

    async def _release_when_acquired(self, trying: asyncio.Future[AcquireResult]) -> None:
        """Releases a lease whose caller was cancelled while the database was handling the request."""
        with suppress(Exception):
            result = await trying
            if result.taken:
                await self._store.release_lease(result.lease.fence)
