"""Seats under any concurrency: never one too many at any instant, never one lost, whoever is killed."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from tenure.model.sessions import CloseReason, Open, Outcome, Seats
from tenure.store import Store
from tenure.store.store import Lane
from tests.races.test_one_session import Killer, started
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.keeping import evicting
from tests.support.load import TENANT, Exchange, clients, repeated
from tests.support.locks import elsewhere, holding
from tests.support.seats import LEASE_SECONDS, Users, most_at_once, open_body, spans
from tests.support.wishes import LIMITS, NOON, SECOND, again, end_one, open_one, some_id, wish

Start = Callable[..., RunningInstance]
LIMIT = 50
SEATS_MIN = 20 * LIMIT
KILLS_MIN = 2
"""Fewer prove nothing: so long it goes on."""
USERS = 1_200
LOST = 0
CREATED = 201
OVER = 410
A_FEW_OPENS_SECONDS = 0.02


# With instances


@pytest.mark.slow
@pytest.mark.parametrize("when_full", ["reject", "evictOldest"])
async def test_seats_are_never_exceeded_on_postgresql(
    postgres_database: Database, start: Start, seed: int, when_full: str
) -> None:
    await hold_the_limit(postgres_database, start, seed, when_full, instances=4, seconds=8)


@pytest.mark.slow
@pytest.mark.parametrize("when_full", ["reject", "evictOldest"])
async def test_seats_are_never_exceeded_on_sqlite(
    sqlite_database: Database, start: Start, seed: int, when_full: str
) -> None:
    await hold_the_limit(sqlite_database, start, seed, when_full, instances=2, seconds=4)


async def hold_the_limit(
    database: Database, start: Start, seed: int, when_full: str, *, instances: int, seconds: float
) -> None:
    running = started(start, database, instances)
    capacity_id, users = some_id(), [some_id() for _ in range(USERS)]
    async with clients([running[0].address], 1) as (operator,):
        put = await operator.send("PUT", f"/capacities/{capacity_id}", {"maxSessions": LIMIT, "whenFull": when_full})
        assert put.status == 200, put
    killer = Killer(start, database.url, running, random.Random(seed))
    killing = asyncio.create_task(killer.run())
    exchanges: list[Exchange] = []
    async with clients([instance.address for instance in running], 16, exchanges) as members:
        crowd = Users(capacity_id, users, seed)
        await crowd.come_and_go(members, seconds)
        while not killing.done() and (killer.kills < KILLS_MIN or seats_given(exchanges) < SEATS_MIN):
            await crowd.come_and_go(members, 1)
    killer.enough = True
    await killing
    statuses = Counter(exchange.status for exchange in exchanges)
    told = f"seed {seed}, {statuses}, {killer.kills} kills"
    assert set(statuses) <= {200, 201, OVER, 429, 503, LOST}, told
    assert most_at_once(await spans(database, capacity_id)) == LIMIT, told
    await all_seats_can_be_had(running, database, capacity_id, when_full)


def seats_given(exchanges: Sequence[Exchange]) -> int:
    return sum(exchange.status == CREATED for exchange in exchanges)


async def all_seats_can_be_had(
    running: list[RunningInstance], database: Database, capacity_id: str, when_full: str
) -> None:
    """Once the leases of those who were killed or walked away have run out."""
    async with clients([instance.address for instance in running], 1) as members:
        await repeated(lambda: members[0].get(f"/capacities/{capacity_id}"), _is_deserted, 4 * LEASE_SECONDS)
        opened = [
            await members[number % len(members)].send("PUT", "/sessions", open_body(capacity_id, some_id()))
            for number in range(LIMIT + 10)
        ]
        capacity = await members[0].get(f"/capacities/{capacity_id}")
    refused = 201 if when_full == "evictOldest" else 429
    assert [exchange.status for exchange in opened] == [201] * LIMIT + [refused] * 10
    assert capacity.answer["activeSessions"] == LIMIT
    assert most_at_once(await spans(database, capacity_id)) == LIMIT


def _is_deserted(capacity: Exchange) -> bool:
    return capacity.status == 200 and capacity.answer["activeSessions"] == 0


# At the store


async def opens_everywhere(stores: list[Store], capacity_id: str, count: int) -> Counter[Outcome]:
    answers = await asyncio.gather(
        *(open_one(stores[number % len(stores)], wish(capacity_id=capacity_id)) for number in range(count))
    )
    return Counter(answer.outcome for answer in answers)


async def test_a_limit_holds_from_the_moment_it_is_answered(database: Database) -> None:
    """While hundreds open, a limit is set: whatever is opened after its answer is within it."""
    capacity_id = some_id()
    async with elsewhere(database) as other:
        opening = asyncio.create_task(opens_everywhere([database.store, other], capacity_id, 200))
        await asyncio.sleep(A_FEW_OPENS_SECONDS)
        await database.store.put_capacity(capacity_id, Seats(10))
        before = (await database.store.get_capacity(capacity_id)).active_sessions  # type: ignore[union-attr]
        await opening
    capacity = await database.store.get_capacity(capacity_id)
    assert capacity is not None
    assert capacity.active_sessions == max(before, 10)


async def test_a_change_of_a_capacity_waits_for_the_opens_that_have_not_seen_it(postgres_database: Database) -> None:
    """A capacity without a row has nothing to lock: an open that is under way must be counted by the next."""
    one, late = wish(), wish()
    late = again(late, capacity_id=one.capacity_id)
    async with holding(postgres_database) as holder, elsewhere(postgres_database) as other:
        await holder.insert(again(one))
        opening = asyncio.create_task(open_one(postgres_database.store, one))
        await holder.somebody_waits()
        putting = asyncio.create_task(other.put_capacity(one.capacity_id, Seats(1)))
        await holder.somebody_waits(2)
        await holder.rollback()
        await opening
        await putting
        assert (await open_one(other, late)).outcome is Outcome.SESSION_LIMIT


async def test_a_seat_is_given_out_once_however_many_ask(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, Seats(7))
    async with elsewhere(postgres_database) as one, elsewhere(postgres_database) as other:
        outcomes = await opens_everywhere([postgres_database.store, one, other], capacity_id, 100)
    assert outcomes == {Outcome.CREATED: 7, Outcome.SESSION_LIMIT: 93}
    assert most_at_once(await spans(postgres_database, capacity_id)) == 7


async def test_everybody_gets_a_seat_where_the_oldest_is_evicted(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, evicting(3))
    async with elsewhere(postgres_database) as one, elsewhere(postgres_database) as other:
        outcomes = await opens_everywhere([postgres_database.store, one, other], capacity_id, 60)
    assert outcomes == {Outcome.CREATED: 60}
    assert most_at_once(await spans(postgres_database, capacity_id)) == 3


async def test_a_session_that_somebody_has_locked_is_not_evicted(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, evicting(2))
    oldest, newer = [wish(capacity_id=capacity_id) for _ in range(2)]
    for one in (oldest, newer):
        await open_one(postgres_database.store, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(oldest.session_id)
        answer = await open_one(postgres_database.store, wish(capacity_id=capacity_id))
    assert [closing.session_id for closing in answer.closings] == [newer.session_id]


async def test_where_everybody_is_locked_nobody_can_be_evicted(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, evicting(1))
    only = wish(capacity_id=capacity_id)
    await open_one(postgres_database.store, only)
    async with holding(postgres_database) as holder:
        await holder.lock_session(only.session_id)
        answer = await open_one(postgres_database.store, wish(capacity_id=capacity_id))
    assert answer.outcome is Outcome.SESSION_LIMIT
    assert (await postgres_database.store.get_session(only.session_id)).is_active  # type: ignore[union-attr]


async def test_a_seat_whose_end_is_being_written_is_not_given_out_before_it_is(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, Seats(1))
    one = wish(capacity_id=capacity_id)
    await open_one(postgres_database.store, one)
    async with holding(postgres_database) as holder:
        await holder.end_session(one.session_id)
        during = await open_one(postgres_database.store, wish(capacity_id=capacity_id))
        await holder.rollback()
    assert during.outcome is Outcome.SESSION_LIMIT
    assert most_at_once(await spans(postgres_database, capacity_id)) == 1


async def test_batches_over_many_capacities_never_wait_for_each_other_in_a_circle(postgres_database: Database) -> None:
    """Capacity rows are locked in one order, everything else only where it is free."""
    ids = sorted(some_id() for _ in range(8))
    for capacity_id in ids:
        await postgres_database.store.put_capacity(capacity_id, evicting(4))
    source = random.Random(7)

    async def batches(store: Store) -> None:
        for _ in range(15):
            wishes = sorted((wish(capacity_id=one) for one in source.choices(ids, k=24)), key=lambda one: one.key)
            answers = await store.open_sessions(Lane.LIMITED, wishes, LIMITS)
            ended = [one.session for one in answers if one.session is not None][::3]
            for session in ended:
                await end_one(store, session.session_id, CloseReason.STOPPED)

    async with elsewhere(postgres_database) as one, elsewhere(postgres_database) as other:
        await asyncio.gather(*(batches(store) for store in (one, other, one, other)))
    assert [most_at_once(await spans(postgres_database, capacity_id)) for capacity_id in ids] == [4] * 8


@pytest.mark.parametrize("seed", range(6))
async def test_whole_batches_keep_the_limit_and_tell_every_end_once(database: Database, seed: int) -> None:
    """Mixed batches of new users, returning ones and upgrades, on two capacities, by a clock that goes either way."""
    source, now, told = random.Random(seed), NOON, list[str]()
    limits = {some_id(): 3, some_id(): 5}
    for number, (capacity_id, limit) in enumerate(limits.items()):
        await database.store.put_capacity(capacity_id, evicting(limit) if number else Seats(limit))
    users = [some_id() for _ in range(9)]
    for _ in range(25):
        now += timedelta(seconds=source.choice([-2, 0, 0, 1, 3, 6]))
        await database.clock.set(max(now, NOON))
        keys = source.sample([(capacity_id, user) for capacity_id in limits for user in users], 7)
        wishes = [_wish(capacity_id, user, source) for capacity_id, user in sorted(keys)]
        for answer in await database.store.open_sessions(Lane.LIMITED, wishes, LIMITS):
            told += [closing.session_id for closing in answer.closings]
            if answer.session is not None:
                assert (await database.store.get_session(answer.session.session_id)) == answer.session
    ended = await database.rows("SELECT session_id FROM sessions WHERE close_reason <> 'UPGRADED'")
    assert Counter(told) == Counter(str(row["session_id"]) for row in ended)
    most = {capacity_id: most_at_once(await spans(database, capacity_id)) for capacity_id in limits}
    assert most == limits


def _wish(capacity_id: str, user: str, source: random.Random) -> Open:
    lease = source.choice([5, 8]) * SECOND
    kind = source.choice((1, 1, 2, 3))
    return wish(
        capacity_id=capacity_id, user_object_id=user, tenant_object_id=TENANT, kind=kind, lease_microseconds=lease
    )
