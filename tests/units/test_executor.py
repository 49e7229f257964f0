"""One term of the executor, with a store and a sender that do what no real ones can be made to do in time."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tenure.config import GatewayConfig
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.ids import id_of_number, number_of_id
from tenure.leases.held import HeldLease
from tenure.model.leases import Fence
from tenure.model.submissions import AttemptOutcome, BeginAttemptFound, Contract, Parcel, SubmissionState
from tenure.store.store import BATCH_MAX
from tenure.submissions import executor as executor_module
from tenure.submissions.executor import CLOSE_MAX, Executor
from tenure.submissions.gateways import Gateway
from tenure.submissions.verdicts import Answer
from tenure.usage.rendering import Withheld
from tests.support.submission_stores import NOON_MICROSECONDS, SubmissionStore, executor_lease
from tests.support.wishes import SECOND

BOUND_SECONDS = 20.0
REFRESH_SECONDS = 0.02
DELIVERED, FAILED, UNKNOWN, ABANDONED = AttemptOutcome
OK = Answer(200)
FAR = NOON_MICROSECONDS + 3600 * SECOND


async def eventually(holds: Callable[[], object], told: Callable[[], object] = lambda: "") -> None:
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            while not holds():  # noqa: ASYNC110 - what is waited for must not know of it
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"did not come about: {told()}") from None


class HeldSender:
    """Answers when a test says so, or at once by what it is told to."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        """The numbers of the ids, as they were sent."""
        self.under_way: dict[str, int] = defaultdict(int)
        self.most: dict[str, int] = defaultdict(int)
        """At the same time, of each gateway."""
        self.answers: dict[int, list[Answer | Exception]] = defaultdict(list)
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def send(self, gateway: Gateway, parcel: Parcel) -> Answer:
        number = number_of_id(parcel.submission_id)
        self.sent.append(number)
        self.under_way[gateway.name] += 1
        self.most[gateway.name] = max(self.most[gateway.name], self.under_way[gateway.name])
        try:
            await asyncio.sleep(0)
            await self.may_answer.wait()
        finally:
            self.under_way[gateway.name] -= 1
        given = self.answers[number].pop(0) if self.answers[number] else OK
        if isinstance(given, Exception):
            raise given
        return given


class Desk:
    """An executor, what it works with, and the term it is in."""

    def __init__(self, gateways: Mapping[str, int]) -> None:
        self.store = SubmissionStore()
        self.sender = HeldSender()
        self.held: HeldLease = executor_lease()
        made = {
            name: Gateway(name, GatewayConfig(url="http://127.0.0.1:9/", concurrency=concurrency))
            for name, concurrency in gateways.items()
        }
        self.executor = Executor(self.store, made, self.sender, REFRESH_SECONDS)  # type: ignore[arg-type]
        self.term: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        self.term = asyncio.create_task(self.executor.work(self.held))
        return self.term

    async def until(self, holds: Callable[[], object]) -> None:
        await eventually(holds, self.told)

    def told(self) -> str:
        ended = self.term.exception() if self.term and self.term.done() and not self.term.cancelled() else None
        return f"sent {self.sender.sent}, ends {self.store.ends}, rows {self.store.rows}, term ended with {ended!r}"

    async def stop(self) -> None:
        """As an instance does that stops; raises what the term ended with."""
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
async def desk() -> AsyncIterator[Desk]:
    desk = Desk({"crm": 4, "slow": 2})
    yield desk
    await desk.close()


# Sending.


async def test_sends_what_is_due_and_records_it(desk: Desk) -> None:
    desk.store.add(1, 2)
    desk.start()
    await desk.until(lambda: desk.executor.attempts == {("crm", DELIVERED): 2})
    assert desk.store.outcomes() == {1: [DELIVERED], 2: [DELIVERED]}


async def test_sends_nothing_before_it_is_due(desk: Desk) -> None:
    desk.store.add(1, due=FAR)
    desk.store.add(2)
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {2: [DELIVERED]})
    await asyncio.sleep(3 * REFRESH_SECONDS)
    assert desk.sender.sent == [2]


async def test_records_an_attempt_before_it_sends_it(desk: Desk) -> None:
    may_answer = desk.store.hold_back("begin_attempts")
    desk.store.add(1)
    desk.start()
    await desk.until(lambda: desk.store.under_way["begin_attempts"])
    await asyncio.sleep(2 * REFRESH_SECONDS)
    assert desk.sender.sent == []
    may_answer.set()
    await desk.until(lambda: desk.sender.sent == [1])


async def test_sends_again_after_the_pause_of_the_contract(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.submissions.verdicts.JITTER", 0.0)
    desk.store.add(1)
    desk.sender.answers[1] = [Answer(500)]
    desk.start()
    await desk.until(lambda: desk.store.ends)
    (end,) = desk.store.ends
    assert (end.outcome, end.status, end.error, end.counts) == (FAILED, 500, "answered 500", True)
    assert end.pause_microseconds == 5 * SECOND


async def test_sends_at_once_again_what_is_due_at_once(desk: Desk) -> None:
    desk.store.add(1)
    desk.sender.answers[1] = [Answer(503, retry_after="0"), Answer(429, retry_after="0")]
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {1: [FAILED, FAILED, DELIVERED]})
    assert [end.number for end in desk.store.ends] == [1, 2, 3]


async def test_tells_once_that_a_gateway_fails_and_once_that_it_is_well_again(desk: Desk) -> None:
    desk.store.add(1)
    desk.sender.answers[1] = [Answer(503, retry_after="0"), Answer(429, retry_after="0")]
    with capture_logs() as logs:
        desk.start()
        await desk.until(lambda: any(line["event"] == "gateway.recovered" for line in logs))
    told = [(line["event"], line.get("error")) for line in logs if line["event"].startswith("gateway.")]
    assert told == [("gateway.failing", "answered 503"), ("gateway.recovered", None)]


async def test_gives_up_when_the_contract_says_so(desk: Desk) -> None:
    desk.store.add(1, failures=2)
    desk.sender.answers[1] = [Answer(500)]
    desk.start()
    with capture_logs() as logs:
        await desk.until(lambda: desk.store.rows[1].state == SubmissionState.FAILED)
        await desk.until(lambda: any(entry["event"] == "submission.failed" for entry in logs))


async def test_a_sender_that_breaks_is_a_failure_like_any_other(desk: Desk) -> None:
    """And says nothing of what it was about: an exception may have the address in it."""
    desk.store.add(1)
    desk.sender.answers[1] = [RuntimeError("http://receiver/tok-hunter2")]
    desk.start()
    with capture_logs():
        await desk.until(lambda: desk.store.ends)
    assert (desk.store.ends[0].outcome, desk.store.ends[0].error) == (FAILED, "it could not be sent: RuntimeError")


async def test_an_answer_that_nobody_could_judge_is_recorded(desk: Desk) -> None:
    desk.store.add(1)
    desk.sender.answers[1] = [Answer(503, retry_after="Mon, 01 Jan 99999999999999999999 00:00:00 GMT")]
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {1: [FAILED]})


async def test_an_error_of_any_length_is_cut(desk: Desk) -> None:
    desk.store.add(1)
    desk.sender.answers[1] = [Answer(None, "x" * 5000)]
    desk.start()
    await desk.until(lambda: desk.store.ends)
    assert desk.store.ends[0].error == "x" * 1000


# Usage.

USAGE = Contract((5.0,), None, (409,), 10.0, "tenure")
REASON = "it does not add up"


class FakeRenderer:
    """Renders what is asked of it, and withholds what it is told to."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked
        self.not_rendered: set[int] = set()
        self.not_sealed: set[int] = set()
        self.sealed: list[int] = []

    async def render(self, parcels: Sequence[Parcel]) -> Mapping[str, bytes | Withheld]:
        self.asked.append("render")
        ids = [parcel.submission_id for parcel in parcels]
        return {each: Withheld(REASON) if number_of_id(each) in self.not_rendered else b"[]" for each in ids}

    async def seal(self, fence: Fence, bodies: Mapping[str, bytes]) -> Mapping[str, Withheld]:
        assert (fence.epoch, set(bodies.values())) == (7, {b"[]"})
        await asyncio.sleep(0)
        self.asked.append("seal")
        self.sealed += map(number_of_id, bodies)
        return {each: Withheld(REASON) for each in bodies if number_of_id(each) in self.not_sealed}


