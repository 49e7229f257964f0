"""Compares leases and jobs of the store with those of the model, with a clock that jumps forward and back.

The model predicts the result of each call. Three guarantees are also checked separately:

- Epochs only increase.
- No fence of an old epoch is accepted after the next acquire.
- No tick of a job is lost. No tick succeeds twice, unless the clock was stepped back by more than an interval: then the
  ticks that the clock repeats run again.
"""

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from tenure.domain.jobs import BeginRunOutcome, BeginRunResult, JobCommand, JobSettings, Pruned, RunOutcome
from tenure.domain.leases import AcquireResult, Fence
from tenure.errors import LeaseLost
from tenure.ids import new_id
from tests.model.leases import GRID_BEGINS, HELD, IDLE, LeaseModel
from tests.model.machines import MORE_EXAMPLES, StoreMachine, bound_to_database, run_examples
from tests.support.audit_log import ACTOR
from tests.support.leases import read_table
from tests.support.open_requests import NOON, SECOND

ALL = 500
LEASES = ("leader", "archive")
JOBS = ("tidy", "watch")
LOCKS = tuple(f"job:{job}" for job in JOBS)
INTERVALS = {"tidy": 60 * SECOND, "watch": 7 * SECOND}
RETRY = 7 * SECOND
intervals = st.sampled_from([10 * SECOND, *INTERVALS.values()])

holders = st.sampled_from(["one", "two", "three"])
leases = st.sampled_from(LEASES)
jobs = st.sampled_from(JOBS)
all_names = st.sampled_from(LEASES + LOCKS)
ages = st.sampled_from([0, 0, 0, 0, 1, 2])
"""The age of a fence: how many newer fences of the same lease exist."""
lengths = st.sampled_from([SECOND, 20 * SECOND, 120 * SECOND])
outcomes = st.sampled_from([RunOutcome.SUCCEEDED, RunOutcome.SUCCEEDED, RunOutcome.FAILED, RunOutcome.ABANDONED])
steps = st.sampled_from([1, SECOND, 7 * SECOND, 20 * SECOND, 60 * SECOND, 60 * SECOND, 120 * SECOND, 600 * SECOND])


