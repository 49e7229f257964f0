"""Opening on capacities with rules, on every engine."""

from datetime import timedelta

import pytest

from tenure.deadlines import opened
from tenure.model.sessions import CloseReason, Closing, Open, Opened, Outcome, Seats
from tenure.store.store import BATCH_MAX, Lane
from tests.support.databases import Database
from tests.support.keeping import attach_one, evicting, keep_one, update_one
from tests.support.sessions import recorded
from tests.support.wishes import LIMITS, NOON, SECOND, again, end_one, open_one, some_id, wish

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def capacity_id() -> str:
    return some_id()


async def filled(database: Database, capacity_id: str, count: int, **given: object) -> list[Open]:
    """So many sessions, the first with the oldest activity, a second apart."""
    wishes = [wish(capacity_id=capacity_id, **given) for _ in range(count)]
    for number, one in enumerate(wishes):
        await database.clock.set(NOON + number * SECONDS)
        answer = await open_one(database.store, one)
        assert answer.outcome is Outcome.CREATED
    return wishes


async def outcome(database: Database, one: Open) -> Outcome:
    return (await open_one(database.store, one)).outcome


async def test_open_sessions__refuses_whoever_finds_all_seats_taken(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(2))
    await filled(database, capacity_id, 2)
    answer = await open_one(database.store, wish(capacity_id=capacity_id))
    assert (answer.outcome, answer.session, list(answer.closings)) == (Outcome.SESSION_LIMIT, None, [])


async def test_open_sessions__begins_on_a_limited_capacity_as_on_any_other(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(2))
    one = wish(capacity_id=capacity_id, kind=2, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND)
    answer = await open_one(database.store, one)
    assert answer.session == await recorded(database, one.session_id) == opened(one, LIMITS, NOON)


async def test_open_sessions__counts_what_was_there_before_the_limit(database: Database, capacity_id: str) -> None:
    await filled(database, capacity_id, 3)
    await database.store.put_capacity(capacity_id, Seats(3))
    assert await outcome(database, wish(capacity_id=capacity_id)) is Outcome.SESSION_LIMIT


async def test_open_sessions__finds_its_session_where_all_seats_are_taken(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1)
    assert await outcome(database, again(one)) is Outcome.EXISTING


async def test_open_sessions__keeps_the_seat_of_an_upgrade(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=60 * SECOND)
    await database.clock.set(NOON + 5 * SECONDS)
    higher = again(one, kind=3)
    new = (await open_one(database.store, higher)).session
    old = await recorded(database, one.session_id)
    assert new == await recorded(database, higher.session_id)
    assert (new.previous_session_id, new.lease_microseconds) == (one.session_id, 60 * SECOND)
    assert old.closed_at == new.started_at == NOON + 5 * SECONDS
    assert await outcome(database, wish(capacity_id=capacity_id)) is Outcome.SESSION_LIMIT


async def test_open_sessions__upgrades_above_a_limit_that_was_lowered(database: Database, capacity_id: str) -> None:
    one, _ = await filled(database, capacity_id, 2)
    await database.store.put_capacity(capacity_id, Seats(0))
    assert await outcome(database, again(one, kind=2)) is Outcome.UPGRADED


@pytest.mark.parametrize("reason", [CloseReason.TERMINATED, CloseReason.STOPPED])
async def test_open_sessions__takes_the_seat_of_an_ended_session(
    database: Database, capacity_id: str, reason: CloseReason
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1)
    await end_one(database.store, one.session_id, reason)
    assert await outcome(database, wish(capacity_id=capacity_id)) is Outcome.CREATED


async def test_open_sessions__takes_the_seat_of_a_session_that_is_closing(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1)
    await attach_one(database.store, one.session_id)
    await update_one(database.store, one.session_id, end="FAILED")
    assert await outcome(database, wish(capacity_id=capacity_id)) is Outcome.CREATED
    assert (await recorded(database, one.session_id)).state == "closing"


