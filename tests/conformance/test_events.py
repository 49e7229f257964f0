"""The horizon, the feed of events, and batches for gateways, on every engine."""

import asyncio
from datetime import timedelta
from itertools import combinations

import pytest

from tenure.domain.events import (
    ALL_TYPES,
    EventBatch,
    EventFilter,
    EventPosition,
    EventSubscription,
    EventType,
    end_of,
)
from tenure.domain.leases import Fence
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Found
from tenure.domain.submissions import SubmissionCommand
from tests.support.audit_log import ACTOR, draft
from tests.support.databases import Database
from tests.support.events import BEFORE, expected_events, feed, new_batch, read_all
from tests.support.leases import hold_lease, sweep_some
from tests.support.open_requests import NOON, SECOND, end_one, open_one, request, same_key_request, some_id
from tests.support.session_calls import evicting_seats, heartbeat_one
from tests.support.sessions import open_new_session, read_session
from tests.support.submissions import DELIVERED, attempt_end, read_submission
from tests.support.usage import CONTRACT, cut, insert_sessions, install, session_between

pytestmark = pytest.mark.usefixtures("noon")

MICROSECOND = timedelta(microseconds=1)
SECONDS = timedelta(seconds=1)
PAUSE = 250_000


def types(events: object) -> list[EventType]:
    return [event.type for event in events]  # type: ignore[attr-defined]


# The horizon


async def test_publish_events__moves_horizon_to_clock_at_most_once_per_pause(database: Database) -> None:
    assert await database.store.publish_events(PAUSE) == NOON
    await database.clock.set(NOON + timedelta(microseconds=PAUSE - 1))
    assert await database.store.publish_events(PAUSE) == NOON
    await database.clock.set(NOON + timedelta(microseconds=PAUSE))
    assert await database.store.publish_events(PAUSE) == NOON + timedelta(microseconds=PAUSE)


async def test_publish_events__stamps_later_writes_after_horizon(database: Database) -> None:
    before = await open_new_session(database)
    horizon = await database.store.publish_events(0)
    after = await open_new_session(database)
    ended = (await end_one(database.store, before.session_id, CloseReason.STOPPED)).session
    assert ended is not None
    assert (before.started_at, horizon) == (NOON, NOON)
    assert (after.started_at, ended.closed_at) == (NOON + MICROSECOND, NOON + MICROSECOND)
    assert types(await read_all(database.store)) == [EventType.OPENED]


async def test_publish_events__publishes_new_events_while_clock_is_behind_horizon(database: Database) -> None:
    await database.store.publish_events(PAUSE)
    one = await open_new_session(database)
    await database.clock.set(NOON - timedelta(hours=1))
    assert [event.session_id for event in await feed(database.store)] == [one.session_id]
    other = await open_new_session(database)
    assert other.started_at > one.started_at
    assert [event.session_id for event in await feed(database.store)] == [one.session_id, other.session_id]


async def test_publish_events__publishes_writes_from_before_clock_step_back(database: Database) -> None:
    await database.store.publish_events(0)
    await database.clock.set(NOON + SECONDS)
    late = [await open_new_session(database, kind=kind) for kind in (1, 2, 3)]
    await end_one(database.store, late[0].session_id, CloseReason.STOPPED)
    await database.clock.set(NOON - SECONDS)
    found = await feed(database.store)
    assert len(found) == 4
    assert found == expected_events([await read_session(database, each.session_id) for each in late], found[-1].at)


async def test_publish_events__stamps_later_writes_after_horizon_if_clock_is_behind_it(database: Database) -> None:
    """No write has a timestamp as late as the horizon: only the horizon shows that the clock was stepped back."""
    await database.clock.set(NOON + 10 * SECONDS)
    horizon = await database.store.publish_events(0)
    await database.clock.set(NOON)
    await database.store.publish_events(0)
    assert (await open_new_session(database)).started_at > horizon


async def test_publish_events__follows_last_cut_when_clock_is_behind_it(database: Database) -> None:
    await install(database, NOON)
    await cut(database, NOON + timedelta(minutes=2))
    await database.clock.set(NOON)
    one = await open_new_session(database)
    assert one.started_at == await database.last_cut_at()
    assert [event.session_id for event in await feed(database.store)] == [one.session_id]


