"""Each function file has one definition of the same name, has a caller, and calls only functions that have files."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure.store
from tenure.store.migrations.functions import FOLDERS, called_in, folder_of, functions_of
from tests.migrations import release

STORE = Path(next(iter(tenure.store.__path__)))
DEFINITIONS = {
    "postgresql": re.compile(r"\bCREATE (?:OR REPLACE FUNCTION|TYPE) (\w+)"),
    "mssql": re.compile(r"\bCREATE OR ALTER (?:FUNCTION|PROCEDURE) dbo\.(\w+)"),
}
UNVERSIONED = {"tenure_now", "tenure_write_now"}
"""Functions without a version in their names, because older and newer instances must read the same clock."""
CALLED_BY_APPLICATIONS = {"tenure_check_fence_1"}
"""Functions without a caller in Tenure: docs/library.md documents them for applications."""
dialects = pytest.mark.parametrize("dialect", sorted(FOLDERS))


def code(definition: str) -> str:
    return re.sub(r"--[^\n]*", "", definition)


def literals(path: Path) -> Iterator[str]:
    """The string literals of a module, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def called_from_python(dialect: str) -> set[str]:
    """The functions that the Python code of this engine, or code that the engines share, calls."""
    others = [STORE / "engines" / folder for folder in ("sqlite", *FOLDERS.values()) if folder != FOLDERS[dialect]]
    paths = [path for path in STORE.rglob("*.py") if not any(path.is_relative_to(other) for other in others)]
    text = "\n".join(literal for path in paths if "migrations" not in path.parts for literal in literals(path))
    prefix = r"dbo\." if dialect == "mssql" else r"(?<!dbo\.)\b"
    end = r"\b" if dialect == "mssql" else r"(?=\()"
    return set(re.findall(rf"{prefix}(tenure_\w+){end}", text))


@dialects
def test_file_contains_one_definition_with_its_name(dialect: str) -> None:
    for path in folder_of(dialect).iterdir():
        assert path.suffix == ".sql", path
        assert DEFINITIONS[dialect].findall(code(path.read_text(encoding="utf-8"))) == [path.stem]


@dialects
def test_file_begins_with_comment(dialect: str) -> None:
    assert [name for name, definition in functions_of(dialect).items() if not definition.startswith("-- ")] == []


@dialects
def test_function_name_ends_with_version(dialect: str) -> None:
    names = functions_of(dialect).keys() - UNVERSIONED
    assert [name for name in names if not re.fullmatch(r"tenure_[a-z_]+_[1-9]\d?", name)] == []


def called_by_releases(dialect: str) -> set[str]:
    """The functions that instances of the last releases call."""
    recorded = release.load()[-release.SUPPORTED :]
    return called_in("\n".join(call["text"] for each in recorded for call in each[dialect].values()))


@dialects
def test_every_function_has_caller(dialect: str) -> None:
    """If this test fails, delete the files of the functions that neither the code nor the last two releases call."""
    definitions = functions_of(dialect)
    called = called_from_python(dialect) | CALLED_BY_APPLICATIONS | called_by_releases(dialect)
    for name, definition in definitions.items():
        called |= called_in(definition) - {name}
    assert definitions.keys() - called == set()


@dialects
def test_every_called_function_has_file(dialect: str) -> None:
    called = called_from_python(dialect).union(*(called_in(each) for each in functions_of(dialect).values()))
    assert called - functions_of(dialect).keys() == set()
    assert called_from_python(dialect), "no call was found"


@dialects
def test_function_is_installed_after_functions_it_calls(dialect: str) -> None:
    installed: set[str] = set()
    for name, definition in functions_of(dialect).items():
        assert called_in(definition) - {name} <= installed, name
        installed.add(name)


def test_sqlite_has_no_functions() -> None:
    assert functions_of("sqlite") == {}
