"""Leases and fences. A fence proves that a lease is held."""

from datetime import datetime

import msgspec

NAME_MAX = 200
"""The maximum length of the name of a lease, a job or a holder. Names are printable ASCII."""
JOB_LOCK = "job:"
"""The prefix of the names of leases that are job locks."""


class Fence(msgspec.Struct, frozen=True):
    """The holder and epoch of a lease. Every write of a leader or of a job run carries one, and the store checks it."""

    name: str
    holder: str
    epoch: int

    @property
    def job(self) -> str:
        """The name of the job, if the lease is a job lock."""
        return self.name.removeprefix(JOB_LOCK)


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as it was read. `held` was computed with the database's clock at that moment."""

    name: str
    holder: str
    epoch: int
    held: bool
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
    released: bool = False
    """It was released, by its holder or by a resign command, before it expired."""
    resigned: bool = False
    """It was released by a resign command. Its holder may not know this yet."""

    @property
    def fence(self) -> Fence:
        return Fence(self.name, self.holder, self.epoch)


class AcquireResult(msgspec.Struct, frozen=True):
    """The result of an attempt to acquire: the current lease, which the caller holds if `taken`."""

    lease: Lease
    taken: bool
    reclaimed: bool = False
    """The lease was taken after its last holder let it expire."""
