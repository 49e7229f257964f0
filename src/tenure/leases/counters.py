"""What this instance met with on its way to leases."""


class LeaseCounters:
    def __init__(self) -> None:
        self.contended = 0
        """Tries that came too late: somebody else was faster."""
        self.reclaimed = 0
        """Leases, job locks among them, that a dead or absent holder had let run out."""
