"""Compares submissions of the store with those of the model, while epochs change and the clock jumps forward and back.

The model predicts the result of each call. Three guarantees are also checked without the model: attempts are numbered
without gaps, only the last attempt of a submission can be open, and a pending submission has either the time of its
next attempt or an open attempt.
"""

from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from tenure.domain.leases import Fence
from tenure.domain.submissions import (
    AttemptOutcome,
    BeginAttemptOutcome,
    BeginAttemptsResult,
    SubmissionCommand,
    SubmissionFilter,
    SubmitRequest,
)
from tenure.errors import LeaseLost
from tests.model.machines import MORE_EXAMPLES, StoreMachine, bound_to_database, run_examples
from tests.model.submissions import Begun, SubmissionModel
from tests.support.audit_log import draft
from tests.support.open_requests import NOON, SECOND, some_id
from tests.support.submissions import (
    UNKNOWN,
    attempt_end,
    executor_fence,
    list_all_pending,
    next_executor_fence,
    submit_request,
)

ALL = 500
NEVER_ACCEPTED = some_id()
TABLES = ("submissions", "submission_attempts", "leases", "lease_history")

keys = st.sampled_from(
    [("caller", "ledger", "a"), ("caller", "ledger", "b"), ("caller", "pager", "a"), ("other", "ledger", "a")]
)
payloads = st.sampled_from([b"one", b"one", b"one", b"other"])
some = st.sets(st.integers(0, 4), min_size=1, max_size=5)
"""Indexes of submissions in the order of their acceptance. An index past the last submission stands for NEVER_ACCEPTED.
The rule `accept_again` uses the indexes for requests instead, beginning with the newest request."""
ages = st.sampled_from([0, 0, 0, 0, 0, 1])
"""The age of a fence: how many newer fences exist. If no fence has this age, the oldest fence is used."""
outcomes = st.sampled_from(AttemptOutcome)
backoff = st.sampled_from([None, 0, 1, 5 * SECOND, 60 * SECOND])
steps = st.sampled_from([0, 1, SECOND, 5 * SECOND, 60 * SECOND, 600 * SECOND])


