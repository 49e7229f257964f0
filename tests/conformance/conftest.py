import pytest

from tests.support.databases import Database
from tests.support.usage import install
from tests.support.wishes import NOON


@pytest.fixture
async def noon(database: Database) -> None:
    """Stops the clock there."""
    await database.clock.set(NOON)


@pytest.fixture
async def installed(database: Database) -> None:
    """At noon, which is not on the grid."""
    await database.clock.set(NOON)
    await install(database, NOON)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sessions a chunk."""
    monkeypatch.setattr("tenure.store.lives.CHUNK_MAX", 3)
