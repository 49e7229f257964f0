"""Events as JSON, for the feed and for gateways.

A released format never changes, not even by a space: a batch that one release has sent may be sent again by a later
release, and must have the same bytes. A new format gets a new name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tenure.clock import instant_text
from tenure.domain.events import EventType, SessionEvent


def event_json(event: SessionEvent) -> str:
    text = (
        f'{{"id":"{event.event_id}","type":"{event.type}","at":"{instant_text(event.at)}",'
        f'"sessionId":"{event.session_id}","userObjectId":"{event.user_object_id}",'
        f'"tenantObjectId":"{event.tenant_object_id}","capacityId":"{event.capacity_id}","sessionKind":{event.kind}'
    )
    if event.type is EventType.OPENED:
        return f"{text}}}"
    if event.type is EventType.UPGRADED:
        return f'{text},"previousSessionId":"{event.previous_session_id}"}}'
    return f'{text},"sessionStartUtc":"{instant_text(event.started_at)}","closeReason":"{event.close_reason}"}}'


class EventFormat(NamedTuple):
    media_type: str
    render: Callable[[str, Sequence[SessionEvent]], str]
    """Renders the events of a batch, given the id of the installation."""


def _tenure(_installation_id: str, events: Sequence[SessionEvent]) -> str:
    """The payload of a Standard Webhook: a type, the time of the last event, and the events as data, oldest first."""
    return f'{{"type":"session.events","timestamp":"{instant_text(events[-1].at)}","data":[{_joined(events)}]}}'


def _joined(events: Sequence[SessionEvent]) -> str:
    return ",".join(map(event_json, events))


def _cloud_events(installation_id: str, events: Sequence[SessionEvent]) -> str:
    """A batch of CloudEvents 1.0. `source` and `id` together identify an event uniquely."""
    head = f'{{"specversion":"1.0","source":"urn:tenure:{installation_id}"'
    parts = [
        f'{head},"id":"{event.event_id}","type":"tenure.{event.type}","subject":"{event.session_id}",'
        f'"time":"{instant_text(event.at)}","datacontenttype":"application/json","data":{event_json(event)}}}'
        for event in events
    ]
    return f"[{','.join(parts)}]"


EVENT_FORMATS: Mapping[str, EventFormat] = {
    "tenure": EventFormat("application/json", _tenure),
    "cloudevents": EventFormat("application/cloudevents-batch+json", _cloud_events),
}
"""The formats, by their names in the configuration of a gateway."""
CONTRACT_FORMATS = {f"events-{name}": each for name, each in EVENT_FORMATS.items()}
"""The formats, by their names in the contract of a submission. The prefix distinguishes these from formats of usage."""


def render(contract_format: str, installation_id: str, events: Sequence[SessionEvent]) -> bytes:
    return CONTRACT_FORMATS[contract_format].render(installation_id, events).encode()
