"""The formats in which a chunk is rendered for its receiver.

A released format never changes, not even by a space: a chunk must render to the same bytes before and after a crash. A
new format gets a new name.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from tenure.clock import instant_text
from tenure.domain.meter import decimal_text, usage_between
from tenure.domain.usage import BillableInterval, Window

_amount_text = lru_cache(4096)(decimal_text)
"""Cached because most sessions are live for a whole window, so that few distinct amounts occur."""


class Rendered(NamedTuple):
    body: bytes
    sessions: int
    usage_millionths: int


class Format(NamedTuple):
    media_type: str
    wrap: Callable[[Window, Sequence[BillableInterval], Sequence[str]], Sequence[str]]
    """Turns each record into its element of the body."""


def render(name: str, window: Window, intervals: Sequence[BillableInterval]) -> Rendered:
    records, usage = _records(window, intervals)
    parts = FORMATS[name].wrap(window, intervals, records)
    return Rendered(f"[{','.join(parts)}]".encode(), len(records), usage)


def _records(window: Window, intervals: Sequence[BillableInterval]) -> tuple[Sequence[str], int]:
    """Returns each record as a JSON object, and the sum of their usage."""
    factors = window.era.factors
    from_text, to_text = instant_text(window.started_at), instant_text(window.ended_at)
    records, usage = [], 0
    for session_id, user, tenant, capacity, kind, from_at, to_at, before, total in intervals:
        amount = usage_between(before, total, factors[kind - 1])
        usage += amount
        records.append(
            f'{{"sessionId":"{session_id}","userObjectId":"{user}","tenantObjectId":"{tenant}",'
            f'"capacityId":"{capacity}","sessionKind":{kind},"usage":{_amount_text(amount)},'
            f'"fromUtc":"{from_text if from_at is None else instant_text(from_at)}",'
            f'"toUtc":"{to_text if to_at is None else instant_text(to_at)}"}}'
        )
    return records, usage


def _unwrapped(_window: Window, _intervals: Sequence[BillableInterval], records: Sequence[str]) -> Sequence[str]:
    return records


def _cloud_events(window: Window, intervals: Sequence[BillableInterval], records: Sequence[str]) -> Sequence[str]:
    """CloudEvents 1.0. `source` and `id` together identify a record uniquely."""
    head = f'{{"specversion":"1.0","type":"tenure.usage","source":"urn:tenure:{window.installation_id}"'
    to_text = instant_text(window.ended_at)
    return [
        f'{head},"id":"{window.window_id}-{interval.session_id}","subject":"{interval.tenant_object_id}",'
        f'"time":"{to_text if interval.to_at is None else instant_text(interval.to_at)}",'
        f'"datacontenttype":"application/json","data":{record}}}'
        for interval, record in zip(intervals, records, strict=True)
    ]


FORMATS = {
    "tenure": Format("application/json", _unwrapped),
    "cloudevents": Format("application/cloudevents-batch+json", _cloud_events),
}
