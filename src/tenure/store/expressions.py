"""SQL expressions that compile differently on each engine."""

from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, Boolean, ColumnElement, Select, case
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from tenure.store.types import Id, Instant


class microseconds_between(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """The microseconds from the first instant to the second. Exact for spans of any length."""

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
    """`meter.usage_of` in SQL: the usage, in millionths, of a number of microseconds at a factor in millionths."""

    type = BigInteger()
    name = "tenure_usage_1"
    inherit_cache = True


@compiles(usage_of)
def _usage_of(element: Any, compiler: Any, **options: Any) -> str:
    return f"tenure_usage_1({compiler.process(element.clauses, **options)})"


@compiles(usage_of, "mssql")
def _mssql_usage_of(element: Any, compiler: Any, **options: Any) -> str:
    return f"dbo.tenure_usage_1({compiler.process(element.clauses, **options)})"


class total_of(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """The sum of a column of integers. The sum may exceed the range of a 32-bit integer."""

    type = BigInteger()
    name = "total_of"
    inherit_cache = True


@compiles(total_of)
def _total_of(element: Any, compiler: Any, **options: Any) -> str:
    return f"sum({compiler.process(element.clauses, **options)})"


@compiles(total_of, "mssql")
def _mssql_total_of(element: Any, compiler: Any, **options: Any) -> str:
    return f"SUM(CAST({compiler.process(element.clauses, **options)} AS bigint))"


class unindexed(FunctionElement[str]):  # noqa: N801 - reads as the SQL function it is
    """An id for which the planner of SQLite must not use the index on ids.

    Otherwise SQLite would read all closed sessions in the order of ids, instead of sorting the few that closed
    recently.
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


LONG_SESSION = timedelta(days=31)


class was_long(FunctionElement[bool]):  # noqa: N801 - reads as the SQL function it is
    """Whether a closed session, given its start and end, lasted longer than LONG_SESSION.

    The index `sessions_closed_long` contains only the sessions for which this condition is true.
    """

    type = Boolean()
    name = "was_long"
    inherit_cache = True


@compiles(was_long, "postgresql")
def _postgresql_was_long(element: Any, compiler: Any, **options: Any) -> str:
    started_at, closed_at = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{closed_at} - {started_at} > INTERVAL '31 days'"


@compiles(was_long, "sqlite")
def _sqlite_was_long(element: Any, compiler: Any, **options: Any) -> str:
    started_at, closed_at = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{closed_at} - {started_at} > 2678400000000"


class unsearched(FunctionElement[bool]):  # noqa: N801 - reads as the SQL function it is
    """A condition for which the planner must not search an index. On SQL Server, the planner may still do so."""

    type = Boolean()
    name = "unsearched"
    inherit_cache = True


@compiles(unsearched)
def _unsearched(element: Any, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)}) IS TRUE"


@compiles(unsearched, "mssql")
def _mssql_unsearched(element: Any, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


def later_of(one: Any, other: Any) -> ColumnElement[Any]:
    return case((one > other, one), else_=other)


def earlier_of(one: Any, other: Any) -> ColumnElement[Any]:
    return case((one < other, one), else_=other)


def apart(statement: Select[Any]) -> Select[Any]:
    """Returns a subquery that PostgreSQL plans separately: it does not merge a subquery with OFFSET into the outer
    query.

    The zero is quoted because the planner then sees a constant. An unquoted zero needs a cast to bigint. The planner
    would treat this cast as an offset that may be greater than 0, and would therefore use no parallel workers.
    """
    return statement.suffix_with("OFFSET '0'", dialect="postgresql")


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
