"""A process that runs job `emit-usage` with windows that are shorter than the settings allow.

Run as `python -m tests.support.usage_cutting URL INTERVAL_MICROSECONDS`. It cuts and divides windows, and submits their
chunks, until its standard input is closed. Then it runs the job until one run has succeeded, and exits.
"""

import asyncio
import sys

from tenure.clock import boottime
from tenure.domain.leases import JOB_LOCK
from tenure.domain.submissions import Contract
from tenure.domain.usage import CutRules
from tenure.errors import DatabaseUnavailable
from tenure.ids import new_id
from tenure.jobs.job import ActiveRun
from tenure.leases.held import HeldLease
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tenure.telemetry.events import Telemetry
from tenure.usage.emit import EmitUsage
from tenure.usage.rendering import RenderedAhead

HOUR = 3600 * 1_000_000
FACTORS = (1_000_000_000_000, 31_415_926_535, 27_182_818)
"""The factors of kinds 1 and 2 are so high that the usage in a window of a few milliseconds is above zero."""
CONTRACT = Contract((0.2, 1.0), None, (409,), 5.0, "tenure")
PAUSE_SECONDS = 0.002


async def cut_until(ended: asyncio.Event, store: Store, interval_microseconds: int) -> None:
    requested_at = boottime()
    acquired = await store.acquire_lease(f"{JOB_LOCK}emit-usage", "cutting", new_id(), HOUR)
    assert acquired.taken, acquired
    lock = HeldLease(store, acquired.lease.fence, HOUR, requested_at)
    job = EmitUsage(
        store,
        CutRules(interval_microseconds, FACTORS, CONTRACT),
        lambda: None,
        RenderedAhead(),
        lambda: False,
        Telemetry(),
    )
    run = ActiveRun("emit-usage", lock, acquired.lease.acquired_at, None)
    while not ended.is_set():
        await _run_once(job, run)
        await asyncio.sleep(PAUSE_SECONDS)
    while not await _run_once(job, run):
        pass


async def _run_once(job: EmitUsage, run: ActiveRun) -> bool:
    """Returns False if the database was unavailable, for example because the cut waited too long for its lock.

    The caller retries, as the job runner does.
    """
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
