"""Leases, and the board: the snapshot of leases and jobs that each instance reads every `refresh_seconds`."""

from collections.abc import Sequence
from typing import Protocol

from tenure.domain.audit_log import Actor
from tenure.domain.jobs import Board
from tenure.domain.leases import AcquireResult, Fence, Lease, LeaseTerm, TermFilter, TermPosition


class LeaseStore(Protocol):
    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> AcquireResult:
        """Acquires the lease, with the next epoch, if the lease is free.

        `attempt` is the id of this try. A repeated call after a lost answer passes the same id, and a new try passes a
        new one.
        """

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease: ...

    async def release_lease(self, fence: Fence) -> Lease:
        """Ends the lease now."""

    async def resign_lease(self, name: str, actor: Actor) -> Lease | None:
        """Ends the lease now, whichever instance holds it. Returns None if the lease was never held.

        Writes an audit entry if the lease was held.
        """

    async def list_leases(self, after: str | None, limit: int) -> Sequence[Lease]:
        """Up to `limit` leases that were ever held, ordered by name, starting after the name `after`."""

    async def list_terms(self, name: str, before: int | None, limit: int) -> Sequence[LeaseTerm] | None:
        """Up to `limit` terms of a lease, newest first, with epochs below `before`. A term is the time for which one
        holder held the lease. None if the lease was never held, or is the lock of a job.
        """

    async def list_all_terms(self, criteria: TermFilter, after: TermPosition | None, limit: int) -> Sequence[LeaseTerm]:
        """Up to `limit` terms that overlap the span of `criteria`, of all leases, newest first, starting after the
        position `after`.
        """

    async def read_board(self, names: Sequence[str]) -> Board:
        """All jobs with their locks, and the leases with these names, in one statement."""
