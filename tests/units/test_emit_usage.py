"""One run of `emit-usage`, with a store that does what no real one can be made to do in time."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from tenure.clock import boottime
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.jobs.emit_usage import UNCHUNKED_MAX, EmitUsage
from tenure.jobs.jobs import ActiveRun
from tenure.leases.held import HeldLease
from tenure.model.leases import Fence
from tenure.model.submissions import Contract
from tenure.model.usage import Cut, CutRules, Lag, Piece, Unchunked, Window
from tenure.store.store import BATCH_MAX, WINDOWS_MAX
from tests.support.usage import minute, rules
from tests.support.wishes import NOON, SECOND
from tests.units.test_formats import WINDOW

FENCE = Fence("job:emit-usage", "us", 7)
RULES = rules(contract=Contract((5.0,), None, (409,), 30.0, "tenure"))


class UsageStore:
    """Windows in memory: cut as it is told, each divided into as many pieces as it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """What was done, in order."""
        self.cuts: list[Cut] = []
        """What the next calls of `cut_usage` tell."""
        self.pieces: dict[int, int] = {}
        """How many a window has, of those that are cut and not divided."""
        self.saved: dict[int, list[tuple[int, Piece]]] = {}
        """By window: numbers and pieces."""
        self.trouble: Mapping[str, Exception] = {}
        """Raised instead of a call, by what is told of it."""
        self.lag = Lag(NOON, NOON - timedelta(seconds=61.25))
        self.lock = HeldLease(None, FENCE, 600 * SECOND, boottime())  # type: ignore[arg-type]
        self.era = WINDOW.era
        self.give_up_after = ""
        """The call during which the lock is lost."""

    def add(self, window_id: int, pieces: int, saved: int = 0) -> None:
        self.pieces[window_id] = pieces
        self.saved[window_id] = [(number, self._piece(window_id, number)) for number in range(1, saved + 1)]

    def _do(self, told: str, fence: Fence | None = None) -> None:
        assert fence in (None, FENCE)
        self.calls.append(told)
        if told in self.trouble:
            raise self.trouble[told]
        if told == self.give_up_after:
            self.lock.give_up()

    async def cut_usage(self, fence: Fence, cut_by: CutRules, limit: int) -> Cut:
        self._do("cut", fence)
        assert (replace(cut_by, contract=RULES.contract), limit) == (RULES, WINDOWS_MAX)
        return self.cuts.pop(0) if self.cuts else Cut(NOON, minute(0), 0)

    async def list_unchunked(self, limit: int) -> Sequence[Unchunked]:
        self._do("list")
        return [self._unchunked(window_id) for window_id in sorted(self.pieces)[:limit]]

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[Piece]:
        self._do(f"divide {window.window_id} after {after}")
        assert limit == BATCH_MAX
        numbers = range(1 if after is None else int(after) + 1, self.pieces[window.window_id] + 1)
        return [self._piece(window.window_id, number) for number in numbers[:limit]]

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, pieces: Sequence[Piece], *, complete: bool
    ) -> None:
        self._do(f"save {len(pieces)} of {window_id} from {first}{', complete' if complete else ''}", fence)
        self.saved[window_id] += enumerate(pieces, first)
        if complete:
            del self.pieces[window_id]

    async def announce_submissions(self) -> None:
        self._do("announce")

    async def read_lag(self) -> Lag:
        self._do("lag")
        return self.lag

    def _unchunked(self, window_id: int) -> Unchunked:
        last = str(self.saved[window_id][-1][0]) if self.saved[window_id] else None
        window = replace(WINDOW, window_id=window_id, era=self.era)
        return Unchunked(window, len(self.saved[window_id]), last)

    @staticmethod
    def _piece(window_id: int, number: int) -> Piece:
        return Piece(f"{number}", f"{number}", window_id, number)


@pytest.fixture
def store() -> UsageStore:
    return UsageStore()


async def run(store: UsageStore, rules: CutRules = RULES) -> Sequence[Mapping[str, Any]]:
    """Once; what it told in the log."""
    job = EmitUsage(store, rules, lambda: store.calls.append("hint"))  # type: ignore[arg-type]
    with capture_logs() as logs:
        await job.run(ActiveRun("emit-usage", store.lock, NOON, None))
    return logs


