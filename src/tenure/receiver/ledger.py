"""What has been received: a SQLite file with one row a key, whatever was sent how often.

Every method is a transaction, and what it returns is on the disk. The totals are a row of the same transaction, so
that they never disagree with what they count.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tenure.clock import from_microseconds
from tenure.errors import ConfigurationError, TenureError
from tenure.receiver.usage import exact_sum, usage_in

APPLICATION_ID = 0x54_4E_4C_31
"""In the head of the file: no other database is taken for a ledger."""
BUSY_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE deliveries (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    path TEXT NOT NULL,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    times_seen INTEGER NOT NULL,
    records INTEGER,
    usage TEXT
) STRICT;
CREATE TABLE conflicts (
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    times_seen INTEGER NOT NULL,
    PRIMARY KEY (key, digest)
) STRICT, WITHOUT ROWID;
CREATE TABLE totals (
    keys INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    duplicates INTEGER NOT NULL,
    conflicts INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    usage TEXT NOT NULL
) STRICT;
INSERT INTO totals VALUES (0, 0, 0, 0, 0, 0, 0, '0');
"""
_INSERT = "INSERT INTO deliveries VALUES (NULL, ?, ?, ?, ?, ?, 1, ?, ?)"
_SEEN_AGAIN = "UPDATE deliveries SET times_seen = times_seen + 1 WHERE key = ?"
_CONFLICT = """
INSERT INTO conflicts (key, path, digest, size, received_at, times_seen) VALUES (?, ?, ?, ?, ?, 1)
ON CONFLICT (key, digest) DO UPDATE SET times_seen = times_seen + 1
"""
_TOTALS = "SELECT keys, requests, duplicates, conflicts, refused, failed, bytes, usage FROM totals"
_SAVE_TOTALS = """
UPDATE totals SET keys = ?, requests = ?, duplicates = ?, conflicts = ?, refused = ?, failed = ?, bytes = ?, usage = ?
"""
_ENTRIES = """
SELECT position, key, path, digest, size, received_at, times_seen,
       (SELECT coalesce(sum(times_seen), 0) FROM conflicts WHERE conflicts.key = deliveries.key), records, usage
FROM deliveries
"""
_PAGE = f"{_ENTRIES} WHERE position > ? ORDER BY position LIMIT ?"
_FIND = f"{_ENTRIES} WHERE key = ?"


class LedgerFailed(TenureError):
    """Nothing of the transaction was kept."""


class Outcome(Enum):
    COUNTED = "counted"
    DUPLICATE = "already counted"
    CONFLICT = "another body was counted under this key"


class Delivery(NamedTuple):
    key: str
    path: str
    body: bytes
    received_at: int
    """In microseconds since 1970."""


class Passed(NamedTuple):
    """Requests that leave no delivery behind, and how many of all requests met a fault."""

    requests: int = 0
    refused: int = 0
    failed: int = 0

    def plus(self, other: "Passed") -> "Passed":
        return Passed(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Totals(msgspec.Struct):
    keys: int
    requests: int
    duplicates: int
    conflicts: int
    refused: int
    failed: int
    bytes: int
    usage: str
    """A decimal of any length; the sum over all keys, each counted once."""


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """A key as the ledger has it. `position` is its place in the order of arrival."""

    position: int
    key: str
    path: str
    digest: str
    size: int
    received_at: datetime
    times_seen: int
    conflicts: int
    records: int | None
    usage: str | None


class Ledger:
    """Used by one thread at a time."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"
        try:
            self._connection = _opened_to_read(path) if read_only else _opened(path)
        except sqlite3.Error as error:
            raise ConfigurationError(f"ledger: cannot use {path}: {error}") from error

    def record(self, deliveries: Sequence[Delivery], passed: Passed = Passed()) -> list[Outcome]:  # noqa: B008
        with self._transaction():
            totals = self._totals()
            totals.requests += passed.requests + len(deliveries)
            totals.refused += passed.refused
            totals.failed += passed.failed
            outcomes = [self._record(delivery, totals) for delivery in deliveries]
            self._connection.execute(_SAVE_TOTALS, msgspec.structs.astuple(totals))
        return outcomes

    def totals(self) -> Totals:
        with self._transaction():
            return self._totals()

    def page(self, after: int, limit: int) -> list[Entry]:
        """Keys in the order of their arrival, those behind position `after`."""
        with self._transaction():
            rows = self._connection.execute(_PAGE, (after, limit)).fetchall()
        return [_entry(row) for row in rows]

    def find(self, key: str) -> Entry | None:
        with self._transaction():
            row = self._connection.execute(_FIND, (key,)).fetchone()
        return None if row is None else _entry(row)

    def close(self) -> None:
        self._connection.close()

    def _record(self, delivery: Delivery, totals: Totals) -> Outcome:
        digest = sha256(delivery.body).hexdigest()
        known = self._connection.execute("SELECT digest FROM deliveries WHERE key = ?", (delivery.key,)).fetchone()
        if known is None:
            self._count(delivery, digest, totals)
            return Outcome.COUNTED
        if known == (digest,):
            self._connection.execute(_SEEN_AGAIN, (delivery.key,))
            totals.duplicates += 1
            return Outcome.DUPLICATE
        row = (delivery.key, delivery.path, digest, len(delivery.body), delivery.received_at)
        self._connection.execute(_CONFLICT, row)
        totals.conflicts += 1
        return Outcome.CONFLICT

    def _count(self, delivery: Delivery, digest: str, totals: Totals) -> None:
        usage = usage_in(delivery.body)
        row = (delivery.key, delivery.path, digest, len(delivery.body), delivery.received_at)
        read = (None, None) if usage is None else (usage.records, f"{usage.total:f}")
        self._connection.execute(_INSERT, row + read)
        totals.keys += 1
        totals.bytes += len(delivery.body)
        if usage is not None:
            totals.usage = f"{exact_sum([Decimal(totals.usage), usage.total]):f}"

    def _totals(self) -> Totals:
        return Totals(*self._connection.execute(_TOTALS).fetchone())

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute(self._begin)
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk has ended the transaction already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise LedgerFailed(f"the ledger cannot be used: {error}") from error


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(*(*row[:5], from_microseconds(row[5]), *row[6:]))


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _opened_to_read(path: Path) -> sqlite3.Connection:
    """Where nothing may be written, not even beside it, it is read as one that nobody else has open."""
    try:
        return _read_only(path, "mode=ro")
    except sqlite3.OperationalError:
        if path.with_name(f"{path.name}-wal").exists():
            raise
        return _read_only(path, "immutable=1")


def _read_only(path: Path, how: str) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?{how}"
    connection = sqlite3.connect(address, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    if application_id != APPLICATION_ID:
        connection.close()
        raise sqlite3.DatabaseError("it is no ledger")
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application_id != APPLICATION_ID and tables:
        raise sqlite3.DatabaseError("it is the database of something else")
    if not tables:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
