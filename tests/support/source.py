"""The source of the package as syntax trees, parsed once per process."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import tenure

PACKAGE = Path(tenure.__file__).parent


@cache
def syntax_trees() -> Mapping[Path, ast.Module]:
    """Returns the syntax trees by path relative to the package."""
    return {
        path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
    }
