"""The options of a run, and its limits."""

from pathlib import Path

import msgspec

LEASE_SECONDS = 2.0
"""The lease of all sessions except those that a client holds with `hold`: short, so that many sessions lapse during a
run."""
HOLD_LEASE_SECONDS = 5.0
"""The lease of the sessions that a client holds with `hold`."""
GRACE_SECONDS = 3.0
"""How long an instance that cannot reach the database trusts its cache of API keys."""
SETTLE_SECONDS = 40.0
"""How long deliveries, lapses and events may take to settle after the last fault."""

USERS, SEAT_USERS, HOLDERS, STREAMERS, SUBMITTERS = 8, 6, 5, 3, 2
"""How many clients of each kind a run has, if `load` is 1."""
REFUSING_SEATS, EVICTING_SEATS = 4, 4
"""The seats of two capacities: when full, one refuses new sessions, and the other ends its oldest session."""


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
    """The mean pause between two faults of the same lane (`faults.py`). A fixed minimum is added to each pause."""
    load: float = 1.0
    """The factor by which the numbers of clients are multiplied."""
    source: Path | None = None
    """The `src` folder of another copy of the package, in which a bug is planted; None: this package."""

    def count(self, clients: int) -> int:
        return max(1, round(clients * self.load))
