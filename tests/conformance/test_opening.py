"""Opening sessions, on every engine."""

from datetime import timedelta

import pytest

from tenure.deadlines import opened
from tenure.errors import IdTaken
from tenure.model.sessions import CloseReason, Closing, Limits, Open, Opened, Outcome, Session
from tenure.store.store import BATCH_MAX, Lane
from tests.support.databases import Database
from tests.support.wishes import LIMITS, NOON, SECOND, again, end_one, open_one, some_id, wish

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)


def session_of(answer: Opened) -> Session:
    assert answer.session is not None, answer
    return answer.session


async def test_open_sessions__creates_where_there_is_nothing(database: Database) -> None:
    one = wish(kind=2)
    answer = await open_one(database.store, one)
    assert answer == Opened(Outcome.CREATED, opened(one, LIMITS, NOON))
    assert await database.store.get_session(one.session_id) == answer.session


async def test_open_sessions__stores_the_limits_that_the_wish_brings(database: Database) -> None:
    one = wish(lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=300 * SECOND)
    session = session_of(await open_one(database.store, one))
    assert session == opened(one, LIMITS, NOON) == await database.store.get_session(one.session_id)
    assert (session.deadline_at, session.lapse_reason) == (NOON + 60 * SECONDS, CloseReason.LEASE_EXPIRED)


async def test_open_sessions__gives_default_limits_to_a_wish_without(database: Database) -> None:
    limits = Limits(timedelta(days=1), 40 * SECOND, 30 * SECOND, 3 * SECOND)
    one = wish()
    session = session_of(await open_one(database.store, one, limits))
    assert session == opened(one, limits, NOON) == await database.store.get_session(one.session_id)
    assert (session.deadline_at, session.lapse_reason) == (NOON + 30 * SECONDS, CloseReason.IDLE_TIMEOUT)
    assert session.heartbeat_microseconds == 3 * SECOND


@pytest.mark.parametrize(
    ("lease", "idle", "reason"),
    [
        (None, None, CloseReason.EXPIRED),
        (86_400 * SECOND, 86_400 * SECOND, CloseReason.EXPIRED),
        (10 * SECOND, 10 * SECOND, CloseReason.LEASE_EXPIRED),
        (11 * SECOND, 10 * SECOND, CloseReason.IDLE_TIMEOUT),
        (None, 10 * SECOND, CloseReason.IDLE_TIMEOUT),
        (10 * SECOND, None, CloseReason.LEASE_EXPIRED),
    ],
)
async def test_open_sessions__names_the_limit_that_comes_first(
    database: Database, lease: int | None, idle: int | None, reason: CloseReason
) -> None:
    one = wish(lease_microseconds=lease, idle_microseconds=idle)
    await open_one(database.store, one, Limits(timedelta(days=1)))
    stored = await database.store.get_session(one.session_id)
    assert stored is not None
    assert stored.lapse_reason == reason


async def test_open_sessions__finds_the_live_session(database: Database) -> None:
    one = wish(kind=2)
    first = session_of(await open_one(database.store, one))
    await database.clock.set(NOON + 5 * SECONDS)
    for kind in (2, 1):
        answer = await open_one(database.store, again(one, kind=kind, lease_microseconds=7 * SECOND))
        assert answer == Opened(Outcome.EXISTING, first)


async def test_open_sessions__upgrades_a_lower_kind(database: Database) -> None:
    one = wish(kind=1, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=90 * SECOND)
    await open_one(database.store, one)
    now = NOON + 5 * SECONDS
    await database.clock.set(now)
    higher = again(one, kind=3)
    new = session_of(await open_one(database.store, higher))
    assert new == await database.store.get_session(higher.session_id)
    assert (new.previous_session_id, new.kind, new.started_at) == (one.session_id, 3, now)
    assert (new.lease_microseconds, new.heartbeat_microseconds, new.idle_microseconds) == (
        60 * SECOND,
        5 * SECOND,
        90 * SECOND,
    )
    old = await database.store.get_session(one.session_id)
    assert old is not None
    assert (old.closed_at, old.close_reason, old.state, old.modified_at) == (now, CloseReason.UPGRADED, "closed", now)


async def test_open_sessions__upgrades_with_the_limits_of_the_request(database: Database) -> None:
    one = wish(kind=1, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=90 * SECOND)
    await open_one(database.store, one)
    higher = again(one, kind=2, lease_microseconds=24 * SECOND, heartbeat_microseconds=2 * SECOND)
    new = session_of(await open_one(database.store, higher))
    assert (new.lease_microseconds, new.heartbeat_microseconds, new.idle_microseconds) == (
        24 * SECOND,
        2 * SECOND,
        90 * SECOND,
    )


async def test_open_sessions__upgrade_in_the_instant_of_the_start_lasts_a_microsecond(database: Database) -> None:
    one = wish(kind=1)
    await open_one(database.store, one)
    new = session_of(await open_one(database.store, again(one, kind=2)))
    old = await database.store.get_session(one.session_id)
    assert old is not None
    assert old.closed_at == new.started_at == NOON + timedelta(microseconds=1)