@pytest.fixture
def renderer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> FakeRenderer:
    """Of the desk; what is asked of it, and what is sent, stands among the calls of the store."""
    fake = FakeRenderer(desk.store.asked)
    send = desk.sender.send

    async def told(gateway: Gateway, parcel: Parcel) -> Answer:
        desk.store.asked.append(f"send {parcel.payload.decode()}")
        return await send(gateway, parcel)

    monkeypatch.setattr(desk.sender, "send", told)
    monkeypatch.setattr(desk.executor, "renderer", fake)
    return fake


async def test_nothing_is_sent_before_its_digest_is_stored(desk: Desk, renderer: FakeRenderer) -> None:
    desk.store.add(1, contract=USAGE)
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {1: [DELIVERED]})
    steps = [each for each in desk.store.asked if each in ("begin_attempts", "render", "seal", "send []")]
    assert (sorted(steps[:2]), steps[2:], renderer.sealed) == (["begin_attempts", "render"], ["seal", "send []"], [1])


async def test_only_what_was_begun_is_sealed(desk: Desk, renderer: FakeRenderer) -> None:
    desk.store.add(1, 2, contract=USAGE)
    desk.store.found[1] = [BeginAttemptFound.OVER]
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {2: [DELIVERED]})
    assert renderer.sealed == [2]


