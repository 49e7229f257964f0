"""Facts for `tenure doctor`: about the database server, the tables, the database file, a connection pooler in front of
the server, and usage that was not sent.
"""

from datetime import datetime
from enum import StrEnum

import msgspec


class ReadOnly(StrEnum):
    """Why a server refuses writes."""

    STANDBY = "the server is a standby"
    SETTING = "default_transaction_read_only is on"
    DATABASE = "the database is read only"


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    now: datetime
    """The time of the database's clock."""
    connections_max: int | None = None
    """How many connections all instances together may open; None if the engine has no such limit."""
    connections_used: int | None = None
    """How many connections are open now, of all programs; None if it is unknown."""
    read_only: ReadOnly | None = None
    """None if the server accepts writes."""


class TableChurn(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has counted about the rows of a table since its statistics were last reset."""

    table: str
    live_rows: int
    dead_rows: int
    inserts: int
    updates: int
    hot_updates: int
    """Updates that wrote no index. PostgreSQL can remove the old versions of these rows without a vacuum."""


class PoolerMode(StrEnum):
    NONE = "none"
    """Each connection has its own backend. This includes a pooler in session mode."""
    TRANSACTION = "transaction"
    """The transactions of one connection run on different backends."""


class UnsentUsage(msgspec.Struct, frozen=True):
    """Divided windows with usage that were cut without a gateway and have not been sent since."""

    windows: int
    from_at: datetime | None
    """The start of the oldest of these windows; None if there is none."""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The file of an SQLite database."""

    path: str
    exists: bool
    modes: dict[str, int] = {}
    """The permission bits of the file and of its WAL files, by path."""
    writable: bool = True
    """Whether this user may write the file and its folder."""
    disk_read_only: bool = False
    free_bytes: int = 0
