"""Opening sessions, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.deadlines import opened
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Limits, OpenOutcome, OpenRequest, OpenResult, Session
from tenure.errors import IdTaken
from tenure.store.contract.sessions import OpenLane
from tenure.store.limits import BATCH_MAX
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

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)


def session_of(result: OpenResult) -> Session:
    assert result.session is not None, result
    return result.session


async def test_open_sessions__creates_session_for_unused_key(database: Database) -> None:
    one = request(kind=2)
    result = await open_one(database.store, one)
    assert result == OpenResult(OpenOutcome.CREATED, opened(one, LIMITS, NOON))
    assert await database.store.get_session(one.session_id, EVERYTHING) == result.session


async def test_open_sessions__stores_limits_of_request(database: Database) -> None:
    one = request(lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=300 * SECOND)
    session = session_of(await open_one(database.store, one))
    assert session == opened(one, LIMITS, NOON) == await database.store.get_session(one.session_id, EVERYTHING)
    assert (session.deadline_at, session.lapse_reason) == (NOON + 60 * SECONDS, CloseReason.LEASE_EXPIRED)


async def test_open_sessions__applies_default_limits_to_request_without_limits(database: Database) -> None:
    limits = Limits(timedelta(days=1), 40 * SECOND, 30 * SECOND, 3 * SECOND)
    one = request()
    session = session_of(await open_one(database.store, one, limits))
    assert session == opened(one, limits, NOON) == await database.store.get_session(one.session_id, EVERYTHING)
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
async def test_open_sessions__sets_lapse_reason_of_earliest_limit(
    database: Database, lease: int | None, idle: int | None, reason: CloseReason
) -> None:
    one = request(lease_microseconds=lease, idle_microseconds=idle)
    await open_one(database.store, one, Limits(timedelta(days=1)))
    stored = await database.store.get_session(one.session_id, EVERYTHING)
    assert stored is not None
    assert stored.lapse_reason == reason


async def test_open_sessions__returns_existing_live_session(database: Database) -> None:
    one = request(kind=2)
    first = session_of(await open_one(database.store, one))
    await database.clock.set(NOON + 5 * SECONDS)
    for kind in (2, 1):
        result = await open_one(database.store, same_key_request(one, kind=kind, lease_microseconds=7 * SECOND))
        assert result == OpenResult(OpenOutcome.EXISTING, first)


async def test_open_sessions__upgrades_session_of_lower_kind(database: Database) -> None:
    one = request(
        kind=1, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=90 * SECOND
    )
    await open_one(database.store, one)
    now = NOON + 5 * SECONDS
    await database.clock.set(now)
    higher = same_key_request(one, kind=3)
    new = session_of(await open_one(database.store, higher))
    assert new == await database.store.get_session(higher.session_id, EVERYTHING)
    assert (new.previous_session_id, new.kind, new.started_at) == (one.session_id, 3, now)
    assert (new.lease_microseconds, new.heartbeat_microseconds, new.idle_microseconds) == (
        60 * SECOND,
        5 * SECOND,
        90 * SECOND,
    )
    old = await database.store.get_session(one.session_id, EVERYTHING)
    assert old is not None
    assert (old.closed_at, old.close_reason, old.state, old.modified_at) == (now, CloseReason.UPGRADED, "closed", now)


async def test_open_sessions__upgrades_with_limits_of_request(database: Database) -> None:
    one = request(
        kind=1, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=90 * SECOND
    )
    await open_one(database.store, one)
    higher = same_key_request(one, kind=2, lease_microseconds=24 * SECOND, heartbeat_microseconds=2 * SECOND)
    new = session_of(await open_one(database.store, higher))
    assert (new.lease_microseconds, new.heartbeat_microseconds, new.idle_microseconds) == (
        24 * SECOND,
        2 * SECOND,
        90 * SECOND,
    )


async def test_open_sessions__upgrade_at_start_instant_is_recorded_one_microsecond_later(database: Database) -> None:
    one = request(kind=1)
    await open_one(database.store, one)
    new = session_of(await open_one(database.store, same_key_request(one, kind=2)))
    old = await database.store.get_session(one.session_id, EVERYTHING)
    assert old is not None
    assert old.closed_at == new.started_at == NOON + timedelta(microseconds=1)


async def test_open_sessions__records_lapse_and_creates_new_session(database: Database) -> None:
    one = request(kind=3, lease_microseconds=10 * SECOND)
    await open_one(database.store, one)
    await database.clock.set(NOON + 10 * SECONDS)
    other = same_key_request(one, kind=1, tenant_object_id=some_id())
    result = await open_one(database.store, other)
    assert (result.outcome, session_of(result)) == (OpenOutcome.CREATED, opened(other, LIMITS, NOON + 10 * SECONDS))
    assert result.closed_sessions == [ending(one, "LEASE_EXPIRED", NOON + 10 * SECONDS)]
    await database.clock.set(NOON)  # a recorded end no longer depends on the clock
    old = await database.store.get_session(one.session_id, EVERYTHING)
    assert old is not None
    assert (old.state, old.closed_at, old.close_reason) == ("closed", NOON + 10 * SECONDS, CloseReason.LEASE_EXPIRED)


async def test_open_sessions__returns_existing_session_one_microsecond_before_deadline(database: Database) -> None:
    one = request(lease_microseconds=10 * SECOND)
    await open_one(database.store, one)
    await database.clock.set(NOON + 10 * SECONDS - timedelta(microseconds=1))
    assert (await open_one(database.store, same_key_request(one))).outcome is OpenOutcome.EXISTING


async def test_open_sessions__returns_tenant_mismatch_without_session(database: Database) -> None:
    one = request(kind=1)
    await open_one(database.store, one)
    for kind in (1, 3):
        result = await open_one(database.store, same_key_request(one, kind=kind, tenant_object_id=some_id()))
        assert result == OpenResult(OpenOutcome.TENANT_MISMATCH)


async def test_open_sessions__starts_no_earlier_than_end_of_previous_session_of_key(database: Database) -> None:
    one = request()
    await open_one(database.store, one)
    await database.clock.set(NOON + 60 * SECONDS)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + 30 * SECONDS)  # the clock is stepped back
    new = same_key_request(one)
    session = session_of(await open_one(database.store, new))
    assert session.started_at == NOON + 60 * SECONDS
    assert session == await database.store.get_session(new.session_id, EVERYTHING)


async def test_open_sessions__end_of_previous_session_delays_only_its_own_key_in_batch(database: Database) -> None:
    one = request()
    await open_one(database.store, one)
    await database.clock.set(NOON + 60 * SECONDS)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + 30 * SECONDS)  # the clock is stepped back
    new, other = same_key_request(one), request()
    requests = sorted((new, other), key=lambda each: each.key)
    results = await database.store.open_sessions(OpenLane.CREATE, requests, LIMITS)
    started = {each.session_id: session_of(result).started_at for each, result in zip(requests, results, strict=True)}
    assert started == {new.session_id: NOON + 60 * SECONDS, other.session_id: NOON + 30 * SECONDS}
    assert session_of(results[requests.index(new)]) == await database.store.get_session(new.session_id, EVERYTHING)


async def test_open_sessions__returns_outcome_of_each_request_in_mixed_batch(database: Database) -> None:
    live, lower, lapsed, foreign = request(kind=2), request(kind=1), request(lease_microseconds=SECOND), request()
    for one in (live, lower, lapsed, foreign):
        await open_one(database.store, one)
    await database.clock.set(NOON + 2 * SECONDS)
    expected = {
        same_key_request(live): OpenOutcome.EXISTING,
        same_key_request(lower, kind=2): OpenOutcome.UPGRADED,
        same_key_request(lapsed): OpenOutcome.CREATED,
        same_key_request(foreign, tenant_object_id=some_id()): OpenOutcome.TENANT_MISMATCH,
        request(): OpenOutcome.CREATED,
    }
    assert await _outcomes(database, expected) == expected


async def _outcomes(database: Database, requests: dict[OpenRequest, OpenOutcome]) -> dict[OpenRequest, OpenOutcome]:
    """Returns the final outcome of each request. Sends all requests as one batch to the lane `create`, and then those
    without a final outcome to the lane `reopen`, until every request has a final outcome.
    """
    outcomes: dict[OpenRequest, OpenOutcome] = {}
    lane = OpenLane.CREATE
    waiting = sorted(requests, key=lambda one: one.key)
    while waiting:
        results = await database.store.open_sessions(lane, waiting, LIMITS)
        done = dict(zip(waiting, [result.outcome for result in results], strict=True))
        outcomes |= done
        waiting = [one for one in waiting if done[one] in (OpenOutcome.REOPEN, OpenOutcome.AGAIN)]
        lane = OpenLane.REOPEN
    return outcomes


async def test_open_sessions__accepts_full_batch(database: Database) -> None:
    requests = sorted((request(kind=1 + number % 3) for number in range(BATCH_MAX)), key=lambda one: one.key)
    results = await database.store.open_sessions(OpenLane.CREATE, requests, LIMITS)
    assert [result.session for result in results] == [opened(one, LIMITS, NOON) for one in requests]
    assert (await database.store.count_sessions(EVERYTHING)).total == BATCH_MAX


async def test_open_sessions__returns_own_session_when_repeated_after_lost_response(database: Database) -> None:
    one = request()
    first = await open_one(database.store, one)
    (second,) = await database.store.open_sessions(OpenLane.CREATE, [one], LIMITS)
    assert session_of(second).session_id == session_of(first).session_id


async def test_open_sessions__raises_id_taken_when_repeated_after_session_ended(
    database: Database,
) -> None:
    one = request()
    await open_one(database.store, one)
    await end_one(database.store, one.session_id, CloseReason.TERMINATED)
    with pytest.raises(IdTaken):
        await open_one(database.store, one)


async def test_open_sessions__starts_no_earlier_than_last_cut(database: Database) -> None:
    """A window never changes after its cut, even if the clock is stepped back to an instant before the cut."""
    cut = await database.last_cut_at()
    await database.clock.set(cut - timedelta(hours=1))
    session = session_of(await open_one(database.store, request()))
    assert session.started_at == cut
