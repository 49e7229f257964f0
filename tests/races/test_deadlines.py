"""The deadline decides, the sweep only records; and a heartbeat never revives what somebody has given away."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from tenure.clock import from_microseconds
from tenure.errors import DatabaseBusy
from tenure.model.leases import Fence
from tenure.model.sessions import Closing, Found, Heartbeat, Open, Outcome, Seats
from tenure.sessions.counters import Counters
from tenure.sessions.keeping import Keeper
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.keeping import attach_one, keep_one, update_one
from tests.support.leases import held, sweep_some
from tests.support.load import Client, clients
from tests.support.locks import elsewhere, holding
from tests.support.processes import eventually
from tests.support.sessions import live, recorded
from tests.support.wishes import NOON, SECOND, again, open_one, some_id, wish

Start = Callable[..., RunningInstance]
SECONDS = timedelta(seconds=1)
BRIEF = 300_000
"""Microseconds: a lease that runs out while somebody holds the row."""
ROUNDS_SECONDS = 0.05
"""Long enough for a write to find the row held, several times."""


# With instances


@pytest.mark.slow
async def test_a_session_is_over_at_its_deadline_although_nobody_sweeps(database: Database, start: Start) -> None:
    """Reads, heartbeats, opens and seats of a lapsed session that no sweep has come by."""
    instance = start(database.url, TENURE_JOBS__EXPIRE_SESSIONS__PAUSED="true").wait_until_ready()
    async with clients([instance.address], 1) as (client,):
        capacity = some_id()
        await client.send("PUT", f"/capacities/{capacity}", {"maxSessions": 2})
        first, second = await opened(client, capacity), await opened(client, capacity)
        assert (await client.send("PUT", "/sessions", body(capacity))).status == 429
        await until(second["leaseExpiresAt"])
        read = (await client.get(f"/sessions/{first['sessionId']}")).answer
        assert (read["isActive"], read["closeReason"], read["sessionEndUtc"]) == (
            False,
            "LEASE_EXPIRED",
            first["leaseExpiresAt"],
        )
        late = await client.send("POST", f"/sessions/{first['sessionId']}/heartbeat")
        assert (late.status, late.answer["closeReason"]) == (410, "LEASE_EXPIRED")
        again_ = await client.send("PUT", "/sessions", {**body(capacity), "userObjectId": second["userObjectId"]})
        assert (again_.status, again_.answer["status"]) == (201, "created")
        assert (await client.send("PUT", "/sessions", body(capacity))).status == 201


@pytest.mark.slow
async def test_the_sweep_records_the_deadline_and_not_its_own_time(database: Database, start: Start) -> None:
    instances = [start(database.url, TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS="1") for _ in range(2)]
    addresses = [instance.wait_until_ready().address for instance in instances]
    async with clients(addresses, 1) as members:
        sessions = [await opened(member, some_id()) for member in members for _ in range(20)]
    for _ in range(200):
        rows = await database.rows("SELECT session_id, closed_at, close_reason, check_at FROM sessions")
        if all(row["closed_at"] is not None for row in rows):
            break
        await asyncio.sleep(0.1)
    told = {str(row["session_id"]): (_instant(row["closed_at"]), row["close_reason"]) for row in rows}
    deadlines = {one["sessionId"]: (_utc(one["leaseExpiresAt"]), "LEASE_EXPIRED") for one in sessions}
    assert told == deadlines

    def logged() -> int:
        return "".join(instance.log() for instance in instances).count("session.lease_expired")

    # It is committed first, and told afterwards.
    await eventually(lambda: logged() >= len(sessions), 10, "every lapse is told")
    assert logged() == len(sessions), "each lapse is told once, by whoever recorded it"


async def opened(client: Client, capacity: str) -> dict[str, str]:
    exchange = await client.send("PUT", "/sessions", body(capacity))
    assert exchange.status == 201, exchange
    return exchange.answer  # type: ignore[no-any-return]


def body(capacity: str) -> dict[str, object]:
    return {
        "userObjectId": some_id(),
        "tenantObjectId": some_id(),
        "capacityId": capacity,
        "sessionKind": 1,
        "leaseSeconds": 5,
    }


async def until(instant: str) -> None:
    at = _utc(instant)
    await eventually(lambda: datetime.now(at.tzinfo) >= at, 10, f"it is {instant}")


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _instant(value: datetime | int | None) -> datetime | None:
    return from_microseconds(value) if isinstance(value, int) else value


# A heartbeat under way


async def test_a_heartbeat_does_not_wait_for_a_row_but_comes_again(postgres_database: Database) -> None:
    one = await live(postgres_database, wish(lease_microseconds=60 * SECOND))
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        heartbeat = asyncio.create_task(keep_one(postgres_database.store, one.session_id))
        await asyncio.sleep(ROUNDS_SECONDS)
        released_at = await holder.now()
        await holder.rollback()
    kept = await heartbeat
    assert kept.found is Found.LIVE
    assert kept.deadline_at is not None
    assert kept.deadline_at > released_at + 60 * SECONDS, "stamped before the row was its own"


async def test_a_heartbeat_that_lapsed_during_the_wait_revives_nothing(postgres_database: Database) -> None:
    one = await live(postgres_database, wish(lease_microseconds=BRIEF))
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        heartbeat = asyncio.create_task(keep_one(postgres_database.store, one.session_id))
        await asyncio.sleep(ROUNDS_SECONDS)
        await holder.wait_until(one.deadline_at)
        await holder.rollback()
    kept = await heartbeat
    assert (kept.found, kept.closing) == (
        Found.OVER,
        Closing(one.session_id, "LEASE_EXPIRED", one.deadline_at),
    )


async def test_a_heartbeat_after_its_seat_was_given_away_is_too_late(postgres_database: Database) -> None:
    """The seat of a lapsed session is taken while somebody holds its row; its client comes just after."""
    capacity = some_id()
    await postgres_database.store.put_capacity(capacity, Seats(1))
    one = await live(postgres_database, wish(capacity_id=capacity, lease_microseconds=BRIEF))
    async with holding(postgres_database) as holder, elsewhere(postgres_database) as other:
        await holder.lock_session(one.session_id)
        await holder.wait_until(one.deadline_at)
        taking = asyncio.create_task(open_one(other, wish(capacity_id=capacity)))
        await asyncio.sleep(ROUNDS_SECONDS)
        assert not taking.done(), "a seat that somebody writes at this moment is a reason to look again, not to refuse"
        await holder.rollback()
        taken = await taking
    kept = await keep_one(postgres_database.store, one.session_id)
    assert (taken.outcome, [closing.session_id for closing in taken.closings]) == (Outcome.CREATED, [one.session_id])
    assert (kept.found, kept.close_reason, kept.closing) == (Found.OVER, "LEASE_EXPIRED", None)


@pytest.mark.parametrize("taker", ["seat", "key", "sweep", "end", "eviction"])
async def test_of_a_heartbeat_and_whoever_acts_on_a_lapse_only_one_has_its_way(database: Database, taker: str) -> None:
    """At the very instant of the deadline, again and again: what was recorded stays, what was renewed lives."""
    fence = await held(database.store)
    for number in range(12):
        await database.clock.set(NOON)
        capacity = some_id()
        await database.store.put_capacity(capacity, Seats(1, "evictOldest" if taker == "eviction" else "reject"))
        one = wish(capacity_id=capacity, lease_microseconds=10 * SECOND)
        await live(database, one)
        early = timedelta(microseconds=number % 2 or taker == "eviction")
        await database.clock.set(NOON + 10 * SECONDS - early)
        kept, _ = await asyncio.gather(
            keep_one(database.store, one.session_id, active=True), _take(database, taker, one, fence)
        )
        session = await recorded(database, one.session_id)
        if kept.found is Found.OVER:
            assert session.closed_at is not None, f"round {number}: told that it is over, but it lives: {session}"
        later = await keep_one(database.store, one.session_id)
        assert (later.found is Found.LIVE) == session.is_active, f"round {number}: revived {session}"
        if taker in ("seat", "key") and not early:
            assert (kept.found, session.close_reason) == (Found.OVER, "LEASE_EXPIRED"), f"round {number}"


async def _take(database: Database, taker: str, one: Open, fence: Fence) -> object:
    if taker == "key":
        return await open_one(database.store, again(one))
    if taker == "sweep":
        return await database.store.expire_sessions(fence, 9)
    if taker == "end":
        return await keep_one(database.store, one.session_id)
    return await open_one(database.store, wish(capacity_id=one.capacity_id))


async def test_a_full_house_takes_a_lapsed_seat_and_never_two(postgres_database: Database) -> None:
    """Twenty users, one lapsed seat, and its own client's heartbeats, all at once on four instances."""
    capacity = some_id()
    await postgres_database.clock.set(NOON)
    await postgres_database.store.put_capacity(capacity, Seats(3))
    lapsing = wish(capacity_id=capacity, lease_microseconds=10 * SECOND)
    for one in (lapsing, wish(capacity_id=capacity), wish(capacity_id=capacity)):
        await live(postgres_database, one)
    await postgres_database.clock.set(NOON + 10 * SECONDS)
    stores = [postgres_database.another_store() for _ in range(4)]
    answers = await asyncio.gather(
        *(open_one(stores[number % 4], wish(capacity_id=capacity)) for number in range(20)),
        *(keep_one(store, lapsing.session_id, active=True) for store in stores),
    )
    for store in stores:
        await store.close()
    outcomes = [answer.outcome for answer in answers[:20]]  # type: ignore[union-attr]
    assert (outcomes.count(Outcome.CREATED), outcomes.count(Outcome.SESSION_LIMIT)) == (1, 19)
    assert {answer.found for answer in answers[20:]} == {Found.OVER}  # type: ignore[union-attr]
    told = [closing for answer in answers[:20] for closing in answer.closings]  # type: ignore[union-attr]
    told += [answer.closing for answer in answers[20:] if answer.closing is not None]  # type: ignore[union-attr]
    assert told == [Closing(lapsing.session_id, "LEASE_EXPIRED", NOON + 10 * SECONDS)]