async def test_what_was_accepted_is_neither_rendered_nor_sealed(desk: Desk, renderer: FakeRenderer) -> None:
    desk.store.add(1)
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {1: [DELIVERED]})
    assert [each for each in renderer.asked if each in ("render", "seal")] == []
    assert 'send {"number": 1}' in renderer.asked


@pytest.mark.parametrize("step", ["not_rendered", "not_sealed"])
async def test_what_is_withheld_is_looked_at_again_after_ten_minutes(
    desk: Desk, renderer: FakeRenderer, step: str
) -> None:
    getattr(renderer, step).add(1)
    desk.store.add(1, contract=USAGE)
    desk.start()
    with capture_logs() as logs:
        await desk.until(lambda: desk.store.ends)
    (end,) = desk.store.ends
    assert (end.outcome, end.counts, end.status, end.error) == (ABANDONED, False, None, f"not sent: {REASON}")
    assert (end.pause_microseconds, desk.sender.sent) == (600 * SECOND, [])
    assert [(each["submission_id"], each["error"]) for each in logs if each["event"] == "usage.withheld"] == [
        (id_of_number(1), REASON)
    ]


async def test_what_is_withheld_does_not_hold_up_the_others(desk: Desk, renderer: FakeRenderer) -> None:
    renderer.not_rendered, renderer.not_sealed = {1}, {2}
    desk.store.add(1, 2, 3, contract=USAGE)
    desk.store.add(4)
    desk.start()
    await desk.until(lambda: len(desk.store.ends) == 4)
    assert desk.store.outcomes() == {1: [ABANDONED], 2: [ABANDONED], 3: [DELIVERED], 4: [DELIVERED]}
    assert sorted(desk.sender.sent) == [3, 4]


