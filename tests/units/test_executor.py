"""Terms of the executor, with a store and a sender whose responses a test controls."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tenure.config import GatewayConfig
from tenure.domain.leases import Fence
from tenure.domain.submissions import AttemptOutcome, BeginAttemptOutcome, Contract, Envelope, SubmissionState
from tenure.domain.verdicts import Response
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.ids import id_of_number, number_of_id
from tenure.leases.held import HeldLease
from tenure.store.limits import BATCH_MAX
from tenure.submissions import executor as executor_module
from tenure.submissions.executor import CLOSE_MAX, Executor, _Term
from tenure.submissions.gateway_queue import GatewayQueue, ReadyAttempt
from tenure.submissions.gateways import Gateway
from tenure.submissions.payloads import PayloadSources, Withheld
from tenure.telemetry.events import AttemptEnded, ExecutorStopped, SubmissionNotSent, SubmissionsFoundLate
from tests.support.open_requests import SECOND
from tests.support.submission_stores import NOON_MICROSECONDS, SubmissionStore, executor_lease
from tests.support.telemetry import RecordedTelemetry

BOUND_SECONDS = 20.0
REFRESH_SECONDS = 0.02
DELIVERED, FAILED, UNKNOWN, ABANDONED = AttemptOutcome
OK = Response(200)
FAR = NOON_MICROSECONDS + 3600 * SECOND


class HeldSender:
    """Returns the responses that a test configures (by default 200), immediately or once the test allows it."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        """The numbers of the submissions that were sent, in order."""
        self.in_progress: dict[str, int] = defaultdict(int)
        self.max_concurrent: dict[str, int] = defaultdict(int)
        """The highest number of concurrent requests to each gateway."""
        self.responses: dict[int, list[Response | Exception]] = defaultdict(list)
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    async def send(self, gateway: Gateway, envelope: Envelope) -> Response:
        number = number_of_id(envelope.submission_id)
        self.sent.append(number)
        self.in_progress[gateway.name] += 1
        self.max_concurrent[gateway.name] = max(self.max_concurrent[gateway.name], self.in_progress[gateway.name])
        try:
            await asyncio.sleep(0)
            await self.may_respond.wait()
        finally:
            self.in_progress[gateway.name] -= 1
        response = self.responses[number].pop(0) if self.responses[number] else OK
        if isinstance(response, Exception):
            raise response
        return response


class Harness:
    """An executor with its store, sender and lease, and the task of its current term."""

    def __init__(self, gateways: Mapping[str, int]) -> None:
        self.store = SubmissionStore()
        self.sender = HeldSender()
        self.held: HeldLease = executor_lease()
        self.sources = PayloadSources()
        self.telemetry = RecordedTelemetry()
        configured = {
            name: Gateway(name, GatewayConfig(url="http://127.0.0.1:9/", concurrency=concurrency), self.sources)
            for name, concurrency in gateways.items()
        }
        self.executor = Executor(
            self.store,  # type: ignore[arg-type]
            configured,
            self.sources,
            self.sender,  # type: ignore[arg-type]
            REFRESH_SECONDS,
            self.telemetry,
        )
        self.term: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        self.term = asyncio.create_task(self.executor.work(self.held))
        return self.term

    async def until(self, holds: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                while not holds():  # noqa: ASYNC110 - the code under test sets no event
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise AssertionError(f"the condition was not met: {self.describe()}") from None

    def describe(self) -> str:
        ended = self.term.exception() if self.term and self.term.done() and not self.term.cancelled() else None
        return f"sent {self.sender.sent}, ends {self.store.ends}, rows {self.store.rows}, term ended with {ended!r}"

    async def stop(self) -> None:
        """Ends the term as a stopping instance does. Raises the exception of the term, if any."""
        self.held.ending.set()
        await self.ended()

    async def ended(self) -> None:
        assert self.term is not None
        async with asyncio.timeout(BOUND_SECONDS):
            await asyncio.wait({self.term})
        self.term.result()

    async def close(self) -> None:
        if self.term is not None:
            self.term.cancel()
            await asyncio.wait({self.term})


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness({"crm": 4, "slow": 2})
    yield harness
    await harness.close()


# Sending.


async def test_executor_sends_due_submissions_and_records_delivery(harness: Harness) -> None:
    harness.store.add(1, 2)
    harness.start()
    await harness.until(lambda: len(harness.telemetry.of(AttemptEnded)) == 2)
    ended = [(event.gateway, event.number, event.outcome) for event in harness.telemetry.of(AttemptEnded)]
    assert ended == [("crm", 1, DELIVERED)] * 2
    assert harness.store.outcomes() == {1: [DELIVERED], 2: [DELIVERED]}


async def test_executor_does_not_send_before_due_time(harness: Harness) -> None:
    """The first delivery in a term begins the recovery of its gateway, and a recovery allows early attempts. So the
    delivered submission of this test is for another gateway than the submission that is not due.
    """
    harness.store.add(1, due=FAR)
    harness.store.add(2, gateway="slow")
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {2: [DELIVERED]})
    await asyncio.sleep(3 * REFRESH_SECONDS)
    assert harness.sender.sent == [2]


async def test_executor_records_attempt_before_sending(harness: Harness) -> None:
    may_return = harness.store.hold_back("begin_attempts")
    harness.store.add(1)
    harness.start()
    await harness.until(lambda: harness.store.in_progress["begin_attempts"])
    await asyncio.sleep(2 * REFRESH_SECONDS)
    assert harness.sender.sent == []
    may_return.set()
    await harness.until(lambda: harness.sender.sent == [1])


async def test_pause_after_failed_attempt_comes_from_contract(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.domain.verdicts.JITTER", 0.0)
    harness.store.add(1)
    harness.sender.responses[1] = [Response(500)]
    harness.start()
    await harness.until(lambda: harness.store.ends)
    (end,) = harness.store.ends
    assert (end.outcome, end.status, end.error, end.counts) == (FAILED, 500, "answered 500", True)
    assert end.pause_microseconds == 5 * SECOND


async def test_executor_waits_for_retry_after_and_logs_failing_and_recovered_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.domain.verdicts.RETRY_AFTER_MIN_SECONDS", 0.05)
    harness.store.add(1)
    harness.sender.responses[1] = [Response(503, retry_after="0"), Response(429, retry_after="0")]
    with capture_logs() as logs:
        harness.start()
        await harness.until(lambda: any(line["event"] == "gateway.recovered" for line in logs))
    ends = [(end.outcome, end.number, end.pause_microseconds) for end in harness.store.ends]
    assert ends == [(FAILED, 1, SECOND // 20), (FAILED, 2, SECOND // 20), (DELIVERED, 3, None)]
    logged = [(line["event"], line.get("error")) for line in logs if line["event"].startswith("gateway.")]
    assert logged == [("gateway.failing", "answered 503"), ("gateway.recovered", None)]


async def test_submission_fails_after_max_attempts_of_contract(harness: Harness) -> None:
    harness.store.add(1, failures=2)
    harness.sender.responses[1] = [Response(500)]
    harness.start()
    with capture_logs() as logs:
        await harness.until(lambda: harness.store.rows[1].state == SubmissionState.FAILED)
        await harness.until(lambda: any(entry["event"] == "submission.failed" for entry in logs))


async def test_sender_exception_is_recorded_as_failed_attempt_without_its_message(harness: Harness) -> None:
    """The message of an exception may contain the address of the receiver, and the address may contain a token."""
    harness.store.add(1)
    harness.sender.responses[1] = [RuntimeError("http://receiver/tok-hunter2")]
    harness.start()
    with capture_logs():
        await harness.until(lambda: harness.store.ends)
    assert (harness.store.ends[0].outcome, harness.store.ends[0].error) == (
        FAILED,
        "the request could not be sent: RuntimeError",
    )
    assert [type(event.exception) for event in harness.telemetry.of(SubmissionNotSent)] == [RuntimeError]


async def test_response_with_unparsable_retry_after_is_recorded_as_failed(harness: Harness) -> None:
    harness.store.add(1)
    harness.sender.responses[1] = [Response(503, retry_after="Mon, 01 Jan 99999999999999999999 00:00:00 GMT")]
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {1: [FAILED]})


async def test_attempt_error_is_truncated(harness: Harness) -> None:
    harness.store.add(1)
    harness.sender.responses[1] = [Response(None, "x" * 5000)]
    harness.start()
    await harness.until(lambda: harness.store.ends)
    assert harness.store.ends[0].error == "x" * 1000


# Usage.

USAGE = Contract((5.0,), None, (409,), 10.0, "tenure")
REASON = "it does not add up"


class FakeSource:
    """A payload source that renders an empty list. `render` withholds the submissions in `not_rendered`, and
    `store_digests` withholds those in `not_stored`.
    """

    name = "usage"
    media_types: Mapping[str, str] = {"tenure": "application/json"}

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.not_rendered: set[int] = set()
        self.not_stored: set[int] = set()
        self.stored: list[int] = []

    async def render(self, envelopes: Sequence[Envelope]) -> Mapping[str, bytes | Withheld]:
        self.calls.append("render")
        ids = [envelope.submission_id for envelope in envelopes]
        return {each: Withheld(REASON) if number_of_id(each) in self.not_rendered else b"[]" for each in ids}

    async def store_digests(self, fence: Fence, envelopes: Sequence[Envelope]) -> Mapping[str, Withheld]:
        assert (fence.epoch, {envelope.payload for envelope in envelopes}) == (7, {b"[]"})
        ids = [envelope.submission_id for envelope in envelopes]
        await asyncio.sleep(0)
        self.calls.append("store digests")
        self.stored += map(number_of_id, ids)
        return {each: Withheld(REASON) for each in ids if number_of_id(each) in self.not_stored}


@pytest.fixture
def source(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    """Registers a payload source. `harness.store.calls` then also contains the calls of this source and the requests
    of the sender.
    """
    fake = FakeSource(harness.store.calls)
    send = harness.sender.send

    async def recorded(gateway: Gateway, envelope: Envelope) -> Response:
        harness.store.calls.append(f"send {envelope.payload.decode()}")
        return await send(gateway, envelope)

    monkeypatch.setattr(harness.sender, "send", recorded)
    harness.sources.register(fake)
    return fake


async def test_executor_stores_usage_digest_before_sending(harness: Harness, source: FakeSource) -> None:
    harness.store.add(1, contract=USAGE)
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {1: [DELIVERED]})
    steps = [each for each in harness.store.calls if each in ("begin_attempts", "render", "store digests", "send []")]
    assert (sorted(steps[:2]), steps[2:], source.stored) == (
        ["begin_attempts", "render"],
        ["store digests", "send []"],
        [1],
    )


async def test_executor_stores_digests_only_of_begun_attempts(harness: Harness, source: FakeSource) -> None:
    harness.store.add(1, 2, contract=USAGE)
    harness.store.found[1] = [BeginAttemptOutcome.OVER]
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {2: [DELIVERED]})
    assert source.stored == [2]


async def test_accepted_submission_is_sent_without_rendering_or_digest(harness: Harness, source: FakeSource) -> None:
    harness.store.add(1)
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {1: [DELIVERED]})
    assert [each for each in source.calls if each in ("render", "store digests")] == []
    assert 'send {"number": 1}' in source.calls


@pytest.mark.parametrize("step", ["not_rendered", "not_stored"])
async def test_withheld_usage_is_abandoned_and_retried_after_ten_minutes(
    harness: Harness, source: FakeSource, step: str
) -> None:
    getattr(source, step).add(1)
    harness.store.add(1, contract=USAGE)
    harness.start()
    with capture_logs() as logs:
        await harness.until(lambda: harness.store.ends)
    (end,) = harness.store.ends
    assert (end.outcome, end.counts, end.status, end.error) == (ABANDONED, False, None, f"not sent: {REASON}")
    assert (end.pause_microseconds, harness.sender.sent) == (600 * SECOND, [])
    assert [(each["submission_id"], each["error"]) for each in logs if each["event"] == "usage.withheld"] == [
        (id_of_number(1), REASON)
    ]


async def test_withheld_usage_does_not_delay_other_submissions(harness: Harness, source: FakeSource) -> None:
    source.not_rendered, source.not_stored = {1}, {2}
    harness.store.add(1, 2, 3, contract=USAGE)
    harness.store.add(4)
    harness.start()
    await harness.until(lambda: len(harness.store.ends) == 4)
    assert harness.store.outcomes() == {1: [ABANDONED], 2: [ABANDONED], 3: [DELIVERED], 4: [DELIVERED]}
    assert sorted(harness.sender.sent) == [3, 4]


async def test_lease_lost_while_storing_digest_ends_term(
    harness: Harness, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise LeaseLost("another epoch")

    monkeypatch.setattr(source, "store_digests", refuse)
    harness.store.add(1, contract=USAGE)
    harness.start()
    with pytest.raises(LeaseLost, match="another epoch"):
        await harness.ended()
    assert harness.sender.sent == []


# Concurrency.


async def test_executor_respects_concurrency_of_each_gateway(harness: Harness) -> None:
    harness.store.add(*range(1, 60))
    harness.store.add(*range(100, 120), gateway="slow")
    harness.start()
    await harness.until(lambda: len(harness.store.ends) == 79)
    assert harness.sender.max_concurrent == {"crm": 4, "slow": 2}


async def test_executor_begins_no_more_attempts_than_concurrency_before_first_response(harness: Harness) -> None:
    harness.sender.may_respond.clear()
    harness.store.add(*range(1, 20))
    harness.start()
    await harness.until(lambda: len(harness.sender.sent) == 4)
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert (len(harness.sender.sent), sum(row.attempts for row in harness.store.rows.values())) == (4, 4)


async def test_executor_limits_sends_while_outcomes_cannot_be_recorded(harness: Harness) -> None:
    may_return = harness.store.hold_back("finish_attempts")
    harness.store.add(*range(1, 50))
    harness.start()
    await harness.until(lambda: harness.store.in_progress["finish_attempts"])
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert len(harness.sender.sent) <= 20
    may_return.set()
    await harness.until(lambda: len(harness.store.ends) == 49)


async def test_unresponsive_receiver_delays_only_its_own_gateway(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = harness.sender.send

    async def hang_on_slow(gateway: Gateway, envelope: Envelope) -> Response:
        if gateway.name == "slow":
            await asyncio.Event().wait()
        return await send(gateway, envelope)

    monkeypatch.setattr(harness.sender, "send", hang_on_slow)
    harness.store.add(*range(100, 120), gateway="slow")
    harness.store.add(*range(1, 60))
    harness.start()
    await harness.until(lambda: len(harness.store.ends) == 59)


async def test_submission_scheduled_twice_is_not_sent_concurrently(harness: Harness) -> None:
    """A caller requests a retry before the due time, so the schedule has two entries for the submission. The second
    entry becomes due while the first is being sent, because the receiver responds late.
    """
    harness.store.add(1, due=NOON_MICROSECONDS + SECOND // 5, changed=NOON_MICROSECONDS - 60 * SECOND)
    harness.sender.may_respond.clear()
    harness.start()
    await harness.until(lambda: harness.executor.is_working and harness.store.calls.count("list_pending") >= 2)
    harness.store.rows[1].due = harness.store.rows[1].changed = harness.store.now
    await harness.until(lambda: harness.sender.sent == [1])
    # If `begin_attempts` is repeated in the same epoch, the database returns BEGUN again.
    harness.store.found[1] = [BeginAttemptOutcome.BEGUN]
    await harness.until(lambda: harness.store.now > NOON_MICROSECONDS + SECOND // 2)
    assert harness.sender.sent == [1]
    harness.sender.may_respond.set()
    await harness.until(lambda: harness.store.outcomes() == {1: [DELIVERED]})


# Outcomes of beginning an attempt.


async def test_executor_retries_submission_held_by_another_transaction(harness: Harness) -> None:
    harness.store.add(1)
    harness.store.found[1] = [BeginAttemptOutcome.HELD]
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {1: [DELIVERED]})
    assert harness.store.calls.count("begin_attempts") == 2


async def test_executor_does_not_send_submission_that_is_due_later(harness: Harness) -> None:
    harness.store.add(1)
    harness.start()
    harness.store.rows[1].due = FAR
    harness.store.found[1] = [BeginAttemptOutcome.LATER]
    await harness.until(lambda: "list_pending" in harness.store.calls)
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert harness.sender.sent == []


async def test_executor_does_not_retry_submission_that_has_ended(harness: Harness) -> None:
    harness.store.add(1)
    harness.store.found[1] = [BeginAttemptOutcome.OVER]
    harness.start()
    await harness.until(lambda: "begin_attempts" in harness.store.calls)
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert (harness.store.calls.count("begin_attempts"), harness.sender.sent) == (1, [])


async def test_held_and_ended_submissions_do_not_block_due_submissions(harness: Harness) -> None:
    harness.store.add(1, 2, 3)
    harness.store.found[1] = [BeginAttemptOutcome.OVER]
    harness.store.found[2] = [BeginAttemptOutcome.HELD]
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {2: [DELIVERED], 3: [DELIVERED]})


async def fail_and_retry(harness: Harness) -> None:
    harness.store.add(1)
    harness.sender.responses[1] = [Response(410)]
    harness.start()
    await harness.until(lambda: harness.store.rows[1].state == SubmissionState.FAILED)
    row = harness.store.rows[1]
    row.state, row.due, row.changed = SubmissionState.PENDING.value, harness.store.now, harness.store.now


async def test_executor_sends_failed_submission_after_manual_retry(harness: Harness) -> None:
    await fail_and_retry(harness)
    await harness.until(lambda: harness.store.outcomes() == {1: [FAILED, DELIVERED]})


async def test_retry_requested_before_finish_response_arrives_is_sent_immediately(harness: Harness) -> None:
    """The end of the attempt is recorded, but the response of the database is late. Before the response arrives, the
    executor reads from the database that a retry was requested.
    """
    may_return = harness.store.hold_back("finish_attempts")
    await fail_and_retry(harness)
    before = harness.store.calls.count("list_pending")
    await harness.until(lambda: harness.store.calls.count("list_pending") >= before + 3)
    may_return.set()
    await harness.until(lambda: len(harness.sender.sent) == 2)
    assert harness.telemetry.of(SubmissionsFoundLate) == []


# Hints.


async def test_hint_triggers_immediate_read(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.executor, "_refresh_seconds", 60.0)
    harness.start()
    await harness.until(lambda: "list_pending" in harness.store.calls)
    await asyncio.sleep(REFRESH_SECONDS)
    harness.store.add(1, changed=harness.store.now)
    harness.executor.hint()
    await harness.until(lambda: harness.store.outcomes() == {1: [DELIVERED]})


async def test_burst_of_hints_triggers_one_read(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.executor, "_refresh_seconds", 60.0)
    monkeypatch.setattr(executor_module, "HINT_PAUSE_SECONDS", 60.0)
    harness.start()
    await harness.until(lambda: "list_pending" in harness.store.calls)
    await asyncio.sleep(REFRESH_SECONDS)
    before = harness.store.calls.count("list_pending")
    for _ in range(20):
        harness.executor.hint()
        await asyncio.sleep(0.001)
    await harness.until(lambda: harness.store.calls.count("list_pending") > before)
    assert harness.store.calls.count("list_pending") == before + 1


async def test_hints_do_not_postpone_refresh(harness: Harness) -> None:
    """The change is two seconds old. A read after a hint finds only newer changes, so only a refresh finds this one."""
    harness.start()
    await harness.until(lambda: "list_pending" in harness.store.calls)
    harness.store.add(1, changed=harness.store.now - 2 * SECOND)
    async with asyncio.timeout(BOUND_SECONDS):
        while not harness.store.ends:
            harness.executor.hint()
            await asyncio.sleep(0.001)


async def test_hint_outside_term_is_ignored(harness: Harness) -> None:
    harness.executor.hint()
    assert not harness.executor.is_working


# Unknown gateways.


async def test_executor_records_reason_once_for_submission_of_unknown_gateway(harness: Harness) -> None:
    harness.store.add(1, gateway="gone")
    harness.start()
    await harness.until(lambda: harness.store.explained)
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert harness.store.explained == [([id_of_number(1)], "gateway gone is not configured")]
    assert (harness.store.calls.count("begin_attempts"), harness.sender.sent) == (0, [])


async def test_submission_of_unknown_gateway_does_not_delay_other_gateways(harness: Harness) -> None:
    harness.store.hold_back("note_waiting_reason")
    harness.store.add(1, gateway="gone")
    harness.store.add(2)
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {2: [DELIVERED]})


async def test_executor_records_reasons_one_batch_at_a_time(harness: Harness) -> None:
    """Concurrent batches would use all connections of the pool."""
    may_return = harness.store.hold_back("note_waiting_reason")
    harness.store.add(*range(1, 5 * BATCH_MAX), gateway="gone")
    harness.start()
    await harness.until(lambda: harness.store.in_progress["note_waiting_reason"])
    await asyncio.sleep(3 * REFRESH_SECONDS)
    may_return.set()
    await harness.until(lambda: sum(len(ids) for ids, _ in harness.store.explained) == 5 * BATCH_MAX - 1)
    assert harness.store.max_concurrent["note_waiting_reason"] == 1


# The beginning of a term.


async def test_term_closes_open_attempts_of_earlier_epochs_before_building_schedule(harness: Harness) -> None:
    harness.store.add(*range(1, 2 * CLOSE_MAX + 4), attempts=1, due=None, orphaned=True)
    harness.start()
    await harness.until(lambda: "list_pending" in harness.store.calls)
    assert harness.store.calls[:7] == ["list_orphaned_attempts", "finish_attempts"] * 3 + ["list_pending"]
    assert {end.outcome for end in harness.store.ends[: 2 * CLOSE_MAX + 3]} == {UNKNOWN}


async def test_schedule_is_discarded_if_lease_is_lost_while_building(harness: Harness) -> None:
    may_return = harness.store.hold_back("list_pending")
    harness.store.add(1)
    harness.start()
    await harness.until(lambda: harness.store.in_progress["list_pending"])
    harness.held.withdraw()
    may_return.set()
    with pytest.raises(LeaseLost):
        await harness.ended()
    assert (harness.store.calls.count("begin_attempts"), harness.sender.sent) == (0, [])


# Leadership.


async def test_executor_begins_no_attempt_after_losing_lease(harness: Harness) -> None:
    harness.start()
    await harness.until(lambda: "list_pending" in harness.store.calls)
    harness.held.withdraw()
    harness.store.add(1, changed=harness.store.now)
    with pytest.raises(LeaseLost):
        await harness.ended()
    assert (harness.store.calls.count("begin_attempts"), harness.sender.sent) == (0, [])


async def test_executor_does_not_send_begun_attempt_after_losing_lease(harness: Harness) -> None:
    """The process was paused after the attempt was begun, and before the request was sent."""
    may_return = harness.store.hold_back("begin_attempts")
    harness.store.add(1, 2)
    harness.start()
    await harness.until(lambda: harness.store.in_progress["begin_attempts"])
    harness.held.withdraw()
    may_return.set()
    with pytest.raises(LeaseLost):
        await harness.ended()
    assert (harness.sender.sent, harness.store.ends) == ([], [])


async def test_executor_does_not_send_waiting_attempt_after_losing_lease(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor begins attempts before a connection is free for them. In this test, an attempt always waits for a
    connection, because the test puts each attempt back into the queue when it is sent.
    """
    was_trusted: list[bool] = []
    send, respond = _Term._send, harness.sender.send

    def record_and_send(term: _Term, queue: GatewayQueue, ready: ReadyAttempt) -> None:
        was_trusted.append(term._held.trusted_seconds > 0)
        send(term, queue, ready)
        queue.ready.append(ready)

    async def respond_and_withdraw(gateway: Gateway, envelope: Envelope) -> Response:
        response = await respond(gateway, envelope)
        harness.held.withdraw()
        return response

    monkeypatch.setattr(_Term, "_send", record_and_send)
    monkeypatch.setattr(harness.sender, "send", respond_and_withdraw)
    harness.store.add(1)
    harness.start()
    with pytest.raises(LeaseLost):
        await harness.ended()
    assert was_trusted
    assert all(was_trusted)


