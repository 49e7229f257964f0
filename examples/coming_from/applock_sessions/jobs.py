"""A job that used `sp_getapplock` and marker rows before, and now runs with Tenure.

    python examples/coming_from/applock_sessions/jobs.py --database sqlite:///tenure.db --seconds 3

Start this script in two terminals: one process at a time runs the job, once for each due time. `AppLocks` keeps the
calls and return values of `sp_getapplock`, for code that you move first and tidy up later.
"""

import argparse
import asyncio
import math
import sys

from tenure.domain.leases import Fence
from tenure.ensemble import Ensemble
from tenure.errors import ConfigurationError, LeaseLost
from tenure.jobs.job import ActiveRun
from tenure.leases.held import AcquiredLease

GRANTED, GRANTED_AFTER_WAITING, TIMED_OUT, WRONG_CALL = 0, 1, -1, -999
"""The return values of `sp_getapplock` and `sp_releaseapplock`."""
MILLISECONDS = 1000


class AppLocks:
    """Exclusive locks with the calls of `sp_getapplock`. If a process dies, its locks expire within 60 s.

    An `AppLocks` object owns its locks, as a connection to SQL Server did. Locks are reentrant: the owner may acquire a
    lock that it already holds, and must release the lock as many times as it has acquired it. A lock can be lost while
    it is held, just as a lock of SQL Server was lost when its connection broke. Call `fence` before each write.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._held: dict[str, AcquiredLease] = {}
        self._times: dict[str, int] = {}

    async def get(self, resource: str, lock_timeout: int = -1) -> int:
        """`EXEC sp_getapplock @Resource, 'Exclusive', 'Session', @LockTimeout`. `lock_timeout` is in milliseconds; -1
        means no limit.

        Raises `LeaseLost` if this owner held the lock and has lost it meanwhile.
        """
        if resource in self._held:
            self.fence(resource)
            self._times[resource] += 1
            return GRANTED
        try:
            lease = await self._ensemble.try_acquire(resource)
        except ConfigurationError:  # a lease cannot have this name
            return WRONG_CALL
        answer = GRANTED
        if lease is None and lock_timeout != 0:
            seconds = math.inf if lock_timeout < 0 else lock_timeout / MILLISECONDS
            lease = await self._ensemble.try_acquire(resource, wait_seconds=seconds)
            answer = GRANTED_AFTER_WAITING
        if lease is None:
            return TIMED_OUT
        self._held[resource], self._times[resource] = lease, 1
        return answer

    def fence(self, resource: str) -> Fence:
        """Returns the fence for the next write; see docs/library.md. Raises `LeaseLost` if the lock is lost."""
        try:
            return self._held[resource].fence
        except LeaseLost:
            del self._held[resource]
            raise

    async def release(self, resource: str) -> int:
        """`EXEC sp_releaseapplock @Resource`. Returns -999 if this owner does not hold the lock, or if `get` or `fence`
        has raised `LeaseLost` for it.
        """
        if resource not in self._held:
            return WRONG_CALL
        self._times[resource] -= 1
        if self._times[resource] == 0:
            await self._held.pop(resource).release()
        return GRANTED


async def invoices(run: ActiveRun) -> None:
    """The job. `run.tick_at` is the due time, for which the old job wrote a row into `JobMarkers`."""
    print("invoices due at", run.tick_at)
    run.count("invoices", 1)


async def main(database: str, seconds: float) -> None:
    ensemble = Ensemble(database)
    ensemble.add_job("invoices", invoices, interval_seconds=1, lock_timeout_seconds=120)
    async with ensemble:
        locks = AppLocks(ensemble)
        print("sp_getapplock", await locks.get("ledger", 500), "sp_releaseapplock", await locks.release("ledger"))
        await asyncio.sleep(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs a job that one process at a time may run.")
    parser.add_argument("--database", default="sqlite:///tenure.db")
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.database, arguments.seconds))
    sys.exit(0)
