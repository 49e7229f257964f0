"""The ends of sessions as soon as this instance knows of them.

An ended session accepts no further messages, so the code that works for a session (its stream, or a transcription) must
stop at once when the session ends. It watches the session here. An instance learns of an end in three ways:

- an operation of this instance recorded the end, or found it recorded. The watchers are called before that operation is
  answered;
- the database notified this instance (PostgreSQL only), a few milliseconds after another instance recorded the end;
- a keep-alive of the stream found the end. This is the fallback: for engines without notifications, and for
  notifications that were lost.

An end is final, so a watcher may be called twice, and late, but never wrongly.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tenure.domain.sessions import ClosedSession
from tenure.telemetry.events import SessionClosed, Telemetry

Watcher = Callable[[str], None]
"""Called with the close reason."""


class SessionEnds:
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._watchers: dict[str, list[Watcher]] = {}

    def record(self, closed: ClosedSession) -> None:
        """Reports an end that an operation of this instance has recorded, and calls the watchers of the session."""
        self._telemetry.report(SessionClosed.of(closed))
        self.learn(closed.session_id, closed.reason)

    def learn(self, session_id: str, reason: str) -> None:
        """Calls the watchers of a session that has ended. Another operation has reported the end."""
        watchers = self._watchers.get(session_id)
        if watchers is not None:
            for ended in list(watchers):
                ended(reason)

    @contextmanager
    def watch(self, session_id: str, ended: Watcher) -> Iterator[None]:
        watchers = self._watchers.setdefault(session_id, [])
        watchers.append(ended)
        try:
            yield
        finally:
            watchers.remove(ended)
            if not watchers:
                del self._watchers[session_id]
