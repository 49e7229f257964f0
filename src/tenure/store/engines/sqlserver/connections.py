"""Connections to SQL Server: URL, driver, settings, and the hooks that run for every statement.

All connections are in autocommit mode. Each procedure begins and commits its own transaction. Without autocommit, ODBC
would wrap every call in an outer transaction, which no timeout would end.
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
from tenure.store.engines.sqlserver.errors import discard_uncertain_connection, reject_missing_driver

try:
    import aioodbc  # noqa: F401 - SQLAlchemy imports it by name
    import pyodbc
except ImportError:  # the extra or unixODBC is missing: `connection_url` reports it
    pyodbc = None

CONNECT_SECONDS = 1
LOCK_MILLISECONDS = 1000
MESSAGES_MAX = 8

CONNECTION_KEYWORDS = {
    "APP": "tenure",
    # 0 disables the automatic reconnect of the driver, which waits ten seconds.
    "ConnectRetryCount": "0",
    # Detects a server that disappeared while a statement waits for it.
    "KeepAlive": "2",
    "KeepAliveInterval": "1",
}

SET_UP = f"SET XACT_ABORT ON; SET LOCK_TIMEOUT {LOCK_MILLISECONDS};"


def create_engine(url: URL, pool_size: int, threads: ThreadPoolExecutor) -> AsyncEngine:
    async def set_up(connection: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(threads, connection.execute, SET_UP)

    engine = create_async_engine(
        connection_url(url),
        hide_parameters=True,  # otherwise errors would show the secrets of signing keys
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=CONNECT_SECONDS,
        connect_args={"timeout": CONNECT_SECONDS, "executor": threads, "after_created": set_up},
    )
    event.listen(engine.sync_engine, "handle_error", reject_missing_driver)
    event.listen(engine.sync_engine, "handle_error", discard_uncertain_connection)
    event.listen(engine.sync_engine, "before_cursor_execute", with_exact_instants, retval=True)
    event.listen(engine.sync_engine, "after_cursor_execute", skip_server_messages)
    return engine


def connection_url(url: URL) -> URL:
    """Returns the URL for SQLAlchemy. A driver or a connection keyword in `url` takes precedence over our default."""
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
_NO_DRIVER = (
    "database: no ODBC driver for SQL Server is installed; install mssql-python-odbc or name a driver by ?driver="
)


def driver() -> str:
    """Returns the name of the newest registered Microsoft driver, or else the path of the driver installed by pip."""
    known = [name for name in pyodbc.drivers() if re.fullmatch(r"ODBC Driver \d+ for SQL Server", name)]
    installed = sorted(known, key=lambda name: int(name.split()[2])) or _drivers_from_pip()
    if not installed:
        raise ConfigurationError(_NO_DRIVER)
    return installed[-1]


def _drivers_from_pip() -> list[str]:
    try:
        import mssql_python_odbc  # noqa: PLC0415 - optional: a system driver works too
    except ImportError:
        return []
    folder = (
        Path(mssql_python_odbc.get_libs_dir())
        / "linux"
        / _linux_family()
        / platform.machine().replace("aarch64", "arm64")
    )
    return sorted(map(str, folder.glob("lib/libmsodbcsql*")))


def _linux_family() -> str:
    """Returns the name of the family of this Linux distribution, as mssql-python-odbc uses it. The package has one
    build per family.
    """
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "debian_ubuntu"
    names = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    return next((family for family, ids in _LINUX_FAMILIES.items() if names & ids), "debian_ubuntu")


_LINUX_FAMILIES = {"alpine": {"alpine"}, "rhel": {"rhel", "fedora", "centos"}, "suse": {"suse", "sles", "opensuse"}}


def with_exact_instants(
    _connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, executemany: bool
) -> tuple[str, Any]:
    """Sends instants as text. pyodbc would truncate a datetime to the number of decimals that the driver reports, which
    may be zero.
    """
    if executemany:
        return statement, parameters
    return statement, tuple(
        value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value for value in parameters
    )


def skip_server_messages(
    _connection: Connection, cursor: Any, _statement: str, _parameters: Any, context: Any, _executemany: bool
) -> None:
    """Skips server messages. Each is a result set without rows, and hides the rows or the error that follow it."""
    for _ in range(MESSAGES_MAX):
        if cursor.description is not None or not context.execution_options.get("returns_rows"):
            return
        cursor.nextset()
