"""Connections to SQL Server: their address, their driver, their settings, and what each statement goes through.

All of them commit by themselves. Otherwise ODBC would wrap every call into a second transaction, which no timeout ends.
"""

import asyncio
import platform
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure.errors import ConfigurationError
from tenure.store.engines.sqlserver.errors import drop_what_is_in_doubt, refuse_what_no_driver_takes

try:
    import aioodbc  # noqa: F401 - SQLAlchemy imports it by name
    import pyodbc
except ImportError:  # the extra is not installed, or unixODBC is missing: told when a store is asked for
    pyodbc = None

CONNECT_SECONDS = 1
LOCK_MILLISECONDS = 1000
MESSAGES_MAX = 8

CONNECTION_KEYWORDS = {
    "APP": "tenure",
    # The driver would try to mend a broken connection by itself, ten seconds later.
    "ConnectRetryCount": "0",
    # A server that vanished without a goodbye is noticed while a statement waits for it.
    "KeepAlive": "2",
    "KeepAliveInterval": "1",
}

SET_UP = f"SET XACT_ABORT ON; SET LOCK_TIMEOUT {LOCK_MILLISECONDS};"


def create_engine(url: URL, pool_size: int, threads: ThreadPoolExecutor) -> AsyncEngine:
    async def set_up(connection: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(threads, connection.execute, SET_UP)

    engine = create_async_engine(
        connection_url(url),
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=CONNECT_SECONDS,
        connect_args={"timeout": CONNECT_SECONDS, "executor": threads, "after_created": set_up},
    )
    event.listen(engine.sync_engine, "handle_error", refuse_what_no_driver_takes)
    event.listen(engine.sync_engine, "handle_error", drop_what_is_in_doubt)
    event.listen(engine.sync_engine, "before_cursor_execute", with_exact_instants, retval=True)
    event.listen(engine.sync_engine, "after_cursor_execute", wait_for_the_answer)
    return engine


def connection_url(url: URL) -> URL:
    """The URL as SQLAlchemy wants it; what it says about the driver and the connection goes before our own."""
    if pyodbc is None:
        raise ConfigurationError(_MISSING)
    given = {name.lower() for name in url.query}
    if "odbc_connect" in given:
        return url.set(drivername="mssql+aioodbc")
    if "dsn" not in given and not (url.host and url.database):
        raise ConfigurationError("database: must name host and database, as mssql://user:password@host/tenure does")
    query = {"driver" if name.lower() == "driver" else name: value for name, value in url.query.items()}
    query |= {name: value for name, value in CONNECTION_KEYWORDS.items() if name.lower() not in given}
    if not given & {"dsn", "driver"}:
        query["driver"] = driver()
    return url.set(drivername="mssql+aioodbc", query=query)


_MISSING = "database: SQL Server needs the extra tenure[mssql] and unixODBC (package libodbc2 or unixODBC)"
_NO_DRIVER = "database: there is no ODBC driver for SQL Server; install mssql-python-odbc or name one by ?driver="


def driver() -> str:
    """The newest of Microsoft's drivers that the system knows by name, or the path of the one that pip installed."""
    known = [name for name in pyodbc.drivers() if re.fullmatch(r"ODBC Driver \d+ for SQL Server", name)]
    installed = sorted(known, key=lambda name: int(name.split()[2])) or _drivers_from_pip()
    if not installed:
        raise ConfigurationError(_NO_DRIVER)
    return installed[-1]


def _drivers_from_pip() -> list[str]:
    try:
        import mssql_python_odbc  # noqa: PLC0415 - optional: a system driver will do
    except ImportError:
        return []
    folder = (
        Path(mssql_python_odbc.get_libs_dir()) / "linux" / _linux() / platform.machine().replace("aarch64", "arm64")
    )
    return sorted(map(str, folder.glob("lib/libmsodbcsql*")))


def _linux() -> str:
    """What the package calls this Linux: its builds differ in the libraries they want."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "debian_ubuntu"
    names = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    return next((flavour for flavour, ids in _LINUXES.items() if names & ids), "debian_ubuntu")


_LINUXES = {"alpine": {"alpine"}, "rhel": {"rhel", "fedora", "centos"}, "suse": {"suse", "sles", "opensuse"}}


def with_exact_instants(
    _connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, executemany: bool
) -> tuple[str, Any]:
    """As text: as a datetime, pyodbc sends as many decimals as the driver admits to, which may be none."""
    if executemany:
        return statement, parameters
    return statement, tuple(
        value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value for value in parameters
    )


def wait_for_the_answer(
    _connection: Connection, cursor: Any, _statement: str, _parameters: Any, context: Any, _executemany: bool
) -> None:
    """A message of the server counts as a result without rows, and hides the rows or the error that come after it."""
    for _ in range(MESSAGES_MAX):
        if cursor.description is not None or not context.execution_options.get("answers"):
            return
        cursor.nextset()
