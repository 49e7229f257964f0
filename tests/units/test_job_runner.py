"""The job runner, with a store whose failures and delays a test controls."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from tenure.clock import monotonic
from tenure.config import LeasesConfig
from tenure.domain.jobs import JobSettings, RunOutcome
from tenure.errors import LeaseLost
from tenure.jobs.job import ActiveRun
from tenure.jobs.runner import JobRunner, renew_seconds
from tenure.telemetry.events import (
    JobClockBehind,
    JobFailed,
    JobFinished,
    JobNotRun,
    LeaseContended,
    LeaseRenewFailed,
)
from tests.support.lease_stores import HostClock, LeaseStore, unavailable
from tests.support.open_requests import SECOND
from tests.support.telemetry import RecordedTelemetry

JOB = "tidy"
LOCK = "job:tidy"
SHORT_TIMEOUT = SECOND // 50
"""A lock of 20 ms is renewed every 5 ms."""
TIMEOUT = 120 * SECOND
BOUND_SECONDS = 20.0


async def eventually(holds: Callable[[], bool], seconds: float = BOUND_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - the code under test sets no event
            await asyncio.sleep(0.001)


class Harness:
    """A runner with one job, which ends or fails once the test allows it."""

    def __init__(self, store: LeaseStore, lock_timeout: int = TIMEOUT) -> None:
        self.store = store
        self.runs: list[ActiveRun] = []
        self.may_end = asyncio.Event()
        self.error: BaseException | None = None
        self.was_cancelled = False
        self.wakes = 0
        self.telemetry = RecordedTelemetry()
        self.runner = JobRunner(store, "us", LeasesConfig(), self.telemetry, self._wake)  # type: ignore[arg-type]
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
        """Starts a run, and returns its task once the job has begun."""
        running = asyncio.create_task(self.run_once())
        await eventually(lambda: len(self.runs) > 0)
        return running

    def show_board(self) -> float | None:
        return self.runner.on_board(self.store.board())

    def _wake(self) -> None:
        self.wakes += 1


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    return HostClock(monkeypatch)


@pytest.fixture
async def harness(store: LeaseStore, clock: HostClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    del clock
    monkeypatch.setattr("tenure.jobs.runner.RECORD_RETRY_SECONDS", 0.002)
    monkeypatch.setattr("tenure.jobs.runner.GRACE_SECONDS", 0.01)
    harness = Harness(store)
    await harness.runner.register()
    yield harness
    harness.may_end.set()


@pytest.fixture
async def short_lock(harness: Harness, store: LeaseStore) -> Harness:
    """A runner that renews the lock of its job every few milliseconds. The clock that decides how long the lock is
    trusted stands still until the test moves it.
    """
    short_lock = Harness(store, SHORT_TIMEOUT)
    await short_lock.runner.register()
    short_lock.may_end = harness.may_end
    return short_lock


def outcomes(store: LeaseStore) -> list[RunOutcome]:
    return [finish.outcome for finish in store.finishes]


# Outcomes.


async def test_returning_job_is_recorded_as_succeeded(harness: Harness, store: LeaseStore) -> None:
    harness.may_end.set()
    assert await harness.run_once() is RunOutcome.SUCCEEDED
    (finish,) = store.finishes
    assert (finish.outcome, finish.error, finish.retry_microseconds) == (RunOutcome.SUCCEEDED, None, 0)
    assert not store.is_held(LOCK)


async def test_raising_job_is_recorded_as_failed_and_retried(harness: Harness, store: LeaseStore) -> None:
    harness.may_end.set()
    harness.error = ValueError("no such file\nand more")
    assert await harness.run_once() is RunOutcome.FAILED
    (finish,) = store.finishes
    assert (finish.error, finish.retry_microseconds) == ("ValueError: no such file", SECOND)


async def test_retry_pause_grows_with_consecutive_failures(harness: Harness, store: LeaseStore) -> None:
    store.failures_in_a_row = 3
    harness.may_end.set()
    harness.error = ValueError("again")
    await harness.run_once()
    assert store.finishes[0].retry_microseconds == 8 * SECOND


async def test_job_error_is_truncated_to_thousand_characters(harness: Harness, store: LeaseStore) -> None:
    harness.may_end.set()
    harness.error = ValueError("x" * 5000)
    await harness.run_once()
    assert len(store.finishes[0].error or "") == 1000


async def test_job_raising_cancelled_error_is_recorded_as_failed(harness: Harness, store: LeaseStore) -> None:
    harness.may_end.set()
    harness.error = asyncio.CancelledError()
    assert await harness.run_once() is RunOutcome.FAILED
    assert store.finishes[0].error == "the job cancelled itself"


async def test_non_coroutine_job_is_recorded_as_failed(harness: Harness, store: LeaseStore) -> None:
    harness.runner._jobs[JOB] = lambda _run: None  # type: ignore[assignment,return-value]
    assert await harness.run_once() is RunOutcome.FAILED
    assert not store.is_held(LOCK)


async def test_runner_reports_outcomes(harness: Harness) -> None:
    harness.may_end.set()
    await harness.run_once()
    harness.error = ValueError("now it fails")
    await harness.run_once()
    ended = [(each.job, each.outcome) for each in harness.telemetry.of(JobFinished)]
    assert ended == [(JOB, RunOutcome.SUCCEEDED), (JOB, RunOutcome.FAILED)]


async def test_end_of_run_is_reported_with_duration_and_counts(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    monkeypatch.setattr("tenure.jobs.job.monotonic", lambda: monotonic() + later)

    async def work(run: ActiveRun) -> None:
        nonlocal later
        run.count("rows", 2)
        run.count("rows", 3)
        run.count("nothing", 0)
        later = 1000.0
        if harness.error is not None:
            raise harness.error

    harness.runner._jobs[JOB] = work
    await harness.run_once()
    harness.error = ValueError("now it fails")
    await harness.run_once()
    (finished, _), (failed,) = harness.telemetry.of(JobFinished), harness.telemetry.of(JobFailed)
    assert [(each.seconds >= 1000, each.counts) for each in (finished, failed)] == [(True, {"rows": 5})] * 2


async def test_runner_does_not_run_job_before_it_is_due(harness: Harness, store: LeaseStore) -> None:
    store.is_due = False
    assert await harness.run_once() is None
    assert harness.runs == []


async def test_runner_does_not_run_job_locked_by_another_instance(harness: Harness, store: LeaseStore) -> None:
    await store.acquire_lease(LOCK, "another", "attempt", TIMEOUT)
    assert await harness.run_once() is None
    assert (harness.runs, harness.telemetry.of(LeaseContended)) == ([], [LeaseContended(LOCK)])


# Renewing the lock.


@pytest.mark.parametrize(("timeout", "seconds"), [(120, 30.0), (1000, 30.0), (60, 15.0), (1, 0.25)])
def test_lock_renewal_interval_is_quarter_of_timeout_up_to_thirty_seconds(timeout: int, seconds: float) -> None:
    assert renew_seconds(timeout * SECOND) == seconds


async def test_run_may_exceed_lock_timeout_if_lock_is_renewed(short_lock: Harness, store: LeaseStore) -> None:
    running = await short_lock.begun()
    for _ in range(3):
        store.now += timedelta(microseconds=SHORT_TIMEOUT * 3 // 4)
        renewals = store.calls.count("renew_lease")
        await eventually(lambda before=renewals: store.calls.count("renew_lease") > before + 1)  # type: ignore[misc]
    assert not running.done()
    short_lock.may_end.set()
    assert await running is RunOutcome.SUCCEEDED


async def test_two_failed_renewals_do_not_end_run(short_lock: Harness, store: LeaseStore) -> None:
    store.errors_before["renew_lease"] = [unavailable, unavailable]
    running = await short_lock.begun()
    await eventually(lambda: store.calls.count("renew_lease") >= 4)
    short_lock.may_end.set()
    assert await running is RunOutcome.SUCCEEDED
    assert [event.failures for event in short_lock.telemetry.of(LeaseRenewFailed)] == [1, 2]


async def test_nonconsecutive_renewal_failures_do_not_end_run(short_lock: Harness, store: LeaseStore) -> None:
    running = await short_lock.begun()
    for _ in range(3):
        renewals = store.calls.count("renew_lease")
        store.errors_before["renew_lease"] = [unavailable]
        await eventually(lambda before=renewals: store.calls.count("renew_lease") >= before + 2)  # type: ignore[misc]
    short_lock.may_end.set()
    assert await running is RunOutcome.SUCCEEDED


async def test_three_consecutive_failed_renewals_abandon_run(short_lock: Harness, store: LeaseStore) -> None:
    store.errors_before["renew_lease"] = [unavailable, unavailable, unavailable]
    running = await short_lock.begun()
    with capture_logs() as logs:
        assert await running is RunOutcome.ABANDONED
    assert short_lock.was_cancelled
    assert (outcomes(store), store.calls.count("renew_lease")) == ([RunOutcome.ABANDONED], 3)
    assert [entry["job"] for entry in logs if entry["event"] == "job.abandoned"] == [JOB]


async def test_unexpected_error_counts_as_failed_renewal(short_lock: Harness, store: LeaseStore) -> None:
    store.errors_before["renew_lease"] = [lambda: RuntimeError("read-only transaction")] * 3
    running = await short_lock.begun()
    assert await running is RunOutcome.ABANDONED
    assert short_lock.was_cancelled


async def test_run_with_stolen_lock_is_cancelled_and_not_recorded(short_lock: Harness, store: LeaseStore) -> None:
    running = await short_lock.begun()
    store.steal(LOCK)
    assert await running is None
    assert (short_lock.was_cancelled, store.finishes) == (True, [])


async def test_run_is_cancelled_when_trust_ends(short_lock: Harness, store: LeaseStore, clock: HostClock) -> None:
    running = await short_lock.begun()
    store.errors_before["renew_lease"] = [unavailable]
    await eventually(lambda: "renew_lease" in store.calls)
    clock.move(0.9 * SHORT_TIMEOUT / SECOND)
    assert await running in (RunOutcome.ABANDONED, None)
    assert short_lock.was_cancelled


async def test_run_is_cancelled_when_trust_ends_while_renewal_hangs(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test uses the real clock: a lock of 300 ms is trusted for 270 ms, and the renewal does not return."""
    monkeypatch.setattr("tenure.leases.waiting.CANCEL_SECONDS", 0.01)
    harness = Harness(store, 3 * SECOND // 10)
    await harness.runner.register()
    may_return = store.hold_back("renew_lease")
    running = await harness.begun()
    with suppress(TimeoutError):
        await eventually(lambda: harness.was_cancelled, BOUND_SECONDS / 4)
    was_cancelled = harness.was_cancelled
    may_return.set()
    harness.may_end.set()
    await asyncio.wait({running})
    assert was_cancelled


async def test_fence_of_abandoned_run_raises_lease_lost(short_lock: Harness, store: LeaseStore) -> None:
    store.errors_before["renew_lease"] = [unavailable, unavailable, unavailable]
    running = await short_lock.begun()
    await running
    with pytest.raises(LeaseLost):
        _ = short_lock.runs[0].fence


async def test_job_that_ignores_cancellation_keeps_its_lock(
    short_lock: Harness, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may still have effects, so no other run may begin before the lock expires."""
    monkeypatch.setattr("tenure.leases.waiting.CANCEL_SECONDS", 0.005)

    async def ignore_cancellation(run: ActiveRun) -> None:
        short_lock.runs.append(run)
        while not short_lock.may_end.is_set():
            try:
                await short_lock.may_end.wait()
            except asyncio.CancelledError:
                continue

    short_lock.runner._jobs[JOB] = ignore_cancellation
    store.errors_before["renew_lease"] = [unavailable, unavailable, unavailable]
    running = await short_lock.begun()
    with capture_logs() as logs:
        assert await running is None
    held = store.is_held(LOCK)
    short_lock.may_end.set()
    assert (held, store.finishes) == (True, [])
    assert [entry["lease"] for entry in logs if entry["event"] == "work_will_not_stop"] == [LOCK]


# Recording the end.


async def test_finish_is_retried_until_recorded(harness: Harness, store: LeaseStore) -> None:
    store.errors_before["finish_run"] = [unavailable, unavailable, unavailable]
    harness.may_end.set()
    assert await harness.run_once() is RunOutcome.SUCCEEDED
    assert outcomes(store) == [RunOutcome.SUCCEEDED]


async def test_finish_is_not_recorded_after_trust_ends(harness: Harness, store: LeaseStore, clock: HostClock) -> None:
    running = await harness.begun()
    store.always_raise = unavailable
    harness.may_end.set()
    await eventually(lambda: store.calls.count("finish_run") >= 2)
    clock.move(108)
    with capture_logs() as logs:
        assert await running is None
    attempts = store.calls.count("finish_run")
    store.always_raise = None
    await asyncio.sleep(0.01)
    assert (store.calls.count("finish_run"), store.finishes) == (attempts, [])
    assert [entry["job"] for entry in logs if entry["event"] == "job.lock_lost"] == [JOB]


async def test_finish_with_lost_response_is_counted_once(harness: Harness, store: LeaseStore) -> None:
    store.errors_after["finish_run"] = [unavailable]
    harness.may_end.set()
    assert await harness.run_once() is RunOutcome.SUCCEEDED
    assert (len(harness.telemetry.of(JobFinished)), len(store.finishes)) == (1, 1)


async def test_finish_is_retried_after_unexpected_error(harness: Harness, store: LeaseStore) -> None:
    store.errors_before["finish_run"] = [lambda: RuntimeError("no space left on device")]
    harness.may_end.set()
    assert await harness.run_once() is RunOutcome.SUCCEEDED


async def test_job_raising_lease_lost_for_its_lock_is_not_recorded(harness: Harness, store: LeaseStore) -> None:
    running = await harness.begun()
    store.steal(LOCK)
    harness.error = LeaseLost("us does not hold the lease job:tidy in epoch 1")
    harness.may_end.set()
    assert await running is None
    assert store.finishes == []


async def test_job_raising_lease_lost_for_another_lease_is_recorded_as_failed(
    harness: Harness, store: LeaseStore
) -> None:
    """The lock of the job is still valid. The runner must release the lock, not hold it until it expires."""
    harness.error = LeaseLost("us does not hold the lease import in epoch 7")
    harness.may_end.set()
    assert await harness.run_once() is RunOutcome.FAILED
    assert not store.is_held(LOCK)


# Reading the board.


async def test_runner_starts_due_job(harness: Harness) -> None:
    assert harness.show_board() is None
    await eventually(lambda: len(harness.runs) == 1)


async def test_runner_does_not_start_running_job_again(harness: Harness, store: LeaseStore) -> None:
    free = store.board()
    harness.show_board()
    harness.runner.on_board(free)
    await eventually(lambda: len(harness.runs) == 1)
    harness.runner.on_board(free)
    await asyncio.sleep(0.005)
    assert store.calls.count("begin_run") == 1


async def test_on_board_returns_seconds_until_next_tick(harness: Harness, store: LeaseStore) -> None:
    store.now -= timedelta(seconds=0.25)
    assert harness.show_board() == 0.25
    assert harness.runs == []


async def test_runner_begins_job_immediately_after_clock_step_back(harness: Harness, store: LeaseStore) -> None:
    store.now -= timedelta(hours=1)
    store.clock_behind = store.jobs[JOB].next_run_at
    assert harness.show_board() is None
    await eventually(lambda: len(harness.runs) == 1)
    assert harness.telemetry.of(JobClockBehind) == [JobClockBehind(JOB, store.now, store.clock_behind)]
    assert store.calls == ["begin_run"]


async def test_runner_does_not_start_job_that_another_instance_runs(harness: Harness, store: LeaseStore) -> None:
    await store.acquire_lease(LOCK, "another", "attempt", TIMEOUT)
    assert harness.show_board() is None
    await asyncio.sleep(0.005)
    assert "begin_run" not in store.calls


async def test_runner_ignores_unknown_jobs_on_board(harness: Harness, store: LeaseStore) -> None:
    await store.register_jobs([JobSettings("unknown", SECOND, TIMEOUT)])
    harness.show_board()
    await eventually(lambda: len(harness.runs) == 1)
    assert store.calls.count("begin_run") == 1


async def test_failed_begin_is_retried_after_pause(harness: Harness, store: LeaseStore) -> None:
    store.errors_before["begin_run"] = [unavailable]
    harness.show_board()
    await eventually(lambda: store.calls == ["begin_run"] and not harness.runner._running)
    harness.show_board()
    await eventually(lambda: len(harness.runs) == 1)


async def test_unexpected_error_of_begin_is_reported_and_retried(harness: Harness, store: LeaseStore) -> None:
    store.errors_before["begin_run"] = [lambda: RuntimeError("no space left on device")]
    harness.show_board()
    await eventually(lambda: bool(harness.telemetry.of(JobNotRun)) and not harness.runner._running)
    harness.show_board()
    await eventually(lambda: len(harness.runs) == 1)


async def test_runner_requests_board_refresh_after_run(harness: Harness) -> None:
    harness.may_end.set()
    harness.show_board()
    await eventually(lambda: harness.wakes == 1)


# Stopping.


async def test_stop_waits_for_run_within_grace(
    harness: Harness, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.jobs.runner.GRACE_SECONDS", BOUND_SECONDS)
    harness.show_board()
    await eventually(lambda: len(harness.runs) == 1)
    stopping = asyncio.create_task(harness.runner.stop())
    await asyncio.sleep(0.005)
    harness.may_end.set()
    await stopping
    assert outcomes(store) == [RunOutcome.SUCCEEDED]


async def test_stop_abandons_run_after_grace(harness: Harness, store: LeaseStore) -> None:
    harness.show_board()
    await eventually(lambda: len(harness.runs) == 1)
    async with asyncio.timeout(BOUND_SECONDS):
        await harness.runner.stop()
    assert (harness.was_cancelled, outcomes(store)) == (True, [RunOutcome.ABANDONED])
    assert not store.is_held(LOCK)


async def test_stopped_runner_starts_no_job(harness: Harness, store: LeaseStore) -> None:
    await harness.runner.stop()
    assert harness.show_board() is None
    await asyncio.sleep(0.005)
    assert "begin_run" not in store.calls


async def test_run_begun_during_stop_releases_its_lock(harness: Harness, store: LeaseStore) -> None:
    may_return = store.hold_back("begin_run")
    harness.show_board()
    await eventually(lambda: store.is_held(LOCK))
    stopping = asyncio.create_task(harness.runner.stop())
    await asyncio.sleep(0)
    may_return.set()
    async with asyncio.timeout(BOUND_SECONDS):
        await stopping
    assert not store.is_held(LOCK)


async def test_stop_does_not_wait_for_unavailable_database(harness: Harness, store: LeaseStore) -> None:
    """The lock is trusted for almost two more minutes. A stop must not try for so long to record the end of the run."""
    harness.show_board()
    await eventually(lambda: len(harness.runs) == 1)
    store.always_raise = unavailable
    harness.may_end.set()
    await eventually(lambda: "finish_run" in store.calls)
    stopping = asyncio.create_task(harness.runner.stop())
    done, _ = await asyncio.wait({stopping}, timeout=BOUND_SECONDS)
    store.always_raise = None
    await asyncio.wait({stopping})
    assert done


async def test_postponed_run_is_not_retried_at_every_board(harness: Harness, store: LeaseStore) -> None:
    """While a database refuses writes, every board shows that the job is due. So the runner pauses before it tries
    again, and a stop ends this pause.
    """
    await harness.runner.register()
    store.errors_before["begin_run"] = [unavailable] * 20
    for _ in range(20):
        harness.show_board()
        await asyncio.sleep(0.001)
    assert store.calls.count("begin_run") == 1
    async with asyncio.timeout(BOUND_SECONDS):
        await harness.runner.stop()
