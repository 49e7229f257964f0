"""Deletes what was kept long enough: the history of leases after 30 days, runs of jobs after 7."""

from tenure.jobs.jobs import ActiveRun
from tenure.store.store import PRUNE_MAX, Store


class Prune:
    interval_seconds = 3600.0

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, run: ActiveRun) -> None:
        while True:
            pruned = await self._store.prune(run.fence, PRUNE_MAX)
            if max(pruned.lease_history, pruned.job_runs) < PRUNE_MAX:
                return
