"""Opening sessions on capacities that have a limit or a tenant, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.capacities import Seats
from tenure.domain.deadlines import opened
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, OpenOutcome, OpenRequest, OpenResult
from tenure.store.contract.sessions import OpenLane
from tenure.store.limits import BATCH_MAX
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.open_requests import (
    LIMITS,
    NOON,
    SECOND,
    end_one,
    ending,
    open_one,
    request,
    same_key_request,
    some_id,
)
from tests.support.session_calls import attach_one, evicting_seats, heartbeat_one, update_one
from tests.support.sessions import read_session

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def capacity_id() -> str:
    return some_id()


async def filled(database: Database, capacity_id: str, count: int, **given: object) -> list[OpenRequest]:
    """Opens `count` sessions, one per second, so the first one has the oldest activity. Returns their requests."""
    requests = [request(capacity_id=capacity_id, **given) for _ in range(count)]
    for number, one in enumerate(requests):
        await database.clock.set(NOON + number * SECONDS)
        result = await open_one(database.store, one)
        assert result.outcome is OpenOutcome.CREATED
    return requests


async def outcome(database: Database, one: OpenRequest) -> OpenOutcome:
    return (await open_one(database.store, one)).outcome


async def test_open_sessions__returns_session_limit_when_all_seats_are_taken(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(2), EVERYTHING, ACTOR)
    await filled(database, capacity_id, 2)
    result = await open_one(database.store, request(capacity_id=capacity_id))
    assert (result.outcome, result.session, list(result.closed_sessions)) == (OpenOutcome.SESSION_LIMIT, None, [])


async def test_open_sessions__creates_session_on_limited_capacity(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(2), EVERYTHING, ACTOR)
    one = request(capacity_id=capacity_id, kind=2, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND)
    result = await open_one(database.store, one)
    assert result.session == await read_session(database, one.session_id) == opened(one, LIMITS, NOON)


async def test_open_sessions__counts_sessions_opened_before_limit_was_set(database: Database, capacity_id: str) -> None:
    await filled(database, capacity_id, 3)
    await database.store.put_capacity(capacity_id, Seats(3), EVERYTHING, ACTOR)
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT


async def test_open_sessions__returns_existing_session_when_all_seats_are_taken(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    (one,) = await filled(database, capacity_id, 1)
    assert await outcome(database, same_key_request(one)) is OpenOutcome.EXISTING


async def test_open_sessions__keeps_seat_on_upgrade(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=60 * SECOND)
    await database.clock.set(NOON + 5 * SECONDS)
    higher = same_key_request(one, kind=3)
    new = (await open_one(database.store, higher)).session
    old = await read_session(database, one.session_id)
    assert new == await read_session(database, higher.session_id)
    assert (new.previous_session_id, new.lease_microseconds) == (one.session_id, 60 * SECOND)
    assert old.closed_at == new.started_at == NOON + 5 * SECONDS
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT


async def test_open_sessions__upgrades_session_above_lowered_limit(database: Database, capacity_id: str) -> None:
    one, _ = await filled(database, capacity_id, 2)
    await database.store.put_capacity(capacity_id, Seats(0), EVERYTHING, ACTOR)
    assert await outcome(database, same_key_request(one, kind=2)) is OpenOutcome.UPGRADED


@pytest.mark.parametrize("reason", [CloseReason.TERMINATED, CloseReason.STOPPED])
async def test_open_sessions__reuses_seat_of_ended_session(
    database: Database, capacity_id: str, reason: CloseReason
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    (one,) = await filled(database, capacity_id, 1)
    await end_one(database.store, one.session_id, reason)
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.CREATED


async def test_open_sessions__reuses_seat_of_closing_session(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    (one,) = await filled(database, capacity_id, 1)
    await attach_one(database.store, one.session_id)
    await update_one(database.store, one.session_id, end="FAILED")
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.CREATED
    assert (await read_session(database, one.session_id)).state == "closing"


async def test_open_sessions__reuses_seat_of_lapsed_session_and_records_lapse(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 15 * SECONDS)
    result = await open_one(database.store, request(capacity_id=capacity_id))
    assert result.outcome is OpenOutcome.CREATED
    assert result.closed_sessions == [ending(one, "LEASE_EXPIRED", NOON + 10 * SECONDS)]
    await database.clock.set(NOON)  # a recorded end no longer depends on the clock
    assert (await read_session(database, one.session_id)).closed_at == NOON + 10 * SECONDS
    kept = await heartbeat_one(database.store, one.session_id)
    assert (kept.close_reason, kept.closed_session) == ("LEASE_EXPIRED", None)


async def test_open_sessions__reuses_seat_of_lapsed_session_of_same_key(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 15 * SECONDS)
    result = await open_one(database.store, same_key_request(one))
    assert result.outcome is OpenOutcome.CREATED
    assert result.closed_sessions == [ending(one, "LEASE_EXPIRED", NOON + 10 * SECONDS)]


async def test_open_sessions__returns_session_limit_after_limit_was_lowered(
    database: Database, capacity_id: str
) -> None:
    one, _ = await filled(database, capacity_id, 2, lease_microseconds=60 * SECOND)
    await heartbeat_one(database.store, one.session_id)
    await database.clock.set(NOON + 60 * SECONDS)
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    result = await open_one(database.store, request(capacity_id=capacity_id))
    assert result.outcome is OpenOutcome.SESSION_LIMIT


async def test_open_sessions__reuses_every_freed_seat_exactly_once(database: Database, capacity_id: str) -> None:
    """Between two counts, the store gives out seats by the slack: it gives out every free seat, and none twice."""
    await database.store.put_capacity(capacity_id, Seats(5), EVERYTHING, ACTOR)
    requests = [request(capacity_id=capacity_id) for _ in range(5)]
    for _ in range(3):
        assert [await outcome(database, same_key_request(one)) for one in requests] == [OpenOutcome.CREATED] * 5
        assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT
        for session in await database.rows("SELECT session_id FROM sessions WHERE closed_at IS NULL"):
            await end_one(database.store, str(session["session_id"]), CloseReason.STOPPED)


async def test_open_sessions__grants_only_free_seats_to_one_batch(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(5), EVERYTHING, ACTOR)
    requests = sorted((request(capacity_id=capacity_id) for _ in range(BATCH_MAX)), key=lambda one: one.key)
    results = await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
    outcomes = [result.outcome for result in results]
    assert outcomes == [OpenOutcome.CREATED] * 5 + [OpenOutcome.SESSION_LIMIT] * (BATCH_MAX - 5)
    assert (await database.store.count_sessions(EVERYTHING)).active == 5


async def test_open_sessions__applies_rules_of_each_capacity_in_batch(database: Database) -> None:
    full, with_free_seat, foreign, free = sorted(some_id() for _ in range(4))
    await database.store.put_capacity(full, Seats(0), EVERYTHING, ACTOR)
    await database.store.put_capacity(with_free_seat, Seats(1), EVERYTHING, ACTOR)
    await database.store.put_capacity(foreign, Seats(None, "reject", some_id()), EVERYTHING, ACTOR)
    await database.store.put_capacity(free, Seats(1), EVERYTHING, ACTOR)
    requests = [request(capacity_id=capacity_id) for capacity_id in (full, with_free_seat, foreign, free)]
    results = await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
    assert [result.outcome for result in results] == [
        OpenOutcome.SESSION_LIMIT,
        OpenOutcome.CREATED,
        OpenOutcome.CAPACITY_OF_ANOTHER_TENANT,
        OpenOutcome.CREATED,
    ]


async def test_open_sessions__starts_no_earlier_than_end_of_previous_session_of_seat(
    database: Database, capacity_id: str
) -> None:
    """The clock was stepped back, so the recorded end of the previous session is later than now."""
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    (one,) = await filled(database, capacity_id, 1)
    await database.clock.set(NOON + 60 * SECONDS)
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    await database.clock.set(NOON + 30 * SECONDS)
    new = (await open_one(database.store, request(capacity_id=capacity_id))).session
    assert new is not None
    assert new.started_at == NOON + 60 * SECONDS
    assert await read_session(database, new.session_id) == new


async def test_open_sessions__does_not_use_old_slack_after_limit_was_lowered(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(9), EVERYTHING, ACTOR)
    await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(2), EVERYTHING, ACTOR)
    await filled(database, capacity_id, 1)
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT


# Tenant of the capacity


async def test_open_sessions__refuses_tenant_that_does_not_own_capacity(database: Database, capacity_id: str) -> None:
    tenant = some_id()
    await database.store.put_capacity(capacity_id, Seats(None, "reject", tenant), EVERYTHING, ACTOR)
    result = await open_one(database.store, request(capacity_id=capacity_id))
    assert result == OpenResult(OpenOutcome.CAPACITY_OF_ANOTHER_TENANT)
    assert await outcome(database, request(capacity_id=capacity_id, tenant_object_id=tenant)) is OpenOutcome.CREATED


async def test_open_sessions__returns_existing_session_after_capacity_changed_tenant(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(0, "reject", some_id()), EVERYTHING, ACTOR)
    assert await outcome(database, same_key_request(one)) is OpenOutcome.EXISTING
    assert await outcome(database, same_key_request(one, kind=2)) is OpenOutcome.CAPACITY_OF_ANOTHER_TENANT


@pytest.mark.parametrize(("kind", "seconds"), [(2, 5), (1, 60)], ids=["upgrade", "lapsed"])
async def test_open_sessions__does_not_replace_session_on_capacity_of_another_tenant(
    database: Database, capacity_id: str, kind: int, seconds: int
) -> None:
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=60 * SECOND)
    await database.store.put_capacity(capacity_id, Seats(None, "reject", some_id()), EVERYTHING, ACTOR)
    await database.clock.set(NOON + seconds * SECONDS)
    assert await outcome(database, same_key_request(one, kind=kind)) is OpenOutcome.CAPACITY_OF_ANOTHER_TENANT


async def test_open_sessions__checks_tenant_of_session_then_tenant_of_capacity_then_seats(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(0, "reject", some_id()), EVERYTHING, ACTOR)
    assert await outcome(database, same_key_request(one, tenant_object_id=some_id())) is OpenOutcome.TENANT_MISMATCH
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.CAPACITY_OF_ANOTHER_TENANT


# Eviction


async def test_open_sessions__evicts_the_session_with_the_oldest_activity(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, evicting_seats(3), EVERYTHING, ACTOR)
    first, second, third = await filled(database, capacity_id, 3)
    await database.clock.set(NOON + 5 * SECONDS)
    await heartbeat_one(database.store, first.session_id, active=True)
    await heartbeat_one(database.store, second.session_id)  # alive, but idle
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    result = await open_one(database.store, request(capacity_id=capacity_id))
    assert result.outcome is OpenOutcome.CREATED
    assert result.closed_sessions == [ending(second, "EVICTED", now)]
    old = await read_session(database, second.session_id)
    assert (old.state, old.close_reason, old.closed_at, old.modified_at) == ("closed", "EVICTED", now, now)
    assert result.session is not None
    assert result.session.started_at == now
    assert (await read_session(database, third.session_id)).is_active


async def test_open_sessions__reuses_seat_of_lapsed_session_instead_of_evicting(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, evicting_seats(2), EVERYTHING, ACTOR)
    oldest, _ = await filled(database, capacity_id, 1) + await filled(
        database, capacity_id, 1, lease_microseconds=10 * SECOND
    )
    await database.clock.set(NOON + 15 * SECONDS)
    result = await open_one(database.store, request(capacity_id=capacity_id))
    assert [closing.reason for closing in result.closed_sessions] == ["LEASE_EXPIRED"]
    assert (await read_session(database, oldest.session_id)).is_active


async def test_open_sessions__evicts_enough_sessions_to_meet_lowered_limit(
    database: Database, capacity_id: str
) -> None:
    requests = await filled(database, capacity_id, 5)
    await database.store.put_capacity(capacity_id, evicting_seats(2), EVERYTHING, ACTOR)
    result = await open_one(database.store, request(capacity_id=capacity_id))
    assert {closing.session_id for closing in result.closed_sessions} == {one.session_id for one in requests[:4]}
    capacity = await database.store.get_capacity(capacity_id, EVERYTHING)
    assert capacity is not None
    assert capacity.active_sessions == 2


async def test_open_sessions__does_not_evict_for_existing_or_upgraded_session(
    database: Database, capacity_id: str
) -> None:
    requests = await filled(database, capacity_id, 3)
    await database.store.put_capacity(capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    assert await outcome(database, same_key_request(requests[0])) is OpenOutcome.EXISTING
    assert await outcome(database, same_key_request(requests[1], kind=2)) is OpenOutcome.UPGRADED
    assert (await database.store.count_sessions(EVERYTHING)).active == 3


async def test_open_sessions__returns_session_limit_when_evicting_capacity_has_no_seats(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, evicting_seats(0), EVERYTHING, ACTOR)
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT
    assert (await read_session(database, one.session_id)).is_active


async def test_open_sessions__eviction_at_start_instant_is_recorded_one_microsecond_later(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    (one,) = await filled(database, capacity_id, 1)
    new = (await open_one(database.store, request(capacity_id=capacity_id))).session
    old = await read_session(database, one.session_id)
    assert new is not None
    assert old.closed_at == new.started_at == NOON + MICROSECOND


async def test_open_sessions__does_not_evict_sessions_opened_in_same_batch(
    database: Database, capacity_id: str
) -> None:
    """A batch does not evict a session that it returns; the remaining requests are retried."""
    await database.store.put_capacity(capacity_id, evicting_seats(2), EVERYTHING, ACTOR)
    requests = sorted((request(capacity_id=capacity_id) for _ in range(5)), key=lambda one: one.key)
    results = await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
    assert [result.outcome for result in results] == [OpenOutcome.CREATED] * 2 + [OpenOutcome.LIMITED] * 3
    for result in results[:2]:
        assert result.session is not None
        assert (await read_session(database, result.session.session_id)).is_active


async def test_open_sessions__evicts_one_session_per_request_of_batch(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, evicting_seats(4), EVERYTHING, ACTOR)
    old = await filled(database, capacity_id, 4)
    requests = sorted((request(capacity_id=capacity_id) for _ in range(3)), key=lambda one: one.key)
    await database.clock.set(NOON + 9 * SECONDS)
    results = await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
    assert [result.outcome for result in results] == [OpenOutcome.CREATED] * 3
    evicted = {closing.session_id for result in results for closing in result.closed_sessions}
    assert evicted == {one.session_id for one in old[:3]}


async def test_open_sessions__does_not_evict_session_requested_in_same_batch(
    database: Database, capacity_id: str
) -> None:
    """Otherwise the result would contain a session that has ended."""
    await database.store.put_capacity(capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    newcomer, holder = sorted((request(capacity_id=capacity_id) for _ in range(2)), key=lambda one: one.key)
    await open_one(database.store, holder)
    results = await database.store.open_sessions(OpenLane.LIMITED, [newcomer, same_key_request(holder)], LIMITS)
    assert [result.outcome for result in results] == [OpenOutcome.LIMITED, OpenOutcome.EXISTING]
    assert (await read_session(database, holder.session_id)).is_active


async def test_open_sessions__reports_lapse_once_when_two_requests_of_batch_find_it(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1), EVERYTHING, ACTOR)
    newcomer, lapsed = sorted((request(capacity_id=capacity_id) for _ in range(2)), key=lambda one: one.key)
    lapsed = same_key_request(lapsed, lease_microseconds=10 * SECOND)
    await open_one(database.store, lapsed)
    await database.clock.set(NOON + 10 * SECONDS)
    results = await database.store.open_sessions(OpenLane.LIMITED, [newcomer, same_key_request(lapsed)], LIMITS)
    assert [result.outcome for result in results] == [OpenOutcome.CREATED, OpenOutcome.SESSION_LIMIT]
    closed_ids = [closing.session_id for result in results for closing in result.closed_sessions]
    assert closed_ids == [lapsed.session_id]
