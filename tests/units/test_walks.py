"""The walks in ARCHITECTURE.md lead through functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tenure"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
WALKS = re.findall(r"^### (.+)\n\n((?:.+\n)+)", TEXT.partition("## Five walks")[2].partition("\n## ")[0], re.MULTILINE)
STOPS_MAX = 8


def stops(walk: str) -> list[tuple[str, str]]:
    return [tuple(stop.split(": ")) for stop in re.findall(r"^\d+\. `([^`]+)`", walk, re.MULTILINE)]  # type: ignore[misc]


def names_in(path: Path) -> set[str]:
    """Returns the names of functions and classes, and of methods as `Class.method`. For SQL, returns the names of the
    functions and procedures that the file defines.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        return set(re.findall(r"(?:FUNCTION|PROCEDURE) (?:dbo\.)?(\w+)", text))
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_there_are_five_walks() -> None:
    assert len(WALKS) == 5


@pytest.mark.parametrize(("title", "walk"), WALKS, ids=[title for title, _ in WALKS])
def test_walk_has_at_most_eight_stops_and_each_exists(title: str, walk: str) -> None:
    found = stops(walk)
    assert 0 < len(found) <= STOPS_MAX, title
    assert len(found) == len(re.findall(r"^\d+\. ", walk, re.MULTILINE)), "each item begins with `file: function`"
    missing = [stop for stop in found if not (SOURCE / stop[0]).exists() or stop[1] not in names_in(SOURCE / stop[0])]
    assert missing == []


@pytest.mark.parametrize(("title", "walk"), WALKS, ids=[title for title, _ in WALKS])
def test_walk_names_file_twice_only_where_data_returns(title: str, walk: str) -> None:
    items = re.split(r"^(?=\d+\. )", walk, flags=re.MULTILINE)[1:]
    seen: set[str] = set()
    for item, (file, _) in zip(items, stops(walk), strict=True):
        assert file not in seen or "returns here" in " ".join(item.split()), (title, file)
        seen.add(file)