class LeaseMachine(StoreMachine):
    @initialize()
    def start(self) -> None:
        self.now = NOON
        self.model = LeaseModel()
        self.issued: dict[str, list[Fence]] = defaultdict(list)
        self.tries: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.done: dict[str, set[datetime]] = defaultdict(set)
        for name in ("leases", "lease_history", "jobs", "job_runs"):
            self.run(self.database.execute(f"DELETE FROM {name}"))
        self._set_clock()
        for job, interval in INTERVALS.items():
            self._register(JobSettings(job, interval, 120 * SECOND))

    # Leases

    @rule(name=leases, holder=holders, length=lengths)
    def acquire(self, name: str, holder: str, length: int) -> None:
        self._acquire(name, holder, new_id(), length)

    @precondition(lambda self: any(self.tries[name] for name in LEASES))
    @rule(name=leases, age=ages, length=lengths)
    def repeat_an_acquire(self, name: str, age: int, length: int) -> None:
        for holder, attempt in self.tries[name][-1 - age :][:1]:
            self._acquire(name, holder, attempt, length)

    def _acquire(self, name: str, holder: str, attempt: str, length: int) -> None:
        found: AcquireResult = self._same(
            self.store.acquire_lease(name, holder, attempt, length),
            lambda: self.model.acquire(name, holder, attempt, length, self.now),
        )
        self.tries[name].append((holder, attempt))
        if found.taken:
            self._note(found.lease.fence)

    @precondition(lambda self: any(self.issued.values()))
    @rule(name=all_names, age=ages, length=lengths)
    def renew(self, name: str, age: int, length: int) -> None:
        fence = self._fence(name, age)
        self._fenced(fence, self.store.renew_lease(fence, length), lambda: self.model.renew(fence, length, self.now))

    @precondition(lambda self: any(self.issued[name] for name in LEASES))
    @rule(name=leases, age=ages)
    def release(self, name: str, age: int) -> None:
        fence = self._fence(name, age)
        self._fenced(fence, self.store.release_lease(fence), lambda: self.model.release(fence, self.now))

    @precondition(lambda self: any(self.issued.values()))
    @rule(name=all_names)
    def resign(self, name: str) -> None:
        self._same(self.store.resign_lease(name, ACTOR), lambda: self.model.resign(name, self.now))

    # Jobs

    @rule(job=jobs, holder=holders)
    def begin(self, job: str, holder: str) -> None:
        self._begin(job, holder, new_id())

    @precondition(lambda self: any(self.tries[job] for job in JOBS))
    @rule(job=jobs, age=ages)
    def repeat_a_begin(self, job: str, age: int) -> None:
        for holder, attempt in self.tries[job][-1 - age :][:1]:
            self._begin(job, holder, attempt)

    def _begin(self, job: str, holder: str, attempt: str) -> BeginRunResult:
        expected = self.model.begin(job, holder, attempt, self.now)
        found: BeginRunResult = self.run(self.store.begin_run(job, holder, attempt))
        # If the lock of a job is held and the job is not due, both `held` and `idle` are correct.
        assert found == expected or (expected == HELD and found == IDLE)
        if found.fence is not None:
            self.tries[job].append((holder, attempt))
            self._note(found.fence)
            self._check_tick(job, found)
        return found

    @precondition(lambda self: any(self.issued[name] for name in LOCKS))
    @rule(job=jobs, age=ages, outcome=outcomes)
    def finish(self, job: str, age: int, outcome: RunOutcome) -> None:
        fence = self._fence(f"job:{job}", age)
        run = self.model.runs.get((job, fence.epoch))
        was_open = run is not None and run.ended_at is None
        done = self._fenced(
            fence,
            self.store.finish_run(fence, outcome, f"error of {outcome}", RETRY),
            lambda: self.model.finish(fence, outcome, f"error of {outcome}", RETRY, self.now),
        )
        if done is None and was_open and outcome is RunOutcome.SUCCEEDED:
            self._note_success(job, fence.epoch)

    @precondition(lambda self: any(self.issued[name] for name in LOCKS))
    @rule(job=jobs, age=ages)
    def fenced_write(self, job: str, age: int) -> None:
        fence = self._fence(f"job:{job}", age)

        def expected() -> Pruned:
            self.model.check(fence, self.now)
            return Pruned(0, 0, 0)

        self._fenced(fence, self.store.prune(fence, ALL), expected)

    @rule(job=jobs, holder=holders, outcome=outcomes, work=steps)
    def run_a_tick(self, job: str, holder: str, outcome: RunOutcome, work: int) -> None:
        """The run finishes before or after its lock expires."""
        self.wait_for_the_tick(job)
        self.begin(job, holder)
        self.wait(work)
        self.finish(job, 0, outcome)

    @rule(job=jobs, what=st.sampled_from(JobCommand) | st.tuples(intervals, lengths))
    def operate(self, job: str, what: JobCommand | tuple[int, int]) -> None:
        if isinstance(what, JobCommand):
            self.command(job, what)
            return
        interval, lock_timeout = what
        if interval != self.model.jobs[job].interval_microseconds:
            self.done[job].clear()  # ticks of another grid are other ticks
        self._register(JobSettings(job, interval, lock_timeout, paused=True))

    def command(self, job: str, command: JobCommand) -> None:
        self._same(self.store.command_job(job, command, ACTOR), lambda: self.model.command(job, command, self.now))

    def _register(self, one: JobSettings) -> None:
        self._same(self.store.register_jobs([one]), lambda: self.model.register(one, self.now))

    # The clock

    @rule(microseconds=steps)
    def wait(self, microseconds: int) -> None:
        self.now += timedelta(microseconds=microseconds)
        self._set_clock()

    @rule(microseconds=steps)
    def jump_back(self, microseconds: int) -> None:
        self.now -= timedelta(microseconds=microseconds)
        self._set_clock()

    @rule(name=all_names, early=st.booleans())
    def wait_until_it_expires(self, name: str, early: bool) -> None:
        lease = self.model.read(self.now).get(name)
        if lease is not None and lease.held:
            self.now = lease.expires_at - timedelta(microseconds=early)
            self._set_clock()

    def wait_for_the_tick(self, job: str) -> None:
        known = self.model.jobs[job]
        self.now = max(self.now, known.next_run_at, known.retry_at or self.now)
        self._set_clock()

    # Invariants

    @invariant()
    def reads_match_model(self) -> None:
        found = self.run(self.store.list_leases(None, ALL))
        assert {lease.name: lease for lease in found} == self.model.read(self.now)
        assert {job.name: job for job in self.run(self.store.list_jobs(None, ALL))} == self.model.jobs
        for job in JOBS:
            runs = self.run(self.store.list_runs(job, None, ALL))
            assert {(job, run.epoch): run for run in runs} == {
                key: run for key, run in self.model.runs.items() if key[0] == job
            }

    def teardown(self) -> None:
        """No tick is lost: at the end, each job can still run for its oldest tick that has not succeeded."""
        if not hasattr(self, "model"):
            return
        self._check_history()
        self.now = max([self.now, NOON, *(lease.expires_at for lease in self.model.read(self.now).values())])
        self.now += timedelta(days=1)
        self._set_clock()
        for job in JOBS:
            self.command(job, JobCommand.RESUME)
            oldest_tick = self.model.jobs[job].next_run_at
            found = self._begin(job, "the last", new_id())
            assert (found.found, found.tick_at) == (BeginRunOutcome.BEGUN, oldest_tick)

    def _check_history(self) -> None:
        rows = self.run(read_table(self.database, "lease_history"))
        found = {
            (row["name"], row["epoch"]): (row["holder"], row["acquired_at"], row["ended_at"], row["how"])
            for row in rows
        }
        assert found == self.model.history

    def _note(self, fence: Fence) -> None:
        """Asserts that epochs only increase. Only a repeated call returns an epoch again."""
        known = self.issued[fence.name]
        if not known or known[-1] != fence:
            assert fence.epoch > max([0, *(one.epoch for one in known)])
            known.append(fence)

    def _check_tick(self, job: str, found: BeginRunResult) -> None:
        if found.clock_behind is not None and found.tick_at is not None:
            assert found.clock_behind - found.tick_at > 2 * self._interval(job)
            self.done[job] = {tick for tick in self.done[job] if tick < found.tick_at}
        assert found.tick_at not in self.done[job], "this tick has already succeeded"

    def _note_success(self, job: str, epoch: int) -> None:
        """A run covers every tick from its `tick_at` to the time at which the run started."""
        tick_at, started_at = self.model.run_causes[job, epoch].tick_at, self.model.runs[job, epoch].started_at
        interval = self._interval(job)
        if tick_at is None or (tick_at - GRID_BEGINS) % interval:
            return
        ticks = {tick_at + n * interval for n in range((started_at - tick_at) // interval + 1)}
        assert not ticks & self.done[job], "this tick has already succeeded"
        self.done[job] |= ticks

    def _interval(self, job: str) -> timedelta:
        return timedelta(microseconds=self.model.jobs[job].interval_microseconds)

    def _fence(self, name: str, age: int) -> Fence:
        """Returns the fence of this age, or the oldest fence if all are newer. If the lease has no fence yet, returns a
        fence that was never issued.
        """
        return next(iter(self.issued[name][-1 - age :]), Fence(name, "stranger", 1))

    def _fenced(self, fence: Fence, call: Coroutine[Any, Any, Any], expected: Callable[[], Any]) -> Any:
        result = self._same(call, expected)
        is_newest = self.issued[fence.name][-1:] == [fence]
        assert result is LeaseLost or is_newest, f"{fence} was accepted after the next acquire"
        return result

    def _same(self, call: Coroutine[Any, Any, Any], expected: Callable[[], Any]) -> Any:
        """Checks that the store and the model agree, and returns their result: `LeaseLost` if the lease is lost."""
        wanted = _result(expected)
        found = _result(lambda: self.run(call))
        assert found == wanted
        return found


def _result(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LeaseLost:
        return LeaseLost


@pytest.fixture(params=["sqlite", "postgresql"])
def bound(request: pytest.FixtureRequest) -> Iterator[type[LeaseMachine]]:
    yield from bound_to_database(LeaseMachine, request)


def test_leases_and_jobs_match_model(bound: type[LeaseMachine]) -> None:
    run_examples(bound, examples=3, steps=50)


@pytest.mark.slow
def test_leases_and_jobs_match_model_with_more_examples(bound: type[LeaseMachine]) -> None:
    run_examples(bound, examples=MORE_EXAMPLES, steps=50)
