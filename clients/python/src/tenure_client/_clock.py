"""The clock that decides how long a held session may be trusted."""

import time
from typing import Protocol


class Clock(Protocol):
    manual: bool
    """Whether time passes only when a test moves the clock (`tenure_client.testing`)."""

    def now(self) -> float:
        """Return seconds. Only differences have a meaning."""

    def pass_time(self, seconds: float) -> None:
        """Advance a manual clock."""

    def attach(self, keeper: "Settling") -> None:
        """Let a manual clock drive the keeper."""

    def detach(self, keeper: "Settling") -> None: ...


class Settling(Protocol):
    """The part of the client that a manual clock drives: the keeper of held sessions."""

    def next_event(self) -> float: ...

    def settle(self) -> None: ...


class SystemClock:
    """CLOCK_BOOTTIME, which keeps running while the machine is suspended, like the server's clock. The monotonic clock
    where CLOCK_BOOTTIME does not exist.
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
