"""Capacities: seats and tenants."""

from collections.abc import Sequence
from typing import Protocol

from tenure.domain.audit_log import Actor
from tenure.domain.capacities import Capacity, Seats
from tenure.domain.scope import Scope


class CapacityStore(Protocol):
    """If the scope has a tenant, the methods see only capacities that are bound to this tenant, and count only sessions
    of this tenant.
    """

    async def put_capacity(self, capacity_id: str, seats: Seats, scope: Scope, actor: Actor) -> Capacity | None:
        """Stores the settings of a capacity, which apply to open requests that are answered later. Ends no session.

        If the scope has a tenant, changes only a capacity that is already in the scope, and returns None for any other.
        Equal settings change nothing: the capacity keeps `modified_at`, and there is no audit entry.
        """

    async def get_capacity(self, capacity_id: str, scope: Scope) -> Capacity | None: ...

    async def list_capacities(
        self, tenant: str | None, after: str | None, limit: int, scope: Scope
    ) -> Sequence[Capacity]:
        """Lists capacities in the order of their ids, starting after the id `after`. With `tenant`, lists only
        capacities that are bound to this tenant.
        """

    async def delete_capacity(self, capacity_id: str, scope: Scope, actor: Actor) -> Capacity | None:
        """Returns the deleted capacity, or None if there is none with this id in the scope."""
