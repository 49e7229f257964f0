"""Jobs and their runs, on every engine: on the grid, one at a time, to the microsecond."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.errors import LeaseLost
from tenure.ids import new_id
from tenure.model.leases import ERROR_MAX, BeginFound, Begun, Fence, Job, JobCommand, JobRun, JobSettings, RunOutcome
from tenure.schedule import grid_after
from tenure.store.store import Topic
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, TIMEOUT, all_tables, begin, begun, every, held, sibling, table, taken
from tests.support.wishes import NOON, SECOND

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MINUTE = 60 * SECOND
TICK = datetime(2041, 3, 1, 12, 1, tzinfo=UTC)
"""The first after noon on the grid of a minute."""
IDLE = Begun(BeginFound.IDLE)
HELD = Begun(BeginFound.HELD)
SUCCEEDED, FAILED, ABANDONED = RunOutcome.SUCCEEDED, RunOutcome.FAILED, RunOutcome.ABANDONED


@pytest.fixture
async def tidy(database: Database) -> Database:
    """With a job that runs every minute."""
    await database.store.register_jobs([every(MINUTE)])
    return database


def job(**given: Any) -> Job:
    """As it is just registered at noon."""
    values: dict[str, Any] = {"next_run_at": TICK, "run_count": 0, "failures_in_a_row": 0, "paused": False}
    return Job(name="tidy", interval_microseconds=MINUTE, lock_timeout_microseconds=TIMEOUT, **{**values, **given})


def run(epoch: int = 1, **given: Any) -> JobRun:
    """As it has just begun at its tick."""
    values: dict[str, Any] = {"holder": "test", "started_at": TICK}
    return JobRun(job="tidy", epoch=epoch, **{**values, **given})


async def the_job(database: Database, name: str = "tidy") -> Job:
    (found,) = [one for one in await database.store.list_jobs(None, 500) if one.name == name]
    return found


async def runs(database: Database) -> Sequence[JobRun]:
    found = await database.store.list_runs("tidy", None, 500)
    assert found is not None
    return found


async def begun_at(database: Database, instant: datetime, holder: str = "test") -> Fence:
    await database.clock.set(instant)
    return await begun(database.store, "tidy", holder)


async def finish(database: Database, fence: Fence, outcome: RunOutcome, error: str | None = None) -> None:
    await database.store.finish_run(fence, outcome, error, 7 * SECOND)


# Registering


async def test_register_jobs__makes_a_row_for_each(database: Database) -> None:
    await database.store.register_jobs([every(MINUTE), every(7 * SECOND, "watch", timeout=9 * SECOND, paused=True)])
    watch = Job(
        name="watch",
        interval_microseconds=7 * SECOND,
        lock_timeout_microseconds=9 * SECOND,
        next_run_at=grid_after(7 * SECOND, NOON),
        run_count=0,
        failures_in_a_row=0,
        paused=True,
    )
    assert await database.store.list_jobs(None, 9) == [job(), watch]


INTERVALS = (1, 7, 999_999, SECOND, 1_000_003, 10 * SECOND, 61 * SECOND, 3_600 * SECOND, 86_400 * SECOND)
INTERVALS += (13 * 86_400 * SECOND + 1, 366 * 86_400 * SECOND, 100 * 365 * 86_400 * SECOND + 7)
INSTANTS = (
    datetime(2026, 11, 1, 1, 30, tzinfo=UTC),
    datetime(2040, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2041, 3, 1, 12, tzinfo=UTC),
    datetime(2041, 3, 1, 12, 0, 0, 1, tzinfo=UTC),
    datetime(2286, 11, 20, 17, 46, 39, 999_999, tzinfo=UTC),
    datetime(9000, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
)


async def test_register_jobs__computes_the_grid_to_the_microsecond(database: Database) -> None:
    expected = {}
    for year, instant in enumerate(INSTANTS):
        await database.clock.set(instant)
        await database.store.register_jobs([every(length, f"{year}-{length}") for length in INTERVALS])
        expected |= {f"{year}-{length}": grid_after(length, instant) for length in INTERVALS}
    found = {one.name: one.next_run_at for one in await database.store.list_jobs(None, 500)}
    assert found == expected


async def test_register_jobs__does_nothing_twice(tidy: Database) -> None:
    await begun_at(tidy, TICK)
    before = await all_tables(tidy)
    await tidy.clock.set(TICK + 600 * SECONDS)
    await tidy.store.register_jobs([every(MINUTE)])
    assert await all_tables(tidy) == before


async def test_register_jobs__pauses_only_what_is_new(tidy: Database) -> None:
    await tidy.store.register_jobs([every(MINUTE, paused=True)])
    assert not (await the_job(tidy)).paused
    await tidy.store.command_job("tidy", JobCommand.PAUSE)
    await tidy.store.register_jobs([every(MINUTE)])
    assert (await the_job(tidy)).paused


@pytest.mark.parametrize(
    ("interval", "next_run_at"),
    [
        (10 * SECOND, datetime(2041, 3, 1, 12, 0, 10, tzinfo=UTC)),
        (3_600 * SECOND, TICK),  # what was due before stays due
        (1_000_003, grid_after(1_000_003, NOON)),
    ],
)
async def test_register_jobs__brings_the_next_run_nearer_but_never_puts_it_off(
    tidy: Database, interval: int, next_run_at: datetime
) -> None:
    await tidy.store.register_jobs([every(interval)])
    assert await the_job(tidy) == replace(job(), interval_microseconds=interval, next_run_at=next_run_at)


async def test_register_jobs__keeps_a_tick_that_was_missed_when_the_interval_changes(tidy: Database) -> None:
    await tidy.clock.set(TICK + 600 * SECONDS)
    await tidy.store.register_jobs([every(10 * SECOND)])
    assert (await the_job(tidy)).next_run_at == TICK


async def test_register_jobs__changes_the_lock_timeout_and_nothing_else(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED, "no luck")
    await tidy.store.command_job("tidy", JobCommand.PAUSE)
    before = await the_job(tidy)
    await tidy.clock.set(TICK + 600 * SECONDS)
    await tidy.store.register_jobs([every(MINUTE, timeout=9 * SECOND)])
    assert await the_job(tidy) == replace(before, lock_timeout_microseconds=9 * SECOND)


async def test_register_jobs__by_many_instances_at_once_makes_each_job_once(database: Database) -> None:
    stores = [sibling(database) for _ in range(4)]
    settings = [every(MINUTE, f"job {number}") for number in range(20)]
    orders = [settings, settings[::-1], settings[10:] + settings[:10], settings[5:] + settings[:5]]
    await asyncio.gather(*(store.register_jobs(order) for store, order in zip(stores, orders, strict=True)))
    for store in stores:
        await store.close()
    assert len(await database.store.list_jobs(None, 500)) == 20


# Beginning a run


async def test_begin_run__knows_no_such_job(tidy: Database) -> None:
    await tidy.clock.set(TICK)
    before = await all_tables(tidy)
    assert await begin(tidy.store, "Tidy") == IDLE
    assert await all_tables(tidy) == before


async def test_begin_run__has_nothing_to_do_before_the_tick(tidy: Database) -> None:
    before = await all_tables(tidy)
    await tidy.clock.set(TICK - MICROSECOND)
    assert await begin(tidy.store, "tidy") == IDLE
    assert await all_tables(tidy) == before


async def test_begin_run__takes_the_lock_at_the_tick_and_notes_the_run(tidy: Database) -> None:
    await tidy.clock.set(TICK)
    assert await begin(tidy.store, "tidy", "one") == Begun(
        BeginFound.BEGUN,
        Fence("job:tidy", "one", 1),
        started_at=TICK,
        expires_at=TICK + 120 * SECONDS,
        tick_at=TICK,
        lock_timeout_microseconds=TIMEOUT,
        failures_in_a_row=0,
        reclaimed=None,
    )
    assert await the_job(tidy) == job(last_start_at=TICK, run_count=1)
    assert await runs(tidy) == [run(holder="one")]
    (lock,) = await tidy.store.list_leases(None, 9)
    assert (lock.fence, lock.expires_at) == (Fence("job:tidy", "one", 1), TICK + 120 * SECONDS)
    assert await table(tidy, "lease_history") == []


@pytest.mark.parametrize("holder", ["one", "two"])
async def test_begin_run__finds_it_held_until_the_lock_runs_out(tidy: Database, holder: str) -> None:
    await begun_at(tidy, TICK, "one")
    before = await all_tables(tidy)
    await tidy.clock.set(TICK + 120 * SECONDS - MICROSECOND)
    assert await begin(tidy.store, "tidy", holder) == HELD
    assert await all_tables(tidy) == before


async def test_begin_run__finds_its_own_work_when_repeated(tidy: Database) -> None:
    attempt = new_id()
    await tidy.clock.set(TICK)
    first = await tidy.store.begin_run("tidy", "one", attempt)
    before = await all_tables(tidy)
    await tidy.clock.set(TICK + 3 * SECONDS)
    assert await tidy.store.begin_run("tidy", "one", attempt) == first
    assert await all_tables(tidy) == before


async def test_begin_run__finds_its_own_work_when_repeated_although_it_was_paused_since(tidy: Database) -> None:
    """Otherwise nobody runs it until the lock has run out."""
    attempt = new_id()
    await tidy.clock.set(TICK)
    first = await tidy.store.begin_run("tidy", "one", attempt)
    await tidy.store.command_job("tidy", JobCommand.PAUSE)
    assert await tidy.store.begin_run("tidy", "one", attempt) == first


async def test_begin_run__finds_its_own_work_when_repeated_although_the_clock_was_stepped_back(tidy: Database) -> None:
    attempt = new_id()
    await tidy.clock.set(TICK)
    first = await tidy.store.begin_run("tidy", "one", attempt)
    await tidy.clock.set(TICK - 300 * SECONDS)
    assert await tidy.store.begin_run("tidy", "one", attempt) == first


async def test_begin_run__leaves_a_lock_alone_that_somebody_took_without_a_run(tidy: Database) -> None:
    await held(tidy.store, "job:tidy")
    before = await all_tables(tidy)
    await tidy.clock.set(TICK)
    assert await begin(tidy.store, "tidy") == HELD
    assert await all_tables(tidy) == before


async def test_begin_run__leaves_what_is_paused(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.PAUSE)
    await tidy.clock.set(TICK)
    assert await begin(tidy.store, "tidy") == IDLE


async def test_begin_run__begins_what_was_asked_for_before_its_tick(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.RUN)
    found = await begin(tidy.store, "tidy")
    assert (found.found, found.started_at, found.tick_at) == (BeginFound.BEGUN, NOON, None)


async def test_begin_run__begins_what_was_asked_for_although_it_is_paused(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.PAUSE)
    await tidy.store.command_job("tidy", JobCommand.RUN)
    assert (await begin(tidy.store, "tidy")).found is BeginFound.BEGUN


async def test_begin_run__runs_missed_ticks_once(tidy: Database) -> None:
    late = TICK + 5 * 60 * SECONDS + 3 * SECONDS
    await tidy.clock.set(late)
    found = await begin(tidy.store, "tidy")
    assert (found.tick_at, found.started_at) == (TICK, late)
    assert found.fence is not None
    await finish(tidy, found.fence, SUCCEEDED)
    assert await begin(tidy.store, "tidy") == IDLE
    assert (await the_job(tidy)).next_run_at == TICK + 6 * 60 * SECONDS


async def test_begin_run__waits_after_a_failure_to_the_microsecond(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED)
    await tidy.clock.set(TICK + 7 * SECONDS - MICROSECOND)
    assert await begin(tidy.store, "tidy") == IDLE
    await tidy.clock.set(TICK + 7 * SECONDS)
    found = await begin(tidy.store, "tidy")
    assert (found.found, found.tick_at, found.failures_in_a_row) == (BeginFound.BEGUN, TICK, 1)


async def test_begin_run__reclaims_what_a_dead_holder_left(tidy: Database) -> None:
    await begun_at(tidy, TICK, "one")
    now = TICK + 120 * SECONDS
    await tidy.clock.set(now)
    assert await begin(tidy.store, "tidy", "two") == Begun(
        BeginFound.BEGUN,
        Fence("job:tidy", "two", 2),
        started_at=now,
        expires_at=now + 120 * SECONDS,
        tick_at=TICK,
        lock_timeout_microseconds=TIMEOUT,
        failures_in_a_row=1,
        reclaimed=Fence("job:tidy", "one", 1),
    )
    assert await the_job(tidy) == job(
        last_start_at=now, run_count=2, failures_in_a_row=1, last_error="abandoned by one"
    )
    over = run(holder="one", ended_at=now, outcome="abandoned", error="its lock ran out")
    assert await runs(tidy) == [run(2, holder="two", started_at=now), over]


async def test_begin_run__says_when_a_reclaimed_run_lost_its_lock_and_not_when_somebody_came_by(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK + 50 * SECONDS)
    await tidy.store.renew_lease(fence, TIMEOUT)
    await tidy.clock.set(TICK + 170 * SECONDS - MICROSECOND)
    assert await begin(tidy.store, "tidy", "two") == HELD
    await begun_at(tidy, TICK + 999 * SECONDS)
    assert (await runs(tidy))[1].ended_at == TICK + 170 * SECONDS


async def test_begin_run__reclaims_at_once_what_lost_its_lock_by_request(tidy: Database) -> None:
    await begun_at(tidy, TICK, "one")
    now = TICK + 9 * SECONDS
    await tidy.clock.set(now)
    await tidy.store.resign_lease("job:tidy")
    found = await begin(tidy.store, "tidy", "two")
    assert (found.fence, found.reclaimed) == (Fence("job:tidy", "two", 2), Fence("job:tidy", "one", 1))
    over = run(holder="one", ended_at=now, outcome="abandoned", error="its lock was taken from it")
    assert (await runs(tidy))[1] == over


async def test_begin_run__reclaims_nothing_where_the_lock_alone_ran_out(tidy: Database) -> None:
    """Of a run that had finished, or of somebody who took the lock without a run."""
    await finish(tidy, await begun_at(tidy, TICK), SUCCEEDED)
    await taken(tidy.store, "job:tidy", "two", SECOND)
    fence = await begun_at(tidy, TICK + 60 * SECONDS, "three")
    assert fence.epoch == 3
    assert (await the_job(tidy)).failures_in_a_row == 0


async def test_begin_run__goes_by_a_lock_timeout_that_was_changed(tidy: Database) -> None:
    await tidy.store.register_jobs([every(MINUTE, timeout=9 * SECOND)])
    await tidy.clock.set(TICK)
    found = await begin(tidy.store, "tidy")
    assert (found.lock_timeout_microseconds, found.expires_at) == (9 * SECOND, TICK + 9 * SECONDS)


async def test_begin_run__by_many_stores_at_once_begins_one(tidy: Database) -> None:
    stores = [sibling(tidy) for _ in range(6)]
    await tidy.clock.set(TICK)
    found = await asyncio.gather(*(begin(store, "tidy", f"holder {n}") for n, store in enumerate(stores)))
    for store in stores:
        await store.close()
    assert sorted(one.found.value for one in found) == ["begun"] + ["held"] * 5
    assert len(await runs(tidy)) == 1


# Finishing a run


async def test_finish_run__that_succeeded_moves_on_to_the_next_tick(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK - MICROSECOND + 90 * SECONDS), SUCCEEDED)
    started_at = TICK - MICROSECOND + 90 * SECONDS
    assert await the_job(tidy) == job(
        next_run_at=TICK + 120 * SECONDS,
        last_start_at=started_at,
        last_success_at=started_at,
        last_duration_microseconds=0,
        run_count=1,
    )


async def test_finish_run__that_succeeded_forgets_all_trouble(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED, "no luck")
    fence = await begun_at(tidy, TICK + 8 * SECONDS)
    now = TICK + 11 * SECONDS + MICROSECOND
    await tidy.clock.set(now)
    await finish(tidy, fence, SUCCEEDED)
    assert await the_job(tidy) == job(
        next_run_at=TICK + 60 * SECONDS,
        last_start_at=TICK + 8 * SECONDS,
        last_success_at=now,
        last_duration_microseconds=3 * SECOND + 1,
        run_count=2,
    )
    assert (await runs(tidy))[0] == run(2, started_at=TICK + 8 * SECONDS, ended_at=now, outcome="succeeded")


async def test_finish_run__that_failed_keeps_its_tick_and_waits(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    now = TICK + 3 * SECONDS + MICROSECOND
    await tidy.clock.set(now)
    await finish(tidy, fence, FAILED, "no luck")
    assert await the_job(tidy) == job(
        retry_at=now + 7 * SECONDS,
        last_start_at=TICK,
        last_duration_microseconds=3 * SECOND + 1,
        run_count=1,
        failures_in_a_row=1,
        last_error="no luck",
    )
    assert await runs(tidy) == [run(ended_at=now, outcome="failed", error="no luck")]


async def test_finish_run__that_failed_again_counts_and_tells_the_last_error(tidy: Database) -> None:
    for number in range(3):
        await finish(tidy, await begun_at(tidy, TICK + number * 8 * SECONDS), FAILED, f"no luck {number}")
    found = await the_job(tidy)
    assert (found.failures_in_a_row, found.last_error, found.run_count) == (3, "no luck 2", 3)
    assert (found.next_run_at, found.retry_at) == (TICK, TICK + 23 * SECONDS)


async def test_finish_run__that_was_abandoned_leaves_the_job_to_be_run_again_at_once(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED, "no luck")
    fence = await begun_at(tidy, TICK + 7 * SECONDS)
    now = TICK + 10 * SECONDS + MICROSECOND
    await tidy.clock.set(now)
    await finish(tidy, fence, ABANDONED, "stopping")
    assert await the_job(tidy) == job(
        last_start_at=TICK + 7 * SECONDS,
        last_duration_microseconds=3 * SECOND + 1,
        run_count=2,
        failures_in_a_row=1,
        last_error="no luck",
    )
    assert (await runs(tidy))[0] == run(
        2, started_at=TICK + 7 * SECONDS, ended_at=now, outcome="abandoned", error="stopping"
    )
    found = await begin(tidy.store, "tidy", "two")
    assert (found.found, found.tick_at, found.reclaimed) == (BeginFound.BEGUN, TICK, None)


@pytest.mark.parametrize("outcome", list(RunOutcome))
async def test_finish_run__releases_the_lock(tidy: Database, outcome: RunOutcome) -> None:
    fence = await begun_at(tidy, TICK)
    now = TICK + 120 * SECONDS - MICROSECOND
    await tidy.clock.set(now)
    await finish(tidy, fence, outcome)
    (lock,) = await tidy.store.list_leases(None, 9)
    assert (lock.fence, lock.released, lock.held, lock.expires_at) == (fence, True, False, now)
    assert await table(tidy, "lease_history") == []


@pytest.mark.parametrize("outcome", list(RunOutcome))
@pytest.mark.parametrize("repeated", list(RunOutcome))
async def test_finish_run__is_done_once_when_repeated(
    tidy: Database, outcome: RunOutcome, repeated: RunOutcome
) -> None:
    fence = await begun_at(tidy, TICK)
    await finish(tidy, fence, outcome, "the first time")
    before = await all_tables(tidy)
    await tidy.clock.set(TICK + 300 * SECONDS)
    await finish(tidy, fence, repeated, "again")
    assert await all_tables(tidy) == before


async def test_finish_run__is_too_late_at_the_very_instant_the_lock_runs_out(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK + 120 * SECONDS)
    with pytest.raises(LeaseLost):
        await finish(tidy, fence, SUCCEEDED)


async def test_finish_run__is_too_late_for_what_lost_its_lock_by_request(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.store.resign_lease("job:tidy")
    with pytest.raises(LeaseLost):
        await finish(tidy, fence, SUCCEEDED)


async def test_finish_run__is_too_late_for_what_was_reclaimed(tidy: Database) -> None:
    """Also once the next run has finished, and is the last of the lock."""
    fence = await begun_at(tidy, TICK)
    second = await begun_at(tidy, TICK + 120 * SECONDS)
    with pytest.raises(LeaseLost):
        await finish(tidy, fence, SUCCEEDED)
    await finish(tidy, second, FAILED)
    with pytest.raises(LeaseLost):
        await finish(tidy, fence, SUCCEEDED)


async def test_finish_run__after_the_next_tick_leaves_that_one_due(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK + 61 * SECONDS)
    await finish(tidy, fence, SUCCEEDED)
    assert (await begin(tidy.store, "tidy")).tick_at == TICK + 60 * SECONDS


async def test_finish_run__goes_by_an_interval_that_was_changed_meanwhile(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.store.register_jobs([every(13 * SECOND)])
    await tidy.clock.set(TICK + 2 * SECONDS)
    await finish(tidy, fence, SUCCEEDED)
    assert (await the_job(tidy)).next_run_at == grid_after(13 * SECOND, TICK)


async def test_finish_run__never_moves_the_next_run_back(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), SUCCEEDED)
    await tidy.store.command_job("tidy", JobCommand.RUN)
    await finish(tidy, await begun_at(tidy, NOON - 3_600 * SECONDS), SUCCEEDED)
    assert (await the_job(tidy)).next_run_at == TICK + 60 * SECONDS


async def test_finish_run__takes_a_clock_that_was_stepped_back_meanwhile(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK - 3 * SECONDS)
    await finish(tidy, fence, SUCCEEDED)
    found = await the_job(tidy)
    assert (found.last_duration_microseconds, found.next_run_at) == (-3 * SECOND, TICK + 60 * SECONDS)


@pytest.mark.parametrize(("outcome", "requested_at"), [(SUCCEEDED, None), (FAILED, None), (ABANDONED, NOON)], ids=str)
async def test_finish_run__answers_the_request_it_was_for(
    tidy: Database, outcome: RunOutcome, requested_at: datetime | None
) -> None:
    """An abandoned one has done nothing."""
    await tidy.store.command_job("tidy", JobCommand.RUN)
    await finish(tidy, await begun_at(tidy, TICK), outcome)
    assert (await the_job(tidy)).requested_at == requested_at


@pytest.mark.parametrize("outcome", list(RunOutcome))
async def test_finish_run__leaves_a_request_that_came_meanwhile(tidy: Database, outcome: RunOutcome) -> None:
    await tidy.store.command_job("tidy", JobCommand.RUN)
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK + SECONDS)
    await tidy.store.command_job("tidy", JobCommand.RUN)
    await finish(tidy, fence, outcome)
    assert (await the_job(tidy)).requested_at == TICK + SECONDS


async def test_finish_run__keeps_an_error_of_any_letters(tidy: Database) -> None:
    error = "äöü 漢字 🎟 ' \\ %s\n" + "x" * (ERROR_MAX - 19)
    await finish(tidy, await begun_at(tidy, TICK), FAILED, error)
    assert ((await runs(tidy))[0].error, (await the_job(tidy)).last_error) == (error, error)


async def test_finish_run__refuses_a_lock_that_is_no_run_of_its_job(tidy: Database) -> None:
    """Of somebody who took the lock without a run, or of a leader: neither may lose its lease by it."""
    for name in ("job:tidy", "leader"):
        fence = await held(tidy.store, name)
        before = await all_tables(tidy)
        with pytest.raises(LeaseLost):
            await finish(tidy, fence, SUCCEEDED)
        assert await all_tables(tidy) == before


# Commands


async def test_command_job__knows_no_such_job(tidy: Database) -> None:
    before = await all_tables(tidy)
    for command in JobCommand:
        assert await tidy.store.command_job("Tidy", command) is None
    assert await all_tables(tidy) == before


async def test_command_job__run_asks_for_a_run_now(tidy: Database) -> None:
    assert await tidy.store.command_job("tidy", JobCommand.RUN) == job(requested_at=NOON)
    assert await the_job(tidy) == job(requested_at=NOON)


async def test_command_job__run_ends_the_pause_after_a_failure_and_forgets_nothing(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED, "no luck")
    before = await the_job(tidy)
    await tidy.clock.set(TICK + SECONDS)
    expected = replace(before, requested_at=TICK + SECONDS, retry_at=None)
    assert await tidy.store.command_job("tidy", JobCommand.RUN) == expected
    assert (await begin(tidy.store, "tidy")).found is BeginFound.BEGUN


async def test_command_job__pause_forgets_what_was_asked_for_and_has_not_begun(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.RUN)
    assert await tidy.store.command_job("tidy", JobCommand.PAUSE) == job(paused=True)


async def test_command_job__pause_lets_a_run_end_that_is_under_way(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.store.command_job("tidy", JobCommand.PAUSE)
    await finish(tidy, fence, SUCCEEDED)
    found = await the_job(tidy)
    assert (found.paused, found.last_success_at, found.next_run_at) == (True, TICK, TICK + 60 * SECONDS)


async def test_command_job__resume_runs_at_once_what_was_missed(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.PAUSE)
    await tidy.clock.set(TICK + 600 * SECONDS)
    assert await tidy.store.command_job("tidy", JobCommand.RESUME) == job()
    assert (await begin(tidy.store, "tidy")).tick_at == TICK


async def test_command_job__resume_leaves_a_request_and_a_pause_after_a_failure(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED)
    await tidy.store.command_job("tidy", JobCommand.PAUSE)
    assert await tidy.store.command_job("tidy", JobCommand.RESUME) == replace(
        await the_job(tidy), paused=False, retry_at=TICK + 7 * SECONDS
    )
    await tidy.store.command_job("tidy", JobCommand.RUN)
    assert (await tidy.store.command_job("tidy", JobCommand.RESUME)) == await the_job(tidy)
    assert (await the_job(tidy)).requested_at == TICK


async def test_command_job__touches_no_other_job(tidy: Database) -> None:
    await tidy.store.register_jobs([every(MINUTE, "tidy2")])
    before = await the_job(tidy, "tidy2")
    for command in (JobCommand.RUN, JobCommand.PAUSE):
        await tidy.store.command_job("tidy", command)
    assert await the_job(tidy, "tidy2") == before


async def test_listen__is_told_of_what_was_asked_for_where_the_engine_can_tell(tidy: Database) -> None:
    other = sibling(tidy)
    woken = asyncio.Event()
    other.listen(Topic.BOARD, woken.set)
    await other.read_board([])
    for command in (JobCommand.RUN, JobCommand.RESUME):
        woken.clear()
        await tidy.store.command_job("tidy", command)
        if tidy.engine == "postgresql":
            await asyncio.wait_for(woken.wait(), 5)
    woken.clear()
    await finish(tidy, await begun(tidy.store, "tidy"), ABANDONED)
    if tidy.engine == "postgresql":
        await asyncio.wait_for(woken.wait(), 5)
    await other.close()


# Reads


async def test_list_jobs__shows_them_page_by_page(database: Database) -> None:
    names = ("watch", "expire-sessions", "prune")
    await database.store.register_jobs([every(MINUTE, name) for name in names])
    found = [replace(job(), name=name) for name in sorted(names)]
    assert await database.store.list_jobs(None, 9) == found
    assert await database.store.list_jobs(None, 2) == found[:2]
    assert await database.store.list_jobs("prune", 2) == found[2:]
    assert await database.store.list_jobs("watch", 2) == []


async def test_list_runs__shows_the_newest_first_page_by_page(tidy: Database) -> None:
    await tidy.store.register_jobs([JobSettings("other", MINUTE, TIMEOUT)])
    for number in range(4):
        await finish(tidy, await begun_at(tidy, TICK + number * 60 * SECONDS), SUCCEEDED)
    await begun(tidy.store, "other")
    assert [one.epoch for one in await tidy.store.list_runs("tidy", None, 9) or ()] == [4, 3, 2, 1]
    assert [one.epoch for one in await tidy.store.list_runs("tidy", None, 2) or ()] == [4, 3]
    assert [one.epoch for one in await tidy.store.list_runs("tidy", 3, 2) or ()] == [2, 1]
    assert await tidy.store.list_runs("tidy", 1, 2) == []


async def test_list_runs__tells_a_job_without_runs_from_no_job(tidy: Database) -> None:
    assert await tidy.store.list_runs("tidy", None, 9) == []
    assert await tidy.store.list_runs("Tidy", None, 9) is None
