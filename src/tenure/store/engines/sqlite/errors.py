"""Maps errors of SQLite to the causes that `store/retries.py` handles."""

import sqlite3

from sqlalchemy.exc import DBAPIError

from tenure.store.retries import Cause

_CAUSES = {
    sqlite3.SQLITE_BUSY: Cause.LOCK_TIMEOUT,
    sqlite3.SQLITE_LOCKED: Cause.LOCK_TIMEOUT,
    sqlite3.SQLITE_FULL: Cause.DISK_FULL,
    sqlite3.SQLITE_READONLY: Cause.READ_ONLY,
    sqlite3.SQLITE_IOERR: Cause.IO_ERROR,
}
"""Causes by primary result code. The primary code is the lowest byte of an extended result code."""


class FileMoved(Exception):
    """The path of the database no longer leads to the open file, because this file was moved, replaced or deleted."""


def cause_of(error: BaseException) -> Cause | None:
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, FileMoved):
        return Cause.FILE_MOVED
    if isinstance(original, sqlite3.IntegrityError):
        unique = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
        return Cause.DUPLICATE if original.sqlite_errorcode in unique else None
    if not isinstance(original, sqlite3.OperationalError):
        return None
    if original.sqlite_errorcode & 0xFF in _CAUSES:
        return _CAUSES[original.sqlite_errorcode & 0xFF]
    return Cause.SCHEMA if "no such table" in str(original) else Cause.CONNECTION
