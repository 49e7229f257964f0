"""The reads of `tenure audit`: the installation, the deliveries of a window, and sessions that overlap."""

from datetime import timedelta

import pytest

from tenure.domain.submissions import SubmissionFilter
from tenure.domain.usage import ChunkBounds, ChunkDelivery, Installation, Overlap, Window
from tests.support.databases import Database
from tests.support.leases import hold_lease, read_table
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import DELIVERED, FAILED, executor_fence, make_attempt
from tests.support.usage import (
    CONTRACT,
    MICROSECOND,
    chunk_all,
    cut,
    cut_one,
    insert_sessions,
    minute,
    save,
    session_between,
)

PIECES = [ChunkBounds(some_id(), some_id(), 1000 + number, 7**number) for number in range(3)]


pytestmark = pytest.mark.usefixtures("installed")


async def test_read_installation__returns_start_and_end_of_windows(database: Database) -> None:
    (row,) = await read_table(database, "installation")
    installation_id = row["installation_id"]
    assert await database.store.read_installation() == Installation(installation_id, NOON, NOON, 0)
    await cut(database, minute(3))
    assert await database.store.read_installation() == Installation(installation_id, NOON, minute(3), 1)


async def test_read_installation__returns_start_of_retained_windows(database: Database) -> None:
    await cut(database, minute(1))
    await cut(database, minute(2))
    await chunk_all(database)
    await cut(database, minute(3))
    await database.clock.set(NOON + timedelta(days=500))
    await database.store.prune_usage(await hold_lease(database.store, "job:prune"), 9)
    result = await database.store.read_installation()
    assert (result.kept_from, result.last_cut_at, result.last_window_id) == (minute(2), minute(3), 3)


async def sent(database: Database) -> tuple[Window, list[str]]:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    chunks = await save(database, window, PIECES)
    return window, [str(chunk.submission_id) for chunk in chunks]


async def test_list_deliveries__returns_delivery_state_of_each_chunk(database: Database) -> None:
    window, (first, second, third) = await sent(database)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, first, FAILED)
    await database.clock.set(minute(5))
    await make_attempt(database.store, fence, first, DELIVERED)
    await make_attempt(database.store, fence, second, FAILED)
    key = f"{window.installation_id}-1"
    assert await database.store.list_deliveries(1) == [
        ChunkDelivery(1, minute(5), first, f"{key}-1", "delivered", 1),
        ChunkDelivery(2, None, second, f"{key}-2", "pending", 0),
        ChunkDelivery(3, None, third, f"{key}-3", "pending", 0),
    ]


async def test_list_deliveries__includes_chunks_with_pruned_submissions(database: Database) -> None:
    _window, (first, *_others) = await sent(database)
    await make_attempt(database.store, await executor_fence(database.store), first, DELIVERED)
    await database.clock.set(minute(1) + timedelta(days=8))
    await database.store.prune(await hold_lease(database.store, "job:prune"), 9)
    assert len(await database.store.list_submissions(SubmissionFilter(), None, 9)) == 2
    result = await database.store.list_deliveries(1)
    assert result[0] == ChunkDelivery(1, minute(1), first, None, None, 0)
    assert len(result) == 3


async def test_list_deliveries__includes_chunks_without_submission(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=None)
    await save(database, window, PIECES[:1])
    assert await database.store.list_deliveries(1) == [ChunkDelivery(1, None, None, None, None, 0)]
    assert await database.store.list_deliveries(2) == []


KEY = {"user_object_id": some_id(), "capacity_id": some_id()}


async def test_find_overlaps__ignores_session_that_starts_when_previous_ends(database: Database) -> None:
    await insert_sessions(
        database,
        [
            session_between(minute(1), minute(2), **KEY),
            session_between(minute(2), minute(3), **KEY),
            session_between(minute(3), minute(9), closed=False, **KEY),
        ],
    )
    assert await database.store.find_overlaps(9) == []


async def test_find_overlaps__finds_overlap_of_one_microsecond(database: Database) -> None:
    one, other = (
        session_between(minute(1), minute(2) + MICROSECOND, **KEY),
        session_between(minute(2), minute(3), **KEY),
    )
    await insert_sessions(database, [other, one, session_between(minute(4), minute(5), **KEY)])
    assert await database.store.find_overlaps(9) == [Overlap(one.session_id, other.session_id)]


async def test_find_overlaps__uses_deadline_of_unclosed_session(database: Database) -> None:
    one, other = (
        session_between(minute(2), minute(4), **KEY),
        session_between(minute(3), minute(9), closed=False, **KEY),
    )
    third = session_between(minute(8), minute(10), **KEY)
    await insert_sessions(database, [one, other, third])
    found = await database.store.find_overlaps(9)
    assert set(found) == {Overlap(one.session_id, other.session_id), Overlap(other.session_id, third.session_id)}


@pytest.mark.parametrize("name", KEY)
async def test_find_overlaps__ignores_sessions_of_other_users_and_capacities(database: Database, name: str) -> None:
    """The two sessions have different users, or are on different capacities."""
    await insert_sessions(
        database, [session_between(minute(1), minute(2), **{**KEY, name: some_id()}) for _ in range(2)]
    )
    assert await database.store.find_overlaps(9) == []


async def test_find_overlaps__returns_at_most_limit_overlaps(database: Database) -> None:
    await insert_sessions(database, [session_between(minute(1), minute(5 + number), **KEY) for number in range(5)])
    assert len(await database.store.find_overlaps(3)) == 3
