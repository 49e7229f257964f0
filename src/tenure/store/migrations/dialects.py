"""What a migration needs to know about engines: where their own SQL lies."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

FOLDERS = {"postgresql": "postgres", "mssql": "sqlserver"}
BREAK = "-- statement-break"


def create_functions(file: str) -> None:
    """Runs the statements of `file` from this engine's folder; SQLite has no functions of its own."""
    folder = FOLDERS.get(op.get_context().dialect.name)
    if folder is None:
        return
    for statement in (Path(__file__).parent / folder / file).read_text(encoding="utf-8").split(BREAK):
        # A colon in these files is a cast, an assignment or prose, never a parameter.
        op.execute(text(statement.strip().replace(":", "\\:")))
