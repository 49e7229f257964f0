"""A move of the horizon of events waits for session writes in progress, and no session write waits for the move."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from tenure.domain.events import EventFilter
from tenure.domain.sessions import Found
from tests.support.databases import Database
from tests.support.events import BEFORE, read_all
from tests.support.open_requests import NOON, SECOND, some_id
from tests.support.session_calls import heartbeat_one
from tests.support.sessions import open_new_session

OPEN = """
SELECT * FROM tenure_open_create_1(
    ARRAY[$1]::uuid[], ARRAY[$2]::uuid[], ARRAY[$3]::uuid[], ARRAY[1]::smallint[], ARRAY[$4]::uuid[],
    ARRAY[NULL]::bigint[], ARRAY[NULL]::bigint[], ARRAY[NULL]::bigint[], 60000000, NULL, NULL, NULL)
"""
OPEN_ONE = """
SELECT * FROM tenure_open_one_1(
    $1::uuid, $2::uuid, $3::uuid, 1::smallint, $4::uuid, NULL, NULL, NULL, 60000000, NULL, NULL, NULL)
"""
HEARTBEAT = "SELECT * FROM tenure_heartbeat_1(ARRAY[$1]::uuid[], NULL, NULL, NULL)"


@pytest.mark.parametrize("statement", [OPEN, OPEN_ONE])
async def test_horizon_waits_for_late_commit_and_blocks_no_write(postgres_database: Database, statement: str) -> None:
    store = postgres_database.store
    before = await store.publish_events(0)
    late, connection = some_id(), await asyncpg.connect(postgres_database.url)
    try:
        async with connection.transaction():
            await connection.fetch(statement, some_id(), some_id(), some_id(), late)
            publishing = asyncio.create_task(store.publish_events(0))
            other = await open_new_session(postgres_database)
            assert (await heartbeat_one(store, other.session_id)).found is Found.LIVE
            assert not publishing.done(), "the horizon moved past an open that is not committed yet"
            assert await read_all(store) == []
        horizon = await publishing
    finally:
        await connection.close()
    assert horizon > before
    found = [event.session_id for event in await read_all(store)]
    assert late in found
    assert found in ([late], [late, other.session_id])


async def test_horizon_stays_if_write_in_progress_does_not_end(postgres_database: Database) -> None:
    before = await postgres_database.store.publish_events(0)
    connection = await asyncpg.connect(postgres_database.url)
    try:
        async with connection.transaction():
            await connection.fetch(OPEN, some_id(), some_id(), some_id(), some_id())
            assert await postgres_database.store.publish_events(0) == before
        assert await postgres_database.store.publish_events(0) > before
    finally:
        await connection.close()


async def test_session_renewed_by_late_commit_is_not_reported_as_lapsed(postgres_database: Database) -> None:
    store = postgres_database.store
    one = await open_new_session(postgres_database, lease_microseconds=SECOND // 2)
    connection = await asyncpg.connect(postgres_database.url)
    try:
        async with connection.transaction():
            await connection.fetch(HEARTBEAT, one.session_id)
            publishing = asyncio.create_task(store.publish_events(0))
            await asyncio.sleep(0.6)  # past the deadline that the heartbeat moves
            assert not publishing.done()
        horizon = await publishing
    finally:
        await connection.close()
    page = await store.read_events(EventFilter(), BEFORE, None, 9)
    closed = [event.at for event in page.events if event.close_reason is not None]
    assert horizon < one.deadline_at + timedelta(seconds=1)
    assert closed in ([], [at for at in closed if at > one.deadline_at])


@pytest.mark.usefixtures("postgres_database")
async def test_concurrent_instances_move_horizon_forward_only(postgres_database: Database) -> None:
    stores = [postgres_database.another_store() for _ in range(3)]
    horizons: list[list[object]] = [[] for _ in stores]

    async def move(number: int) -> None:
        for _ in range(10):
            horizons[number].append(await stores[number].publish_events(0))

    await asyncio.gather(*(move(number) for number in range(3)))
    for store in stores:
        await store.close()
    assert all(each == sorted(each) for each in horizons)  # type: ignore[type-var]


async def test_horizon_does_not_move_back_when_earlier_move_finishes_last(postgres_database: Database) -> None:
    """The horizon is moved twice, and the move that began first finishes last."""
    await postgres_database.clock.set(NOON)
    stamps = []
    for seconds in (1, 2):
        await postgres_database.clock.set(NOON + timedelta(seconds=seconds))
        (row,) = await postgres_database.rows("SELECT stamped_after FROM tenure_begin_publishing_1(0)")
        stamps.append(row["stamped_after"])
    for stamp in reversed(stamps):
        (row,) = await postgres_database.rows(f"SELECT tenure_finish_publishing_1('{stamp}') AS horizon")
        assert row["horizon"] == stamps[1]