async def test_open_sessions__takes_the_seat_of_a_lapsed_session_and_records_the_lapse(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 15 * SECONDS)
    answer = await open_one(database.store, wish(capacity_id=capacity_id))
    assert answer.outcome is Outcome.CREATED
    assert answer.closings == [Closing(one.session_id, "LEASE_EXPIRED", NOON + 10 * SECONDS)]
    await database.clock.set(NOON)  # what is recorded does not depend on the clock any more
    assert (await recorded(database, one.session_id)).closed_at == NOON + 10 * SECONDS
    kept = await keep_one(database.store, one.session_id)
    assert (kept.close_reason, kept.closing) == ("LEASE_EXPIRED", None)


async def test_open_sessions__takes_its_own_lapsed_seat(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 15 * SECONDS)
    answer = await open_one(database.store, again(one))
    assert answer.outcome is Outcome.CREATED
    assert answer.closings == [Closing(one.session_id, "LEASE_EXPIRED", NOON + 10 * SECONDS)]


async def test_open_sessions__loses_its_lapsed_seat_to_a_lowered_limit(database: Database, capacity_id: str) -> None:
    one, _ = await filled(database, capacity_id, 2, lease_microseconds=60 * SECOND)
    await keep_one(database.store, one.session_id)
    await database.clock.set(NOON + 60 * SECONDS)
    await database.store.put_capacity(capacity_id, Seats(1))
    answer = await open_one(database.store, wish(capacity_id=capacity_id))
    assert answer.outcome is Outcome.SESSION_LIMIT


async def test_open_sessions__gives_out_every_seat_again_and_none_twice(database: Database, capacity_id: str) -> None:
    """Seats known free since the last count must neither get lost nor multiply."""
    await database.store.put_capacity(capacity_id, Seats(5))
    wishes = [wish(capacity_id=capacity_id) for _ in range(5)]
    for _ in range(3):
        assert [await outcome(database, again(one)) for one in wishes] == [Outcome.CREATED] * 5
        assert await outcome(database, wish(capacity_id=capacity_id)) is Outcome.SESSION_LIMIT
        for session in await database.rows("SELECT session_id FROM sessions WHERE closed_at IS NULL"):
            await end_one(database.store, str(session["session_id"]), CloseReason.STOPPED)


async def test_open_sessions__of_one_batch_get_as_many_seats_as_there_are(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, Seats(5))
    wishes = sorted((wish(capacity_id=capacity_id) for _ in range(BATCH_MAX)), key=lambda one: one.key)
    answers = await database.store.open_sessions(Lane.LIMITED, wishes, LIMITS)
    outcomes = [answer.outcome for answer in answers]
    assert outcomes == [Outcome.CREATED] * 5 + [Outcome.SESSION_LIMIT] * (BATCH_MAX - 5)
    assert (await database.store.count_sessions()).active == 5


async def test_open_sessions__serves_several_capacities_in_one_batch(database: Database) -> None:
    full, roomy, foreign, free = sorted(some_id() for _ in range(4))
    await database.store.put_capacity(full, Seats(0))
    await database.store.put_capacity(roomy, Seats(1))
    await database.store.put_capacity(foreign, Seats(None, "reject", some_id()))
    await database.store.put_capacity(free, Seats(1))
    wishes = [wish(capacity_id=capacity_id) for capacity_id in (full, roomy, foreign, free)]
    answers = await database.store.open_sessions(Lane.LIMITED, wishes, LIMITS)
    assert [answer.outcome for answer in answers] == [
        Outcome.SESSION_LIMIT,
        Outcome.CREATED,
        Outcome.CAPACITY_OF_ANOTHER_TENANT,
        Outcome.CREATED,
    ]


async def test_open_sessions__does_not_take_a_seat_before_it_was_left(database: Database, capacity_id: str) -> None:
    """The clock was stepped back: the seat's last session ended later than now."""
    await database.store.put_capacity(capacity_id, Seats(1))
    (one,) = await filled(database, capacity_id, 1)
    await database.clock.set(NOON + 60 * SECONDS)
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    await database.clock.set(NOON + 30 * SECONDS)
    new = (await open_one(database.store, wish(capacity_id=capacity_id))).session
    assert new is not None
    assert new.started_at == NOON + 60 * SECONDS
    assert await recorded(database, new.session_id) == new


