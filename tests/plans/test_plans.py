"""Hot statements use the index they were written for: on an empty table, where plans are made, and on a million."""

import re
from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy import Dialect
from sqlalchemy.dialects import sqlite

from tenure.model import Position, SessionFilter
from tenure.store import sessions
from tenure.store.engines import sqlite as sqlite_engine
from tests.support.databases import Database, PostgresServer, sqlite_store
from tests.support.plans import explain, hot_statements, prepare
from tests.support.rows import fill_postgres, fill_sqlite
from tests.support.wishes import NOON, some_id

MILLION = 1_000_000

POSTGRES_INDEXES = {
    "tenure_open_create_1: look": ["sessions_live_key"],
    "tenure_open_create_1: insert": [],
    "tenure_open_create_1: ended since": ["sessions_closed_at"],
    "tenure_open_reopen_1: lock": ["sessions_live_key", "sessions_pkey"],
    "tenure_open_reopen_1: decide": ["sessions_live_key"],
}
"""What each hot statement reads through. A table scan has no place in any of them."""


def test_every_hot_statement_of_the_functions_is_listed() -> None:
    assert set(hot_statements()) == set(POSTGRES_INDEXES)


@pytest.fixture(scope="module", params=[0, pytest.param(MILLION, marks=pytest.mark.slow)], ids=["empty", "million"])
async def postgres_url(request: pytest.FixtureRequest, postgres: PostgresServer, template: str) -> str:
    url = postgres.url(await postgres.create_database(template))
    if request.param:
        await fill_postgres(url, request.param)
    return url


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize("name", POSTGRES_INDEXES)
async def test_postgres_searches_the_intended_index(connection: asyncpg.Connection, name: str) -> None:
    statement = hot_statements()[name]
    await prepare(connection, statement)
    plan = await explain(connection, {}, statement)
    assert sorted(re.findall(r"Index (?:Only )?Scan using (\w+) on", plan)) == sorted(POSTGRES_INDEXES[name]), plan
    assert "Seq Scan" not in plan, plan
    # A scan of a whole index names the index as well: each must be searched by a condition.
    assert plan.count("Index Cond") == len(POSTGRES_INDEXES[name]), plan


SQLITE_STATEMENTS = {
    "look": (sqlite_engine._LIVE_OF, "SEARCH s USING INDEX sessions_live_key (capacity_id=? AND user_object_id=?)"),
    "ended since": (
        sqlite_engine._ends_after_statement(NOON),
        "SEARCH sessions USING INDEX sessions_closed_at (closed_at>?)",
    ),
    "get": (
        sessions.get_statement(some_id()),
        "SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 (session_id=?)",
    ),
    "list": (
        sessions.list_statement(SessionFilter(), Position(NOON, some_id()), 100, NOON),
        "SEARCH sessions USING INDEX sessions_started_at (started_at<?)",
    ),
}


@pytest.fixture(scope="module", params=[0, pytest.param(MILLION, marks=pytest.mark.slow)], ids=["empty", "million"])
async def sqlite_file(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Database]:
    path = tmp_path_factory.mktemp("plans") / "tenure.db"
    store, clock = sqlite_store(path)
    await store.migrate()
    database = Database(f"sqlite:///{path}", store, clock)
    if request.param:
        await fill_sqlite(database, request.param)
    yield database
    await database.close()


@pytest.mark.parametrize("name", SQLITE_STATEMENTS)
async def test_sqlite_searches_the_intended_index(sqlite_file: Database, name: str) -> None:
    statement, expected = SQLITE_STATEMENTS[name]
    dialect: Dialect = sqlite.dialect()
    text = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    # The planner looks at the form of a statement, not at its values.
    text = text.replace("tenure_now()", "0").replace(":keys", "'[]'")
    plan = [row["detail"] for row in await sqlite_file.rows(f"EXPLAIN QUERY PLAN {text}")]
    assert expected in plan
    assert not any(line.startswith("SCAN s") for line in plan), plan
