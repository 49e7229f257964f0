"""An upgrade applies the next revision to a database with rows, and installs the functions of the new version."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.domain.scope import EVERYTHING
from tenure.store import migrate
from tenure.store.migrations import functions
from tests.support.databases import Database
from tests.support.rows import fill_postgres, fill_sqlite

HEAD = migrate.required_revision()
NEXT = f"{int(HEAD) + 1:04}"
REVISION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{HEAD}"


def upgrade() -> None:
    op.add_column("capacities", sa.Column("note", sa.String(16)))
"""


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Returns a function that makes the store use two copies: one of the migrations, with one more revision, and one of
    the engine's function files. The function returns the folder of the copied function files, which a test may change.
    """

    def make(dialect: str) -> Path:
        folder = tmp_path / "migrations"
        shutil.copytree(migrate.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / f"{NEXT}_next.py").write_text(REVISION, encoding="utf-8")
        monkeypatch.setattr(migrate, "FOLDER", folder)
        if dialect in functions.FOLDERS:
            shutil.copytree(functions.folder_of(dialect), tmp_path / dialect)
            monkeypatch.setattr(functions, "folder_of", lambda name: tmp_path / name)
        return tmp_path / dialect

    return make


async def test_upgrade_keeps_rows(database: Database, next_version: Callable[[str], Path]) -> None:
    rows = 4
    if database.engine == "sqlite":
        await fill_sqlite(database, rows)
    elif database.engine == "postgresql":
        await fill_postgres(database.url, rows)
    else:
        rows = 0  # there is no function that fills a SQL Server
    next_version(database.store.dialect_name)
    assert await database.store.schema_revision() == HEAD
    assert await database.store.migrate() == [NEXT]
    assert await database.store.schema_revision() == NEXT
    assert (await database.store.count_sessions(EVERYTHING)).total == rows
    assert await database.rows("SELECT note FROM capacities") == []


async def test_upgrade_replaces_functions_and_drops_functions_without_file(
    postgres_database: Database, next_version: Callable[[str], Path]
) -> None:
    folder = next_version("postgresql")
    # An upgrade does not drop `tenure_report`, because the name does not end with a version.
    await postgres_database.execute("CREATE FUNCTION tenure_report() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    await postgres_database.execute("CREATE FUNCTION tenure_usage_1(int) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    changed = (folder / "tenure_grid_at_1.sql").read_text(encoding="utf-8").replace("SELECT p_at -", "SELECT p_at +")
    (folder / "tenure_grid_at_1.sql").write_text(changed, encoding="utf-8")
    (folder / "tenure_usage_1.sql").rename(folder / "tenure_usage_2.sql")
    (folder / "tenure_usage_2.sql").write_text(
        (folder / "tenure_usage_2.sql").read_text(encoding="utf-8").replace("tenure_usage_1(", "tenure_usage_2("),
        encoding="utf-8",
    )
    await postgres_database.store.migrate()
    found = await postgres_database.rows("SELECT proname, prosrc FROM pg_proc WHERE proname LIKE 'tenure%'")
    sources = {row["proname"]: row["prosrc"] for row in found}
    # `tenure_opened_1` is the file of a type, not of a function.
    assert sources.keys() == {*functions.functions_of("postgresql"), "tenure_report"} - {"tenure_opened_1"}
    assert "SELECT p_at +" in sources["tenure_grid_at_1"]


async def test_migrate_changes_no_functions_without_new_revision(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`migrate` of an older version must not replace or drop the functions of a newer schema."""
    monkeypatch.setattr(functions, "folder_of", lambda _name: tmp_path)
    assert await postgres_database.store.migrate() == []
    assert await postgres_database.rows("SELECT FROM pg_proc WHERE proname = 'tenure_usage_1'") != []


async def test_failed_upgrade_changes_nothing(postgres_database: Database, next_version: Callable[[str], Path]) -> None:
    folder = next_version("postgresql")
    (folder / "tenure_zzz_1.sql").write_text("CREATE OR REPLACE FUNCTION tenure_zzz_1(", encoding="utf-8")
    (folder / "tenure_usage_1.sql").unlink()
    with pytest.raises(Exception, match="syntax error"):
        await postgres_database.store.migrate()
    assert await postgres_database.store.schema_revision() == HEAD
    assert await postgres_database.rows("SELECT FROM pg_proc WHERE proname = 'tenure_usage_1'") != []
