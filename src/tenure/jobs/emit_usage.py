"""Cuts usage windows, divides them into chunks, and hands these over to be sent.

Each step is one fenced write that can be repeated, and each finds what the one before has left: windows that are cut
but not divided, chunks that are saved but not all. `ARCHITECTURE.md` has what is left where it is cut short.
"""

from collections.abc import Callable

import structlog

from tenure.jobs.jobs import ActiveRun
from tenure.model.usage import CutRules, Unchunked
from tenure.store.store import BATCH_MAX, WINDOWS_MAX, Store

log = structlog.get_logger()

UNCHUNKED_MAX = 16


class EmitUsage:
    interval_seconds = 60.0

    def __init__(self, store: Store, rules: CutRules, hint: Callable[[], None]) -> None:
        self._store = store
        self._rules = rules
        self._hint = hint

    async def run(self, run: ActiveRun) -> None:
        await self._cut(run)
        while unchunked := await self._store.list_unchunked(UNCHUNKED_MAX):
            for window in unchunked:
                await self._divide(run, window)
            await self._announce()
        await self._tell_lag()

    async def _cut(self, run: ActiveRun) -> None:
        while True:
            cut = await self._store.cut_usage(run.fence, self._rules, WINDOWS_MAX)
            if cut.now < cut.last_cut_at:
                log.error("usage.cut_skipped", now=cut.now.isoformat(), last_cut_at=cut.last_cut_at.isoformat())
            elif cut.windows:
                log.info("usage.cut", windows=cut.windows, last_cut_at=cut.last_cut_at.isoformat())
            if cut.windows < WINDOWS_MAX:
                return

    async def _divide(self, run: ActiveRun, unchunked: Unchunked) -> None:
        """In pages by key, each saved before the next is read: what is in memory does not grow with the sessions."""
        window, number, after = unchunked.window, unchunked.chunks + 1, unchunked.last_session_id
        while True:
            pieces = await self._store.divide_window(window, after, BATCH_MAX)
            complete = len(pieces) < BATCH_MAX
            await self._store.save_chunks(run.fence, window.window_id, number, pieces, complete=complete)
            if complete:
                return
            number += len(pieces)
            after = pieces[-1].last_session_id
            await self._announce()

    async def _announce(self) -> None:
        self._hint()
        await self._store.announce_submissions()

    async def _tell_lag(self) -> None:
        lag = await self._store.read_lag()
        log.info("usage.emitted", lag_seconds=round((lag.now - lag.delivered_until).total_seconds(), 3))
