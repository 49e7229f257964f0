"""Column types with the same Python values on every engine: ids as canonical strings, instants as aware datetimes.

SQLite has no types for ids and instants. It stores an id as text and an instant as microseconds since 1970; both sort
correctly. PostgreSQL stores the state and the lapse reason of a session in fewer bytes than their texts would take,
because every session has both.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Dialect, LargeBinary, String, Uuid
from sqlalchemy.dialects.mssql import DATETIME2, VARBINARY, VARCHAR
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.leases import NAME_MAX
from tenure.domain.submissions import KEY_MAX
from tenure.ids import id_text

ID_LENGTH = 36
DIGEST_BYTES = 32

Name = String(NAME_MAX).with_variant(VARCHAR(NAME_MAX, collation="Latin1_General_100_BIN2"), "mssql")
"""A short text, such as the name of a lease, job, holder or gateway. The collation makes comparisons case-sensitive on
SQL Server too."""
Key = String(KEY_MAX).with_variant(VARBINARY(KEY_MAX), "mssql")  # type: ignore[no-untyped-call]
"""An idempotency key. SQL Server ignores trailing blanks when it compares text, so the column stores bytes there."""
Payload = LargeBinary().with_variant(VARBINARY("max"), "mssql")  # type: ignore[no-untyped-call]
Digest = LargeBinary(DIGEST_BYTES).with_variant(VARBINARY(DIGEST_BYTES), "mssql")  # type: ignore[no-untyped-call]
"""Without the variant VARBINARY, a migration script for SQL Server would use IMAGE, which supports neither SUBSTRING
nor comparison."""


class Id(TypeDecorator[str]):
    impl = Uuid(as_uuid=False)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(String(ID_LENGTH))
        return dialect.type_descriptor(Uuid(as_uuid=False))

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        if value is None or dialect.name == "sqlite":
            return value
        return id_text(value)


class Instant(TypeDecorator[datetime]):
    impl = TIMESTAMP(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(BigInteger())
        if dialect.name == "mssql":
            return dialect.type_descriptor(DATETIME2(6))  # type: ignore[no-untyped-call]
        return dialect.type_descriptor(TIMESTAMP(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        if dialect.name == "sqlite":
            return to_microseconds(value)
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if dialect.name == "sqlite":
            return from_microseconds(value)
        instant: datetime = value
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


class _Stored(UserDefinedType[str]):
    """A type of PostgreSQL, by its name."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_options: Any) -> str:
        return self.name

    def literal_processor(self, dialect: Dialect) -> Callable[[Any], str] | None:
        processor: Callable[[Any], str] = String().literal_processor(dialect)  # type: ignore[no-untyped-call]
        return processor


class Code(TypeDecorator[str]):
    """A text with few possible values, which PostgreSQL stores as the type `stored`. Statements return it as text, and
    take it as text in parameters.

    If a statement returned values of the stored type, the driver would query the definition of the type on every new
    connection. `as_text` is the SQL expression that converts a stored value to text; `{}` stands for the value.
    """

    impl = String(16)
    cache_ok = True

    def __init__(self, stored: str, as_text: str) -> None:
        super().__init__()
        self.stored = stored
        self.as_text = as_text

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(_Stored(self.stored))
        return dialect.type_descriptor(String(16))

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return _CodeText(column, self.as_text)

    def bind_expression(self, bindvalue: BindParameter[Any]) -> ColumnElement[Any]:
        return _TextCode(bindvalue, self.stored)


class _CodeText(FunctionElement[str]):
    type = String(16)
    name = "code_text"
    inherit_cache = False

    def __init__(self, column: ColumnElement[Any], as_text: str) -> None:
        super().__init__(column)
        self.as_text = as_text


@compiles(_CodeText)
def _code_text(element: Any, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(_CodeText, "postgresql")
def _postgresql_code_text(element: Any, compiler: Any, **options: Any) -> str:
    return str(element.as_text.format(compiler.process(element.clauses, **options)))


class _TextCode(FunctionElement[str]):
    type = String(16)
    name = "text_code"
    inherit_cache = False

    def __init__(self, value: BindParameter[Any], stored: str) -> None:
        super().__init__(value)
        self.stored = stored


@compiles(_TextCode)
def _text_code(element: Any, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(_TextCode, "postgresql")
def _postgresql_text_code(element: Any, compiler: Any, **options: Any) -> str:
    return f"CAST(CAST({compiler.process(element.clauses, **options)} AS text) AS {element.stored})"


SESSION_STATES = "CREATE TYPE session_state AS ENUM ('created', 'active', 'closing', 'closed')"
SessionState = Code("session_state", "CAST({} AS text)")
"""Four bytes on PostgreSQL. SESSION_STATES creates the type there."""
LapseReason = Code('"char"', "tenure_lapse_text_1({})")
"""One byte on PostgreSQL: the first letter of the reason. The conversion from text drops the other letters."""
