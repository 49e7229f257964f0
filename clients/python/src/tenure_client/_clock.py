"""The clock with which the client measures how long it may rely on a held session."""

import time
from typing import Protocol


class Clock(Protocol):
    manual: bool
    """Whether time passes only when a test moves the clock (`tenure_client.testing`)."""

    def now(self) -> float:
        """Return seconds. Only differences have a meaning."""

    def pass_time(self, seconds: float) -> None:
        """Advance a manual clock. A clock that is not manual raises `NotImplementedError`."""

    def attach(self, keeper: "Settling") -> None:
        """Let a manual clock drive the keeper, until `detach`."""

    def detach(self, keeper: "Settling") -> None: ...


class Settling(Protocol):
    """The part of the client that a manual clock drives: the keeper of held sessions."""

    def next_event(self) -> float:
        """Return the time of the clock at which the next heartbeat is due or the next deadline passes."""

    def settle(self) -> None:
        """Do everything that is due at the current time of the clock."""


class SystemClock:
    """CLOCK_BOOTTIME, which keeps running while the machine is suspended, like the server's clock. On systems without
    CLOCK_BOOTTIME, the monotonic clock.
    """

    manual = False
    _id = getattr(time, "CLOCK_BOOTTIME", None)

    def now(self) -> float:
        return time.monotonic() if self._id is None else time.clock_gettime(self._id)

    def pass_time(self, seconds: float) -> None:
        raise NotImplementedError("the time of the system passes by itself")

    def attach(self, keeper: Settling) -> None:
        raise NotImplementedError

    def detach(self, keeper: Settling) -> None:
        raise NotImplementedError
