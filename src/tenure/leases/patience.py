"""How long to let a lease lie that was given up on request: its holder has to hear of it first."""

from tenure.clock import monotonic
from tenure.model.leases import Lease

SINKS_IN = 1.5
"""Refreshes after which every holder that can look at the board has seen that its lease was resigned."""


class Patience:
    """Counted from when this process first saw the lease free in its epoch."""

    def __init__(self, refresh_seconds: float) -> None:
        self._refresh_seconds = refresh_seconds
        self._seen_free: dict[str, tuple[int, float]] = {}

    def seconds_left(self, lease: Lease, refreshes: float | None = None) -> float:
        """Nothing or less if it may be acquired."""
        epoch, since = self._seen_free.get(lease.name, (0, 0.0))
        if epoch != lease.epoch:
            since = monotonic()
            self._seen_free[lease.name] = (lease.epoch, since)
        wanted = (SINKS_IN if lease.resigned else 0.0) if refreshes is None else refreshes
        return since + wanted * self._refresh_seconds - monotonic()
