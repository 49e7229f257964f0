"""The SQL Server database of the tests, if TENURE_TEST_MSSQL_URL names one. Tests drop Tenure's tables and
routines in it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import pytest
from sqlalchemy import Connection, event, make_url
from sqlalchemy.dialects.mssql import aioodbc
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.store.engines import open_store
from tenure.store.engines.sqlserver.connections import connection_url, with_exact_instants
from tenure.store.migrate import SCHEMA_TABLE
from tenure.store.tables import metadata
from tests.support.databases import POOL_SIZE, Clock, Database

T = TypeVar("T")

URL_VARIABLE = "TENURE_TEST_MSSQL_URL"
MARK = "test"
"""The name of the database must contain this word. Otherwise no test runs, so a wrong URL deletes nothing."""


@pytest.fixture
async def mssql_database(empty_mssql_database: Database) -> Database:
    await empty_mssql_database.store.migrate()
    return empty_mssql_database


@pytest.fixture
async def empty_mssql_database() -> AsyncIterator[Database]:
    url = os.environ[URL_VARIABLE]
    await asyncio.to_thread(drop_everything, url)
    database = SqlServerDatabase(url, open_store(url, POOL_SIZE), SqlServerClock(url))
    yield database
    await database.close()


class SqlServerDatabase(Database):
    async def rows(self, statement: str) -> list[dict[str, Any]]:
        return await asyncio.to_thread(execute, self.url, statement)

    async def run_sync(self, work: Callable[[Connection], T]) -> T:
        engine = create_async_engine(connection_url(make_url(self.url)))
        event.listen(engine.sync_engine, "before_cursor_execute", with_exact_instants, retval=True)
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(work)
        finally:
            await engine.dispose()


class SqlServerClock(Clock):
    """Replaces `tenure_now`, the only function that reads the clock, by one that returns the instant in a table.

    If this instant is NULL, the function returns the real time.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._connection: Any = None

    async def set(self, now: datetime) -> None:
        await super().set(now)
        await asyncio.to_thread(
            self._write, now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
        )

    async def release(self) -> None:
        await super().release()
        await asyncio.to_thread(self._write, None)

    async def close(self) -> None:
        if self._connection is not None:
            await asyncio.to_thread(self._connection.close)

    def _write(self, now: str | None) -> None:
        if self._connection is None:
            self._connection = connect(self._url)
            for statement in CLOCK:
                self._connection.execute(statement)
        self._connection.execute(f"UPDATE dbo.{CLOCK_TABLE} SET now = ?", now)


CLOCK_TABLE = "test_clock"
CLOCK = (
    f"CREATE TABLE dbo.{CLOCK_TABLE} (now datetime2(6))",
    f"INSERT INTO dbo.{CLOCK_TABLE} VALUES (NULL)",
    "DROP FUNCTION dbo.tenure_now",
    f"""CREATE FUNCTION dbo.tenure_now() RETURNS datetime2(6) AS
    BEGIN RETURN COALESCE((SELECT c.now FROM dbo.{CLOCK_TABLE} AS c), SYSUTCDATETIME()); END;""",
)
ROUTINES = "SELECT name, type FROM sys.objects WHERE name LIKE 'tenure[_]%' AND type IN ('FN', 'IF', 'TF', 'P')"


def drop_everything(url: str) -> None:
    name = make_url(url).database or ""
    if MARK not in name:
        raise AssertionError(f"{URL_VARIABLE} names database {name!r}, but tests need {MARK!r} in the name")
    with closing(connect(url)) as connection:
        for routine, kind in connection.execute(ROUTINES).fetchall():
            connection.execute(f"DROP {'PROCEDURE' if kind.strip() == 'P' else 'FUNCTION'} dbo.{routine}")
        for table in [*reversed(metadata.sorted_tables), SCHEMA_TABLE, CLOCK_TABLE]:
            connection.execute(f"DROP TABLE IF EXISTS dbo.{table}")


def execute(url: str, statement: str) -> list[dict[str, Any]]:
    """Executes plain SQL. Returns an empty list for a statement without rows."""
    with closing(connect(url)) as connection:
        cursor = connection.execute(statement)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, map(_aware, row), strict=True)) for row in cursor.fetchall()] if names else []


def _aware(value: Any) -> Any:
    """Adds UTC to an instant, because a datetime2 has no time zone."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def connect(url: str) -> Any:
    import pyodbc  # noqa: PLC0415 - needs a library that only this engine needs

    _, options = aioodbc.dialect().create_connect_args(connection_url(make_url(url)))
    connection = pyodbc.connect(options["dsn"], autocommit=True, timeout=10)
    # Return ids as UUIDs, which print in lower case, as on the other engines. Otherwise pyodbc returns upper-case text.
    connection.add_output_converter(pyodbc.SQL_GUID, lambda value: UUID(bytes_le=value))
    return connection
