"""Telemetry for tests: records every event, and logs like the service does."""

from typing import TypeVar

from tenure.telemetry.events import Event, Telemetry
from tenure.telemetry.logs import log_events

E = TypeVar("E", bound=Event)


class RecordedTelemetry(Telemetry):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        log_events(self)

    def report(self, event: Event) -> None:
        self.events.append(event)
        super().report(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]
