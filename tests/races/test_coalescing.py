"""Many requests in one transaction: the batches that reach the store, and the result of each caller."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress

import pytest

from tenure.batching.coalescer import WAITING_MAX, Coalescer
from tenure.config import SessionsConfig
from tenure.domain.deadlines import opened
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Limits, OpenOutcome, OpenRequest, OpenResult
from tenure.errors import DatabaseBusy, DatabaseUnavailable, Overloaded
from tenure.sessions.ends import SessionEnds
from tenure.sessions.open import Opener
from tenure.store.contract import Store
from tenure.store.contract.sessions import OpenLane
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import StoreRetried, Telemetry
from tests.support.databases import Database
from tests.support.locks import holding, other_store
from tests.support.open_requests import LIMITS, NOON, end_one, open_one, request, same_key_request, some_id
from tests.support.telemetry import RecordedTelemetry

ANSWERED_WITHIN_SECONDS = 3


class ScriptedStore:
    """Returns scripted results, and records its calls."""

    batches_in_flight = 2
    may_start_limited = True

    def __init__(
        self, result: Callable[[OpenRequest], OpenResult], before: Callable[[Sequence[OpenRequest]], Awaitable[None]]
    ) -> None:
        self._answer = result
        self._before = before
        self.calls: list[tuple[OpenLane, Sequence[OpenRequest]]] = []

    async def open_sessions(
        self, lane: OpenLane, requests: Sequence[OpenRequest], _limits: Limits
    ) -> Sequence[OpenResult]:
        self.calls.append((lane, requests))
        await self._before(requests)
        return [self._answer(one) for one in requests]


def created(one: OpenRequest) -> OpenResult:
    return OpenResult(OpenOutcome.CREATED, opened(one, LIMITS, NOON))


async def at_once(_requests: Sequence[OpenRequest]) -> None:
    pass


def scripted(
    result: Callable[[OpenRequest], OpenResult] = created,
    before: Callable[[Sequence[OpenRequest]], Awaitable[None]] = at_once,
) -> tuple[ScriptedStore, Opener]:
    store = ScriptedStore(result, before)
    return store, opener_on(store)  # type: ignore[arg-type]


def opener_on(store: Store) -> Opener:
    return Opener(store, SessionsConfig(), SessionEnds(Telemetry()), Telemetry())


async def open_all(opener: Opener, requests: Sequence[OpenRequest]) -> list[OpenResult | BaseException]:
    return await asyncio.gather(*(opener.open(one) for one in requests), return_exceptions=True)


def begin_all(opener: Opener, requests: Sequence[OpenRequest]) -> "asyncio.Task[list[OpenResult | BaseException]]":
    return asyncio.create_task(open_all(opener, requests))


# Batches


async def test_batch_is_sorted_by_key() -> None:
    store, opener = scripted()
    await open_all(opener, [request() for _ in range(50)])
    ((_, batch),) = store.calls
    assert [one.key for one in batch] == sorted(one.key for one in batch)


async def test_batch_contains_each_key_once_with_highest_requested_kind() -> None:
    store, opener = scripted()
    one = request(kind=1)
    requests = [one, same_key_request(one, kind=3), same_key_request(one, kind=2), same_key_request(one, kind=3)]
    results = await open_all(opener, requests)
    assert store.calls == [(OpenLane.CREATE, [requests[1]])]
    session = opened(requests[1], LIMITS, NOON)
    assert results == [
        OpenResult(OpenOutcome.EXISTING, session),
        OpenResult(OpenOutcome.CREATED, session),
        OpenResult(OpenOutcome.EXISTING, session),
        OpenResult(OpenOutcome.EXISTING, session),
    ]


async def test_other_tenant_in_same_batch_gets_tenant_mismatch() -> None:
    _, opener = scripted()
    one = request(kind=3)
    results = await open_all(opener, [one, same_key_request(one, kind=1, tenant_object_id=some_id())])
    outcomes = [result.outcome for result in results if isinstance(result, OpenResult)]
    assert outcomes == [OpenOutcome.CREATED, OpenOutcome.TENANT_MISMATCH]


async def test_at_most_two_full_batches_run_concurrently() -> None:
    gate = asyncio.Event()

    async def wait(_requests: Sequence[OpenRequest]) -> None:
        await gate.wait()

    store, opener = scripted(before=wait)
    opening = begin_all(opener, [request() for _ in range(5 * BATCH_MAX)])
    await settled()
    assert [len(batch) for _, batch in store.calls] == [BATCH_MAX, BATCH_MAX]
    gate.set()
    assert all(isinstance(result, OpenResult) for result in await opening)
    assert [len(batch) for _, batch in store.calls] == [BATCH_MAX] * 5


async def test_single_request_runs_immediately() -> None:
    store, opener = scripted()
    opening = asyncio.create_task(opener.open(request()))
    await settled()
    assert len(store.calls) == 1
    await opening


async def test_batches_of_two_instances_do_not_deadlock(postgres_database: Database) -> None:
    """The same keys arrive in opposite orders at two instances."""
    telemetry = RecordedTelemetry()
    async with other_store(postgres_database) as other:
        for store in (postgres_database.store, other):
            store._retries._telemetry = telemetry  # type: ignore[attr-defined]
        for _ in range(5):
            requests = [request() for _ in range(BATCH_MAX)]
            mirrored = [same_key_request(one) for one in reversed(requests)]
            here, there = opener_on(postgres_database.store), opener_on(other)
            await asyncio.gather(open_all(here, requests), open_all(there, mirrored))
        assert telemetry.of(StoreRetried) == []


# Lanes and retries


async def test_request_moves_to_reopen_lane_and_back_to_create_lane() -> None:
    script = [OpenOutcome.AGAIN, OpenOutcome.REOPEN, OpenOutcome.AGAIN, OpenOutcome.CREATED]
    left = iter(script)

    def next_answer(one: OpenRequest) -> OpenResult:
        outcome = next(left)
        return created(one) if outcome is OpenOutcome.CREATED else OpenResult(outcome)

    store, opener = scripted(next_answer)
    assert (await opener.open(request())).outcome is OpenOutcome.CREATED
    assert [lane for lane, _ in store.calls] == [OpenLane.CREATE, OpenLane.CREATE, OpenLane.REOPEN, OpenLane.CREATE]


async def test_requests_for_capacity_known_to_have_a_limit_start_in_limited_lane() -> None:
    capacity_id, is_limited = some_id(), True

    def by_lane(one: OpenRequest) -> OpenResult:
        if is_limited is (store.calls[-1][0] is OpenLane.LIMITED):
            return created(one)
        return OpenResult(OpenOutcome.LIMITED if is_limited else OpenOutcome.AGAIN)

    store, opener = scripted(by_lane)

    async def lanes() -> list[OpenLane]:
        store.calls.clear()
        await opener.open(request(capacity_id=capacity_id))
        return [lane for lane, _ in store.calls]

    assert await lanes() == [OpenLane.CREATE, OpenLane.LIMITED]
    assert await lanes() == [OpenLane.LIMITED]
    is_limited = False
    assert await lanes() == [OpenLane.LIMITED, OpenLane.CREATE]
    assert await lanes() == [OpenLane.CREATE]


@pytest.mark.slow
async def test_request_that_must_always_retry_raises_database_busy() -> None:
    _, opener = scripted(lambda _one: OpenResult(OpenOutcome.AGAIN))
    with pytest.raises(DatabaseBusy):
        await opener.open(request())


async def test_open_succeeds_while_sessions_of_same_key_are_ended_continuously(postgres_database: Database) -> None:
    """Four instances open sessions of the same key while a fifth instance ends each of these sessions."""
    one, live = request(), set[str]()
    async with AsyncExitStack() as stores:
        others = [await stores.enter_async_context(other_store(postgres_database)) for _ in range(4)]
        ending = [asyncio.create_task(_end_all(postgres_database.store, live)) for _ in range(2)]
        results = await asyncio.gather(*(_open_often(opener_on(store), one, live) for store in others))
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
    assert [result for several in results for result in several if not isinstance(result, OpenResult)] == []


async def _open_often(opener: Opener, one: OpenRequest, live: set[str]) -> list[OpenResult | BaseException]:
    results: list[OpenResult | BaseException] = []
    for number in range(60):
        latest = await open_all(opener, [same_key_request(one, kind=1 + number % 3) for _ in range(4)])
        live.update(result.session.session_id for result in latest if isinstance(result, OpenResult) and result.session)
        results += latest
    return results


async def _end_all(store: Store, live: set[str]) -> None:
    while True:
        for session_id in list(live):
            await end_one(store, session_id, CloseReason.TERMINATED)
            live.discard(session_id)
        await asyncio.sleep(0)


# Failures


async def test_bad_request_in_batch_fails_alone() -> None:
    bad = request()

    async def refuse_bad(requests: Sequence[OpenRequest]) -> None:
        if bad in requests:
            raise ValueError("bad")

    store, opener = scripted(before=refuse_bad)
    results = await open_all(opener, [request(), bad, request()])
    assert [type(result) for result in results] == [OpenResult, ValueError, OpenResult]
    assert [len(batch) for _, batch in store.calls] == [3, 1, 1, 1]


async def test_unreachable_database_fails_all_queued_requests_immediately() -> None:
    """Requests that wait for the next batch fail, too. They would otherwise wait for another timeout."""
    gate = asyncio.Event()

    async def fail(_requests: Sequence[OpenRequest]) -> None:
        await gate.wait()
        raise DatabaseUnavailable("gone")

    store, opener = scripted(before=fail)
    opening = begin_all(opener, [request() for _ in range(3 * BATCH_MAX)])
    await settled()
    gate.set()
    assert {type(result) for result in await opening} == {DatabaseUnavailable}
    assert len(store.calls) == 2


async def test_database_loss_during_individual_retries_fails_all_requests() -> None:
    """After the batch has failed, its requests are retried one by one. The first of these retries finds the database
    unavailable. If the remaining requests were still retried, the last request of a batch of 128 would wait for 128
    timeouts.
    """

    async def fail(requests: Sequence[OpenRequest]) -> None:
        raise DatabaseUnavailable("gone") if len(requests) == 1 else ValueError("bad")

    store, opener = scripted(before=fail)
    results = await open_all(opener, [request() for _ in range(10)])
    assert {type(result) for result in results} == {DatabaseUnavailable}
    assert len(store.calls) == 2


async def test_cancelled_request_does_not_affect_others_in_batch() -> None:
    _, opener = scripted()
    cancelled = asyncio.create_task(opener.open(request()))
    other = asyncio.create_task(opener.open(request()))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert (await other).outcome is OpenOutcome.CREATED
    with suppress(asyncio.CancelledError):
        await cancelled


async def test_submit_raises_overloaded_when_too_many_requests_wait() -> None:
    coalescer = Coalescer[int, int](asyncio.sleep, 1, Telemetry())  # type: ignore[arg-type]
    for number in range(WAITING_MAX):
        coalescer.submit(number, lambda _answer: None)
    with pytest.raises(Overloaded):
        coalescer.submit(WAITING_MAX, lambda _answer: None)


@pytest.mark.slow
async def test_retries_are_bounded_in_time_when_each_is_slow() -> None:
    async def slowly(_requests: Sequence[OpenRequest]) -> None:
        await asyncio.sleep(0.5)

    _, opener = scripted(lambda _one: OpenResult(OpenOutcome.AGAIN), slowly)
    async with asyncio.timeout(ANSWERED_WITHIN_SECONDS):
        with pytest.raises(DatabaseUnavailable):
            await opener.open(request())


@pytest.mark.slow
async def test_queue_wait_is_bounded_in_time_when_batches_are_slow() -> None:
    async def slowly(_requests: Sequence[OpenRequest]) -> None:
        await asyncio.sleep(0.5)

    _, opener = scripted(before=slowly)
    async with asyncio.timeout(ANSWERED_WITHIN_SECONDS):
        await open_all(opener, [request() for _ in range(20 * BATCH_MAX)])


# Lost responses


@pytest.mark.parametrize("kind", [1, 3])
async def test_opener_recognises_own_session_after_lost_response(postgres_database: Database, kind: int) -> None:
    store = postgres_database.store
    one = request(kind=2)
    if kind == 3:
        await open_one(store, one)
    mine = same_key_request(one, kind=kind)
    lose_response(store, lambda: is_there(postgres_database, mine.session_id))
    result = await opener_on(store).open(mine)
    assert result.outcome is (OpenOutcome.UPGRADED if kind == 3 else OpenOutcome.CREATED)
    assert result.session is not None
    assert result.session.session_id == mine.session_id


async def test_opener_recognises_own_session_that_commits_during_its_retry(postgres_database: Database) -> None:
    """`holder` stands for the first try: its connection is lost, but its transaction commits during the retry."""
    one = request()
    async with holding(postgres_database) as holder:
        await holder.insert(one)
        opening = asyncio.create_task(opener_on(postgres_database.store).open(one))
        await holder.wait_for_blocked()
        await holder.commit()
        result = await opening
    assert result.outcome is OpenOutcome.CREATED
    assert result.session is not None
    assert result.session.session_id == one.session_id


async def test_opener_succeeds_when_session_ends_between_lost_response_and_retry(
    postgres_database: Database,
) -> None:
    """The retry sends the id of the ended session again. The id is already in the table, but the key is free."""
    mine = request()

    async def end_it() -> bool:
        async with other_store(postgres_database) as other:
            ended = await end_one(other, mine.session_id, CloseReason.TERMINATED)
        return ended is not None

    lose_response(postgres_database.store, end_it)
    result = await opener_on(postgres_database.store).open(mine)
    assert result.session is not None


async def is_there(database: Database, session_id: str) -> bool:
    async with other_store(database) as other:
        return await other.get_session(session_id, EVERYTHING) is not None


def lose_response(store: Store, until: Callable[[], Awaitable[bool]]) -> None:
    """Makes the store lose the response to one statement: the first one after which `until` returns True."""
    fetch = store._openings.fetch  # type: ignore[attr-defined]
    lost = False

    async def fetch_and_lose(statement: str, arguments: Sequence[object]) -> Sequence[object]:
        nonlocal lost
        lines: Sequence[object] = await fetch(statement, arguments)
        if not lost and await until():
            lost = True
            raise ConnectionResetError
        return lines

    store._openings.fetch = fetch_and_lose  # type: ignore[attr-defined]


async def settled() -> None:
    """Lets the event loop run ten iterations. After them, every other task waits for I/O, a timer or an event."""
    for _ in range(10):
        await asyncio.sleep(0)
