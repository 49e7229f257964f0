"""`tenure migrate`, and errors that stop a command before it runs."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.store.migrate import required_revision
from tests.cli.conftest import Result, Tenure
from tests.support.databases import Database

REVISION = required_revision()


def run_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ,
        timeout=30,
        check=False,
    )


async def test_migrate_prints_resulting_revision(tenure: Tenure, empty_database: Database) -> None:
    command = ("migrate", "--database", empty_database.url)
    printed = [await asyncio.to_thread(tenure, *command) for _ in range(2)]
    assert printed == [Result(0, f"migrated to {REVISION}\n", ""), Result(0, f"up to date ({REVISION})\n", "")]
    dry_run = await asyncio.to_thread(tenure, *command, "--dry-run")
    assert dry_run == Result(0, f"-- up to date ({REVISION})\n", "")


async def test_dry_run_prints_sql_and_changes_nothing(tenure: Tenure, empty_database: Database) -> None:
    dry_run = await asyncio.to_thread(tenure, "migrate", "--dry-run", "--database", empty_database.url)
    assert dry_run.code == 0, dry_run
    assert "CREATE TABLE sessions" in dry_run.out
    assert await empty_database.store.schema_revision() is None


async def test_sql_of_dry_run_creates_schema(tenure: Tenure, empty_sqlite_database: Database) -> None:
    """The test replaces the SQL functions that only Tenure's own SQLite connections define."""
    dry_run = await asyncio.to_thread(tenure, "migrate", "--dry-run", "--database", empty_sqlite_database.url)
    for statement in dry_run.out.replace("tenure_now()", "0").replace("tenure_random_secret()", "x'00'").split(";"):
        if statement.strip():
            await empty_sqlite_database.execute(statement)
    assert await empty_sqlite_database.store.schema_revision() == REVISION


def test_unreachable_database_prints_one_line_error(tmp_path: Path) -> None:
    result = run_process("migrate", "--database", f"postgresql://user@/none?host={tmp_path}", cwd=tmp_path)
    assert (result.returncode, result.stderr.splitlines()[-1:]) == (1, ["tenure: the database cannot be reached"])
    assert "Traceback" not in result.stderr


def test_invalid_setting_stops_start(tenure: Tenure) -> None:
    for flag, value, words in (
        ("--port", "eighty", ["port", "0 to 65535"]),
        ("--database", "postgres://x/y", ["database", "postgresql://"]),
        ("--host", "0.0.0.0", ["host", "--insecure"]),
        ("--workers", "0", ["workers", "1 to 256"]),
        ("--prefix", "api", ["prefix", "/api/v3"]),
    ):
        result = tenure("serve", flag, value)
        (line,) = result.err.splitlines()
        assert (result.code, [word for word in words if word not in line]) == (2, []), line


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_setting_rejected_by_driver_stops_start(tmp_path: Path, workers: str) -> None:
    url = "postgresql://u:secret@127.0.0.1:1/db?sslmode=bogus"
    result = run_process("serve", "--port", "0", "--workers", workers, "--database", url, cwd=tmp_path)
    assert result.returncode == 2
    assert "tenure: database: `sslmode` parameter must be one of" in result.stderr
    assert "secret" not in result.stderr
