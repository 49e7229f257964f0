import pytest

from tests.support.databases import Database
from tests.support.wishes import NOON


@pytest.fixture
async def noon(database: Database) -> None:
    """Stops the clock there."""
    await database.clock.set(NOON)