async def test_open_sessions__records_a_lapsed_session_and_opens_a_new_one(database: Database) -> None:
    one = wish(kind=3, lease_microseconds=10 * SECOND)
    await open_one(database.store, one)
    await database.clock.set(NOON + 10 * SECONDS)
    other = again(one, kind=1, tenant_object_id=some_id())
    answer = await open_one(database.store, other)
    assert (answer.outcome, session_of(answer)) == (Outcome.CREATED, opened(other, LIMITS, NOON + 10 * SECONDS))
    assert answer.closings == [Closing(one.session_id, "LEASE_EXPIRED", NOON + 10 * SECONDS)]
    await database.clock.set(NOON)  # what is recorded does not depend on the clock any more
    old = await database.store.get_session(one.session_id)
    assert old is not None
    assert (old.state, old.closed_at, old.close_reason) == ("closed", NOON + 10 * SECONDS, CloseReason.LEASE_EXPIRED)


async def test_open_sessions__is_live_until_a_microsecond_before_its_deadline(database: Database) -> None:
    one = wish(lease_microseconds=10 * SECOND)
    await open_one(database.store, one)
    await database.clock.set(NOON + 10 * SECONDS - timedelta(microseconds=1))
    assert (await open_one(database.store, again(one))).outcome is Outcome.EXISTING


async def test_open_sessions__does_not_show_the_session_of_another_tenant(database: Database) -> None:
    one = wish(kind=1)
    await open_one(database.store, one)
    for kind in (1, 3):
        answer = await open_one(database.store, again(one, kind=kind, tenant_object_id=some_id()))
        assert answer == Opened(Outcome.TENANT_MISMATCH)


async def test_open_sessions__does_not_start_before_the_last_session_of_the_key_ended(database: Database) -> None:
    one = wish()
    await open_one(database.store, one)
    await database.clock.set(NOON + 60 * SECONDS)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + 30 * SECONDS)  # the clock is stepped back
    new = again(one)
    session = session_of(await open_one(database.store, new))
    assert session.started_at == NOON + 60 * SECONDS
    assert session == await database.store.get_session(new.session_id)


async def test_open_sessions__answers_a_mixed_batch_in_its_order(database: Database) -> None:
    live, lower, lapsed, foreign = wish(kind=2), wish(kind=1), wish(lease_microseconds=SECOND), wish()
    for one in (live, lower, lapsed, foreign):
        await open_one(database.store, one)
    await database.clock.set(NOON + 2 * SECONDS)
    expected = {
        again(live): Outcome.EXISTING,
        again(lower, kind=2): Outcome.UPGRADED,
        again(lapsed): Outcome.CREATED,
        again(foreign, tenant_object_id=some_id()): Outcome.TENANT_MISMATCH,
        wish(): Outcome.CREATED,
    }
    assert await _outcomes(database, expected) == expected


async def _outcomes(database: Database, wishes: dict[Open, Outcome]) -> dict[Open, Outcome]:
    """Each wish's final outcome, in whole batches through the lanes."""
    outcomes: dict[Open, Outcome] = {}
    lane = Lane.CREATE
    waiting = sorted(wishes, key=lambda one: one.key)
    while waiting:
        answers = await database.store.open_sessions(lane, waiting, LIMITS)
        done = dict(zip(waiting, [answer.outcome for answer in answers], strict=True))
        outcomes |= done
        waiting = [one for one in waiting if done[one] in (Outcome.REOPEN, Outcome.AGAIN)]
        lane = Lane.REOPEN
    return outcomes


async def test_open_sessions__takes_a_full_batch(database: Database) -> None:
    wishes = sorted((wish(kind=1 + number % 3) for number in range(BATCH_MAX)), key=lambda one: one.key)
    answers = await database.store.open_sessions(Lane.CREATE, wishes, LIMITS)
    assert [answer.session for answer in answers] == [opened(one, LIMITS, NOON) for one in wishes]
    assert (await database.store.count_sessions()).total == BATCH_MAX


async def test_open_sessions__finds_its_own_session_after_a_lost_answer(database: Database) -> None:
    one = wish()
    first = await open_one(database.store, one)
    (second,) = await database.store.open_sessions(Lane.CREATE, [one], LIMITS)
    assert session_of(second).session_id == session_of(first).session_id


async def test_open_sessions__knows_an_id_whose_session_has_ended_before_its_lost_answer_was_repeated(
    database: Database,
) -> None:
    one = wish()
    await open_one(database.store, one)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    with pytest.raises(IdTaken):
        await open_one(database.store, one)


async def test_open_sessions__never_stamps_before_the_last_cut(database: Database) -> None:
    """A window that is cut never changes, even if the clock was stepped back behind it."""
    cut = await database.last_cut_at()
    await database.clock.set(cut - timedelta(hours=1))
    session = session_of(await open_one(database.store, wish()))
    assert session.started_at == cut
