"""Identifiers: how they are generated and parsed.

Inside Tenure an id is a UUID as a string in canonical form: in lower case, with dashes. All modules use this form, with
every database. The only exception is the executor: its schedule may hold a million ids, so it stores them as integers.
"""

import re
from typing import cast
from uuid import UUID

from uuid_utils import uuid7

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_DASHED = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ANY_FORM = re.compile(rf"(\{{)?({_DASHED}|[0-9a-f]{{32}})(?(1)\}})", re.IGNORECASE | re.ASCII).fullmatch


CELL = "000"
"""The number of the database that stores a session, as three hexadecimal digits. Only one database exists so far."""


def new_id() -> str:
    """Return a UUIDv7. Ids are roughly ordered by time, but callers may rely only on uniqueness."""
    return str(uuid7())


def new_session_id() -> str:
    """Return a UUIDv7 in which CELL replaces the first 12 random bits, the three digits after the version digit.

    These digits are reserved so that sessions can later be spread over several databases: the id of a session then
    contains the number of its database.
    """
    text = str(uuid7())
    return f"{text[:15]}{CELL}{text[18:]}"


def canonical_id(text: str) -> str | None:
    """Return a UUID in lower case with dashes; None if `text` is not a UUID. In `text`, dashes are optional and braces
    are allowed.
    """
    if _CANONICAL(text):
        return text
    found = _ANY_FORM(text)
    if found is None:
        return None
    digits = found[2].lower().replace("-", "")
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def id_text(value: object) -> str:
    """Return the canonical form of an id that a database driver returned as a UUID or as text."""
    return str(cast("UUID | str", value)).lower()


def number_of_id(canonical: str) -> int:
    """Return the id as an integer. Five times as fast as `UUID(canonical).int`."""
    return int(canonical.replace("-", ""), 16)


def id_of_number(number: int) -> str:
    return str(UUID(int=number))
