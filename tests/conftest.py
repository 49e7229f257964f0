import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tenure.store.engines import open_store
from tests.support.databases import (
    POOL_SIZE,
    TEMPLATE,
    Database,
    PostgresClock,
    PostgresServer,
    postgres_server,
    sqlite_store,
)
from tests.support.instances import RunningInstance
from tests.support.sqlserver import empty_mssql_database, mssql_database  # noqa: F401

MakeDatabase = Callable[[], Awaitable[Database]]

ENGINES = ["sqlite", "postgresql"]
if "TENURE_TEST_MSSQL_URL" in os.environ:
    ENGINES.append("mssql")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
async def template(postgres: PostgresServer) -> str:
    await postgres.create_template()
    return TEMPLATE


@pytest.fixture
def make_sqlite(tmp_path: Path) -> MakeDatabase:
    async def make() -> Database:
        store, clock = sqlite_store(tmp_path / "tenure.db")
        await store.migrate()
        return Database(f"sqlite:///{tmp_path / 'tenure.db'}", store, clock)

    return make


@pytest.fixture
def make_postgresql(postgres: PostgresServer, template: str) -> MakeDatabase:
    async def make() -> Database:
        url = postgres.url(await postgres.create_database(template))
        return Database(url, open_store(url, POOL_SIZE), PostgresClock(url))

    return make


@pytest.fixture
async def sqlite_database(make_sqlite: MakeDatabase) -> AsyncIterator[Database]:
    database = await make_sqlite()
    yield database
    await database.close()


@pytest.fixture
async def postgres_database(make_postgresql: MakeDatabase) -> AsyncIterator[Database]:
    database = await make_postgresql()
    yield database
    await database.close()


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest) -> Database:
    """One database an engine, migrated and empty."""
    name = {"postgresql": "postgres"}.get(request.param, request.param)
    return request.getfixturevalue(f"{name}_database")  # type: ignore[no-any-return]


@pytest.fixture
async def empty_sqlite_database(tmp_path: Path) -> AsyncIterator[Database]:
    store, clock = sqlite_store(tmp_path / "empty.db")
    database = Database(f"sqlite:///{tmp_path / 'empty.db'}", store, clock)
    yield database
    await database.close()


@pytest.fixture
async def empty_postgres_database(postgres: PostgresServer) -> AsyncIterator[Database]:
    url = postgres.url(await postgres.create_database())
    database = Database(url, open_store(url, POOL_SIZE), PostgresClock(url))
    yield database
    await database.close()


@pytest.fixture(params=ENGINES)
def empty_database(request: pytest.FixtureRequest) -> Database:
    """One database an engine, with nothing in it."""
    name = {"postgresql": "postgres"}.get(request.param, request.param)
    return request.getfixturevalue(f"empty_{name}_database")  # type: ignore[no-any-return]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[RunningInstance]]:
    """Starts instances and stops them after the test, whatever happened to them."""
    running: list[RunningInstance] = []

    def _start(database: str, *flags: str, port: int = 0, **environment: str) -> RunningInstance:
        instance = RunningInstance(database, tmp_path, *flags, port=port, **environment)
        running.append(instance)
        return instance

    yield _start  # type: ignore[misc]
    for instance in running:
        instance.stop()
