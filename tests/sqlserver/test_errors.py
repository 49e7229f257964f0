"""The causes of ODBC errors. The messages are those of Microsoft's driver, in the form in which pyodbc raises them."""

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tenure.errors import ConfigurationError
from tenure.store.engines.sqlserver.errors import cause_of, discard_uncertain_connection, reject_missing_driver
from tenure.store.retries import Cause
from tests.sqlserver import tsql

SERVER = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
DRIVER = "[Microsoft][ODBC Driver 18 for SQL Server]"


class OdbcError(Exception):
    """Has the arguments of a `pyodbc.Error`: the SQLSTATE, then all diagnostic records in one text."""


def odbc(state: str, message: str) -> OdbcError:
    return OdbcError(state, f"[{state}] {message}")


ERRORS = {
    "deadlock": (
        Cause.DEADLOCK,
        odbc("40001", f"{SERVER}Transaction (Process ID 57) was deadlocked on lock resources. (1205) (SQLExecDirectW)"),
    ),
    "duplicate in an index": (
        Cause.DUPLICATE,
        odbc(
            "23000",
            f"{SERVER}Cannot insert duplicate key row in object 'dbo.sessions' with unique index 'sessions_live_key'. "
            "The duplicate key value is (0d, 0e). (2601) (SQLExecDirectW); "
            f"[23000] {SERVER}The statement has been terminated. (3621)",
        ),
    ),
    "duplicate primary key": (
        Cause.DUPLICATE,
        odbc("23000", f"{SERVER}Violation of PRIMARY KEY constraint 'sessions_pkey'. (2627) (SQLExecDirectW)"),
    ),
    "lock timeout": (
        Cause.LOCK_TIMEOUT,
        odbc("HYT00", f"{SERVER}Lock request time out period exceeded. (1222) (SQLExecDirectW)"),
    ),
    "lock timeout in another state": (
        Cause.LOCK_TIMEOUT,
        odbc("42000", f"{SERVER}Lock request time out period exceeded. (1222) (SQLExecute)"),
    ),
    "cut lock not granted": (
        Cause.LOCK_TIMEOUT,
        odbc("42000", f"{SERVER}tenure: the cut lock was not granted in time (51222) (SQLExecDirectW)"),
    ),
    "lease lost": (
        Cause.LEASE_LOST,
        odbc("42000", f"{SERVER}tenure: one does not hold the lease leader in epoch 7 (51001) (SQLExecDirectW)"),
    ),
    "lock timeout after a message": (
        Cause.LOCK_TIMEOUT,
        odbc("42000", f"{SERVER}tenure: the migration lock was not granted in time (51222) (SQLMoreResults)"),
    ),
    "query timeout": (Cause.TIMEOUT, odbc("HYT00", f"{DRIVER}Query timeout expired (0) (SQLExecDirectW)")),
    "login timeout": (Cause.CONNECTION, odbc("HYT00", f"{DRIVER}Login timeout expired (0) (SQLDriverConnect)")),
    "broken connection": (
        Cause.CONNECTION,
        odbc("08S01", f"{DRIVER}TCP Provider: Error code 0x68 (104) (SQLExecDirectW)"),
    ),
    "server unreachable": (
        Cause.CONNECTION,
        odbc(
            "08001",
            f"{DRIVER}TCP Provider: Error code 0x2749 (10057) (SQLDriverConnect); "
            f"[08001] {DRIVER}Login timeout expired (0)",
        ),
    ),
    "login refused": (
        Cause.CONNECTION,
        odbc("28000", f"{SERVER}Login failed for user 'tenure'. (18456) (SQLDriverConnect)"),
    ),
    "database does not exist yet": (
        Cause.CONNECTION,
        odbc("42000", f'{SERVER}Cannot open database "tenure" requested by the login. (4060) (SQLDriverConnect)'),
    ),
    "database unavailable on Azure": (
        Cause.CONNECTION,
        odbc("HY000", f"{SERVER}Database 'tenure' is not currently available. (40613) (SQLDriverConnect)"),
    ),
    "session killed": (
        Cause.CONNECTION,
        odbc("HY000", f"{SERVER}Cannot continue because the session is in the kill state. (596) (SQLExecDirectW)"),
    ),
    "disk full": (
        Cause.DISK_FULL,
        odbc("42000", f"{SERVER}Could not allocate space for object 'sessions' in database. (1105) (SQLExecDirectW)"),
    ),
    "log full": (
        Cause.DISK_FULL,
        odbc("42000", f"{SERVER}The transaction log for database 'tenure' is full. (9002) (SQLExecDirectW)"),
    ),
    "read only": (
        Cause.READ_ONLY,
        odbc("25000", f"{SERVER}Failed to update database because the database is read-only. (3906) (SQLExecDirectW)"),
    ),
    "no such table": (Cause.SCHEMA, odbc("42S02", f"{SERVER}Invalid object name 'sessions'. (208) (SQLExecDirectW)")),
    "no such procedure": (
        Cause.SCHEMA,
        odbc("42000", f"{SERVER}Could not find stored procedure 'dbo.tenure_open_1'. (2812) (SQLExecDirectW)"),
    ),
    "no such function": (
        Cause.SCHEMA,
        odbc(
            "42000",
            f'{SERVER}Cannot find either column "dbo" or the user-defined function or aggregate "dbo.tenure_now", '
            "or the name is ambiguous. (4121) (SQLExecDirectW)",
        ),
    ),
    "syntax error": (None, odbc("42000", f"{SERVER}Incorrect syntax near ','. (102) (SQLExecDirectW)")),
    "constraint violation": (
        None,
        odbc("23000", f"{SERVER}The INSERT conflicted with the CHECK constraint. (547) (SQLExecDirectW)"),
    ),
    "pool exhausted": (Cause.CONNECTION, PoolTimeout("QueuePool limit of size 10 reached")),
    "no route": (Cause.CONNECTION, OSError(113, "No route to host")),
    "not a database error": (None, KeyError("position")),
}


