"""A lease that this process holds, and for how long it may believe so."""

import asyncio
import math

from tenure.clock import boottime
from tenure.errors import LeaseLost
from tenure.model.leases import Fence, Lease
from tenure.store.store import Store

TRUSTED = 0.9
"""Of a lease's duration. The rest is for what clocks, pauses and networks take from it unseen."""
LATEST_RENEWAL = 0.6
"""Of its duration, whatever `renew_seconds` says: there must be time for a second try before trust ends."""
MICROSECONDS = 1_000_000


class HeldLease:
    """The database decides who holds a lease; its holder can only know how long it surely does.

    That time is counted from before the request was sent, on a clock that runs on during suspend, and ends a tenth
    of the duration before the database would end the lease.
    """

    def __init__(self, store: Store, fence: Fence, duration_microseconds: int, asked_at: float) -> None:
        self._store = store
        self._fence = fence
        self._duration = duration_microseconds
        self._trusted_until = self._trust_from(asked_at)
        self.given_up = asyncio.Event()
        self.ending = asyncio.Event()
        """Its holder stops: what it does under this lease should end by itself soon."""

    @property
    def fence(self) -> Fence:
        """What every write needs; raises `LeaseLost` once it may no longer be trusted."""
        self.check()
        return self._fence

    def check(self) -> None:
        """Raises `LeaseLost` once it may no longer be trusted; before anything that the outside world would notice."""
        if self.trusted_seconds <= 0:
            raise LeaseLost(f"the lease {self._fence.name} may no longer be trusted in epoch {self._fence.epoch}")

    @property
    def name(self) -> str:
        return self._fence.name

    @property
    def holder(self) -> str:
        return self._fence.holder

    @property
    def epoch(self) -> int:
        return self._fence.epoch

    @property
    def trusted_seconds(self) -> float:
        return self._trusted_until - boottime()

    async def renew(self) -> Lease:
        fence = self.fence
        asked_at = boottime()
        lease = await self._store.renew_lease(fence, self._duration)
        # Given up meanwhile: what was renewed serves nobody, and must not be trusted again.
        if not self.given_up.is_set():
            self._trusted_until = self._trust_from(asked_at)
        return lease

    def give_up(self) -> None:
        """From now on no write gets a fence. The database is not asked."""
        self._trusted_until = -math.inf
        self.given_up.set()

    def is_over(self, lease: Lease) -> bool:
        """By what the board shows of it. What was read before the lease was ours tells nothing."""
        return lease.epoch > self.epoch or (lease.epoch == self.epoch and (lease.resigned or not lease.held))

    def compare(self, lease: Lease) -> None:
        if self.is_over(lease):
            self.give_up()

    async def release(self) -> Lease:
        """Ends the lease in the database, where it is still ours; `LeaseLost` if it is not."""
        self.give_up()
        return await self._store.release_lease(self._fence)

    def _trust_from(self, asked_at: float) -> float:
        return asked_at + TRUSTED * self._duration / MICROSECONDS
