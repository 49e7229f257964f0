"""Runs of the job `emit-usage`, with a store whose results a test controls."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import asdict, replace
from structlog.testing import capture_logs

from tenure.clock import boottime
from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract
from tenure.domain.usage import Chunk, ChunkBounds, Cut, CutRules, Lag, UndividedWindow, Window
from tenure.domain.usage_records import DividedChunk, Records, Template
from tenure.errors import DatabaseTooSlow, DatabaseUnavailable, LeaseLost
from tenure.jobs.job import ActiveRun
from tenure.leases.held import HeldLease
from tenure.store.limits import BATCH_MAX, WINDOWS_MAX
from tenure.telemetry.events import Telemetry
from tenure.telemetry.logs import log_events
from tenure.usage.emit import UNDIVIDED_MAX, EmitUsage
from tenure.usage.formats import FORMATS
from tenure.usage.rendering import AHEAD_MAX, RUN_MAX, RenderedAhead
from tests.support.open_requests import NOON, SECOND
from tests.support.usage import minute, rules
from tests.units.test_formats import WINDOW

FENCE = Fence("job:emit-usage", "us", 7)
RULES = rules(contract=Contract((5.0,), None, (409,), 30.0, "tenure"))


class UsageStore:
    """A store in memory. A test configures the results of cuts, and the number of chunks of each window."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """Descriptions of the calls, in order."""
        self.cuts: list[Cut] = []
        """Results of the next calls of `cut_usage`."""
        self.bounds: dict[int, int] = {}
        """The number of chunks of each undivided window, by window id."""
        self.saved: dict[int, list[tuple[int, ChunkBounds]]] = {}
        """The numbers and bounds of the saved chunks, by window id."""
        self.errors: Mapping[str, Exception] = {}
        """Errors to raise, by the description of the call."""
        self.delivered_at: datetime | None = None
        """The time of delivery that `get_window` returns for every window."""
        self.lag = Lag(NOON, NOON - timedelta(seconds=61.25))
        self.lock = HeldLease(None, FENCE, 600 * SECOND, boottime())  # type: ignore[arg-type]
        self.era = WINDOW.era
        self.ahead = RenderedAhead()
        self.contract: Contract | None = RULES.contract
        self.leads = False
        """Whether the executor of this instance sends the chunks."""
        self.taken = True
        """Whether the executor takes rendered chunks from `ahead` as soon as they are saved."""
        self.withdraw_after = ""
        """The description of the call during which the lock is lost."""

    def add(self, window_id: int, bounds: int, saved: int = 0) -> None:
        self.bounds[window_id] = bounds
        self.saved[window_id] = [(number, self._bounds(window_id, number)) for number in range(1, saved + 1)]

    def _record(self, call: str, fence: Fence | None = None) -> None:
        assert fence in (None, FENCE)
        self.calls.append(call)
        if call in self.errors:
            raise self.errors[call]
        if call == self.withdraw_after:
            self.lock.withdraw()

    async def cut_usage(self, fence: Fence, cut_by: CutRules, limit: int) -> Cut:
        self._record("cut", fence)
        assert (replace(cut_by, contract=RULES.contract), limit) == (RULES, WINDOWS_MAX)
        return self.cuts.pop(0) if self.cuts else Cut(NOON, minute(0), 0)

    async def list_undivided_windows(self, limit: int) -> Sequence[UndividedWindow]:
        self._record("list")
        return [self._undivided(window_id) for window_id in sorted(self.bounds)[:limit]]

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[ChunkBounds]:
        self._record(f"divide {window.window_id} after {after}")
        assert limit == BATCH_MAX
        numbers = range(1 if after is None else int(after) + 1, self.bounds[window.window_id] + 1)
        return [self._bounds(window.window_id, number) for number in numbers[:limit]]

    async def divide_and_render(
        self, window: Window, after: str | None, limit: int, template: Template
    ) -> Sequence[DividedChunk]:
        self._record(f"render {window.window_id} after {after}")
        assert (limit, template) == (RUN_MAX, FORMATS["tenure"].template(window))
        numbers = range(1 if after is None else int(after) + 1, self.bounds[window.window_id] + 1)
        bounds = [self._bounds(window.window_id, number) for number in numbers[:limit]]
        return [DividedChunk(each, self._records(each)) for each in bounds]

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, bounds: Sequence[ChunkBounds], *, complete: bool
    ) -> None:
        self._record(f"save {len(bounds)} of {window_id} from {first}{', complete' if complete else ''}", fence)
        self.saved[window_id] += enumerate(bounds, first)
        for number, each in enumerate(bounds, first) if self.leads and self.taken else ():
            assert self.ahead.take(self.window(window_id), self.chunk(window_id, number), "tenure") in (
                None,
                self._records(each),
            )
        if complete:
            del self.bounds[window_id]

    async def announce_submissions(self) -> None:
        self._record("announce")

    async def get_window(self, window_id: int) -> tuple[Window, Sequence[Any]]:
        self._record(f"get {window_id}")
        return replace(WINDOW, window_id=window_id, sessions=7, delivered_at=self.delivered_at), []

    async def read_lag(self) -> Lag:
        self._record("lag")
        return self.lag

    def _undivided(self, window_id: int) -> UndividedWindow:
        last = str(self.saved[window_id][-1][0]) if self.saved[window_id] else None
        return UndividedWindow(self.window(window_id), len(self.saved[window_id]), last)

    def window(self, window_id: int) -> Window:
        return replace(WINDOW, window_id=window_id, era=self.era, contract=self.contract)

    def chunk(self, window_id: int, number: int) -> Chunk:
        values = self._bounds(window_id, number)
        return Chunk(window_id=window_id, chunk=number, submission_id=f"{number}", **asdict(values))

    @staticmethod
    def _records(bounds: ChunkBounds) -> Records:
        return Records(f"records {bounds.first_session_id}", bounds.sessions, bounds.usage_millionths)

    @staticmethod
    def _bounds(window_id: int, number: int) -> ChunkBounds:
        return ChunkBounds(f"{number}", f"{number}", window_id, number)


@pytest.fixture
def store() -> UsageStore:
    return UsageStore()


async def run(store: UsageStore, rules: CutRules = RULES) -> Sequence[Mapping[str, Any]]:
    """Runs the job once, and returns the log."""
    job = EmitUsage(
        store,  # type: ignore[arg-type]
        rules,
        lambda: store.calls.append("hint"),
        store.ahead,
        lambda: store.leads,
        log_events(Telemetry()),
    )
    with capture_logs() as logs:
        await job.run(ActiveRun("emit-usage", store.lock, NOON, None))
    return logs


def logged(logs: Sequence[Mapping[str, Any]], event: str) -> Sequence[Mapping[str, Any]]:
    return [{name: value for name, value in each.items() if name != "event"} for each in logs if each["event"] == event]


# Cutting.


async def test_emit_usage_cuts_until_a_cut_has_fewer_windows_than_the_limit(store: UsageStore) -> None:
    store.cuts = [Cut(NOON, minute(-9), WINDOWS_MAX), Cut(NOON, minute(-5), WINDOWS_MAX), Cut(NOON, minute(0), 3)]
    (line,) = logged(await run(store), "usage.emitted")
    assert store.calls == ["cut", "cut", "cut", "list", "lag"]
    assert line["last_cut_at"] == "2041-03-01T12:00:00.000000Z"


async def test_emit_usage_cuts_again_if_a_cut_has_as_many_windows_as_the_limit(store: UsageStore) -> None:
    store.cuts = [Cut(NOON, minute(0), WINDOWS_MAX)]
    await run(store)
    assert store.calls.count("cut") == 2


async def test_emit_usage_logs_number_of_divided_windows(store: UsageStore) -> None:
    for window_id in (3, 4):
        store.add(window_id, bounds=1)
    (line,) = logged(await run(store), "usage.emitted")
    assert line["windows"] == 2


async def test_emit_usage_logs_no_skip_for_cut_without_windows(store: UsageStore) -> None:
    logs = await run(store)
    assert (store.calls, logged(logs, "usage.cut_skipped")) == (["cut", "list", "lag"], [])


async def test_no_skipped_cut_is_logged_if_clock_equals_last_cut(store: UsageStore) -> None:
    store.cuts = [Cut(minute(0), minute(0), 0)]
    assert logged(await run(store), "usage.cut_skipped") == []


async def test_clock_behind_last_cut_is_logged_and_run_continues(store: UsageStore) -> None:
    store.cuts = [Cut(minute(0), minute(5), 0)]
    store.add(3, bounds=1)
    logs = await run(store)
    assert logged(logs, "usage.cut_skipped") == [
        {
            "now": "2041-03-01T12:00:00.000000Z",
            "last_cut_at": "2041-03-01T12:05:00.000000Z",
            "log_level": "error",
        }
    ]
    assert "save 1 of 3 from 1, complete" in store.calls
    assert logged(logs, "usage.emitted") != []


# Dividing.


async def test_emit_usage_divides_all_cut_windows(store: UsageStore) -> None:
    for window_id in (3, 4, 5):
        store.add(window_id, bounds=window_id)
    await run(store)
    assert {window_id: [number for number, _ in saved] for window_id, saved in store.saved.items()} == {
        3: [1, 2, 3],
        4: [1, 2, 3, 4],
        5: [1, 2, 3, 4, 5],
    }


async def test_emit_usage_divides_more_windows_than_one_page(store: UsageStore) -> None:
    for window_id in range(1, 2 * UNDIVIDED_MAX + 2):
        store.add(window_id, bounds=1)
    await run(store)
    assert (store.calls.count("list"), store.bounds) == (4, {})


async def test_window_without_sessions_is_complete_without_chunks(store: UsageStore) -> None:
    store.add(3, bounds=0)
    await run(store)
    assert store.calls[2:4] == ["divide 3 after None", "save 0 of 3 from 1, complete"]


async def test_emit_usage_resumes_after_last_saved_chunk(store: UsageStore) -> None:
    store.add(3, bounds=5, saved=2)
    await run(store)
    assert store.calls[2:4] == ["divide 3 after 2", "save 3 of 3 from 3, complete"]


async def test_emit_usage_saves_each_page_before_reading_next(store: UsageStore) -> None:
    store.add(3, bounds=2 * BATCH_MAX + 7)
    await run(store)
    steps = [each for each in store.calls if each.startswith(("divide", "save"))]
    assert steps == [
        "divide 3 after None",
        f"save {BATCH_MAX} of 3 from 1",
        f"divide 3 after {BATCH_MAX}",
        f"save {BATCH_MAX} of 3 from {BATCH_MAX + 1}",
        f"divide 3 after {2 * BATCH_MAX}",
        f"save 7 of 3 from {2 * BATCH_MAX + 1}, complete",
    ]
    assert [number for number, _ in store.saved[3]] == list(range(1, 2 * BATCH_MAX + 8))


async def test_window_is_completed_by_empty_save_after_full_last_page(store: UsageStore) -> None:
    store.add(3, bounds=BATCH_MAX)
    await run(store)
    assert f"save 0 of 3 from {BATCH_MAX + 1}, complete" in store.calls


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_delivery_is_logged_only_if_window_is_delivered_before_its_division_is_complete(
    store: UsageStore, is_delivered: bool
) -> None:
    store.delivered_at = WINDOW.ended_at + timedelta(seconds=2.5) if is_delivered else None
    store.add(3, bounds=BATCH_MAX)
    delivered = logged(await run(store), "usage.delivered")
    reported = [(line["window"], line["sessions"], line["lag_seconds"]) for line in delivered]
    assert reported == ([(3, 7, 2.5)] if is_delivered else [])


async def test_emit_usage_logs_number_of_submitted_chunks(store: UsageStore) -> None:
    store.add(3, bounds=BATCH_MAX + 2, saved=1)
    store.add(4, bounds=0)
    (line,) = logged(await run(store), "usage.emitted")
    assert (line["windows"], line["chunks"]) == (2, BATCH_MAX + 1)


# Rendering while dividing.


def steps(store: UsageStore) -> Sequence[str]:
    return [each for each in store.calls if each.startswith(("divide", "render", "save"))]


async def test_leader_renders_chunks_while_it_divides_window(store: UsageStore) -> None:
    store.leads = True
    store.add(3, bounds=RUN_MAX + 2)
    await run(store)
    assert set(steps(store)) == {
        "render 3 after None",
        f"save {RUN_MAX} of 3 from 1",
        f"render 3 after {RUN_MAX}",
        f"save 2 of 3 from {RUN_MAX + 1}, complete",
    }
    assert [number for number, _ in store.saved[3]] == list(range(1, RUN_MAX + 3))


async def test_window_without_gateway_is_divided_without_rendering(store: UsageStore) -> None:
    store.leads, store.contract = True, None
    store.add(3, bounds=1)
    await run(store, replace(RULES, contract=None))
    assert steps(store) == ["divide 3 after None", "save 1 of 3 from 1, complete"]


async def test_division_continues_without_rendering_if_executor_takes_no_chunk(
    store: UsageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.usage.emit.ROOM_SECONDS", 0.01)
    store.leads, store.taken = True, False
    for window_id in (3, 4):
        store.add(window_id, bounds=AHEAD_MAX + 2)
    await run(store)
    assert [len(store.saved[window_id]) for window_id in (3, 4)] == [AHEAD_MAX + 2] * 2
    assert [each for each in steps(store) if not each.startswith("save")] == [
        "render 3 after None",
        *(f"render 3 after {number}" for number in range(RUN_MAX, AHEAD_MAX, RUN_MAX)),
        f"divide 3 after {AHEAD_MAX}",
        "divide 4 after None",
    ]


async def test_division_continues_without_rendering_if_database_is_too_slow(store: UsageStore) -> None:
    store.leads, store.errors = True, {f"render 3 after {RUN_MAX}": DatabaseTooSlow("statement timeout")}
    store.add(3, bounds=2 * RUN_MAX)
    await run(store)
    assert [number for number, _ in store.saved[3]] == list(range(1, 2 * RUN_MAX + 1))
    assert f"divide 3 after {RUN_MAX}" in store.calls


async def test_next_page_is_dropped_if_current_page_cannot_be_saved(store: UsageStore) -> None:
    store.leads, store.errors = True, {f"save {RUN_MAX} of 3 from 1": LeaseLost("job:emit-usage")}
    store.add(3, bounds=2 * RUN_MAX)
    with pytest.raises(LeaseLost):
        await run(store)
    assert store.saved[3] == []


async def test_rendered_chunk_is_used_only_if_it_equals_the_saved_chunk(store: UsageStore) -> None:
    """For example, another instance may have saved a chunk of the same number with other sums."""
    store.leads, store.taken = True, False
    store.add(3, bounds=6)
    await run(store)
    chunk, window = store.chunk(3, 1), store.window(3)
    for saved_in, other, name in (
        (window, replace(chunk, usage_millionths=7), "tenure"),
        (window, replace(store.chunk(3, 2), last_session_id="9"), "tenure"),
        (window, store.chunk(3, 3), "cloudevents"),
        (replace(window, ended_at=window.ended_at + timedelta(seconds=1)), store.chunk(3, 4), "tenure"),
        (replace(window, installation_id="another"), store.chunk(3, 5), "tenure"),
        (window, store.chunk(3, 7), "tenure"),
    ):
        assert store.ahead.take(saved_in, other, name) is None
    assert store.ahead.take(window, chunk, "tenure") is None  # the first call in the loop removed this chunk
    assert store.ahead.take(window, store.chunk(3, 6), "tenure") is not None


async def test_slow_receiver_delays_division_only_for_a_limited_time(
    store: UsageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor makes room again and again, each time before the job stops waiting for room."""
    monkeypatch.setattr("tenure.usage.emit.ROOM_SECONDS_PER_RUN", 0.1)
    store.leads, store.taken, pages = True, False, 40
    store.add(3, bounds=pages * RUN_MAX)

    async def take_slowly() -> None:
        while True:
            await asyncio.sleep(0.02)
            for window_id, number in list(store.ahead._chunks)[:RUN_MAX]:
                store.ahead.take(store.window(window_id), store.chunk(window_id, number), "tenure")

    taking = asyncio.create_task(take_slowly())
    await run(store)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    rendered = sum(each.startswith("render") for each in steps(store))
    assert AHEAD_MAX // RUN_MAX < rendered < pages
    assert [number for number, _ in store.saved[3]] == list(range(1, pages * RUN_MAX + 1))


