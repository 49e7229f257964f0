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
    "25006": Cause.CONNECTION,  # read only: the server was demoted after a failover
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
    # The protocol state of the connection is inconsistent, for example after the process was paused.
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
