"""A worker saves the row of its instance and its activity counts, even if saves fail, are repeated or commit late."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tenure.clock import ServerClock, to_microseconds
from tenure.domain.activity import COUNTS, MinuteCounts
from tenure.domain.instances import Instance, InstanceReport
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.instances import activity as module
from tenure.instances.activity import ActivityRecorder
from tenure.instances.presence import Presence
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import ActivityNotSaved, InstanceNotSaved
from tests.support.telemetry import RecordedTelemetry

START = datetime(2041, 3, 1, 12, 0, tzinfo=UTC)
REPORT = InstanceReport(
    instance="a-1-x", holder="a-1-x", host="a", pid=1, worker=0, version="1.0", executor_lease="submission-executor"
)


class ManualClock(ServerClock):
    def __init__(self) -> None:
        self.now = START

    def now_microseconds(self) -> int:
        return to_microseconds(self.now)

    def move(self, **span: float) -> None:
        self.now += timedelta(**span)


class FakeStore:
    """Keeps the greater of the saved and the new count, as the contract of the store requires. If `fails` is set, every
    write raises and saves nothing. If `loses` is set, every write saves and then raises, as if its response was lost.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[datetime, str, int], Mapping[str, int]] = {}
        self.reports: list[InstanceReport] = []
        self.instances: list[Instance] = []
        self.batches: list[int] = []
        self.fails = self.loses = False

    async def save_activity(self, instance: str, minutes: Sequence[MinuteCounts]) -> None:
        self._check(self.fails)
        self.batches.append(len(minutes))
        for minute in minutes:
            key = minute.at, instance, minute.turn
            saved = self.rows.get(key, {})
            self.rows[key] = {name: max(saved.get(name, 0), minute.counts.get(name, 0)) for name in COUNTS}
        self._check(self.loses)

    async def save_instance(self, report: InstanceReport) -> datetime:
        self._check(self.fails)
        self.reports.append(report)
        self._check(self.loses)
        return START if report.started_at is None else report.started_at

    async def list_instances(self, _after: str | None, _limit: int) -> Sequence[Instance]:
        return self.instances

    def _check(self, broken: bool) -> None:
        if broken:
            raise DatabaseUnavailable("gone")

    def opened(self) -> dict[str, int]:
        """The counts of `opened` by minute. If the clock repeats a minute, the rows of this minute are added up."""
        sums = Counter[str]()
        for (at, _, _), counts in self.rows.items():
            sums[f"{at:%H:%M}"] += counts["opened"]
        return dict(sums)


class Worker:
    def __init__(self, *, opened_before: int = 0) -> None:
        """`opened_before` sessions are opened before the first sample."""
        self.store, self.clock, self.telemetry = FakeStore(), ManualClock(), RecordedTelemetry()
        self.totals = Counter(dict.fromkeys(COUNTS, 0))
        self.recorder = ActivityRecorder(
            self.store,  # type: ignore[arg-type]
            "a-1-x",
            lambda: dict(self.totals),
            self.clock,
            self.telemetry,
        )
        self.count(opened_before)
        self.recorder.sample()

    def count(self, opened: int) -> None:
        self.totals["opened"] += opened

    async def sample_and_save(self) -> None:
        self.recorder.sample()
        await self.recorder.save()


async def test_counts_belong_to_the_minute_in_which_they_were_counted() -> None:
    worker = Worker()
    for opened in (1, 2, 3, 4, 5, 6, 7):
        worker.count(opened)
        worker.clock.move(seconds=10)
        await worker.sample_and_save()
    # The sixth sample of this loop is taken at the start of the second minute, but its counts belong to the first.
    assert worker.store.opened() == {"12:00": 21, "12:01": 7}


async def test_counts_before_the_first_sample_are_saved() -> None:
    worker = Worker(opened_before=5)
    worker.count(3)
    await worker.sample_and_save()
    assert worker.store.opened() == {"12:00": 8}


async def test_nothing_is_saved_if_nothing_was_counted() -> None:
    worker = Worker()
    for _ in range(20):
        worker.clock.move(seconds=10)
        await worker.sample_and_save()
    assert worker.store.batches == []


async def test_events_are_counted_once_despite_lost_answers_and_late_commits() -> None:
    worker = Worker()
    worker.store.loses = True
    for _ in range(12):
        worker.count(1)
        worker.clock.move(seconds=10)
        with pytest.raises(DatabaseUnavailable):
            await worker.sample_and_save()
    stale = [MinuteCounts(START, 0, {"opened": 2})]
    worker.store.loses = False
    await worker.sample_and_save()
    await worker.store.save_activity("a-1-x", stale)
    assert worker.store.opened() == {"12:00": 6, "12:01": 6}


async def test_number_of_unsaved_minutes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MINUTES_MAX", 200)
    worker = Worker()
    worker.store.fails = True
    for _ in range(250):
        worker.count(1)
        worker.clock.move(minutes=1)
        with pytest.raises(DatabaseUnavailable):
            await worker.sample_and_save()
    worker.store.fails = False
    await worker.recorder.save()
    assert worker.store.batches == [BATCH_MAX, 200 - BATCH_MAX]
    assert sum(worker.store.opened().values()) == 200
    assert worker.recorder._unsaved == {}


