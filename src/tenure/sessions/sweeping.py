"""The sweep: records sessions that have lapsed. The deadline has decided already; this only writes it down."""

import asyncio

import structlog

from tenure.errors import DatabaseUnavailable
from tenure.sessions.counters import Counters
from tenure.store.store import SWEEP_MAX, Store

log = structlog.get_logger()

PAUSE = 0.25
"""Of the time a batch took: what the sweep leaves to others before the next one."""


class Sweep:
    """Any number of instances may sweep at once: each takes what no other holds."""

    def __init__(self, store: Store, counters: Counters, interval_seconds: float) -> None:
        self._store = store
        self._counters = counters
        self._interval = interval_seconds

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.run_once()
            except DatabaseUnavailable as error:
                log.warning("sweep.postponed", error=error.detail)
            except Exception:
                log.exception("sweep.failed")

    async def run_once(self) -> int:
        """All that is due, in bounded batches; returns how many were over."""
        loop = asyncio.get_running_loop()
        over = 0
        while True:
            began = loop.time()
            swept = await self._store.expire_sessions(SWEEP_MAX)
            self._counters.count_closings(swept.closings)
            over += len(swept.closings)
            if swept.looked_at < SWEEP_MAX:
                return over
            await asyncio.sleep((loop.time() - began) * PAUSE)
