"""The requests to the store that attach and update streams, and their results."""

from datetime import datetime

import msgspec

from tenure.domain.scope import Scope
from tenure.domain.sessions import ClosedSession, Found, Session, StreamCounters


class AttachRequest(msgspec.Struct, frozen=True):
    """A request to attach a stream to a session.

    A session without a lease gets this lease and heartbeat interval. A session without an idle limit gets this one.
    """

    session_id: str
    lease_microseconds: int
    idle_microseconds: int
    heartbeat_microseconds: int
    scope: Scope


class AttachResult(msgspec.Struct, frozen=True):
    """The result of an attach request.

    `attachment` is the number of the stream: the highest among the streams of the session. `now` is the time of the
    database's clock. `closed_session` is set if the session had lapsed and this request recorded its end.
    """

    found: Found
    session: Session | None = None
    attachment: int = 0
    now: datetime | None = None
    closed_session: ClosedSession | None = None


class StreamUpdate(msgspec.Struct, frozen=True):
    """An update from the instance that serves a stream.

    `active` says whether the session was used since the previous update. `counted` holds the increments of the counters
    since the previous save. `save` numbers the saves of this stream, so that the database adds a repeated save only
    once. `end` is the reason for which the update ends the session, None if it does not. After such an end, the session
    is `closing` until the stream sends its last save, which has `finished`. One update can have both `end` and
    `finished`. An update with neither of them is a keep-alive. If the session has ended, the increments of a keep-alive
    are not added.
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
    """Whether this update recorded the end of the session: for the reason in `end`, or because it had lapsed."""
    counted: bool = False
    """Whether the counters of the session contain the increments of this update."""
