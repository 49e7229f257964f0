"""Jobs and their runs, on every engine: runs become due at the ticks of the grid, exact to the microsecond, and a job
has at most one run at a time.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.domain.job_grid import RETRY_MAX_SECONDS, grid_after, grid_at
from tenure.domain.jobs import (
    BeginRunOutcome,
    BeginRunResult,
    Job,
    JobCommand,
    JobRun,
    JobSettings,
    RunOutcome,
)
from tenure.domain.leases import Fence
from tenure.errors import ERROR_MAX, LeaseLost
from tenure.ids import new_id
from tenure.store.contract import Store, Topic
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import (
    MICROSECOND,
    TIMEOUT,
    acquire_free_lease,
    all_tables,
    begin_due_run,
    begin_run,
    hold_lease,
    job_every,
    read_table,
    sibling_store,
)
from tests.support.open_requests import NOON, SECOND

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MINUTE = 60 * SECOND
TICK = datetime(2041, 3, 1, 12, 1, tzinfo=UTC)
"""The first tick after noon of a job that runs every minute."""
IDLE = BeginRunResult(BeginRunOutcome.IDLE)
HELD = BeginRunResult(BeginRunOutcome.HELD)
SUCCEEDED, FAILED, ABANDONED = RunOutcome.SUCCEEDED, RunOutcome.FAILED, RunOutcome.ABANDONED


@pytest.fixture
async def tidy(database: Database) -> Database:
    """A database with one job, `tidy`, which was registered at noon and runs every minute."""
    await database.store.register_jobs([job_every(MINUTE)])
    return database


def job(**given: Any) -> Job:
    """The expected job `tidy` after its registration at noon, except for the fields in `given`."""
    values: dict[str, Any] = {"next_run_at": TICK, "run_count": 0, "failures_in_a_row": 0, "paused": False}
    return Job(name="tidy", interval_microseconds=MINUTE, lock_timeout_microseconds=TIMEOUT, **{**values, **given})


def run(epoch: int = 1, **given: Any) -> JobRun:
    """The expected run of `tidy` that began at TICK, except for the fields in `given`."""
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
    return await begin_due_run(database.store, "tidy", holder)


async def finish(database: Database, fence: Fence, outcome: RunOutcome, error: str | None = None) -> None:
    await database.store.finish_run(fence, outcome, error, 7 * SECOND)


# Registering


async def test_register_jobs__creates_row_for_each_job(database: Database) -> None:
    await database.store.register_jobs(
        [job_every(MINUTE), job_every(7 * SECOND, "watch", timeout=9 * SECOND, paused=True)]
    )
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
        await database.store.register_jobs([job_every(length, f"{year}-{length}") for length in INTERVALS])
        expected |= {f"{year}-{length}": grid_after(length, instant) for length in INTERVALS}
    found = {one.name: one.next_run_at for one in await database.store.list_jobs(None, 500)}
    assert found == expected


async def test_register_jobs__changes_nothing_when_repeated(tidy: Database) -> None:
    await begun_at(tidy, TICK)
    before = await all_tables(tidy)
    await tidy.clock.set(TICK + 600 * SECONDS)
    await tidy.store.register_jobs([job_every(MINUTE)])
    assert await all_tables(tidy) == before


async def test_register_jobs__applies_paused_setting_to_new_jobs_only(tidy: Database) -> None:
    await tidy.store.register_jobs([job_every(MINUTE, paused=True)])
    assert not (await the_job(tidy)).paused
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    await tidy.store.register_jobs([job_every(MINUTE)])
    assert (await the_job(tidy)).paused


@pytest.mark.parametrize(
    ("interval", "next_run_at"),
    [
        (10 * SECOND, datetime(2041, 3, 1, 12, 0, 10, tzinfo=UTC)),
        (3_600 * SECOND, TICK),  # the tick of the old interval is earlier, so it is kept
        (1_000_003, grid_after(1_000_003, NOON)),
    ],
)
async def test_register_jobs__moves_next_run_earlier_but_never_later(
    tidy: Database, interval: int, next_run_at: datetime
) -> None:
    await tidy.store.register_jobs([job_every(interval)])
    assert await the_job(tidy) == replace(job(), interval_microseconds=interval, next_run_at=next_run_at)


async def test_register_jobs__keeps_missed_tick_when_interval_changes(tidy: Database) -> None:
    await tidy.clock.set(TICK + 600 * SECONDS)
    await tidy.store.register_jobs([job_every(10 * SECOND)])
    assert (await the_job(tidy)).next_run_at == TICK


async def test_register_jobs__new_lock_timeout_changes_nothing_else(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED, "no luck")
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    before = await the_job(tidy)
    await tidy.clock.set(TICK + 600 * SECONDS)
    await tidy.store.register_jobs([job_every(MINUTE, timeout=9 * SECOND)])
    assert await the_job(tidy) == replace(before, lock_timeout_microseconds=9 * SECOND)


async def test_register_jobs__creates_each_job_once_from_concurrent_stores(database: Database) -> None:
    stores = [sibling_store(database) for _ in range(4)]
    settings = [job_every(MINUTE, f"job {number}") for number in range(20)]
    orders = [settings, settings[::-1], settings[10:] + settings[:10], settings[5:] + settings[:5]]
    await asyncio.gather(*(store.register_jobs(order) for store, order in zip(stores, orders, strict=True)))
    for store in stores:
        await store.close()
    assert len(await database.store.list_jobs(None, 500)) == 20


# Beginning a run


async def test_begin_run__returns_idle_for_unknown_job(tidy: Database) -> None:
    await tidy.clock.set(TICK)
    before = await all_tables(tidy)
    assert await begin_run(tidy.store, "Tidy") == IDLE
    assert await all_tables(tidy) == before


async def test_begin_run__returns_idle_before_tick(tidy: Database) -> None:
    before = await all_tables(tidy)
    await tidy.clock.set(TICK - MICROSECOND)
    assert await begin_run(tidy.store, "tidy") == IDLE
    assert await all_tables(tidy) == before


async def test_begin_run__acquires_lock_and_records_run_at_tick(tidy: Database) -> None:
    await tidy.clock.set(TICK)
    assert await begin_run(tidy.store, "tidy", "one") == BeginRunResult(
        BeginRunOutcome.BEGUN,
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
    assert await read_table(tidy, "lease_history") == []


@pytest.mark.parametrize("holder", ["one", "two"])
async def test_begin_run__returns_held_until_lock_expires(tidy: Database, holder: str) -> None:
    await begun_at(tidy, TICK, "one")
    before = await all_tables(tidy)
    await tidy.clock.set(TICK + 120 * SECONDS - MICROSECOND)
    assert await begin_run(tidy.store, "tidy", holder) == HELD
    assert await all_tables(tidy) == before


async def test_begin_run__returns_same_run_when_repeated(tidy: Database) -> None:
    attempt = new_id()
    await tidy.clock.set(TICK)
    first = await tidy.store.begin_run("tidy", "one", attempt)
    before = await all_tables(tidy)
    await tidy.clock.set(TICK + 3 * SECONDS)
    assert await tidy.store.begin_run("tidy", "one", attempt) == first
    assert await all_tables(tidy) == before


async def test_begin_run__returns_same_run_when_repeated_after_pause(tidy: Database) -> None:
    """The first call has acquired the lock. If the repeated call returned `idle`, the holder would not know that it has
    the lock, and the job would not run until the lock expires.
    """
    attempt = new_id()
    await tidy.clock.set(TICK)
    first = await tidy.store.begin_run("tidy", "one", attempt)
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    assert await tidy.store.begin_run("tidy", "one", attempt) == first


async def test_begin_run__returns_same_run_when_repeated_after_clock_step_back(tidy: Database) -> None:
    attempt = new_id()
    await tidy.clock.set(TICK)
    first = await tidy.store.begin_run("tidy", "one", attempt)
    await tidy.clock.set(TICK - 300 * SECONDS)
    assert await tidy.store.begin_run("tidy", "one", attempt) == first


async def test_begin_run__returns_held_when_lock_was_acquired_without_run(tidy: Database) -> None:
    await hold_lease(tidy.store, "job:tidy")
    before = await all_tables(tidy)
    await tidy.clock.set(TICK)
    assert await begin_run(tidy.store, "tidy") == HELD
    assert await all_tables(tidy) == before


async def test_begin_run__returns_idle_while_paused(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    await tidy.clock.set(TICK)
    assert await begin_run(tidy.store, "tidy") == IDLE


async def test_begin_run__begins_requested_run_before_tick(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    found = await begin_run(tidy.store, "tidy")
    assert (found.found, found.started_at, found.tick_at) == (BeginRunOutcome.BEGUN, NOON, None)


async def test_begin_run__begins_requested_run_while_paused(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    assert (await begin_run(tidy.store, "tidy")).found is BeginRunOutcome.BEGUN


async def test_begin_run__runs_missed_ticks_once(tidy: Database) -> None:
    late = TICK + 5 * 60 * SECONDS + 3 * SECONDS
    await tidy.clock.set(late)
    found = await begin_run(tidy.store, "tidy")
    assert (found.tick_at, found.started_at) == (TICK, late)
    assert found.fence is not None
    await finish(tidy, found.fence, SUCCEEDED)
    assert await begin_run(tidy.store, "tidy") == IDLE
    assert (await the_job(tidy)).next_run_at == TICK + 6 * 60 * SECONDS


async def test_begin_run__waits_for_exact_retry_delay_after_failure(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED)
    await tidy.clock.set(TICK + 7 * SECONDS - MICROSECOND)
    assert await begin_run(tidy.store, "tidy") == IDLE
    await tidy.clock.set(TICK + 7 * SECONDS)
    found = await begin_run(tidy.store, "tidy")
    assert (found.found, found.tick_at, found.failures_in_a_row) == (BeginRunOutcome.BEGUN, TICK, 1)


async def test_begin_run__reclaims_run_of_dead_holder(tidy: Database) -> None:
    await begun_at(tidy, TICK, "one")
    now = TICK + 120 * SECONDS
    await tidy.clock.set(now)
    assert await begin_run(tidy.store, "tidy", "two") == BeginRunResult(
        BeginRunOutcome.BEGUN,
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
    over = run(holder="one", ended_at=now, outcome="abandoned", error="its lock expired")
    assert await runs(tidy) == [run(2, holder="two", started_at=now), over]


async def test_begin_run__records_lock_expiry_as_end_of_reclaimed_run(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK + 50 * SECONDS)
    await tidy.store.renew_lease(fence, TIMEOUT)
    await tidy.clock.set(TICK + 170 * SECONDS - MICROSECOND)
    assert await begin_run(tidy.store, "tidy", "two") == HELD
    await begun_at(tidy, TICK + 999 * SECONDS)
    assert (await runs(tidy))[1].ended_at == TICK + 170 * SECONDS


async def test_begin_run__reclaims_run_immediately_after_resign(tidy: Database) -> None:
    await begun_at(tidy, TICK, "one")
    now = TICK + 9 * SECONDS
    await tidy.clock.set(now)
    await tidy.store.resign_lease("job:tidy", ACTOR)
    found = await begin_run(tidy.store, "tidy", "two")
    assert (found.fence, found.reclaimed) == (Fence("job:tidy", "two", 2), Fence("job:tidy", "one", 1))
    over = run(holder="one", ended_at=now, outcome="abandoned", error="its lock was resigned")
    assert (await runs(tidy))[1] == over


async def test_begin_run__reclaims_nothing_when_expired_lock_had_no_run(tidy: Database) -> None:
    """The first run finishes. Then the lock is acquired without a run, and expires."""
    await finish(tidy, await begun_at(tidy, TICK), SUCCEEDED)
    await acquire_free_lease(tidy.store, "job:tidy", "two", SECOND)
    fence = await begun_at(tidy, TICK + 60 * SECONDS, "three")
    assert fence.epoch == 3
    assert (await the_job(tidy)).failures_in_a_row == 0


async def test_begin_run__uses_changed_lock_timeout(tidy: Database) -> None:
    await tidy.store.register_jobs([job_every(MINUTE, timeout=9 * SECOND)])
    await tidy.clock.set(TICK)
    found = await begin_run(tidy.store, "tidy")
    assert (found.lock_timeout_microseconds, found.expires_at) == (9 * SECOND, TICK + 9 * SECONDS)


async def test_begin_run__begins_one_run_among_concurrent_stores(tidy: Database) -> None:
    stores = [sibling_store(tidy) for _ in range(6)]
    await tidy.clock.set(TICK)
    found = await asyncio.gather(*(begin_run(store, "tidy", f"holder {n}") for n, store in enumerate(stores)))
    for store in stores:
        await store.close()
    assert sorted(one.found.value for one in found) == ["begun"] + ["held"] * 5
    assert len(await runs(tidy)) == 1


# Beginning a run after the clock was stepped back


async def done_at(database: Database, instant: datetime) -> None:
    """Begins a run at this instant, and finishes it immediately with success."""
    await finish(database, await begun_at(database, instant), SUCCEEDED)


STEPPED_BACK = TICK - 600 * SECONDS + 7 * SECONDS
"""Seven seconds after the tick that is ten intervals before TICK."""
AGAIN = TICK - 600 * SECONDS
"""The last tick before STEPPED_BACK."""


async def test_begin_run__begins_at_once_after_clock_step_back_of_several_intervals(tidy: Database) -> None:
    await done_at(tidy, TICK)
    await tidy.clock.set(STEPPED_BACK)
    assert await begin_run(tidy.store, "tidy", "one") == BeginRunResult(
        BeginRunOutcome.BEGUN,
        Fence("job:tidy", "one", 2),
        started_at=STEPPED_BACK,
        expires_at=STEPPED_BACK + 120 * SECONDS,
        tick_at=AGAIN,
        lock_timeout_microseconds=TIMEOUT,
        failures_in_a_row=0,
        reclaimed=None,
        clock_behind=TICK + 60 * SECONDS,
    )
    assert await the_job(tidy) == job(
        next_run_at=AGAIN,
        last_start_at=STEPPED_BACK,
        last_success_at=TICK,
        last_duration_microseconds=0,
        run_count=2,
    )


async def test_begin_run__runs_tick_by_tick_after_clock_step_back(tidy: Database) -> None:
    await done_at(tidy, TICK)
    await done_at(tidy, STEPPED_BACK)
    assert (await the_job(tidy)).next_run_at == AGAIN + 60 * SECONDS
    for minutes in range(1, 12):
        tick_at = AGAIN + minutes * 60 * SECONDS
        await tidy.clock.set(tick_at - MICROSECOND)
        assert await begin_run(tidy.store, "tidy") == IDLE
        await tidy.clock.set(tick_at)
        found = await begin_run(tidy.store, "tidy")
        assert (found.tick_at, found.clock_behind) == (tick_at, None)
        assert found.fence is not None
        await finish(tidy, found.fence, SUCCEEDED)


@pytest.mark.parametrize("seconds", [0.000_001, 7, 59.999_999])
async def test_begin_run__runs_no_tick_twice_after_clock_step_back_of_less_than_an_interval(
    tidy: Database, seconds: float
) -> None:
    """The clock is stepped back at different points of the interval after TICK. So the new time is before TICK in some
    cases, and at or after TICK in others.
    """
    await done_at(tidy, TICK)
    before = await all_tables(tidy)
    for begun_after in (0, 0.000_001, 3, 59.999_999):
        await tidy.clock.set(TICK + (begun_after - seconds) * SECONDS)
        assert await begin_run(tidy.store, "tidy") == IDLE
    assert await all_tables(tidy) == before
    await tidy.clock.set(TICK + 60 * SECONDS)
    found = await begin_run(tidy.store, "tidy")
    assert (found.tick_at, found.clock_behind) == (TICK + 60 * SECONDS, None)


async def test_begin_run__moves_tick_back_if_it_is_more_than_two_intervals_ahead(tidy: Database) -> None:
    await tidy.clock.set(TICK - 120 * SECONDS)
    assert await begin_run(tidy.store, "tidy") == IDLE
    await tidy.clock.set(TICK - 120 * SECONDS - MICROSECOND)
    found = await begin_run(tidy.store, "tidy")
    assert (found.tick_at, found.clock_behind) == (TICK - 180 * SECONDS, TICK)


async def test_begin_run__runs_each_tick_once_on_two_stores_after_clock_step_back(tidy: Database) -> None:
    await done_at(tidy, TICK)
    stores = [sibling_store(tidy) for _ in range(2)]
    for minutes in range(3):
        await tidy.clock.set(STEPPED_BACK + minutes * 60 * SECONDS)
        found = [one for _ in range(3) for one in await asyncio.gather(*map(run_now, stores))]
        assert [one.tick_at for one in found if one.fence is not None] == [AGAIN + minutes * 60 * SECONDS]
        assert sum(one.clock_behind is not None for one in found) == (minutes == 0)
    for store in stores:
        await store.close()


async def run_now(store: Store) -> BeginRunResult:
    """Runs the job if it is due and no other store runs it."""
    found = await begin_run(store, "tidy", f"holder {id(store)}")
    if found.fence is not None:
        await store.finish_run(found.fence, SUCCEEDED, None, 0)
    return found


async def test_begin_run__waits_for_retry_delay_when_run_after_clock_step_back_failed(tidy: Database) -> None:
    await done_at(tidy, TICK)
    await finish(tidy, await begun_at(tidy, STEPPED_BACK), FAILED, "no luck")
    await tidy.clock.set(STEPPED_BACK + 7 * SECONDS - MICROSECOND)
    assert await begin_run(tidy.store, "tidy") == IDLE
    await tidy.clock.set(STEPPED_BACK + 7 * SECONDS)
    found = await begin_run(tidy.store, "tidy")
    assert (found.tick_at, found.failures_in_a_row, found.clock_behind) == (AGAIN, 1, None)


async def test_begin_run__moves_tick_back_for_requested_run_after_clock_step_back(tidy: Database) -> None:
    await done_at(tidy, TICK)
    await tidy.clock.set(STEPPED_BACK)
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    found = await begin_run(tidy.store, "tidy")
    assert (found.tick_at, found.clock_behind) == (AGAIN, TICK + 60 * SECONDS)
    assert found.fence is not None
    await finish(tidy, found.fence, SUCCEEDED)
    after = await the_job(tidy)
    assert (after.requested_at, after.next_run_at) == (None, AGAIN + 60 * SECONDS)


async def test_begin_run__moves_tick_of_paused_job_back_only_after_resume(tidy: Database) -> None:
    await done_at(tidy, TICK)
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    await tidy.clock.set(STEPPED_BACK)
    assert await begin_run(tidy.store, "tidy") == IDLE
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    found = await begin_run(tidy.store, "tidy")
    assert (found.found, found.tick_at, found.clock_behind) == (BeginRunOutcome.BEGUN, None, None)
    assert found.fence is not None
    await finish(tidy, found.fence, SUCCEEDED)
    assert (await the_job(tidy)).next_run_at == TICK + 60 * SECONDS
    await tidy.store.command_job("tidy", JobCommand.RESUME, ACTOR)
    found = await begin_run(tidy.store, "tidy")
    assert (found.tick_at, found.clock_behind) == (AGAIN, TICK + 60 * SECONDS)


async def test_begin_run__ignores_retry_time_further_ahead_than_longest_retry_delay(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    longest = RETRY_MAX_SECONDS * SECONDS
    await tidy.store.finish_run(fence, FAILED, None, RETRY_MAX_SECONDS * SECOND + 1)
    assert (await the_job(tidy)).retry_at == TICK + longest + MICROSECOND
    await tidy.clock.set(TICK + MICROSECOND)
    assert await begin_run(tidy.store, "tidy") == IDLE
    await tidy.clock.set(TICK)
    assert (await begin_run(tidy.store, "tidy")).tick_at == TICK


async def test_begin_run__waits_for_tick_and_retry_delay_after_short_clock_step_back(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK + 50 * SECONDS), FAILED)
    await tidy.clock.set(TICK - 20 * SECONDS)
    assert await begin_run(tidy.store, "tidy") == IDLE
    await tidy.clock.set(TICK)
    assert await begin_run(tidy.store, "tidy") == IDLE, "`retry_at` is less than 60 s ahead, so the job waits for it"
    await tidy.clock.set(TICK + 57 * SECONDS)
    assert (await begin_run(tidy.store, "tidy")).tick_at == TICK


async def test_begin_run__reports_clock_step_back_again_when_repeated(tidy: Database) -> None:
    """The answer to the first call may be lost, but the caller must still log the clock step back."""
    await done_at(tidy, TICK)
    attempt = new_id()
    await tidy.clock.set(STEPPED_BACK)
    first = await tidy.store.begin_run("tidy", "one", attempt)
    before = await all_tables(tidy)
    assert first.clock_behind is not None
    assert await tidy.store.begin_run("tidy", "one", attempt) == first
    assert await all_tables(tidy) == before


# Finishing a run


async def test_finish_run__success_moves_next_run_to_next_tick(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK - MICROSECOND + 90 * SECONDS), SUCCEEDED)
    started_at = TICK - MICROSECOND + 90 * SECONDS
    assert await the_job(tidy) == job(
        next_run_at=TICK + 120 * SECONDS,
        last_start_at=started_at,
        last_success_at=started_at,
        last_duration_microseconds=0,
        run_count=1,
    )


async def test_finish_run__success_clears_failures_and_last_error(tidy: Database) -> None:
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


async def test_finish_run__failure_keeps_tick_and_schedules_retry(tidy: Database) -> None:
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


async def test_finish_run__repeated_failure_increments_count_and_stores_last_error(tidy: Database) -> None:
    for number in range(3):
        await finish(tidy, await begun_at(tidy, TICK + number * 8 * SECONDS), FAILED, f"no luck {number}")
    found = await the_job(tidy)
    assert (found.failures_in_a_row, found.last_error, found.run_count) == (3, "no luck 2", 3)
    assert (found.next_run_at, found.retry_at) == (TICK, TICK + 23 * SECONDS)


async def test_finish_run__abandoned_run_can_begin_again_immediately(tidy: Database) -> None:
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
    found = await begin_run(tidy.store, "tidy", "two")
    assert (found.found, found.tick_at, found.reclaimed) == (BeginRunOutcome.BEGUN, TICK, None)


@pytest.mark.parametrize("outcome", list(RunOutcome))
async def test_finish_run__releases_lock(tidy: Database, outcome: RunOutcome) -> None:
    fence = await begun_at(tidy, TICK)
    now = TICK + 120 * SECONDS - MICROSECOND
    await tidy.clock.set(now)
    await finish(tidy, fence, outcome)
    (lock,) = await tidy.store.list_leases(None, 9)
    assert (lock.fence, lock.released, lock.held, lock.expires_at) == (fence, True, False, now)
    assert await read_table(tidy, "lease_history") == []


@pytest.mark.parametrize("outcome", list(RunOutcome))
@pytest.mark.parametrize("repeated", list(RunOutcome))
async def test_finish_run__changes_nothing_when_repeated(
    tidy: Database, outcome: RunOutcome, repeated: RunOutcome
) -> None:
    fence = await begun_at(tidy, TICK)
    await finish(tidy, fence, outcome, "the first time")
    before = await all_tables(tidy)
    await tidy.clock.set(TICK + 300 * SECONDS)
    await finish(tidy, fence, repeated, "again")
    assert await all_tables(tidy) == before


async def test_finish_run__raises_lease_lost_at_instant_of_lock_expiry(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK + 120 * SECONDS)
    with pytest.raises(LeaseLost):
        await finish(tidy, fence, SUCCEEDED)


async def test_finish_run__raises_lease_lost_after_resign(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.store.resign_lease("job:tidy", ACTOR)
    with pytest.raises(LeaseLost):
        await finish(tidy, fence, SUCCEEDED)


async def test_finish_run__raises_lease_lost_after_reclaim(tidy: Database) -> None:
    """The method raises even after the next run has finished and released the lock."""
    fence = await begun_at(tidy, TICK)
    second = await begun_at(tidy, TICK + 120 * SECONDS)
    with pytest.raises(LeaseLost):
        await finish(tidy, fence, SUCCEEDED)
    await finish(tidy, second, FAILED)
    with pytest.raises(LeaseLost):
        await finish(tidy, fence, SUCCEEDED)


async def test_finish_run__keeps_next_tick_due_when_run_overlaps_it(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK + 61 * SECONDS)
    await finish(tidy, fence, SUCCEEDED)
    assert (await begin_run(tidy.store, "tidy")).tick_at == TICK + 60 * SECONDS


async def test_finish_run__uses_interval_changed_during_run(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.store.register_jobs([job_every(13 * SECOND)])
    await tidy.clock.set(TICK + 2 * SECONDS)
    await finish(tidy, fence, SUCCEEDED)
    assert (await the_job(tidy)).next_run_at == grid_after(13 * SECOND, TICK)


async def test_finish_run__never_moves_next_run_back(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), SUCCEEDED)
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    await finish(tidy, await begun_at(tidy, TICK - 59 * SECONDS), SUCCEEDED)
    assert (await the_job(tidy)).next_run_at == TICK + 60 * SECONDS


@pytest.mark.parametrize("seconds", [3, 3_600])
@pytest.mark.parametrize("outcome", list(RunOutcome))
async def test_finish_run__accepts_clock_step_back_during_run(
    tidy: Database, outcome: RunOutcome, seconds: int
) -> None:
    """The duration is 0, and `next_run_at` is the same as if the clock had been stepped back after the run."""
    fence = await begun_at(tidy, TICK)
    now = TICK - seconds * SECONDS
    await tidy.clock.set(now)
    await finish(tidy, fence, outcome)
    found = await the_job(tidy)
    assert found.last_duration_microseconds == 0
    assert found.next_run_at == (TICK + 60 * SECONDS if outcome is SUCCEEDED else TICK)
    assert found.retry_at == (now + 7 * SECONDS if outcome is FAILED else None)
    await tidy.clock.set(now + 8 * SECONDS)
    again = await begin_run(tidy.store, "tidy")
    due_by_its_tick = TICK if outcome is not SUCCEEDED and seconds == 3 else None
    assert again.tick_at == (grid_at(MINUTE, now + 8 * SECONDS) if seconds == 3_600 else due_by_its_tick)


@pytest.mark.parametrize(("outcome", "requested_at"), [(SUCCEEDED, None), (FAILED, None), (ABANDONED, NOON)], ids=str)
async def test_finish_run__clears_request_unless_abandoned(
    tidy: Database, outcome: RunOutcome, requested_at: datetime | None
) -> None:
    """An abandoned run was interrupted, so the requested run still has to be done."""
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    await finish(tidy, await begun_at(tidy, TICK), outcome)
    assert (await the_job(tidy)).requested_at == requested_at


@pytest.mark.parametrize("outcome", list(RunOutcome))
async def test_finish_run__keeps_request_made_during_run(tidy: Database, outcome: RunOutcome) -> None:
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    fence = await begun_at(tidy, TICK)
    await tidy.clock.set(TICK + SECONDS)
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    await finish(tidy, fence, outcome)
    assert (await the_job(tidy)).requested_at == TICK + SECONDS


async def test_finish_run__stores_error_text_verbatim(tidy: Database) -> None:
    error = "äöü 漢字 🎟 ' \\ %s\n" + "x" * (ERROR_MAX - 19)
    await finish(tidy, await begun_at(tidy, TICK), FAILED, error)
    assert ((await runs(tidy))[0].error, (await the_job(tidy)).last_error) == (error, error)


async def test_finish_run__raises_lease_lost_for_lease_without_run(tidy: Database) -> None:
    """The call must not release the lease of a leader, or a lock without a run."""
    for name in ("job:tidy", "leader"):
        fence = await hold_lease(tidy.store, name)
        before = await all_tables(tidy)
        with pytest.raises(LeaseLost):
            await finish(tidy, fence, SUCCEEDED)
        assert await all_tables(tidy) == before


# Commands


async def test_command_job__returns_none_for_unknown_job(tidy: Database) -> None:
    before = await all_tables(tidy)
    for command in JobCommand:
        assert await tidy.store.command_job("Tidy", command, ACTOR) is None
    assert await all_tables(tidy) == before


async def test_command_job__run_requests_run_now(tidy: Database) -> None:
    assert await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR) == job(requested_at=NOON)
    assert await the_job(tidy) == job(requested_at=NOON)


async def test_command_job__run_clears_retry_delay_and_keeps_failures(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED, "no luck")
    before = await the_job(tidy)
    await tidy.clock.set(TICK + SECONDS)
    expected = replace(before, requested_at=TICK + SECONDS, retry_at=None)
    assert await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR) == expected
    assert (await begin_run(tidy.store, "tidy")).found is BeginRunOutcome.BEGUN


async def test_command_job__pause_clears_request_that_has_not_begun(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    assert await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR) == job(paused=True)


async def test_command_job__pause_lets_current_run_finish(tidy: Database) -> None:
    fence = await begun_at(tidy, TICK)
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    await finish(tidy, fence, SUCCEEDED)
    found = await the_job(tidy)
    assert (found.paused, found.last_success_at, found.next_run_at) == (True, TICK, TICK + 60 * SECONDS)


async def test_command_job__resume_makes_missed_tick_due_now(tidy: Database) -> None:
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    await tidy.clock.set(TICK + 600 * SECONDS)
    assert await tidy.store.command_job("tidy", JobCommand.RESUME, ACTOR) == job()
    assert (await begin_run(tidy.store, "tidy")).tick_at == TICK


async def test_command_job__resume_keeps_request_and_retry_delay(tidy: Database) -> None:
    await finish(tidy, await begun_at(tidy, TICK), FAILED)
    await tidy.store.command_job("tidy", JobCommand.PAUSE, ACTOR)
    assert await tidy.store.command_job("tidy", JobCommand.RESUME, ACTOR) == replace(
        await the_job(tidy), paused=False, retry_at=TICK + 7 * SECONDS
    )
    await tidy.store.command_job("tidy", JobCommand.RUN, ACTOR)
    assert (await tidy.store.command_job("tidy", JobCommand.RESUME, ACTOR)) == await the_job(tidy)
    assert (await the_job(tidy)).requested_at == TICK


async def test_command_job__changes_no_other_job(tidy: Database) -> None:
    await tidy.store.register_jobs([job_every(MINUTE, "tidy2")])
    before = await the_job(tidy, "tidy2")
    for command in (JobCommand.RUN, JobCommand.PAUSE):
        await tidy.store.command_job("tidy", command, ACTOR)
    assert await the_job(tidy, "tidy2") == before


async def test_listen__notifies_when_job_is_requested_resumed_or_abandoned(tidy: Database) -> None:
    other = sibling_store(tidy)
    woken = asyncio.Event()
    other.listen(Topic.BOARD, woken.set)
    await other.read_board([])
    for command in (JobCommand.RUN, JobCommand.RESUME):
        woken.clear()
        await tidy.store.command_job("tidy", command, ACTOR)
        if tidy.engine == "postgresql":
            await asyncio.wait_for(woken.wait(), 5)
    woken.clear()
    await finish(tidy, await begin_due_run(tidy.store, "tidy"), ABANDONED)
    if tidy.engine == "postgresql":
        await asyncio.wait_for(woken.wait(), 5)
    await other.close()


# Reads


async def test_list_jobs__returns_jobs_in_pages(database: Database) -> None:
    names = ("watch", "expire-sessions", "prune")
    await database.store.register_jobs([job_every(MINUTE, name) for name in names])
    found = [replace(job(), name=name) for name in sorted(names)]
    assert await database.store.list_jobs(None, 9) == found
    assert await database.store.list_jobs(None, 2) == found[:2]
    assert await database.store.list_jobs("prune", 2) == found[2:]
    assert await database.store.list_jobs("watch", 2) == []


async def test_list_runs__returns_newest_runs_first_in_pages(tidy: Database) -> None:
    await tidy.store.register_jobs([JobSettings("other", MINUTE, TIMEOUT)])
    for number in range(4):
        await finish(tidy, await begun_at(tidy, TICK + number * 60 * SECONDS), SUCCEEDED)
    await begin_due_run(tidy.store, "other")
    assert [one.epoch for one in await tidy.store.list_runs("tidy", None, 9) or ()] == [4, 3, 2, 1]
    assert [one.epoch for one in await tidy.store.list_runs("tidy", None, 2) or ()] == [4, 3]
    assert [one.epoch for one in await tidy.store.list_runs("tidy", 3, 2) or ()] == [2, 1]
    assert await tidy.store.list_runs("tidy", 1, 2) == []


async def test_list_runs__returns_empty_list_without_runs_and_none_for_unknown_job(tidy: Database) -> None:
    assert await tidy.store.list_runs("tidy", None, 9) == []
    assert await tidy.store.list_runs("Tidy", None, 9) is None
