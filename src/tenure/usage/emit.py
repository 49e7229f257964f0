"""Job `emit-usage`: cuts usage windows, divides them into chunks, and creates their submissions.

Each step is one fenced write that can be repeated, and each continues from the state that an interrupted run left: a
window that is cut but not divided, or of which only some chunks are saved. docs/explanation/usage.md lists these
states.
"""

from collections.abc import Callable

from tenure.domain.meter import decimal_text
from tenure.domain.usage import KINDS, Cut, CutRules, UndividedWindow, Window
from tenure.jobs.job import ActiveRun
from tenure.store.contract import Store
from tenure.store.limits import BATCH_MAX, WINDOWS_MAX
from tenure.telemetry.events import Telemetry, UsageCutSkipped, UsageEmitted, UsageEraBegan
from tenure.usage.rendering import report_if_delivered

UNDIVIDED_MAX = 16


class EmitUsage:
    interval_seconds = 60.0

    def __init__(self, store: Store, rules: CutRules, hint: Callable[[], None], telemetry: Telemetry) -> None:
        self._store = store
        self._rules = rules
        self._hint = hint
        self._telemetry = telemetry

    async def run(self, run: ActiveRun) -> None:
        cut = await self._cut(run)
        if cut.now < cut.last_cut_at:
            self._telemetry.report(UsageCutSkipped(cut.now, cut.last_cut_at))
        windows = chunks = 0
        while undivided := await self._store.list_undivided_windows(UNDIVIDED_MAX):
            for window in undivided:
                chunks += await self._divide(run, window)
                run.count("windows", 1)
            windows += len(undivided)
            await self._announce()
        await self._report(windows, chunks, cut)

    async def _cut(self, run: ActiveRun) -> Cut:
        while True:
            cut = await self._store.cut_usage(run.fence, self._rules, WINDOWS_MAX)
            if cut.windows < WINDOWS_MAX:
                return cut

    async def _divide(self, run: ActiveRun, undivided: UndividedWindow) -> int:
        """Divides the window page by page, ordered by session id. Returns the number of new chunks.

        Each page is saved before the next is read, so that memory does not grow with the window.
        """
        window, number, after = undivided.window, undivided.chunks + 1, undivided.last_session_id
        if number == 1 and window.window_id > 1 and window.started_at == window.era.started_at:
            factors = {str(kind): decimal_text(factor) for kind, factor in zip(KINDS, window.era.factors, strict=True)}
            self._telemetry.report(UsageEraBegan(window.window_id, factors))
        while True:
            bounds = await self._store.divide_window(window, after, BATCH_MAX)
            complete = len(bounds) < BATCH_MAX
            await self._store.save_chunks(run.fence, window.window_id, number, bounds, complete=complete)
            run.count("chunks", len(bounds))
            if complete:
                if not bounds and number > 1:
                    await self._report_if_delivered(window)
                return number + len(bounds) - undivided.chunks - 1
            number += len(bounds)
            after = bounds[-1].last_session_id
            await self._announce()

    async def _report_if_delivered(self, window: Window) -> None:
        """Reports the delivery of a window whose chunks were all delivered before its division was complete."""
        found = await self._store.get_window(window.window_id)
        if found is not None:
            report_if_delivered(found[0], self._telemetry)

    async def _announce(self) -> None:
        self._hint()
        await self._store.announce_submissions()

    async def _report(self, windows: int, chunks: int, cut: Cut) -> None:
        if self._rules.contract is None:
            self._telemetry.report(UsageEmitted(windows, chunks, cut.last_cut_at, sent=False))
            return
        lag = await self._store.read_lag()
        seconds = max(0.0, round((lag.now - lag.delivered_until).total_seconds(), 3))
        self._telemetry.report(UsageEmitted(windows, chunks, cut.last_cut_at, lag_seconds=seconds))
