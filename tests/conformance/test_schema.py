"""Migrations, on every engine."""

import asyncio

from tenure.store import migrate
from tests.support.databases import Database


async def test_schema_revision__is_what_this_version_needs(database: Database) -> None:
    assert await database.store.schema_revision() == migrate.required_revision()


async def test_migrate__does_nothing_twice(database: Database) -> None:
    assert await database.store.migrate() == []


async def test_migrate__is_done_by_one_of_ten_at_once(empty_database: Database) -> None:
    assert await empty_database.store.schema_revision() is None
    stores = [empty_database.another_store() for _ in range(10)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    for store in stores:
        await store.close()
    assert sorted(applied) == [[]] * 9 + [[migrate.required_revision()]]
    assert await empty_database.store.schema_revision() == migrate.required_revision()


async def test_close__can_be_called_on_a_store_that_was_never_used(database: Database) -> None:
    await database.another_store().close()
