"""The only module that reads the clocks of this host.

Host clocks are used only for ids, durations, waits and logs. All decisions about data use the database's clock. A test
checks that no other module of the package reads a host clock.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import partial

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

monotonic = time.monotonic
"""Returns seconds, for waits and durations."""


def boottime() -> float:
    """Return seconds from a clock that, where available, also runs while the host is suspended.

    It measures how long a lease may be trusted.
    """
    return _BOOTTIME()


_BOOTTIME = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic

pause = time.sleep
"""Sleeps. Call it only in threads, because it would block the event loop."""


def wall_microseconds() -> int:
    """Return microseconds since 1970. SQLite has no clock, so this one is also the database's clock there."""
    return time.time_ns() // 1000


def from_microseconds(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def instant_text(instant: datetime) -> str:
    """Format an instant in UTC as ISO 8601, always with six decimals and a `Z`."""
    return instant.isoformat(timespec="microseconds")[:26] + "Z"


def to_microseconds(instant: datetime) -> int:
    """Return the exact microseconds since 1970. A float of seconds would lose microseconds from the year 2255 on."""
    return (instant - EPOCH) // MICROSECOND
