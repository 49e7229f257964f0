"""A recovering gateway gets the submissions that wait for it: the executor sends early attempts at a growing rate."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tenure.domain.submissions import AttemptOutcome, Contract, SubmissionState
from tenure.domain.verdicts import UNKNOWN_MAX, Response
from tenure.ids import id_of_number
from tenure.submissions import recovery as recovery_module
from tenure.submissions import schedule as schedule_module
from tenure.submissions.recovery import Recovery
from tenure.submissions.schedule import Backlog, Entry, Schedule
from tenure.telemetry.events import GatewayFailing, GatewayRecovered, SubmissionFailed
from tests.support.open_requests import SECOND
from tests.support.submission_stores import CONTRACT, NOON_MICROSECONDS
from tests.units.test_executor import Harness

DELIVERED, FAILED, UNKNOWN, ABANDONED = AttemptOutcome
HOUR = 3600 * SECOND
FAR = NOON_MICROSECONDS + HOUR
REFUSED = Response(500)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness({"crm": 4, "slow": 2})
    yield harness
    await harness.close()


async def submit(harness: Harness, number: int) -> None:
    """Accepts a submission, and waits until the executor has recorded its first attempt."""
    harness.store.add(number, changed=harness.store.now, due=harness.store.now)
    harness.executor.hint()
    await harness.until(lambda: number in harness.store.outcomes())


async def idle() -> None:
    """Waits long enough for the executor to send what it may send now."""
    await asyncio.sleep(0.1)


# The executor.


async def test_recovered_gateway_gets_waiting_submissions_oldest_first(harness: Harness) -> None:
    harness.store.add(*range(1, 30), due=FAR, failures=1)
    harness.store.add(100)
    harness.start()
    await harness.until(lambda: len(harness.store.ends) == 30)
    assert harness.sender.sent == [100, *range(1, 30)]
    assert {row.state for row in harness.store.rows.values()} == {SubmissionState.DELIVERED}


async def test_attempt_in_progress_when_gateway_recovers_is_repeated_if_it_fails(harness: Harness) -> None:
    """The delivery of submission 1 starts the recovery. The request of submission 2 was sent before this delivery."""
    harness.store.add(1)
    harness.store.add(2, failures=1)
    harness.sender.responses[2] = [REFUSED]
    harness.start()
    await harness.until(lambda: len(harness.store.ends) == 3)
    assert harness.sender.sent == [1, 2, 2]


async def test_recovery_of_one_gateway_does_not_affect_others(harness: Harness) -> None:
    harness.store.add(1, due=FAR, gateway="slow")
    harness.store.add(2, due=FAR)
    harness.store.add(100)
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {100: [DELIVERED], 2: [DELIVERED]})
    await idle()
    assert harness.sender.sent == [100, 2]


async def test_failing_gateway_gets_no_early_attempts(harness: Harness) -> None:
    harness.store.add(1, due=FAR)
    harness.store.add(100)
    harness.sender.responses[100] = [REFUSED]
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {100: [FAILED]})
    await idle()
    assert harness.sender.sent == [100]


async def test_recovery_does_not_shorten_pause_requested_by_receiver(harness: Harness) -> None:
    harness.store.add(1)
    harness.sender.responses[1] = [Response(503, retry_after="3600"), REFUSED]
    harness.start()
    await harness.until(lambda: harness.store.ends)
    assert harness.store.ends[0].is_binding
    await submit(harness, 100)
    await idle()
    assert harness.sender.sent == [1, 100]


async def test_failed_early_attempt_does_not_count_and_its_submission_waits_until_due(harness: Harness) -> None:
    """The receiver refuses one payload, and accepts all others."""
    harness.store.add(1, due=FAR, failures=2)
    harness.store.add(2, due=FAR, failures=2)
    harness.store.add(100)
    harness.sender.responses[1] = [REFUSED]
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {100: [DELIVERED], 1: [FAILED], 2: [DELIVERED]})
    (end,) = [end for end in harness.store.ends if end.outcome is FAILED]
    assert (end.counts, end.is_binding) == (False, True)
    assert abs((harness.store.rows[1].due or 0) - FAR) < 5 * SECOND
    assert harness.store.rows[1].failures == 2


async def test_submission_in_binding_pause_gets_no_early_attempt(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_module, "CALM_SECONDS", 0.0)  # every failed request marks the gateway as failing
    harness.store.add(1, due=FAR, binding=True)
    harness.store.add(100)
    harness.start()
    for number in range(200, 206, 2):
        harness.sender.responses[number] = [REFUSED]
        await submit(harness, number)
        await submit(harness, number + 1)
    await idle()
    assert 1 not in harness.sender.sent


async def test_submission_that_ended_a_recovery_comes_last_in_the_next_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a request that the receiver never answers would be first in every recovery."""
    monkeypatch.setattr(recovery_module, "CALM_SECONDS", 0.0)  # every failed request marks the gateway as failing
    harness.store.add(1, 2, 3, due=FAR)
    harness.store.add(100)
    harness.sender.responses[1] = [REFUSED]
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {100: [DELIVERED], 1: [FAILED]})
    await idle()
    assert harness.sender.sent == [100, 1]
    assert not harness.store.ends[-1].is_binding
    await submit(harness, 101)
    await harness.until(lambda: len(harness.store.ends) == 6)
    assert harness.sender.sent == [100, 1, 101, 2, 3, 1]


