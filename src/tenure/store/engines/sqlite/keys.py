"""API keys and the audit log. The file's write lock lets one change happen after the other."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, func, insert, or_, select, update

from tenure.domain.audit_log import Action, Actor
from tenure.domain.keys import LIVE_KEYS_PER_NAME, CreateKeyResult, NewKey, StoredKey, creation_detail
from tenure.ids import new_id
from tenure.store.reads.keys import create_result, find_key
from tenure.store.tables import audit_log, installation, keys
from tenure.store.types import Instant


def write_audit_entry(
    connection: Connection, now: datetime, actor: Actor, action: Action, target: str, detail: str | None = None
) -> None:
    """Call it in the transaction of the change, and only if the transaction has changed something."""
    connection.execute(
        insert(audit_log).values(
            entry_id=new_id(),
            at=now,
            subject=actor.subject,
            name=actor.name,
            action=action.value,
            target=target,
            detail=detail,
            request_id=actor.request_id,
        )
    )


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
    # Not after `now`: an instance only estimates the database's clock.
    connection.execute(statement, [{"key": key, "used": min(at, now)} for key, at in used_at.items()])


def _increase_version(connection: Connection) -> None:
    connection.execute(update(installation).values(keys_version=installation.c.keys_version + 1))
