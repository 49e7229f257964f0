"""What this instance has done since it started. Plain integers: the hot lane counts on every request."""

from collections import Counter
from collections.abc import Iterable

import structlog

from tenure.deadlines import closing_of
from tenure.model.sessions import Closing, Ended, Opened, Outcome

log = structlog.get_logger()

EVENTS = {
    "EXPIRED": "session.expired",
    "LEASE_EXPIRED": "session.lease_expired",
    "IDLE_TIMEOUT": "session.idle_timeout",
    "EVICTED": "session.evicted",
}
"""Ends that no client asked for, and that somebody will want to have explained."""


class Counters:
    def __init__(self) -> None:
        self.opened: Counter[tuple[str, int]] = Counter()
        """By outcome and kind; `existing` is counted too."""
        self.closed: Counter[str] = Counter()
        """By reason, as far as this instance recorded it."""
        self.heartbeats = 0
        self.late_heartbeats = 0
        self.streamed: Counter[str] = Counter()
        """Everything that streams counted, by the names of `StreamCounters`."""

    def count_opening(self, answer: Opened) -> None:
        session = answer.session
        if session is not None:
            self.opened[answer.outcome, session.kind] += 1
            if answer.outcome is Outcome.UPGRADED:
                self.closed["UPGRADED"] += 1

    def count_end(self, ended: Ended) -> None:
        if ended.recorded and ended.session is not None:
            self.count_closing(closing_of(ended.session))

    def count_closings(self, closings: Iterable[Closing]) -> None:
        for closing in closings:
            self.count_closing(closing)

    def count_closing(self, closing: Closing) -> None:
        self.closed[closing.reason] += 1
        event = EVENTS.get(closing.reason)
        if event is not None:
            log.info(
                event,
                session_id=closing.session_id,
                state="closed",
                reason=closing.reason,
                ended_at=closing.ended_at.isoformat(),
            )