async def test_a_lease_that_is_lost_while_a_digest_is_stored_ends_the_term(
    desk: Desk, renderer: FakeRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise LeaseLost("another epoch")

    monkeypatch.setattr(renderer, "seal", refuse)
    desk.store.add(1, contract=USAGE)
    desk.start()
    with pytest.raises(LeaseLost, match="another epoch"):
        await desk.ended()
    assert desk.sender.sent == []


# How many at a time.


async def test_never_sends_more_at_a_time_than_a_gateway_allows(desk: Desk) -> None:
    desk.store.add(*range(1, 60))
    desk.store.add(*range(100, 120), gateway="slow")
    desk.start()
    await desk.until(lambda: len(desk.store.ends) == 79)
    assert desk.sender.most == {"crm": 4, "slow": 2}


async def test_sends_no_more_than_allowed_while_none_is_answered(desk: Desk) -> None:
    desk.sender.may_answer.clear()
    desk.store.add(*range(1, 20))
    desk.start()
    await desk.until(lambda: len(desk.sender.sent) == 4)
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert (len(desk.sender.sent), sum(row.attempts for row in desk.store.rows.values())) == (4, 4)


async def test_sends_no_more_while_what_was_sent_cannot_be_recorded(desk: Desk) -> None:
    may_answer = desk.store.hold_back("finish_attempts")
    desk.store.add(*range(1, 50))
    desk.start()
    await desk.until(lambda: desk.store.under_way["finish_attempts"])
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert len(desk.sender.sent) <= 12
    may_answer.set()
    await desk.until(lambda: len(desk.store.ends) == 49)


async def test_a_receiver_that_does_not_answer_delays_only_its_own(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    send = desk.sender.send

    async def hang_on_slow(gateway: Gateway, parcel: Parcel) -> Answer:
        if gateway.name == "slow":
            await asyncio.Event().wait()
        return await send(gateway, parcel)

    monkeypatch.setattr(desk.sender, "send", hang_on_slow)
    desk.store.add(*range(100, 120), gateway="slow")
    desk.store.add(*range(1, 60))
    desk.start()
    await desk.until(lambda: len(desk.store.ends) == 59)


async def test_does_not_send_twice_at_a_time_what_is_in_the_schedule_twice(desk: Desk) -> None:
    """It was to be sent later, then somebody wanted it sent now, and the receiver takes longer than until later."""
    desk.store.add(1, due=NOON_MICROSECONDS + SECOND // 5, changed=NOON_MICROSECONDS - 60 * SECOND)
    desk.sender.may_answer.clear()
    desk.start()
    await desk.until(lambda: desk.executor.is_working and desk.store.asked.count("list_waiting") >= 2)
    desk.store.rows[1].due = desk.store.rows[1].changed = desk.store.now
    await desk.until(lambda: desk.sender.sent == [1])
    # As the database answers to whoever asks again in the same epoch.
    desk.store.found[1] = [BeginAttemptFound.BEGUN]
    await desk.until(lambda: desk.store.now > NOON_MICROSECONDS + SECOND // 2)
    assert desk.sender.sent == [1]
    desk.sender.may_answer.set()
    await desk.until(lambda: desk.store.outcomes() == {1: [DELIVERED]})


# What the database says of what is to be sent.


async def test_asks_again_soon_for_what_somebody_else_holds(desk: Desk) -> None:
    desk.store.add(1)
    desk.store.found[1] = [BeginAttemptFound.HELD]
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {1: [DELIVERED]})
    assert desk.store.asked.count("begin_attempts") == 2


async def test_waits_for_what_the_database_says_is_due_later(desk: Desk) -> None:
    desk.store.add(1)
    desk.start()
    desk.store.rows[1].due = FAR
    desk.store.found[1] = [BeginAttemptFound.LATER]
    await desk.until(lambda: "list_waiting" in desk.store.asked)
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert desk.sender.sent == []


async def test_does_not_ask_again_for_what_is_over(desk: Desk) -> None:
    desk.store.add(1)
    desk.store.found[1] = [BeginAttemptFound.OVER]
    desk.start()
    await desk.until(lambda: "begin_attempts" in desk.store.asked)
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert (desk.store.asked.count("begin_attempts"), desk.sender.sent) == (1, [])


async def test_goes_on_with_what_is_due_beside_what_is_not(desk: Desk) -> None:
    desk.store.add(1, 2, 3)
    desk.store.found[1] = [BeginAttemptFound.OVER]
    desk.store.found[2] = [BeginAttemptFound.HELD]
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {2: [DELIVERED], 3: [DELIVERED]})


async def failed_and_retried(desk: Desk) -> None:
    desk.store.add(1)
    desk.sender.answers[1] = [Answer(410)]
    desk.start()
    await desk.until(lambda: desk.store.rows[1].state == SubmissionState.FAILED)
    row = desk.store.rows[1]
    row.state, row.due, row.changed = SubmissionState.PENDING.value, desk.store.now, desk.store.now


async def test_takes_what_is_to_be_retried_after_it_failed(desk: Desk) -> None:
    await failed_and_retried(desk)
    await desk.until(lambda: desk.store.outcomes() == {1: [FAILED, DELIVERED]})


async def test_one_that_is_retried_before_its_end_is_known_here_is_sent_at_once(desk: Desk) -> None:
    """The end is written, its answer is late, and what somebody wished since was read in between."""
    may_answer = desk.store.hold_back("finish_attempts")
    await failed_and_retried(desk)
    before = desk.store.asked.count("list_waiting")
    await desk.until(lambda: desk.store.asked.count("list_waiting") >= before + 3)
    may_answer.set()
    await desk.until(lambda: len(desk.sender.sent) == 2)
    assert desk.executor.found_late == 0


# Hints.


async def test_a_hint_is_followed_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.executor, "_refresh_seconds", 60.0)
    desk.start()
    await desk.until(lambda: "list_waiting" in desk.store.asked)
    await asyncio.sleep(REFRESH_SECONDS)
    desk.store.add(1, changed=desk.store.now)
    desk.executor.hint()
    await desk.until(lambda: desk.store.outcomes() == {1: [DELIVERED]})


async def test_many_hints_are_one_look(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.executor, "_refresh_seconds", 60.0)
    monkeypatch.setattr(executor_module, "HINT_PAUSE_SECONDS", 60.0)
    desk.start()
    await desk.until(lambda: "list_waiting" in desk.store.asked)
    await asyncio.sleep(REFRESH_SECONDS)
    before = desk.store.asked.count("list_waiting")
    for _ in range(20):
        desk.executor.hint()
        await asyncio.sleep(0.001)
    await desk.until(lambda: desk.store.asked.count("list_waiting") > before)
    assert desk.store.asked.count("list_waiting") == before + 1


async def test_hints_do_not_put_off_the_refresh(desk: Desk) -> None:
    """What a look misses, a refresh must find, however often there is a hint."""
    desk.start()
    await desk.until(lambda: "list_waiting" in desk.store.asked)
    desk.store.add(1, changed=desk.store.now - 2 * SECOND)
    async with asyncio.timeout(BOUND_SECONDS):
        while not desk.store.ends:
            desk.executor.hint()
            await asyncio.sleep(0.001)


async def test_a_hint_without_a_term_is_harmless(desk: Desk) -> None:
    desk.executor.hint()
    assert not desk.executor.is_working


# Gateways that are not set up.


async def test_says_of_what_has_no_gateway_why_it_waits(desk: Desk) -> None:
    desk.store.add(1, gateway="gone")
    desk.start()
    await desk.until(lambda: desk.store.explained)
    await asyncio.sleep(5 * REFRESH_SECONDS)
    assert desk.store.explained == [([id_of_number(1)], "gateway gone is not set up")]
    assert (desk.store.asked.count("begin_attempts"), desk.sender.sent) == (0, [])


async def test_what_has_no_gateway_does_not_delay_the_others(desk: Desk) -> None:
    desk.store.hold_back("explain_waiting")
    desk.store.add(1, gateway="gone")
    desk.store.add(2)
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {2: [DELIVERED]})


