"""The shape of the code base."""

import ast
from pathlib import Path

import tenure
from tenure.store import tables

PACKAGE = Path(tenure.__file__).parent
ENGINE_NAMES = ("sqlite", "postgres", "mssql", "sqlserver")


def test_no_engine_is_named_above_the_store() -> None:
    """Configuration, which checks URLs, is the one exception."""
    above = [path for part in ("http", "sessions") for path in (PACKAGE / part).rglob("*.py")]
    above += [PACKAGE / "app.py", PACKAGE / "serving.py", PACKAGE / "readiness.py"]
    named = [
        (path.name, node.value)
        for path in above
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(name == node.value.lower() for name in ENGINE_NAMES)
    ]
    assert named == []


def test_no_index_contains_what_a_heartbeat_writes() -> None:
    """Else PostgreSQL cannot renew a session without touching an index."""
    moving = {"deadline_at", "last_heartbeat_at", "last_activity_at", "state", "modified_at", "lapse_reason"}
    for index in tables.sessions.indexes:
        assert moving.isdisjoint(column.name for column in index.columns), index.name