# Announcing.


async def test_emit_usage_sends_hint_and_announcement_after_saving_chunks(store: UsageStore) -> None:
    store.add(3, bounds=1)
    await run(store)
    saved = store.calls.index("save 1 of 3 from 1, complete")
    assert store.calls[saved + 1 : saved + 3] == ["hint", "announce"]


async def test_emit_usage_announces_large_window_after_each_page(store: UsageStore) -> None:
    store.add(3, bounds=BATCH_MAX + 1)
    await run(store)
    first_saved = store.calls.index(f"save {BATCH_MAX} of 3 from 1")
    assert store.calls[first_saved + 1 : first_saved + 4] == ["hint", "announce", f"divide 3 after {BATCH_MAX}"]


async def test_emit_usage_announces_nothing_without_windows_to_divide(store: UsageStore) -> None:
    await run(store)
    assert "announce" not in store.calls


async def test_emit_usage_logs_lag_in_seconds(store: UsageStore) -> None:
    (line,) = logged(await run(store), "usage.emitted")
    assert line["lag_seconds"] == 61.25


async def test_emit_usage_logs_sent_false_without_gateway(store: UsageStore) -> None:
    (line,) = logged(await run(store, replace(RULES, contract=None)), "usage.emitted")
    assert (line["sent"], "lag_seconds" in line, "lag" in store.calls) == (False, False, False)


