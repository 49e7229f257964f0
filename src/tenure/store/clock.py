"""The database's clock as an SQL expression: the only clock that decides anything.

Each engine compiles it to the function `tenure_now`, which is the one place where tests replace the clock.
"""

from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from tenure.store.types import Instant


class database_now(FunctionElement[Any]):  # noqa: N801 - reads as the SQL function it is
    type = Instant()
    name = "tenure_now"
    inherit_cache = True


@compiles(database_now)
def _default(_element: ColumnElement[Any], _compiler: Any, **_options: Any) -> str:
    return "tenure_now()"


@compiles(database_now, "mssql")
def _mssql(_element: ColumnElement[Any], _compiler: Any, **_options: Any) -> str:
    return "dbo.tenure_now()"
