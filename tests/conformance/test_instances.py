"""Instances and their activity, on every engine."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.domain.activity import ACTIVITY_POINTS_MAX, COUNTS, Activity, ActivityQuery, MinuteCounts
from tenure.domain.instances import INSTANCE_ALIVE, Instance, InstanceReport
from tenure.domain.jobs import Pruned
from tenure.store.limits import ACTIVITY_KEPT, BATCH_MAX, INSTANCES_KEPT
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, acquire_free_lease, hold_lease, read_table, sibling_store
from tests.support.open_requests import NOON

pytestmark = pytest.mark.usefixtures("noon")

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
FIRST = datetime(2041, 3, 1, 11, 0, tzinfo=UTC)
"""The start of a minute, an hour before noon."""


def report(instance: str = "a-1-x", **fields: Any) -> InstanceReport:
    named = {"instance": instance, "holder": instance, "host": "a", "pid": 1, "worker": 0, "version": "1.0"}
    return InstanceReport(**(named | {"executor_lease": "executor"} | fields))


async def found(database: Database) -> Instance:
    (only,) = await database.store.list_instances(None, 9)
    return only


async def test_save_instance__inserts_row_and_renews_it(database: Database) -> None:
    assert await database.store.save_instance(report(worker=3)) == NOON
    await database.clock.set(NOON + SECOND)
    assert await database.store.save_instance(report(worker=3)) == NOON
    assert await found(database) == Instance(
        instance="a-1-x",
        holder="a-1-x",
        host="a",
        pid=1,
        worker=3,
        version="1.0",
        executor_lease="executor",
        started_at=NOON,
        last_seen_at=NOON + SECOND,
        stopped_at=None,
        alive=True,
        leads=[],
    )


async def test_save_instance__keeps_instance_stopped_after_late_save(database: Database) -> None:
    """An earlier save, whose answer was lost, may commit after the save that marks the instance as stopped."""
    await database.store.save_instance(report())
    await database.clock.set(NOON + SECOND)
    assert await database.store.save_instance(report(stopped=True)) == NOON
    await database.clock.set(NOON + 2 * SECOND)
    for late in (report(), report(stopped=True)):
        assert await database.store.save_instance(late) == NOON
        row = await found(database)
        assert (row.last_seen_at, row.stopped_at, row.alive) == (NOON + SECOND, NOON + SECOND, False)


async def test_save_instance__marks_unknown_instance_as_stopped(database: Database) -> None:
    await database.store.save_instance(report(stopped=True))
    await database.store.save_instance(report())
    assert (await found(database)).alive is False


async def test_save_instance__keeps_start_although_row_was_pruned(database: Database) -> None:
    started = NOON - timedelta(days=3)
    assert await database.store.save_instance(report(started_at=started)) == started
    assert (await found(database)).started_at == started


async def test_save_instance__marks_instance_as_alive_after_clock_step_back(database: Database) -> None:
    await database.store.save_instance(report())
    await database.store.save_instance(report("b-2-y"))
    await database.clock.set(NOON - timedelta(hours=1))
    await database.store.save_instance(report())
    alive = {each.instance: each.alive for each in await database.store.list_instances(None, 9)}
    # The last save of `b-2-y` is an hour in the future now, so the instance is not alive until it saves again.
    assert alive == {"a-1-x": True, "b-2-y": False}


async def test_save_instance__keeps_rows_of_concurrent_calls(database: Database) -> None:
    other = sibling_store(database)
    stores = [database.store, other]
    try:
        reports = [report(f"i-{number}") for number in range(8) for _ in range(2)]
        await asyncio.gather(*(stores[i % 2].save_instance(each) for i, each in enumerate(reports)))
    finally:
        await other.close()
    assert len(await database.store.list_instances(None, 99)) == 8


async def test_list_instances__shows_instance_as_alive_for_limited_time_after_last_save(database: Database) -> None:
    await database.store.save_instance(report())
    for later, alive in ((INSTANCE_ALIVE, True), (INSTANCE_ALIVE + MICROSECOND, False)):
        await database.clock.set(NOON + later)
        assert (await found(database)).alive is alive


async def test_list_instances__lists_leases_of_each_instance_without_job_locks(database: Database) -> None:
    store = database.store
    for name in ("a", "b", "c"):
        await store.save_instance(report(name))
    for lease, holder in (("two", "a"), ("one", "a"), ("job:prune", "a"), ("three", "b"), ("four", "elsewhere")):
        await acquire_free_lease(store, lease, holder)
    released = await acquire_free_lease(store, "five", "b")
    await store.release_lease(released)
    leads = {each.instance: each.leads for each in await store.list_instances(None, 9)}
    assert leads == {"a": ["one", "two"], "b": ["three"], "c": []}
    await database.clock.set(NOON + 61 * SECOND)  # the leases have expired
    await store.save_instance(report("a"))
    assert [each.leads for each in await store.list_instances(None, 9)] == [[], [], []]


async def test_list_instances__shows_leases_of_a_named_holder_with_its_running_process(database: Database) -> None:
    """A restarted process is a new instance with a new name, but a configured holder stays the same. Only the instance
    that runs can hold the leases of this holder.
    """
    store = database.store
    await store.save_instance(report("node-1-a", holder="node-1", stopped=True))
    await store.save_instance(report("node-1-b", holder="node-1"))
    await acquire_free_lease(store, "one", "node-1")
    leads = {each.instance: each.leads for each in await store.list_instances(None, 9)}
    assert leads == {"node-1-a": [], "node-1-b": ["one"]}


async def test_list_instances__is_paged_by_name(database: Database) -> None:
    for name in ("b", "c", "a", "B"):
        await database.store.save_instance(report(name))
    pages = [await database.store.list_instances(after, 2) for after in (None, "a", "c")]
    assert [[each.instance for each in page] for page in pages] == [["B", "a"], ["b", "c"], []]


async def test_prune__deletes_instances_a_day_after_they_were_last_seen(database: Database) -> None:
    for name, age in (("old", INSTANCES_KEPT + MICROSECOND), ("kept", INSTANCES_KEPT)):
        await database.clock.set(NOON - age)
        await database.store.save_instance(report(name))
    await database.clock.set(NOON)
    fence = await hold_lease(database.store, "job:prune")
    assert await database.store.prune(fence, 9) == Pruned(0, 0, 0, instances=1)
    assert (await found(database)).instance == "kept"


# Activity.


def minute(number: int, turn: int = 0, **counts: int) -> MinuteCounts:
    """The counts of the minute that begins `number` minutes after FIRST. domain/activity.py explains `turn`."""
    return MinuteCounts(FIRST + number * MINUTE, turn, counts)


async def read(database: Database, **query: Any) -> Activity:
    given = {"from_at": FIRST, "to_at": FIRST + 5 * MINUTE, "step_seconds": 60} | query
    activity = await database.store.read_activity(ActivityQuery(**given))
    assert activity is not None
    return activity


async def counted(database: Database, name: str, **query: Any) -> list[int]:
    return [point.counts[name] for point in (await read(database, **query)).points]


async def test_save_activity__keeps_every_count(database: Database) -> None:
    counts = {name: number for number, name in enumerate(COUNTS, start=1)}
    await database.store.save_activity("a", [minute(1, **counts)])
    activity = await read(database)
    assert [point.at for point in activity.points] == [FIRST + number * MINUTE for number in range(5)]
    assert activity.points[1].counts == counts
    assert activity.points[0].counts == dict.fromkeys(COUNTS, 0)


async def test_save_activity__adds_nothing_if_repeated_or_late(database: Database) -> None:
    early, late = minute(1, opened=3, heartbeats=7), minute(1, opened=5, heartbeats=9)
    for saved in ([early], [late], [late], [early], [minute(2, opened=1), early]):
        await database.store.save_activity("a", saved)
    assert await counted(database, "opened") == [0, 5, 1, 0, 0]
    assert await counted(database, "heartbeats") == [0, 9, 0, 0, 0]


async def test_save_activity__counts_concurrent_repetitions_once(database: Database) -> None:
    other = sibling_store(database)
    try:
        stores = [database.store, other] * 4
        saves = (each.save_activity("a", [minute(1, opened=n), minute(2, opened=n)]) for n, each in enumerate(stores))
        await asyncio.gather(*saves)
    finally:
        await other.close()
    assert await counted(database, "opened") == [0, 7, 7, 0, 0]


async def test_save_activity__is_summed_over_instances_and_turns(database: Database) -> None:
    await database.store.save_activity("a", [minute(1, opened=1), minute(1, 1, opened=10)])
    await database.store.save_activity("b", [minute(1, opened=100)])
    assert await counted(database, "opened") == [0, 111, 0, 0, 0]


async def test_save_activity__takes_empty_and_full_batch(database: Database) -> None:
    await database.store.save_activity("a", [])
    await database.store.save_activity("a", [minute(-number, opened=1) for number in range(BATCH_MAX)])
    assert len(await read_table(database, "activity")) == BATCH_MAX


async def test_read_activity__sums_steps_that_begin_at_multiples_of_step_since_1970(database: Database) -> None:
    await database.store.save_activity(
        "a", [minute(number, opened=1, closed_evicted=2**31 - 1) for number in range(-1, 8)]
    )
    activity = await read(database, from_at=FIRST + MINUTE + SECOND, to_at=FIRST + 6 * MINUTE, step_seconds=300)
    assert [(point.at, point.counts["opened"]) for point in activity.points] == [(FIRST, 5), (FIRST + 5 * MINUTE, 1)]
    assert activity.points[0].counts["closed_evicted"] == 5 * (2**31 - 1)
    assert (activity.span.from_at, activity.span.to_at) == (FIRST + MINUTE + SECOND, FIRST + 6 * MINUTE)


async def test_read_activity__defaults_to_last_hour_and_ends_at_current_time(database: Database) -> None:
    for query in ({"from_at": None, "to_at": None}, {"from_at": None, "to_at": NOON + timedelta(days=1)}):
        activity = await read(database, **query)
        assert (activity.span.from_at, activity.span.to_at) == (NOON - timedelta(hours=1), NOON)
        assert (activity.points[0].at, len(activity.points)) == (FIRST, 61)


async def test_read_activity__refuses_empty_and_too_long_span(database: Database) -> None:
    longest = ActivityQuery(FIRST - (ACTIVITY_POINTS_MAX - 1) * MINUTE, FIRST + MINUTE, 60)
    activity = await database.store.read_activity(longest)
    assert activity is not None
    assert len(activity.points) == ACTIVITY_POINTS_MAX
    for refused in (
        replace(longest, to_at=FIRST + MINUTE + MICROSECOND),
        ActivityQuery(FIRST, FIRST, 60),
        ActivityQuery(NOON, None, 60),
        ActivityQuery(NOON + MINUTE, NOON + 2 * MINUTE, 60),
    ):
        assert await database.store.read_activity(refused) is None


async def test_prune__deletes_activity_after_eight_days(database: Database) -> None:
    edge = datetime(2041, 3, 1, 12, 0, tzinfo=UTC)
    await database.clock.set(edge)
    old = [MinuteCounts(edge - ACTIVITY_KEPT - number * MINUTE, 0, {"opened": 1}) for number in range(3)]
    await database.store.save_activity("a", old)
    fence = await hold_lease(database.store, "job:prune")
    assert await database.store.prune(fence, 1) == Pruned(0, 0, 0, activity=1)
    assert await database.store.prune(fence, 9) == Pruned(0, 0, 0, activity=1)
    assert [row["at"] for row in await read_table(database, "activity")] == [edge - ACTIVITY_KEPT]
