"""The file: who may write to it, and when; and what SQLite's errors mean."""

import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tenure.clock import from_microseconds, monotonic, pause
from tenure.store.retries import Cause

T = TypeVar("T")

BUSY_SECONDS = 1.2
"""How long a writer waits for another instance's transaction. A stopped one keeps the file: then the answer is 503."""
POLL_SECONDS = 0.0003


def immediate(connection: Connection, work: Callable[[Connection], T]) -> T:
    """`work` under the file's write lock, committed, or rolled back as a whole."""
    _take_the_file(connection)
    try:
        result = work(connection)
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        # A full disk has ended the transaction already.
        if connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
            connection.exec_driver_sql("ROLLBACK")
        raise
    return result


def _take_the_file(connection: Connection) -> None:
    """Asks again every few milliseconds. SQLite's own patience sleeps longer and longer, up to a tenth of a second, and
    then never meets the moment between two writes of a busy neighbour.
    """
    ends_at = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except DBAPIError as error:
            if cause_of(error) is not Cause.LOCK_TIMEOUT or monotonic() >= ends_at:
                raise
            pause(POLL_SECONDS)
        else:
            return


def write_now(connection: Connection) -> datetime:
    """The clock of a session write: never before the last cut, even if the host's clock was stepped back."""
    microseconds: int = connection.exec_driver_sql(_WRITE_NOW).scalar_one()
    return from_microseconds(microseconds)


_WRITE_NOW = "SELECT max(tenure_now(), last_cut_at) FROM installation"


def cause_of(error: BaseException) -> Cause | None:
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.IntegrityError):
        unique = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
        return Cause.DUPLICATE if original.sqlite_errorcode in unique else None
    if not isinstance(original, sqlite3.OperationalError):
        return None
    if original.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Cause.LOCK_TIMEOUT
    if "no such table" in str(original):
        return Cause.SCHEMA
    return Cause.CONNECTION
