"""The only module that reads the clocks of this host. Other modules may read only the time of the event loop.

Host clocks are used only for ids, durations, waits, logs, traces and the timestamps of requests between services. All
decisions about data use the database's clock. A test checks that no other module of the package reads a host clock.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import partial

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

monotonic = time.monotonic
"""Returns seconds, for waits and durations."""

cpu_seconds = time.process_time
"""Returns the processor time that this process has used, to see whether it is the bottleneck of a measurement."""


def boottime() -> float:
    """Return seconds, to measure how long a lease may be trusted.

    On Linux, this clock keeps running while the host is suspended. On other platforms, it is the same as `monotonic`.
    """
    return _BOOTTIME()


_BOOTTIME = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic

pause = time.sleep
"""Sleeps. Call it only outside the thread of the event loop, because it blocks."""


def wall_microseconds() -> int:
    """Return microseconds since 1970. On SQLite, which has no server, this is also the database's clock."""
    return time.time_ns() // 1000


def from_microseconds(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def instant_text(instant: datetime) -> str:
    """Format an instant as ISO 8601, always with six decimals and a `Z`. The instant must be in UTC."""
    return instant.isoformat(timespec="microseconds")[:26] + "Z"


def to_microseconds(instant: datetime) -> int:
    """Return the exact microseconds since 1970. A float of seconds would lose microseconds from the year 2242 on."""
    return (instant - EPOCH) // MICROSECOND


class ServerClock:
    """Estimates the database's time between two responses of the database, in microseconds since 1970."""

    def __init__(self) -> None:
        self._ahead = 0

    def set(self, now: datetime) -> None:
        """Set the clock to `now`, the database's time in a response that has just arrived.

        The estimate is then behind the database's clock by at most the duration of the call that returned `now`. Until
        the next call of `set`, the difference changes if the clocks drift apart or the database's clock is stepped.
        """
        self._ahead = to_microseconds(now) - _monotonic_microseconds()

    def now_microseconds(self) -> int:
        return _monotonic_microseconds() + self._ahead

    def now_seconds(self) -> float:
        return self.now_microseconds() / 1_000_000


def _monotonic_microseconds() -> int:
    return int(monotonic() * 1_000_000)
