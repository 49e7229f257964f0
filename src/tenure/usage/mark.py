"""Job `mark-usage`: writes running sums of usage at full hours, so that a sum over a long span is fast.

A mark has one row per tenant, capacity and kind. Within a series, each mark continues from the previous one: the job
sums the usage since the previous mark, adds it to the rows of that mark, and saves the new rows in batches. Reading the
usage blocks no other transaction. An interrupted run leaves an incomplete mark, which no sum uses. Every mark lies
before the last cut, so its values are final: the next run computes the same rows again and saves the missing ones.
docs/explanation/usage.md lists the possible interruptions.
"""

import asyncio
from collections.abc import Sequence

from tenure.domain.usage import DueMark, Mark, Marks, MarkState, MarkSums, add_sums, due_mark, old_marks
from tenure.jobs.job import ActiveRun
from tenure.store.contract import Store
from tenure.store.limits import MARK_BATCH_MAX, MARK_KEYS_MAX
from tenure.telemetry.events import Telemetry, UsageMarkSkipped


class MarkUsage:
    interval_seconds = 300.0

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry

    async def run(self, run: ActiveRun) -> None:
        found = await self._store.list_marks()
        while (due := due_mark(found)) is not None:
            await self._write(run, found, due)
            run.count("marks", 1)
            found = await self._store.list_marks()
        for mark in old_marks(found):
            while await self._store.delete_mark(run.fence, mark.at, MARK_BATCH_MAX) == MARK_BATCH_MAX:
                pass

    async def _write(self, run: ActiveRun, found: Marks, due: DueMark) -> None:
        mark, sums = await self._sum(found.last, due)
        for begin in range(0, len(sums), MARK_BATCH_MAX):
            incomplete = Mark(mark.at, mark.series, MarkState.INCOMPLETE)
            await self._store.save_mark(run.fence, incomplete, sums[begin : begin + MARK_BATCH_MAX])
        await self._store.save_mark(run.fence, mark, [])
        if mark.state is MarkState.SKIPPED:
            self._telemetry.report(UsageMarkSkipped(mark.at, MARK_KEYS_MAX))

    async def _sum(self, last: Mark | None, due: DueMark) -> tuple[Mark, Sequence[MarkSums]]:
        """Returns the mark that is due, and its rows.

        The mark is skipped if the usage since the previous mark alone needs more than MARK_KEYS_MAX rows. Otherwise,
        the mark begins a new series if there is no previous mark, if the previous mark was skipped, or if it would have
        more than MARK_KEYS_MAX rows as part of the previous series. The first mark of a series has rows only for usage
        since the previous mark.
        """
        added = await self._store.sum_mark(due.from_at, due.at, MARK_KEYS_MAX)
        if added is None:
            return Mark(due.at, 0 if last is None else last.series, MarkState.SKIPPED), []
        if last is not None and last.state is MarkState.COMPLETE:
            previous = await self._store.read_mark(last.at)
            # In a thread, because adding thousands of rows would block the event loop.
            sums = await asyncio.to_thread(add_sums, previous, added)
            if len(sums) <= MARK_KEYS_MAX:
                return Mark(due.at, last.series, MarkState.COMPLETE), sums
        return Mark(due.at, 1 if last is None else last.series + 1, MarkState.COMPLETE), added
