"""Acquires, renews and ends leases, and checks fences.

The transaction holds the file's write lock, so no other transaction begins or ends an epoch or checks a fence at the
same time.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tenure.clock import from_microseconds
from tenure.domain.audit_log import Action, Actor
from tenure.domain.leases import JOB_LOCK, AcquireResult, Fence, Lease
from tenure.errors import LeaseLost
from tenure.store.engines.sqlite.audit_log import write_audit_entry
from tenure.store.reads.leases import LEASE_COLUMNS, lease_from_values
from tenure.store.tables import lease_history, leases


def lease_now(connection: Connection) -> datetime:
    microseconds: int = connection.exec_driver_sql("SELECT tenure_now()").scalar_one()
    return from_microseconds(microseconds)


def find_lease(connection: Connection, name: str, now: datetime) -> Lease | None:
    row = connection.execute(select(*LEASE_COLUMNS).where(leases.c.name == name)).mappings().one_or_none()
    return None if row is None else lease_from_values(row, now)


def check_fence(connection: Connection, fence: Fence) -> Lease:
    """Raises `LeaseLost` unless the holder of the fence holds the lease in the epoch of the fence. Every fenced write
    calls this function before it changes anything.
    """
    lease = find_lease(connection, fence.name, lease_now(connection))
    if lease is None or lease.fence != fence or not lease.held:
        raise LeaseLost(f"{fence.holder} does not hold the lease {fence.name} in epoch {fence.epoch}")
    return lease


def acquire_lease(
    connection: Connection, now: datetime, name: str, holder: str, attempt: str, duration_microseconds: int
) -> AcquireResult:
    old = find_lease(connection, name, now)
    if old is not None and old.held:
        return AcquireResult(old, taken=is_attempt(connection, name, attempt))
    lease = begin_epoch(connection, now, old, Fence(name, holder, 0), attempt, duration_microseconds)
    return AcquireResult(lease, taken=True, reclaimed=old is not None and not old.released)


def is_attempt(connection: Connection, name: str, attempt: str) -> bool:
    """Whether an earlier try of this call, whose answer was lost, has acquired the lease. All tries of a call pass the
    same id, `attempt`.
    """
    acquired_by = connection.execute(select(leases.c.attempt).where(leases.c.name == name)).scalar_one()
    return bool(acquired_by == attempt)


def begin_epoch(
    connection: Connection, now: datetime, old: Lease | None, wanted: Fence, attempt: str, duration_microseconds: int
) -> Lease:
    fence = Fence(wanted.name, wanted.holder, 1 if old is None else old.epoch + 1)
    values: dict[str, Any] = {
        "holder": fence.holder,
        "epoch": fence.epoch,
        "attempt": attempt,
        "acquired_at": now,
        "renewed_at": now,
        "expires_at": now + timedelta(microseconds=duration_microseconds),
        "released": False,
        "resigned": False,
    }
    if old is not None and not old.released:
        values["reclaimed_at"] = now
    if old is None:
        connection.execute(insert(leases).values(name=fence.name, **values))
    else:
        connection.execute(update(leases).where(leases.c.name == fence.name).values(**values))
    if not fence.name.startswith(JOB_LOCK):
        _record_begin(connection, now, old, fence)
    return lease_from_values({"name": fence.name, **values}, now)


def _record_begin(connection: Connection, now: datetime, old: Lease | None, fence: Fence) -> None:
    if old is not None:
        _record_end(connection, old, old.expires_at, "expired")
    connection.execute(
        insert(lease_history).values(name=fence.name, epoch=fence.epoch, holder=fence.holder, acquired_at=now)
    )


def _record_end(connection: Connection, lease: Lease, ended_at: datetime, how: str) -> None:
    history = lease_history.c
    connection.execute(
        update(lease_history)
        .where(history.name == lease.name, history.epoch == lease.epoch, history.ended_at.is_(None))
        .values(ended_at=ended_at, how=how)
    )


def renew_lease(connection: Connection, now: datetime, fence: Fence, duration_microseconds: int) -> Lease:
    check_fence(connection, fence)
    expires_at = now + timedelta(microseconds=duration_microseconds)
    return _write(connection, fence.name, now, renewed_at=now, expires_at=expires_at)


def release_lease(connection: Connection, now: datetime, fence: Fence) -> Lease:
    """Ends the epoch. If the epoch has already been ended by a release or a resignation, only returns the lease: an
    earlier call, whose answer was lost, may have released it.
    """
    lease = find_lease(connection, fence.name, now)
    if lease is not None and lease.fence == fence and lease.released:
        return lease
    return end_epoch(connection, now, check_fence(connection, fence), "released")


def resign_lease(connection: Connection, now: datetime, name: str, actor: Actor) -> Lease | None:
    lease = find_lease(connection, name, now)
    if lease is None or not lease.held:
        return lease
    detail = f"holder {lease.holder}, epoch {lease.epoch}"
    write_audit_entry(connection, now, actor, Action.LEASE_RESIGNED, name, detail)
    return end_epoch(connection, now, lease, "resigned")


def end_epoch(connection: Connection, now: datetime, lease: Lease, how: str) -> Lease:
    _record_end(connection, lease, now, how)
    return _write(connection, lease.name, now, expires_at=now, released=True, resigned=how == "resigned")


def _write(connection: Connection, name: str, now: datetime, **values: Any) -> Lease:
    connection.execute(update(leases).where(leases.c.name == name).values(**values))
    written = find_lease(connection, name, now)
    if written is None:
        raise AssertionError(f"the row of lease {name} does not exist")
    return written
