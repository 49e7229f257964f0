"""The sweep: records sessions that have lapsed. The deadline has decided already; this only writes it down."""

import asyncio

from tenure.clock import monotonic
from tenure.jobs.jobs import ActiveRun
from tenure.sessions.counters import Counters
from tenure.store.store import SWEEP_MAX, Store

PAUSE = 0.15
"""Of the time a batch took: what the sweep leaves to others before the next one."""


class ExpireSessions:
    interval_seconds = 10.0

    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self._counters = counters

    async def run(self, run: ActiveRun) -> None:
        """All that is due, in bounded batches."""
        while True:
            began = monotonic()
            swept = await self._store.expire_sessions(run.fence, SWEEP_MAX)
            self._counters.count_closings(swept.closings)
            if swept.looked_at < SWEEP_MAX:
                return
            await asyncio.sleep((monotonic() - began) * PAUSE)
