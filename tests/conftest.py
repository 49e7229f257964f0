import atexit
import gc
import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tenure.store.engines import open_store
from tests.support.databases import (
    POOL_SIZE,
    TEMPLATE,
    Database,
    PostgresClock,
    PostgresServer,
    memory_folder,
    postgres_server,
    sqlite_store,
)
from tests.support.instances import RunningInstance, kill_all
from tests.support.sqlserver import empty_mssql_database, mssql_database  # noqa: F401

if (memory := memory_folder()) is not None and "PYTEST_XDIST_WORKER" not in os.environ:
    # All temporary files of tests, and of the processes they start, are in memory: a busy disk may stall for seconds.
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="t", dir=memory)
    Path(tempfile.tempdir).chmod(0o755)  # some programs run as another user than the tests
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)

# Let Python write bytecode, so that each module is compiled once, and not in every worker and process of the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background processes with SIGINT ignored. The processes that tests interrupt would inherit this
    # setting.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MakeDatabase = Callable[[], Awaitable[Database]]

ENGINES = ["sqlite", "postgresql"]
if "TENURE_TEST_MSSQL_URL" in os.environ:
    ENGINES.append("mssql")


# A short pause of the machine must not make a test fail.
hypothesis.settings.register_profile("tenure", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tenure")

HEAVY_SCOPES = {
    "crashes": "crashes",
    "races": "clocks",
    "streams": "clocks",
    "browser/test_console.py": "console",
    "browser": "browser",
    "edge": "edge",
    "deployment": "edge",
    "docs": "docs",
    "plans": "plans",
    "clients": "clients",
    "proof": "proof",
}
"""Folders and files whose tests start many processes, measure time or fill large tables, each with the name of its
scope. The tests of a scope run one after the other on one worker. The scopes that take longest come first. Every test
outside these folders and files is a scope of its own.
"""
LIGHT_WORKERS = 1
"""How many workers begin with the tests outside the heavy scopes. All other workers begin with the heavy scopes, whose
tests mostly wait. A worker that finds no more scopes of its kind, heavy or light, takes one of the other kind."""


TESTS_PER_COLLECTION = 10
_tests_ended = itertools.count(1)


class ByFolder(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.removeprefix("tests/")
        return next((scope for place, scope in HEAVY_SCOPES.items() if re.match(f"{place}[/:]", path)), nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        heavy = [scope for scope in dict.fromkeys(HEAVY_SCOPES.values()) if scope in self.workqueue]
        light = next((scope for scope in self.workqueue if scope not in heavy), None)
        takes_heavy = heavy and (light is None or self.nodes.index(node) < len(self.nodes) - LIGHT_WORKERS)
        self.workqueue.move_to_end(heavy[0] if takes_heavy else light, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFolder:
    return ByFolder(config, log)


def pytest_collection_finish() -> None:
    collect_garbage()
    gc.set_threshold(100_000, 50, 100)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    if next(_tests_ended) % TESTS_PER_COLLECTION == 0:
        collect_garbage()


def collect_garbage() -> None:
    """Collects garbage between tests, because automatic collections are set to be rare.

    An automatic collection could happen in the middle of a test. After a hundred tests, it would take two seconds, and
    a store call fails after 1.7 seconds. `freeze` makes later collections skip the objects that survive this one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
async def template(postgres: PostgresServer) -> str:
    await postgres.loosen()
    await postgres.create_template()
    return TEMPLATE


@pytest.fixture(scope="session")
async def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file. Each test that needs a SQLite database gets a copy of this file."""
    path = tmp_path_factory.mktemp("template") / "tenure.db"
    store, _ = sqlite_store(path)
    await store.migrate()
    await store.close()
    return path


@pytest.fixture
def make_sqlite(sqlite_template: Path, tmp_path: Path) -> MakeDatabase:
    async def make() -> Database:
        path = tmp_path / "tenure.db"
        shutil.copyfile(sqlite_template, path)
        store, clock = sqlite_store(path)
        return Database(f"sqlite:///{path}", store, clock)

    return make


@pytest.fixture
async def make_postgresql(postgres: PostgresServer, template: str) -> AsyncIterator[MakeDatabase]:
    made: list[str] = []

    async def make() -> Database:
        made.append(await postgres.create_database(template))
        url = postgres.url(made[-1])
        return Database(url, open_store(url, POOL_SIZE), PostgresClock(url))

    yield make
    for name in made:
        await postgres.drop_database(name)


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
    """A newly migrated database, for each engine."""
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
    name = await postgres.create_database()
    url = postgres.url(name)
    database = Database(url, open_store(url, POOL_SIZE), PostgresClock(url))
    yield database
    await database.close()
    await postgres.drop_database(name)


@pytest.fixture(params=ENGINES)
def empty_database(request: pytest.FixtureRequest) -> Database:
    """A database without tables, for each engine."""
    name = {"postgresql": "postgres"}.get(request.param, request.param)
    return request.getfixturevalue(f"empty_{name}_database")  # type: ignore[no-any-return]


@pytest.fixture
def seed() -> int:
    """A new random seed. A failing test prints it."""
    return random.SystemRandom().getrandbits(32)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[RunningInstance]]:
    """Starts instances and kills them after the test."""
    running: list[RunningInstance] = []

    def _start(database: str, *flags: str, port: int = 0, **environment: str) -> RunningInstance:
        instance = RunningInstance(database, tmp_path, *flags, port=port, **environment)
        running.append(instance)
        return instance

    yield _start  # type: ignore[misc]
    kill_all(running)
