"""The tables in code are those the migrations made."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from tenure.store.migrate import SCHEMA_TABLE
from tenure.store.tables import metadata
from tests.support.databases import Database


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"version_table": SCHEMA_TABLE, "compare_type": True})
    return list(compare_metadata(context, metadata))


async def test_migrate__makes_the_tables_that_the_code_knows(database: Database) -> None:
    assert await database.run_sync(_differences) == []