class SubmissionMachine(StoreMachine):
    @initialize()
    def start(self) -> None:
        self.now = NOON
        self.model = SubmissionModel()
        self.requests: list[SubmitRequest] = []
        for name in TABLES:
            self.run(self.database.execute(f"DELETE FROM {name}"))
        self._set_clock()
        self.fences: list[Fence] = [self.run(executor_fence(self.store))]

    # Callers

    @rule(wanted=st.lists(st.tuples(keys, payloads), min_size=1, max_size=3, unique_by=lambda each: each[0]))
    def accept(self, wanted: list[tuple[tuple[str, str, str], bytes]]) -> None:
        requests = [
            submit_request(caller=caller, gateway=gateway, key=key, payload=payload)
            for (caller, gateway, key), payload in wanted
        ]
        self.requests += requests
        self._accept(requests)

    @precondition(lambda self: self.requests)
    @rule(which=some)
    def accept_again(self, which: set[int]) -> None:
        self._accept(
            [self.requests[-1 - number] for number in which if number < len(self.requests)] or self.requests[:1]
        )

    def _accept(self, requests: list[SubmitRequest]) -> None:
        self._same(self.store.accept_submissions(requests), lambda: self.model.accept(requests, self.now))

    @rule(command=st.sampled_from(SubmissionCommand), which=some)
    def command(self, command: SubmissionCommand, which: set[int]) -> None:
        ids = self._ids(which)
        self._same(
            self.store.command_submissions(command, ids, None, draft()),
            lambda: self.model.command(command, ids, self.now),
        )

    # The executor

    @rule(which=some, age=ages, early=st.sets(st.integers(0, 4), max_size=3))
    def begin(self, which: set[int], age: int, early: set[int]) -> None:
        fence, ids = self._fence(age), self._ids(which)
        early_ids = [each for each in self._ids(early) if each in ids]

        async def begun() -> dict[str, Begun]:
            return _begun(await self.store.begin_attempts(fence, ids, early_ids))

        self._fenced(fence, begun(), lambda: self.model.begin(fence.epoch, ids, self.now, early_ids))

    @rule(
        which=some,
        age=ages,
        outcome=outcomes,
        pause=backoff,
        flags=st.fixed_dictionaries({name: st.booleans() for name in ("counts", "is_binding", "has_receipt")}),
        off=st.sampled_from([0, 0, 0, -1]),
    )
    def finish(
        self, which: set[int], age: int, outcome: AttemptOutcome, pause: int | None, flags: dict[str, bool], off: int
    ) -> None:
        """Also tries to end attempts of submissions that have no open attempt. If `off` is -1, the attempt numbers are
        too low by one.
        """
        fence = self._fence(age)
        ends = [
            attempt_end(each, self.model.submissions[each].attempts + off, outcome, pause_microseconds=pause, **flags)
            for each in self._ids(which)
            if each in self.model.submissions
        ]

        async def moved() -> dict[str, Any]:
            return {each.submission_id: each for each in await self.store.finish_attempts(fence, ends)}

        if ends:
            self._fenced(fence, moved(), lambda: self.model.finish(ends, self.now))

    @rule(age=ages)
    def close_orphaned_attempts(self, age: int) -> None:
        fence = self._fence(age)
        found = self.run(self.store.list_orphaned_attempts(fence.epoch, ALL))
        assert {each.submission_id: each.number for each in found} == self.model.orphaned(fence.epoch)
        assert all(each.unknowns == self.model.submissions[each.submission_id].unknowns for each in found)
        ends = [attempt_end(each.submission_id, each.number, UNKNOWN, pause_microseconds=0) for each in found]

        async def moved() -> dict[str, Any]:
            return {each.submission_id: each for each in await self.store.finish_attempts(fence, ends)}

        if ends:
            self._fenced(fence, moved(), lambda: self.model.finish(ends, self.now))

    @rule(which=some, age=ages, error=st.sampled_from(["gone", "still gone"]))
    def explain(self, which: set[int], age: int, error: str) -> None:
        fence, ids = self._fence(age), self._ids(which)
        self._fenced(fence, self.store.note_waiting_reason(fence, ids, error), lambda: self.model.explain(ids, error))

    @rule(closes_orphans=st.booleans())
    def change_leader(self, closes_orphans: bool) -> None:
        self.fences.append(self.run(next_executor_fence(self.store)))
        if closes_orphans:
            self.close_orphaned_attempts(0)

    # The clock

    @rule(microseconds=steps)
    def wait(self, microseconds: int) -> None:
        self.now += timedelta(microseconds=microseconds)
        self._set_clock()

    @rule(microseconds=steps)
    def jump_back(self, microseconds: int) -> None:
        self.now -= timedelta(microseconds=microseconds)
        self._set_clock()

    @rule(early=st.booleans())
    def wait_until_something_is_due(self, early: bool) -> None:
        """Moves the clock to the latest `next_attempt_at`, or one microsecond before it if `early` is true."""
        due = [each.next_attempt_at for each in self.model.submissions.values() if each.next_attempt_at is not None]
        if due:
            self.now = max(due) - timedelta(microseconds=early)
            self._set_clock()

    # Invariants

    @invariant()
    def reads_match_model(self) -> None:
        found = self.run(self.store.list_submissions(SubmissionFilter(), None, ALL))
        assert {each.submission_id: each for each in found} == self.model.submissions
        for submission_id, expected in self.model.attempts.items():
            _one, attempts = self.run(self.store.get_submission(submission_id, None))
            assert attempts == expected
        assert self.run(list_all_pending(self.store, 2)) == self.model.waiting()

    @invariant()
    def attempts_are_consistent(self) -> None:
        for each in self.run(self.store.list_submissions(SubmissionFilter(), None, ALL)):
            _one, attempts = self.run(self.store.get_submission(each.submission_id, None))
            assert [attempt.number for attempt in attempts] == list(range(1, each.attempts + 1))
            assert all(attempt.ended_at is not None for attempt in attempts[:-1])
            is_open = bool(attempts) and attempts[-1].ended_at is None
            if each.state == "pending":
                assert (each.next_attempt_at is None) == is_open, "has neither a next nor an open attempt, or both"

    def _ids(self, which: set[int]) -> list[str]:
        known = list(self.model.submissions)
        return [known[number] if number < len(known) else NEVER_ACCEPTED for number in sorted(which)][: len(known) + 1]

    def _fence(self, age: int) -> Fence:
        return self.fences[-1 - min(age, len(self.fences) - 1)]

    def _fenced(self, fence: Fence, call: Coroutine[Any, Any, Any], expected: Callable[[], Any]) -> None:
        if fence == self.fences[-1]:
            self._same(call, expected)
        else:
            with pytest.raises(LeaseLost):
                self.run(call)

    def _same(self, call: Coroutine[Any, Any, Any], expected: Callable[[], Any]) -> None:
        wanted = expected()
        assert self.run(call) == wanted


def _begun(begun: BeginAttemptsResult) -> dict[str, Begun]:
    return {
        each.submission_id: (
            each.found,
            each.number if each.found is BeginAttemptOutcome.BEGUN else each.next_attempt_at,
        )
        for each in begun.attempts
    }


@pytest.fixture(params=["sqlite", "postgresql"])
def bound(request: pytest.FixtureRequest) -> Iterator[type[SubmissionMachine]]:
    yield from bound_to_database(SubmissionMachine, request)


def test_submissions_match_model(bound: type[SubmissionMachine]) -> None:
    run_examples(bound, examples=4)


@pytest.mark.slow
def test_submissions_match_model_with_more_examples(bound: type[SubmissionMachine]) -> None:
    run_examples(bound, examples=MORE_EXAMPLES)