# What the rows that others hold mean for a heartbeat's caller


async def test_a_heartbeat_is_answered_although_another_of_its_batch_is_held_up(postgres_database: Database) -> None:
    held, free = [await live(postgres_database, wish(lease_microseconds=60 * SECOND)) for _ in range(2)]
    keeper = Keeper(postgres_database.store, Counters())
    async with holding(postgres_database) as holder:
        await holder.lock_session(held.session_id)
        waiting = asyncio.create_task(keeper.heartbeat(Heartbeat(held.session_id, False)))
        kept = await keeper.heartbeat(Heartbeat(free.session_id, False))
        assert (kept.found, waiting.done()) == (Found.LIVE, False)
        await holder.rollback()
    assert (await waiting).found is Found.LIVE


@pytest.mark.slow
async def test_a_heartbeat_whose_row_is_held_for_long_is_told_to_come_again(postgres_database: Database) -> None:
    one = await live(postgres_database, wish(lease_microseconds=60 * SECOND))
    counters = Counters()
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        with pytest.raises(DatabaseBusy):
            await Keeper(postgres_database.store, counters).heartbeat(Heartbeat(one.session_id, False))
    assert (counters.heartbeats, counters.late_heartbeats) == (0, 0)


async def test_many_heartbeats_of_one_session_at_once_are_all_answered(postgres_database: Database) -> None:
    """Through two instances: they hold the row up for each other, and each comes again."""
    one = await live(postgres_database, wish(lease_microseconds=60 * SECOND))
    async with elsewhere(postgres_database) as other:
        keepers = [Keeper(store, Counters()) for store in (postgres_database.store, other)]
        kept = await asyncio.gather(
            *(keepers[number % 2].heartbeat(Heartbeat(one.session_id, number % 3 == 0)) for number in range(60))
        )
    assert {answer.found for answer in kept} == {Found.LIVE}
    assert (await recorded(postgres_database, one.session_id)).state == "active"


