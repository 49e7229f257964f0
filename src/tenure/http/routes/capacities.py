"""The capacity routes: set, read, list and delete the settings of capacities."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.access.grants import OPERATORS, READERS, narrowed
from tenure.domain.capacities import SEATS_MAX, Capacity, Seats, WhenFull
from tenure.domain.sessions import SessionFilter
from tenure.errors import Forbidden, Invalid, NotFound, TooLarge, Unavailable, UnsupportedMediaType
from tenure.http.answers import Answer
from tenure.http.fields import IdCursor, Instant, PageLimit, Uuid, instant
from tenure.http.pages import cursor_of_id, id_of, page
from tenure.http.pipeline import Call, Route
from tenure.ids import canonical_id
from tenure.store.contract import Store


class CapacityQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    tenant: Uuid | None = None
    limit: PageLimit = 100
    cursor: IdCursor | None = None


class CapacityBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max_sessions: (
        Annotated[
            int, Meta(ge=0, le=SEATS_MAX, extra={"must": f"must be null or a whole number from 0 to {SEATS_MAX}"})
        ]
        | None
    ) = None
    when_full: Annotated[WhenFull, Meta(extra={"must": "must be reject or evictOldest"})] = WhenFull.REJECT
    tenant_object_id: Uuid | None = None


class CapacityAnswer(msgspec.Struct, frozen=True, rename="camel"):
    capacity_id: Uuid
    max_sessions: int | None
    when_full: WhenFull
    tenant_object_id: Uuid | None
    active_sessions: int
    created_at: Instant
    modified_at: Instant


class NextLapse(msgspec.Struct, frozen=True, rename="camel"):
    session_id: Uuid
    deadline: Instant


class SeatsAnswer(CapacityAnswer, frozen=True, rename="camel", kw_only=True):
    next_lapse: NextLapse | None


class CapacityList(msgspec.Struct, frozen=True, rename="camel"):
    capacities: list[CapacityAnswer]
    count: int
    next_cursor: str | None


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
                grants=narrowed(OPERATORS),
                tag="capacities",
                summary="Set a capacity's seats and its tenant",
                description=(
                    "Replaces all settings of the capacity. Lowering the limit evicts no session. "
                    "A caller who is bound to a tenant can change only the capacities of that tenant, "
                    "and cannot give them to another tenant."
                ),
                body=CapacityBody,
                answers={200: CapacityAnswer},
                refusals=(Invalid, NotFound, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="GET",
                path="/capacities/{capacityId}",
                handler=self.get,
                grants=narrowed(READERS),
                tag="capacities",
                summary="Read a capacity and the number of seats taken",
                description="Also returns which session on the capacity lapses next.",
                answers={200: SeatsAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
            Route(
                method="GET",
                path="/capacities",
                handler=self.list,
                grants=narrowed(READERS),
                tag="capacities",
                summary="List capacities, by id",
                query=CapacityQuery,
                answers={200: CapacityList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="DELETE",
                path="/capacities/{capacityId}",
                handler=self.delete,
                grants=narrowed(OPERATORS),
                tag="capacities",
                summary="Delete a capacity's settings",
                description="Its sessions continue. A capacity without settings has no limit and no tenant.",
                answers={200: CapacityAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
        ]

    async def put(self, call: Call) -> Answer:
        body: CapacityBody = call.body
        scope = call.caller.scope
        tenant = body.tenant_object_id and body.tenant_object_id.lower()
        if tenant is not None and not scope.admits_tenant(tenant):
            raise Forbidden("tenantObjectId: this credential is bound to another tenant")
        seats = Seats(body.max_sessions, body.when_full.value, tenant or scope.tenant)
        return _answer(call, await self._store.put_capacity(_capacity_id(call), seats, scope, call.actor))

    async def get(self, call: Call) -> Answer:
        capacity_id, scope = _capacity_id(call), call.caller.scope
        capacity = await self._store.get_capacity(capacity_id, scope)
        if capacity is None:
            raise _unknown(call)
        found = await self._store.list_next_lapses(SessionFilter(capacity=capacity_id), None, 1, scope)
        lapse = next((NextLapse(each.session_id, instant(each.deadline_at)) for each in found.sessions), None)
        return Answer(SeatsAnswer(*msgspec.structs.astuple(capacity_answer(capacity)), next_lapse=lapse))

    async def delete(self, call: Call) -> Answer:
        return _answer(call, await self._store.delete_capacity(_capacity_id(call), call.caller.scope, call.actor))

    async def list(self, call: Call) -> Answer:
        query: CapacityQuery = call.query
        after = None if query.cursor is None else id_of(query.cursor)
        tenant = query.tenant and query.tenant.lower()
        found = await self._store.list_capacities(tenant, after, query.limit + 1, call.caller.scope)
        return page(found, query, self._path, lambda capacity: cursor_of_id(capacity.capacity_id), _listed)


def _listed(capacities: Sequence[Capacity], count: int, cursor: str | None) -> CapacityList:
    return CapacityList([capacity_answer(capacity) for capacity in capacities], count, cursor)


def _answer(call: Call, capacity: Capacity | None) -> Answer:
    if capacity is None:
        raise _unknown(call)
    return Answer(capacity_answer(capacity))


def _capacity_id(call: Call) -> str:
    """Returns the capacity id of the path in canonical form. Raises `NotFound` for a malformed id."""
    canonical = canonical_id(call.path["capacityId"])
    if canonical is None:
        raise _unknown(call)
    return canonical


def _unknown(call: Call) -> NotFound:
    return NotFound(f"capacity {call.path['capacityId'][:64]} does not exist")


def capacity_answer(capacity: Capacity) -> CapacityAnswer:
    return CapacityAnswer(
        capacity.capacity_id,
        capacity.seats.max_sessions,
        WhenFull(capacity.seats.when_full),
        capacity.seats.tenant_object_id,
        capacity.active_sessions,
        instant(capacity.created_at),
        instant(capacity.modified_at),
    )
