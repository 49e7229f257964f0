"""Identifiers: how they are made and how they are recognised.

Inside Tenure an id is the canonical lower-case string, in every layer and on every engine; only the schedule of
submissions, which holds a million of them, has them as numbers.
"""

import re
from typing import cast
from uuid import UUID

from uuid_utils import uuid7

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_ANY_CASE = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch


def new_id() -> str:
    """A UUIDv7. It orders roughly by time; nothing may rely on more than its being unique."""
    return str(uuid7())


def canonical_id(text: str) -> str | None:
    """The canonical form of a UUID in its 8-4-4-4-12 form, or None if `text` is not one."""
    if _CANONICAL(text):
        return text
    return text.lower() if _ANY_CASE(text) else None


def id_text(value: object) -> str:
    """The canonical form of an id as a driver returned it."""
    return str(cast("UUID | str", value)).lower()


def number_of_id(canonical: str) -> int:
    """A fifth of what `UUID` takes for it."""
    return int(canonical.replace("-", ""), 16)


def id_of_number(number: int) -> str:
    return str(UUID(int=number))
