"""Reads the usage in a body, and sums it exactly."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Context, Decimal, Inexact
from typing import NamedTuple

import msgspec

_NUMBER = re.compile(rb"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")
_EXACT_CONTEXT = Context(prec=1000, traps=[Inexact])
"""A number that matches `_NUMBER` has at most 260 digits when it is written without an exponent. If a sum needs more
than 1000 digits, the addition raises `Inexact` instead of rounding the sum."""


class Usage(NamedTuple):
    records: int
    total: Decimal


class _Record(msgspec.Struct, gc=False):
    usage: msgspec.Raw


class _Event(msgspec.Struct, gc=False):
    """A CloudEvent that contains a record."""

    data: _Record


_RECORDS = msgspec.json.Decoder(list[_Record])
_EVENTS = msgspec.json.Decoder(list[_Event])


def usage_in(body: bytes) -> Usage | None:
    """Return the sum of the usage in a body, or None if the body is neither of these:

    - a JSON array of records, each with a number as `usage`
    - a JSON array of CloudEvents, each with such a record as `data`
    """
    records = _records_in(body)
    if records is None:
        return None
    # Most sessions of a body have one of a few amounts, so convert each different amount only once.
    times = Counter(bytes(record.usage) for record in records)
    if not all(_NUMBER.fullmatch(number) for number in times):
        return None
    return Usage(len(records), exact_sum(_times(Decimal(number.decode()), count) for number, count in times.items()))


def _records_in(body: bytes) -> Sequence[_Record] | None:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _RECORDS.decode(body)
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [event.data for event in _EVENTS.decode(body)]
    return None


def _times(amount: Decimal, count: int) -> Decimal:
    return _EXACT_CONTEXT.multiply(amount, Decimal(count))


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = _EXACT_CONTEXT.add(total, amount)
    return total