async def test_explains_much_in_one_write_at_a_time(desk: Desk) -> None:
    """As many at once as there are would take every connection from all else."""
    may_answer = desk.store.hold_back("explain_waiting")
    desk.store.add(*range(1, 5 * BATCH_MAX), gateway="gone")
    desk.start()
    await desk.until(lambda: desk.store.under_way["explain_waiting"])
    await asyncio.sleep(3 * REFRESH_SECONDS)
    may_answer.set()
    await desk.until(lambda: sum(len(ids) for ids, _ in desk.store.explained) == 5 * BATCH_MAX - 1)
    assert desk.store.most["explain_waiting"] == 1


# The beginning.


async def test_closes_all_that_earlier_epochs_left_open_before_it_builds(desk: Desk) -> None:
    desk.store.unknown = [CLOSE_MAX, CLOSE_MAX, 3]
    desk.start()
    await desk.until(lambda: "list_waiting" in desk.store.asked)
    assert desk.store.asked[:4] == ["close_unknown"] * 3 + ["list_waiting"]


async def test_a_schedule_that_was_built_without_leadership_is_thrown_away(desk: Desk) -> None:
    may_answer = desk.store.hold_back("list_waiting")
    desk.store.add(1)
    desk.start()
    await desk.until(lambda: desk.store.under_way["list_waiting"])
    desk.held.give_up()
    may_answer.set()
    with pytest.raises(LeaseLost):
        await desk.ended()
    assert (desk.store.asked.count("begin_attempts"), desk.sender.sent) == (0, [])