@pytest.mark.parametrize("method", ["begin_attempts", "finish_attempts", "note_waiting_reason"])
async def test_lease_lost_on_write_ends_term(harness: Harness, method: str) -> None:
    harness.store.errors_before[method] = [lambda: LeaseLost("another epoch")]
    harness.store.add(1)
    harness.store.add(2, gateway="gone")
    harness.start()
    with pytest.raises(LeaseLost, match="another epoch"):
        await harness.ended()
    assert not harness.executor.is_working


@pytest.mark.parametrize(
    "method",
    [
        "list_orphaned_attempts",
        "list_pending",
        "read_envelopes",
        "begin_attempts",
        "finish_attempts",
        "note_waiting_reason",
    ],
)
async def test_unavailable_database_ends_term(harness: Harness, method: str) -> None:
    harness.store.errors_before[method] = [lambda: DatabaseUnavailable("away")]
    harness.store.add(1)
    harness.store.add(2, gateway="gone")
    harness.start()
    with pytest.raises(DatabaseUnavailable, match="away"):
        await harness.ended()


async def test_lease_lost_takes_precedence_over_other_errors(harness: Harness) -> None:
    harness.store.errors_before["read_envelopes"] = [lambda: DatabaseUnavailable("away")]
    harness.store.errors_before["note_waiting_reason"] = [lambda: LeaseLost("another epoch")]
    harness.store.add(1)
    harness.store.add(2, gateway="gone")
    harness.start()
    with pytest.raises((LeaseLost, DatabaseUnavailable)) as ended:
        await harness.ended()
    assert isinstance(ended.value, LeaseLost)


