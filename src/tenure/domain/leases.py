"""Leases and fences. A write carries a fence to prove that the writer holds the lease."""

from datetime import datetime

import msgspec

NAME_MAX = 200
"""The maximum length of the name of a lease, a job or a holder. Names are printable ASCII."""
JOB_LOCK = "job:"
"""The prefix of the names of leases that are job locks."""


class Fence(msgspec.Struct, frozen=True):
    """The name, holder and epoch of a lease. Every write that only the holder of a lease may make carries the fence of
    the lease, and the store checks it.
    """

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
    """Whether the lease was released before it expired, by its holder or by a resign command."""
    resigned: bool = False
    """Whether a resign command has ended the lease. The holder may not have read this yet. On PostgreSQL, `resigned` is
    set shortly before `released`."""

    @property
    def fence(self) -> Fence:
        return Fence(self.name, self.holder, self.epoch)


class LeaseTerm(msgspec.Struct, frozen=True, kw_only=True):
    """The time for which one holder held a lease: one epoch. Job locks have runs instead of terms."""

    name: str
    epoch: int
    holder: str
    acquired_at: datetime
    ended_at: datetime | None = None
    """None while the lease is held. If the lease expired, the term ended when it expired, even if the lease has not
    been acquired again."""
    how: str | None = None
    """How the term ended: `released`, `resigned` or `expired`. None while the lease is held."""


class TermFilter(msgspec.Struct, frozen=True):
    """The terms that overlap a span of time."""

    from_at: datetime | None = None
    to_at: datetime | None = None


class TermPosition(msgspec.Struct, frozen=True):
    """A position in the list of all terms of all leases, newest first."""

    acquired_at: datetime
    name: str
    epoch: int


class AcquireResult(msgspec.Struct, frozen=True):
    """The current lease after an attempt to acquire it. If `taken`, the caller holds the lease."""

    lease: Lease
    taken: bool
    reclaimed: bool = False
    """The caller took the lease after its last holder had let it expire."""