async def test_withheld_payload_gets_no_early_attempts(harness: Harness) -> None:
    harness.store.add(1, contract=Contract((5.0,), None, (), 10.0, "not known here"))
    harness.start()
    with capture_logs():
        await harness.until(lambda: harness.store.outcomes() == {1: [ABANDONED]})
        assert harness.store.ends[0].is_binding
        await submit(harness, 100)
        await idle()
    assert harness.store.rows[1].attempts == 1


async def test_submission_waits_until_due_if_stop_prevents_its_early_attempt(harness: Harness) -> None:
    harness.store.add(1, due=FAR)
    harness.start()
    await harness.until(lambda: "list_pending" in harness.store.calls)
    harness.store.add(100, changed=harness.store.now)
    may_return = asyncio.Event()
    begin = harness.store.begin_attempts

    async def hold_early(fence: object, ids: list[str], early: list[str]) -> object:
        result = await begin(fence, ids, early)  # type: ignore[arg-type]
        if early:
            held.set()
            await may_return.wait()
        return result

    held = asyncio.Event()
    harness.store.begin_attempts = hold_early  # type: ignore[method-assign, assignment]
    harness.executor.hint()
    await held.wait()
    harness.held.ending.set()
    await asyncio.sleep(0.02)
    may_return.set()
    await harness.ended()
    assert harness.store.outcomes() == {100: [DELIVERED], 1: [ABANDONED]}
    assert abs((harness.store.rows[1].due or 0) - FAR) < 5 * SECOND


async def test_failure_and_recovery_of_gateway_are_each_reported_once(harness: Harness) -> None:
    harness.store.add(*range(1, 8), due=FAR)
    harness.start()
    for number in (100, 101):
        harness.sender.responses[number] = [REFUSED]
        await submit(harness, number)
    await submit(harness, 102)
    await harness.until(lambda: harness.telemetry.of(GatewayRecovered))
    assert harness.telemetry.of(GatewayFailing) == [GatewayFailing("crm", "answered 500")]
    assert harness.telemetry.of(GatewayRecovered) == [GatewayRecovered("crm", 9)]


async def test_refused_payload_among_deliveries_is_not_reported_as_failing_gateway(harness: Harness) -> None:
    harness.start()
    await submit(harness, 1)
    for number in range(2, 12, 2):
        harness.sender.responses[number] = [REFUSED]
        await submit(harness, number)
        await submit(harness, number + 1)
    assert (harness.telemetry.of(GatewayFailing), harness.telemetry.of(GatewayRecovered)) == ([], [])


