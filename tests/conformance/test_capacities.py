"""Setting, reading and deleting capacities, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.capacities import Capacity, Seats
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.open_requests import NOON, SECOND, end_one, open_one, request, some_id
from tests.support.session_calls import EVICTING, attach_one, update_one

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)


async def test_put_capacity__stores_all_fields(database: Database) -> None:
    capacity_id, tenant = some_id(), some_id()
    put = await database.store.put_capacity(capacity_id, Seats(7, EVICTING, tenant), EVERYTHING, ACTOR)
    assert put == Capacity(
        capacity_id=capacity_id,
        seats=Seats(7, EVICTING, tenant),
        active_sessions=0,
        created_at=NOON,
        modified_at=NOON,
    )
    assert await database.store.get_capacity(capacity_id, EVERYTHING) == put


async def test_put_capacity__replaces_all_fields_except_created_at(database: Database) -> None:
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(7, EVICTING, some_id()), EVERYTHING, ACTOR)
    await database.clock.set(NOON + 3 * SECONDS)
    put = await database.store.put_capacity(capacity_id, Seats(), EVERYTHING, ACTOR)
    assert (put.seats, put.created_at, put.modified_at) == (Seats(None, "reject", None), NOON, NOON + 3 * SECONDS)
    assert await database.store.get_capacity(capacity_id, EVERYTHING) == put


async def test_put_capacity__does_not_move_modified_at_back_after_clock_step_back(database: Database) -> None:
    capacity_id = some_id()
    await database.clock.set(NOON + 3 * SECONDS)
    await database.store.put_capacity(capacity_id, Seats(7), EVERYTHING, ACTOR)
    await database.clock.set(NOON)
    put = await database.store.put_capacity(capacity_id, Seats(8), EVERYTHING, ACTOR)
    assert (put.seats.max_sessions, put.modified_at) == (8, NOON + 3 * SECONDS)


async def test_put_capacity__evicts_no_session(database: Database) -> None:
    capacity_id = some_id()
    ids = [(request(capacity_id=capacity_id)) for _ in range(3)]
    for one in ids:
        await open_one(database.store, one)
    put = await database.store.put_capacity(capacity_id, Seats(1, EVICTING), EVERYTHING, ACTOR)
    assert put.active_sessions == 3
    for one in ids:
        session = await database.store.get_session(one.session_id, EVERYTHING)
        assert session is not None
        assert session.is_active


async def test_get_capacity__returns_none_for_unknown_capacity(database: Database) -> None:
    one = request()
    await open_one(database.store, one)
    assert await database.store.get_capacity(one.capacity_id, EVERYTHING) is None


async def test_get_capacity__counts_only_live_sessions(database: Database) -> None:
    """Ended, lapsed and `closing` sessions take no seat. A session on another capacity takes no seat on this one."""
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(9), EVERYTHING, ACTOR)
    live, ended, closing, lapsed = (
        request(capacity_id=capacity_id),
        request(capacity_id=capacity_id),
        request(capacity_id=capacity_id),
        request(capacity_id=capacity_id, lease_microseconds=10 * SECOND),
    )
    for one in (live, ended, closing, lapsed, request()):
        await open_one(database.store, one)
    await end_one(database.store, ended.session_id, CloseReason.STOPPED)
    await attach_one(database.store, closing.session_id)
    await update_one(database.store, closing.session_id, end="FAILED")
    await database.clock.set(NOON + 10 * SECONDS)
    capacity = await database.store.get_capacity(capacity_id, EVERYTHING)
    assert capacity is not None
    assert capacity.active_sessions == 1


async def test_list_capacities__returns_all_capacities_in_pages(database: Database) -> None:
    """The capacities are in the order of the database, which on SQL Server is not the order of the ids as text."""
    ids = [some_id() for _ in range(5)]
    for number, capacity_id in enumerate(ids):
        await database.store.put_capacity(capacity_id, Seats(number), EVERYTHING, ACTOR)
    first = await database.store.list_capacities(None, None, 3, EVERYTHING)
    rest = await database.store.list_capacities(None, first[-1].capacity_id, 3, EVERYTHING)
    assert (len(first), len(rest)) == (3, 2)
    assert {one.capacity_id: one.seats.max_sessions for one in (*first, *rest)} == dict(zip(ids, range(5), strict=True))


async def test_list_capacities__filters_by_tenant(database: Database) -> None:
    tenant, mine = some_id(), some_id()
    await database.store.put_capacity(mine, Seats(5, "reject", tenant), EVERYTHING, ACTOR)
    await database.store.put_capacity(some_id(), Seats(5, "reject", some_id()), EVERYTHING, ACTOR)
    await database.store.put_capacity(some_id(), Seats(5), EVERYTHING, ACTOR)
    assert [one.capacity_id for one in await database.store.list_capacities(tenant, None, 9, EVERYTHING)] == [mine]


async def test_list_capacities__counts_live_sessions_of_each_capacity(database: Database) -> None:
    busy, quiet = some_id(), some_id()
    for capacity_id in (busy, quiet):
        await database.store.put_capacity(capacity_id, Seats(5), EVERYTHING, ACTOR)
    await open_one(database.store, request(capacity_id=busy))
    taken = {
        one.capacity_id: one.active_sessions for one in await database.store.list_capacities(None, None, 9, EVERYTHING)
    }
    assert taken == {busy: 1, quiet: 0}


async def test_delete_capacity__returns_deleted_capacity(database: Database) -> None:
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(5), EVERYTHING, ACTOR)
    await open_one(database.store, request(capacity_id=capacity_id))
    before = await database.store.get_capacity(capacity_id, EVERYTHING)
    assert await database.store.delete_capacity(capacity_id, EVERYTHING, ACTOR) == before
    assert await database.store.get_capacity(capacity_id, EVERYTHING) is None


async def test_delete_capacity__returns_none_for_unknown_capacity(database: Database) -> None:
    assert await database.store.delete_capacity(some_id(), EVERYTHING, ACTOR) is None


async def test_delete_capacity__removes_limit_and_tenant_binding(database: Database) -> None:
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(0, "reject", some_id()), EVERYTHING, ACTOR)
    await database.store.delete_capacity(capacity_id, EVERYTHING, ACTOR)
    assert (await open_one(database.store, request(capacity_id=capacity_id))).session is not None
