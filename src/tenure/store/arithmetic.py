"""SQL expressions that each engine spells in its own way."""

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, case
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from tenure.store.types import Id


class microseconds_between(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """From the first instant to the second: exact, whole, and of any length."""

    type = BigInteger()
    name = "microseconds_between"
    inherit_cache = True


@compiles(microseconds_between, "postgresql")
def _postgresql_between(element: Any, compiler: Any, **options: Any) -> str:
    earlier, later = (compiler.process(clause, **options) for clause in element.clauses)
    return f"CAST(extract(epoch FROM ({later} - {earlier})) * 1000000 AS bigint)"


@compiles(microseconds_between, "sqlite")
def _sqlite_between(element: Any, compiler: Any, **options: Any) -> str:
    earlier, later = (compiler.process(clause, **options) for clause in element.clauses)
    return f"({later} - {earlier})"


@compiles(microseconds_between, "mssql")
def _mssql_between(element: Any, compiler: Any, **options: Any) -> str:
    earlier, later = (compiler.process(clause, **options) for clause in element.clauses)
    return f"DATEDIFF_BIG(microsecond, {earlier}, {later})"


class usage_of(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """`meter.usage_of`, of microseconds and a factor."""

    type = BigInteger()
    name = "tenure_usage_1"
    inherit_cache = True


@compiles(usage_of)
def _usage_of(element: Any, compiler: Any, **options: Any) -> str:
    return f"tenure_usage_1({compiler.process(element.clauses, **options)})"


@compiles(usage_of, "mssql")
def _mssql_usage_of(element: Any, compiler: Any, **options: Any) -> str:
    return f"dbo.tenure_usage_1({compiler.process(element.clauses, **options)})"


class unindexed(FunctionElement[str]):  # noqa: N801 - reads as the SQL function it is
    """An id that is not to be searched or sorted by its own index.

    SQLite would otherwise read all that ever closed in the order of ids, rather than sort the few that closed lately.
    """

    type = Id()
    name = "unindexed"
    inherit_cache = True


@compiles(unindexed)
def _unindexed(element: Any, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(unindexed, "sqlite")
def _sqlite_unindexed(element: Any, compiler: Any, **options: Any) -> str:
    return f"+{compiler.process(element.clauses, **options)}"


def later_of(one: Any, other: Any) -> ColumnElement[Any]:
    return case((one > other, one), else_=other)


def earlier_of(one: Any, other: Any) -> ColumnElement[Any]:
    return case((one < other, one), else_=other)


def apart(statement: Select[Any]) -> Select[Any]:
    """A subquery that PostgreSQL plans by itself, and not as a part of what it stands in.

    In quotes the zero is a constant from the beginning. A bare one is cast to one, looks like a limit until then, and
    keeps PostgreSQL from dividing the work among its workers.
    """
    return statement.suffix_with("OFFSET '0'", dialect="postgresql")
