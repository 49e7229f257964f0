"""Only `clock.py` reads the clocks of this host."""

import ast
from collections.abc import Iterator

from tests.support.source import syntax_trees

READINGS = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}


def _readings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"from time import {name.name}" for name in node.names)
        if isinstance(node, ast.Attribute) and node.attr in READINGS:
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner in ("time", "datetime", "date"):
                yield f"{owner}.{node.attr}"


def test_only_clock_module_reads_host_clock() -> None:
    found = {str(path): list(_readings(tree)) for path, tree in syntax_trees().items()}
    assert found.pop("clock.py") != []
    assert {path: readings for path, readings in found.items() if readings} == {}


def test_clock_check_detects_time_imports_and_calls() -> None:
    source = "import time, datetime\nfrom time import monotonic\nx = time.time()\ny = datetime.now()\n"
    assert len(list(_readings(ast.parse(source)))) == 3
