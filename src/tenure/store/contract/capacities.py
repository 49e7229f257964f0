"""Capacities: seats and tenants."""

from collections.abc import Sequence
from typing import Protocol

from tenure.domain.capacities import Capacity, Seats


class CapacityStore(Protocol):
    async def put_capacity(self, capacity_id: str, seats: Seats) -> Capacity:
        """Stores the settings of a capacity. Open requests that are answered later respect them. Evicts no session."""

    async def get_capacity(self, capacity_id: str) -> Capacity | None: ...

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        """Lists capacities by id, starting after the id `after`."""

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        """Returns the deleted capacity, or None if there is none with this id."""
