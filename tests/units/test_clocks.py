"""Only one module reads this host's clocks."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure

PACKAGE = Path(tenure.__file__).parent
FILES = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "clock.py"]
READINGS = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}


def _readings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"from time import {name.name}" for name in node.names)
        if isinstance(node, ast.Attribute) and node.attr in READINGS:
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner in ("time", "datetime", "date"):
                yield f"{owner}.{node.attr}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_module_reads_a_host_clock(path: Path) -> None:
    assert list(_readings(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_the_ban_sees_every_way_to_read_one() -> None:
    source = "import time, datetime\nfrom time import monotonic\nx = time.time()\ny = datetime.now()\n"
    assert len(list(_readings(ast.parse(source)))) == 3
