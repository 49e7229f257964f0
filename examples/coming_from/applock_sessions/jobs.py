"""Jobs that ran under `sp_getapplock` and left markers, on Tenure's leases and jobs.

    python examples/coming_from/applock_sessions/jobs.py --database sqlite:///tenure.db --seconds 3

Start it in two terminals: one process at a time runs the job, and each due time is run once. `AppLocks` keeps the calls
and return values of `sp_getapplock` for code that is to move first and be tidied up later.
"""

import argparse
import asyncio
import sys

from tenure.ensemble import Ensemble
from tenure.jobs.job import ActiveRun
from tenure.leases.held import AcquiredLease

GRANTED, GRANTED_AFTER_WAITING, TIMED_OUT, NOT_HELD = 0, 1, -1, -999
"""The return values of `sp_getapplock` and `sp_releaseapplock`."""
MILLISECONDS = 1000


class AppLocks:
    """Exclusive locks with the calls of `sp_getapplock`. The locks of a process that dies are free after 60 seconds."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._held: dict[str, AcquiredLease] = {}

    async def get(self, resource: str, lock_timeout: int = 0) -> int:
        """`EXEC sp_getapplock @Resource, 'Exclusive', 'Session', @LockTimeout` (in milliseconds)."""
        lease = await self._ensemble.try_acquire(resource)
        answer = GRANTED
        if lease is None and lock_timeout > 0:
            lease = await self._ensemble.try_acquire(resource, wait_seconds=lock_timeout / MILLISECONDS)
            answer = GRANTED_AFTER_WAITING
        if lease is None:
            return TIMED_OUT
        self._held[resource] = lease
        return answer

    async def release(self, resource: str) -> int:
        """`EXEC sp_releaseapplock @Resource`."""
        lease = self._held.pop(resource, None)
        if lease is None:
            return NOT_HELD
        await lease.release()
        return GRANTED


async def invoices(run: ActiveRun) -> None:
    """The job. A row of `JobMarkers` was one due time that was done; `run.tick_at` is that time."""
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
