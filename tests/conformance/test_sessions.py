"""Reading sessions, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Position, SessionFilter
from tests.support.databases import Database
from tests.support.open_requests import NOON, SECOND, end_one, some_id
from tests.support.sessions import open_new_session

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


async def ids(database: Database, **criteria: object) -> list[str]:
    found = await database.store.list_sessions(SessionFilter(**criteria), None, 100, EVERYTHING)  # type: ignore[arg-type]
    return [session.session_id for session in found.sessions]


async def test_get_session__returns_none_for_unknown_session(database: Database) -> None:
    assert await database.store.get_session(some_id(), EVERYTHING) is None


async def test_get_session__returns_lapsed_session_as_it_will_be_recorded(database: Database) -> None:
    session = await open_new_session(database, lease_microseconds=10 * SECOND)
    await database.clock.set(NOON + 15 * SECONDS)
    unrecorded = await database.store.get_session(session.session_id, EVERYTHING)
    await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert unrecorded == await database.store.get_session(session.session_id, EVERYTHING)
    assert unrecorded is not None
    assert (unrecorded.closed_at, unrecorded.close_reason) == (NOON + 10 * SECONDS, CloseReason.LEASE_EXPIRED)


async def test_list_sessions__returns_newest_start_first(database: Database) -> None:
    expected = []
    for second in (3, 1, 2):
        await database.clock.set(NOON + second * SECONDS)
        expected.append((second, (await open_new_session(database)).session_id))
    assert await ids(database) == [session_id for _, session_id in sorted(expected, reverse=True)]


async def test_list_sessions__pages_without_gap_or_repetition_among_equal_starts(database: Database) -> None:
    created = {(await open_new_session(database)).session_id for _ in range(7)}
    seen: list[str] = []
    after = None
    while page := (await database.store.list_sessions(SessionFilter(), after, 2, EVERYTHING)).sessions:
        seen += [session.session_id for session in page]
        after = Position(page[-1].started_at, page[-1].session_id)
    assert sorted(seen) == sorted(created)


async def test_list_sessions__continues_after_cursor_while_rows_change(database: Database) -> None:
    old = []
    for second in range(4):
        await database.clock.set(NOON + second * SECONDS)
        old.append((await open_new_session(database)).session_id)
    page = (await database.store.list_sessions(SessionFilter(), None, 2, EVERYTHING)).sessions
    await database.clock.set(NOON + 60 * SECONDS)
    await open_new_session(database)
    await end_one(database.store, old[1], CloseReason.TERMINATED)
    rest = await database.store.list_sessions(
        SessionFilter(), Position(page[-1].started_at, page[-1].session_id), 10, EVERYTHING
    )
    assert [session.session_id for session in rest.sessions] == [old[1], old[0]]


@pytest.mark.parametrize("name", ["tenant", "user", "capacity"])
async def test_list_sessions__filters_by_id(database: Database, name: str) -> None:
    wanted = await open_new_session(database)
    await open_new_session(database)
    column = {"tenant": "tenant_object_id", "user": "user_object_id", "capacity": "capacity_id"}[name]
    assert await ids(database, **{name: getattr(wanted, column)}) == [wanted.session_id]


async def test_list_sessions__filters_by_kind(database: Database) -> None:
    wanted = await open_new_session(database, kind=2)
    await open_new_session(database, kind=3)
    assert await ids(database, kind=2) == [wanted.session_id]


async def test_list_sessions__filters_lapsed_session_as_it_will_be_recorded(database: Database) -> None:
    live = await open_new_session(database)
    ended = await open_new_session(database)
    lapsed = await open_new_session(database, lease_microseconds=10 * SECOND)
    await end_one(database.store, ended.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + 10 * SECONDS)
    over = {ended.session_id, lapsed.session_id}
    assert await ids(database, active=True) == [live.session_id]
    assert set(await ids(database, active=False)) == over
    assert await ids(database, state="created") == [live.session_id]
    assert set(await ids(database, state="closed")) == over
    assert await ids(database, close_reason="LEASE_EXPIRED") == [lapsed.session_id]
    assert await ids(database, close_reason="TERMINATED") == [ended.session_id]
    assert await ids(database, state="created", close_reason="LEASE_EXPIRED") == []


async def test_count_sessions__counts_live_sessions_by_kind_and_state_and_total(database: Database) -> None:
    for kind in (1, 2, 2):
        await open_new_session(database, kind=kind)
    await open_new_session(database, kind=3, lease_microseconds=10 * SECOND)
    ended = await open_new_session(database, kind=1)
    await end_one(database.store, ended.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + 10 * SECONDS)
    counts = await database.store.count_sessions(EVERYTHING)
    assert (counts.total, counts.active) == (5, 3)
    assert counts.active_by_kind == {1: 1, 2: 2, 3: 0}
    assert counts.active_by_state == {"created": 3, "active": 0}


async def test_count_active_sessions__counts_live_sessions(database: Database) -> None:
    for lease in (None, 10 * SECOND, 20 * SECOND):
        await open_new_session(database, lease_microseconds=lease)
    ended = await open_new_session(database)
    await end_one(database.store, ended.session_id, CloseReason.TERMINATED)
    await database.clock.set(NOON + 10 * SECONDS)
    assert await database.store.count_active_sessions(EVERYTHING) == 2
