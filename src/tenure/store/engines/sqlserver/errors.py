"""Maps errors of SQL Server and of the ODBC driver to causes."""

import re

from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tenure.errors import ConfigurationError
from tenure.store.retries import Cause

NUMBERS = {
    # Tenure's procedures throw 51001 and 51222. They also throw 51002 for a mistake of the caller; that number maps to
    # no cause.
    51001: Cause.LEASE_LOST,
    1205: Cause.DEADLOCK,
    2601: Cause.DUPLICATE,
    2627: Cause.DUPLICATE,
    1222: Cause.LOCK_TIMEOUT,
    51222: Cause.LOCK_TIMEOUT,
    # The server had too little memory for the statement, or the statement waited too long for memory.
    701: Cause.TIMEOUT,
    8645: Cause.TIMEOUT,
    8651: Cause.TIMEOUT,
    # The file group or the log is full.
    **dict.fromkeys((1101, 1105, 9002), Cause.DISK_FULL),
    3906: Cause.READ_ONLY,
    208: Cause.SCHEMA,
    2812: Cause.SCHEMA,
    4121: Cause.SCHEMA,
    # The database refuses connections, is moved, restored or stopped, or is over its limits: temporary states.
    **dict.fromkeys((596, 913, 921, 922, 924, 927, 942, 952, 976, 983, 4060, 6005), Cause.CONNECTION),
    **dict.fromkeys((10928, 10929, 17142, 17187, 18401, 18451, 18456), Cause.CONNECTION),
    **dict.fromkeys((40197, 40501, 40613, 49918, 49919, 49920), Cause.CONNECTION),
}
_ROLLED_BACK = (Cause.DEADLOCK, Cause.LOCK_TIMEOUT, Cause.LEASE_LOST)
_STATES = {
    "HYT00": Cause.TIMEOUT,
    "HY008": Cause.TIMEOUT,
    **dict.fromkeys(("01000", "01002", "28000", "HY010", "HYT01"), Cause.CONNECTION),
}
_RECORD = re.compile(r"\((?P<number>-?\d+)\) \((?P<function>SQL\w+)\)")
"""Matches the end of the first diagnostic record of an error. Later records only describe what happened to the
statement."""


def cause_of(error: BaseException) -> Cause | None:
    """Returns the cause of an error, or None if it is unknown.

    The server's error number is checked first: some errors have the SQLSTATE of a timeout or a refusal, but another
    cause.
    """
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, OSError | TimeoutError | PoolTimeout):
        return Cause.CONNECTION
    match getattr(original, "args", ()):
        case (str(state), str(message), *_):
            return _cause_of_odbc(state, _RECORD.search(message))
    return None


def _cause_of_odbc(state: str, record: re.Match[str] | None) -> Cause | None:
    number, function = (int(record["number"]), record["function"]) if record else (0, "")
    if number in NUMBERS:
        return NUMBERS[number]
    if state.startswith("08") or (state == "HYT00" and function == "SQLDriverConnect"):
        return Cause.CONNECTION
    return _STATES.get(state)


def reject_missing_driver(context: ExceptionContext) -> None:
    """Raises `ConfigurationError` for a driver or data source that is not installed: a retry would not help."""
    state, message = (*map(str, context.original_exception.args[:2]), "", "")[:2]
    if state.startswith("IM") or "Can't open lib" in message:
        raise ConfigurationError(f"database: {message}")


def discard_uncertain_connection(context: ExceptionContext) -> None:
    """Drops the connection unless the server has certainly rolled back its transaction.

    The server rolls back after a deadlock, a lock timeout or a lost lease. After any other error the transaction may
    still hold locks, and closing the connection ends the transaction. Only a connection error, or a database that is
    read only after a fail-over, invalidates the other connections of the pool too.
    """
    cause = cause_of(context.original_exception)
    context.is_disconnect = cause not in _ROLLED_BACK
    context.invalidate_pool_on_disconnect = cause in (Cause.CONNECTION, Cause.READ_ONLY)
