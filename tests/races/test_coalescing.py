"""Many requests in one transaction: what goes to the store, and what each caller is told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress

import pytest

from tenure.coalescer import WAITING_MAX, Coalescer
from tenure.config import SessionsConfig
from tenure.deadlines import opened
from tenure.errors import DatabaseBusy, DatabaseUnavailable, Overloaded, TenantMismatch
from tenure.model.sessions import CloseReason, Limits, Open, Opened, Outcome
from tenure.sessions.counters import Counters
from tenure.sessions.opening import Opener
from tenure.store import Store
from tenure.store.store import BATCH_MAX, Lane
from tests.support.databases import Database
from tests.support.locks import elsewhere
from tests.support.wishes import LIMITS, NOON, again, end_one, open_one, some_id, wish

ANSWERED_WITHIN_SECONDS = 3


class ScriptedStore:
    """Answers as a test says, and remembers what it was asked."""

    batches_in_flight = 2

    def __init__(self, answer: Callable[[Open], Opened], before: Callable[[Sequence[Open]], Awaitable[None]]) -> None:
        self._answer = answer
        self._before = before
        self.calls: list[tuple[Lane, Sequence[Open]]] = []

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], _limits: Limits) -> Sequence[Opened]:
        self.calls.append((lane, wishes))
        await self._before(wishes)
        return [self._answer(one) for one in wishes]


def created(one: Open) -> Opened:
    return Opened(Outcome.CREATED, opened(one, LIMITS, NOON))


async def at_once(_wishes: Sequence[Open]) -> None:
    pass


def scripted(
    answer: Callable[[Open], Opened] = created, before: Callable[[Sequence[Open]], Awaitable[None]] = at_once
) -> tuple[ScriptedStore, Opener]:
    store = ScriptedStore(answer, before)
    return store, opener_on(store)  # type: ignore[arg-type]


def opener_on(store: Store) -> Opener:
    return Opener(store, SessionsConfig(), Counters())


async def open_all(opener: Opener, wishes: Sequence[Open]) -> list[Opened | BaseException]:
    return await asyncio.gather(*(opener.open(one) for one in wishes), return_exceptions=True)


def begin_all(opener: Opener, wishes: Sequence[Open]) -> "asyncio.Task[list[Opened | BaseException]]":
    return asyncio.create_task(open_all(opener, wishes))


# What goes to the store


async def test_a_batch_is_in_the_order_of_its_keys() -> None:
    store, opener = scripted()
    await open_all(opener, [wish() for _ in range(50)])
    ((_, batch),) = store.calls
    assert [one.key for one in batch] == sorted(one.key for one in batch)


async def test_a_key_stands_once_in_a_batch_with_the_highest_kind_that_was_asked_for() -> None:
    store, opener = scripted()
    one = wish(kind=1)
    wishes = [one, again(one, kind=3), again(one, kind=2), again(one, kind=3)]
    answers = await open_all(opener, wishes)
    assert store.calls == [(Lane.CREATE, [wishes[1]])]
    session = opened(wishes[1], LIMITS, NOON)
    assert answers == [
        Opened(Outcome.EXISTING, session),
        Opened(Outcome.CREATED, session),
        Opened(Outcome.EXISTING, session),
        Opened(Outcome.EXISTING, session),
    ]


async def test_another_tenant_in_the_same_batch_is_told_so() -> None:
    _, opener = scripted()
    one = wish(kind=3)
    answers = await open_all(opener, [one, again(one, kind=1, tenant_object_id=some_id())])
    assert isinstance(answers[0], Opened)
    assert isinstance(answers[1], TenantMismatch)


async def test_no_more_than_a_batch_goes_at_once_and_no_more_than_two_batches() -> None:
    gate = asyncio.Event()

    async def wait(_wishes: Sequence[Open]) -> None:
        await gate.wait()

    store, opener = scripted(before=wait)
    opening = begin_all(opener, [wish() for _ in range(5 * BATCH_MAX)])
    await settled()
    assert [len(batch) for _, batch in store.calls] == [BATCH_MAX, BATCH_MAX]
    gate.set()
    assert all(isinstance(answer, Opened) for answer in await opening)
    assert [len(batch) for _, batch in store.calls] == [BATCH_MAX] * 5


async def test_a_lone_request_waits_for_nobody() -> None:
    store, opener = scripted()
    opening = asyncio.create_task(opener.open(wish()))
    await settled()
    assert len(store.calls) == 1
    await opening


async def test_batches_of_two_instances_do_not_deadlock(postgres_database: Database) -> None:
    """Keys that arrive in opposite order at two instances."""
    async with elsewhere(postgres_database) as other:
        for _ in range(5):
            wishes = [wish() for _ in range(BATCH_MAX)]
            mirrored = [again(one) for one in reversed(wishes)]
            here, there = opener_on(postgres_database.store), opener_on(other)
            await asyncio.gather(open_all(here, wishes), open_all(there, mirrored))
        assert [
            dict(store._retries.counts)  # type: ignore[attr-defined]
            for store in (postgres_database.store, other)
        ] == [{}, {}]


# Other lane, and again


async def test_a_wish_for_the_other_lane_goes_there_and_again_back_to_the_first() -> None:
    script = [Outcome.AGAIN, Outcome.REOPEN, Outcome.AGAIN, Outcome.CREATED]
    left = iter(script)

    def next_answer(one: Open) -> Opened:
        outcome = next(left)
        return created(one) if outcome is Outcome.CREATED else Opened(outcome)

    store, opener = scripted(next_answer)
    assert (await opener.open(wish())).outcome is Outcome.CREATED
    assert [lane for lane, _ in store.calls] == [Lane.CREATE, Lane.CREATE, Lane.REOPEN, Lane.CREATE]


@pytest.mark.slow
async def test_a_wish_that_never_finds_rest_is_told_that_the_database_is_busy() -> None:
    _, opener = scripted(lambda _one: Opened(Outcome.AGAIN))
    with pytest.raises(DatabaseBusy):
        await opener.open(wish())


async def test_is_not_refused_for_a_key_that_others_end_as_fast_as_it_is_opened(postgres_database: Database) -> None:
    """Four instances want the same key while a fifth ends whatever is there."""
    one, live = wish(), set[str]()
    async with AsyncExitStack() as stores:
        others = [await stores.enter_async_context(elsewhere(postgres_database)) for _ in range(4)]
        ending = [asyncio.create_task(_end_all(postgres_database.store, live)) for _ in range(2)]
        answers = await asyncio.gather(*(_open_often(opener_on(store), one, live) for store in others))
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
    assert [answer for several in answers for answer in several if not isinstance(answer, Opened)] == []


async def _open_often(opener: Opener, one: Open, live: set[str]) -> list[Opened | BaseException]:
    answers: list[Opened | BaseException] = []
    for number in range(60):
        latest = await open_all(opener, [again(one, kind=1 + number % 3) for _ in range(4)])
        live.update(answer.session.session_id for answer in latest if isinstance(answer, Opened) and answer.session)
        answers += latest
    return answers


async def _end_all(store: Store, live: set[str]) -> None:
    while True:
        for session_id in list(live):
            await end_one(store, session_id, CloseReason.TERMINATED)
            live.discard(session_id)
        await asyncio.sleep(0)


# When something is wrong


async def test_one_bad_member_of_a_batch_fails_alone() -> None:
    bad = wish()

    async def refuse_bad(wishes: Sequence[Open]) -> None:
        if bad in wishes:
            raise ValueError("bad")

    store, opener = scripted(before=refuse_bad)
    answers = await open_all(opener, [wish(), bad, wish()])
    assert [type(answer) for answer in answers] == [Opened, ValueError, Opened]
    assert [len(batch) for _, batch in store.calls] == [3, 1, 1, 1]


async def test_an_unreachable_database_is_told_to_everybody_at_once() -> None:
    """Also to those who wait behind the batch: they have waited as long as anyone should."""
    gate = asyncio.Event()

    async def fail(_wishes: Sequence[Open]) -> None:
        await gate.wait()
        raise DatabaseUnavailable("gone")

    store, opener = scripted(before=fail)
    opening = begin_all(opener, [wish() for _ in range(3 * BATCH_MAX)])
    await settled()
    gate.set()
    assert {type(answer) for answer in await opening} == {DatabaseUnavailable}
    assert len(store.calls) == 2


async def test_a_database_that_goes_while_members_run_one_by_one_is_told_to_everybody_at_once() -> None:
    """Otherwise the last of 128 would wait 128 times as long as anyone should."""

    async def fail(wishes: Sequence[Open]) -> None:
        raise DatabaseUnavailable("gone") if len(wishes) == 1 else ValueError("bad")

    store, opener = scripted(before=fail)
    answers = await open_all(opener, [wish() for _ in range(10)])
    assert {type(answer) for answer in answers} == {DatabaseUnavailable}
    assert len(store.calls) == 2


async def test_a_caller_who_went_away_leaves_the_others_their_answers() -> None:
    _, opener = scripted()
    impatient = asyncio.create_task(opener.open(wish()))
    patient = asyncio.create_task(opener.open(wish()))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).outcome is Outcome.CREATED
    with suppress(asyncio.CancelledError):
        await impatient


async def test_too_many_waiting_are_refused() -> None:
    coalescer = Coalescer[int, int](asyncio.sleep, 1)  # type: ignore[arg-type]
    for number in range(WAITING_MAX):
        coalescer.submit(number, lambda _answer: None)
    with pytest.raises(Overloaded):
        coalescer.submit(WAITING_MAX, lambda _answer: None)


@pytest.mark.slow
async def test_rounds_are_bounded_in_time_however_slow_each_is() -> None:
    async def slowly(_wishes: Sequence[Open]) -> None:
        await asyncio.sleep(0.5)

    _, opener = scripted(lambda _one: Opened(Outcome.AGAIN), slowly)
    async with asyncio.timeout(ANSWERED_WITHIN_SECONDS):
        with pytest.raises(DatabaseUnavailable):
            await opener.open(wish())


@pytest.mark.slow
async def test_waiting_is_bounded_in_time_however_slow_the_batches_ahead_are() -> None:
    async def slowly(_wishes: Sequence[Open]) -> None:
        await asyncio.sleep(0.5)

    _, opener = scripted(before=slowly)
    async with asyncio.timeout(ANSWERED_WITHIN_SECONDS):
        await open_all(opener, [wish() for _ in range(20 * BATCH_MAX)])


# Lost answers


@pytest.mark.parametrize("kind", [1, 3])
async def test_recognises_its_own_session_after_a_lost_answer(postgres_database: Database, kind: int) -> None:
    store = postgres_database.store
    one = wish(kind=2)
    if kind == 3:
        await open_one(store, one)
    mine = again(one, kind=kind)
    lose_answers(store, lambda: is_there(postgres_database, mine.session_id))
    answer = await opener_on(store).open(mine)
    assert answer.outcome is (Outcome.UPGRADED if kind == 3 else Outcome.CREATED)
    assert answer.session is not None
    assert answer.session.session_id == mine.session_id


async def test_a_session_that_was_ended_before_its_lost_answer_was_repeated_costs_nobody_an_error(
    postgres_database: Database,
) -> None:
    """The repetition brings an id that the table knows already, and the key is free."""
    mine = wish()

    async def end_it() -> bool:
        async with elsewhere(postgres_database) as other:
            ended = await end_one(other, mine.session_id, CloseReason.TERMINATED)
        return ended is not None

    lose_answers(postgres_database.store, end_it)
    answer = await opener_on(postgres_database.store).open(mine)
    assert answer.session is not None


async def is_there(database: Database, session_id: str) -> bool:
    async with elsewhere(database) as other:
        return await other.get_session(session_id) is not None


def lose_answers(store: Store, until: Callable[[], Awaitable[bool]]) -> None:
    """Statements are carried out, but their answers are lost on the way, up to and including when `until` holds."""
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
    """Lets everything run that can run without waiting for anybody."""
    for _ in range(10):
        await asyncio.sleep(0)