async def test_publish_events__stamps_later_writes_after_every_horizon_of_concurrent_calls(
    database: Database,
) -> None:
    horizons = await asyncio.gather(*(database.store.publish_events(0) for _ in range(4)))
    page = await database.store.read_events(EventFilter(), BEFORE, None, 9)
    assert page.horizon == max(horizons)
    assert (await open_new_session(database)).started_at > max(horizons)


# The feed


async def test_read_events__returns_nothing_before_first_horizon(database: Database) -> None:
    await open_new_session(database)
    page = await database.store.read_events(EventFilter(), BEFORE, None, 9)
    assert (list(page.events), page.position, page.is_last) == ([], BEFORE, True)


async def test_read_events__orders_close_before_successor_at_same_instant(database: Database) -> None:
    one = request()
    await open_one(database.store, one)
    await database.clock.set(NOON + SECONDS)
    upgraded = (await open_one(database.store, same_key_request(one, kind=3))).session
    assert upgraded is not None
    found = await feed(database.store)
    assert types(found) == [EventType.OPENED, EventType.CLOSED, EventType.UPGRADED]
    assert [event.at for event in found] == [NOON, NOON + SECONDS, NOON + SECONDS]
    assert found[1].close_reason == "UPGRADED"
    assert (found[2].session_id, found[2].previous_session_id) == (upgraded.session_id, one.session_id)


LEASE = 10 * SECOND
DEADLINE = NOON + timedelta(microseconds=LEASE)


async def lapse(database: Database) -> str:
    one = await open_new_session(database, lease_microseconds=LEASE)
    await database.clock.set(DEADLINE + 5 * SECONDS)
    return one.session_id


