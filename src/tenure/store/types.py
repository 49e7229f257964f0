"""Column types with the same Python values on every engine: ids as canonical strings, instants as aware datetimes.

SQLite has neither type. It stores an id as text and an instant as microseconds since 1970, which sort correctly.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Dialect, LargeBinary, String, Uuid
from sqlalchemy.dialects.mssql import DATETIME2, VARBINARY, VARCHAR
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.types import TypeDecorator, TypeEngine

from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.leases import NAME_MAX
from tenure.domain.submissions import KEY_MAX
from tenure.ids import id_text

ID_LENGTH = 36
DIGEST_BYTES = 32

Name = String(NAME_MAX).with_variant(VARCHAR(NAME_MAX, collation="Latin1_General_100_BIN2"), "mssql")
"""The name of a lease, job, holder or gateway. The collation makes comparisons case-sensitive on SQL Server too."""
Key = String(KEY_MAX).with_variant(VARBINARY(KEY_MAX), "mssql")  # type: ignore[no-untyped-call]
"""An idempotency key. SQL Server ignores trailing blanks when it compares text, so the column stores bytes there."""
Payload = LargeBinary().with_variant(VARBINARY("max"), "mssql")  # type: ignore[no-untyped-call]
Digest = LargeBinary(DIGEST_BYTES).with_variant(VARBINARY(DIGEST_BYTES), "mssql")  # type: ignore[no-untyped-call]
"""Without VARBINARY, a migration script for SQL Server uses IMAGE, which supports neither SUBSTRING nor comparison."""


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
