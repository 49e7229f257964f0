"""Cuts usage windows, divides them into chunks, and hands these over to be sent.

Each step is one fenced write that can be repeated, and each finds what the one before has left: windows that are cut
but not divided, chunks that are saved but not all. `ARCHITECTURE.md` has what is left where it is cut short.
"""

from collections.abc import Callable

import structlog

from tenure.clock import instant_text
from tenure.jobs.jobs import ActiveRun
from tenure.meter import decimal_text
from tenure.model.usage import KINDS, Cut, CutRules, Unchunked
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
        cut = await self._cut(run)
        if cut.now < cut.last_cut_at:
            log.error("usage.cut_skipped", now=instant_text(cut.now), last_cut_at=instant_text(cut.last_cut_at))
        windows = 0
        while unchunked := await self._store.list_unchunked(UNCHUNKED_MAX):
            for window in unchunked:
                await self._divide(run, window)
            windows += len(unchunked)
            await self._announce()
        await self._tell(windows, cut)

    async def _cut(self, run: ActiveRun) -> Cut:
        while True:
            cut = await self._store.cut_usage(run.fence, self._rules, WINDOWS_MAX)
            if cut.windows < WINDOWS_MAX:
                return cut

    async def _divide(self, run: ActiveRun, unchunked: Unchunked) -> None:
        """In pages by key, each saved before the next is read: what is in memory does not grow with the sessions."""
        window, number, after = unchunked.window, unchunked.chunks + 1, unchunked.last_session_id
        if number == 1 and window.window_id > 1 and window.started_at == window.era.started_at:
            factors = {str(kind): decimal_text(factor) for kind, factor in zip(KINDS, window.era.factors, strict=True)}
            log.warning("usage.era_began", window=window.window_id, factors=factors)
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

    async def _tell(self, windows: int, cut: Cut) -> None:
        if self._rules.contract is None:
            log.info("usage.emitted", windows=windows, last_cut_at=instant_text(cut.last_cut_at), sent=False)
            return
        lag = await self._store.read_lag()
        seconds = max(0.0, round((lag.now - lag.delivered_until).total_seconds(), 3))
        log.info("usage.emitted", windows=windows, last_cut_at=instant_text(cut.last_cut_at), lag_seconds=seconds)
