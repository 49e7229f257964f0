import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

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
from tenure.store.engines import open_store

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
async def sqlite_database(tmp_path: Path) -> AsyncIterator[Database]:
    store, clock = sqlite_store(tmp_path / "tenure.db")
    await store.migrate()
    yield Database(f"sqlite:///{tmp_path / 'tenure.db'}", store, clock)
    await store.close()


@pytest.fixture
async def postgres_database(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    url = postgres.url(await postgres.create_database(template))
    store = open_store(url, POOL_SIZE)
    yield Database(url, store, PostgresClock(url))
    await store.close()


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest) -> Database:
    """One database an engine, migrated and empty."""
    name = {"postgresql": "postgres"}.get(request.param, request.param)
    return request.getfixturevalue(f"{name}_database")  # type: ignore[no-any-return]


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
