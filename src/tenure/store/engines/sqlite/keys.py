"""API keys and signing keys. The write lock of the database file serializes their changes."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update

from tenure.domain.audit_log import Action, Actor
from tenure.domain.keys import LIVE_KEYS_PER_NAME, CreateKeyResult, NewKey, StoredKey, creation_detail
from tenure.domain.session_tokens import SIGNING_KEYS_MAX, RotateOutcome, SigningKey, rotation_detail
from tenure.store.engines.sqlite.audit_log import write_audit_entry
from tenure.store.reads.keys import create_result, find_key
from tenure.store.tables import installation, keys, signing_keys
from tenure.store.types import Instant


def create_key(connection: Connection, now: datetime, new: NewKey, actor: Actor) -> CreateKeyResult:
    if find_key(connection, new.public_id) is None:
        live = (
            keys.c.name == new.name,
            keys.c.revoked_at.is_(None),
            or_(keys.c.expires_at.is_(None), keys.c.expires_at > now),
        )
        taken = connection.execute(select(func.count()).select_from(keys).where(*live)).scalar_one()
        if taken < LIVE_KEYS_PER_NAME:
            if new.others_expire_at is not None:
                later = or_(keys.c.expires_at.is_(None), keys.c.expires_at > new.others_expire_at)
                connection.execute(update(keys).where(*live, later).values(expires_at=new.others_expire_at))
            _insert(connection, now, new, actor)
            _increase_version(connection)
            write_audit_entry(connection, now, actor, Action.KEY_CREATED, new.public_id, creation_detail(new))
    return create_result(new, find_key(connection, new.public_id))


def _insert(connection: Connection, now: datetime, new: NewKey, actor: Actor) -> None:
    connection.execute(
        insert(keys).values(
            public_id=new.public_id,
            name=new.name,
            role=new.role.value,
            tenant_object_id=new.tenant_object_id,
            digest=new.digest,
            created_at=now,
            created_by=actor.subject,
            expires_at=new.expires_at,
        )
    )


def revoke_key(connection: Connection, now: datetime, public_id: str, actor: Actor) -> StoredKey | None:
    unrevoked = keys.c.public_id == public_id, keys.c.revoked_at.is_(None)
    if connection.execute(update(keys).where(*unrevoked).values(revoked_at=now)).rowcount:
        _increase_version(connection)
        write_audit_entry(connection, now, actor, Action.KEY_REVOKED, public_id)
    return find_key(connection, public_id)


def touch_keys(connection: Connection, now: datetime, used_at: Mapping[str, datetime]) -> None:
    if not used_at:
        return
    used = bindparam("used", type_=Instant)
    earlier = or_(keys.c.last_used_at.is_(None), keys.c.last_used_at < used)
    statement = update(keys).where(keys.c.public_id == bindparam("key"), earlier).values(last_used_at=used)
    # Not later than `now`: an instance only estimates the database's clock, and the estimate may be too late.
    connection.execute(statement, [{"key": key, "used": min(at, now)} for key, at in used_at.items()])


def rotate_signing_key(
    connection: Connection, now: datetime, new: SigningKey, overlap: timedelta | None, actor: Actor
) -> RotateOutcome:
    row = signing_keys.c
    if connection.execute(select(row.key_id).where(row.key_id == new.key_id)).first() is not None:
        return RotateOutcome.ROTATED
    if overlap is None:
        connection.execute(delete(signing_keys))
    else:
        valid = (
            select(func.count()).select_from(signing_keys).where(or_(row.expires_at.is_(None), row.expires_at > now))
        )
        if connection.execute(valid).scalar_one() >= SIGNING_KEYS_MAX:
            return RotateOutcome.TOO_MANY
        connection.execute(delete(signing_keys).where(row.expires_at <= now))
        later = or_(row.expires_at.is_(None), row.expires_at > now + overlap)
        connection.execute(update(signing_keys).where(later).values(expires_at=now + overlap))
    connection.execute(insert(signing_keys).values(key_id=new.key_id, secret=new.secret, created_at=now))
    write_audit_entry(connection, now, actor, Action.SIGNING_KEY_ROTATED, new.key_id, rotation_detail(overlap))
    return RotateOutcome.ROTATED


def _increase_version(connection: Connection) -> None:
    connection.execute(update(installation).values(keys_version=installation.c.keys_version + 1))