async def test_open_sessions__forgets_the_seats_it_knew_of_when_the_limit_is_lowered(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(9))
    await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(2))
    await filled(database, capacity_id, 1)
    assert await outcome(database, wish(capacity_id=capacity_id)) is Outcome.SESSION_LIMIT


# Whose capacity it is


async def test_open_sessions__refuses_another_tenant_than_the_capacitys(database: Database, capacity_id: str) -> None:
    tenant = some_id()
    await database.store.put_capacity(capacity_id, Seats(None, "reject", tenant))
    answer = await open_one(database.store, wish(capacity_id=capacity_id))
    assert answer == Opened(Outcome.CAPACITY_OF_ANOTHER_TENANT)
    assert await outcome(database, wish(capacity_id=capacity_id, tenant_object_id=tenant)) is Outcome.CREATED


async def test_open_sessions__finds_a_live_session_whose_capacity_was_bound_since(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(0, "reject", some_id()))
    assert await outcome(database, again(one)) is Outcome.EXISTING
    assert await outcome(database, again(one, kind=2)) is Outcome.CAPACITY_OF_ANOTHER_TENANT


@pytest.mark.parametrize(("kind", "seconds"), [(2, 5), (1, 60)], ids=["upgrade", "lapsed"])
async def test_open_sessions__replaces_no_session_on_the_capacity_of_another_tenant(
    database: Database, capacity_id: str, kind: int, seconds: int
) -> None:
    (one,) = await filled(database, capacity_id, 1, lease_microseconds=60 * SECOND)
    await database.store.put_capacity(capacity_id, Seats(None, "reject", some_id()))
    await database.clock.set(NOON + seconds * SECONDS)
    assert await outcome(database, again(one, kind=kind)) is Outcome.CAPACITY_OF_ANOTHER_TENANT


async def test_open_sessions__checks_the_session_then_the_tenant_then_the_seats(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, Seats(0, "reject", some_id()))
    assert await outcome(database, again(one, tenant_object_id=some_id())) is Outcome.TENANT_MISMATCH
    assert await outcome(database, wish(capacity_id=capacity_id)) is Outcome.CAPACITY_OF_ANOTHER_TENANT


# Eviction


async def test_open_sessions__evicts_the_session_with_the_oldest_activity(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, evicting(3))
    first, second, third = await filled(database, capacity_id, 3)
    await database.clock.set(NOON + 5 * SECONDS)
    await keep_one(database.store, first.session_id, active=True)
    await keep_one(database.store, second.session_id)  # alive, but idle
    now = NOON + 7 * SECONDS
    await database.clock.set(now)
    answer = await open_one(database.store, wish(capacity_id=capacity_id))
    assert answer.outcome is Outcome.CREATED
    assert answer.closings == [Closing(second.session_id, "EVICTED", now)]
    old = await recorded(database, second.session_id)
    assert (old.state, old.close_reason, old.closed_at, old.modified_at) == ("closed", "EVICTED", now, now)
    assert answer.session is not None
    assert answer.session.started_at == now
    assert (await recorded(database, third.session_id)).is_active


async def test_open_sessions__evicts_nobody_while_a_lapsed_session_holds_a_seat(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, evicting(2))
    oldest, _ = await filled(database, capacity_id, 1) + await filled(
        database, capacity_id, 1, lease_microseconds=10 * SECOND
    )
    await database.clock.set(NOON + 15 * SECONDS)
    answer = await open_one(database.store, wish(capacity_id=capacity_id))
    assert [closing.reason for closing in answer.closings] == ["LEASE_EXPIRED"]
    assert (await recorded(database, oldest.session_id)).is_active


async def test_open_sessions__evicts_as_many_as_a_lowered_limit_needs(database: Database, capacity_id: str) -> None:
    wishes = await filled(database, capacity_id, 5)
    await database.store.put_capacity(capacity_id, evicting(2))
    answer = await open_one(database.store, wish(capacity_id=capacity_id))
    assert {closing.session_id for closing in answer.closings} == {one.session_id for one in wishes[:4]}
    capacity = await database.store.get_capacity(capacity_id)
    assert capacity is not None
    assert capacity.active_sessions == 2