async def test_failed_term_cancels_requests_in_flight(harness: Harness) -> None:
    harness.sender.may_respond.clear()
    harness.store.add(1)
    harness.start()
    await harness.until(lambda: harness.sender.sent == [1])
    harness.store.errors_before["list_pending"] = [lambda: DatabaseUnavailable("away")]
    with pytest.raises(DatabaseUnavailable):
        await harness.ended()
    await harness.until(lambda: not harness.sender.in_progress["crm"])
    assert harness.store.ends == []


async def test_cancelled_term_cancels_requests_in_flight(harness: Harness) -> None:
    harness.sender.may_respond.clear()
    harness.store.add(1)
    term = harness.start()
    await harness.until(lambda: harness.sender.sent == [1])
    term.cancel()
    await asyncio.wait({term})
    await harness.until(lambda: not harness.sender.in_progress["crm"])
    assert (term.cancelled(), harness.store.ends) == (True, [])


async def test_next_term_sends_after_failed_term(harness: Harness) -> None:
    harness.store.errors_before["finish_attempts"] = [lambda: DatabaseUnavailable("away")]
    harness.store.add(1)
    harness.start()
    with pytest.raises(DatabaseUnavailable):
        await harness.ended()
    harness.store.rows[1].due = harness.store.now
    harness.held = executor_lease()
    harness.start()
    await harness.until(lambda: harness.store.outcomes() == {1: [DELIVERED]})


