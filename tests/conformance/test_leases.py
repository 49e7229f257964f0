"""Leases, on every engine: taken, renewed, given up, taken away, run out. Boundaries are a microsecond wide."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, update

from tenure.errors import LeaseLost
from tenure.ids import new_id
from tenure.model.leases import Acquired, Board, Fence, Lease, Posting
from tenure.store.store import Topic
from tenure.store.tables import installation
from tests.support.databases import Database
from tests.support.leases import (
    MICROSECOND,
    acquire,
    all_tables,
    begun,
    every,
    put_row,
    sibling,
    table,
    taken,
)
from tests.support.wishes import NOON, SECOND

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
LEASE = 60 * SECOND
"""What `acquire` and `taken` ask for."""


def lease(name: str = "leader", holder: str = "one", epoch: int = 1, **given: Any) -> Lease:
    """As it is just taken at noon."""
    values: dict[str, Any] = {
        "held": True,
        "acquired_at": NOON,
        "renewed_at": NOON,
        "expires_at": NOON + 60 * SECONDS,
    }
    return Lease(name=name, holder=holder, epoch=epoch, **{**values, **given})


async def put_unheld(database: Database, name: str) -> None:
    """A row such as a try to acquire may leave behind: of a lease that nobody ever held."""
    instants = dict.fromkeys(("acquired_at", "renewed_at", "expires_at"), NOON + 60 * SECONDS)
    ended = {"released": True, "resigned": False}
    await put_row(database, "leases", name=name, holder="", epoch=0, attempt=new_id(), **ended, **instants)


# Acquire


async def test_acquire_lease__takes_one_that_nobody_ever_held(database: Database) -> None:
    assert await acquire(database.store, "leader", "one") == Acquired(lease(), taken=True)


async def test_acquire_lease__shows_who_has_it_and_changes_nothing(database: Database) -> None:
    await taken(database.store, "leader", "one")
    before = await all_tables(database)
    await database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    assert await acquire(database.store, "leader", "two", 7 * SECOND) == Acquired(lease(), taken=False)
    assert await all_tables(database) == before


async def test_acquire_lease__is_no_renewal_for_its_own_holder(database: Database) -> None:
    await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 3 * SECONDS)
    assert await acquire(database.store, "leader", "one") == Acquired(lease(), taken=False)


@pytest.mark.parametrize("holder", ["one", "two"])
async def test_acquire_lease__takes_what_has_run_out_at_that_very_instant(database: Database, holder: str) -> None:
    await taken(database.store, "leader", "one")
    now = NOON + 60 * SECONDS
    await database.clock.set(now)
    found = await acquire(database.store, "leader", holder, 7 * SECOND)
    expected = lease(holder=holder, epoch=2, acquired_at=now, renewed_at=now, expires_at=now + 7 * SECONDS)
    assert found == Acquired(expected, taken=True, reclaimed=True)


async def test_acquire_lease__takes_what_was_released_and_calls_it_no_reclaim(database: Database) -> None:
    await database.store.release_lease(await taken(database.store, "leader", "one"))
    assert await acquire(database.store, "leader", "two") == Acquired(lease(holder="two", epoch=2), taken=True)


async def test_acquire_lease__takes_what_was_released_although_the_clock_was_stepped_back(database: Database) -> None:
    """By the instant of its end alone it would be held until the clock is there again."""
    await database.store.release_lease(await taken(database.store, "leader", "one"))
    now = NOON - 300 * SECONDS
    await database.clock.set(now)
    expected = lease(holder="two", epoch=2, acquired_at=now, renewed_at=now, expires_at=now + 60 * SECONDS)
    assert await acquire(database.store, "leader", "two") == Acquired(expected, taken=True)


async def test_acquire_lease__finds_its_own_work_when_repeated(database: Database) -> None:
    attempt = new_id()
    await database.store.acquire_lease("leader", "one", attempt, LEASE)
    before = await all_tables(database)
    await database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    assert await database.store.acquire_lease("leader", "one", attempt, LEASE) == Acquired(lease(), taken=True)
    assert await all_tables(database) == before


async def test_acquire_lease__begins_anew_when_repeated_after_it_has_run_out(database: Database) -> None:
    attempt = new_id()
    await database.store.acquire_lease("leader", "one", attempt, LEASE)
    now = NOON + 60 * SECONDS
    await database.clock.set(now)
    found = await database.store.acquire_lease("leader", "one", attempt, LEASE)
    expected = lease(epoch=2, acquired_at=now, renewed_at=now, expires_at=now + 60 * SECONDS)
    assert found == Acquired(expected, taken=True, reclaimed=True)


async def test_acquire_lease__does_not_find_its_own_work_after_the_next_acquire(database: Database) -> None:
    attempt = new_id()
    first = await database.store.acquire_lease("leader", "one", attempt, LEASE)
    await database.store.release_lease(first.lease.fence)
    await taken(database.store, "leader", "two")
    found = await database.store.acquire_lease("leader", "one", attempt, LEASE)
    assert found == Acquired(lease(holder="two", epoch=2), taken=False)


async def test_acquire_lease__counts_epochs_of_each_name_apart(database: Database) -> None:
    """Also of names that differ in capitals only."""
    for _ in range(3):
        await database.store.release_lease(await taken(database.store, "leader", "one"))
    assert (await taken(database.store, "Leader", "one")).epoch == 1
    assert (await taken(database.store, "leader", "one")).epoch == 4


async def test_acquire_lease__gives_a_row_that_was_never_held_its_first_epoch(database: Database) -> None:
    await put_unheld(database, "leader")
    assert await acquire(database.store, "leader", "one") == Acquired(lease(), taken=True)


async def test_acquire_lease__goes_by_the_clock_and_not_by_the_last_cut(database: Database) -> None:
    """Session writes are never stamped before the cut; a lease has to run out by the clock as it is."""
    await database.run_sync(_cut_in_an_hour)
    assert await acquire(database.store, "leader", "one") == Acquired(lease(), taken=True)
    await database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    assert not (await acquire(database.store, "leader", "two")).taken


def _cut_in_an_hour(connection: Connection) -> None:
    connection.execute(update(installation).values(last_cut_at=NOON + 3600 * SECONDS))
    connection.commit()


# Renew


async def test_renew_lease__counts_from_now_and_changes_nothing_else(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    now = NOON + 60 * SECONDS - MICROSECOND
    await database.clock.set(now)
    expected = lease(renewed_at=now, expires_at=now + 7 * SECONDS)
    assert await database.store.renew_lease(fence, 7 * SECOND) == expected
    assert await database.store.list_leases(None, 9) == [expected]
    (history,) = await table(database, "lease_history")
    assert history["ended_at"] is None


async def test_renew_lease__is_too_late_at_the_very_instant_it_runs_out(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 60 * SECONDS)
    with pytest.raises(LeaseLost):
        await database.store.renew_lease(fence, LEASE)


async def test_renew_lease__moves_the_end_nearer_where_asked_to(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    assert await database.store.renew_lease(fence, 1) == lease(expires_at=NOON + MICROSECOND)


async def test_renew_lease__counts_from_the_clock_as_it_is_after_a_step_back(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    now = NOON - 300 * SECONDS
    await database.clock.set(now)
    expected = lease(renewed_at=now, expires_at=now + 60 * SECONDS)
    assert await database.store.renew_lease(fence, LEASE) == expected


@pytest.mark.parametrize("end", ["release", "resign"])
async def test_renew_lease__does_not_revive_what_was_given_up(database: Database, end: str) -> None:
    fence = await taken(database.store, "leader", "one")
    if end == "release":
        await database.store.release_lease(fence)
    else:
        await database.store.resign_lease("leader")
    await database.clock.set(NOON - SECONDS)
    with pytest.raises(LeaseLost):
        await database.store.renew_lease(fence, LEASE)


# Release and resign


async def test_release_lease__ends_it_now_and_keeps_its_row_and_epoch(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.renew_lease(fence, LEASE)
    now = NOON + 9 * SECONDS
    await database.clock.set(now)
    expected = lease(held=False, renewed_at=NOON + 5 * SECONDS, expires_at=now, released=True)
    assert await database.store.release_lease(fence) == expected
    assert await database.store.list_leases(None, 9) == [expected]


async def test_release_lease__is_done_once_when_repeated(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    first = await database.store.release_lease(fence)
    before = await all_tables(database)
    await database.clock.set(NOON + 5 * SECONDS)
    assert await database.store.release_lease(fence) == first
    assert await all_tables(database) == before


async def test_acquire_lease__takes_what_was_resigned_and_calls_it_no_reclaim(database: Database) -> None:
    await taken(database.store, "leader", "one")
    await database.store.resign_lease("leader")
    assert await acquire(database.store, "leader", "two") == Acquired(lease(holder="two", epoch=2), taken=True)


async def test_release_lease__says_nothing_of_what_was_resigned_before(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    await database.store.resign_lease("leader")
    await database.clock.set(NOON + 5 * SECONDS)
    expected = lease(held=False, expires_at=NOON, released=True, resigned=True)
    assert await database.store.release_lease(fence) == expected
    assert await ends(database) == [("leader", 1, "one", NOON, NOON, "resigned")]


async def test_release_lease__is_too_late_at_the_very_instant_it_runs_out(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 60 * SECONDS)
    with pytest.raises(LeaseLost):
        await database.store.release_lease(fence)


async def test_resign_lease__ends_it_now_whoever_holds_it(database: Database) -> None:
    await taken(database.store, "leader", "one")
    now = NOON + 9 * SECONDS
    await database.clock.set(now)
    expected = lease(held=False, expires_at=now, released=True, resigned=True)
    assert await database.store.resign_lease("leader") == expected
    assert await database.store.list_leases(None, 9) == [expected]


async def test_resign_lease__leaves_what_has_run_out_as_it_is(database: Database) -> None:
    await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 60 * SECONDS)
    before = await all_tables(database)
    assert await database.store.resign_lease("leader") == lease(held=False)
    assert await all_tables(database) == before


async def test_resign_lease__is_done_once_when_repeated(database: Database) -> None:
    await taken(database.store, "leader", "one")
    first = await database.store.resign_lease("leader")
    before = await all_tables(database)
    await database.clock.set(NOON + 5 * SECONDS)
    assert await database.store.resign_lease("leader") == first
    assert await all_tables(database) == before


async def test_resign_lease__knows_nothing_of_what_was_never_held(database: Database) -> None:
    assert await database.store.resign_lease("leader") is None
    if database.engine != "sqlite":  # which makes no such rows
        await put_unheld(database, "leader")
        assert await database.store.resign_lease("leader") is None


# History


async def ends(database: Database) -> list[tuple[object, ...]]:
    columns = ("name", "epoch", "holder", "acquired_at", "ended_at", "how")
    return [tuple(row[column] for column in columns) for row in await table(database, "lease_history")]


async def test_acquire_lease__begins_a_history(database: Database) -> None:
    await taken(database.store, "leader", "one")
    assert await ends(database) == [("leader", 1, "one", NOON, None, None)]


async def test_release_lease__is_told_in_the_history(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.release_lease(fence)
    assert await ends(database) == [("leader", 1, "one", NOON, NOON + 5 * SECONDS, "released")]


async def test_resign_lease__is_told_in_the_history(database: Database) -> None:
    await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.resign_lease("leader")
    assert await ends(database) == [("leader", 1, "one", NOON, NOON + 5 * SECONDS, "resigned")]


async def test_acquire_lease__notes_when_the_one_before_ran_out(database: Database) -> None:
    """When it did, and not when somebody came by."""
    fence = await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.renew_lease(fence, LEASE)
    await database.clock.set(NOON + 99 * SECONDS)
    await taken(database.store, "leader", "two")
    assert await ends(database) == [
        ("leader", 1, "one", NOON, NOON + 65 * SECONDS, "expired"),
        ("leader", 2, "two", NOON + 99 * SECONDS, None, None),
    ]


async def test_acquire_lease__leaves_the_end_of_what_was_released_as_it_is(database: Database) -> None:
    fence = await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.release_lease(fence)
    await database.clock.set(NOON + 9 * SECONDS)
    await taken(database.store, "leader", "two")
    assert await ends(database) == [
        ("leader", 1, "one", NOON, NOON + 5 * SECONDS, "released"),
        ("leader", 2, "two", NOON + 9 * SECONDS, None, None),
    ]


async def test_acquire_lease__keeps_no_history_of_job_locks(database: Database) -> None:
    """Their runs tell it."""
    await taken(database.store, "job:tidy", "one")
    await database.clock.set(NOON + 60 * SECONDS)
    fence = await taken(database.store, "job:tidy", "two")
    await database.store.release_lease(fence)
    await taken(database.store, "job:tidy", "three")
    await database.store.resign_lease("job:tidy")
    assert await ends(database) == []


# Reads


async def test_list_leases__shows_those_that_were_ever_held_page_by_page(database: Database) -> None:
    for number, name in enumerate(("cutter", "archive", "job:tidy", "backup"), start=1):
        await taken(database.store, name, f"holder {number}", number * SECOND)
    await put_unheld(database, "aardvark")
    await database.clock.set(NOON + 2 * SECONDS)
    named = {
        name: lease(name, f"holder {number}", held=number > 2, expires_at=NOON + number * SECONDS)
        for number, name in enumerate(("cutter", "archive", "job:tidy", "backup"), start=1)
    }
    assert await database.store.list_leases(None, 9) == [named[name] for name in sorted(named)]
    assert await database.store.list_leases(None, 2) == [named["archive"], named["backup"]]
    assert await database.store.list_leases("backup", 2) == [named["cutter"], named["job:tidy"]]
    assert await database.store.list_leases("job:tidy", 2) == []


async def test_read_board__shows_the_leases_it_was_asked_for(database: Database) -> None:
    for name in ("leader", "archive", "backup"):
        await taken(database.store, name, "one")
    await put_unheld(database, "aardvark")
    board = await database.store.read_board(["leader", "archive", "aardvark", "nobody"])
    assert sorted(board.leases, key=lambda one: one.name) == [lease("archive"), lease("leader")]
    assert board.postings == []


async def test_read_board__is_empty_where_nothing_is(database: Database) -> None:
    assert await database.store.read_board([]) == Board([], [])
    assert await database.store.read_board(["leader"]) == Board([], [])


async def test_read_board__says_whether_a_lease_is_held_now(database: Database) -> None:
    await taken(database.store, "leader", "one")
    await database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    assert (await database.store.read_board(["leader"])).leases == [lease()]
    await database.clock.set(NOON + 60 * SECONDS)
    assert (await database.store.read_board(["leader"])).leases == [lease(held=False)]


async def test_read_board__shows_every_job_with_its_lock(database: Database) -> None:
    await database.store.register_jobs([every(10 * SECOND, name) for name in ("running", "resting", "never")])
    await put_unheld(database, "job:never")
    now = NOON + 20 * SECONDS
    await database.clock.set(now)
    await begun(database.store, "running", "two")
    jobs = {job.name: job for job in await database.store.list_jobs(None, 9)}
    lock = lease("job:running", "two", acquired_at=now, renewed_at=now, expires_at=now + 120 * SECONDS)
    board = await database.store.read_board(["leader"])
    assert board.leases == []
    assert {posting.job.name: posting for posting in board.postings} == {
        "running": Posting(jobs["running"], lock, now),
        "resting": Posting(jobs["resting"], None, now),
        "never": Posting(jobs["never"], None, now),
    }


async def test_read_board__shows_a_job_lock_that_was_given_up(database: Database) -> None:
    await database.store.register_jobs([every(10 * SECOND)])
    await database.store.release_lease(await taken(database.store, "job:tidy", "one"))
    (posting,) = (await database.store.read_board([])).postings
    assert posting.lock == lease("job:tidy", held=False, expires_at=NOON, released=True)


async def test_read_board__does_not_take_an_application_lease_for_the_lock_of_a_job(database: Database) -> None:
    await database.store.register_jobs([every(10 * SECOND)])
    await taken(database.store, "tidy", "one")
    board = await database.store.read_board(["tidy"])
    assert [posting.lock for posting in board.postings] == [None]
    assert board.leases == [lease("tidy")]


# Being told


async def test_listen__is_told_when_a_lease_is_free_where_the_engine_can_tell(database: Database) -> None:
    other = sibling(database)
    woken = asyncio.Event()
    other.listen(Topic.BOARD, woken.set)
    await other.read_board([])
    for name, end in (("leader", database.store.release_lease), ("archive", _resign(database))):
        woken.clear()
        await end(await taken(database.store, name, "one"))
        if database.engine == "postgresql":
            await asyncio.wait_for(woken.wait(), 5)
    await other.close()


def _resign(database: Database) -> Any:
    async def resign(fence: Fence) -> None:
        await database.store.resign_lease(fence.name)

    return resign


async def test_acquire_lease__by_many_stores_at_once_has_one_winner(database: Database) -> None:
    stores = [sibling(database) for _ in range(6)]
    found = await asyncio.gather(*(acquire(store, "leader", f"holder {n}") for n, store in enumerate(stores)))
    for store in stores:
        await store.close()
    (winner,) = [one.lease for one in found if one.taken]
    assert [one.lease for one in found] == [winner] * 6
    assert winner == replace(lease(), holder=winner.holder)
