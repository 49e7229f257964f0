"""A long read may take longer than the timeout of a write. Neither short reads nor pages that are read quickly wait for
long reads.
"""

import asyncio

import asyncpg
import pytest
from sqlalchemy import Connection, text

from tenure.domain.scope import EVERYTHING
from tenure.store.engines import open_store
from tests.support.databases import Database

LONGER_THAN_A_WRITE_MAY = 2.5
"""Seconds: longer than the timeout of a write."""


def sleep(connection: Connection) -> None:
    connection.execute(text(f"SELECT pg_sleep({LONGER_THAN_A_WRITE_MAY})"))


@pytest.mark.slow
async def test_long_read_may_exceed_write_timeout(postgres_database: Database) -> None:
    await postgres_database.store._read_long(sleep)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("pool_size", [8, 10])
async def test_short_reads_do_not_wait_for_long_reads(postgres_database: Database, pool_size: int) -> None:
    store = open_store(postgres_database.url, pool_size)
    long_reads = [asyncio.create_task(store._read_long(sleep)) for _ in range(pool_size)]  # type: ignore[attr-defined]
    try:
        await asyncio.sleep(0.3)
        async with asyncio.timeout(1):
            assert await store.list_windows(None, 1) == []
        assert not any(each.done() for each in long_reads)
    finally:
        for each in long_reads:
            each.cancel()
        await asyncio.gather(*long_reads, return_exceptions=True)
        await store.close()


@pytest.mark.slow
async def test_page_is_read_during_long_read(postgres_database: Database) -> None:
    store = open_store(postgres_database.url, 10)
    long_read = asyncio.create_task(store._read_long(sleep))  # type: ignore[attr-defined]
    try:
        await asyncio.sleep(0.3)
        async with asyncio.timeout(1):
            assert await store.list_capacities(None, None, 1, EVERYTHING) == []
        assert not long_read.done()
    finally:
        await asyncio.gather(long_read, return_exceptions=True)
        await store.close()


@pytest.mark.slow
async def test_slow_page_waits_for_long_read_and_does_not_block_short_reads(postgres_database: Database) -> None:
    store = open_store(postgres_database.url, 10)
    long_read = asyncio.create_task(store._read_long(sleep))  # type: ignore[attr-defined]
    page = None
    try:
        await asyncio.sleep(0.3)
        page = asyncio.create_task(store._read_page(sleep))  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(1):
            assert await store.list_windows(None, 1) == []
        assert not long_read.done()
        await page
        assert long_read.done()
    finally:
        await asyncio.gather(*(each for each in (long_read, page) if each), return_exceptions=True)
        await store.close()


async def test_read_through_the_driver_replaces_connections_that_the_server_has_closed(
    postgres_database: Database,
) -> None:
    """A read through the driver bypasses SQLAlchemy, which therefore sees no errors of the connection. So the read
    itself must remove a broken connection from the pool.
    """
    store = postgres_database.store

    async def read_all_at_once() -> list[list[asyncpg.Record]]:
        return await asyncio.gather(*(store._fetch_short("SELECT pg_backend_pid()") for _ in range(8)))  # type: ignore[attr-defined]

    await read_all_at_once()
    await postgres_database.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for _ in range(3):
        await read_all_at_once()