# Stopping.


async def test_stopping_executor_waits_for_responses_and_records_them(harness: Harness) -> None:
    harness.sender.may_respond.clear()
    harness.store.add(*range(1, 10))
    harness.start()
    await harness.until(lambda: len(harness.sender.sent) == 4)
    harness.held.ending.set()
    await asyncio.sleep(3 * REFRESH_SECONDS)
    assert not harness.term.done() if harness.term else False
    harness.sender.may_respond.set()
    await harness.ended()
    assert [end.outcome for end in harness.store.ends] == [DELIVERED] * 4
    assert len(harness.sender.sent) == 4
    assert len(harness.telemetry.of(ExecutorStopped)) == 1


async def test_unanswered_attempt_at_stop_is_unknown_and_due_immediately(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "ANSWERS_SECONDS", 0.05)
    harness.sender.may_respond.clear()
    harness.store.add(1)
    harness.start()
    await harness.until(lambda: harness.sender.sent == [1])
    await harness.stop()
    (end,) = harness.store.ends
    assert (end.outcome, end.counts, end.pause_microseconds) == (UNKNOWN, False, 0)
    assert end.error == "the instance stopped before it got a response"


async def test_unsent_attempt_at_stop_is_abandoned_and_due_immediately(harness: Harness) -> None:
    may_return = harness.store.hold_back("begin_attempts")
    harness.store.add(1)
    harness.start()
    await harness.until(lambda: harness.store.in_progress["begin_attempts"])
    harness.held.ending.set()
    await asyncio.sleep(REFRESH_SECONDS)
    may_return.set()
    await harness.ended()
    (end,) = harness.store.ends
    assert (end.outcome, end.counts, end.pause_microseconds) == (ABANDONED, False, 0)
    assert harness.sender.sent == []


