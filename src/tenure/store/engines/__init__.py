"""The engines, one package per database. They contain the code that differs between databases, except for the SQL
expressions, column types and migrations, which are elsewhere in `tenure.store`. No other package imports a specific
engine.
"""

from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from tenure.errors import ConfigurationError, DatabaseMissing
from tenure.store.contract import Store
from tenure.store.timing import report_calls
from tenure.telemetry.events import Telemetry


def open_store(
    database: str,
    pool_size: int,
    *,
    must_exist: bool = False,
    read_only: bool = False,
    telemetry: Telemetry | None = None,
) -> Store:
    """Returns the store for a database URL. The store connects with its first operation.

    If the file of an SQLite database does not exist, the first operation creates it. With `must_exist`, a missing file
    raises `DatabaseMissing` instead. With `read_only`, no file is created, and SQLite and PostgreSQL refuse every
    write. SQL Server does not refuse writes, so the caller must call only methods that read.
    """
    if telemetry is None:
        return _open(database, pool_size, Telemetry(), must_exist=must_exist, read_only=read_only)
    return report_calls(_open(database, pool_size, telemetry, must_exist=must_exist, read_only=read_only), telemetry)


def _open(database: str, pool_size: int, telemetry: Telemetry, *, must_exist: bool, read_only: bool) -> Store:
    scheme, _, address = database.partition("://")
    if scheme.partition("+")[0] == "postgresql":
        # Imported here, so that the drivers of the other engines need not be installed. SQLAlchemy does not parse this
        # URL, because a PostgreSQL URL may name several hosts.
        from tenure.store.engines.postgres.store import PostgresStore  # noqa: PLC0415

        return PostgresStore(f"postgresql://{address}", pool_size, telemetry, read_only=read_only)
    try:
        url = make_url(database)
    except ArgumentError as error:
        raise ConfigurationError("database: must be a URL such as sqlite:///tenure.db") from error
    match url.get_backend_name():
        case "sqlite":
            from tenure.store.engines.sqlite.store import SqliteStore  # noqa: PLC0415

            if must_exist and not Path(url.database or "").is_file():
                raise DatabaseMissing(f"database: file {url.database} does not exist")
            return SqliteStore(url, readers=pool_size - 1, telemetry=telemetry, read_only=read_only)
        case _:
            from tenure.store.engines.sqlserver.store import SqlServerStore  # noqa: PLC0415

            return SqlServerStore(url, pool_size, telemetry)
