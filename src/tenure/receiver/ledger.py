"""The ledger of received deliveries: a SQLite file with one row per key, and one per event of a session.

Every method is one transaction, and returns after its commit. The transaction that writes deliveries also updates the
totals, so the totals always agree with the rows that they count.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tenure.clock import from_microseconds
from tenure.errors import ConfigurationError, TenureError
from tenure.receiver.events import events_in
from tenure.receiver.usage import exact_sum, usage_in

APPLICATION_ID = 0x54_4E_4C_31
"""SQLite stores this id in the header of the file. It distinguishes a ledger from any other database."""
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
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    content TEXT NOT NULL
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
_INSERT_EVENT = "INSERT INTO events VALUES (NULL, ?, ?, ?, ?)"
_EVENTS = "SELECT position, key, event_id, type, content FROM events WHERE position > ? ORDER BY position LIMIT ?"
_FIND = f"{_ENTRIES} WHERE key = ?"


class LedgerFailed(TenureError):
    """The transaction failed and was rolled back."""


class DeliveryOutcome(Enum):
    """The values are the bodies of the responses."""

    COUNTED = "counted"
    DUPLICATE = "already counted"
    CONFLICT = "another body was already counted under this key"


class Delivery(msgspec.Struct, frozen=True, dict=True):
    key: str
    path: str
    body: bytes
    received_at: int
    """In microseconds since 1970."""

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the body, in hexadecimal. Hashed once, for the ledger and for the receipt."""
        return sha256(self.body).hexdigest()


class RequestCounts(NamedTuple):
    """Counts to add to the totals.

    `requests` counts only requests that are not recorded as deliveries, because `Ledger.record` counts the others.
    `failed` counts all requests to which a fault was applied.
    """

    requests: int = 0
    refused: int = 0
    failed: int = 0

    def plus(self, other: "RequestCounts") -> "RequestCounts":
        return RequestCounts(*(one + two for one, two in zip(self, other, strict=True)))


class Totals(msgspec.Struct):
    keys: int
    requests: int
    duplicates: int
    conflicts: int
    refused: int
    failed: int
    bytes: int
    usage: str
    """The exact sum of the usage of all keys, as decimal text of any length."""


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """A key in the ledger. `position` orders keys by their first arrival. `records` and `usage` are None if the body
    contains no usage.
    """

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


class EventEntry(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a session. `key` is the key of the delivery that contained the event. `position` orders events by the
    first arrival of their delivery, and the events of one delivery as they were sent.
    """

    position: int
    key: str
    event_id: str
    type: str
    event: msgspec.Raw


class Ledger:
    """Not thread-safe: only one thread may use it at a time."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"
        try:
            self._connection = _open_for_reading(path) if read_only else _open_for_writing(path)
        except sqlite3.Error as error:
            raise ConfigurationError(f"ledger: cannot use {path}: {error}") from error

    def record(
        self,
        deliveries: Sequence[Delivery],
        counts: RequestCounts = RequestCounts(),  # noqa: B008 - it is immutable
    ) -> list[DeliveryOutcome]:
        """Record a batch, and return the outcome of each delivery in the same order."""
        with self._transaction():
            totals = self._totals()
            totals.requests += counts.requests + len(deliveries)
            totals.refused += counts.refused
            totals.failed += counts.failed
            outcomes = [self._record(delivery, totals) for delivery in deliveries]
            self._connection.execute(_SAVE_TOTALS, msgspec.structs.astuple(totals))
        return outcomes

    def totals(self) -> Totals:
        with self._transaction():
            return self._totals()

    def page(self, after: int, limit: int) -> list[Entry]:
        """Return the keys after position `after`, in the order of arrival."""
        with self._transaction():
            rows = self._connection.execute(_PAGE, (after, limit)).fetchall()
        return [_entry(row) for row in rows]

    def events(self, after: int, limit: int) -> list[EventEntry]:
        """Return the events of sessions after position `after`, in the order of arrival."""
        with self._transaction():
            rows = self._connection.execute(_EVENTS, (after, limit)).fetchall()
        return [
            EventEntry(position, key, event_id, kind, msgspec.Raw(content.encode()))
            for position, key, event_id, kind, content in rows
        ]

    def find(self, key: str) -> Entry | None:
        with self._transaction():
            row = self._connection.execute(_FIND, (key,)).fetchone()
        return None if row is None else _entry(row)

    def close(self) -> None:
        self._connection.close()

    def _record(self, delivery: Delivery, totals: Totals) -> DeliveryOutcome:
        known = self._connection.execute("SELECT digest FROM deliveries WHERE key = ?", (delivery.key,)).fetchone()
        if known is None:
            self._count(delivery, totals)
            return DeliveryOutcome.COUNTED
        if known == (delivery.digest,):
            self._connection.execute(_SEEN_AGAIN, (delivery.key,))
            totals.duplicates += 1
            return DeliveryOutcome.DUPLICATE
        self._connection.execute(_CONFLICT, _row(delivery))
        totals.conflicts += 1
        return DeliveryOutcome.CONFLICT

    def _count(self, delivery: Delivery, totals: Totals) -> None:
        usage = usage_in(delivery.body)
        records_and_usage = (None, None) if usage is None else (usage.records, f"{usage.total:f}")
        self._connection.execute(_INSERT, _row(delivery) + records_and_usage)
        self._connection.executemany(_INSERT_EVENT, [(delivery.key, *event) for event in events_in(delivery.body)])
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
                # SQLite itself rolls back after some errors, for example if the disk is full.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise LedgerFailed(f"the ledger cannot be used: {error}") from error


def _row(delivery: Delivery) -> tuple[str, str, str, int, int]:
    return delivery.key, delivery.path, delivery.digest, len(delivery.body), delivery.received_at


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(*(*row[:5], from_microseconds(row[5]), *row[6:]))


def _open_for_writing(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _open_for_reading(path: Path) -> sqlite3.Connection:
    try:
        return _connect_read_only(path, "mode=ro")
    except sqlite3.OperationalError:
        # In WAL mode, even a reader creates files beside the database. In a directory that is not writable, read the
        # file as immutable instead, unless a WAL file exists: then another process may be writing.
        if path.with_name(f"{path.name}-wal").exists():
            raise
        return _connect_read_only(path, "immutable=1")


def _connect_read_only(path: Path, parameter: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{parameter}"
    connection = sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    if application_id != APPLICATION_ID:
        connection.close()
        raise sqlite3.DatabaseError("the file is not a ledger")
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Create the tables in a new file; refuse a database that is not a ledger before writing to it."""
    connection.execute("BEGIN IMMEDIATE")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application_id != APPLICATION_ID and tables:
        raise sqlite3.DatabaseError("the file is a database of another application")
    if not tables:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")
    # With NORMAL, a power failure could lose a committed delivery that was already answered.
    connection.execute("PRAGMA synchronous = FULL")