async def test_stopping_executor_begins_no_attempts(harness: Harness) -> None:
    harness.sender.may_respond.clear()
    harness.store.add(*range(1, 20))
    harness.start()
    await harness.until(lambda: len(harness.sender.sent) == 4)
    harness.held.ending.set()
    harness.store.add(30, gateway="slow", changed=harness.store.now)
    harness.sender.may_respond.set()
    await harness.ended()
    assert harness.store.rows[30].attempts == 0
    assert sum(row.attempts for row in harness.store.rows.values()) == 4


async def test_idle_executor_stops_immediately(harness: Harness) -> None:
    harness.store.add(1, due=FAR)
    harness.start()
    await harness.until(lambda: "list_pending" in harness.store.calls)
    await harness.stop()
    assert (harness.store.ends, harness.executor.is_working) == ([], False)


async def test_term_started_while_stopping_ends_immediately(harness: Harness) -> None:
    harness.store.add(1)
    harness.held.ending.set()
    harness.start()
    await harness.ended()
    assert harness.sender.sent == []


async def test_stopping_executor_raises_lease_lost_if_outcome_is_refused(harness: Harness) -> None:
    harness.sender.may_respond.clear()
    harness.store.add(1)
    harness.start()
    await harness.until(lambda: harness.sender.sent == [1])
    harness.store.errors_before["finish_attempts"] = [lambda: LeaseLost("another epoch")]
    harness.held.ending.set()
    await asyncio.sleep(0)
    harness.sender.may_respond.set()
    with pytest.raises(LeaseLost):
        await harness.ended()


