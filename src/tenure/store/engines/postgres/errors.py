"""What PostgreSQL's errors, and asyncpg's own, mean."""

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tenure.store.retries import Cause

LEASE_LOST = "TL001"
"""Raised by our own functions: no fault of the connection."""

_CAUSES = {
    LEASE_LOST: Cause.LEASE_LOST,
    "23505": Cause.DUPLICATE,
    "40P01": Cause.DEADLOCK,
    "40001": Cause.DEADLOCK,
    "55P03": Cause.LOCK_TIMEOUT,
    "57014": Cause.TIMEOUT,
    "25006": Cause.CONNECTION,  # read only: a server that another one has taken over from
    "25P03": Cause.CONNECTION,
    "25P04": Cause.TIMEOUT,
    "53300": Cause.CONNECTION,
    "57P01": Cause.CONNECTION,
    "57P02": Cause.CONNECTION,
    "57P03": Cause.CONNECTION,
    "28000": Cause.CONNECTION,
    "28P01": Cause.CONNECTION,
    "3D000": Cause.CONNECTION,
    "42P01": Cause.SCHEMA,
    "42704": Cause.SCHEMA,
    "42883": Cause.SCHEMA,
}


_CONNECTION_ERRORS = (
    OSError,
    TimeoutError,
    PoolTimeout,
    asyncpg.InterfaceError,
    # A connection that lost count of its own state, after a pause for example.
    asyncpg.InternalClientError,
)


def cause_of(error: BaseException) -> Cause | None:
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return Cause.CONNECTION
    original = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(original, "sqlstate", None)
    if state is not None:
        return _CAUSES.get(state, Cause.CONNECTION if state.startswith("08") else None)
    return Cause.CONNECTION if isinstance(original, _CONNECTION_ERRORS) else None