async def test_open_sessions__evicts_nobody_for_a_session_that_is_there(database: Database, capacity_id: str) -> None:
    wishes = await filled(database, capacity_id, 3)
    await database.store.put_capacity(capacity_id, evicting(1))
    assert await outcome(database, again(wishes[0])) is Outcome.EXISTING
    assert await outcome(database, again(wishes[1], kind=2)) is Outcome.UPGRADED
    assert (await database.store.count_sessions()).active == 3


async def test_open_sessions__refuses_where_there_is_no_seat_to_evict_from(
    database: Database, capacity_id: str
) -> None:
    (one,) = await filled(database, capacity_id, 1)
    await database.store.put_capacity(capacity_id, evicting(0))
    assert await outcome(database, wish(capacity_id=capacity_id)) is Outcome.SESSION_LIMIT
    assert (await recorded(database, one.session_id)).is_active


async def test_open_sessions__evicts_in_the_instant_of_the_start_after_a_microsecond(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, evicting(1))
    (one,) = await filled(database, capacity_id, 1)
    new = (await open_one(database.store, wish(capacity_id=capacity_id))).session
    old = await recorded(database, one.session_id)
    assert new is not None
    assert old.closed_at == new.started_at == NOON + MICROSECOND


async def test_open_sessions__of_one_batch_do_not_evict_each_other(database: Database, capacity_id: str) -> None:
    """Nobody is told that they have a session that is gone before the answer: the rest comes again."""
    await database.store.put_capacity(capacity_id, evicting(2))
    wishes = sorted((wish(capacity_id=capacity_id) for _ in range(5)), key=lambda one: one.key)
    answers = await database.store.open_sessions(Lane.LIMITED, wishes, LIMITS)
    assert [answer.outcome for answer in answers] == [Outcome.CREATED] * 2 + [Outcome.LIMITED] * 3
    for answer in answers[:2]:
        assert answer.session is not None
        assert (await recorded(database, answer.session.session_id)).is_active


async def test_open_sessions__evicts_a_whole_batch_of_others(database: Database, capacity_id: str) -> None:
    await database.store.put_capacity(capacity_id, evicting(4))
    old = await filled(database, capacity_id, 4)
    wishes = sorted((wish(capacity_id=capacity_id) for _ in range(3)), key=lambda one: one.key)
    await database.clock.set(NOON + 9 * SECONDS)
    answers = await database.store.open_sessions(Lane.LIMITED, wishes, LIMITS)
    assert [answer.outcome for answer in answers] == [Outcome.CREATED] * 3
    evicted = {closing.session_id for answer in answers for closing in answer.closings}
    assert evicted == {one.session_id for one in old[:3]}


async def test_open_sessions__evicts_nobody_who_asks_for_their_session_in_the_same_batch(
    database: Database, capacity_id: str
) -> None:
    """Otherwise they would be told that it is there."""
    await database.store.put_capacity(capacity_id, evicting(1))
    newcomer, holder = sorted((wish(capacity_id=capacity_id) for _ in range(2)), key=lambda one: one.key)
    await open_one(database.store, holder)
    answers = await database.store.open_sessions(Lane.LIMITED, [newcomer, again(holder)], LIMITS)
    assert [answer.outcome for answer in answers] == [Outcome.LIMITED, Outcome.EXISTING]
    assert (await recorded(database, holder.session_id)).is_active


async def test_open_sessions__tells_a_lapse_once_of_which_two_of_a_batch_make_use(
    database: Database, capacity_id: str
) -> None:
    await database.store.put_capacity(capacity_id, Seats(1))
    newcomer, lapsed = sorted((wish(capacity_id=capacity_id) for _ in range(2)), key=lambda one: one.key)
    lapsed = again(lapsed, lease_microseconds=10 * SECOND)
    await open_one(database.store, lapsed)
    await database.clock.set(NOON + 10 * SECONDS)
    answers = await database.store.open_sessions(Lane.LIMITED, [newcomer, again(lapsed)], LIMITS)
    assert [answer.outcome for answer in answers] == [Outcome.CREATED, Outcome.SESSION_LIMIT]
    told = [closing.session_id for answer in answers for closing in answer.closings]
    assert told == [lapsed.session_id]
