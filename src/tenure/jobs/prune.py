"""Deletes records whose retention time has passed:

- after a day: instances, counted from when they were last seen
- after 7 days: job runs, and submissions that are delivered or cancelled
- after 8 days: the counts per minute that `GET /activity` adds up
- after 30 days: the history of leases
- after 90 days: alerts that are cleared
- after 400 days: entries of the audit log, and usage windows, except windows that must still be divided or delivered
- sessions that closed before the start of the oldest usage window that is kept
"""

from msgspec.structs import asdict

from tenure.jobs.job import ActiveRun
from tenure.store.contract import Store
from tenure.store.limits import PRUNE_MAX


class Prune:
    """The job `prune`. It deletes in batches until a batch has fewer than PRUNE_MAX rows of every table."""

    interval_seconds = 3600.0

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, run: ActiveRun) -> None:
        while True:
            pruned = await self._store.prune(run.fence, PRUNE_MAX)
            usage = await self._store.prune_usage(run.fence, PRUNE_MAX)
            deleted = {**asdict(pruned), **asdict(usage)}
            for kind, number in deleted.items():
                run.count(kind, number)
            if max(deleted.values()) < PRUNE_MAX:
                return
