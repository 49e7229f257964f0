"""Events: every follower and the gateway get every event once, in one order, even after late commits."""

import json
from typing import Any, NamedTuple

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Tables, instant

SHOWN = 3


class Event(NamedTuple):
    """Events sort in the order of the feed: by instant; at the same instant, closes first."""

    at: int
    is_start: bool
    session_id: str
    type: str
    close_reason: str | None


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    expected = expected_events(tables)
    due = sum(event.at <= history.ended_at for event in expected)
    readers = {feed.name: [event_of(event) for event in feed.events] for feed in history.feeds}
    sent = sorted(tables.ledgers["hooks"]["events"], key=lambda row: row["position"])
    readers["the gateway"] = [event_of(_content(row)) for row in sent]
    for name, events in readers.items():
        findings.expect(
            len(events) >= due,
            f"{name}: {len(events)} of {due} events arrived; missing: {_missing(expected[:due], events)}",
        )
        findings.expect(
            len(set(events)) == len(events), f"{name}: {len(events) - len(set(events))} events arrived more than once"
        )
        for place, (one, other) in enumerate(zip(events, expected, strict=False)):
            if one != other:
                findings.add(f"{name}: event {place + 1} is {one}, and {other} was expected")
                break
        else:
            findings.expect(len(events) <= len(expected), f"{name}: {len(events) - len(expected)} events too many")
    for _ in expected:
        findings.expect(True, "")
    return findings.outcome()


def expected_events(tables: Tables) -> list[Event]:
    """All events of the sessions in the table, in order."""
    events: list[Event] = []
    for session in tables.sessions:
        name, previous = session["session_id"], session["previous_session_id"]
        started = "session.opened" if previous is None else "session.upgraded"
        reason = session["close_reason"] or session["lapse_reason"]
        events.append(Event(session["started_at"], True, name, started, None))
        events.append(Event(tables.ended_at(session), False, name, "session.closed", reason))
    return sorted(events)


def event_of(event: dict[str, Any]) -> Event:
    kind = event["type"]
    return Event(instant(event["at"]), kind != "session.closed", event["sessionId"], kind, event.get("closeReason"))


def _content(row: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(row["content"])
    return content


def _missing(expected: list[Event], found: list[Event]) -> list[Event]:
    known = set(found)
    return [event for event in expected if event not in known][:SHOWN]