async def test_pause_or_clock_step_forward_leaves_minutes_without_counts() -> None:
    worker = Worker()
    worker.count(3)
    worker.clock.move(hours=2)
    await worker.sample_and_save()
    worker.count(4)
    worker.clock.move(seconds=10)
    await worker.sample_and_save()
    assert worker.store.opened() == {"12:00": 3, "14:00": 4}


async def test_repeated_minutes_are_added_after_clock_step_back() -> None:
    worker = Worker()
    for _ in range(3):
        for _ in range(3):
            worker.count(5)
            worker.clock.move(minutes=1)
            await worker.sample_and_save()
        worker.clock.move(minutes=-3)
        await worker.sample_and_save()
    assert worker.store.opened() == {"12:00": 15, "12:01": 15, "12:02": 15}
    assert sum(worker.store.opened().values()) == worker.totals["opened"]


async def test_counts_sampled_during_a_save_are_saved_too() -> None:
    worker = Worker()
    worker.count(1)
    save = worker.store.save_activity

    async def count_meanwhile(instance: str, minutes: Sequence[MinuteCounts]) -> None:
        if worker.totals["opened"] == 1:
            worker.count(1)
            worker.recorder.sample()
        await save(instance, minutes)

    worker.store.save_activity = count_meanwhile  # type: ignore[method-assign]
    await worker.sample_and_save()
    assert worker.store.opened() == {"12:00": 2}


async def test_stop_saves_the_rest_and_does_not_fail_without_database() -> None:
    worker = Worker()
    worker.count(2)
    worker.store.fails = True
    await worker.recorder.stop()
    assert len(worker.telemetry.of(ActivityNotSaved)) == 1
    worker.store.fails = False
    await worker.recorder.stop()
    assert worker.store.opened() == {"12:00": 2}


async def test_recorder_continues_after_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPREAD_SECONDS", 0.0)
    worker = Worker()
    worker.recorder._spread = 0.0
    monkeypatch.setattr(worker.recorder, "_seconds_to_next_sample", lambda: 0.001)
    worker.store.fails = True
    worker.count(1)
    running = asyncio.create_task(worker.recorder.run())
    try:
        async with asyncio.timeout(10):
            while not worker.telemetry.of(ActivityNotSaved):  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0.001)
            worker.store.fails = False
            while not worker.store.rows:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert worker.store.opened() == {"12:00": 1}


def test_samples_are_taken_at_multiples_of_ten_seconds() -> None:
    worker = Worker()
    for seconds, expected in ((0.0, 10.0), (3.5, 6.5), (59.75, 0.25)):
        worker.clock.now = START + timedelta(seconds=seconds)
        assert worker.recorder._seconds_to_next_sample() == expected


async def test_presence_keeps_start_time_and_saves_that_instance_stopped() -> None:
    store, telemetry = FakeStore(), RecordedTelemetry()
    presence = Presence(store, REPORT, telemetry)  # type: ignore[arg-type]
    store.loses = True
    with pytest.raises(DatabaseUnavailable):
        await presence.save()
    store.loses = False
    await presence.save()
    await presence.save()
    await presence.stop()
    assert [report.started_at for report in store.reports] == [None, None, START, START]
    assert [report.stopped for report in store.reports] == [False, False, False, True]
    store.fails = True
    await presence.stop()  # does not raise


async def test_presence_continues_after_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.instances.presence.INSTANCE_SEEN_SECONDS", 0.001)
    store, telemetry = FakeStore(), RecordedTelemetry()
    store.fails = True
    running = asyncio.create_task(Presence(store, REPORT, telemetry).run())  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(10):
            while not telemetry.of(InstanceNotSaved):  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0.001)
            store.fails = False
            while not store.reports:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        running.cancel()
        await asyncio.wait({running})


def other_instance(name: str, started_at: datetime, *, alive: bool = True, executor_lease: str = "other") -> Instance:
    return Instance(
        instance=name,
        holder=name,
        host="b",
        pid=2,
        worker=0,
        version="1.0",
        executor_lease=executor_lease,
        started_at=started_at,
        last_seen_at=started_at,
        stopped_at=None,
        alive=alive,
    )


async def test_start_is_refused_while_earlier_instance_has_another_executor_lease() -> None:
    """Of two instances that start at the same instant, the one whose name sorts first starts. The other is refused."""
    second = timedelta(seconds=1)
    for other, is_refused in (
        (other_instance("b", START - second), True),
        (other_instance("b", START + second), False),
        (other_instance("a", START), True),
        (other_instance("b", START), False),
        (other_instance("b", START - second, alive=False), False),
        (other_instance("b", START - second, executor_lease=REPORT.executor_lease), False),
    ):
        store = FakeStore()
        store.instances = [other]
        presence = Presence(store, REPORT, RecordedTelemetry())  # type: ignore[arg-type]
        if is_refused:
            with pytest.raises(ConfigurationError, match="is submission-executor, but other on instance"):
                await presence.start()
        else:
            await presence.start()
        assert store.reports[-1].stopped == is_refused
