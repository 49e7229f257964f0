"""The sweep, job `expire-sessions`: records the ends of lapsed sessions, which ended at their deadlines."""

import asyncio

from tenure.clock import monotonic
from tenure.jobs.job import ActiveRun
from tenure.sessions.ends import SessionEnds
from tenure.store.contract import Store
from tenure.store.limits import SWEEP_MAX

IDLE_RATIO = 0.15
"""After each full batch, the sweep pauses for this share of the time that the batch took, to leave room for
requests."""


class ExpireSessions:
    interval_seconds = 10.0

    def __init__(self, store: Store, ends: SessionEnds) -> None:
        self._store = store
        self._ends = ends

    async def run(self, run: ActiveRun) -> None:
        """Records the ends of all lapsed sessions, in bounded batches."""
        while True:
            began = monotonic()
            swept = await self._store.expire_sessions(run.fence, SWEEP_MAX)
            for closed in swept.closed_sessions:
                self._ends.record(closed)
            run.count("sessions", len(swept.closed_sessions))
            if swept.looked_at < SWEEP_MAX:
                return
            await asyncio.sleep((monotonic() - began) * IDLE_RATIO)