# Leadership.


async def test_does_not_begin_what_it_may_no_longer(desk: Desk) -> None:
    desk.start()
    await desk.until(lambda: "list_waiting" in desk.store.asked)
    desk.held.give_up()
    desk.store.add(1, changed=desk.store.now)
    with pytest.raises(LeaseLost):
        await desk.ended()
    assert (desk.store.asked.count("begin_attempts"), desk.sender.sent) == (0, [])


async def test_does_not_send_what_was_begun_when_the_lease_was_over(desk: Desk) -> None:
    """The process was stopped between the two."""
    may_answer = desk.store.hold_back("begin_attempts")
    desk.store.add(1, 2)
    desk.start()
    await desk.until(lambda: desk.store.under_way["begin_attempts"])
    desk.held.give_up()
    may_answer.set()
    with pytest.raises(LeaseLost):
        await desk.ended()
    assert (desk.sender.sent, desk.store.ends) == ([], [])


@pytest.mark.parametrize("method", ["close_unknown", "begin_attempts", "finish_attempts", "explain_waiting"])
async def test_a_refused_write_ends_the_term_as_a_lost_lease(desk: Desk, method: str) -> None:
    desk.store.before[method] = [lambda: LeaseLost("another epoch")]
    desk.store.add(1)
    desk.store.add(2, gateway="gone")
    desk.start()
    with pytest.raises(LeaseLost, match="another epoch"):
        await desk.ended()
    assert not desk.executor.is_working


@pytest.mark.parametrize(
    "method",
    ["close_unknown", "list_waiting", "read_parcels", "begin_attempts", "finish_attempts", "explain_waiting"],
)
async def test_a_database_that_does_not_answer_ends_the_term(desk: Desk, method: str) -> None:
    desk.store.before[method] = [lambda: DatabaseUnavailable("away")]
    desk.store.add(1)
    desk.store.add(2, gateway="gone")
    desk.start()
    with pytest.raises(DatabaseUnavailable, match="away"):
        await desk.ended()


async def test_a_lost_lease_is_what_is_told_of_several_troubles(desk: Desk) -> None:
    desk.store.before["read_parcels"] = [lambda: DatabaseUnavailable("away")]
    desk.store.before["explain_waiting"] = [lambda: LeaseLost("another epoch")]
    desk.store.add(1)
    desk.store.add(2, gateway="gone")
    desk.start()
    with pytest.raises((LeaseLost, DatabaseUnavailable)) as ended:
        await desk.ended()
    assert isinstance(ended.value, LeaseLost)


async def test_a_term_that_ended_leaves_no_request_behind(desk: Desk) -> None:
    desk.sender.may_answer.clear()
    desk.store.add(1)
    desk.start()
    await desk.until(lambda: desk.sender.sent == [1])
    desk.store.before["list_waiting"] = [lambda: DatabaseUnavailable("away")]
    with pytest.raises(DatabaseUnavailable):
        await desk.ended()
    await desk.until(lambda: not desk.sender.under_way["crm"])
    assert desk.store.ends == []


async def test_a_term_that_is_cancelled_leaves_no_request_behind(desk: Desk) -> None:
    desk.sender.may_answer.clear()
    desk.store.add(1)
    term = desk.start()
    await desk.until(lambda: desk.sender.sent == [1])
    term.cancel()
    await asyncio.wait({term})
    await desk.until(lambda: not desk.sender.under_way["crm"])
    assert (term.cancelled(), desk.store.ends) == (True, [])


async def test_the_next_term_begins_anew(desk: Desk) -> None:
    desk.store.before["finish_attempts"] = [lambda: DatabaseUnavailable("away")]
    desk.store.add(1)
    desk.start()
    with pytest.raises(DatabaseUnavailable):
        await desk.ended()
    desk.store.rows[1].due = desk.store.now
    desk.held = executor_lease()
    desk.start()
    await desk.until(lambda: desk.store.outcomes() == {1: [DELIVERED]})


# The end.


