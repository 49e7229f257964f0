"""Applies revisions and installs functions. Each engine calls `upgrade` in a transaction that excludes other
migrations.
"""

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from tenure.errors import ConfigurationError
from tenure.store.tables import metadata

SCHEMA_TABLE = "tenure_schema"
OTHER_TYPES = text(
    "SELECT typname FROM pg_type WHERE typname = 'session_state' AND typnamespace = current_schema()::regnamespace"
)
FOLDER = Path(__file__).parent / "migrations"


def required_revision() -> str:
    """The lowest revision that this version of Tenure can use. Later revisions only add to the schema, so they work
    too.
    """
    return _newest_revision(FOLDER)


@cache
def _newest_revision(folder: Path) -> str:
    """Reads the folder only once in a process, because every call of the readiness probe asks for the revision."""
    return max(path.name.partition("_")[0] for path in (folder / "versions").glob("0*.py"))


def is_sufficient(revision: str | None) -> bool:
    return revision is not None and revision >= required_revision()


def current_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(SCHEMA_TABLE):
        return None
    revision: str | None = connection.execute(text(f"SELECT version_num FROM {SCHEMA_TABLE}")).scalar()  # noqa: S608
    return revision


def upgrade(connection: Connection) -> Sequence[str]:
    """Applies the missing revisions, and returns them. Does not change a schema that is newer than this version."""
    before = current_revision(connection)
    if is_sufficient(before):
        return []
    if before is None:
        _check_names_are_free(connection)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return _pending(before)


def _check_names_are_free(connection: Connection) -> None:
    """Refuses a database in which other tables, or on PostgreSQL another type, have names that Tenure uses. On
    PostgreSQL, also refuses a `search_path` that names no existing schema.
    """
    found = inspect(connection)
    if connection.dialect.name == "postgresql" and found.default_schema_name is None:
        raise ConfigurationError("database: no schema in the search_path exists; create one first")
    taken = sorted(set(found.get_table_names()) & set(metadata.tables))
    if taken:
        names = ", ".join(taken)
        raise ConfigurationError(f"database: another application has tables named {names}; see docs/library.md")
    if connection.dialect.name == "postgresql" and connection.scalar(OTHER_TYPES) is not None:
        raise ConfigurationError("database: another application has a type named session_state; see docs/library.md")


def script(before: str | None, dialect_name: str) -> str:
    """Returns the SQL that `upgrade` would run on a database with the revision `before`. None: no revision yet."""
    if is_sufficient(before):
        return ""
    output = io.StringIO()
    config = _config()
    config.attributes.update(dialect_name=dialect_name, output_buffer=output, starting_rev=before)
    command.upgrade(config, f"{before or 'base'}:head", sql=True)
    return output.getvalue()


def _pending(before: str | None) -> Sequence[str]:
    scripts = ScriptDirectory.from_config(_config())
    revisions = [script.revision for script in scripts.walk_revisions("base", "head")]
    return sorted(revision for revision in revisions if before is None or revision > before)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return config