# Many sweeps at once


async def test_sweeps_at_once_record_every_lapse_exactly_once(database: Database) -> None:
    await database.clock.set(NOON)
    wishes = [wish(lease_microseconds=(10 + number % 7) * SECOND) for number in range(300)]
    for one in wishes:
        await live(database, one)
    await database.clock.set(NOON + 60 * SECONDS)
    # On SQLite another store would run on the host's clock.
    stores = [database.store] if database.engine == "sqlite" else [database.another_store() for _ in range(4)]
    fence = await held(database.store)
    swept = await asyncio.gather(*(store.expire_sessions(fence, 20) for store in stores for _ in range(60)))
    for store in stores:
        if store is not database.store:
            await store.close()
    told = sorted(closing.session_id for one in swept for closing in one.closings)
    assert told == sorted(one.session_id for one in wishes)


async def test_a_sweep_leaves_rows_that_others_hold_and_takes_them_later(postgres_database: Database) -> None:
    held, free = [await live(postgres_database, wish(lease_microseconds=BRIEF)) for _ in range(2)]
    async with holding(postgres_database) as holder:
        await holder.lock_session(held.session_id)
        await holder.wait_until(free.deadline_at)
        during = await sweep_some(postgres_database.store, 9)
        await holder.rollback()
    after = await sweep_some(postgres_database.store, 9)
    assert [closing.session_id for closing in during.closings] == [free.session_id]
    assert [closing.session_id for closing in after.closings] == [held.session_id]


