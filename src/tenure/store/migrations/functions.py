"""The functions of an engine: `engines/<engine>/functions/<name>.sql` is the current definition of the function <name>.

A revision does not define functions. Every upgrade that applies a revision also installs all functions, in the same
transaction. So a database has the functions of the newest version that migrated it.
"""

import re
from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from alembic.migration import MigrationContext
from sqlalchemy import text

FOLDERS = {"postgresql": "postgres", "mssql": "sqlserver"}
"""SQLite is missing, because it has no stored functions: its writes are in Python."""
_COMMENT = re.compile(r"--[^\n]*")
_NAME = re.compile(r"(?<!')\btenure_\w+")


def folder_of(dialect_name: str) -> Path:
    return Path(__file__).parents[1] / "engines" / FOLDERS[dialect_name] / "functions"


def functions_of(dialect_name: str) -> Mapping[str, str]:
    """The definitions of the engine's functions by name. Each function comes after the functions that it calls."""
    if dialect_name not in FOLDERS:
        return {}
    files = sorted(folder_of(dialect_name).glob("*.sql"))
    definitions = {path.stem: path.read_text(encoding="utf-8").strip() for path in files}
    # Sorted, so that the order is the same in every process.
    calls = {
        name: sorted(called_in(definition) & definitions.keys() - {name}) for name, definition in definitions.items()
    }
    return {name: definitions[name] for name in TopologicalSorter(calls).static_order()}


def called_in(code: str) -> set[str]:
    """The names in `code` that begin with `tenure_`, except those in comments and those that follow a quote."""
    return set(_NAME.findall(_COMMENT.sub("", code)))


def install_functions(migration: MigrationContext, only: Collection[str] | None = None) -> None:
    """Creates or replaces all functions, and drops those without a file. With `only`, creates or replaces just the
    functions that a revision needs, and drops none.
    """
    definitions = functions_of(migration.dialect.name)
    for name, definition in definitions.items():
        if only is None or name in only:
            _execute(migration, definition)
    if only is None and definitions:
        names = ", ".join(f"'{name}'" for name in sorted(definitions))
        _execute(migration, DROP_OTHERS[migration.dialect.name].replace("{names}", names))


def _execute(migration: MigrationContext, statement: str) -> None:
    # A colon in these texts is never a parameter: it is part of a cast, an assignment, a slice, a string or a comment.
    migration.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


DROP_OTHERS = {
    "postgresql": r"""
DO $$
DECLARE
    v_function regprocedure;
BEGIN
    FOR v_function IN
        SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE n.nspname = current_schema() AND p.proname ~ '^tenure_\w+_[0-9]+$' AND p.proname NOT IN ({names})
    LOOP
        EXECUTE format('DROP FUNCTION %s', v_function);
    END LOOP;
END
$$;
""",
    "mssql": """
DECLARE @drop nvarchar(MAX) = (
    SELECT
        STRING_AGG(
            CONVERT(
                nvarchar(MAX),
                CONCAT(CASE o.type WHEN 'P' THEN N'DROP PROCEDURE' ELSE N'DROP FUNCTION' END, N' dbo.', o.name, N'; ')
            ),
            N''
        )
    FROM sys.objects AS o
    WHERE
        o.schema_id = SCHEMA_ID(N'dbo') AND o.type IN ('P', 'FN', 'IF', 'TF')
        AND (o.name LIKE N'tenure[_]%[_][0-9]' OR o.name LIKE N'tenure[_]%[_][0-9][0-9]')
        AND o.name NOT IN ({names})
);
IF @drop IS NOT NULL
    EXEC sys.sp_executesql @drop;
""",
}
"""SQL that drops every function or procedure named `tenure_<name>_<version>` that is not in `{names}`."""
