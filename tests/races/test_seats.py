"""A capacity never has more live sessions than seats, and loses no seat, under concurrency and kills."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from tenure.domain.capacities import Seats
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import CloseReason, OpenOutcome, OpenRequest
from tenure.store.contract import Store
from tenure.store.contract.sessions import OpenLane
from tests.races.test_one_session import Killer, started
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.load import TENANT, Exchange, clients, retry_until
from tests.support.locks import holding, other_store
from tests.support.open_requests import LIMITS, NOON, SECOND, end_one, open_one, request, same_key_request, some_id
from tests.support.seats import LEASE_SECONDS, Users, most_at_once, open_body, spans
from tests.support.session_calls import evicting_seats

Start = Callable[..., RunningInstance]
LIMIT = 30
SEATS_MIN = 20 * LIMIT
KILLS_MIN = 2
"""The load continues until SEATS_MIN sessions have taken a seat, KILLS_MIN instances were killed, and the limit was
reached."""
USERS = 1_200
LOST = 0
"""The status of an exchange whose response was lost."""
CREATED = 201
OVER = 410
A_FEW_OPENS_SECONDS = 0.02


# With instances


@pytest.mark.slow
async def test_seats_are_never_exceeded_on_postgresql(postgres_database: Database, start: Start, seed: int) -> None:
    await keep_limits(postgres_database, start, seed, instances=3, seconds=6)


@pytest.mark.slow
async def test_seats_are_never_exceeded_on_sqlite(sqlite_database: Database, start: Start, seed: int) -> None:
    await keep_limits(sqlite_database, start, seed, instances=2, seconds=4)


async def keep_limits(database: Database, start: Start, seed: int, *, instances: int, seconds: float) -> None:
    """Clients open sessions on two capacities at the same time, while instances are killed. One capacity rejects
    new sessions when it is full, the other evicts the oldest.
    """
    running = started(start, database, instances)
    capacities = {when_full: some_id() for when_full in ("reject", "evictOldest")}
    async with clients([running[0].address], 1) as (operator,):
        for when_full, capacity_id in capacities.items():
            rules = {"maxSessions": LIMIT, "whenFull": when_full}
            assert (await operator.send("PUT", f"/capacities/{capacity_id}", rules)).status == 200
    killer = Killer(start, database.url, running, random.Random(seed))
    addresses = [instance.address for instance in running]
    exchanges: dict[str, list[Exchange]] = {when_full: [] for when_full in capacities}
    loads = [
        fill(database, addresses, capacity_id, seed, seconds, exchanges[when_full], killer)
        for when_full, capacity_id in capacities.items()
    ]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(killer.run())
        await asyncio.gather(*loads)
        killer.enough = True
    for when_full, capacity_id in capacities.items():
        statuses = Counter(exchange.status for exchange in exchanges[when_full])
        shown = f"{when_full}, seed {seed}, {statuses}, {killer.kills} kills"
        assert set(statuses) <= {200, 201, OVER, 429, 503, LOST}, shown
        assert most_at_once(await spans(database, capacity_id)) == LIMIT, shown
    for when_full, capacity_id in capacities.items():
        await all_seats_can_be_taken(running, database, capacity_id, when_full)


async def fill(
    database: Database,
    addresses: Sequence[str],
    capacity_id: str,
    seed: int,
    seconds: float,
    exchanges: list[Exchange],
    killer: Killer,
) -> None:
    async def is_enough() -> bool:
        if killer.kills < KILLS_MIN or seats_taken(exchanges) < SEATS_MIN:
            return False
        return most_at_once(await spans(database, capacity_id)) >= LIMIT

    async with clients(addresses, 12, exchanges) as members:
        users = Users(capacity_id, [some_id() for _ in range(USERS)], seed)
        await users.run(members, seconds)
        while not await is_enough():
            await users.run(members, 1)


def seats_taken(exchanges: Sequence[Exchange]) -> int:
    return sum(exchange.status == CREATED for exchange in exchanges)


async def all_seats_can_be_taken(
    running: list[RunningInstance], database: Database, capacity_id: str, when_full: str
) -> None:
    """Waits until all sessions have lapsed, and asserts that every seat can be taken."""
    async with clients([instance.address for instance in running], 1) as members:
        await retry_until(lambda: members[0].get(f"/capacities/{capacity_id}"), _is_empty, 4 * LEASE_SECONDS)
        opened = [
            await members[number % len(members)].send("PUT", "/sessions", open_body(capacity_id, some_id()))
            for number in range(LIMIT + 10)
        ]
        capacity = await members[0].get(f"/capacities/{capacity_id}")
    over_limit = 201 if when_full == "evictOldest" else 429
    assert [exchange.status for exchange in opened] == [201] * LIMIT + [over_limit] * 10, when_full
    assert capacity.answer["activeSessions"] == LIMIT, when_full
    assert most_at_once(await spans(database, capacity_id)) == LIMIT, when_full


def _is_empty(capacity: Exchange) -> bool:
    return capacity.status == 200 and capacity.answer["activeSessions"] == 0


# At the store


async def opens_everywhere(stores: list[Store], capacity_id: str, count: int) -> Counter[OpenOutcome]:
    results = await asyncio.gather(
        *(open_one(stores[number % len(stores)], request(capacity_id=capacity_id)) for number in range(count))
    )
    return Counter(result.outcome for result in results)


async def test_limit_applies_to_every_open_after_put_capacity_returns(database: Database) -> None:
    """`put_capacity` sets a limit during 200 opens. Every open that starts after `put_capacity` has returned obeys this
    limit.
    """
    capacity_id = some_id()
    async with other_store(database) as other:
        opening = asyncio.create_task(opens_everywhere([database.store, other], capacity_id, 200))
        await asyncio.sleep(A_FEW_OPENS_SECONDS)
        await database.store.put_capacity(capacity_id, Seats(10), EVERYTHING, ACTOR)
        before = (await database.store.get_capacity(capacity_id, EVERYTHING)).active_sessions  # type: ignore[union-attr]
        await opening
    capacity = await database.store.get_capacity(capacity_id, EVERYTHING)
    assert capacity is not None
    assert capacity.active_sessions == max(before, 10)


async def test_put_capacity_waits_for_opens_in_progress(postgres_database: Database) -> None:
    """The capacity has no row that could be locked, but an open in progress must still count for the new limit."""
    one, late = request(), request()
    late = same_key_request(late, capacity_id=one.capacity_id)
    async with holding(postgres_database) as holder, other_store(postgres_database) as other:
        await holder.insert(same_key_request(one))
        opening = asyncio.create_task(open_one(postgres_database.store, one))
        await holder.wait_for_blocked()
        putting = asyncio.create_task(other.put_capacity(one.capacity_id, Seats(1), EVERYTHING, ACTOR))
        await holder.wait_for_blocked(2)
        await holder.rollback()
        await opening
        await putting
        assert (await open_one(other, late)).outcome is OpenOutcome.SESSION_LIMIT


async def test_capacity_that_left_scope_during_lock_wait_is_neither_changed_nor_deleted(
    postgres_database: Database,
) -> None:
    """The capacity is in the caller's scope when the call starts, and moves to another tenant during the lock wait."""
    capacity_id, tenant, other = some_id(), some_id(), some_id()
    store, scope = postgres_database.store, Scope(tenant=tenant)
    await store.put_capacity(capacity_id, Seats(3, tenant_object_id=tenant), EVERYTHING, ACTOR)
    async with holding(postgres_database) as holder:
        await holder.lock_cut()
        calls = asyncio.gather(
            store.put_capacity(capacity_id, Seats(9, tenant_object_id=tenant), scope, ACTOR),
            store.delete_capacity(capacity_id, scope, ACTOR),
        )
        await holder.wait_for_blocked(2)
        await holder.execute(f"UPDATE capacities SET tenant_object_id = '{other}'")
        await holder.commit()
    assert await calls == [None, None]
    found = await store.get_capacity(capacity_id, EVERYTHING)
    assert found is not None
    assert found.seats == Seats(3, tenant_object_id=other)


