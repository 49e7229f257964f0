"""Events of sessions in deliveries: the receiver recognises them in both formats (Standard Webhooks and CloudEvents),
and records each once, in the order of arrival.
"""

import json

from tenure.receiver.events import events_in
from tests.receiver.sending import deliver, send


def event(number: int) -> dict[str, object]:
    return {"id": f"{number}-opened", "type": "session.opened", "sessionId": str(number)}


def batch(*numbers: int) -> bytes:
    return json.dumps({"type": "session.events", "timestamp": "t", "data": [event(each) for each in numbers]}).encode()


def cloud_events(*numbers: int) -> bytes:
    return json.dumps([{"specversion": "1.0", "id": "x", "data": event(each)} for each in numbers]).encode()


def test_events_are_read_from_both_formats() -> None:
    for body in (batch(3, 1), cloud_events(3, 1)):
        assert [each.event_id for each in events_in(body)] == ["3-opened", "1-opened"]
        assert json.loads(events_in(body)[0].content) == event(3)


def test_other_bodies_have_no_events() -> None:
    usage = [{"usage": 1, "sessionId": "x"}]
    bodies = [usage, [{"specversion": "1.0", "data": usage[0]}], {"type": "order"}, {"type": "session.events"}, 7, []]
    assert [list(events_in(json.dumps(body).encode())) for body in bodies] == [[]] * len(bodies)
    assert list(events_in(b"not json")) == []


async def test_events_are_listed_once_in_order_of_arrival(address: str) -> None:
    for key, body in (("b", batch(5, 6)), ("a", cloud_events(1)), ("b", batch(5, 6))):
        await deliver(address, key, body)
    page = (await send(address, "/_events?limit=2")).json
    rest = (await send(address, f"/_events?after={page['next']}")).json
    assert [each["eventId"] for each in page["events"] + rest["events"]] == ["5-opened", "6-opened", "1-opened"]
    assert (page["events"][0]["key"], page["events"][0]["event"]) == ("b", event(5))
    assert rest["next"] is None