@pytest.mark.parametrize(("window_id", "saved", "times"), [(1, 0, 0), (3, 0, 1), (3, 1, 0)])
async def test_emit_usage_logs_era_began_once(store: UsageStore, window_id: int, saved: int, times: int) -> None:
    store.add(window_id, bounds=2, saved=saved)
    store.era = replace(WINDOW.era, started_at=WINDOW.started_at)
    lines = logged(await run(store), "usage.era_began")
    assert [(line["window"], line["factors"]) for line in lines] == times * [(3, {"1": "1", "2": "2", "3": "3"})]


# Interrupted runs.

STEPS = ["cut", "list", "divide 3 after None", f"save {BATCH_MAX} of 3 from 1", "announce", "lag"]


@pytest.mark.parametrize("step", STEPS)
async def test_unavailable_database_ends_run(store: UsageStore, step: str) -> None:
    store.add(3, bounds=BATCH_MAX + 1)
    store.errors = {step: DatabaseUnavailable("away")}
    with pytest.raises(DatabaseUnavailable):
        await run(store)
    assert store.calls[-1] == step


@pytest.mark.parametrize("step", ["cut", f"save {BATCH_MAX} of 3 from 1"])
async def test_lease_lost_on_write_ends_run(store: UsageStore, step: str) -> None:
    store.add(3, bounds=BATCH_MAX + 1)
    store.errors = {step: LeaseLost("another epoch")}
    with pytest.raises(LeaseLost):
        await run(store)
    assert (store.calls[-1], store.saved[3]) == (step, [])


@pytest.mark.parametrize("step", ["cut", "list", "divide 3 after None"])
async def test_emit_usage_saves_nothing_after_lock_is_lost(store: UsageStore, step: str) -> None:
    store.add(3, bounds=2)
    store.withdraw_after = step
    with pytest.raises(LeaseLost):
        await run(store)
    assert store.saved[3] == []


async def test_emit_usage_cuts_nothing_without_lock(store: UsageStore) -> None:
    store.lock.withdraw()
    with pytest.raises(LeaseLost):
        await run(store)
    assert store.calls == []


async def test_next_run_resumes_after_interrupted_run(store: UsageStore) -> None:
    store.add(3, bounds=BATCH_MAX + 1)
    store.errors = {f"divide 3 after {BATCH_MAX}": DatabaseUnavailable("away")}
    with pytest.raises(DatabaseUnavailable):
        await run(store)
    store.errors, store.calls = {}, []
    await run(store)
    assert store.calls[2:4] == [f"divide 3 after {BATCH_MAX}", f"save 1 of 3 from {BATCH_MAX + 1}, complete"]
    assert [number for number, _ in store.saved[3]] == list(range(1, BATCH_MAX + 2))
