"""The counters behind `GET /sessions/metrics`, since the start of this instance. They subscribe to telemetry events."""

from collections import Counter

from tenure.domain.sessions import OpenOutcome
from tenure.telemetry.events import SessionClosed, SessionOpened, StreamReceived, StreamSent, Telemetry


class Counters:
    def __init__(self, telemetry: Telemetry) -> None:
        self.opened: Counter[tuple[str, int]] = Counter()
        """By outcome and kind; `existing` is counted too."""
        self.closed: Counter[str] = Counter()
        """By reason; only sessions whose end this instance recorded."""
        self.streamed: Counter[str] = Counter()
        """By the names of `StreamCounters`."""
        telemetry.subscribe(SessionOpened, self._opened)
        telemetry.subscribe(SessionClosed, self._closed)
        telemetry.subscribe(StreamReceived, self._received)
        telemetry.subscribe(StreamSent, self._sent)

    def _opened(self, event: SessionOpened) -> None:
        self.opened[event.outcome, event.session.kind] += 1
        if event.outcome is OpenOutcome.UPGRADED:
            self.closed["UPGRADED"] += 1

    def _closed(self, event: SessionClosed) -> None:
        self.closed[event.reason] += 1

    def _received(self, event: StreamReceived) -> None:
        self.streamed["bytes_received"] += event.byte_count
        self.streamed["chunks"] += 1
        self.streamed["audio_duration_ms"] += event.audio_duration_ms

    def _sent(self, event: StreamSent) -> None:
        self.streamed["messages_sent"] += 1
        if event.kind is not None:
            self.streamed[event.kind] += 1
