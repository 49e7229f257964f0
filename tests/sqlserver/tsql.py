"""Finds every T-SQL text of the package, so that the checks cannot miss a new one."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from sqlalchemy import TextClause
from sqlalchemy.sql.selectable import TextualSelect

from tenure.store.engines import sqlserver
from tenure.store.migrations import functions

_STATEMENT = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|MERGE|EXEC|CALL|BEGIN|COMMIT|ROLLBACK|SET|THROW|CREATE)\b")
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_COMMENT = re.compile(r"--[^\n]*")


def for_each(names: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Turns a check into one test that runs the check for each name. If a check fails, a note names the case."""

    def decorate(check: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            cases = list(names)
            assert cases, "there is nothing to check"
            for name in cases:
                try:
                    check(name)
                except BaseException as error:
                    error.add_note(f"case: {name}")
                    raise

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def routines() -> dict[str, str]:
    """Returns the texts of the functions and procedures, by the names of their files."""
    return dict(functions.functions_of("mssql"))


def modules() -> list[ModuleType]:
    """The modules of the engine."""
    return [
        importlib.import_module(f"{sqlserver.__name__}.{each.name}")
        for each in pkgutil.iter_modules(sqlserver.__path__)
    ]


def constants() -> dict[str, str]:
    """Returns the SQL statements in the engine's modules, by the names of their constants."""
    values = {name: value for module in modules() for name, value in vars(module).items() if not name.startswith("__")}
    found = {name: _text(value) for name, value in values.items()}
    return {name: text for name, text in found.items() if text and _STATEMENT.search(text)}


def batches() -> dict[str, str]:
    """Returns all T-SQL texts by name: the routines, the statements of the engine, and DROP_OTHERS."""
    return routines() | constants() | {"DROP_OTHERS": functions.DROP_OTHERS["mssql"].replace("{names}", "'tenure_now'")}


def code(text: str) -> str:
    """Returns the text without comments, and with single blanks instead of line breaks."""
    return " ".join(_COMMENT.sub("", text).split())


def statements(text: str) -> list[str]:
    """The statements of a text, without comments."""
    return [each.strip() for each in code(text).split(";") if each.strip()]


def sources() -> list[str]:
    return [Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules()]


def without_parameters(text: str) -> str:
    """Replaces SQLAlchemy's parameters, which a T-SQL parser does not know, by variables."""
    return _PARAMETER.sub(r"@\1", text)


def looks_like_sql(text: str) -> bool:
    return bool(_STATEMENT.search(text))


def _text(value: object) -> str:
    match value:
        case str():
            return value
        case TextClause():
            return without_parameters(value.text)
        case TextualSelect():
            return _text(value.element)
    return ""