async def test_a_sweep_closes_nothing_that_was_renewed_since_it_looked(postgres_database: Database) -> None:
    """Its clock and its look are older than the renewal that it then finds in the row."""
    one = await live(postgres_database, wish(lease_microseconds=60 * SECOND))
    async with holding(postgres_database) as holder, elsewhere(postgres_database) as other:
        await holder.hold_the_cut()
        heartbeat = asyncio.create_task(keep_one(other, one.session_id))
        await holder.somebody_waits()
        sweep = asyncio.create_task(sweep_some(postgres_database.store, 9))
        await holder.somebody_waits(2)
        await holder.rollback()
        assert (await heartbeat).found is Found.LIVE
        assert (await sweep).closings == []
    assert (await recorded(postgres_database, one.session_id)).is_active


# A dead instance, and deadlines that are brought nearer


async def test_what_a_dead_instance_left_closing_is_finished_by_any_other(database: Database) -> None:
    await database.clock.set(NOON)
    one = await live(database, wish())
    await attach_one(database.store, one.session_id)
    await database.clock.set(NOON + SECONDS)
    await update_one(database.store, one.session_id, end="FAILED")
    await database.clock.set(NOON + 60 * SECONDS)
    await sweep_some(database.store, 9)
    session = await recorded(database, one.session_id)
    assert (session.state, session.close_reason, session.closed_at) == ("closed", "FAILED", NOON + SECONDS)


async def test_a_deadline_that_a_stream_brought_nearer_is_swept_in_time(database: Database) -> None:
    await database.clock.set(NOON)
    one = await live(database, wish())
    await attach_one(database.store, one.session_id)
    await database.clock.set(NOON + 60 * SECONDS)
    swept = await sweep_some(database.store, 9)
    assert swept.closings == [Closing(one.session_id, "LEASE_EXPIRED", NOON + 60 * SECONDS)]