# Comparing the schedule with the database.


async def test_comparison_counts_and_logs_submissions_found_late(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "COMPARE_SECONDS", 0.0)
    harness.start()
    await harness.until(lambda: harness.store.calls.count("list_pending") >= 2)
    with capture_logs() as logs:
        harness.store.add(1, changed=harness.store.now - 60 * SECOND)
        await harness.until(lambda: harness.store.outcomes() == {1: [DELIVERED]})
    late: list[Any] = [entry for entry in logs if entry["event"] == "submissions.found_late"]
    assert [entry["count"] for entry in late] == [1]
    assert harness.telemetry.of(SubmissionsFoundLate) == [SubmissionsFoundLate(1)]


async def test_comparison_finds_nothing_in_normal_operation(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "COMPARE_SECONDS", 0.0)
    harness.start()
    for number in range(1, 30):
        harness.store.add(number, changed=harness.store.now)
        await asyncio.sleep(0.005)
    await harness.until(lambda: len(harness.store.ends) == 29)
    assert harness.telemetry.of(SubmissionsFoundLate) == []


async def test_submission_with_unknown_format_is_withheld(harness: Harness) -> None:
    """The submission does not fail, because a newer instance, which knows the format, may still become the leader."""
    harness.store.add(1, contract=Contract((5.0,), None, (409,), 10.0, "x-2"))
    with capture_logs() as logs:
        harness.start()
        await harness.until(lambda: harness.store.outcomes() == {1: [ABANDONED]})
    withheld = [(each["event"], each["error"]) for each in logs if each["event"].endswith("withheld")]
    assert withheld == [("payload.withheld", "this version does not know the format x-2")]


# Intake from a slow store.


async def test_submission_is_found_soon_after_slow_reads(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reads are slow. The pause before the next read is still at most `refresh_seconds`."""
    slow_seconds = 20 * REFRESH_SECONDS
    list_pending = harness.store.list_pending
    slow = iter([False, True, True])

    async def list_slowly(after: Any, limit: int) -> Any:
        page = await list_pending(after, limit)
        await asyncio.sleep(slow_seconds if next(slow, False) else 0)
        return page

    monkeypatch.setattr(harness.store, "list_pending", list_slowly)
    harness.start()
    await harness.until(lambda: harness.store.calls.count("list_pending") == 3)
    await asyncio.sleep(slow_seconds)
    harness.store.add(1, changed=harness.store.now)
    began = harness.store.now
    await harness.until(lambda: harness.sender.sent == [1])
    # In an earlier version, the pause was nine times the duration of the last read: 3.6 seconds in this test.
    assert harness.store.now - began < 9 * slow_seconds * SECOND / 2
