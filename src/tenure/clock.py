"""The only module that reads this host's clocks.

None of these readings decides about data: the database's clock does that. They serve ids, durations,
waits and logs. A test bans every other reading of a host clock in the package.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import partial

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

monotonic = time.monotonic
"""Seconds for waits and durations."""


def boottime() -> float:
    """Seconds that run on while the host is suspended, where it can tell: how long a lease may be trusted."""
    return _BOOTTIME()


_BOOTTIME = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic

pause = time.sleep
"""For threads; on the event loop it would stop everything."""


def wall_microseconds() -> int:
    """Microseconds since 1970; SQLite, which has no clock of its own, is given this one."""
    return time.time_ns() // 1000


def from_microseconds(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def instant_text(instant: datetime) -> str:
    """ISO 8601, always with six decimals and a `Z`; of an instant in UTC."""
    return instant.isoformat(timespec="microseconds")[:26] + "Z"


def to_microseconds(instant: datetime) -> int:
    """Exact integer arithmetic: a float of seconds would lose microseconds from the year 2255 on."""
    return (instant - EPOCH) // MICROSECOND
