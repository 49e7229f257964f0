"""Maps errors of PostgreSQL and asyncpg to the causes that `store/retries.py` handles."""

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tenure.store.retries import Cause

LEASE_LOST = "TL001"
"""The SQLSTATE that Tenure's functions raise if a lease was lost. The connection remains usable."""

_CAUSES = {
    LEASE_LOST: Cause.LEASE_LOST,
    "23505": Cause.DUPLICATE,
    "40P01": Cause.DEADLOCK,
    "40001": Cause.DEADLOCK,
    "55P03": Cause.LOCK_TIMEOUT,
    "57014": Cause.TIMEOUT,
    "25006": Cause.READ_ONLY,
    "25P03": Cause.CONNECTION,
    "25P04": Cause.TIMEOUT,
    "53100": Cause.DISK_FULL,
    "53300": Cause.TOO_MANY_CONNECTIONS,
    "58030": Cause.IO_ERROR,
    "28000": Cause.CONNECTION,
    "28P01": Cause.CONNECTION,
    "3D000": Cause.CONNECTION,
    "42P01": Cause.SCHEMA,
    "42704": Cause.SCHEMA,
    "42883": Cause.SCHEMA,
}

_CLASSES = {
    "08": Cause.CONNECTION,
    "53": Cause.OUT_OF_RESOURCES,
    # The operator or a crash ended the connection, or the server starts or stops.
    "57P": Cause.CONNECTION,
}
_IN_RECOVERY = "55000"
"""The SQLSTATE of many errors. Those whose message contains `recovery` mean that the server is a standby."""
USABLE_AFTER = frozenset({Cause.LEASE_LOST, Cause.DISK_FULL, Cause.OUT_OF_RESOURCES, Cause.READ_ONLY})
"""Causes that leave the connection idle and usable. After READ_ONLY, connections that are at least REPLACE_SECONDS old
are replaced nevertheless."""


class Unanswered(Exception):
    """The server has not answered earlier statements yet, and they occupy all connections."""


_CONNECTION_ERRORS = (
    OSError,
    TimeoutError,
    PoolTimeout,
    asyncpg.InterfaceError,
    # The protocol state of the connection is inconsistent, for example after the process was paused.
    asyncpg.InternalClientError,
)


def cause_of(error: BaseException) -> Cause | None:
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return Cause.CONNECTION
    original = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(original, "sqlstate", None)
    if state is not None:
        return _cause_of_state(state, str(original))
    if isinstance(original, asyncpg.TargetServerAttributeNotMatched):
        return Cause.READ_ONLY
    if isinstance(original, Unanswered):
        return Cause.UNANSWERED
    return Cause.CONNECTION if isinstance(original, _CONNECTION_ERRORS) else None


def _cause_of_state(state: str, message: str) -> Cause | None:
    if state == _IN_RECOVERY and "recovery" in message:
        return Cause.READ_ONLY
    return _CAUSES.get(state) or _CLASSES.get(state[:3]) or _CLASSES.get(state[:2])
