"""Rules for the structure of the code base."""

import ast

from tenure.store import tables
from tests.support.source import syntax_trees

ENGINE_NAMES = ("sqlite", "postgres", "mssql", "sqlserver")


def test_modules_above_store_do_not_name_engines() -> None:
    """`config/` is an exception, because it checks database URLs."""
    named = [
        (str(path), node.value)
        for path, tree in syntax_trees().items()
        if path.parts[0] not in ("store", "config")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(name == node.value.lower() for name in ENGINE_NAMES)
    ]
    assert named == []


def test_session_indexes_exclude_columns_written_by_heartbeats() -> None:
    """Otherwise PostgreSQL would have to update an index with every heartbeat."""
    written = {"deadline_at", "last_heartbeat_at", "last_activity_at", "state", "modified_at", "lapse_reason"}
    for index in tables.sessions.indexes:
        assert written.isdisjoint(column.name for column in index.columns), index.name