def told(logs: Sequence[Mapping[str, Any]], event: str) -> Sequence[Mapping[str, Any]]:
    return [{name: value for name, value in each.items() if name != "event"} for each in logs if each["event"] == event]


# Cutting.


async def test_cuts_again_until_there_is_no_more_to_cut(store: UsageStore) -> None:
    store.cuts = [Cut(NOON, minute(-9), WINDOWS_MAX), Cut(NOON, minute(-5), WINDOWS_MAX), Cut(NOON, minute(0), 3)]
    (line,) = told(await run(store), "usage.emitted")
    assert store.calls == ["cut", "cut", "cut", "list", "lag"]
    assert line["last_cut_at"] == "2041-03-01T12:00:00.000000Z"


async def test_cuts_once_more_after_a_full_cut_that_was_the_last(store: UsageStore) -> None:
    store.cuts = [Cut(NOON, minute(0), WINDOWS_MAX)]
    await run(store)
    assert store.calls.count("cut") == 2


async def test_tells_how_many_windows_it_divided(store: UsageStore) -> None:
    for window_id in (3, 4):
        store.add(window_id, pieces=1)
    (line,) = told(await run(store), "usage.emitted")
    assert line["windows"] == 2


async def test_says_nothing_of_a_cut_without_windows(store: UsageStore) -> None:
    logs = await run(store)
    assert (store.calls, told(logs, "usage.cut_skipped")) == (["cut", "list", "lag"], [])


async def test_a_clock_at_the_last_cut_is_not_behind(store: UsageStore) -> None:
    store.cuts = [Cut(minute(0), minute(0), 0)]
    assert told(await run(store), "usage.cut_skipped") == []


async def test_a_clock_behind_the_last_cut_is_alerted_and_the_rest_goes_on(store: UsageStore) -> None:
    store.cuts = [Cut(minute(0), minute(5), 0)]
    store.add(3, pieces=1)
    logs = await run(store)
    assert told(logs, "usage.cut_skipped") == [
        {
            "now": "2041-03-01T12:00:00.000000Z",
            "last_cut_at": "2041-03-01T12:05:00.000000Z",
            "log_level": "error",
        }
    ]
    assert "save 1 of 3 from 1, complete" in store.calls
    assert told(logs, "usage.emitted") != []


# Dividing.


async def test_divides_every_window_that_was_cut(store: UsageStore) -> None:
    for window_id in (3, 4, 5):
        store.add(window_id, pieces=window_id)
    await run(store)
    assert {window_id: [number for number, _ in saved] for window_id, saved in store.saved.items()} == {
        3: [1, 2, 3],
        4: [1, 2, 3, 4],
        5: [1, 2, 3, 4, 5],
    }


async def test_divides_more_windows_than_are_listed_at_once(store: UsageStore) -> None:
    for window_id in range(1, 2 * UNCHUNKED_MAX + 2):
        store.add(window_id, pieces=1)
    await run(store)
    assert (store.calls.count("list"), store.pieces) == (4, {})


async def test_a_window_in_which_nobody_lived_is_complete_without_chunks(store: UsageStore) -> None:
    store.add(3, pieces=0)
    await run(store)
    assert store.calls[2:4] == ["divide 3 after None", "save 0 of 3 from 1, complete"]


async def test_goes_on_after_the_last_chunk_that_is_saved(store: UsageStore) -> None:
    store.add(3, pieces=5, saved=2)
    await run(store)
    assert store.calls[2:4] == ["divide 3 after 2", "save 3 of 3 from 3, complete"]


async def test_saves_each_page_before_it_reads_the_next(store: UsageStore) -> None:
    store.add(3, pieces=2 * BATCH_MAX + 7)
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


async def test_a_last_page_that_is_full_is_not_known_to_be_the_last(store: UsageStore) -> None:
    store.add(3, pieces=BATCH_MAX)
    await run(store)
    assert f"save 0 of 3 from {BATCH_MAX + 1}, complete" in store.calls


