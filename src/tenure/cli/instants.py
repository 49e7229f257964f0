"""Instants as people type them."""

import re
from datetime import datetime

from tenure.errors import ConfigurationError

_DAY = re.compile(r"\d{4}-\d\d-\d\d").fullmatch


def instant_of(flag: str, text: str) -> datetime:
    """With its offset, or a day, which begins at midnight in UTC."""
    try:
        instant = datetime.fromisoformat(f"{text}T00:00:00Z" if _DAY(text) else text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ConfigurationError(f"{flag}: must be an instant with its offset, as 2026-01-02T03:04:05Z, or a day")
    return instant
