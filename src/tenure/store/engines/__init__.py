"""The engines, one module each: only what differs between databases, and nothing above knows their names."""

from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from tenure.errors import ConfigurationError
from tenure.store.store import Store


def open_store(database: str, pool_size: int, *, must_exist: bool = False) -> Store:
    """The store behind a database URL. Nothing is connected yet.

    A file that is not there is made by the first who connects, unless it must exist.
    """
    try:
        url = make_url(database)
    except ArgumentError as error:
        raise ConfigurationError("database: must be a URL such as sqlite:///tenure.db") from error
    # Imported here: nobody should pay for, or need to install, the driver of another engine.
    match url.get_backend_name():
        case "sqlite":
            from tenure.store.engines.sqlite.store import SqliteStore  # noqa: PLC0415

            if must_exist and not Path(url.database or "").is_file():
                raise ConfigurationError(f"database: there is no file {url.database}")
            return SqliteStore(url, readers=pool_size - 1)
        case "postgresql":
            from tenure.store.engines.postgres.store import PostgresStore  # noqa: PLC0415

            return PostgresStore(url, pool_size)
        case _:
            from tenure.store.engines.sqlserver.store import SqlServerStore  # noqa: PLC0415

            return SqlServerStore(url, pool_size)
