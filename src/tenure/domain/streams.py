"""Store requests that attach and update streams. A stream is the live connection of a session."""

from datetime import datetime

import msgspec

from tenure.domain.scope import Scope
from tenure.domain.sessions import ClosedSession, Found, Session, StreamCounters


class AttachRequest(msgspec.Struct, frozen=True):
    """A request to attach a stream to a session. Each of its limits applies if the session has no such limit."""

    session_id: str
    lease_microseconds: int
    idle_microseconds: int
    heartbeat_microseconds: int
    scope: Scope


class AttachResult(msgspec.Struct, frozen=True):
    """`attachment` is the number of the stream. The newest stream of a session replaces older ones.

    `now` is from the database's clock.
    """

    found: Found
    session: Session | None = None
    attachment: int = 0
    now: datetime | None = None
    closed_session: ClosedSession | None = None


class StreamUpdate(msgspec.Struct, frozen=True):
    """An update from the instance that holds a stream.

    `counted` holds the increments of the counters since the previous save. `save` is the number of this save within the
    attachment, so that a retry after a lost response is not added twice. `end` records the end and leaves the session
    `closing`; `finished` closes it, and marks the last save of a stream. An update with neither is a keep-alive. If the
    session has ended, the increments of a keep-alive are not added.
    """

    session_id: str
    attachment: int
    save: int
    active: bool
    counted: StreamCounters
    end: str | None = None
    finished: bool = False


class StreamUpdateResult(msgspec.Struct, frozen=True):
    found: Found
    session: Session | None = None
    now: datetime | None = None
    recorded: bool = False
    """Whether this update recorded the end of the session, either for the reason in `end` or because of a lapse."""
    counted: bool = False
    """Whether the counters of the session contain the increments of this update."""
