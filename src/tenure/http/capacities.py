"""The capacity routes: how many seats there are, and whose."""

from collections.abc import Sequence

import msgspec

from tenure.errors import Invalid, NotFound, TooLarge, Unavailable, UnsupportedMediaType
from tenure.http.cursors import cursor_of_id, id_of
from tenure.http.pages import page
from tenure.http.routing import Answer, Call, Route
from tenure.http.shapes import (
    CapacityAnswer,
    CapacityBody,
    CapacityList,
    IdCursor,
    PageLimit,
    Uuid,
    capacity_answer,
)
from tenure.ids import canonical_id
from tenure.model.sessions import Capacity, Seats
from tenure.store import Store


class CapacityQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    tenant: Uuid | None = None
    limit: PageLimit = 100
    cursor: IdCursor | None = None


class CapacityRoutes:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._path = f"{prefix}/capacities"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="PUT",
                path="/capacities/{capacityId}",
                handler=self.put,
                tag="capacities",
                summary="Set a capacity's seats and its tenant",
                description="Replaces all of it. Holds from the answer on; lowering a limit evicts nobody.",
                body=CapacityBody,
                answers={200: CapacityAnswer},
                refusals=(Invalid, NotFound, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="GET",
                path="/capacities/{capacityId}",
                handler=self.get,
                tag="capacities",
                summary="Read a capacity and how many seats are taken",
                answers={200: CapacityAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
            Route(
                method="GET",
                path="/capacities",
                handler=self.list,
                tag="capacities",
                summary="List the capacities that were set, by id",
                query=CapacityQuery,
                answers={200: CapacityList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="DELETE",
                path="/capacities/{capacityId}",
                handler=self.delete,
                tag="capacities",
                summary="Forget a capacity's rules",
                description="Its sessions live on; from now on it has no limit and belongs to nobody.",
                answers={200: CapacityAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
        ]

    async def put(self, call: Call) -> Answer:
        body: CapacityBody = call.body
        tenant = body.tenant_object_id and body.tenant_object_id.lower()
        seats = Seats(body.max_sessions, body.when_full.value, tenant)
        return _answer(call, await self._store.put_capacity(_capacity_id(call), seats))

    async def get(self, call: Call) -> Answer:
        return _answer(call, await self._store.get_capacity(_capacity_id(call)))

    async def delete(self, call: Call) -> Answer:
        return _answer(call, await self._store.delete_capacity(_capacity_id(call)))

    async def list(self, call: Call) -> Answer:
        query: CapacityQuery = call.query
        after = None if query.cursor is None else id_of(query.cursor)
        tenant = query.tenant and query.tenant.lower()
        found = await self._store.list_capacities(tenant, after, query.limit + 1)
        return page(found, query, self._path, lambda capacity: cursor_of_id(capacity.capacity_id), _listed)


def _listed(capacities: Sequence[Capacity], count: int, cursor: str | None) -> CapacityList:
    return CapacityList([capacity_answer(capacity) for capacity in capacities], count, cursor)


def _answer(call: Call, capacity: Capacity | None) -> Answer:
    if capacity is None:
        raise _never_set(call)
    return Answer(capacity_answer(capacity))


def _capacity_id(call: Call) -> str:
    """A malformed id is the id of no capacity."""
    canonical = canonical_id(call.path["capacityId"])
    if canonical is None:
        raise _never_set(call)
    return canonical


def _never_set(call: Call) -> NotFound:
    return NotFound(f"capacity {call.path['capacityId'][:64]} was never set")
