"""Deletes what was kept long enough: the history of leases after 30 days; after 7 runs of jobs, and submissions that
are delivered or cancelled; after 400 windows of usage, and sessions that no window needs any more.
"""

from msgspec.structs import astuple

from tenure.jobs.jobs import ActiveRun
from tenure.store.store import PRUNE_MAX, Store


class Prune:
    interval_seconds = 3600.0

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, run: ActiveRun) -> None:
        while True:
            pruned = await self._store.prune(run.fence, PRUNE_MAX)
            usage = await self._store.prune_usage(run.fence, PRUNE_MAX)
            if max(*astuple(pruned), *astuple(usage)) < PRUNE_MAX:
                return
