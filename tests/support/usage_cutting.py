"""A process that does what job `emit-usage` does, but with windows shorter than any setting allows.

Run as `python -m tests.support.usage_cutting URL INTERVAL_MICROSECONDS`, it cuts, divides and hands over until its
input ends, and then once more.
"""

import asyncio
import sys

from tenure.clock import boottime
from tenure.errors import DatabaseUnavailable
from tenure.ids import new_id
from tenure.jobs.emit_usage import EmitUsage
from tenure.jobs.jobs import ActiveRun
from tenure.leases.held import HeldLease
from tenure.model.leases import JOB_LOCK
from tenure.model.submissions import Contract
from tenure.model.usage import CutRules
from tenure.store import Store
from tenure.store.engines import open_store

HOUR = 3600 * 1_000_000
FACTORS = (1_000_000_000_000, 31_415_926_535, 27_182_818)
"""So high that windows of some milliseconds come to something."""
CONTRACT = Contract((0.2, 1.0), None, (409,), 5.0, "tenure")
PAUSE_SECONDS = 0.002


async def cut_until(ended: asyncio.Event, store: Store, interval_microseconds: int) -> None:
    asked_at = boottime()
    acquired = await store.acquire_lease(f"{JOB_LOCK}emit-usage", "cutting", new_id(), HOUR)
    assert acquired.taken, acquired
    lock = HeldLease(store, acquired.lease.fence, HOUR, asked_at)
    job = EmitUsage(store, CutRules(interval_microseconds, FACTORS, CONTRACT), lambda: None)
    run = ActiveRun("emit-usage", lock, acquired.lease.acquired_at, None)
    while not ended.is_set():
        await _run_once(job, run)
        await asyncio.sleep(PAUSE_SECONDS)
    while not await _run_once(job, run):
        pass


async def _run_once(job: EmitUsage, run: ActiveRun) -> bool:
    """False if it could not get past those who write; as the runner does, it comes again."""
    try:
        await job.run(run)
    except DatabaseUnavailable:
        return False
    return True


async def main(url: str, interval_microseconds: int) -> None:
    ended = asyncio.Event()
    reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    reading.add_done_callback(lambda _: ended.set())
    store = open_store(url, 8)
    await cut_until(ended, store, interval_microseconds)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
