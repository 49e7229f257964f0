"""Job `emit-usage`: cuts usage windows, divides them into chunks, and creates their submissions.

Each step is one fenced write that can be repeated. A run continues from the state that an interrupted run left: a
window that is cut but not divided, or a window of which only some chunks are saved. docs/explanation/usage.md lists
these states.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tenure.clock import monotonic
from tenure.domain.meter import decimal_text
from tenure.domain.usage import KINDS, ChunkBounds, Cut, CutRules, UndividedWindow, Window
from tenure.errors import DatabaseTooSlow
from tenure.jobs.job import ActiveRun
from tenure.store.contract import Store
from tenure.store.limits import BATCH_MAX, WINDOWS_MAX
from tenure.telemetry.events import Telemetry, UsageCutSkipped, UsageEmitted, UsageEraBegan
from tenure.usage.formats import FORMATS
from tenure.usage.rendering import RUN_MAX, RenderedAhead, report_if_delivered

UNDIVIDED_MAX = 16
ROOM_SECONDS = 1.0
"""How long the division of windows waits at a time until the executor has sent chunks that are already rendered."""
ROOM_SECONDS_PER_RUN = 5.0
"""How long the division waits in total during one run of the job: a slow receiver must not delay the next cut."""


class _Page(NamedTuple):
    """The next chunks of a window."""

    bounds: Sequence[ChunkBounds]
    is_last: bool
    is_rendered: bool


class EmitUsage:
    interval_seconds = 60.0

    def __init__(
        self,
        store: Store,
        rules: CutRules,
        hint: Callable[[], None],
        ahead: RenderedAhead,
        leads: Callable[[], bool],
        telemetry: Telemetry,
    ) -> None:
        """`leads` returns whether this instance runs the executor, which sends chunks. `hint` wakes the executor."""
        self._store = store
        self._rules = rules
        self._hint = hint
        self._ahead = ahead
        self._leads = leads
        self._telemetry = telemetry
        self._renders = False
        """Whether this run renders chunks while it divides windows."""
        self._may_wait = 0.0
        """How long this run may still wait for room in `ahead`, in seconds."""

    async def run(self, run: ActiveRun) -> None:
        cut = await self._cut(run)
        if cut.now < cut.last_cut_at:
            self._telemetry.report(UsageCutSkipped(cut.now, cut.last_cut_at))
        windows = chunks = 0
        self._renders, self._may_wait = self._leads(), ROOM_SECONDS_PER_RUN
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

        At most two pages are in memory, so memory does not grow with the window. If pages are rendered, the next one is
        read while this one is saved. Otherwise each page is saved before the next is read.
        """
        window, number, after = undivided.window, undivided.chunks + 1, undivided.last_session_id
        if number == 1 and window.window_id > 1 and window.started_at == window.era.started_at:
            factors = {str(kind): decimal_text(factor) for kind, factor in zip(KINDS, window.era.factors, strict=True)}
            self._telemetry.report(UsageEraBegan(window.window_id, factors))
        reading: asyncio.Task[_Page] | None = None
        try:
            while True:
                page = await (reading or self._read_page(window, number, after))
                reading, first, number = None, number, number + len(page.bounds)
                after = page.bounds[-1].last_session_id if page.bounds else after
                if page.is_rendered and not page.is_last:
                    reading = asyncio.create_task(self._read_page(window, number, after))
                await self._store.save_chunks(run.fence, window.window_id, first, page.bounds, complete=page.is_last)
                run.count("chunks", len(page.bounds))
                if page.is_last:
                    if not page.bounds and number > 1:
                        await self._report_if_delivered(window)
                    return number - undivided.chunks - 1
                if page.is_rendered:
                    self._hint()
                else:
                    await self._announce()
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _read_page(self, window: Window, first: int, after: str | None) -> _Page:
        """Reads the next chunks, and renders them if the executor of this instance takes rendered chunks in time."""
        name = None if window.contract is None else window.contract.format
        if self._renders and name in FORMATS:
            began = monotonic()
            self._renders = await self._ahead.wait_for_room(min(ROOM_SECONDS, self._may_wait))
            self._may_wait -= monotonic() - began
        if self._renders and name in FORMATS:
            try:
                template = FORMATS[name].template(window)
                divided = await self._store.divide_and_render(window, after, RUN_MAX, template)
            except DatabaseTooSlow:
                self._renders = False
            else:
                self._ahead.add(window, first, name, divided)
                return _Page([each.bounds for each in divided], len(divided) < RUN_MAX, is_rendered=True)
        bounds = await self._store.divide_window(window, after, BATCH_MAX)
        return _Page(bounds, len(bounds) < BATCH_MAX, is_rendered=False)

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
