"""Every method of the store has a conformance test."""

import ast
import inspect
from pathlib import Path

from tenure.store.contract import Store

FOLDER = Path(__file__).parent


def _methods() -> set[str]:
    return {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}


def _tests() -> list[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.glob("test_*.py")]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    return [function.name for function in functions]


def test_every_store_method_is_tested_on_every_engine() -> None:
    tests = _tests()
    missing = {name for name in _methods() if not any(test.startswith(f"test_{name}__") for test in tests)}
    assert missing == set(), "name a conformance test test_<method>__<behaviour>"