@tsql.for_each(ERRORS)
def test_cause_of_classifies_odbc_error(name: str) -> None:
    cause, error = ERRORS[name]
    assert cause_of(error) is cause


@tsql.for_each([name for name, (_, error) in ERRORS.items() if isinstance(error, OdbcError)])
def test_cause_of_classifies_error_wrapped_by_sqlalchemy(name: str) -> None:
    cause, error = ERRORS[name]
    assert cause_of(DBAPIError("EXEC dbo.tenure_open_1 @request = ?;", None, error)) is cause


def test_cause_of_ignores_numbers_inside_error_message() -> None:
    error = odbc("42000", f"{SERVER}The value (1205) (see below) is not valid. (245) (SQLExecDirectW)")
    assert cause_of(error) is None


@pytest.mark.parametrize(
    ("name", "invalidated", "pool_invalidated"),
    [
        ("deadlock", False, False),
        ("lock timeout", False, False),
        ("cut lock not granted", False, False),
        ("lease lost", False, False),
        ("query timeout", True, False),
        ("no such table", True, False),
        ("syntax error", True, False),
        ("broken connection", True, True),
    ],
)
def test_connection_is_invalidated_only_if_its_transaction_may_be_open(
    name: str, invalidated: bool, pool_invalidated: bool
) -> None:
    """Without `discard_uncertain_connection`, SQLAlchemy would drop the whole pool after a lock timeout, and would keep
    the connection after most other errors.
    """
    context: Any = SimpleNamespace(original_exception=ERRORS[name][1])
    discard_uncertain_connection(context)
    assert (context.is_disconnect, context.is_disconnect and context.invalidate_pool_on_disconnect) == (
        invalidated,
        pool_invalidated,
    )


@pytest.mark.parametrize(
    "error",
    [
        odbc("IM002", "[unixODBC][Driver Manager]Data source name not found (0) (SQLDriverConnect)"),
        odbc("01000", "[unixODBC][Driver Manager]Can't open lib 'x' : file not found (0) (SQLDriverConnect)"),
    ],
    ids=["data source", "driver"],
)
def test_driver_manager_error_raises_configuration_error(error: OdbcError) -> None:
    context: Any = SimpleNamespace(original_exception=error)
    with pytest.raises(ConfigurationError, match="database: "):
        reject_missing_driver(context)


@tsql.for_each(ERRORS)
def test_errors_other_than_missing_driver_raise_no_configuration_error(name: str) -> None:
    context: Any = SimpleNamespace(original_exception=ERRORS[name][1])
    reject_missing_driver(context)