async def test_concurrent_opens_take_each_seat_once(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, Seats(7), EVERYTHING, ACTOR)
    async with other_store(postgres_database) as one, other_store(postgres_database) as other:
        outcomes = await opens_everywhere([postgres_database.store, one, other], capacity_id, 100)
    assert outcomes == {OpenOutcome.CREATED: 7, OpenOutcome.SESSION_LIMIT: 93}
    assert most_at_once(await spans(postgres_database, capacity_id)) == 7


async def test_concurrent_opens_all_succeed_when_oldest_is_evicted(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, evicting_seats(3), EVERYTHING, ACTOR)
    async with other_store(postgres_database) as one, other_store(postgres_database) as other:
        outcomes = await opens_everywhere([postgres_database.store, one, other], capacity_id, 60)
    assert outcomes == {OpenOutcome.CREATED: 60}
    assert most_at_once(await spans(postgres_database, capacity_id)) == 3


async def test_locked_session_is_not_evicted(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, evicting_seats(2), EVERYTHING, ACTOR)
    oldest, newer = [request(capacity_id=capacity_id) for _ in range(2)]
    for one in (oldest, newer):
        await open_one(postgres_database.store, one)
    async with holding(postgres_database) as holder:
        await holder.lock_session(oldest.session_id)
        result = await open_one(postgres_database.store, request(capacity_id=capacity_id))
    assert [closing.session_id for closing in result.closed_sessions] == [newer.session_id]


