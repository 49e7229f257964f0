"""Fixtures for two kinds of instances: processes that all tests share, at most two per engine; and instances inside the
test process, each with the handler, limits and store that its test gives.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from tenure.config import Config, JobConfig, StreamsConfig
from tenure.store.contract import Store
from tenure.streams.handlers import EchoHandler, StreamHandler
from tests.support.databases import Database, PostgresServer
from tests.support.instances import RunningInstance
from tests.support.streams import LocalService, Streaming, streaming

ENGINES = ["sqlite", "postgresql"]
MESSAGE_MAX_BYTES = 100_000
SHORT = {
    "TENURE_STREAMS__MAX_MESSAGE_BYTES": str(MESSAGE_MAX_BYTES),
    "TENURE_STREAMS__LEASE_SECONDS": "5",
    "TENURE_STREAMS__IDLE_SECONDS": "8",
    "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1",
}
"""Short limits. The keep-alive interval is a twelfth of the lease, but at least one second; here it is one second."""

ServeLocally = Callable[..., Awaitable[LocalService]]


def _running(url: str, folders: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    instance = RunningInstance(url, folders.mktemp("streams"), **SHORT)  # type: ignore[arg-type]
    try:
        yield instance.wait_until_ready()
    finally:
        instance.stop()


@pytest.fixture(scope="package")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('streams') / 'tenure.db'}"


@pytest.fixture(scope="package")
def sqlite_service(sqlite_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    yield from _running(sqlite_url, tmp_path_factory)


@pytest.fixture(scope="package")
async def postgresql_url(postgres: PostgresServer, template: str) -> str:
    return postgres.url(await postgres.create_database(template))


@pytest.fixture(scope="package")
def postgresql_service(postgresql_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    yield from _running(postgresql_url, tmp_path_factory)


@pytest.fixture(scope="package")
def sqlite_neighbour(
    sqlite_url: str, sqlite_service: RunningInstance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningInstance]:
    """A second instance on the same database."""
    del sqlite_service
    yield from _running(sqlite_url, tmp_path_factory)


@pytest.fixture(scope="package")
def postgresql_neighbour(
    postgresql_url: str, postgresql_service: RunningInstance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningInstance]:
    del postgresql_service
    yield from _running(postgresql_url, tmp_path_factory)


@pytest.fixture(params=ENGINES)
def service(request: pytest.FixtureRequest) -> RunningInstance:
    return request.getfixturevalue(f"{request.param}_service")  # type: ignore[no-any-return]


@pytest.fixture
async def clients(service: RunningInstance) -> AsyncIterator[Streaming]:
    """Clients of a shared instance. A test with this fixture runs once per engine."""
    async with streaming(service.port) as clients:
        yield clients


@pytest.fixture
def neighbour(request: pytest.FixtureRequest, service: RunningInstance) -> RunningInstance:
    del service
    engine = request.node.callspec.params["service"]
    return request.getfixturevalue(f"{engine}_neighbour")  # type: ignore[no-any-return]


@pytest.fixture
async def clients_of_neighbour(neighbour: RunningInstance) -> AsyncIterator[Streaming]:
    """Clients of a second instance on the same database."""
    async with streaming(neighbour.port) as clients:
        yield clients


@pytest.fixture
async def any_clients(sqlite_service: RunningInstance) -> AsyncIterator[Streaming]:
    """Clients on one engine, for tests that do not depend on the engine."""
    async with streaming(sqlite_service.port) as clients:
        yield clients


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServeLocally]:
    """Starts instances in this process and stops them after the test.

    A test must request this fixture after the database, so that the instances stop before the database is closed. A
    stop without a database takes seconds.
    """
    running: list[LocalService] = []
    monkeypatch.setattr("tenure.app._settle_memory", lambda: None)

    async def start(
        database: Database,
        handler: Callable[[], StreamHandler] = EchoHandler,
        prefix: str = "",
        store: Store | None = None,
        **streams: Any,
    ) -> LocalService:
        monkeypatch.setattr("tenure.app.handler_factory", lambda *_: handler)
        if store is not None:
            monkeypatch.setattr("tenure.app.open_store", lambda *_, **__: store)
        sweep = {"expire-sessions": JobConfig(interval_seconds=1.0)}
        config = Config(database=database.url, prefix=prefix, streams=StreamsConfig(**streams), jobs=sweep)
        service = LocalService(config)
        running.append(service)
        await service.start()
        return service

    yield start
    for service in running:
        await service.stop()
