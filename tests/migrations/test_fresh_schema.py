"""A migrated database has the tables of `tables.py` and the functions of the function files."""

from pathlib import Path
from typing import Any

import asyncpg
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text

from tenure.store import migrate
from tenure.store.migrate import SCHEMA_TABLE
from tenure.store.migrations.functions import functions_of
from tenure.store.tables import metadata
from tenure.store.types import Code
from tests.migrations import catalog
from tests.support.databases import Database


async def test_postgres_revisions_create_same_schema_as_tables_in_code(
    postgres_database: Database, empty_postgres_database: Database
) -> None:
    def make(connection: Connection) -> None:
        metadata.create_all(connection)
        for definition in functions_of("postgresql").values():
            connection.execute(text(definition.replace(":", "\\:")))
        connection.commit()

    await empty_postgres_database.run_sync(make)
    migrated, fresh = [await catalog.of_postgres(each.url) for each in (postgres_database, empty_postgres_database)]
    assert migrated == fresh
    assert all(migrated.values()), "a part of the catalog is empty"


async def test_sqlite_revisions_create_same_schema_as_tables_in_code(sqlite_database: Database, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'fresh.db'}")
    metadata.create_all(engine)
    with engine.connect() as connection:
        fresh = catalog.of_sqlite(connection)
    engine.dispose()
    migrated = await sqlite_database.run_sync(catalog.of_sqlite)
    assert migrated == fresh
    assert all(migrated.values()), "a part of the catalog is empty"


def test_sql_server_revisions_create_same_schema_as_tables_in_code() -> None:
    scripts = migrate.script(None, "mssql"), catalog.tables_as_script("mssql")
    migrated, fresh = (catalog.of_tsql(script) for script in scripts)
    assert migrated == fresh
    assert migrated["tables"].keys() == metadata.tables.keys()
    assert migrated["indexes"]


async def test_alembic_finds_no_difference_to_tables_in_code(database: Database) -> None:
    """Uses the comparison of Alembic. Runs on SQL Server, too, if one is available.

    This test does not compare the types of columns with the type `Code`: on PostgreSQL one of them is "char", which
    Alembic reads as text. The other tests compare these types.
    """

    def compare_type(_context: Any, _found: Any, _column: Any, _type: Any, expected: Any) -> bool | None:
        return False if isinstance(expected, Code) else None

    def differences(connection: Connection) -> list[object]:
        options = {"version_table": SCHEMA_TABLE, "compare_type": compare_type}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))

    assert await database.run_sync(differences) == []


async def test_dry_run_output_creates_same_schema_as_migration(
    postgres_database: Database, empty_postgres_database: Database
) -> None:
    connection = await asyncpg.connect(empty_postgres_database.url)
    await connection.execute(migrate.script(None, "postgresql"))
    await connection.close()
    assert await empty_postgres_database.store.schema_revision() == migrate.required_revision()
    made, migrated = [await catalog.of_postgres(each.url) for each in (empty_postgres_database, postgres_database)]
    assert made == migrated