async def test_open_returns_session_limit_when_every_session_is_locked(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    only = request(capacity_id=capacity_id)
    await open_one(postgres_database.store, only)
    async with holding(postgres_database) as holder:
        await holder.lock_session(only.session_id)
        result = await open_one(postgres_database.store, request(capacity_id=capacity_id))
    assert result.outcome is OpenOutcome.SESSION_LIMIT
    assert (await postgres_database.store.get_session(only.session_id, EVERYTHING)).is_active  # type: ignore[union-attr]


async def test_open_is_retried_while_another_transaction_records_lapse_on_last_seat(
    postgres_database: Database,
) -> None:
    """The session on the last seat has lapsed, and the other transaction is about to free this seat. So the open must
    not be refused.
    """
    lapsed = request(lease_microseconds=SECOND)
    await postgres_database.clock.set(NOON)
    await postgres_database.store.put_capacity(lapsed.capacity_id, Seats(1), EVERYTHING, ACTOR)
    assert (await open_one(postgres_database.store, lapsed)).outcome is OpenOutcome.CREATED
    await postgres_database.clock.set(NOON + timedelta(seconds=2))
    late = [request(capacity_id=lapsed.capacity_id)]
    async with holding(postgres_database) as holder:
        await holder.lock_session(lapsed.session_id)
        (held,) = await postgres_database.store.open_sessions(OpenLane.LIMITED, late, LIMITS)
    (opened,) = await postgres_database.store.open_sessions(OpenLane.LIMITED, late, LIMITS)
    assert (held.outcome, opened.outcome) == (OpenOutcome.LIMITED, OpenOutcome.CREATED)


async def test_seat_is_not_reused_before_end_is_committed(postgres_database: Database) -> None:
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    one = request(capacity_id=capacity_id)
    await open_one(postgres_database.store, one)
    async with holding(postgres_database) as holder:
        await holder.end_session(one.session_id)
        during = await open_one(postgres_database.store, request(capacity_id=capacity_id))
        await holder.rollback()
    assert during.outcome is OpenOutcome.SESSION_LIMIT
    assert most_at_once(await spans(postgres_database, capacity_id)) == 1


async def test_seat_is_not_given_before_it_was_free_if_clock_is_stepped_back_within_the_open(
    postgres_database: Database,
) -> None:
    """One seat has been free since 5 s after noon. The first two reads of the clock in the open return noon + 6 s, all
    later reads noon + 3 s.
    """
    capacity_id, store = some_id(), postgres_database.store
    await store.put_capacity(capacity_id, Seats(2), EVERYTHING, ACTOR)
    await postgres_database.clock.set(NOON)
    first = [request(capacity_id=capacity_id) for _ in range(2)]
    for one in first:
        await open_one(store, one)
    await postgres_database.clock.set(NOON + timedelta(seconds=5))
    for one in first:
        await end_one(store, one.session_id, CloseReason.TERMINATED)
    await open_one(store, request(capacity_id=capacity_id))  # counts the sessions, so one seat is known to be free
    await postgres_database.execute("CREATE SEQUENCE reads_of_the_clock")
    await postgres_database.execute(
        "CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT timestamptz "
        f"'{NOON}' + CASE WHEN nextval('reads_of_the_clock') <= 2 THEN interval '6 s' ELSE interval '3 s' END $$"
    )
    (result,) = await store.open_sessions(OpenLane.LIMITED, [request(capacity_id=capacity_id)], LIMITS)
    assert result.outcome is OpenOutcome.CREATED
    assert most_at_once(await spans(postgres_database, capacity_id)) == 2


async def test_live_session_is_returned_while_its_capacity_is_locked(postgres_database: Database) -> None:
    """Once a capacity is known to have a limit, its open requests start in the lane LIMITED, and no other lane has
    looked for a live session before. So LIMITED must return live sessions, without waiting for the row of the capacity.
    """
    capacity_id = some_id()
    await postgres_database.store.put_capacity(capacity_id, Seats(2), EVERYTHING, ACTOR)
    one = request(capacity_id=capacity_id)
    await open_one(postgres_database.store, one)
    async with holding(postgres_database) as holder:
        await holder.lock_capacity(capacity_id)
        again, of_other_tenant = [
            (await postgres_database.store.open_sessions(OpenLane.LIMITED, [each], LIMITS))[0]
            for each in (same_key_request(one), same_key_request(one, tenant_object_id=some_id()))
        ]
    assert again.outcome is OpenOutcome.EXISTING
    assert again.session is not None
    assert again.session.session_id == one.session_id
    assert of_other_tenant.outcome is OpenOutcome.TENANT_MISMATCH


async def test_key_taken_during_lock_wait_for_capacity_is_not_opened_twice(
    postgres_database: Database,
) -> None:
    capacity_id = some_id()
    store = postgres_database.store
    await store.put_capacity(capacity_id, Seats(3), EVERYTHING, ACTOR)
    await open_one(store, request(capacity_id=capacity_id))  # counts the sessions, so two seats are known to be free
    one, other = sorted((request(capacity_id=capacity_id) for _ in range(2)), key=lambda each: each.key)
    async with holding(postgres_database) as holder:
        await holder.lock_capacity(capacity_id)
        opening = asyncio.create_task(store.open_sessions(OpenLane.LIMITED, [one, other], LIMITS))
        await holder.wait_for_blocked()
        await holder.insert(same_key_request(one))
        await holder.commit()
        outcomes = [result.outcome for result in await opening]
    assert outcomes == [OpenOutcome.AGAIN, OpenOutcome.CREATED]
    assert most_at_once(await spans(postgres_database, capacity_id)) == 3


async def test_batches_over_many_capacities_do_not_deadlock(postgres_database: Database) -> None:
    """Capacity rows are locked in the order of ids. Locked session rows are skipped."""
    ids = sorted(some_id() for _ in range(8))
    for capacity_id in ids:
        await postgres_database.store.put_capacity(capacity_id, evicting_seats(4), EVERYTHING, ACTOR)
    source = random.Random(7)

    async def batches(store: Store) -> None:
        for _ in range(15):
            requests = sorted((request(capacity_id=one) for one in source.choices(ids, k=24)), key=lambda one: one.key)
            results = await store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
            ended = [one.session for one in results if one.session is not None][::3]
            for session in ended:
                await end_one(store, session.session_id, CloseReason.STOPPED)

    async with other_store(postgres_database) as one, other_store(postgres_database) as other:
        await asyncio.gather(*(batches(store) for store in (one, other, one, other)))
    assert [most_at_once(await spans(postgres_database, capacity_id)) for capacity_id in ids] == [4] * 8


async def test_opens_lock_capacities_in_order_of_ids(postgres_database: Database) -> None:
    """Without a common order, two batches with the same capacities could deadlock."""
    first, *others = sorted(some_id() for _ in range(8))
    for capacity_id in (first, *others):
        await postgres_database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    requests = [request(capacity_id=capacity_id) for capacity_id in (*reversed(others), first)]
    async with holding(postgres_database) as holder, holding(postgres_database) as other:
        await holder.execute(f"SELECT FROM capacities WHERE capacity_id = '{first}' FOR UPDATE")
        opening = asyncio.create_task(postgres_database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS))
        await holder.wait_for_blocked()
        await other.execute(f"SELECT FROM capacities WHERE capacity_id <> '{first}' FOR UPDATE NOWAIT")
        await other.rollback()
        await holder.rollback()
        assert {result.outcome for result in await opening} == {OpenOutcome.CREATED}


