"""What SQL Server's errors, and those of the ODBC driver, mean."""

import re

from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tenure.errors import ConfigurationError
from tenure.store.retries import Cause

NUMBERS = {
    # Thrown by our own procedures, as 51222 is.
    51001: Cause.LEASE_LOST,
    1205: Cause.DEADLOCK,
    2601: Cause.DUPLICATE,
    2627: Cause.DUPLICATE,
    1222: Cause.LOCK_TIMEOUT,
    51222: Cause.LOCK_TIMEOUT,
    # Waits for memory or for a worker.
    701: Cause.TIMEOUT,
    8645: Cause.TIMEOUT,
    8651: Cause.TIMEOUT,
    208: Cause.SCHEMA,
    2812: Cause.SCHEMA,
    4121: Cause.SCHEMA,
    # Refused, moved, restored, stopped, over its limits: all of these pass, or an operator is at it.
    **dict.fromkeys((596, 913, 921, 922, 924, 927, 942, 952, 976, 983, 3906, 4060, 6005), Cause.CONNECTION),
    **dict.fromkeys((10928, 10929, 17142, 17187, 18401, 18451, 18456), Cause.CONNECTION),
    **dict.fromkeys((40197, 40501, 40613, 49918, 49919, 49920), Cause.CONNECTION),
}
_UNDONE = (Cause.DEADLOCK, Cause.LOCK_TIMEOUT, Cause.LEASE_LOST)
_STATES = {
    "HYT00": Cause.TIMEOUT,
    "HY008": Cause.TIMEOUT,
    **dict.fromkeys(("01000", "01002", "28000", "HY010", "HYT01"), Cause.CONNECTION),
}
_RECORD = re.compile(r"\((?P<number>-?\d+)\) \((?P<function>SQL\w+)\)")
"""How the first record of a diagnosis ends; those after it only say what became of the statement."""


def cause_of(error: BaseException) -> Cause | None:
    """By the server's own number first: some of what it says in the state of a timeout or a refusal is neither."""
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


def refuse_what_no_driver_takes(context: ExceptionContext) -> None:
    """A driver or data source that the driver manager does not know will not come by waiting for it."""
    state, message = (*map(str, context.original_exception.args[:2]), "", "")[:2]
    if state.startswith("IM") or "Can't open lib" in message:
        raise ConfigurationError(f"database: {message}")


def drop_what_is_in_doubt(context: ExceptionContext) -> None:
    """After a deadlock, a lock timeout or a lost lease the server has rolled back. Any other error may have left a
    transaction and its locks behind, which end with the connection. Only a broken line says something about the other
    connections.
    """
    cause = cause_of(context.original_exception)
    context.is_disconnect = cause not in _UNDONE
    context.invalidate_pool_on_disconnect = cause is Cause.CONNECTION
