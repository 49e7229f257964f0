"""A session ends at its deadline, the sweep only records the end, and a heartbeat never revives an ended session."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from tenure.clock import from_microseconds
from tenure.domain.capacities import Seats
from tenure.domain.leases import Fence
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import Found, Heartbeat, OpenOutcome, OpenRequest
from tenure.errors import DatabaseBusy
from tenure.sessions.ends import SessionEnds
from tenure.sessions.heartbeat import Renewer
from tenure.telemetry.events import HeartbeatsAnswered, Telemetry
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.leases import hold_lease, sweep_some
from tests.support.load import Client, clients
from tests.support.locks import holding, other_store
from tests.support.open_requests import NOON, SECOND, ending, open_one, request, same_key_request, some_id
from tests.support.processes import eventually
from tests.support.session_calls import attach_one, heartbeat_one, update_one
from tests.support.sessions import open_session, read_session
from tests.support.telemetry import RecordedTelemetry

Start = Callable[..., RunningInstance]
SECONDS = timedelta(seconds=1)
BRIEF = 300_000
"""A lease in microseconds. It expires while the test holds the row of the session."""
SHORT_LEASE = {"TENURE_SESSIONS__LEASE_SECONDS": "2"}
CONTENTION_SECONDS = 0.05
"""Long enough for a write to find the row held several times."""


# With instances


@pytest.mark.slow
async def test_session_ends_at_deadline_without_sweep(database: Database, start: Start) -> None:
    """Reads, heartbeats, opens and counts of seats treat a lapsed session as ended, although no sweep has run."""
    environment = {**SHORT_LEASE, "TENURE_JOBS__EXPIRE_SESSIONS__PAUSED": "true"}
    instance = start(database.url, **environment).wait_until_ready()
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
async def test_sweep_records_deadline_instead_of_sweep_time(database: Database, start: Start) -> None:
    environment = {**SHORT_LEASE, "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1"}
    instances = [start(database.url, **environment) for _ in range(2)]
    addresses = [instance.wait_until_ready().address for instance in instances]
    async with clients(addresses, 1) as members:
        sessions = [await opened(member, some_id()) for member in members for _ in range(20)]
    for _ in range(200):
        rows = await database.rows("SELECT session_id, closed_at, close_reason, check_at FROM sessions")
        if all(row["closed_at"] is not None for row in rows):
            break
        await asyncio.sleep(0.1)
    ends = {str(row["session_id"]): (_instant(row["closed_at"]), row["close_reason"]) for row in rows}
    deadlines = {one["sessionId"]: (_utc(one["leaseExpiresAt"]), "LEASE_EXPIRED") for one in sessions}
    assert ends == deadlines

    def logged() -> int:
        return "".join(instance.log() for instance in instances).count("session.lease_expired")

    # An instance logs a lapse after the commit, so the log lines may come later than the rows.
    await eventually(lambda: logged() >= len(sessions), 10, "every lapse is logged")
    assert logged() == len(sessions), "each lapse is logged once, by the instance that recorded it"


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
    }


async def until(instant: str) -> None:
    at = _utc(instant)
    await eventually(lambda: datetime.now(at.tzinfo) >= at, 10, f"it is {instant}")


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _instant(value: datetime | int | None) -> datetime | None:
    return from_microseconds(value) if isinstance(value, int) else value


# Concurrent heartbeats


async def test_heartbeat_retries_until_held_row_is_released(postgres_database: Database) -> None:
    one = await open_session(postgres_database, request(lease_microseconds=60 * SECOND))
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        heartbeat = asyncio.create_task(heartbeat_one(postgres_database.store, one.session_id))
        await asyncio.sleep(CONTENTION_SECONDS)
        released_at = await holder.now()
        await holder.rollback()
    renewed = await heartbeat
    assert renewed.found is Found.LIVE
    assert renewed.deadline_at is not None
    assert renewed.deadline_at > released_at + 60 * SECONDS, "the clock was read before the row was locked"


async def test_heartbeat_does_not_revive_session_that_lapsed_while_row_was_held(postgres_database: Database) -> None:
    one = await open_session(postgres_database, request(lease_microseconds=BRIEF))
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        heartbeat = asyncio.create_task(heartbeat_one(postgres_database.store, one.session_id))
        await asyncio.sleep(CONTENTION_SECONDS)
        await holder.wait_until(one.deadline_at)
        await holder.rollback()
    renewed = await heartbeat
    assert (renewed.found, renewed.closed_session) == (
        Found.OVER,
        ending(one, "LEASE_EXPIRED", one.deadline_at),
    )


async def test_heartbeat_fails_after_lapsed_seat_was_reused(postgres_database: Database) -> None:
    """An open waits for the held row of a lapsed session, and then takes the seat of this session. Only then does the
    heartbeat arrive.
    """
    capacity = some_id()
    await postgres_database.store.put_capacity(capacity, Seats(1), EVERYTHING, ACTOR)
    one = await open_session(postgres_database, request(capacity_id=capacity, lease_microseconds=BRIEF))
    async with holding(postgres_database) as holder, other_store(postgres_database) as other:
        await holder.lock_session(one.session_id)
        await holder.wait_until(one.deadline_at)
        taking = asyncio.create_task(open_one(other, request(capacity_id=capacity)))
        await asyncio.sleep(CONTENTION_SECONDS)
        assert not taking.done(), "the open must be retried, not refused, while the row is held"
        await holder.rollback()
        taken = await taking
    renewed = await heartbeat_one(postgres_database.store, one.session_id)
    assert (taken.outcome, [closing.session_id for closing in taken.closed_sessions]) == (
        OpenOutcome.CREATED,
        [one.session_id],
    )
    assert (renewed.found, renewed.close_reason, renewed.closed_session) == (Found.OVER, "LEASE_EXPIRED", None)


@pytest.mark.parametrize("taker", ["seat", "key", "sweep", "heartbeat", "eviction"])
async def test_heartbeat_never_revives_session_that_concurrent_call_ended(database: Database, taker: str) -> None:
    """A heartbeat and another call run at the deadline, or a microsecond before it.

    If the session has ended, no later heartbeat succeeds. If the session is live, a later heartbeat succeeds.
    """
    fence = await hold_lease(database.store)
    for number in range(12):
        await database.clock.set(NOON)
        capacity = some_id()
        await database.store.put_capacity(
            capacity, Seats(1, "evictOldest" if taker == "eviction" else "reject"), EVERYTHING, ACTOR
        )
        one = request(capacity_id=capacity, lease_microseconds=10 * SECOND)
        await open_session(database, one)
        early = timedelta(microseconds=number % 2 or taker == "eviction")
        await database.clock.set(NOON + 10 * SECONDS - early)
        renewed, _ = await asyncio.gather(
            heartbeat_one(database.store, one.session_id, active=True), _take(database, taker, one, fence)
        )
        session = await read_session(database, one.session_id)
        if renewed.found is Found.OVER:
            assert session.closed_at is not None, (
                f"round {number}: the heartbeat returned OVER, but the session is live: {session}"
            )
        later = await heartbeat_one(database.store, one.session_id)
        assert (later.found is Found.LIVE) == session.is_active, f"round {number}: {later.found}, {session}"
        if taker in ("seat", "key") and not early:
            assert (renewed.found, session.close_reason) == (Found.OVER, "LEASE_EXPIRED"), f"round {number}"


async def _take(database: Database, taker: str, one: OpenRequest, fence: Fence) -> object:
    if taker == "key":
        return await open_one(database.store, same_key_request(one))
    if taker == "sweep":
        return await database.store.expire_sessions(fence, 9)
    if taker == "heartbeat":
        return await heartbeat_one(database.store, one.session_id)
    return await open_one(database.store, request(capacity_id=one.capacity_id))


async def test_concurrent_opens_reuse_lapsed_seat_once(postgres_database: Database) -> None:
    """Twenty users open sessions on four instances, while the client of the lapsed session sends heartbeats."""
    capacity = some_id()
    await postgres_database.clock.set(NOON)
    await postgres_database.store.put_capacity(capacity, Seats(3), EVERYTHING, ACTOR)
    lapsing = request(capacity_id=capacity, lease_microseconds=10 * SECOND)
    for one in (lapsing, request(capacity_id=capacity), request(capacity_id=capacity)):
        await open_session(postgres_database, one)
    await postgres_database.clock.set(NOON + 10 * SECONDS)
    stores = [postgres_database.another_store() for _ in range(4)]
    results = await asyncio.gather(
        *(open_one(stores[number % 4], request(capacity_id=capacity)) for number in range(20)),
        *(heartbeat_one(store, lapsing.session_id, active=True) for store in stores),
    )
    for store in stores:
        await store.close()
    outcomes = [result.outcome for result in results[:20]]  # type: ignore[union-attr]
    assert (outcomes.count(OpenOutcome.CREATED), outcomes.count(OpenOutcome.SESSION_LIMIT)) == (1, 19)
    assert {result.found for result in results[20:]} == {Found.OVER}  # type: ignore[union-attr]
    reported = [closing for result in results[:20] for closing in result.closed_sessions]  # type: ignore[union-attr]
    reported += [result.closed_session for result in results[20:] if result.closed_session is not None]  # type: ignore[union-attr]
    assert reported == [ending(lapsing, "LEASE_EXPIRED", NOON + 10 * SECONDS)]


# Held rows


async def test_heartbeat_succeeds_while_another_waits_for_held_row(postgres_database: Database) -> None:
    held, free = [await open_session(postgres_database, request(lease_microseconds=60 * SECOND)) for _ in range(2)]
    renewer = Renewer(postgres_database.store, SessionEnds(Telemetry()), Telemetry())
    async with holding(postgres_database) as holder:
        await holder.lock_session(held.session_id)
        waiting = asyncio.create_task(renewer.heartbeat(Heartbeat(held.session_id, False, EVERYTHING)))
        renewed = await renewer.heartbeat(Heartbeat(free.session_id, False, EVERYTHING))
        assert (renewed.found, waiting.done()) == (Found.LIVE, False)
        await holder.rollback()
    assert (await waiting).found is Found.LIVE


@pytest.mark.slow
async def test_heartbeat_raises_database_busy_when_row_stays_held(postgres_database: Database) -> None:
    one = await open_session(postgres_database, request(lease_microseconds=60 * SECOND))
    telemetry = RecordedTelemetry()
    async with holding(postgres_database) as holder:
        await holder.lock_session(one.session_id)
        with pytest.raises(DatabaseBusy):
            await Renewer(postgres_database.store, SessionEnds(telemetry), telemetry).heartbeat(
                Heartbeat(one.session_id, False, EVERYTHING)
            )
    answered = telemetry.of(HeartbeatsAnswered)
    assert {(event.renewed, event.late) for event in answered} == {(0, 0)}


async def test_concurrent_heartbeats_of_one_session_all_succeed(postgres_database: Database) -> None:
    """The heartbeats arrive at two instances, and each instance retries while the other one holds the row."""
    one = await open_session(postgres_database, request(lease_microseconds=60 * SECOND))
    async with other_store(postgres_database) as other:
        renewers = [Renewer(store, SessionEnds(Telemetry()), Telemetry()) for store in (postgres_database.store, other)]
        renewed = await asyncio.gather(
            *(
                renewers[number % 2].heartbeat(Heartbeat(one.session_id, number % 3 == 0, EVERYTHING))
                for number in range(60)
            )
        )
    assert {result.found for result in renewed} == {Found.LIVE}
    assert (await read_session(postgres_database, one.session_id)).state == "active"


# Concurrent sweeps


async def test_concurrent_sweeps_record_every_lapse_exactly_once(database: Database) -> None:
    await database.clock.set(NOON)
    requests = [request(lease_microseconds=(10 + number % 7) * SECOND) for number in range(300)]
    for one in requests:
        await open_session(database, one)
    await database.clock.set(NOON + 60 * SECONDS)
    # On SQLite, another store would use the clock of the host instead of the clock that the test sets.
    stores = [database.store] if database.engine == "sqlite" else [database.another_store() for _ in range(4)]
    fence = await hold_lease(database.store)
    swept = await asyncio.gather(*(store.expire_sessions(fence, 20) for store in stores for _ in range(60)))
    for store in stores:
        if store is not database.store:
            await store.close()
    expired = sorted(closing.session_id for one in swept for closing in one.closed_sessions)
    assert expired == sorted(one.session_id for one in requests)


async def test_sweep_skips_held_rows_and_expires_them_later(postgres_database: Database) -> None:
    held, free = [await open_session(postgres_database, request(lease_microseconds=BRIEF)) for _ in range(2)]
    async with holding(postgres_database) as holder:
        await holder.lock_session(held.session_id)
        await holder.wait_until(free.deadline_at)
        during = await sweep_some(postgres_database.store, 9)
        await holder.rollback()
    after = await sweep_some(postgres_database.store, 9)
    assert [closing.session_id for closing in during.closed_sessions] == [free.session_id]
    assert [closing.session_id for closing in after.closed_sessions] == [held.session_id]


async def test_sweep_does_not_close_session_renewed_concurrently(postgres_database: Database) -> None:
    """A heartbeat has moved the deadline, but the session is still due for the sweep at its first deadline. The sweep
    and another heartbeat wait for the cut lock, and run at the same time when the lock is released.
    """
    await postgres_database.clock.set(NOON)
    one = await open_session(postgres_database, request(lease_microseconds=10 * SECOND))
    await postgres_database.clock.set(NOON + 9 * SECONDS)
    assert (await heartbeat_one(postgres_database.store, one.session_id)).found is Found.LIVE
    await postgres_database.clock.set(NOON + 12 * SECONDS)
    async with holding(postgres_database) as holder, other_store(postgres_database) as other:
        await holder.lock_cut()
        heartbeat = asyncio.create_task(heartbeat_one(other, one.session_id))
        await holder.wait_for_blocked()
        sweep = asyncio.create_task(sweep_some(postgres_database.store, 9))
        await holder.wait_for_blocked(2)
        await holder.rollback()
        assert (await heartbeat).found is Found.LIVE
        assert (await sweep).closed_sessions == []
    # The first sweep may have skipped the row because the heartbeat held it. So the test sweeps once more.
    assert (await sweep_some(postgres_database.store, 9)).closed_sessions == []
    assert (await read_session(postgres_database, one.session_id)).is_active


# Dead instances and shortened deadlines


async def test_sweep_closes_session_left_closing_by_dead_instance(database: Database) -> None:
    await database.clock.set(NOON)
    one = await open_session(database, request())
    await attach_one(database.store, one.session_id)
    await database.clock.set(NOON + SECONDS)
    await update_one(database.store, one.session_id, end="FAILED")
    await database.clock.set(NOON + 60 * SECONDS)
    await sweep_some(database.store, 9)
    session = await read_session(database, one.session_id)
    assert (session.state, session.close_reason, session.closed_at) == ("closed", "FAILED", NOON + SECONDS)


async def test_sweep_expires_session_at_deadline_shortened_by_stream(database: Database) -> None:
    await database.clock.set(NOON)
    one = await open_session(database, request())
    await attach_one(database.store, one.session_id)
    await database.clock.set(NOON + 60 * SECONDS)
    swept = await sweep_some(database.store, 9)
    assert swept.closed_sessions == [ending(one, "LEASE_EXPIRED", NOON + 60 * SECONDS)]
