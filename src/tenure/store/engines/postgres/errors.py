"""What PostgreSQL's errors, and asyncpg's own, mean."""

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tenure.store.retries import Cause

_CAUSES = {
    "23505": Cause.DUPLICATE,
    "40P01": Cause.DEADLOCK,
    "40001": Cause.DEADLOCK,
    "55P03": Cause.LOCK_TIMEOUT,
    "57014": Cause.TIMEOUT,
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
    # asyncpg's internal error is a connection that lost count of its own state, after a pause for example.
    if isinstance(
        original, OSError | TimeoutError | asyncpg.InterfaceError | asyncpg.InternalClientError | PoolTimeout
    ):
        return Cause.CONNECTION
    return None
