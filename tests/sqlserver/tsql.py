"""Every T-SQL text of the package, found by looking for it, so that a new one cannot be forgotten."""

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

from sqlalchemy import TextClause
from sqlalchemy.sql.selectable import TextualSelect

from tenure.store import migrate
from tenure.store.engines import sqlserver
from tenure.store.migrations.dialects import BREAK

FOLDER = migrate.FOLDER / "sqlserver"
_STATEMENT = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|MERGE|EXEC|CALL|BEGIN|COMMIT|ROLLBACK|SET|THROW|CREATE)\b")
_NAME = re.compile(r"CREATE (?:FUNCTION|PROCEDURE) dbo\.(\w+)")
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_COMMENT = re.compile(r"--[^\n]*")


def routines() -> dict[str, str]:
    """The functions and procedures of the migrations, by name."""
    found = {}
    for path in sorted(FOLDER.glob("*.sql")):
        for statement in path.read_text(encoding="utf-8").split(BREAK):
            name = _NAME.search(statement)
            found[name[1] if name else f"{path.name}: {statement.strip()[:40]}"] = statement.strip()
    return found


def modules() -> list[ModuleType]:
    """All of the engine's."""
    return [
        importlib.import_module(f"{sqlserver.__name__}.{each.name}")
        for each in pkgutil.iter_modules(sqlserver.__path__)
    ]


def constants() -> dict[str, str]:
    """The statements of the engine's modules, by the names they have there."""
    values = {name: value for module in modules() for name, value in vars(module).items() if not name.startswith("__")}
    found = {name: _text(value) for name, value in values.items()}
    return {name: text for name, text in found.items() if text and _STATEMENT.search(text)}


def batches() -> dict[str, str]:
    """All that a server is ever given to read."""
    return routines() | constants()


def code(text: str) -> str:
    """Without comments, and with single blanks, so that a line break hides nothing."""
    return " ".join(_COMMENT.sub("", text).split())


def statements(text: str) -> list[str]:
    """One by one, without comments."""
    return [each.strip() for each in code(text).split(";") if each.strip()]


def sources() -> list[str]:
    return [Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules()]


def without_parameters(text: str) -> str:
    """With variables instead of SQLAlchemy's parameters, which no parser of T-SQL knows."""
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
