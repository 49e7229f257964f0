"""Reads the schema of a database from its catalog, to compare two databases.

The order of columns does not count: a revision adds a column at the end, but `tables.py` may have the column elsewhere.
"""

import re
from collections.abc import Mapping
from typing import Any

import asyncpg
from sqlalchemy import Connection, Dialect, Index, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.mssql import aioodbc
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from tenure.store.migrate import SCHEMA_TABLE
from tenure.store.tables import metadata

Catalog = Mapping[str, Any]

_POSTGRES = {
    "columns": """
        SELECT c.relname || '.' || a.attname,
               concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                         pg_get_expr(d.adbin, d.adrelid), nullif(a.attidentity, ''), nullif(a.attgenerated, ''))
          FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
         WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'c')""",
    "options": """
        SELECT relname, coalesce(array_to_string(reloptions, ', '), '') FROM pg_class
         WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'""",
    "constraints": """
        SELECT conrelid::regclass || ' ' || conname, pg_get_constraintdef(oid) FROM pg_constraint
         WHERE connamespace = current_schema()::regnamespace AND conrelid <> 0""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()",
    "enums": """
        SELECT t.typname, string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder)
          FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
         WHERE t.typnamespace = current_schema()::regnamespace GROUP BY t.typname""",
    "functions": """
        SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc
         WHERE pronamespace = current_schema()::regnamespace""",
}


async def of_postgres(url: str) -> Catalog:
    connection = await asyncpg.connect(url)
    try:
        found = {kind: dict(await connection.fetch(query)) for kind, query in _POSTGRES.items()}
    finally:
        await connection.close()
    return {
        kind: {name: how for name, how in things.items() if not _is_alembics(name)} for kind, things in found.items()
    }


def of_sqlite(connection: Connection) -> Catalog:
    made = connection.execute(text("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")).all()
    tables = [(name, sql) for kind, name, sql in made if kind == "table" and not _is_alembics(name)]
    return {
        "columns": {
            name: {row[1:] for row in connection.execute(text(f"PRAGMA table_info({name})"))} for name, _ in tables
        },
        "constraints": {name: set(re.findall(r"CONSTRAINT (.+?),?\s*\n", sql)) for name, sql in tables},
        "indexes": {name: " ".join(sql.split()) for kind, name, sql in made if kind == "index"},
    }


def of_tsql(script: str) -> Catalog:
    """Reads the schema from the statements that create it, because not every test run has a SQL Server."""
    found: dict[str, Any] = {"tables": {}, "indexes": set()}
    for statement in _statements(script):
        if made := re.match(r"CREATE TABLE (\w+) \((.*)\)$", statement):
            found["tables"][made[1]] = set(_split(made[2]))
        elif added := re.match(r"ALTER TABLE (\w+) ADD (.*)$", statement):
            found["tables"][added[1]].add(added[2])
        elif re.match(r"CREATE (UNIQUE )?INDEX", statement):
            found["indexes"].add(statement)
    found["tables"].pop(SCHEMA_TABLE, None)
    return found


DIALECTS: Mapping[str, Dialect] = {
    "postgresql": postgresql.dialect(),
    "mssql": aioodbc.dialect(),
    "sqlite": sqlite.dialect(),
}


def tables_as_script(dialect_name: str) -> str:
    """The CREATE statements of `tables.py`, each followed by a line `GO`."""
    made: list[DDLElement] = [CreateTable(table) for table in metadata.sorted_tables]
    indexes = [index for table in metadata.sorted_tables for index in table.indexes if _is_for(index, dialect_name)]
    made += [CreateIndex(index) for index in sorted(indexes, key=lambda index: str(index.name))]
    return "\n".join(f"{statement.compile(dialect=DIALECTS[dialect_name])}\nGO" for statement in made)


def _is_for(index: Index, dialect_name: str) -> bool:
    """Returns whether the index exists on this engine. Some indexes are declared for certain engines only."""
    condition: Any = index._ddl_if
    return condition is None or dialect_name in condition.dialect


def _is_alembics(name: str) -> bool:
    return name.startswith(SCHEMA_TABLE)


def _statements(script: str) -> list[str]:
    batches = re.split(r"^GO$", re.sub(r"--[^\n]*", "", script), flags=re.MULTILINE)
    return [" ".join(batch.split()).rstrip(";").strip() for batch in batches]


def _split(columns: str) -> list[str]:
    """Splits at the commas outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", columns)]
