"""A lease that this process holds: how long it may be trusted, and how it is renewed."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from tenure.clock import boottime
from tenure.domain.leases import Fence, Lease
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.leases.waiting import is_set_within
from tenure.store.contract import Store
from tenure.telemetry.events import HeldLeaseLost, LeaseRenewFailed, Telemetry

TRUSTED = 0.9
"""Share of a lease's duration for which its holder trusts it. The rest covers clock drift, pauses and the network."""
LATEST_RENEWAL = 0.6
"""Share of a lease's duration after which the lease is renewed at the latest, even if `renew_seconds` is longer. This
leaves time for a second try while the lease is still trusted."""
MICROSECONDS = 1_000_000
FAILURES_MAX = 3


class HeldLease:
    """The database decides which process holds a lease. The holder only knows for how long it may trust its lease.

    A lease is trusted for 90 % of its duration (TRUSTED), counted from the instant before the request to acquire or
    renew it was sent. So the holder stops before the lease expires in the database. The clock that measures this time
    also runs while the host is suspended (on Linux).
    """

    def __init__(self, store: Store, fence: Fence, duration_microseconds: int, sent_at: float) -> None:
        self._store = store
        self._fence = fence
        self._duration = duration_microseconds
        self._trusted_until = self._trust_from(sent_at)
        self.withdrawn = asyncio.Event()
        self.ending = asyncio.Event()
        """Set when the instance stops: work under this lease should end soon."""

    @property
    def fence(self) -> Fence:
        """The fence for the next write. Raises `LeaseLost` once the lease is no longer trusted."""
        self.check()
        return self._fence

    def check(self) -> None:
        """Raises `LeaseLost` once the lease is no longer trusted. Call it before any effect outside the database."""
        if self.trusted_seconds <= 0:
            raise LeaseLost(f"lease {self._fence.name} can no longer be trusted in epoch {self._fence.epoch}")

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
        sent_at = boottime()
        lease = await self._store.renew_lease(fence, self._duration)
        # A lease that was withdrawn during the renewal must not be trusted again.
        if not self.withdrawn.is_set():
            self._trusted_until = self._trust_from(sent_at)
        return lease

    def withdraw(self) -> None:
        """Stops trusting the lease, so that no further write gets a fence. Does not call the database."""
        self._trusted_until = -math.inf
        self.withdrawn.set()

    def is_over(self, lease: Lease) -> bool:
        """Return whether `lease`, as read on the board, shows that this lease has ended. Ignores older epochs."""
        return lease.epoch > self.epoch or (lease.epoch == self.epoch and (lease.resigned or not lease.held))

    def compare(self, lease: Lease) -> None:
        """Withdraws this lease if `lease`, as read on the board, shows that this lease has ended."""
        if self.is_over(lease):
            self.withdraw()

    async def release(self) -> Lease:
        """Ends the lease in the database; raises `LeaseLost` if this process no longer holds it."""
        self.withdraw()
        return await self._store.release_lease(self._fence)

    def _trust_from(self, sent_at: float) -> float:
        return sent_at + TRUSTED * self._duration / MICROSECONDS


async def keep_renewing(lease: HeldLease, renew_seconds: float, telemetry: Telemetry) -> str:
    """Renews the lease until it is lost, and returns the reason for the loss.

    A failed renewal is retried. The lease is lost after three failures in a row, when it is no longer trusted, or when
    the database refuses the renewal because the lease has ended.
    """
    failures = 0
    while failures < FAILURES_MAX:
        await is_set_within(lease.withdrawn, min(renew_seconds, lease.trusted_seconds))
        try:
            async with asyncio.timeout(lease.trusted_seconds):
                await lease.renew()
        except LeaseLost as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - after any error the lease is still trusted for a while
            failures += 1
            telemetry.report(LeaseRenewFailed(lease.name, lease.epoch, failures, repr(error)))
        else:
            failures = 0
    return f"the renewal failed {FAILURES_MAX} times in a row"


class AcquiredLease:
    """A lease that is renewed in the background until it is released or lost.

    As an async context manager, it releases the lease at the end of the body. If the lease is lost earlier, the body is
    cancelled, and `LeaseLost` is raised at the end of the body.
    """

    def __init__(
        self,
        held: HeldLease,
        renew_seconds: float,
        telemetry: Telemetry,
        on_end: Callable[["AcquiredLease"], None] = lambda _: None,
    ) -> None:
        self._held = held
        self._telemetry = telemetry
        self._on_end = on_end
        self._renewing = asyncio.create_task(keep_renewing(held, renew_seconds, telemetry))
        self._renewing.add_done_callback(self._ended)
        self._body: asyncio.Task[object] | None = None
        self._cancelled = False

    @property
    def fence(self) -> Fence:
        """The fence for the next write. Raises `LeaseLost` once the lease is no longer trusted."""
        return self._held.fence

    @property
    def name(self) -> str:
        return self._held.name

    @property
    def epoch(self) -> int:
        return self._held.epoch

    def compare(self, lease: Lease) -> None:
        """Withdraws the lease if the board shows that it has ended."""
        self._held.compare(lease)

    async def release(self) -> None:
        self._renewing.cancel()
        with suppress(LeaseLost):
            await self._held.release()

    async def __aenter__(self) -> Self:
        self._body = asyncio.current_task()
        if self._renewing.done():
            raise LeaseLost(f"lease {self._held.name} was lost before it was used")
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        lost = self._renewing.done() and not self._renewing.cancelled()
        with suppress(DatabaseUnavailable):
            await self.release()
        # True if `_ended` cancelled the body, and no other code did.
        ours = self._cancelled and body is not None and body.uncancel() == 0
        if ours and isinstance(error, asyncio.CancelledError):
            raise LeaseLost(f"lease {self._held.name}: {self._renewing.result()}") from error
        if lost and error is None:
            raise LeaseLost(f"lease {self._held.name}: {self._renewing.result()}")

    def _ended(self, renewing: asyncio.Task[str]) -> None:
        self._on_end(self)
        if renewing.cancelled():
            return
        self._held.withdraw()
        self._telemetry.report(HeldLeaseLost(self._held.name, self._held.epoch, renewing.result()))
        if self._body is not None:
            self._cancelled = True
            self._body.cancel()
