"""Migrations, on every engine."""

import asyncio
from datetime import timedelta

from tenure.store import migrate
from tests.support.databases import Database
from tests.support.leases import read_table
from tests.support.usage import cut, windows


async def test_schema_revision__equals_required_revision(database: Database) -> None:
    assert await database.store.schema_revision() == migrate.required_revision()


async def test_migrate__applies_nothing_when_repeated(database: Database) -> None:
    assert await database.store.migrate() == []


async def test_migrate__runs_once_among_ten_concurrent_stores(empty_database: Database) -> None:
    assert await empty_database.store.schema_revision() is None
    stores = [empty_database.another_store() for _ in range(10)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    for store in stores:
        await store.close()
    *others, one = sorted(applied)
    assert others == [[]] * 9
    assert one[-1] == migrate.required_revision() == await empty_database.store.schema_revision()


async def test_migrate__lets_first_window_start_at_installation(empty_database: Database) -> None:
    await empty_database.store.migrate()
    (row,) = await read_table(empty_database, "installation")
    assert row["created_at"] == row["last_cut_at"] == row["usage_kept_from"]
    assert (await empty_database.store.read_installation()).kept_from == row["last_cut_at"]
    result = await cut(empty_database, row["created_at"] + timedelta(minutes=1), limit=1)
    (window,) = await windows(empty_database)
    assert (window.window_id, window.started_at, window.ended_at) == (1, row["last_cut_at"], result.last_cut_at)


async def test_close__succeeds_on_unused_store(database: Database) -> None:
    await database.another_store().close()