async def test_an_instance_that_stops_waits_for_answers_and_records_them(desk: Desk) -> None:
    desk.sender.may_answer.clear()
    desk.store.add(*range(1, 10))
    desk.start()
    await desk.until(lambda: len(desk.sender.sent) == 4)
    desk.held.ending.set()
    await asyncio.sleep(3 * REFRESH_SECONDS)
    assert not desk.term.done() if desk.term else False
    desk.sender.may_answer.set()
    await desk.ended()
    assert [end.outcome for end in desk.store.ends] == [DELIVERED] * 4
    assert len(desk.sender.sent) == 4


async def test_what_is_not_answered_in_time_is_unknown_and_due_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "ANSWERS_SECONDS", 0.05)
    desk.sender.may_answer.clear()
    desk.store.add(1)
    desk.start()
    await desk.until(lambda: desk.sender.sent == [1])
    await desk.stop()
    (end,) = desk.store.ends
    assert (end.outcome, end.counts, end.pause_microseconds) == (UNKNOWN, False, 0)
    assert end.error == "the instance stopped before an answer came"


async def test_what_was_begun_and_not_sent_is_abandoned_and_due_at_once(desk: Desk) -> None:
    may_answer = desk.store.hold_back("begin_attempts")
    desk.store.add(1)
    desk.start()
    await desk.until(lambda: desk.store.under_way["begin_attempts"])
    desk.held.ending.set()
    await asyncio.sleep(REFRESH_SECONDS)
    may_answer.set()
    await desk.ended()
    (end,) = desk.store.ends
    assert (end.outcome, end.counts, end.pause_microseconds) == (ABANDONED, False, 0)
    assert desk.sender.sent == []


async def test_an_instance_that_stops_begins_nothing_more(desk: Desk) -> None:
    desk.sender.may_answer.clear()
    desk.store.add(*range(1, 20))
    desk.start()
    await desk.until(lambda: len(desk.sender.sent) == 4)
    desk.held.ending.set()
    desk.store.add(30, gateway="slow", changed=desk.store.now)
    desk.sender.may_answer.set()
    await desk.ended()
    assert desk.store.rows[30].attempts == 0
    assert sum(row.attempts for row in desk.store.rows.values()) == 4


async def test_an_instance_that_stops_with_nothing_under_way_ends_at_once(desk: Desk) -> None:
    desk.store.add(1, due=FAR)
    desk.start()
    await desk.until(lambda: "list_waiting" in desk.store.asked)
    await desk.stop()
    assert (desk.store.ends, desk.executor.is_working) == ([], False)


async def test_a_term_that_begins_while_the_instance_stops_ends_at_once(desk: Desk) -> None:
    desk.store.add(1)
    desk.held.ending.set()
    desk.start()
    await desk.ended()
    assert desk.sender.sent == []


async def test_a_lease_that_is_lost_while_the_instance_stops_is_told(desk: Desk) -> None:
    desk.sender.may_answer.clear()
    desk.store.add(1)
    desk.start()
    await desk.until(lambda: desk.sender.sent == [1])
    desk.store.before["finish_attempts"] = [lambda: LeaseLost("another epoch")]
    desk.held.ending.set()
    await asyncio.sleep(0)
    desk.sender.may_answer.set()
    with pytest.raises(LeaseLost):
        await desk.ended()


# The comparison.


async def test_counts_and_tells_what_only_the_comparison_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "COMPARE_SECONDS", 0.0)
    desk.start()
    await desk.until(lambda: desk.store.asked.count("list_waiting") >= 2)
    with capture_logs() as logs:
        desk.store.add(1, changed=desk.store.now - 60 * SECOND)
        await desk.until(lambda: desk.store.outcomes() == {1: [DELIVERED]})
    late: list[Any] = [entry for entry in logs if entry["event"] == "submissions.found_late"]
    assert (desk.executor.found_late, [entry["count"] for entry in late]) == (1, [1])


async def test_the_comparison_finds_nothing_in_ordinary_times(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "COMPARE_SECONDS", 0.0)
    desk.start()
    for number in range(1, 30):
        desk.store.add(number, changed=desk.store.now)
        await asyncio.sleep(0.005)
    await desk.until(lambda: len(desk.store.ends) == 29)
    assert desk.executor.found_late == 0