@pytest.mark.parametrize("seed", range(4))
async def test_mixed_batches_keep_limit_and_report_every_end_once(database: Database, seed: int) -> None:
    """New users, returning users and upgrades, on two capacities, with a clock that jumps forward and back. The session
    that an upgrade replaces is not reported.
    """
    source, now, reported = random.Random(seed), NOON, list[str]()
    limits = {some_id(): 3, some_id(): 5}
    for number, (capacity_id, limit) in enumerate(limits.items()):
        await database.store.put_capacity(
            capacity_id, evicting_seats(limit) if number else Seats(limit), EVERYTHING, ACTOR
        )
    users = [some_id() for _ in range(9)]
    for _ in range(25):
        now += timedelta(seconds=source.choice([-2, 0, 0, 1, 3, 6]))
        await database.clock.set(max(now, NOON))
        keys = source.sample([(capacity_id, user) for capacity_id in limits for user in users], 7)
        requests = [_request(capacity_id, user, source) for capacity_id, user in sorted(keys)]
        for result in await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS):
            reported += [closing.session_id for closing in result.closed_sessions]
            if result.session is not None:
                assert (await database.store.get_session(result.session.session_id, EVERYTHING)) == result.session
    ended = await database.rows("SELECT session_id FROM sessions WHERE close_reason <> 'UPGRADED'")
    assert Counter(reported) == Counter(str(row["session_id"]) for row in ended)
    most = {capacity_id: most_at_once(await spans(database, capacity_id)) for capacity_id in limits}
    assert most == limits


def _request(capacity_id: str, user: str, source: random.Random) -> OpenRequest:
    lease = source.choice([5, 8]) * SECOND
    kind = source.choice((1, 1, 2, 3))
    return request(
        capacity_id=capacity_id, user_object_id=user, tenant_object_id=TENANT, kind=kind, lease_microseconds=lease
    )
