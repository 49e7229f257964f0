"""How a chunk is written for its receiver.

A format that was released never changes, not by a blank: what was rendered before a crash must come out the same
after it. A new one gets a new name.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from tenure.clock import instant_text
from tenure.meter import decimal_text, usage_between
from tenure.model.usage import Life, Window

_amount_text = lru_cache(4096)(decimal_text)
"""Most sessions of a window live through all of it, and use one of a few amounts."""


class Rendered(NamedTuple):
    body: bytes
    sessions: int
    usage_millionths: int


class Format(NamedTuple):
    media_type: str
    wrap: Callable[[Window, Sequence[Life], Sequence[str]], Sequence[str]]
    """Makes of each record what stands for it in the body."""


def render(name: str, window: Window, lives: Sequence[Life]) -> Rendered:
    records, usage = _records(window, lives)
    parts = FORMATS[name].wrap(window, lives, records)
    return Rendered(f"[{','.join(parts)}]".encode(), len(records), usage)


def _records(window: Window, lives: Sequence[Life]) -> tuple[Sequence[str], int]:
    """Each as a JSON object, and the sum of what they say."""
    factors = window.era.factors
    from_text, to_text = instant_text(window.started_at), instant_text(window.ended_at)
    records, usage = [], 0
    for session_id, user, tenant, capacity, kind, from_at, to_at, before, total in lives:
        amount = usage_between(before, total, factors[kind - 1])
        usage += amount
        records.append(
            f'{{"sessionId":"{session_id}","userObjectId":"{user}","tenantObjectId":"{tenant}",'
            f'"capacityId":"{capacity}","sessionKind":{kind},"usage":{_amount_text(amount)},'
            f'"fromUtc":"{from_text if from_at is None else instant_text(from_at)}",'
            f'"toUtc":"{to_text if to_at is None else instant_text(to_at)}"}}'
        )
    return records, usage


def _as_they_are(_window: Window, _lives: Sequence[Life], records: Sequence[str]) -> Sequence[str]:
    return records


def _cloud_events(window: Window, lives: Sequence[Life], records: Sequence[str]) -> Sequence[str]:
    """CloudEvents 1.0. `id` and `source` together are never those of another record."""
    head = f'{{"specversion":"1.0","type":"tenure.usage","source":"urn:tenure:{window.installation_id}"'
    to_text = instant_text(window.ended_at)
    return [
        f'{head},"id":"{window.window_id}-{life.session_id}","subject":"{life.tenant_object_id}",'
        f'"time":"{to_text if life.to_at is None else instant_text(life.to_at)}",'
        f'"datacontenttype":"application/json","data":{record}}}'
        for life, record in zip(lives, records, strict=True)
    ]


FORMATS = {
    "tenure": Format("application/json", _as_they_are),
    "cloudevents": Format("application/cloudevents-batch+json", _cloud_events),
}
