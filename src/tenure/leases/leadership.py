"""Leadership: one instance of all does the work of a lease, and stops when it cannot prove that it still may.

An instance is a **follower** until it acquires the lease, and then **leads** for one epoch of it. It steps down in one
of these ways, and follows again:

- *released*: the instance stops. Work that needs a moment to end cleanly is given it, and the lease is kept for so
  long. Then it says that it no longer leads, and only then ends the lease in the database; others hear of it, or see it
  within `refresh_seconds`, and one of them leads.
- *resigned*: somebody asked for it, and the database has ended the lease. The board says so within `refresh_seconds`.
  The others wait until that has surely passed before they acquire a lease that was resigned, and the instance stands
  back for longer still, so that another one gets it if there is one.
- *lost*: the board or a renewal says that the lease ran out or belongs to another epoch.
- *expired*: it was not renewed in time to be trusted any longer (see `HeldLease`): the process or the host was
  stopped, or the database too slow. The instance stops a tenth of the duration before another can lead.
- *database*: the database did not answer it or its work, and the store's own retries did not cure it. The instance
  stops at once, though its lease may last, and releases it as soon as the database answers. Otherwise nobody would work
  until it ran out: this instance cannot, and the others may not.
- *failed*: the work itself ended. Whoever leads must work.

When it steps down, first the fence is withdrawn, so that nothing more can be written; then the work is cancelled; then
the lease is released, if there is something to release. What the work has sent to the database before is either
committed before the next epoch or refused: that is the fence's doing, not this module's.

The times: the lease lasts `duration_seconds`; it is renewed every `renew_seconds`; a lease that ran out is seen by
everybody within `refresh_seconds`, or `acquire_seconds` if that is shorter. So after a crash another instance leads
within the duration plus that; after a clean stop at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

import structlog

from tenure.clock import boottime
from tenure.config import LeasesConfig
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.ids import new_id
from tenure.leases.cancelling import cancel
from tenure.leases.counters import LeaseCounters
from tenure.leases.held import LATEST_RENEWAL, MICROSECONDS, HeldLease
from tenure.leases.patience import Patience
from tenure.leases.waiting import is_set_within
from tenure.model.leases import Board, Lease
from tenure.store.store import Store

log = structlog.get_logger()

STAND_BACK = 5
"""Refreshes that an instance lets pass after it was asked to resign, or if its work cannot be done: time for another
one to lead, if there is one."""

Work = Callable[[HeldLease], Awaitable[None]]


class StepDown(StrEnum):
    RELEASED = "released"
    RESIGNED = "resigned"
    LOST = "lost"
    EXPIRED = "expired"
    DATABASE = "database"
    FAILED = "failed"


async def hold(_lease: HeldLease) -> None:
    """The work of a lease that is only held."""
    await asyncio.Event().wait()


class Leadership:
    """This instance's part in one lease: follows, and leads when it can."""

    def __init__(
        self,
        store: Store,
        name: str,
        holder: str,
        timing: LeasesConfig,
        counters: LeaseCounters,
        work: Work = hold,
        grace_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.names: Sequence[str] = (name,)
        self._store = store
        self._counters = counters
        self._holder = holder
        self._timing = timing
        self._duration = round(timing.duration_seconds * MICROSECONDS)
        self._renew_seconds = min(timing.renew_seconds, LATEST_RENEWAL * timing.duration_seconds)
        self._work = work
        self._grace_seconds = grace_seconds
        self._working: asyncio.Task[None] | None = None
        self._free = asyncio.Event()
        self._stopping = asyncio.Event()
        self._patience = Patience(timing.refresh_seconds)
        self._failed_in = 0
        self._held: HeldLease | None = None
        self._expires_at = ""
        self._stepped_down: asyncio.Future[StepDown] | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def is_leading(self) -> bool:
        return self._held is not None and self._held.trusted_seconds > 0

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Steps down, if it leads, once its work has ended or has had its time to, and releases the lease."""
        self._stopping.set()
        self._free.set()
        if self._held is not None and self._working is not None and self._grace_seconds:
            self._held.ending.set()
            await asyncio.wait({self._working}, timeout=self._grace_seconds)
        # Work that has ended says itself why.
        if self._working is None or not self._working.done():
            self._step_down(StepDown.RELEASED)
        if self._running is not None:
            await self._running

    def look(self, board: Board) -> float | None:
        lease = next((lease for lease in board.leases if lease.name == self.name), None)
        if self._held is not None and lease is not None:
            self._compare(self._held, lease)
        seconds = 0.0 if lease is None else self._seconds_until_free(lease)
        if seconds is None or seconds > 0:
            return seconds
        self._free.set()
        return None

    def _seconds_until_free(self, lease: Lease) -> float | None:
        """None while it is held."""
        if lease.held:
            return None
        mine = lease.epoch == self._failed_in or (lease.resigned and lease.holder == self._holder)
        return self._patience.seconds_left(lease, STAND_BACK if mine else None)

    def _compare(self, held: HeldLease, lease: Lease) -> None:
        if held.is_over(lease):
            resigned = lease.epoch == held.epoch and lease.resigned
            self._step_down(StepDown.RESIGNED if resigned else StepDown.LOST)

    def lose_sight(self, error: Exception) -> None:
        if self._held is not None:
            self._log("leader_renew_failed", self._held, error=_told(error))
            self._step_down(StepDown.DATABASE)

    def _step_down(self, why: StepDown) -> None:
        if self._held is not None and self._stepped_down is not None and not self._stepped_down.done():
            self._held.give_up()
            self._stepped_down.set_result(why)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await self._free.wait()
            self._free.clear()
            held = None if self._stopping.is_set() else await self._acquire()
            if held is not None:
                await self._lead(held)
                self._free.clear()  # seen before we stepped down: it takes a new look

    async def _acquire(self) -> HeldLease | None:
        asked_at = boottime()
        try:
            acquired = await self._store.acquire_lease(self.name, self._holder, new_id(), self._duration)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look tries again
            log.warning("leader_acquire_failed", lease=self.name, holder=self._holder, error=_told(error))
            return None
        if not acquired.taken:
            self._counters.contended += 1
            return None
        self._counters.reclaimed += acquired.reclaimed
        held = HeldLease(self._store, acquired.lease.fence, self._duration, asked_at)
        self._log("leader_acquired", held, acquired.lease, reclaimed=acquired.reclaimed)
        return held

    async def _lead(self, held: HeldLease) -> None:
        self._held, began_at = held, boottime()
        self._stepped_down = asyncio.get_running_loop().create_future()
        self._working = working = asyncio.create_task(self._do(held))
        if self._stopping.is_set():
            self._step_down(StepDown.RELEASED)
        why = await self._keep(held, self._stepped_down, working)
        held.give_up()
        self._held = None
        failure = _failure(working)
        # What fails as soon as it is begun would otherwise be begun again and again, as fast as the database answers.
        at_once = failure is not None and boottime() - began_at < STAND_BACK * self._timing.refresh_seconds
        if why is StepDown.FAILED or (why is StepDown.DATABASE and at_once):
            self._failed_in = held.epoch
        if why is StepDown.DATABASE and failure is not None:
            self._log("leader_renew_failed", held, error=_told(failure))
        self._log("leader_lost", held, reason=why.value, error=None if failure is None else repr(failure))
        stopped = await cancel(working, held.name)
        # Work that will not stop may still reach the outside world: nobody else is to begin before the lease is over.
        if stopped and why is not StepDown.LOST:
            await self._release(held)

    async def _do(self, held: HeldLease) -> None:
        held.check()  # the answer to the acquire may have been long on its way
        await self._work(held)

    async def _keep(
        self, held: HeldLease, stepped_down: asyncio.Future[StepDown], working: asyncio.Future[None]
    ) -> StepDown:
        """Renews until it must step down, and tells why."""
        either: set[asyncio.Future[Any]] = {stepped_down, working}
        while True:
            seconds = max(0.0, min(self._renew_seconds, held.trusted_seconds))
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if why := _must_step_down(held, stepped_down, working):
                return why
            renewing = asyncio.create_task(held.renew())
            # A renewal that hangs must not hide that trust has ended, or what the board has said.
            await asyncio.wait({*either, renewing}, timeout=held.trusted_seconds, return_when=asyncio.FIRST_COMPLETED)
            why = _must_step_down(held, stepped_down, working)
            if why is not None:
                renewing.add_done_callback(_look_at)
                renewing.cancel()
                return why
            if why := self._after_renewal(held, renewing):
                return why

    def _after_renewal(self, held: HeldLease, renewing: asyncio.Task[Lease]) -> StepDown | None:
        error = renewing.exception()
        if error is None:
            self._log("leader_renewed", held, renewing.result())
            return None
        if isinstance(error, LeaseLost):
            return StepDown.LOST
        self._log("leader_renew_failed", held, error=_told(error))
        return StepDown.DATABASE

    async def _release(self, held: HeldLease) -> None:
        """As soon as the database answers; an instance that stops asks once."""
        while True:
            try:
                await held.release()
            except LeaseLost:
                return
            except Exception:  # noqa: BLE001 - it was told when we stepped down
                if await is_set_within(self._stopping, self._timing.refresh_seconds):
                    return
            else:
                return

    def _log(self, event: str, held: HeldLease, lease: Lease | None = None, **facts: Any) -> None:
        if lease is not None:
            self._expires_at = lease.expires_at.isoformat()
        told = {name: value for name, value in facts.items() if value is not None}
        write = log.warning if "error" in told else log.info
        write(event, lease=self.name, holder=self._holder, epoch=held.epoch, expires_at=self._expires_at, **told)


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


def _look_at(task: asyncio.Task[Any]) -> None:
    """So that asyncio does not complain about an exception that nobody wants to know."""
    if not task.cancelled():
        task.exception()


def _told(error: BaseException) -> str:
    """What we say of it, and what the database or its driver said."""
    return f"{error!r}" if error.__cause__ is None else f"{error}: {error.__cause__!r}"


def _failure(working: asyncio.Future[None]) -> BaseException | None:
    return working.exception() if working.done() and not working.cancelled() else None