async def test_read_events__shows_same_lapse_before_and_after_it_is_recorded(
    database: Database,
) -> None:
    one = request(lease_microseconds=LEASE)
    seated = request(lease_microseconds=LEASE)
    await database.store.put_capacity(seated.capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    sessions = {}
    for name in ("sweep", "heartbeat", "end", "unrecorded"):
        sessions[name] = (await open_new_session(database, lease_microseconds=LEASE)).session_id
    sessions["reopen"] = one.session_id
    sessions["evict"] = seated.session_id
    for each in (one, seated):
        await open_one(database.store, each)
    await database.clock.set(DEADLINE)
    unrecorded = await feed(database.store)
    assert len(unrecorded) == 12
    assert {(event.at, event.close_reason) for event in unrecorded[6:]} == {(DEADLINE, "LEASE_EXPIRED")}

    await database.clock.set(DEADLINE + SECONDS)
    until = EventPosition(DEADLINE, 2, BEFORE.session_id)
    assert (await heartbeat_one(database.store, sessions["heartbeat"])).found is Found.OVER
    await end_one(database.store, sessions["end"], CloseReason.STOPPED)
    await open_one(database.store, same_key_request(one))
    await open_one(database.store, request(capacity_id=seated.capacity_id))
    page = await database.store.read_events(EventFilter(), BEFORE, until, 500)
    assert list(page.events) == list(unrecorded)
    await sweep_some(database.store, 100)
    page = await database.store.read_events(EventFilter(), BEFORE, until, 500)
    assert list(page.events) == list(unrecorded)


async def test_read_events__shows_no_lapse_of_renewed_session(database: Database) -> None:
    one = await open_new_session(database, lease_microseconds=LEASE)
    await database.clock.set(NOON + 6 * SECONDS)
    await heartbeat_one(database.store, one.session_id)
    await database.clock.set(DEADLINE + SECONDS)
    assert types(await feed(database.store)) == [EventType.OPENED]
    # The session is still live, because its new deadline is after the horizon.
    assert (await heartbeat_one(database.store, one.session_id)).found is Found.LIVE


async def test_read_events__published_lapse_is_final_after_clock_step_back(
    database: Database,
) -> None:
    session_id = await lapse(database)
    assert types(await feed(database.store)) == [EventType.OPENED, EventType.CLOSED]
    await database.clock.set(NOON + SECONDS)
    assert (await heartbeat_one(database.store, session_id)).found is Found.OVER
    recorded = await read_session(database, session_id)
    assert (recorded.closed_at, recorded.close_reason) == (DEADLINE, "LEASE_EXPIRED")


async def test_read_events__shows_end_of_session_in_state_closing_once(database: Database) -> None:
    # The end of this session is recorded, and its deadline is later than its end.
    ended = NOON + SECONDS
    closing = session_between(NOON, ended, state="closing", deadline_at=NOON + 9 * SECONDS)
    await insert_sessions(database, [closing])
    await database.execute("UPDATE sessions SET check_at = deadline_at")
    await database.clock.set(NOON + 20 * SECONDS)
    assert await feed(database.store) == expected_events([closing], ended)


async def test_read_events__pages_and_filters_return_parts_of_whole_feed(database: Database) -> None:
    """Many events have the same instant, so that some pages end between two events of one instant."""
    tenants = [some_id() for _ in range(3)]
    made = [
        session_between(
            NOON + (number % 3) * SECONDS,
            NOON + (1 + number % 4 + number % 3) * SECONDS,
            closed=number % 5 > 0,
            tenant_object_id=tenants[number % 3],
            kind=1 + number % 3,
            previous_session_id=some_id() if number % 4 == 0 else None,
            close_reason=list(CloseReason)[number % 10].value if number % 5 > 0 else None,
        )
        for number in range(60)
    ]
    await insert_sessions(database, made)
    await database.clock.set(NOON + 4 * SECONDS)
    horizon = await database.store.publish_events(0)
    whole = expected_events(made, horizon)
    assert list(await read_all(database.store)) == whole
    for limit in (7, 64):
        assert list(await read_all(database.store, limit=limit)) == whole, limit
    for number in range(0, len(whole), 20):
        assert list(await read_all(database.store, after=whole[number].position)) == whole[number + 1 :]
        until = await database.store.read_events(EventFilter(), BEFORE, whole[number].position, 500)
        assert list(until.events) == whole[: number + 1]
        assert until.position == whole[number].position
    chosen = [some for size in (1, 2, 3) for some in combinations(ALL_TYPES, size)]
    for criteria in [EventFilter(some, tenant) for some in chosen for tenant in (None, tenants[0])]:
        expected = [event for event in whole if criteria.admits(event)]
        assert list(await read_all(database.store, criteria, limit=15)) == expected, criteria


async def test_read_events__continues_where_long_search_ended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.reads.events.SCAN_MAX", 4)
    monkeypatch.setattr("tenure.store.reads.events.LAPSES_MAX", 3)
    mine = some_id()
    made = [
        session_between(
            NOON + number * SECONDS,
            NOON + (30 + number) * SECONDS,
            closed=number % 2 > 0,
            tenant_object_id=mine if number in (5, 18) else some_id(),
        )
        for number in range(20)
    ]
    await insert_sessions(database, made)
    await database.clock.set(NOON + 60 * SECONDS)
    await database.store.publish_events(0)
    whole = expected_events(made, NOON + 60 * SECONDS)
    waiting = EventFilter(tenant=mine)
    page = await database.store.read_events(waiting, BEFORE, None, 500)
    assert not page.is_last, "more lapses wait for the sweep than a page may search"
    await sweep_some(database.store, 100)
    assert list(await read_all(database.store, waiting)) == [event for event in whole if waiting.admits(event)]


# Gateways


@pytest.fixture
async def fence(database: Database) -> Fence:
    return await hold_lease(database.store, "events")


async def test_subscribe_gateways__starts_new_gateway_now_and_keeps_others(database: Database, fence: Fence) -> None:
    first = await database.store.subscribe_gateways(fence, ["hooks"])
    assert first == [EventSubscription("hooks", end_of(NOON), 0, is_settled=True)]
    await database.clock.set(NOON + SECONDS)
    both = await database.store.subscribe_gateways(fence, ["hooks", "other"])
    assert sorted(both, key=lambda each: each.gateway) == [
        first[0],
        EventSubscription("other", end_of(NOON + SECONDS), 0, is_settled=True),
    ]


async def test_save_event_batch__stores_batch_and_submission_once(database: Database, fence: Fence) -> None:
    (began,) = await database.store.subscribe_gateways(fence, ["hooks"])
    batch = new_batch(1, began.position, end_of(NOON + SECONDS))
    assert await database.store.save_event_batch(fence, batch)
    assert not await database.store.save_event_batch(fence, batch), "a repeated call finds that the batch is saved"
    (now,) = await database.store.subscribe_gateways(fence, ["hooks"])
    assert now == EventSubscription("hooks", end_of(NOON + SECONDS), 1, is_settled=False)
    submission = await read_submission(database, batch.submission_id)
    assert (submission.gateway, submission.state, submission.next_attempt_at) == ("hooks", "pending", NOON)
    (envelope,) = await database.store.read_envelopes([batch.submission_id])
    installation = await database.store.read_installation()
    assert envelope.delivery_key == f"{installation.installation_id}-events-hooks-1"
    assert envelope.contract == CONTRACT


async def test_save_event_batch__returns_false_until_last_batch_is_delivered_or_cancelled(
    database: Database, fence: Fence
) -> None:
    (began,) = await database.store.subscribe_gateways(fence, ["hooks"])
    ends = [end_of(NOON + number * SECONDS) for number in range(4)]
    one = new_batch(1, began.position, ends[1])
    await database.store.save_event_batch(fence, one)
    two = new_batch(2, ends[1], ends[2])
    assert not await database.store.save_event_batch(fence, two)
    await database.store.begin_attempts(fence, [one.submission_id])
    await database.store.finish_attempts(fence, [attempt_end(one.submission_id, outcome=DELIVERED)])
    assert await database.store.save_event_batch(fence, two)
    three = new_batch(3, ends[2], ends[3])
    assert not await database.store.save_event_batch(fence, three)
    await database.store.command_submissions(SubmissionCommand.CANCEL, [two.submission_id], None, draft())
    assert await database.store.save_event_batch(fence, three)


async def test_save_event_batch__moves_gateway_forward_without_batch_if_there_are_no_events(
    database: Database, fence: Fence
) -> None:
    (began,) = await database.store.subscribe_gateways(fence, ["hooks"])
    empty = new_batch(1, began.position, end_of(NOON + SECONDS), events=0)
    assert await database.store.save_event_batch(fence, empty)
    assert not await database.store.save_event_batch(fence, empty)
    (now,) = await database.store.subscribe_gateways(fence, ["hooks"])
    assert now == EventSubscription("hooks", end_of(NOON + SECONDS), 0, is_settled=True)
    assert await database.store.find_event_batches([empty.submission_id]) == []


async def test_find_event_batches__returns_batch_of_submission(database: Database, fence: Fence) -> None:
    (began,) = await database.store.subscribe_gateways(fence, ["hooks"])
    end = EventPosition(NOON + SECONDS, 1, some_id())
    batch = new_batch(1, began.position, end, types=(EventType.CLOSED,))
    await database.store.save_event_batch(fence, batch)
    assert await database.store.find_event_batches([some_id(), batch.submission_id]) == [
        EventBatch(
            gateway="hooks",
            number=1,
            start=began.position,
            end=end,
            types=(EventType.CLOSED,),
            events=2,
            digest=b"7" * 32,
            submission_id=batch.submission_id,
        )
    ]


async def test_prune__deletes_batches_with_their_submissions(database: Database, fence: Fence) -> None:
    (began,) = await database.store.subscribe_gateways(fence, ["hooks"])
    batch = new_batch(1, began.position, end_of(NOON + SECONDS))
    await database.store.save_event_batch(fence, batch)
    await database.store.begin_attempts(fence, [batch.submission_id])
    await database.store.finish_attempts(fence, [attempt_end(batch.submission_id, outcome=DELIVERED)])
    await database.clock.set(NOON + timedelta(days=8))
    await database.store.prune(fence, 9)
    assert await database.store.find_event_batches([batch.submission_id]) == []
    (now,) = await database.store.subscribe_gateways(fence, ["hooks"])
    assert (now.number, now.is_settled) == (1, True)