# Attempts of unknown outcome.


async def test_submission_is_retried_at_once_after_first_unknown_outcome_then_after_pauses(harness: Harness) -> None:
    harness.store.add(1, attempts=1, due=None, orphaned=True)
    harness.store.add(2, attempts=2, due=None, orphaned=True, unknowns=1)
    harness.store.add(3, attempts=9, due=None, orphaned=True, unknowns=8)
    harness.start()
    await harness.until(lambda: len(harness.store.ends) >= 3)
    ends = {end.submission_id: end for end in harness.store.ends[:3]}
    pauses = [(ends[id_of_number(number)].pause_microseconds or 0) // SECOND for number in (1, 2, 3)]
    assert (pauses[0], pauses[1] in (5, 6), 30 <= pauses[2] <= 36) == (0, True, True)


async def test_submission_fails_after_too_many_unknown_outcomes(harness: Harness) -> None:
    harness.store.add(1, attempts=20, due=None, orphaned=True, unknowns=UNKNOWN_MAX - 1)
    harness.start()
    await harness.until(lambda: harness.telemetry.of(SubmissionFailed))
    (failed,) = harness.telemetry.of(SubmissionFailed)
    assert (failed.gateway, failed.error) == (
        "crm",
        "20 attempts had an unknown outcome; the last: the executor stopped before it recorded the outcome",
    )
    assert harness.store.rows[1].state == SubmissionState.FAILED


async def test_submission_without_limit_is_retried_after_any_number_of_unknown_outcomes(harness: Harness) -> None:
    forever = Contract(CONTRACT.schedule_seconds, None, (), 10.0)
    harness.store.add(1, attempts=99, due=None, orphaned=True, unknowns=98, contract=forever)
    harness.start()
    await harness.until(lambda: harness.store.ends)
    assert harness.store.rows[1].state == SubmissionState.PENDING


# The number of concurrent early attempts.


def sorted_backlog(count: int) -> Backlog:
    schedule = Schedule()
    for number in range(1, count + 1):
        schedule.add(Entry(number, "crm", FAR))
    backlog = schedule.backlog("crm", ())
    while not backlog.sort_some():
        pass
    return backlog


def test_number_of_concurrent_early_attempts_doubles_when_all_are_delivered() -> None:
    recovery = Recovery(10)
    assert recovery.deliver(0.0)
    recovery.start(sorted_backlog(100), ())
    windows = []
    for _ in range(6):
        taken = recovery.take(100)
        windows.append(len(taken))
        for _each in taken:
            recovery.begin()
        assert recovery.room == 0
        for number in range(len(taken)):
            recovery.end(number, delivered=True, refused=False)
    assert windows == [1, 2, 4, 8, 10, 10]


def test_failure_without_recent_delivery_ends_recovery() -> None:
    recovery = Recovery(10)
    assert recovery.deliver(0.0)
    recovery.start(sorted_backlog(100), ())
    assert not recovery.fail(0.9)
    assert recovery.room == 1
    assert recovery.fail(1.1)
    assert (recovery.room, recovery.take(1), recovery.deliver(2.0)) == (0, [], True)


@given(
    entries=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=60),
    forgotten=st.sets(st.integers(0, 30)),
    last=st.sets(st.integers(0, 30)),
)
def test_backlog_sorted_in_steps_is_ordered_by_age(
    entries: list[tuple[int, int]], forgotten: set[int], last: set[int]
) -> None:
    """The submissions in `last` come after all others."""
    schedule = Schedule()
    for number, due in entries:
        schedule.add(Entry(number, "crm", due))
    for number in forgotten:
        schedule.forget(number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_module, "SORT_MAX", 7)
        backlog = schedule.backlog("crm", last)
        while not backlog.sort_some():
            pass
    waiting = sorted({number for number, _ in entries} - forgotten, key=lambda number: (number in last, number))
    assert backlog.take(1000) == [id_of_number(number) for number in waiting]
