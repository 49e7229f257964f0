"""Identifiers: how they are generated and parsed.

Inside Tenure an id is the canonical lower-case string, in every layer and on every engine. Only the executor's
schedule, which may hold a million of them, stores ids as integers.
"""

import re
from typing import cast
from uuid import UUID

from uuid_utils import uuid7

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_ANY_CASE = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch


CELL = "000"
"""The number of the database that a session lives in, as three hexadecimal digits. Only one database exists so far."""


def new_id() -> str:
    """Return a UUIDv7. Ids are roughly ordered by time, but callers may rely only on uniqueness."""
    return str(uuid7())


def new_session_id() -> str:
    """Return a UUIDv7 in which CELL replaces the first 12 random bits, the three digits after the version digit.

    CELL is reserved so that sessions can later be spread over several databases: the id of a session then contains the
    number of its database.
    """
    text = str(uuid7())
    return f"{text[:15]}{CELL}{text[18:]}"


def canonical_id(text: str) -> str | None:
    """Return a UUID in lower case; None if `text` is not a UUID in 8-4-4-4-12 form."""
    if _CANONICAL(text):
        return text
    return text.lower() if _ANY_CASE(text) else None


def id_text(value: object) -> str:
    """Return the canonical form of an id that a database driver returned as a UUID or as text."""
    return str(cast("UUID | str", value)).lower()


def number_of_id(canonical: str) -> int:
    """Return the id as an integer. Five times as fast as `UUID(canonical).int`."""
    return int(canonical.replace("-", ""), 16)


def id_of_number(number: int) -> str:
    return str(UUID(int=number))
