"""The options of a run, and its limits."""

from pathlib import Path

import msgspec

LEASE_SECONDS = 2.0
"""The lease of the sessions that plain HTTP clients open: short, so that many of them lapse during a run."""
HOLD_LEASE_SECONDS = 5.0
GRACE_SECONDS = 3.0
"""How long an instance that cannot reach the database trusts the keys that it knows."""
SETTLE_SECONDS = 40.0
"""How long deliveries, lapses and events may take to settle after the last fault."""

USERS, SEAT_USERS, HOLDERS, STREAMERS, SUBMITTERS = 8, 6, 5, 3, 2
REFUSING_SEATS, EVICTING_SEATS = 4, 4


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    seed: int = 1
    seconds: float = 60.0
    engine: str = "postgresql"
    instances: int = 3
    standby: bool = False
    """Whether PostgreSQL has a synchronous standby, to which it can fail over once."""
    faults: tuple[str, ...] | None = None
    """The kinds of faults; None: all that this engine and this machine allow."""
    fault_pause_seconds: float = 1.5
    """The mean pause between two faults of a lane."""
    load: float = 1.0
    """A factor for the number of clients."""
    source: Path | None = None
    """A folder with another copy of the package to run, with a planted bug."""

    def count(self, clients: int) -> int:
        return max(1, round(clients * self.load))
