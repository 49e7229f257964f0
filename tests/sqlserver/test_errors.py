"""What an ODBC error means. The messages are those of Microsoft's driver, as pyodbc hands them on."""

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tenure.errors import ConfigurationError
from tenure.store.engines.sqlserver.errors import cause_of, drop_what_is_in_doubt, refuse_what_no_driver_takes
from tenure.store.retries import Cause

SERVER = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
DRIVER = "[Microsoft][ODBC Driver 18 for SQL Server]"


class OdbcError(Exception):
    """Has the arguments of a `pyodbc.Error`: the state, then all records of the diagnosis in one text."""


def odbc(state: str, message: str) -> OdbcError:
    return OdbcError(state, f"[{state}] {message}")


MEANINGS = {
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
    "broken line": (Cause.CONNECTION, odbc("08S01", f"{DRIVER}TCP Provider: Error code 0x68 (104) (SQLExecDirectW)")),
    "no server": (
        Cause.CONNECTION,
        odbc(
            "08001",
            f"{DRIVER}TCP Provider: Error code 0x2749 (10057) (SQLDriverConnect); "
            f"[08001] {DRIVER}Login timeout expired (0)",
        ),
    ),
    "refused login": (
        Cause.CONNECTION,
        odbc("28000", f"{SERVER}Login failed for user 'tenure'. (18456) (SQLDriverConnect)"),
    ),
    "database not there yet": (
        Cause.CONNECTION,
        odbc("42000", f'{SERVER}Cannot open database "tenure" requested by the login. (4060) (SQLDriverConnect)'),
    ),
    "Azure is moving it": (
        Cause.CONNECTION,
        odbc("HY000", f"{SERVER}Database 'tenure' is not currently available. (40613) (SQLDriverConnect)"),
    ),
    "session killed": (
        Cause.CONNECTION,
        odbc("HY000", f"{SERVER}Cannot continue because the session is in the kill state. (596) (SQLExecDirectW)"),
    ),
    "no such table": (Cause.SCHEMA, odbc("42S02", f"{SERVER}Invalid object name 'sessions'. (208) (SQLExecDirectW)")),
    "no such procedure": (
        Cause.SCHEMA,
        odbc("42000", f"{SERVER}Could not find stored procedure 'dbo.tenure_open_2'. (2812) (SQLExecDirectW)"),
    ),
    "no such function": (
        Cause.SCHEMA,
        odbc(
            "42000",
            f'{SERVER}Cannot find either column "dbo" or the user-defined function or aggregate "dbo.tenure_now", '
            "or the name is ambiguous. (4121) (SQLExecDirectW)",
        ),
    ),
    "a defect": (None, odbc("42000", f"{SERVER}Incorrect syntax near ','. (102) (SQLExecDirectW)")),
    "a broken constraint": (
        None,
        odbc("23000", f"{SERVER}The INSERT conflicted with the CHECK constraint. (547) (SQLExecDirectW)"),
    ),
    "no connection free": (Cause.CONNECTION, PoolTimeout("QueuePool limit of size 10 reached")),
    "no route": (Cause.CONNECTION, OSError(113, "No route to host")),
    "not of the database": (None, KeyError("position")),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_knows_what_an_error_means(name: str) -> None:
    cause, error = MEANINGS[name]
    assert cause_of(error) is cause


@pytest.mark.parametrize("name", [name for name, (_, error) in MEANINGS.items() if isinstance(error, OdbcError)])
def test_knows_it_also_from_inside_sqlalchemy(name: str) -> None:
    cause, error = MEANINGS[name]
    assert cause_of(DBAPIError("EXEC dbo.tenure_open_2 @request = ?;", None, error)) is cause


def test_does_not_take_a_number_in_the_text_for_the_number_of_the_error() -> None:
    error = odbc("42000", f"{SERVER}The value (1205) (see below) is not valid. (245) (SQLExecDirectW)")
    assert cause_of(error) is None


@pytest.mark.parametrize(
    ("name", "this_one", "all_of_them"),
    [
        ("deadlock", False, False),
        ("lock timeout", False, False),
        ("cut lock not granted", False, False),
        ("lease lost", False, False),
        ("query timeout", True, False),
        ("no such table", True, False),
        ("a defect", True, False),
        ("broken line", True, True),
    ],
)
def test_drops_a_connection_that_may_have_kept_a_transaction(name: str, this_one: bool, all_of_them: bool) -> None:
    """Left to itself, SQLAlchemy would drop all of them after a lock timeout, and keep this one after most others."""
    context: Any = SimpleNamespace(original_exception=MEANINGS[name][1])
    drop_what_is_in_doubt(context)
    assert (context.is_disconnect, context.is_disconnect and context.invalidate_pool_on_disconnect) == (
        this_one,
        all_of_them,
    )


@pytest.mark.parametrize(
    "error",
    [
        odbc("IM002", "[unixODBC][Driver Manager]Data source name not found (0) (SQLDriverConnect)"),
        odbc("01000", "[unixODBC][Driver Manager]Can't open lib 'x' : file not found (0) (SQLDriverConnect)"),
    ],
    ids=["data source", "driver"],
)
def test_refuses_a_setting_that_only_the_driver_manager_can_judge(error: OdbcError) -> None:
    context: Any = SimpleNamespace(original_exception=error)
    with pytest.raises(ConfigurationError, match="database: "):
        refuse_what_no_driver_takes(context)


@pytest.mark.parametrize("name", MEANINGS)
def test_refuses_no_setting_for_another_error(name: str) -> None:
    context: Any = SimpleNamespace(original_exception=MEANINGS[name][1])
    refuse_what_no_driver_takes(context)
