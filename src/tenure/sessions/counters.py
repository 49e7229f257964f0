"""What this instance has done since it started. Plain integers: the hot lane counts on every request."""

from collections import Counter

import structlog

from tenure.model import LAPSE_REASONS, Ended, Opened, Outcome, Session

log = structlog.get_logger()

LAPSE_EVENTS = {
    "EXPIRED": "session.expired",
    "LEASE_EXPIRED": "session.lease_expired",
    "IDLE_TIMEOUT": "session.idle_timeout",
}


class Counters:
    def __init__(self) -> None:
        self.opened: Counter[tuple[str, int]] = Counter()
        """By outcome and kind; `existing` is counted too."""
        self.closed: Counter[str] = Counter()
        """By reason, as far as this instance recorded it."""

    def count_opening(self, answer: Opened) -> None:
        session = answer.session
        if session is None:
            return
        self.opened[answer.outcome, session.kind] += 1
        if answer.outcome is Outcome.UPGRADED:
            self.closed["UPGRADED"] += 1
        if answer.lapsed is not None:
            self.count_lapse(answer.lapsed)

    def count_end(self, ended: Ended) -> None:
        if not ended.recorded:
            return
        if ended.session.close_reason in LAPSE_REASONS:
            self.count_lapse(ended.session)
        else:
            self.closed[str(ended.session.close_reason)] += 1

    def count_lapse(self, session: Session) -> None:
        reason = session.lapse_reason
        self.closed[reason] += 1
        log.info(
            LAPSE_EVENTS[reason],
            session_id=session.session_id,
            state=session.state,
            reason=reason,
            ended_at=session.deadline_at.isoformat(),
        )
