"""Migrations, on every engine."""

import asyncio
from datetime import timedelta

import pytest

from tenure.store import migrate
from tests.support.databases import Database
from tests.support.leases import table
from tests.support.rows import fill_postgres, fill_sqlite
from tests.support.usage import cut, windows

REVISIONS = ["0001", "0002", "0003", "0004", "0005"]


async def test_schema_revision__is_what_this_version_needs(database: Database) -> None:
    assert await database.store.schema_revision() == migrate.required_revision() == REVISIONS[-1]


async def test_migrate__does_nothing_twice(database: Database) -> None:
    assert await database.store.migrate() == []


async def test_migrate__has_the_first_window_begin_with_the_installation(empty_database: Database) -> None:
    await empty_database.store.migrate()
    (row,) = await empty_database.rows("SELECT created_at, last_cut_at, usage_kept_from FROM installation")
    assert len(set(row.values())) == 1, row


async def test_migrate__is_done_by_one_of_ten_at_once(empty_database: Database) -> None:
    assert await empty_database.store.schema_revision() is None
    stores = [empty_database.another_store() for _ in range(10)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    for store in stores:
        await store.close()
    assert sorted(applied) == [[]] * 9 + [REVISIONS]
    assert await empty_database.store.schema_revision() == migrate.required_revision()


async def test_migrate__brings_an_older_schema_up_to_date_with_what_is_in_it(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = migrate.command.upgrade
    with monkeypatch.context() as older:
        older.setattr(migrate.command, "upgrade", lambda config, _head: upgrade(config, REVISIONS[0]))
        await empty_database.store.migrate()
    assert await empty_database.store.schema_revision() == REVISIONS[0]
    rows = 4
    if empty_database.engine == "sqlite":
        await fill_sqlite(empty_database, rows)
    elif empty_database.engine == "postgresql":
        await fill_postgres(empty_database.url, rows)
    else:
        rows = 0  # nothing here fills that one by hand
    assert await empty_database.store.migrate() == REVISIONS[1:]
    assert (await empty_database.store.count_sessions()).total == rows


async def test_migrate__leaves_an_installation_that_the_first_window_begins_with(empty_database: Database) -> None:
    await empty_database.store.migrate()
    (row,) = await table(empty_database, "installation")
    assert row["created_at"] <= row["last_cut_at"] < row["created_at"] + timedelta(seconds=1)
    assert (await empty_database.store.read_installation()).kept_from == row["last_cut_at"]
    told = await cut(empty_database, row["created_at"] + timedelta(minutes=1), limit=1)
    (window,) = await windows(empty_database)
    assert (window.window_id, window.started_at, window.ended_at) == (1, row["last_cut_at"], told.last_cut_at)


async def test_close__can_be_called_on_a_store_that_was_never_used(database: Database) -> None:
    await database.another_store().close()
