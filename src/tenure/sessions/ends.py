"""Notifies the code that works for a session as soon as this instance learns that the session has ended.

An ended session accepts no further messages, so the code that works for it (its stream, or a transcription) must stop
at once. That code watches the session here. An instance learns of an end in three ways:

- a write of this instance (an open request, a heartbeat, an end, a stream or a sweep) recorded the end, or found it
  recorded. The watchers are called before the caller of that write gets its result;
- the database notified this instance (PostgreSQL only), a few milliseconds after another instance recorded the end;
- a keep-alive of the stream found the end. This is the fallback for engines without notifications, and for lost
  notifications.

A watcher may be called late or twice, which does no harm because an end is final. No watcher is called while its
session is still live.
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
        """Calls the watchers of a session that has ended. Does not report the end to telemetry: the operation that
        recorded the end does that.
        """
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
