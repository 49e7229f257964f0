"""The formats in which a chunk is rendered for its receiver.

A released format never changes, not even by a space: a chunk must render to the same bytes before and after a crash. A
new format gets a new name.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tenure.domain.usage import BillableInterval, Window
from tenure.domain.usage_records import Field, Records, Template, render_records


class Rendered(NamedTuple):
    body: bytes
    sessions: int
    usage_millionths: int


class Format(NamedTuple):
    media_type: str
    template: Callable[[Window], Template]
    """Returns the template of the records of a window: one record per session."""


def render(name: str, window: Window, intervals: Sequence[BillableInterval]) -> Rendered:
    records = render_records(FORMATS[name].template(window), window, intervals)
    return Rendered(body_of(records), records.sessions, records.usage_millionths)


def body_of(records: Records) -> bytes:
    return b"[%b]" % records.text.encode()


def _plain(_window: Window) -> Template:
    return (
        '{"sessionId":"',
        Field.SESSION_ID,
        '","userObjectId":"',
        Field.USER_OBJECT_ID,
        '","tenantObjectId":"',
        Field.TENANT_OBJECT_ID,
        '","capacityId":"',
        Field.CAPACITY_ID,
        '","sessionKind":',
        Field.KIND,
        ',"usage":',
        Field.USAGE,
        ',"fromUtc":"',
        Field.FROM_AT,
        '","toUtc":"',
        Field.TO_AT,
        '"}',
    )


def _cloud_event(window: Window) -> Template:
    """CloudEvents 1.0. `source` and `id` together identify a record uniquely."""
    head = f'{{"specversion":"1.0","type":"tenure.usage","source":"urn:tenure:{window.installation_id}"'
    return (
        f'{head},"id":"{window.window_id}-',
        Field.SESSION_ID,
        '","subject":"',
        Field.TENANT_OBJECT_ID,
        '","time":"',
        Field.TO_AT,
        '","datacontenttype":"application/json","data":',
        *_plain(window),
        "}",
    )


FORMATS = {
    "tenure": Format("application/json", _plain),
    "cloudevents": Format("application/cloudevents-batch+json", _cloud_event),
}