# Announcing.


async def test_announces_what_is_to_be_sent_here_and_elsewhere(store: UsageStore) -> None:
    store.add(3, pieces=1)
    await run(store)
    saved = store.calls.index("save 1 of 3 from 1, complete")
    assert store.calls[saved + 1 : saved + 3] == ["hint", "announce"]


async def test_announces_a_large_window_page_by_page(store: UsageStore) -> None:
    store.add(3, pieces=BATCH_MAX + 1)
    await run(store)
    first_saved = store.calls.index(f"save {BATCH_MAX} of 3 from 1")
    assert store.calls[first_saved + 1 : first_saved + 4] == ["hint", "announce", f"divide 3 after {BATCH_MAX}"]


async def test_announces_nothing_if_there_was_nothing_to_divide(store: UsageStore) -> None:
    await run(store)
    assert "announce" not in store.calls


async def test_tells_the_lag_in_seconds(store: UsageStore) -> None:
    (line,) = told(await run(store), "usage.emitted")
    assert line["lag_seconds"] == 61.25


async def test_without_a_gateway_it_says_that_nothing_is_sent(store: UsageStore) -> None:
    (line,) = told(await run(store, replace(RULES, contract=None)), "usage.emitted")
    assert (line["sent"], "lag_seconds" in line, "lag" in store.calls) == (False, False, False)


@pytest.mark.parametrize(("window_id", "saved", "times"), [(1, 0, 0), (3, 0, 1), (3, 1, 0)])
async def test_tells_once_that_an_era_began(store: UsageStore, window_id: int, saved: int, times: int) -> None:
    store.add(window_id, pieces=2, saved=saved)
    store.era = replace(WINDOW.era, started_at=WINDOW.started_at)
    lines = told(await run(store), "usage.era_began")
    assert [(line["window"], line["factors"]) for line in lines] == times * [(3, {"1": "1", "2": "2", "3": "3"})]


# Cut short.

STEPS = ["cut", "list", "divide 3 after None", f"save {BATCH_MAX} of 3 from 1", "announce", "lag"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_database_that_does_not_answer_ends_the_run(store: UsageStore, step: str) -> None:
    store.add(3, pieces=BATCH_MAX + 1)
    store.trouble = {step: DatabaseUnavailable("away")}
    with pytest.raises(DatabaseUnavailable):
        await run(store)
    assert store.calls[-1] == step


@pytest.mark.parametrize("step", ["cut", f"save {BATCH_MAX} of 3 from 1"])
async def test_a_refused_write_ends_the_run(store: UsageStore, step: str) -> None:
    store.add(3, pieces=BATCH_MAX + 1)
    store.trouble = {step: LeaseLost("another epoch")}
    with pytest.raises(LeaseLost):
        await run(store)
    assert (store.calls[-1], store.saved[3]) == (step, [])


@pytest.mark.parametrize("step", ["cut", "list", "divide 3 after None"])
async def test_nothing_is_saved_once_the_lock_cannot_be_trusted(store: UsageStore, step: str) -> None:
    store.add(3, pieces=2)
    store.give_up_after = step
    with pytest.raises(LeaseLost):
        await run(store)
    assert store.saved[3] == []


async def test_nothing_is_cut_without_the_lock(store: UsageStore) -> None:
    store.lock.give_up()
    with pytest.raises(LeaseLost):
        await run(store)
    assert store.calls == []


async def test_the_next_run_goes_on_where_one_was_cut_short(store: UsageStore) -> None:
    store.add(3, pieces=BATCH_MAX + 1)
    store.trouble = {f"divide 3 after {BATCH_MAX}": DatabaseUnavailable("away")}
    with pytest.raises(DatabaseUnavailable):
        await run(store)
    store.trouble, store.calls = {}, []
    await run(store)
    assert store.calls[2:4] == [f"divide 3 after {BATCH_MAX}", f"save 1 of 3 from {BATCH_MAX + 1}, complete"]
    assert [number for number, _ in store.saved[3]] == list(range(1, BATCH_MAX + 2))
