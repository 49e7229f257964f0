"""What sessions must do, in plain Python: what the engines are compared with. It knows no SQL and no races."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec.structs import replace

from tenure.deadlines import as_recorded, opened
from tenure.model import CloseReason, Limits, Open, Opened, Outcome, Session, State

MICROSECOND = timedelta(microseconds=1)


class SessionModel:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.recorded: dict[str, Session] = {}

    def open(self, wish: Open, now: datetime) -> Opened:
        old = self._unended(wish.key)
        now = max([now, *(s.closed_at for s in self._of(wish.key) if s.closed_at is not None)])
        if old is None:
            return self._begin(Outcome.CREATED, opened(wish, self._limits, now))
        if old.deadline_at <= now:
            lapsed = self._close(old, old.deadline_at, old.lapse_reason)
            return self._begin(Outcome.CREATED, opened(wish, self._limits, now), lapsed)
        if old.tenant_object_id != wish.tenant_object_id:
            return Opened(Outcome.TENANT_MISMATCH)
        if old.kind >= wish.kind:
            return Opened(Outcome.EXISTING, old)
        return self._upgrade(wish, old, max(now, old.started_at + MICROSECOND))

    def end(self, session_id: str, reason: CloseReason, now: datetime) -> Session:
        session = self.recorded[session_id]
        if session.closed_at is not None:
            return session
        if session.deadline_at <= now:
            return self._close(session, session.deadline_at, session.lapse_reason)
        return self._close(session, min(session.deadline_at, max(now, session.started_at + MICROSECOND)), reason)

    def read(self, now: datetime) -> dict[str, Session]:
        return {session_id: as_recorded(session, now) for session_id, session in self.recorded.items()}

    def _upgrade(self, wish: Open, old: Session, now: datetime) -> Opened:
        self._close(old, now, CloseReason.UPGRADED)
        inherited = Limits(self._limits.term, old.lease_microseconds, old.idle_microseconds, old.heartbeat_microseconds)
        new = replace(opened(wish, inherited, now), previous_session_id=old.session_id)
        return self._begin(Outcome.UPGRADED, new)

    def _begin(self, outcome: Outcome, session: Session, lapsed: Session | None = None) -> Opened:
        self.recorded[session.session_id] = session
        return Opened(outcome, session, lapsed)

    def _close(self, session: Session, closed_at: datetime, reason: str) -> Session:
        closed = replace(
            session, state=State.CLOSED, closed_at=closed_at, close_reason=str(reason), modified_at=closed_at
        )
        self.recorded[session.session_id] = closed
        return closed

    def _of(self, key: tuple[str, str]) -> Iterable[Session]:
        return [s for s in self.recorded.values() if (s.capacity_id, s.user_object_id) == key]

    def _unended(self, key: tuple[str, str]) -> Session | None:
        return next((session for session in self._of(key) if session.closed_at is None), None)
