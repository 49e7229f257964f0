"""Usage records: the part of the body of a chunk that lists its sessions, one record per session.

A template has the text of a record, with a place for each value of the session. PostgreSQL renders records in SQL
(`store/engines/postgres/windows.py`); `render_records` renders them for the other engines. Both produce the same bytes;
a conformance test compares them.
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from tenure.clock import instant_text
from tenure.domain.meter import decimal_text, usage_between
from tenure.domain.usage import BillableInterval, ChunkBounds, Window

_amount_text = lru_cache(4096)(decimal_text)
"""Cached, because most sessions are live for a whole window, so there are few distinct amounts."""


class Field(Enum):
    """A value of a session in a window. Its number is the index in the tuple of values that fills a template."""

    SESSION_ID = 0
    USER_OBJECT_ID = 1
    TENANT_OBJECT_ID = 2
    CAPACITY_ID = 3
    KIND = 4
    USAGE = 5
    FROM_AT = 6
    TO_AT = 7


Template = tuple[str | Field, ...]
"""The parts of a record, in order: texts and fields."""


class Records(NamedTuple):
    """The records of a chunk, with the number and the usage of its sessions."""

    text: str
    """All records, in the order of session ids, with a comma between them."""
    sessions: int
    usage_millionths: int


class DividedChunk(NamedTuple):
    """A chunk that was rendered when its window was divided."""

    bounds: ChunkBounds
    records: Records


def render_records(template: Template, window: Window, intervals: Sequence[BillableInterval]) -> Records:
    factors = window.era.factors
    from_text, to_text = instant_text(window.started_at), instant_text(window.ended_at)
    pattern = "".join("%s" if isinstance(part, Field) else part.replace("%", "%%") for part in template)
    select = itemgetter(*(part.value for part in template if isinstance(part, Field)))
    records, usage = [], 0
    for session_id, user, tenant, capacity, kind, from_at, to_at, before, total in intervals:
        amount = usage_between(before, total, factors[kind - 1])
        usage += amount
        values = (
            session_id,
            user,
            tenant,
            capacity,
            kind,
            _amount_text(amount),
            from_text if from_at is None else instant_text(from_at),
            to_text if to_at is None else instant_text(to_at),
        )
        records.append(pattern % select(values))
    return Records(",".join(records), len(records), usage)
