"""Opening on capacities with rules, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.capacities import Seats
from tenure.domain.deadlines import opened
from tenure.domain.sessions import ClosedSession, CloseReason, OpenOutcome, OpenRequest, OpenResult
from tenure.store.contract.sessions import OpenLane
from tenure.store.limits import BATCH_MAX
from tests.support.databases import Database
from tests.support.keeping import attach_one, evicting, keep_one, update_one
from tests.support.open_requests import LIMITS, NOON, SECOND, again, end_one, open_one, request, some_id
from tests.support.sessions import recorded

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def capacity_id() -> str:
    return some_id()


async def filled(database: Database, capacity_id: str, count: int, **given: object) -> list[OpenRequest]:
    """`count` sessions, a second apart, the first with the oldest activity."""
    requests = [request(capacity_id=capacity_id, **given) for _ in range(count)]
    for number, one in enumerate(requests):
        await database.clock.set(NOON + number * SECONDS)
        answer = await open_one(database.store, one)
        assert answer.outcome is OpenOutcome.CREATED
    return requests


async def outcome(database: Database, one: OpenRequest) -> OpenOutcome:
    return (await open_one(database.store, one)).outcome


async def test_open_sessions__returns_session_limit_when_all_seats_are_taken(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(2))
    await filled(database, capacity_id, 2)
    answer = await open_one(database.store, request(capacity_id=capacity_id))
    assert (answer.outcome, answer.session, list(answer.closed_sessions)) == (OpenOutcome.SESSION_LIMIT, None, [])


async def test_open_sessions__creates_session_on_limited_capacity(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(2))
    one = request(capacity_id=capacity_id, kind=2, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND)
    answer = await open_one(database.store, one)
    assert answer.session == await recorded(database, one.session_id) == opened(one, LIMITS, NOON)


async def test_open_sessions__counts_sessions_opened_before_limit_was_set(database: Database, capacity_id: str) -> None:
    await filled(database, capacity_id, 3)
    await database.store.put_capacity(capacity_id, Seats(3))
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT


async def test_open_sessions__returns_existing_session_when_all_seats_are_taken(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1)
    assert await outcome(database, again(one)) is OpenOutcome.EXISTING


async def test_open_sessions__keeps_seat_on_upgrade(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=60 * SECOND)
    await database.clock.set(NOON + 5 * SECONDS)
    higher = again(one, kind=3)
    new = (await open_one(database.store, higher)).session
    old = await recorded(database, one.session_id)
    assert new == await recorded(database, higher.session_id)
    assert (new.previous_session_id, new.lease_microseconds) == (one.session_id, 60 * SECOND)
    assert old.closed_at == new.started_at == NOON + 5 * SECONDS
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT


async def test_open_sessions__upgrades_session_above_lowered_limit(database: Database, capacity_id: str) -> None:
    one, _ = await filled(database, capacity_id, 2)
    await database.store.put_capacity(capacity_id, Seats(0))
    assert await outcome(database, again(one, kind=2)) is OpenOutcome.UPGRADED


@pytest.mark.parametrize("reason", [CloseReason.TERMINATED, CloseReason.STOPPED])
async def test_open_sessions__reuses_seat_of_ended_session(
    database: Database, capacity_id: str, reason: CloseReason
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1)
    await end_one(database.store, one.session_id, reason)
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.CREATED


async def test_open_sessions__reuses_seat_of_closing_session(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1)
    await attach_one(database.store, one.session_id)
    await update_one(database.store, one.session_id, end="FAILED")
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.CREATED
    assert (await recorded(database, one.session_id)).state == "closing"


async def test_open_sessions__reuses_seat_of_lapsed_session_and_records_lapse(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 15 * SECONDS)
    answer = await open_one(database.store, request(capacity_id=capacity_id))
    assert answer.outcome is OpenOutcome.CREATED
    assert answer.closed_sessions == [ClosedSession(one.session_id, "LEASE_EXPIRED", NOON + 10 * SECONDS)]
    await database.clock.set(NOON)  # what is recorded does not depend on the clock any more
    assert (await recorded(database, one.session_id)).closed_at == NOON + 10 * SECONDS
    kept = await keep_one(database.store, one.session_id)
    assert (kept.close_reason, kept.closed_session) == ("LEASE_EXPIRED", None)


async def test_open_sessions__reuses_own_lapsed_seat(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 15 * SECONDS)
    answer = await open_one(database.store, again(one))
    assert answer.outcome is OpenOutcome.CREATED
    assert answer.closed_sessions == [ClosedSession(one.session_id, "LEASE_EXPIRED", NOON + 10 * SECONDS)]


async def test_open_sessions__returns_session_limit_after_limit_was_lowered(
    database: Database, capacity_id: str
) -> None:
    one, _ = await filled(database, capacity_id, 2, lease_microseconds=60 * SECOND)
    await keep_one(database.store, one.session_id)
    await database.clock.set(NOON + 60 * SECONDS)
    await database.store.put_capacity(capacity_id, Seats(1))
    answer = await open_one(database.store, request(capacity_id=capacity_id))
    assert answer.outcome is OpenOutcome.SESSION_LIMIT


async def test_open_sessions__reuses_every_freed_seat_exactly_once(database: Database, capacity_id: str) -> None:
    """Seats that are known to be free since the last count are neither lost nor given out twice."""
    await database.store.put_capacity(capacity_id, Seats(5))
    requests = [request(capacity_id=capacity_id) for _ in range(5)]
    for _ in range(3):
        assert [await outcome(database, again(one)) for one in requests] == [OpenOutcome.CREATED] * 5
        assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT
        for session in await database.rows("SELECT session_id FROM sessions WHERE closed_at IS NULL"):
            await end_one(database.store, str(session["session_id"]), CloseReason.STOPPED)


async def test_open_sessions__grants_only_free_seats_to_one_batch(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(5))
    requests = sorted((request(capacity_id=capacity_id) for _ in range(BATCH_MAX)), key=lambda one: one.key)
    answers = await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
    outcomes = [answer.outcome for answer in answers]
    assert outcomes == [OpenOutcome.CREATED] * 5 + [OpenOutcome.SESSION_LIMIT] * (BATCH_MAX - 5)
    assert (await database.store.count_sessions()).active == 5


async def test_open_sessions__handles_several_capacities_in_one_batch(database: Database) -> None:
    full, roomy, foreign, free = sorted(some_id() for _ in range(4))
    await database.store.put_capacity(full, Seats(0))
    await database.store.put_capacity(roomy, Seats(1))
    await database.store.put_capacity(foreign, Seats(None, "reject", some_id()))
    await database.store.put_capacity(free, Seats(1))
    requests = [request(capacity_id=capacity_id) for capacity_id in (full, roomy, foreign, free)]
    answers = await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
    assert [answer.outcome for answer in answers] == [
        OpenOutcome.SESSION_LIMIT,
        OpenOutcome.CREATED,
        OpenOutcome.CAPACITY_OF_ANOTHER_TENANT,
        OpenOutcome.CREATED,
    ]


async def test_open_sessions__starts_no_earlier_than_end_of_previous_session_of_seat(
    database: Database, capacity_id: str
) -> None:
    """The clock was stepped back, so the last session on the seat ended later than now."""
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1)
    await database.clock.set(NOON + 60 * SECONDS)
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    await database.clock.set(NOON + 30 * SECONDS)
    new = (await open_one(database.store, request(capacity_id=capacity_id))).session
    assert new is not None
    assert new.started_at == NOON + 60 * SECONDS
    assert await recorded(database, new.session_id) == new


async def test_open_sessions__discards_known_free_seats_when_limit_is_lowered(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(9))
    await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(2))
    await filled(database, capacity_id, 1)
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT


# Whose capacity it is


async def test_open_sessions__refuses_tenant_that_does_not_own_capacity(database: Database, capacity_id: str) -> None:
    tenant = some_id()
    await database.store.put_capacity(capacity_id, Seats(None, "reject", tenant))
    answer = await open_one(database.store, request(capacity_id=capacity_id))
    assert answer == OpenResult(OpenOutcome.CAPACITY_OF_ANOTHER_TENANT)
    assert await outcome(database, request(capacity_id=capacity_id, tenant_object_id=tenant)) is OpenOutcome.CREATED


async def test_open_sessions__returns_existing_session_after_capacity_changed_tenant(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(0, "reject", some_id()))
    assert await outcome(database, again(one)) is OpenOutcome.EXISTING
    assert await outcome(database, again(one, kind=2)) is OpenOutcome.CAPACITY_OF_ANOTHER_TENANT


@pytest.mark.parametrize(("kind", "seconds"), [(2, 5), (1, 60)], ids=["upgrade", "lapsed"])
async def test_open_sessions__does_not_replace_session_on_capacity_of_another_tenant(
    database: Database, capacity_id: str, kind: int, seconds: int
) -> None:
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=60 * SECOND)
    await database.store.put_capacity(capacity_id, Seats(None, "reject", some_id()))
    await database.clock.set(NOON + seconds * SECONDS)
    assert await outcome(database, again(one, kind=kind)) is OpenOutcome.CAPACITY_OF_ANOTHER_TENANT


async def test_open_sessions__checks_session_tenant_and_seats_in_that_order(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(0, "reject", some_id()))
    assert await outcome(database, again(one, tenant_object_id=some_id())) is OpenOutcome.TENANT_MISMATCH
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.CAPACITY_OF_ANOTHER_TENANT


# Eviction


async def test_open_sessions__evicts_the_session_with_the_oldest_activity(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, evicting(3))
    first, second, third = await filled(database, capacity_id, 3)
    await database.clock.set(NOON + 5 * SECONDS)
    await keep_one(database.store, first.session_id, active=True)
    await keep_one(database.store, second.session_id)  # alive, but idle
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    answer = await open_one(database.store, request(capacity_id=capacity_id))
    assert answer.outcome is OpenOutcome.CREATED
    assert answer.closed_sessions == [ClosedSession(second.session_id, "EVICTED", now)]
    old = await recorded(database, second.session_id)
    assert (old.state, old.close_reason, old.closed_at, old.modified_at) == ("closed", "EVICTED", now, now)
    assert answer.session is not None
    assert answer.session.started_at == now
    assert (await recorded(database, third.session_id)).is_active


async def test_open_sessions__reuses_lapsed_seat_instead_of_evicting(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, evicting(2))
    oldest, _ = await filled(database, capacity_id, 1) + await filled(
        database, capacity_id, 1, lease_microseconds=10 * SECOND
    )
    await database.clock.set(NOON + 15 * SECONDS)
    answer = await open_one(database.store, request(capacity_id=capacity_id))
    assert [closing.reason for closing in answer.closed_sessions] == ["LEASE_EXPIRED"]
    assert (await recorded(database, oldest.session_id)).is_active


async def test_open_sessions__evicts_enough_sessions_to_meet_lowered_limit(
    database: Database, capacity_id: str
) -> None:
    requests = await filled(database, capacity_id, 5)
    await database.store.put_capacity(capacity_id, evicting(2))
    answer = await open_one(database.store, request(capacity_id=capacity_id))
    assert {closing.session_id for closing in answer.closed_sessions} == {one.session_id for one in requests[:4]}
    capacity = await database.store.get_capacity(capacity_id)
    assert capacity is not None
    assert capacity.active_sessions == 2


async def test_open_sessions__does_not_evict_for_existing_or_upgraded_session(
    database: Database, capacity_id: str
) -> None:
    requests = await filled(database, capacity_id, 3)
    await database.store.put_capacity(capacity_id, evicting(1))
    assert await outcome(database, again(requests[0])) is OpenOutcome.EXISTING
    assert await outcome(database, again(requests[1], kind=2)) is OpenOutcome.UPGRADED
    assert (await database.store.count_sessions()).active == 3


async def test_open_sessions__returns_session_limit_when_evicting_capacity_has_no_seats(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, evicting(0))
    assert await outcome(database, request(capacity_id=capacity_id)) is OpenOutcome.SESSION_LIMIT
    assert (await recorded(database, one.session_id)).is_active


async def test_open_sessions__eviction_at_start_instant_is_recorded_one_microsecond_later(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, evicting(1))
    (one,) = await filled(database, capacity_id, 1)
    new = (await open_one(database.store, request(capacity_id=capacity_id))).session
    old = await recorded(database, one.session_id)
    assert new is not None
    assert old.closed_at == new.started_at == NOON + MICROSECOND


async def test_open_sessions__does_not_evict_sessions_opened_in_same_batch(
    database: Database, capacity_id: str
) -> None:
    """A batch does not evict a session that it returns; the remaining requests are retried."""
    await database.store.put_capacity(capacity_id, evicting(2))
    requests = sorted((request(capacity_id=capacity_id) for _ in range(5)), key=lambda one: one.key)
    answers = await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
    assert [answer.outcome for answer in answers] == [OpenOutcome.CREATED] * 2 + [OpenOutcome.LIMITED] * 3
    for answer in answers[:2]:
        assert answer.session is not None
        assert (await recorded(database, answer.session.session_id)).is_active


async def test_open_sessions__evicts_one_session_per_request_of_batch(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, evicting(4))
    old = await filled(database, capacity_id, 4)
    requests = sorted((request(capacity_id=capacity_id) for _ in range(3)), key=lambda one: one.key)
    await database.clock.set(NOON + 9 * SECONDS)
    answers = await database.store.open_sessions(OpenLane.LIMITED, requests, LIMITS)
    assert [answer.outcome for answer in answers] == [OpenOutcome.CREATED] * 3
    evicted = {closing.session_id for answer in answers for closing in answer.closed_sessions}
    assert evicted == {one.session_id for one in old[:3]}


async def test_open_sessions__does_not_evict_session_requested_in_same_batch(
    database: Database, capacity_id: str
) -> None:
    """Otherwise the result would contain a session that has ended."""
    await database.store.put_capacity(capacity_id, evicting(1))
    newcomer, holder = sorted((request(capacity_id=capacity_id) for _ in range(2)), key=lambda one: one.key)
    await open_one(database.store, holder)
    answers = await database.store.open_sessions(OpenLane.LIMITED, [newcomer, again(holder)], LIMITS)
    assert [answer.outcome for answer in answers] == [OpenOutcome.LIMITED, OpenOutcome.EXISTING]
    assert (await recorded(database, holder.session_id)).is_active


async def test_open_sessions__reports_lapse_once_when_two_requests_of_batch_use_it(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    newcomer, lapsed = sorted((request(capacity_id=capacity_id) for _ in range(2)), key=lambda one: one.key)
    lapsed = again(lapsed, lease_microseconds=10 * SECOND)
    await open_one(database.store, lapsed)
    await database.clock.set(NOON + 10 * SECONDS)
    answers = await database.store.open_sessions(OpenLane.LIMITED, [newcomer, again(lapsed)], LIMITS)
    assert [answer.outcome for answer in answers] == [OpenOutcome.CREATED, OpenOutcome.SESSION_LIMIT]
    closed_ids = [closing.session_id for answer in answers for closing in answer.closed_sessions]
    assert closed_ids == [lapsed.session_id]
