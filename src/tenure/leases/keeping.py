"""Keeping a lease for as long as it takes: renewing it in time, and stopping what goes on under it when it is lost."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import structlog

from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.leases.held import HeldLease
from tenure.leases.waiting import is_set_within
from tenure.model.leases import Fence, Lease

log = structlog.get_logger()

FAILURES_MAX = 3


async def keep(lease: HeldLease, renew_seconds: float) -> str:
    """Renews the lease until that is no longer possible, and tells why.

    A renewal that fails is tried again: only the third failure in a row, or the end of trust, is the end.
    """
    failures = 0
    while failures < FAILURES_MAX:
        await is_set_within(lease.given_up, min(renew_seconds, lease.trusted_seconds))
        try:
            async with asyncio.timeout(lease.trusted_seconds):
                await lease.renew()
        except LeaseLost as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the lease may be trusted for a while
            failures += 1
            log.warning("lease.renew_failed", lease=lease.name, epoch=lease.epoch, failures=failures, error=repr(error))
        else:
            failures = 0
    return f"it could not be renewed {FAILURES_MAX} times in a row"


class KeptLease:
    """A lease that is renewed in the background until it is released, or lost.

    As a context manager it releases the lease at the end. If the lease is lost before, what is inside is cancelled, and
    `LeaseLost` comes out.
    """

    def __init__(
        self, held: HeldLease, renew_seconds: float, over: Callable[["KeptLease"], None] = lambda _: None
    ) -> None:
        self._held = held
        self._over = over
        self._keeping = asyncio.create_task(keep(held, renew_seconds))
        self._keeping.add_done_callback(self._lost)
        self._inside: asyncio.Task[object] | None = None
        self._cancelled = False

    @property
    def fence(self) -> Fence:
        """For the next write; raises `LeaseLost` if the lease can no longer be trusted."""
        return self._held.fence

    @property
    def name(self) -> str:
        return self._held.name

    @property
    def epoch(self) -> int:
        return self._held.epoch

    def compare(self, lease: Lease) -> None:
        """With what the board shows of it."""
        self._held.compare(lease)

    async def release(self) -> None:
        self._keeping.cancel()
        with suppress(LeaseLost):
            await self._held.release()

    async def __aenter__(self) -> Self:
        self._inside = asyncio.current_task()
        if self._keeping.done():
            raise LeaseLost(f"the lease {self._held.name} was lost before it was used")
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        inside, self._inside = self._inside, None
        lost = self._keeping.done() and not self._keeping.cancelled()
        with suppress(DatabaseUnavailable):
            await self.release()
        # The cancellation was ours unless somebody else has asked for one too.
        ours = self._cancelled and inside is not None and inside.uncancel() == 0
        if ours and isinstance(error, asyncio.CancelledError):
            raise LeaseLost(f"the lease {self._held.name}: {self._keeping.result()}") from error
        if lost and error is None:
            raise LeaseLost(f"the lease {self._held.name}: {self._keeping.result()}")

    def _lost(self, keeping: asyncio.Task[str]) -> None:
        self._over(self)
        if keeping.cancelled():
            return
        self._held.give_up()
        log.warning("lease.lost", lease=self._held.name, epoch=self._held.epoch, error=keeping.result())
        if self._inside is not None:
            self._cancelled = True
            self._inside.cancel()
