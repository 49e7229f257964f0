"""Running a job, with a store that fails, hangs and loses answers in the middle of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from tenure.config import LeasesConfig
from tenure.errors import LeaseLost
from tenure.jobs.jobs import ActiveRun
from tenure.jobs.runner import JobRunner, renew_seconds
from tenure.leases.counters import LeaseCounters
from tenure.model.leases import JobSettings, RunOutcome
from tests.support.lease_stores import HostClock, LeaseStore, away
from tests.support.wishes import SECOND

JOB = "tidy"
LOCK = "job:tidy"
SHORT_TIMEOUT = SECOND // 50
"""A lock of 20 ms is renewed every 5."""
TIMEOUT = 120 * SECOND
BOUND_SECONDS = 20.0


async def eventually(holds: Callable[[], bool], seconds: float = BOUND_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what is waited for must not know of it
            await asyncio.sleep(0.001)


class Shop:
    """A runner with one job, which begins and then does as the test says."""

    def __init__(self, store: LeaseStore, lock_timeout: int = TIMEOUT) -> None:
        self.store = store
        self.runs: list[ActiveRun] = []
        self.may_end = asyncio.Event()
        self.error: BaseException | None = None
        self.was_cancelled = False
        self.wakes = 0
        self.counters = LeaseCounters()
        self.runner = JobRunner(store, "us", LeasesConfig(), self.counters, self._wake)  # type: ignore[arg-type]
        self.settings = JobSettings(JOB, SECOND, lock_timeout)
        self.runner.add(self.settings, self.job)

    async def job(self, run: ActiveRun) -> None:
        self.runs.append(run)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.error is not None:
            raise self.error

    async def run_once(self) -> RunOutcome | None:
        async with asyncio.timeout(BOUND_SECONDS):
            return await self.runner.run_once(JOB)

    async def begun(self) -> "asyncio.Task[RunOutcome | None]":
        """A run that is under way."""
        running = asyncio.create_task(self.run_once())
        await eventually(lambda: len(self.runs) > 0)
        return running

    def look(self) -> float | None:
        return self.runner.look(self.store.board())

    def _wake(self) -> None:
        self.wakes += 1


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    return HostClock(monkeypatch)


@pytest.fixture
async def shop(store: LeaseStore, clock: HostClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    del clock
    monkeypatch.setattr("tenure.jobs.runner.NOTE_AGAIN_SECONDS", 0.002)
    monkeypatch.setattr("tenure.jobs.runner.GRACE_SECONDS", 0.01)
    shop = Shop(store)
    await shop.runner.register()
    yield shop
    shop.may_end.set()


@pytest.fixture
async def hurried(shop: Shop, store: LeaseStore) -> Shop:
    """One whose lock is renewed every few milliseconds; its trust is by the stopped clock."""
    hurried = Shop(store, SHORT_TIMEOUT)
    await hurried.runner.register()
    hurried.may_end = shop.may_end
    return hurried


def outcomes(store: LeaseStore) -> list[RunOutcome]:
    return [finish.outcome for finish in store.finishes]


# Ends.


async def test_a_job_that_returns_has_succeeded(shop: Shop, store: LeaseStore) -> None:
    shop.may_end.set()
    assert await shop.run_once() is RunOutcome.SUCCEEDED
    (finish,) = store.finishes
    assert (finish.outcome, finish.error, finish.retry_microseconds) == (RunOutcome.SUCCEEDED, None, 0)
    assert not store.is_held(LOCK)


async def test_a_job_that_raises_has_failed_and_is_tried_again(shop: Shop, store: LeaseStore) -> None:
    shop.may_end.set()
    shop.error = ValueError("no such file\nand more")
    assert await shop.run_once() is RunOutcome.FAILED
    (finish,) = store.finishes
    assert (finish.error, finish.retry_microseconds) == ("ValueError: no such file", SECOND)


async def test_the_pause_grows_with_the_failures_in_a_row(shop: Shop, store: LeaseStore) -> None:
    store.failures_in_a_row = 3
    shop.may_end.set()
    shop.error = ValueError("again")
    await shop.run_once()
    assert store.finishes[0].retry_microseconds == 8 * SECOND


async def test_an_error_of_any_length_is_kept_in_a_thousand_characters(shop: Shop, store: LeaseStore) -> None:
    shop.may_end.set()
    shop.error = ValueError("x" * 5000)
    await shop.run_once()
    assert len(store.finishes[0].error or "") == 1000


async def test_a_job_that_cancels_itself_has_failed(shop: Shop, store: LeaseStore) -> None:
    shop.may_end.set()
    shop.error = asyncio.CancelledError()
    assert await shop.run_once() is RunOutcome.FAILED
    assert store.finishes[0].error == "it cancelled itself"


async def test_a_job_that_is_no_coroutine_has_failed(shop: Shop, store: LeaseStore) -> None:
    shop.runner._jobs[JOB] = lambda _run: None  # type: ignore[assignment,return-value]
    assert await shop.run_once() is RunOutcome.FAILED
    assert not store.is_held(LOCK)


async def test_outcomes_are_counted(shop: Shop) -> None:
    shop.may_end.set()
    await shop.run_once()
    shop.error = ValueError("now it fails")
    await shop.run_once()
    assert shop.runner.outcomes == {(JOB, RunOutcome.SUCCEEDED): 1, (JOB, RunOutcome.FAILED): 1}


async def test_what_is_not_due_is_not_run(shop: Shop, store: LeaseStore) -> None:
    store.is_due = False
    assert await shop.run_once() is None
    assert shop.runs == []


async def test_what_somebody_else_runs_is_not_run(shop: Shop, store: LeaseStore) -> None:
    await store.acquire_lease(LOCK, "another", "attempt", TIMEOUT)
    assert await shop.run_once() is None
    assert (shop.runs, shop.counters.contended) == ([], 1)


# Keeping the lock.


@pytest.mark.parametrize(("timeout", "seconds"), [(120, 30.0), (1000, 30.0), (60, 15.0), (1, 0.25)])
def test_the_lock_is_renewed_four_times_in_its_timeout_and_at_least_every_half_minute(
    timeout: int, seconds: float
) -> None:
    assert renew_seconds(timeout * SECOND) == seconds


async def test_a_run_that_renews_may_take_longer_than_its_lock_timeout(hurried: Shop, store: LeaseStore) -> None:
    running = await hurried.begun()
    for _ in range(3):
        store.now += timedelta(microseconds=SHORT_TIMEOUT * 3 // 4)
        renewals = store.asked.count("renew_lease")
        await eventually(lambda before=renewals: store.asked.count("renew_lease") > before + 1)  # type: ignore[misc]
    assert not running.done()
    hurried.may_end.set()
    assert await running is RunOutcome.SUCCEEDED


async def test_two_renewals_that_fail_do_not_end_the_run(hurried: Shop, store: LeaseStore) -> None:
    store.before["renew_lease"] = [away, away]
    running = await hurried.begun()
    await eventually(lambda: store.asked.count("renew_lease") >= 4)
    hurried.may_end.set()
    assert await running is RunOutcome.SUCCEEDED


async def test_failures_that_are_not_in_a_row_do_not_add_up(hurried: Shop, store: LeaseStore) -> None:
    running = await hurried.begun()
    for _ in range(3):
        renewals = store.asked.count("renew_lease")
        store.before["renew_lease"] = [away]
        await eventually(lambda before=renewals: store.asked.count("renew_lease") >= before + 2)  # type: ignore[misc]
    hurried.may_end.set()
    assert await running is RunOutcome.SUCCEEDED


async def test_three_failed_renewals_in_a_row_abandon_the_run(hurried: Shop, store: LeaseStore) -> None:
    store.before["renew_lease"] = [away, away, away]
    running = await hurried.begun()
    with capture_logs() as logs:
        assert await running is RunOutcome.ABANDONED
    assert hurried.was_cancelled
    assert (outcomes(store), store.asked.count("renew_lease")) == ([RunOutcome.ABANDONED], 3)
    assert [entry["job"] for entry in logs if entry["event"] == "job.abandoned"] == [JOB]


async def test_an_unexpected_error_counts_as_a_failed_renewal(hurried: Shop, store: LeaseStore) -> None:
    store.before["renew_lease"] = [lambda: RuntimeError("read-only transaction")] * 3
    running = await hurried.begun()
    assert await running is RunOutcome.ABANDONED
    assert hurried.was_cancelled


async def test_a_run_whose_lock_belongs_to_another_is_cancelled_and_noted_by_nobody(
    hurried: Shop, store: LeaseStore
) -> None:
    running = await hurried.begun()
    store.steal(LOCK)
    assert await running is None
    assert (hurried.was_cancelled, store.finishes) == (True, [])


async def test_a_run_is_cancelled_at_the_end_of_trust(hurried: Shop, store: LeaseStore, clock: HostClock) -> None:
    running = await hurried.begun()
    store.before["renew_lease"] = [away]
    await eventually(lambda: "renew_lease" in store.asked)
    clock.move(0.9 * SHORT_TIMEOUT / SECOND)
    assert await running in (RunOutcome.ABANDONED, None)
    assert hurried.was_cancelled


async def test_a_run_is_cancelled_at_the_end_of_trust_while_a_renewal_hangs(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real clock: a lock of half a second is trusted for 450 ms, and the answer never comes."""
    monkeypatch.setattr("tenure.leases.cancelling.PATIENCE_SECONDS", 0.01)
    shop = Shop(store, SECOND // 2)
    await shop.runner.register()
    may_answer = store.hold_back("renew_lease")
    running = await shop.begun()
    with suppress(TimeoutError):
        await eventually(lambda: shop.was_cancelled, BOUND_SECONDS / 4)
    was_cancelled = shop.was_cancelled
    may_answer.set()
    shop.may_end.set()
    await asyncio.wait({running})
    assert was_cancelled


async def test_no_fence_is_given_out_once_a_run_is_abandoned(hurried: Shop, store: LeaseStore) -> None:
    store.before["renew_lease"] = [away, away, away]
    running = await hurried.begun()
    await running
    with pytest.raises(LeaseLost):
        _ = hurried.runs[0].fence


async def test_a_job_that_will_not_stop_keeps_its_lock(
    hurried: Shop, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still be at it: nobody else must begin before the lock has run out."""
    monkeypatch.setattr("tenure.leases.cancelling.PATIENCE_SECONDS", 0.005)

    async def stubborn(run: ActiveRun) -> None:
        hurried.runs.append(run)
        while not hurried.may_end.is_set():
            try:
                await hurried.may_end.wait()
            except asyncio.CancelledError:
                continue

    hurried.runner._jobs[JOB] = stubborn
    store.before["renew_lease"] = [away, away, away]
    running = await hurried.begun()
    with capture_logs() as logs:
        assert await running is None
    held = store.is_held(LOCK)
    hurried.may_end.set()
    assert (held, store.finishes) == (True, [])
    assert [entry["lease"] for entry in logs if entry["event"] == "work_will_not_stop"] == [LOCK]


# Noting the end.


async def test_an_end_that_cannot_be_noted_is_noted_later(shop: Shop, store: LeaseStore) -> None:
    store.before["finish_run"] = [away, away, away]
    shop.may_end.set()
    assert await shop.run_once() is RunOutcome.SUCCEEDED
    assert outcomes(store) == [RunOutcome.SUCCEEDED]


async def test_an_end_is_not_noted_after_the_end_of_trust(shop: Shop, store: LeaseStore, clock: HostClock) -> None:
    running = await shop.begun()
    store.is_away = away
    shop.may_end.set()
    await eventually(lambda: store.asked.count("finish_run") >= 2)
    clock.move(108)
    with capture_logs() as logs:
        assert await running is None
    tries = store.asked.count("finish_run")
    store.is_away = None
    await asyncio.sleep(0.01)
    assert (store.asked.count("finish_run"), store.finishes) == (tries, [])
    assert [entry["job"] for entry in logs if entry["event"] == "job.lock_lost"] == [JOB]


async def test_an_end_that_was_noted_without_an_answer_is_counted_once(shop: Shop, store: LeaseStore) -> None:
    store.after["finish_run"] = [away]
    shop.may_end.set()
    assert await shop.run_once() is RunOutcome.SUCCEEDED
    assert (sum(shop.runner.outcomes.values()), len(store.finishes)) == (1, 1)


async def test_an_unexpected_error_in_noting_is_tried_again(shop: Shop, store: LeaseStore) -> None:
    store.before["finish_run"] = [lambda: RuntimeError("no space left on device")]
    shop.may_end.set()
    assert await shop.run_once() is RunOutcome.SUCCEEDED


async def test_a_job_that_found_its_lock_lost_is_noted_by_nobody(shop: Shop, store: LeaseStore) -> None:
    running = await shop.begun()
    store.steal(LOCK)
    shop.error = LeaseLost("us does not hold the lease job:tidy in epoch 1")
    shop.may_end.set()
    assert await running is None
    assert store.finishes == []


async def test_a_job_that_lost_another_lease_has_failed(shop: Shop, store: LeaseStore) -> None:
    """Its own lock is as good as ever, and must not be held until it runs out."""
    shop.error = LeaseLost("us does not hold the lease import in epoch 7")
    shop.may_end.set()
    assert await shop.run_once() is RunOutcome.FAILED
    assert not store.is_held(LOCK)


# Looking at the board.


async def test_begins_what_is_due(shop: Shop) -> None:
    assert shop.look() is None
    await eventually(lambda: len(shop.runs) == 1)


async def test_does_not_begin_twice_what_it_runs(shop: Shop, store: LeaseStore) -> None:
    nobody_has_it = store.board()
    shop.look()
    shop.runner.look(nobody_has_it)
    await eventually(lambda: len(shop.runs) == 1)
    shop.runner.look(nobody_has_it)
    await asyncio.sleep(0.005)
    assert store.asked.count("begin_run") == 1


async def test_tells_when_the_next_tick_is(shop: Shop, store: LeaseStore) -> None:
    store.now -= timedelta(seconds=0.25)
    assert shop.look() == 0.25
    assert shop.runs == []


async def test_does_not_begin_what_another_runs(shop: Shop, store: LeaseStore) -> None:
    await store.acquire_lease(LOCK, "another", "attempt", TIMEOUT)
    assert shop.look() is None
    await asyncio.sleep(0.005)
    assert "begin_run" not in store.asked


async def test_jobs_of_others_are_not_its_business(shop: Shop, store: LeaseStore) -> None:
    await store.register_jobs([JobSettings("unknown", SECOND, TIMEOUT)])
    shop.look()
    await eventually(lambda: len(shop.runs) == 1)
    assert store.asked.count("begin_run") == 1


async def test_a_begin_that_fails_is_tried_again_at_the_next_look(shop: Shop, store: LeaseStore) -> None:
    store.before["begin_run"] = [away]
    shop.look()
    await eventually(lambda: store.asked == ["begin_run"] and not shop.runner._running)
    shop.look()
    await eventually(lambda: len(shop.runs) == 1)


async def test_looks_again_at_once_after_a_run(shop: Shop) -> None:
    shop.may_end.set()
    shop.look()
    await eventually(lambda: shop.wakes == 1)


# Stopping.


async def test_stopping_lets_a_run_end_by_itself(
    shop: Shop, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.jobs.runner.GRACE_SECONDS", BOUND_SECONDS)
    shop.look()
    await eventually(lambda: len(shop.runs) == 1)
    stopping = asyncio.create_task(shop.runner.stop())
    await asyncio.sleep(0.005)
    shop.may_end.set()
    await stopping
    assert outcomes(store) == [RunOutcome.SUCCEEDED]


async def test_stopping_abandons_a_run_that_does_not_end(shop: Shop, store: LeaseStore) -> None:
    shop.look()
    await eventually(lambda: len(shop.runs) == 1)
    async with asyncio.timeout(BOUND_SECONDS):
        await shop.runner.stop()
    assert (shop.was_cancelled, outcomes(store)) == (True, [RunOutcome.ABANDONED])
    assert not store.is_held(LOCK)


async def test_begins_nothing_once_it_stops(shop: Shop, store: LeaseStore) -> None:
    await shop.runner.stop()
    assert shop.look() is None
    await asyncio.sleep(0.005)
    assert "begin_run" not in store.asked


async def test_a_run_whose_begin_is_answered_after_the_stop_leaves_no_lock(shop: Shop, store: LeaseStore) -> None:
    may_answer = store.hold_back("begin_run")
    shop.look()
    await eventually(lambda: store.is_held(LOCK))
    stopping = asyncio.create_task(shop.runner.stop())
    await asyncio.sleep(0)
    may_answer.set()
    async with asyncio.timeout(BOUND_SECONDS):
        await stopping
    assert not store.is_held(LOCK)


async def test_stopping_does_not_wait_for_a_database_that_is_away(shop: Shop, store: LeaseStore) -> None:
    """The lock is trusted for nearly two minutes more; nobody can wait that long for an end to be noted."""
    shop.look()
    await eventually(lambda: len(shop.runs) == 1)
    store.is_away = away
    shop.may_end.set()
    await eventually(lambda: "finish_run" in store.asked)
    stopping = asyncio.create_task(shop.runner.stop())
    done, _ = await asyncio.wait({stopping}, timeout=BOUND_SECONDS)
    store.is_away = None
    await asyncio.wait({stopping})
    assert done
