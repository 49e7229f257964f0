"""The command line as a person meets it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from tenure.cli.main import app
from tests.support.databases import Database

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "commands.md"


def tenure(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=30,
        check=False,
    )


def test_migrate_says_what_it_did(empty_database: Database, tmp_path: Path) -> None:
    first = tenure("migrate", "--database", empty_database.url, cwd=tmp_path)
    second = tenure("migrate", "--database", empty_database.url, cwd=tmp_path)
    assert (first.returncode, first.stdout) == (0, "migrated to 0005\n")
    assert (second.returncode, second.stdout) == (0, "up to date (0005)\n")


async def test_a_dry_run_prints_the_sql_and_changes_nothing(empty_database: Database, tmp_path: Path) -> None:
    shown = tenure("migrate", "--dry-run", "--database", empty_database.url, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "CREATE TABLE sessions" in shown.stdout
    assert await empty_database.store.schema_revision() is None


async def test_what_a_dry_run_prints_makes_the_schema(empty_sqlite_database: Database, tmp_path: Path) -> None:
    """On SQLite but for the clock, which every connection of Tenure brings along."""
    shown = tenure("migrate", "--dry-run", "--database", empty_sqlite_database.url, cwd=tmp_path)
    for statement in shown.stdout.replace("tenure_now()", "0").split(";"):
        if statement.strip():
            await empty_sqlite_database.execute(statement)
    assert await empty_sqlite_database.store.schema_revision() == "0005"


def test_a_dry_run_on_a_current_schema_has_nothing_to_do(database: Database, tmp_path: Path) -> None:
    shown = tenure("migrate", "--dry-run", "--database", database.url, cwd=tmp_path)
    assert shown.stdout == "-- up to date (0005)\n"


def test_a_database_out_of_reach_is_told_in_one_line(tmp_path: Path) -> None:
    result = tenure("migrate", "--database", f"postgresql://nobody@/none?host={tmp_path}", cwd=tmp_path)
    assert (result.returncode, result.stderr.splitlines()[-1:]) == (1, ["tenure: the database cannot be reached"])
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "eighty"], ["port", "0 to 65535"]),
        (["serve", "--database", "postgres://x/y"], ["database", "postgresql://"]),
        (["serve", "--host", "0.0.0.0"], ["host", "--insecure"]),
        (["serve", "--workers", "0"], ["workers", "1 to 256"]),
        (["serve", "--prefix", "api"], ["prefix", "/api/v3"]),
    ],
)
def test_a_wrong_setting_stops_the_start(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    result = tenure(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert all(word in line for word in words), line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_setting_that_only_the_driver_knows_to_be_wrong_stops_the_start_too(tmp_path: Path, workers: str) -> None:
    url = "postgresql://u:secret@127.0.0.1:1/db?sslmode=bogus"
    result = tenure("serve", "--port", "0", "--workers", workers, "--database", url, cwd=tmp_path)
    assert result.returncode == 2
    assert "tenure: database: `sslmode` parameter must be one of" in result.stderr
    assert "secret" not in result.stderr


def _commands() -> dict[str, Any]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return dict(group.commands)


@pytest.mark.parametrize("name", _commands())
def test_every_command_and_flag_is_documented(name: str) -> None:
    section = DOCUMENT.read_text(encoding="utf-8").partition(f"## `tenure {name}`")[2].partition("\n## ")[0]
    flags = [flag for parameter in _commands()[name].params for flag in parameter.opts if flag != "--help"]
    assert section, f"docs/commands.md does not describe {name}"
    assert [flag for flag in flags if f"`{flag}`" not in section] == []
