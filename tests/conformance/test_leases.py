"""Leases, on every engine: acquire, renew, release and resign. A lease is not held at the instant of its expiry."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, update

from tenure.domain.jobs import Board, BoardJob
from tenure.domain.leases import AcquireResult, Fence, Lease
from tenure.errors import LeaseLost
from tenure.ids import new_id
from tenure.store.contract import Topic
from tenure.store.tables import installation
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import (
    MICROSECOND,
    acquire,
    acquire_free_lease,
    all_tables,
    begin_due_run,
    insert_row,
    job_every,
    read_table,
    sibling_store,
)
from tests.support.open_requests import NOON, SECOND

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
LEASE = 60 * SECOND
"""The default duration of `acquire` and `acquire_free_lease`."""


def lease(name: str = "leader", holder: str = "one", epoch: int = 1, **given: Any) -> Lease:
    """The expected lease after an acquire at noon, except for the fields in `given`."""
    values: dict[str, Any] = {
        "held": True,
        "acquired_at": NOON,
        "renewed_at": NOON,
        "expires_at": NOON + 60 * SECONDS,
    }
    return Lease(name=name, holder=holder, epoch=epoch, **{**values, **given})


async def put_unheld(database: Database, name: str) -> None:
    """Inserts the row of a lease that was never held. Only PostgreSQL creates such rows: `begin_run` may leave one."""
    instants = dict.fromkeys(("acquired_at", "renewed_at", "expires_at"), NOON + 60 * SECONDS)
    ended = {"released": True, "resigned": False}
    await insert_row(database, "leases", name=name, holder="", epoch=0, attempt=new_id(), **ended, **instants)


# Acquire


async def test_acquire_lease__acquires_lease_never_held(database: Database) -> None:
    assert await acquire(database.store, "leader", "one") == AcquireResult(lease(), taken=True)


async def test_acquire_lease__returns_current_holder_and_changes_nothing(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    before = await all_tables(database)
    await database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    assert await acquire(database.store, "leader", "two", 7 * SECOND) == AcquireResult(lease(), taken=False)
    assert await all_tables(database) == before


async def test_acquire_lease__does_not_renew_for_current_holder(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 3 * SECONDS)
    assert await acquire(database.store, "leader", "one") == AcquireResult(lease(), taken=False)


@pytest.mark.parametrize("holder", ["one", "two"])
async def test_acquire_lease__acquires_lease_at_instant_of_expiry(database: Database, holder: str) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    now = NOON + 60 * SECONDS
    await database.clock.set(now)
    found = await acquire(database.store, "leader", holder, 7 * SECOND)
    expected = lease(holder=holder, epoch=2, acquired_at=now, renewed_at=now, expires_at=now + 7 * SECONDS)
    assert found == AcquireResult(expected, taken=True, reclaimed=True)


async def test_acquire_lease__acquires_released_lease_without_reclaim(database: Database) -> None:
    await database.store.release_lease(await acquire_free_lease(database.store, "leader", "one"))
    assert await acquire(database.store, "leader", "two") == AcquireResult(lease(holder="two", epoch=2), taken=True)


async def test_acquire_lease__acquires_released_lease_after_clock_step_back(database: Database) -> None:
    """After the step back, the recorded expiry is in the future again. Only `released` shows that the lease is free."""
    await database.store.release_lease(await acquire_free_lease(database.store, "leader", "one"))
    now = NOON - 300 * SECONDS
    await database.clock.set(now)
    expected = lease(holder="two", epoch=2, acquired_at=now, renewed_at=now, expires_at=now + 60 * SECONDS)
    assert await acquire(database.store, "leader", "two") == AcquireResult(expected, taken=True)


async def test_acquire_lease__returns_same_lease_when_attempt_is_repeated(database: Database) -> None:
    attempt = new_id()
    await database.store.acquire_lease("leader", "one", attempt, LEASE)
    before = await all_tables(database)
    await database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    assert await database.store.acquire_lease("leader", "one", attempt, LEASE) == AcquireResult(lease(), taken=True)
    assert await all_tables(database) == before


async def test_acquire_lease__starts_new_epoch_when_attempt_is_repeated_after_expiry(database: Database) -> None:
    attempt = new_id()
    await database.store.acquire_lease("leader", "one", attempt, LEASE)
    now = NOON + 60 * SECONDS
    await database.clock.set(now)
    found = await database.store.acquire_lease("leader", "one", attempt, LEASE)
    expected = lease(epoch=2, acquired_at=now, renewed_at=now, expires_at=now + 60 * SECONDS)
    assert found == AcquireResult(expected, taken=True, reclaimed=True)


async def test_acquire_lease__returns_other_holder_when_attempt_is_repeated_too_late(database: Database) -> None:
    attempt = new_id()
    first = await database.store.acquire_lease("leader", "one", attempt, LEASE)
    await database.store.release_lease(first.lease.fence)
    await acquire_free_lease(database.store, "leader", "two")
    found = await database.store.acquire_lease("leader", "one", attempt, LEASE)
    assert found == AcquireResult(lease(holder="two", epoch=2), taken=False)


async def test_acquire_lease__counts_epochs_per_name(database: Database) -> None:
    """Names are case-sensitive."""
    for _ in range(3):
        await database.store.release_lease(await acquire_free_lease(database.store, "leader", "one"))
    assert (await acquire_free_lease(database.store, "Leader", "one")).epoch == 1
    assert (await acquire_free_lease(database.store, "leader", "one")).epoch == 4


async def test_acquire_lease__assigns_first_epoch_to_row_never_held(database: Database) -> None:
    await put_unheld(database, "leader")
    assert await acquire(database.store, "leader", "one") == AcquireResult(lease(), taken=True)


async def test_acquire_lease__uses_clock_instead_of_last_cut(database: Database) -> None:
    """No session write gets a timestamp before the last cut, but a lease uses the clock even if the clock is behind the
    last cut.
    """
    await database.run_sync(_cut_in_an_hour)
    assert await acquire(database.store, "leader", "one") == AcquireResult(lease(), taken=True)
    await database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    assert not (await acquire(database.store, "leader", "two")).taken


def _cut_in_an_hour(connection: Connection) -> None:
    connection.execute(update(installation).values(last_cut_at=NOON + 3600 * SECONDS))
    connection.commit()


# Renew


async def test_renew_lease__extends_expiry_from_now_and_changes_nothing_else(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    now = NOON + 60 * SECONDS - MICROSECOND
    await database.clock.set(now)
    expected = lease(renewed_at=now, expires_at=now + 7 * SECONDS)
    assert await database.store.renew_lease(fence, 7 * SECOND) == expected
    assert await database.store.list_leases(None, 9) == [expected]
    (history,) = await read_table(database, "lease_history")
    assert history["ended_at"] is None


async def test_renew_lease__raises_lease_lost_at_instant_of_expiry(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 60 * SECONDS)
    with pytest.raises(LeaseLost):
        await database.store.renew_lease(fence, LEASE)


async def test_renew_lease__accepts_shorter_duration(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    assert await database.store.renew_lease(fence, 1) == lease(expires_at=NOON + MICROSECOND)


async def test_renew_lease__extends_expiry_from_current_clock_after_step_back(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    now = NOON - 300 * SECONDS
    await database.clock.set(now)
    expected = lease(renewed_at=now, expires_at=now + 60 * SECONDS)
    assert await database.store.renew_lease(fence, LEASE) == expected


@pytest.mark.parametrize("end", ["release", "resign"])
async def test_renew_lease__raises_lease_lost_after_release_or_resign(database: Database, end: str) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    if end == "release":
        await database.store.release_lease(fence)
    else:
        await database.store.resign_lease("leader", ACTOR)
    await database.clock.set(NOON - SECONDS)
    with pytest.raises(LeaseLost):
        await database.store.renew_lease(fence, LEASE)


# Release and resign


async def test_release_lease__expires_lease_now_and_keeps_row_and_epoch(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.renew_lease(fence, LEASE)
    now = NOON + 9 * SECONDS
    await database.clock.set(now)
    expected = lease(held=False, renewed_at=NOON + 5 * SECONDS, expires_at=now, released=True)
    assert await database.store.release_lease(fence) == expected
    assert await database.store.list_leases(None, 9) == [expected]


async def test_release_lease__changes_nothing_when_repeated(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    first = await database.store.release_lease(fence)
    before = await all_tables(database)
    await database.clock.set(NOON + 5 * SECONDS)
    assert await database.store.release_lease(fence) == first
    assert await all_tables(database) == before


async def test_acquire_lease__acquires_resigned_lease_without_reclaim(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    await database.store.resign_lease("leader", ACTOR)
    assert await acquire(database.store, "leader", "two") == AcquireResult(lease(holder="two", epoch=2), taken=True)


async def test_release_lease__returns_resigned_lease_unchanged(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.store.resign_lease("leader", ACTOR)
    await database.clock.set(NOON + 5 * SECONDS)
    expected = lease(held=False, expires_at=NOON, released=True, resigned=True)
    assert await database.store.release_lease(fence) == expected
    assert await ends(database) == [("leader", 1, "one", NOON, NOON, "resigned")]


async def test_release_lease__raises_lease_lost_at_instant_of_expiry(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 60 * SECONDS)
    with pytest.raises(LeaseLost):
        await database.store.release_lease(fence)


async def test_resign_lease__expires_lease_of_current_holder_now(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    now = NOON + 9 * SECONDS
    await database.clock.set(now)
    expected = lease(held=False, expires_at=now, released=True, resigned=True)
    assert await database.store.resign_lease("leader", ACTOR) == expected
    assert await database.store.list_leases(None, 9) == [expected]


async def test_resign_lease__does_not_change_expired_lease(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 60 * SECONDS)
    before = await all_tables(database)
    assert await database.store.resign_lease("leader", ACTOR) == lease(held=False)
    assert await all_tables(database) == before


async def test_resign_lease__changes_nothing_when_repeated(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    first = await database.store.resign_lease("leader", ACTOR)
    before = await all_tables(database)
    await database.clock.set(NOON + 5 * SECONDS)
    assert await database.store.resign_lease("leader", ACTOR) == first
    assert await all_tables(database) == before


async def test_resign_lease__returns_none_for_lease_never_held(database: Database) -> None:
    assert await database.store.resign_lease("leader", ACTOR) is None
    if database.engine != "sqlite":  # SQLite would return such a row, but never creates one
        await put_unheld(database, "leader")
        assert await database.store.resign_lease("leader", ACTOR) is None


# History


async def ends(database: Database) -> list[tuple[object, ...]]:
    columns = ("name", "epoch", "holder", "acquired_at", "ended_at", "how")
    return [tuple(row[column] for column in columns) for row in await read_table(database, "lease_history")]


async def test_acquire_lease__adds_open_history_row(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    assert await ends(database) == [("leader", 1, "one", NOON, None, None)]


async def test_release_lease__records_release_in_history(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.release_lease(fence)
    assert await ends(database) == [("leader", 1, "one", NOON, NOON + 5 * SECONDS, "released")]


async def test_resign_lease__records_resign_in_history(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.resign_lease("leader", ACTOR)
    assert await ends(database) == [("leader", 1, "one", NOON, NOON + 5 * SECONDS, "resigned")]


async def test_acquire_lease__records_expiry_of_previous_holder_in_history(database: Database) -> None:
    """The recorded end is the expiry, not the next acquire."""
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.renew_lease(fence, LEASE)
    await database.clock.set(NOON + 99 * SECONDS)
    await acquire_free_lease(database.store, "leader", "two")
    assert await ends(database) == [
        ("leader", 1, "one", NOON, NOON + 65 * SECONDS, "expired"),
        ("leader", 2, "two", NOON + 99 * SECONDS, None, None),
    ]


async def test_acquire_lease__keeps_recorded_end_of_released_lease(database: Database) -> None:
    fence = await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 5 * SECONDS)
    await database.store.release_lease(fence)
    await database.clock.set(NOON + 9 * SECONDS)
    await acquire_free_lease(database.store, "leader", "two")
    assert await ends(database) == [
        ("leader", 1, "one", NOON, NOON + 5 * SECONDS, "released"),
        ("leader", 2, "two", NOON + 9 * SECONDS, None, None),
    ]


async def test_acquire_lease__writes_no_history_for_job_locks(database: Database) -> None:
    """The runs of a job are the history of its lock."""
    await acquire_free_lease(database.store, "job:tidy", "one")
    await database.clock.set(NOON + 60 * SECONDS)
    fence = await acquire_free_lease(database.store, "job:tidy", "two")
    await database.store.release_lease(fence)
    await acquire_free_lease(database.store, "job:tidy", "three")
    await database.store.resign_lease("job:tidy", ACTOR)
    assert await ends(database) == []


# Reads


async def test_list_leases__returns_leases_ever_held_in_pages(database: Database) -> None:
    for number, name in enumerate(("cutter", "archive", "job:tidy", "backup"), start=1):
        await acquire_free_lease(database.store, name, f"holder {number}", number * SECOND)
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


async def test_read_board__returns_requested_leases(database: Database) -> None:
    for name in ("leader", "archive", "backup"):
        await acquire_free_lease(database.store, name, "one")
    await put_unheld(database, "aardvark")
    board = await database.store.read_board(["leader", "archive", "aardvark", "unknown"])
    assert sorted(board.leases, key=lambda one: one.name) == [lease("archive"), lease("leader")]
    assert board.board_jobs == []


async def test_read_board__is_empty_without_leases_and_jobs(database: Database) -> None:
    assert await database.store.read_board([]) == Board([], [])
    assert await database.store.read_board(["leader"]) == Board([], [])


async def test_read_board__returns_whether_lease_is_held_now(database: Database) -> None:
    await acquire_free_lease(database.store, "leader", "one")
    await database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    assert (await database.store.read_board(["leader"])).leases == [lease()]
    await database.clock.set(NOON + 60 * SECONDS)
    assert (await database.store.read_board(["leader"])).leases == [lease(held=False)]


async def test_read_board__returns_every_job_with_its_lock(database: Database) -> None:
    await database.store.register_jobs([job_every(10 * SECOND, name) for name in ("running", "resting", "never")])
    await put_unheld(database, "job:never")
    now = NOON + 20 * SECONDS
    await database.clock.set(now)
    await begin_due_run(database.store, "running", "two")
    jobs = {job.name: job for job in await database.store.list_jobs(None, 9)}
    lock = lease("job:running", "two", acquired_at=now, renewed_at=now, expires_at=now + 120 * SECONDS)
    board = await database.store.read_board(["leader"])
    assert board.leases == []
    assert {board_job.job.name: board_job for board_job in board.board_jobs} == {
        "running": BoardJob(jobs["running"], lock, now),
        "resting": BoardJob(jobs["resting"], None, now),
        "never": BoardJob(jobs["never"], None, now),
    }


async def test_read_board__returns_released_job_lock(database: Database) -> None:
    await database.store.register_jobs([job_every(10 * SECOND)])
    await database.store.release_lease(await acquire_free_lease(database.store, "job:tidy", "one"))
    (board_job,) = (await database.store.read_board([])).board_jobs
    assert board_job.lock == lease("job:tidy", held=False, expires_at=NOON, released=True)


async def test_read_board__distinguishes_application_lease_from_job_lock(database: Database) -> None:
    await database.store.register_jobs([job_every(10 * SECOND)])
    await acquire_free_lease(database.store, "tidy", "one")
    board = await database.store.read_board(["tidy"])
    assert [board_job.lock for board_job in board.board_jobs] == [None]
    assert board.leases == [lease("tidy")]


# Notifications


async def test_listen__notifies_when_lease_is_released_or_resigned(database: Database) -> None:
    """Only PostgreSQL sends notifications. On the other engines, the test checks only that `listen` raises nothing."""
    other = sibling_store(database)
    woken = asyncio.Event()
    other.listen(Topic.BOARD, woken.set)
    await other.read_board([])
    for name, end in (("leader", database.store.release_lease), ("archive", _resign(database))):
        woken.clear()
        await end(await acquire_free_lease(database.store, name, "one"))
        if database.engine == "postgresql":
            await asyncio.wait_for(woken.wait(), 5)
    await other.close()


def _resign(database: Database) -> Any:
    async def resign(fence: Fence) -> None:
        await database.store.resign_lease(fence.name, ACTOR)

    return resign


async def test_acquire_lease__has_one_winner_among_concurrent_stores(database: Database) -> None:
    stores = [sibling_store(database) for _ in range(6)]
    found = await asyncio.gather(*(acquire(store, "leader", f"holder {n}") for n, store in enumerate(stores)))
    for store in stores:
        await store.close()
    (winner,) = [one.lease for one in found if one.taken]
    assert [one.lease for one in found] == [winner] * 6
    assert winner == replace(lease(), holder=winner.holder)
