"""What `tenure doctor` reads from the database, on every engine."""

from pathlib import Path

import pytest

from tenure.domain.doctor import PoolerMode, UnsentUsage
from tests.support.databases import Database
from tests.support.open_requests import NOON
from tests.support.usage import CONTRACT, chunk_all, cut_one, insert_sessions, minute, session_between

pytestmark = pytest.mark.usefixtures("installed")


async def test_read_server__returns_clock_and_limits_of_database(database: Database) -> None:
    await database.clock.set(NOON)
    facts = await database.store.read_server()
    assert facts.now == NOON
    assert facts.read_only is None
    if database.engine == "sqlite":
        assert (facts.connections_max, facts.connections_used) == (None, None)
    else:
        assert facts.connections_max is not None
        assert facts.connections_max > 10


async def test_read_churn__names_tables_of_tenure_only(database: Database) -> None:
    await database.execute("CREATE TABLE foreign_table (id int)")
    churn = await database.store.read_churn()
    await database.execute("DROP TABLE foreign_table")
    tables = [each.table for each in churn]
    assert tables == sorted(tables)
    assert "foreign_table" not in tables
    assert ("sessions" in tables) is (database.engine == "postgresql")


async def test_detect_pooler__finds_none_on_direct_connections(database: Database) -> None:
    assert await database.store.detect_pooler() is PoolerMode.NONE


async def test_find_unsent_usage__counts_divided_windows_with_sessions_and_without_contract(database: Database) -> None:
    assert await database.store.find_unsent_usage() == UnsentUsage(0, None)
    await insert_sessions(database, [session_between(minute(1, 10), minute(2, 20))])
    for number in (1, 2, 3):
        await cut_one(database, minute(number))
    await cut_one(database, minute(4), contract=CONTRACT)
    assert await database.store.find_unsent_usage() == UnsentUsage(0, None), "undivided windows cannot be sent yet"
    await chunk_all(database)
    # The first window has no session.
    assert await database.store.find_unsent_usage() == UnsentUsage(2, minute(1))


async def test_describe_file__shows_file_of_sqlite_only(database: Database) -> None:
    facts = database.store.describe_file()
    if database.engine != "sqlite":
        assert facts is None
        return
    assert facts is not None
    assert facts.exists
    assert Path(facts.path).name == "tenure.db"
    assert next(iter(facts.modes)) == facts.path
    assert facts.free_bytes > 0
    assert (facts.writable, facts.disk_read_only) == (True, False)
