"""Leadership: one instance of the ensemble does the work of a lease, and stops when it can no longer trust the lease.

An instance is a **follower** until it acquires the lease, and then **leads** for one epoch. It steps down for one of
these reasons, and then follows again unless it is stopping:

- *released*: the instance stops. Work that needs time to end gets its grace period, during which the instance keeps
  the lease. Then the instance stops leading, and only then releases the lease. The other instances are notified, or
  read on the board within `refresh_seconds` that the lease is free, and one of them leads.
- *resigned*: an operator ended the lease. The board shows the end within `refresh_seconds`. Other instances wait for
  RESIGN_COOLDOWN_REFRESHES before they acquire a resigned lease, so that the former holder has time to read on the
  board that the lease has ended. The former holder waits even longer (COOLDOWN_REFRESHES), so that another instance, if
  there is one, gets the lease.
- *lost*: the board, a renewal or a write of the work shows that the lease has expired or has a newer epoch.
- *expired*: the lease was not renewed in time to be trusted (see `HeldLease`): the process or the host was paused, or
  the database was too slow. Trust ends while a tenth of the lease's duration is left. So, unless it is paused, the
  instance stops before another instance can lead.
- *database*: the database did not answer a renewal, a read of the board or the work, although the store retried. The
  instance stops at once, although it may still hold the lease, and releases the lease as soon as the database answers.
  If the instance kept the lease, no instance could do the work until the lease expired.
- *failed*: the work returned, or raised any other error. Work must not return while the instance leads.

When an instance steps down, it first withdraws the fence, so that no further write can start. Then it cancels the work.
If the work has ended and the lease was not lost, the instance then releases the lease. A write that was sent earlier
either commits before the next epoch begins or is refused. The fence check in the database guarantees this, not this
module.

Timing: the lease lasts `duration_seconds` and is renewed at least every `renew_seconds`. Every instance reads the board
every `refresh_seconds`, or every `acquire_seconds` if that is shorter. So after a crash, another instance leads within
`duration_seconds` plus the time between two reads. After a clean stop, another instance leads as soon as it is notified
or reads the board.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

from tenure.clock import EPOCH, boottime, monotonic
from tenure.config import LeasesConfig
from tenure.domain.jobs import Board
from tenure.domain.leases import Lease
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.ids import new_id
from tenure.leases.held import LATEST_RENEWAL, MICROSECONDS, HeldLease
from tenure.leases.waiting import cancel, is_set_within
from tenure.store.contract import Store
from tenure.telemetry.events import (
    LeaderAcquired,
    LeaderAcquireFailed,
    LeaderLost,
    LeaderRenewed,
    LeaderRenewFailed,
    LeaseContended,
    Telemetry,
)

COOLDOWN_REFRESHES = 5
"""How many refreshes an instance waits before it acquires the lease again, after its lease was resigned or its work
failed. The wait lets another instance lead."""

Work = Callable[[HeldLease], Awaitable[None]]


class StepDown(StrEnum):
    RELEASED = "released"
    RESIGNED = "resigned"
    LOST = "lost"
    EXPIRED = "expired"
    DATABASE = "database"
    FAILED = "failed"


async def hold(_lease: HeldLease) -> None:
    """The default work: does nothing while the instance holds the lease."""
    await asyncio.Event().wait()


class Leadership:
    """Acquires one lease for this instance whenever it is free, and runs the work while the instance leads."""

    def __init__(
        self,
        store: Store,
        name: str,
        holder: str,
        timing: LeasesConfig,
        telemetry: Telemetry,
        work: Work = hold,
        grace_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.names: Sequence[str] = (name,)
        self._store = store
        self._telemetry = telemetry
        self._holder = holder
        self._timing = timing
        self._duration = round(timing.duration_seconds * MICROSECONDS)
        self._renew_seconds = min(timing.renew_seconds, LATEST_RENEWAL * timing.duration_seconds)
        self._work = work
        self._grace_seconds = grace_seconds
        self._working: asyncio.Task[None] | None = None
        self._free = asyncio.Event()
        self._stopping = asyncio.Event()
        self._delay = ReacquireDelay(timing.refresh_seconds)
        self._failed_epoch = 0
        self._held: HeldLease | None = None
        self._expires_at = EPOCH
        self._stepped_down: asyncio.Future[StepDown] | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def is_leading(self) -> bool:
        return self._held is not None and self._held.trusted_seconds > 0

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stops. If the instance leads, waits up to the grace period for the work to end, and releases the lease."""
        self._stopping.set()
        self._free.set()
        if self._held is not None and self._working is not None and self._grace_seconds:
            self._held.ending.set()
            await asyncio.wait({self._working}, timeout=self._grace_seconds)
        # If the work has ended, its result determines the reason.
        if self._working is None or not self._working.done():
            self._step_down(StepDown.RELEASED)
        if self._running is not None:
            await self._running

    def on_board(self, board: Board) -> float | None:
        lease = next((lease for lease in board.leases if lease.name == self.name), None)
        if self._held is not None and lease is not None:
            self._compare(self._held, lease)
        seconds = 0.0 if lease is None else self._seconds_until_free(lease)
        if seconds is None or seconds > 0:
            return seconds
        self._free.set()
        return None

    def _seconds_until_free(self, lease: Lease) -> float | None:
        """Return how long until this instance may acquire the lease; None while the lease is held."""
        if lease.held:
            return None
        must_cool_down = lease.epoch == self._failed_epoch or (lease.resigned and lease.holder == self._holder)
        return self._delay.seconds_left(lease, COOLDOWN_REFRESHES if must_cool_down else None)

    def _compare(self, held: HeldLease, lease: Lease) -> None:
        if held.is_over(lease):
            resigned = lease.epoch == held.epoch and lease.resigned
            self._step_down(StepDown.RESIGNED if resigned else StepDown.LOST)

    def on_board_unavailable(self, error: Exception) -> None:
        if self._held is not None:
            self._report_failed_renewal(self._held, error)
            self._step_down(StepDown.DATABASE)

    def _step_down(self, why: StepDown) -> None:
        if self._held is not None and self._stepped_down is not None and not self._stepped_down.done():
            self._held.withdraw()
            self._stepped_down.set_result(why)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await self._free.wait()
            self._free.clear()
            held = None if self._stopping.is_set() else await self._acquire()
            if held is not None:
                await self._lead(held)
                self._free.clear()  # ignore a board that was read before the step-down

    async def _acquire(self) -> HeldLease | None:
        sent_at = boottime()
        try:
            acquired = await self._store.acquire_lease(self.name, self._holder, new_id(), self._duration)
        except Exception as error:  # noqa: BLE001 - retried with the next board
            self._telemetry.report(LeaderAcquireFailed(self.name, self._holder, _describe(error)))
            # Without this pause, a database that refuses writes but can be read would cause a busy loop: every board
            # shows that the lease is free.
            await is_set_within(self._stopping, self._timing.refresh_seconds)
            return None
        if not acquired.taken:
            self._telemetry.report(LeaseContended(self.name))
            return None
        held = HeldLease(self._store, acquired.lease.fence, self._duration, sent_at)
        self._expires_at = acquired.lease.expires_at
        self._telemetry.report(
            LeaderAcquired(self.name, self._holder, held.epoch, self._expires_at, acquired.reclaimed)
        )
        return held

    async def _lead(self, held: HeldLease) -> None:
        self._held, began_at = held, boottime()
        self._stepped_down = asyncio.get_running_loop().create_future()
        self._working = working = asyncio.create_task(self._run_work(held))
        if self._stopping.is_set():
            self._step_down(StepDown.RELEASED)
        why = await self._renew_until_step_down(held, self._stepped_down, working)
        held.withdraw()
        self._held = None
        failure = _failure(working)
        # Without the cool-down, work that fails at once would be restarted as fast as the database answers.
        cooldown_seconds = COOLDOWN_REFRESHES * self._timing.refresh_seconds
        failed_at_once = failure is not None and boottime() - began_at < cooldown_seconds
        if why is StepDown.FAILED or (why is StepDown.DATABASE and failed_at_once):
            self._failed_epoch = held.epoch
        if why is StepDown.DATABASE and failure is not None:
            self._report_failed_renewal(held, failure)
        error = None if failure is None else repr(failure)
        self._telemetry.report(LeaderLost(self.name, self._holder, held.epoch, self._expires_at, why.value, error))
        stopped = await cancel(working, held.name, self._telemetry)
        # Work that ignores its cancellation may still have effects outside the database. So do not release the lease:
        # another instance must not lead before the lease expires.
        if stopped and why is not StepDown.LOST:
            await self._release(held)

    async def _run_work(self, held: HeldLease) -> None:
        held.check()  # the database may have answered too late to trust the lease
        await self._work(held)

    async def _renew_until_step_down(
        self, held: HeldLease, stepped_down: asyncio.Future[StepDown], working: asyncio.Future[None]
    ) -> StepDown:
        """Renews the lease until the instance must step down, and returns the reason."""
        end_signals: set[asyncio.Future[Any]] = {stepped_down, working}
        while True:
            seconds = max(0.0, min(self._renew_seconds, held.trusted_seconds))
            await asyncio.wait(end_signals, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if why := _must_step_down(held, stepped_down, working):
                return why
            renewing = asyncio.create_task(held.renew())
            # While a renewal hangs, the instance must still step down when trust ends or the board shows a loss.
            signals = {*end_signals, renewing}
            await asyncio.wait(signals, timeout=held.trusted_seconds, return_when=asyncio.FIRST_COMPLETED)
            why = _must_step_down(held, stepped_down, working)
            if why is None and not renewing.done():
                # The wait timed out, so trust ends now. uvloop's timers fire up to a millisecond early, so
                # `_must_step_down` may not have seen the end of trust.
                why = StepDown.EXPIRED
            if why is not None:
                renewing.add_done_callback(_retrieve_exception)
                renewing.cancel()
                return why
            if why := self._after_renewal(held, renewing):
                return why

    def _after_renewal(self, held: HeldLease, renewing: asyncio.Task[Lease]) -> StepDown | None:
        error = renewing.exception()
        if error is None:
            self._expires_at = renewing.result().expires_at
            self._telemetry.report(LeaderRenewed(self.name, self._holder, held.epoch, self._expires_at))
            return None
        if isinstance(error, LeaseLost):
            return StepDown.LOST
        self._report_failed_renewal(held, error)
        return StepDown.DATABASE

    async def _release(self, held: HeldLease) -> None:
        """Releases the lease. Retries until the database answers. If the instance is stopping, does not retry: if the
        database does not answer, the lease expires.
        """
        while True:
            try:
                await held.release()
            except LeaseLost:
                return
            except Exception:  # noqa: BLE001 - retried; without a release the lease expires
                if await is_set_within(self._stopping, self._timing.refresh_seconds):
                    return
            else:
                return

    def _report_failed_renewal(self, held: HeldLease, error: BaseException) -> None:
        self._telemetry.report(
            LeaderRenewFailed(self.name, self._holder, held.epoch, self._expires_at, _describe(error))
        )


def _must_step_down(
    held: HeldLease, stepped_down: asyncio.Future[StepDown], working: asyncio.Future[None]
) -> StepDown | None:
    if stepped_down.done():
        return stepped_down.result()
    if held.trusted_seconds <= 0:
        return StepDown.EXPIRED
    if working.done():
        return _reason_of_end(held, _failure(working))
    return None


def _reason_of_end(held: HeldLease, failure: BaseException | None) -> StepDown:
    if failure is None and held.ending.is_set():
        return StepDown.RELEASED
    if isinstance(failure, DatabaseUnavailable):
        return StepDown.DATABASE
    return StepDown.LOST if isinstance(failure, LeaseLost) else StepDown.FAILED


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Marks the exception as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _describe(error: BaseException) -> str:
    """Format the error together with its cause, if any: the error of the database or of its driver."""
    return f"{error!r}" if error.__cause__ is None else f"{error}: {error.__cause__!r}"


def _failure(working: asyncio.Future[None]) -> BaseException | None:
    return working.exception() if working.done() and not working.cancelled() else None


RESIGN_COOLDOWN_REFRESHES = 1.5
"""The number of refreshes after which every holder that can read the board has read that its lease was resigned."""


class ReacquireDelay:
    """Measures cool-downs. A cool-down begins when this process first reads that the lease is free after an epoch."""

    def __init__(self, refresh_seconds: float) -> None:
        self._refresh_seconds = refresh_seconds
        self._seen_free: dict[str, tuple[int, float]] = {}

    def seconds_left(self, lease: Lease, refreshes: float | None = None) -> float:
        """Return the seconds until the lease may be acquired; zero or less if it may be acquired now.

        `refreshes` is the length of the cool-down. None stands for RESIGN_COOLDOWN_REFRESHES if the lease was resigned,
        otherwise for no cool-down.
        """
        epoch, since = self._seen_free.get(lease.name, (0, 0.0))
        if epoch != lease.epoch:
            since = monotonic()
            self._seen_free[lease.name] = (lease.epoch, since)
        wanted = (RESIGN_COOLDOWN_REFRESHES if lease.resigned else 0.0) if refreshes is None else refreshes
        return since + wanted * self._refresh_seconds - monotonic()
