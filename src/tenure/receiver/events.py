"""Reads the session events in the body of a delivery, in their order in the body."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

EVENTS_MAX = 100_000
"""The most events that are read from one body; the rest is ignored."""


class ReceivedEvent(NamedTuple):
    event_id: str
    type: str
    content: str
    """The event as JSON, as it was received."""


class _Event(msgspec.Struct):
    id: str
    type: str


class _Batch(msgspec.Struct):
    """The payload of a Standard Webhook."""

    type: Literal["session.events"]
    data: list[msgspec.Raw]


class _CloudEvent(msgspec.Struct):
    specversion: str
    data: msgspec.Raw


_BATCH = msgspec.json.Decoder(_Batch)
_CLOUD_EVENTS = msgspec.json.Decoder(list[_CloudEvent])
_EVENT = msgspec.json.Decoder(_Event)


def events_in(body: bytes) -> Sequence[ReceivedEvent]:
    """Return the events in a batch: a Standard Webhook, or an array of CloudEvents. Return none for any other body, and
    none if one of the events is invalid.
    """
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [_received(each) for each in (_in_batch(body) or _in_cloud_events(body))[:EVENTS_MAX]]
    return []


def _in_batch(body: bytes) -> Sequence[msgspec.Raw]:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _BATCH.decode(body).data
    return []


def _in_cloud_events(body: bytes) -> Sequence[msgspec.Raw]:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [each.data for each in _CLOUD_EVENTS.decode(body)]
    return []


def _received(raw: msgspec.Raw) -> ReceivedEvent:
    event = _EVENT.decode(raw)
    return ReceivedEvent(event.id, event.type, bytes(raw).decode())
