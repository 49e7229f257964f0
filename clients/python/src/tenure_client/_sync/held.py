# Generated from ../_async/held.py by tools/generate_sync.py. Do not edit.
"""Holding a session: entering the block opens the session, the keeper renews it, and leaving the block ends it."""

import os
import weakref
from typing import TYPE_CHECKING

from tenure_client import models
from tenure_client._core import Answer
from tenure_client._keeper import Keeper
from tenure_client._lease import Lease, Loss, reason_of
from tenure_client._sync import _io
from tenure_client._sync.streams import Stream
from tenure_client.errors import SessionLost

if TYPE_CHECKING:
    from tenure_client._sync.client import Client


class Hold:
    """A context manager that holds a session. Use it once: in a `with` block (`async with` in the async client), or
    call `open`, and later `close` of the session that `open` returns.
    """

    def __init__(
        self,
        client: "Client",
        body: models.OpenBody | None,
        session_id: str | None,
        *,
        active: bool,
        end_on_exit: bool,
    ) -> None:
        self._client = client
        self._body = body
        self._session_id = session_id
        self._active = active
        self._end_on_exit = end_on_exit
        self._held: HeldSession | None = None

    def __enter__(self) -> "HeldSession":
        self._held = self.open()
        return self._held

    def __exit__(self, *_error: object) -> None:
        if self._held is not None:
            self._held.close()

    def open(self) -> "HeldSession":
        """Open the session and start to renew it."""
        if self._body is None:
            session, answer = self._client.sessions.get(str(self._session_id)), None
        else:
            answer = self._client.sessions._open(self._body)
            session = answer.decode(models.OpenedSession)
        shared, options = self._client._shared, self._client._options
        keeper = shared.keeper()
        lease = Lease(session, options.key, options.clock, keeper.anchor, active=self._active)
        lease.ends_with_client = self._end_on_exit
        if answer is not None and isinstance(session, models.OpenedSession) and session.was_created:
            lease.opened(session, answer.sent_at)
        else:
            session = self._adopt(lease)
        _io.bind(lease.loss)
        keeper.add(lease)
        return HeldSession(self._client, keeper, lease, session)

    def _adopt(self, lease: Lease) -> models.Session:
        """Renew and read a session that was already live, to learn how long it still lives (see `_lease.py`)."""
        beat: Answer = self._client.sessions._heartbeat(lease.session_id, active=self._active)
        session = self._client.sessions.get(lease.session_id)
        if not session.is_active:
            reason = reason_of(session.close_reason)
            raise SessionLost(lease.session_id, str(reason), session.close_reason, None)
        lease.read(session, beat.sent_at)
        return session


class HeldSession:
    """A session that this process keeps alive.

    `lost` says whether the session is lost, and why. Once the session is lost, `check` and every method that needs the
    session raise `SessionLost`.
    """

    def __init__(self, client: "Client", keeper: Keeper, lease: Lease, session: models.Session) -> None:
        self._client = client
        self._keeper = keeper
        self._lease = lease
        self._session = session
        self._pid = os.getpid()
        self.ended = False
        """After `close`: whether the server has confirmed the end of the session."""
        self._forgotten = weakref.finalize(self, keeper.abandon, lease)
        # When the interpreter exits, the keeper ends its sessions together, so this finalizer must not run then.
        self._forgotten.atexit = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, lost={self.lost.reason})"

    @property
    def id(self) -> str:
        return self._lease.session_id

    @property
    def session(self) -> models.Session:
        """The session as it was when this process began to hold it."""
        return self._session

    @property
    def lost(self) -> Loss:
        return self._lease.loss

    @property
    def remaining(self) -> float:
        """The seconds until the local deadline; 0 if the session is lost. Successful heartbeats of the keeper move the
        local deadline.
        """
        return 0.0 if self.lost else max(self._lease.deadline - self._lease.clock.now(), 0.0)

    def check(self) -> None:
        """Raise `SessionLost` if the session is lost. Call it before each step that needs the session."""
        self.lost.raise_if_lost()

    def touch(self) -> None:
        """Report activity with the next heartbeat, so that this heartbeat restarts the idle limit."""
        self.check()
        self._lease.touched = True

    def heartbeat(self, *, active: bool = False) -> models.Heartbeat:
        """Send a heartbeat now, besides those of the keeper. This heartbeat does not move the local deadline."""
        self.check()
        return self._client.sessions.heartbeat(self.id, active=active)

    def get(self) -> models.Session:
        """Read the session."""
        self.check()
        return self._client.sessions.get(self.id)

    def stream(self) -> Stream:
        """Attach a stream. When the stream ends, the session ends too."""
        self.check()
        return self._client.sessions.stream(self.id)

    def close(self) -> None:
        """Stop renewing the session, and end it. A failure of the server raises nothing: if the server does not answer,
        or answers 429 or 5xx, the client retries for about five seconds and then logs a warning. `ended` says whether
        the server confirmed the end.

        The session is not ended if it is lost, if another `HeldSession` of this client holds it, or if `end_on_exit` is
        false. In a child process, `close` does nothing: the session belongs to the parent.
        """
        if os.getpid() == self._pid and self._forgotten.detach() is not None:
            self.ended = _io.finished(self._keeper.end(self._lease, on_server=self._lease.ends_with_client))
