"""Databases with empty tables and databases with many rows. Each is created once per test run."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import Database, PostgresServer, sqlite_store
from tests.support.rows import (
    fill_capacities_postgres,
    fill_postgres,
    fill_sqlite,
    fill_submissions_postgres,
    fill_submissions_sqlite,
    fill_usage_postgres,
)

MILLION = 1_000_000
HUNDRED_THOUSAND = 100_000
"""The rows of the filled SQLite database. The plans of SQLite depend on the selectivities that ANALYZE finds, and these
are the same as with a million rows."""
SIZES = ["empty", pytest.param("million", marks=pytest.mark.slow)]
SQLITE_SIZES = ["empty", pytest.param("filled", marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
async def postgres_empty(postgres: PostgresServer, template: str) -> str:
    return postgres.url(await postgres.create_database(template))


@pytest.fixture(scope="session")
async def postgres_million(postgres: PostgresServer, template: str) -> str:
    url = postgres.url(await postgres.create_database(template))
    await fill_postgres(url, MILLION)
    await fill_submissions_postgres(url, MILLION)
    await fill_usage_postgres(url, MILLION // 10)
    await fill_capacities_postgres(url, MILLION // 10)
    return url


@pytest.fixture(params=SIZES)
def postgres_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"postgres_{request.param}")  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
async def sqlite_empty(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Database]:
    database = await _sqlite_file(tmp_path_factory)
    yield database
    await database.close()


@pytest.fixture(scope="session")
async def sqlite_filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Database]:
    database = await _sqlite_file(tmp_path_factory)
    await fill_sqlite(database, HUNDRED_THOUSAND)
    await fill_submissions_sqlite(database, HUNDRED_THOUSAND)
    yield database
    await database.close()


async def _sqlite_file(folders: pytest.TempPathFactory) -> Database:
    path = folders.mktemp("plans") / "tenure.db"
    store, clock = sqlite_store(path)
    await store.migrate()
    return Database(f"sqlite:///{path}", store, clock)


@pytest.fixture(params=SQLITE_SIZES)
def sqlite_file(request: pytest.FixtureRequest) -> Database:
    return request.getfixturevalue(f"sqlite_{request.param}")  # type: ignore[no-any-return]
