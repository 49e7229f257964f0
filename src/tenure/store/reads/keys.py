"""The reads of `keys`, `signing_keys` and `audit_log` that all engines share."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, or_, select, true

from tenure.domain.audit_log import AuditEntry, AuditFilter, AuditPosition
from tenure.domain.keys import CreateKeyOutcome, CreateKeyResult, KeysVersion, NewKey, StoredKey
from tenure.domain.session_tokens import SigningKey
from tenure.errors import IdTaken
from tenure.store.expressions import database_now, unsearched
from tenure.store.tables import audit_log, installation, keys, signing_keys

KEY_COLUMNS = tuple(keys.c[name] for name in StoredKey.__struct_fields__)
ENTRY_COLUMNS = tuple(audit_log.c[name] for name in AuditEntry.__struct_fields__)


def key_from_values(values: Mapping[str, Any] | RowMapping) -> StoredKey:
    """Returns a key from the values of a table row by column name."""
    return StoredKey(**{column.name: values[column.name] for column in KEY_COLUMNS})


def create_result(new: NewKey, found: StoredKey | None) -> CreateKeyResult:
    """The result of `create_key`. `found` is the row that has the public id of `new` after the write, if there is
    one.
    """
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
    return version_of([tuple(row) for row in connection.execute(version_statement())])


def version_statement() -> Select[Any]:
    row = signing_keys.c
    columns = installation.c.keys_version, database_now(), row.key_id, row.secret, row.expires_at
    return select(*columns).select_from(installation.outerjoin(signing_keys, true()))


def version_of(rows: Sequence[Sequence[Any]]) -> KeysVersion:
    """Converts the rows of `version_statement`: one row per signing key, or one row without a key if there is none."""
    found = tuple(SigningKey(key_id, bytes(secret), expires) for *_, key_id, secret, expires in rows if key_id)
    version, now, *_ = rows[0]
    return KeysVersion(version, now, found)


def get_audit_entry(connection: Connection, entry_id: str) -> AuditEntry | None:
    row = connection.execute(audit_entry_statement(entry_id)).mappings().one_or_none()
    return None if row is None else AuditEntry(**row)


def audit_entry_statement(entry_id: str) -> Select[Any]:
    return select(*ENTRY_COLUMNS).where(audit_log.c.entry_id == entry_id)


def list_audit_log(
    connection: Connection, criteria: AuditFilter, after: AuditPosition | None, limit: int
) -> Sequence[AuditEntry]:
    rows = connection.execute(list_audit_log_statement(criteria, after, limit)).mappings()
    return [AuditEntry(**row) for row in rows]


def list_audit_log_statement(criteria: AuditFilter, after: AuditPosition | None, limit: int) -> Select[Any]:
    """Reads one index: the index of the filter that usually has the fewest entries or, without a filter, the index by
    time.

    The planner must not search an index by the other filters. Otherwise it might search the index by action for an
    action that nearly all entries have.
    """
    row = audit_log.c
    statement = select(*ENTRY_COLUMNS)
    given = [name for name in ("target", "subject", "action") if getattr(criteria, name) is not None]
    for name in given[:1]:
        # Written as a range: with `=`, the planner might read the entries of all values in the order of time.
        wanted = getattr(criteria, name)
        statement = statement.where(row[name] >= wanted, row[name] <= wanted).order_by(row[name].desc())
    for name in given[1:]:
        statement = statement.where(unsearched(row[name] == getattr(criteria, name)))
    if criteria.from_at is not None:
        statement = statement.where(row.at >= criteria.from_at)
    if criteria.to_at is not None:
        statement = statement.where(row.at < criteria.to_at)
    if after is not None:
        # An index can be searched by the first condition alone. The second one excludes the entries of the same instant
        # that are on an earlier page, and the last entry of the previous page itself.
        statement = statement.where(row.at <= after.at, or_(row.at < after.at, row.entry_id < after.entry_id))
    return statement.order_by(row.at.desc(), row.entry_id.desc()).limit(limit)
