"""The reads of `keys` and `audit_log` that all engines share."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, or_, select

from tenure.domain.audit_log import AuditEntry, AuditFilter, AuditPosition
from tenure.domain.keys import CreateKeyOutcome, CreateKeyResult, KeysVersion, NewKey, StoredKey
from tenure.errors import IdTaken
from tenure.store.expressions import database_now
from tenure.store.tables import audit_log, installation, keys

KEY_COLUMNS = tuple(keys.c[name] for name in StoredKey.__struct_fields__)
ENTRY_COLUMNS = tuple(audit_log.c[name] for name in AuditEntry.__struct_fields__)


def key_from_values(values: Mapping[str, Any] | RowMapping) -> StoredKey:
    """Returns a key from the values of a table row by column name."""
    return StoredKey(**{column.name: values[column.name] for column in KEY_COLUMNS})


def create_result(new: NewKey, found: StoredKey | None) -> CreateKeyResult:
    """The result of a create, from the row with its public id after the call."""
    if found is None:
        return CreateKeyResult(CreateKeyOutcome.NAME_TAKEN)
    if found.digest != new.digest:
        raise IdTaken("another key has this public id")
    return CreateKeyResult(CreateKeyOutcome.CREATED, found)


def find_key(connection: Connection, public_id: str) -> StoredKey | None:
    row = connection.execute(find_statement(public_id)).mappings().first()
    return None if row is None else key_from_values(row)


def find_statement(public_id: str) -> Select[Any]:
    return select(*KEY_COLUMNS).where(keys.c.public_id == public_id)


def list_keys(connection: Connection, name: str | None, after: str | None, limit: int) -> Sequence[StoredKey]:
    return [key_from_values(row) for row in connection.execute(list_keys_statement(name, after, limit)).mappings()]


def list_keys_statement(name: str | None, after: str | None, limit: int) -> Select[Any]:
    statement = select(*KEY_COLUMNS)
    if name is not None:
        statement = statement.where(keys.c.name == name)
    if after is not None:
        statement = statement.where(keys.c.public_id > after)
    return statement.order_by(keys.c.public_id).limit(limit)


def read_keys_version(connection: Connection) -> KeysVersion:
    return KeysVersion(*connection.execute(version_statement()).one())


def version_statement() -> Select[Any]:
    return select(installation.c.keys_version, database_now())


def list_audit_log(
    connection: Connection, criteria: AuditFilter, after: AuditPosition | None, limit: int
) -> Sequence[AuditEntry]:
    rows = connection.execute(list_audit_log_statement(criteria, after, limit)).mappings()
    return [AuditEntry(**row) for row in rows]


def list_audit_log_statement(criteria: AuditFilter, after: AuditPosition | None, limit: int) -> Select[Any]:
    row = audit_log.c
    statement = select(*ENTRY_COLUMNS)
    for name in ("subject", "action", "target"):
        if (wanted := getattr(criteria, name)) is not None:
            statement = statement.where(row[name] == wanted)
    if criteria.from_at is not None:
        statement = statement.where(row.at >= criteria.from_at)
    if criteria.to_at is not None:
        statement = statement.where(row.at < criteria.to_at)
    if after is not None:
        # The first condition is redundant, but an index can be searched by it.
        statement = statement.where(row.at <= after.at, or_(row.at < after.at, row.entry_id < after.entry_id))
    return statement.order_by(row.at.desc(), row.entry_id.desc()).limit(limit)
