"""Two column types that read the same on every engine: ids as canonical strings, instants as aware datetimes.

SQLite has neither type: there an id is its text and an instant whole microseconds since 1970, both of which sort and
compare as they should.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Dialect, LargeBinary, String, Uuid
from sqlalchemy.dialects.mssql import DATETIME2, VARBINARY, VARCHAR
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.types import TypeDecorator, TypeEngine

from tenure.clock import from_microseconds, to_microseconds
from tenure.ids import id_text
from tenure.model.leases import NAME_MAX
from tenure.model.submissions import KEY_MAX

ID_LENGTH = 36
DIGEST_BYTES = 32

Name = String(NAME_MAX).with_variant(VARCHAR(NAME_MAX, collation="Latin1_General_100_BIN2"), "mssql")
"""Of leases, jobs, holders and gateways. SQL Server, too, is to tell capitals from small letters."""
Key = String(KEY_MAX).with_variant(VARBINARY(KEY_MAX), "mssql")  # type: ignore[no-untyped-call]
"""That a caller brings, so that what is sent twice is done once. To SQL Server a blank at the end of a text is nothing,
so there its bytes are kept."""
Payload = LargeBinary().with_variant(VARBINARY("max"), "mssql")  # type: ignore[no-untyped-call]
Digest = LargeBinary(DIGEST_BYTES).with_variant(VARBINARY(DIGEST_BYTES), "mssql")  # type: ignore[no-untyped-call]
"""SQL Server would otherwise be given IMAGE by a migration's script, which can be neither cut nor compared."""


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
