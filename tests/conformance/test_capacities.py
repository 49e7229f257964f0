"""Capacities as they are set and read, on every engine."""

from datetime import timedelta

import pytest

from tenure.model.sessions import Capacity, CloseReason, Seats
from tests.support.databases import Database
from tests.support.keeping import EVICTING, attach_one, update_one
from tests.support.wishes import NOON, SECOND, end_one, open_one, some_id, wish

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)


async def test_put_capacity__sets_all_of_it(database: Database) -> None:
    capacity_id, tenant = some_id(), some_id()
    put = await database.store.put_capacity(capacity_id, Seats(7, EVICTING, tenant))
    assert put == Capacity(
        capacity_id=capacity_id,
        seats=Seats(7, EVICTING, tenant),
        active_sessions=0,
        created_at=NOON,
        modified_at=NOON,
    )
    assert await database.store.get_capacity(capacity_id) == put


async def test_put_capacity__replaces_all_of_it_but_its_beginning(database: Database) -> None:
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(7, EVICTING, some_id()))
    await database.clock.set(NOON + 3 * SECONDS)
    put = await database.store.put_capacity(capacity_id, Seats())
    assert (put.seats, put.created_at, put.modified_at) == (Seats(None, "reject", None), NOON, NOON + 3 * SECONDS)
    assert await database.store.get_capacity(capacity_id) == put


async def test_put_capacity__is_not_modified_earlier_by_a_clock_that_was_stepped_back(database: Database) -> None:
    capacity_id = some_id()
    await database.clock.set(NOON + 3 * SECONDS)
    await database.store.put_capacity(capacity_id, Seats(7))
    await database.clock.set(NOON)
    put = await database.store.put_capacity(capacity_id, Seats(8))
    assert (put.seats.max_sessions, put.modified_at) == (8, NOON + 3 * SECONDS)


async def test_put_capacity__evicts_nobody(database: Database) -> None:
    capacity_id = some_id()
    ids = [(wish(capacity_id=capacity_id)) for _ in range(3)]
    for one in ids:
        await open_one(database.store, one)
    put = await database.store.put_capacity(capacity_id, Seats(1, EVICTING))
    assert put.active_sessions == 3
    for one in ids:
        session = await database.store.get_session(one.session_id)
        assert session is not None
        assert session.is_active


async def test_get_capacity__knows_none_that_was_never_set(database: Database) -> None:
    one = wish()
    await open_one(database.store, one)
    assert await database.store.get_capacity(one.capacity_id) is None


async def test_get_capacity__counts_the_seats_that_are_taken_now(database: Database) -> None:
    """Neither ended nor lapsed nor `closing` sessions hold one, nor those of another capacity."""
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(9))
    live, ended, closing, lapsed = (
        wish(capacity_id=capacity_id),
        wish(capacity_id=capacity_id),
        wish(capacity_id=capacity_id),
        wish(capacity_id=capacity_id, lease_microseconds=10 * SECOND),
    )
    for one in (live, ended, closing, lapsed, wish()):
        await open_one(database.store, one)
    await end_one(database.store, ended.session_id, CloseReason.STOPPED)
    await attach_one(database.store, closing.session_id)
    await update_one(database.store, closing.session_id, end="FAILED")
    await database.clock.set(NOON + 10 * SECONDS)
    capacity = await database.store.get_capacity(capacity_id)
    assert capacity is not None
    assert capacity.active_sessions == 1


async def test_list_capacities__goes_from_page_to_page_and_leaves_none_out(database: Database) -> None:
    """In the database's own order of ids, which on SQL Server is not that of their texts."""
    ids = [some_id() for _ in range(5)]
    for number, capacity_id in enumerate(ids):
        await database.store.put_capacity(capacity_id, Seats(number))
    first = await database.store.list_capacities(None, None, 3)
    rest = await database.store.list_capacities(None, first[-1].capacity_id, 3)
    assert (len(first), len(rest)) == (3, 2)
    assert {one.capacity_id: one.seats.max_sessions for one in (*first, *rest)} == dict(zip(ids, range(5), strict=True))


async def test_list_capacities__shows_those_of_a_tenant(database: Database) -> None:
    tenant, mine = some_id(), some_id()
    await database.store.put_capacity(mine, Seats(5, "reject", tenant))
    await database.store.put_capacity(some_id(), Seats(5, "reject", some_id()))
    await database.store.put_capacity(some_id(), Seats(5))
    assert [one.capacity_id for one in await database.store.list_capacities(tenant, None, 9)] == [mine]


async def test_list_capacities__counts_the_seats_of_each(database: Database) -> None:
    busy, quiet = some_id(), some_id()
    for capacity_id in (busy, quiet):
        await database.store.put_capacity(capacity_id, Seats(5))
    await open_one(database.store, wish(capacity_id=busy))
    taken = {one.capacity_id: one.active_sessions for one in await database.store.list_capacities(None, None, 9)}
    assert taken == {busy: 1, quiet: 0}


async def test_delete_capacity__tells_what_it_was(database: Database) -> None:
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(5))
    await open_one(database.store, wish(capacity_id=capacity_id))
    before = await database.store.get_capacity(capacity_id)
    assert await database.store.delete_capacity(capacity_id) == before
    assert await database.store.get_capacity(capacity_id) is None


async def test_delete_capacity__knows_none_that_was_never_set(database: Database) -> None:
    assert await database.store.delete_capacity(some_id()) is None


async def test_delete_capacity__lets_everybody_in(database: Database) -> None:
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(0, "reject", some_id()))
    await database.store.delete_capacity(capacity_id)
    assert (await open_one(database.store, wish(capacity_id=capacity_id))).session is not None
