"""Callers who are bound to a tenant, and possibly to a user, on every engine.

A session outside the scope of a caller is unknown to this caller, and this caller's requests change no column of the
session.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tenure.domain.capacities import Seats
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import EndRequest, Found, Heartbeat, Session, SessionFilter
from tenure.domain.streams import AttachRequest
from tenure.domain.submissions import SubmissionCommand
from tenure.domain.usage import GroupBy, UsageFilter, UsageSumQuery
from tests.support.audit_log import ACTOR, draft, entries
from tests.support.databases import Database
from tests.support.leases import all_tables
from tests.support.locks import holding
from tests.support.open_requests import NOON, SECOND, some_id
from tests.support.sessions import open_new_session
from tests.support.submissions import accept

pytestmark = pytest.mark.usefixtures("noon")

LEASE = 60 * SECOND
ALL = SessionFilter()


async def opened(database: Database, count: int = 2, **given: Any) -> list[Session]:
    """Opens sessions of different tenants, unless `given` names the tenant."""
    return [await open_new_session(database, **given) for _ in range(count)]


def foreign(session: Session) -> list[Scope]:
    """Scopes that do not contain the session."""
    return [Scope(some_id()), Scope(session.tenant_object_id, some_id()), Scope(some_id(), session.user_object_id)]


def own(session: Session) -> list[Scope]:
    return [EVERYTHING, Scope(session.tenant_object_id), Scope(session.tenant_object_id, session.user_object_id)]


def attach(session_id: str, scope: Scope) -> AttachRequest:
    return AttachRequest(session_id, LEASE, LEASE, SECOND, scope)


async def test_get_session__returns_sessions_of_scope_only(database: Database) -> None:
    (session,) = await opened(database, 1)
    for scope in own(session):
        assert await database.store.get_session(session.session_id, scope) == session
    for scope in foreign(session):
        assert await database.store.get_session(session.session_id, scope) is None


async def test_heartbeat__is_unknown_outside_scope_and_changes_nothing(database: Database) -> None:
    (session,) = await opened(database, 1, lease_microseconds=LEASE, heartbeat_microseconds=SECOND)
    await database.clock.set(NOON + timedelta(seconds=1))
    before = await all_tables(database)
    for scope in foreign(session):
        (result,) = await database.store.heartbeat([Heartbeat(session.session_id, True, scope)])
        assert result.found is Found.UNKNOWN
    assert await all_tables(database) == before
    for scope in own(session):
        (result,) = await database.store.heartbeat([Heartbeat(session.session_id, True, scope)])
        assert result.found is Found.LIVE


async def test_heartbeat_end_and_attach_record_no_lapse_outside_scope(database: Database) -> None:
    (session,) = await opened(database, 1, lease_microseconds=LEASE, heartbeat_microseconds=SECOND)
    await database.clock.set(NOON + timedelta(seconds=61))
    before = await all_tables(database)
    for scope in foreign(session):
        (beat,) = await database.store.heartbeat([Heartbeat(session.session_id, False, scope)])
        (end,) = await database.store.end_sessions([EndRequest(session.session_id, "STOPPED", scope, ACTOR)])
        (attached,) = await database.store.attach_streams([attach(session.session_id, scope)])
        assert {beat.found, end.found, attached.found} == {Found.UNKNOWN}
    assert await all_tables(database) == before


async def test_heartbeat__checks_scope_of_each_heartbeat_in_batch(database: Database) -> None:
    """The scopes of the first four heartbeats: the session's tenant, another tenant, the session's tenant and user, and
    EVERYTHING.
    """
    sessions = await opened(database, 4)
    scopes = [own(sessions[0])[1], foreign(sessions[1])[0], own(sessions[2])[2], EVERYTHING]
    beats = [Heartbeat(each.session_id, False, scope) for each, scope in zip(sessions, scopes, strict=True)]
    beats.append(Heartbeat(some_id(), False, Scope(some_id())))
    found = [result.found for result in await database.store.heartbeat(beats)]
    assert found == [Found.LIVE, Found.UNKNOWN, Found.LIVE, Found.LIVE, Found.UNKNOWN]


async def test_end_sessions__is_unknown_outside_scope_and_changes_nothing(database: Database) -> None:
    ours, theirs = await opened(database)
    scope = Scope(ours.tenant_object_id)
    requests = [EndRequest(each.session_id, "STOPPED", scope, ACTOR) for each in (theirs, ours)]
    assert [result.found for result in await database.store.end_sessions(requests)] == [Found.UNKNOWN, Found.OVER]
    kept = await database.store.get_session(theirs.session_id, EVERYTHING)
    assert kept == theirs
    assert [entry.target for entry in await entries(database.store)] == [ours.session_id]


async def test_attach_streams__is_unknown_outside_scope_and_changes_nothing(database: Database) -> None:
    ours, theirs = await opened(database)
    scope = Scope(ours.tenant_object_id, ours.user_object_id)
    results = await database.store.attach_streams([attach(each.session_id, scope) for each in (theirs, ours)])
    assert [result.found for result in results] == [Found.UNKNOWN, Found.LIVE]
    assert results[0].session is None
    assert await database.store.get_session(theirs.session_id, EVERYTHING) == theirs


async def test_row_that_is_held_is_unknown_outside_scope(postgres_database: Database) -> None:
    """For the tenant of the session, the result is `held`. SQLite has one writer, so no row can be held there."""
    database = postgres_database
    (session,) = await opened(database, 1)
    async with holding(database) as holder:
        await holder.lock_session(session.session_id)
        for scope, found in ((own(session)[1], Found.HELD), (foreign(session)[0], Found.UNKNOWN)):
            (beat,) = await database.store.heartbeat([Heartbeat(session.session_id, False, scope)])
            (end,) = await database.store.end_sessions([EndRequest(session.session_id, "STOPPED", scope, ACTOR)])
            assert {beat.found, end.found} == {found}


async def listed(database: Database, scope: Scope, criteria: SessionFilter = ALL) -> Sequence[str]:
    found = await database.store.list_sessions(criteria, None, 99, scope)
    return sorted(session.session_id for session in found.sessions)


async def test_list_sessions__returns_sessions_of_scope_only(database: Database) -> None:
    ours, theirs = await opened(database)
    tenant, user = ours.tenant_object_id, ours.user_object_id
    (second,) = await opened(database, 1, tenant_object_id=tenant)
    await database.store.end_sessions([EndRequest(second.session_id, "STOPPED", EVERYTHING, ACTOR)])
    both = sorted([ours.session_id, second.session_id])
    assert await listed(database, Scope(tenant)) == both
    assert await listed(database, Scope(tenant, user)) == [ours.session_id]
    assert await listed(database, Scope(tenant), SessionFilter(active=False)) == [second.session_id]
    for criteria in (
        SessionFilter(tenant=theirs.tenant_object_id),
        SessionFilter(user=theirs.user_object_id),
        SessionFilter(capacity=theirs.capacity_id),
    ):
        assert await listed(database, Scope(tenant), criteria) == []
    assert await listed(database, Scope(tenant, user), SessionFilter(user=second.user_object_id)) == []


async def test_count_sessions__counts_sessions_of_scope_only(database: Database) -> None:
    ours, _theirs, ended = await opened(database, 3)
    await database.store.end_sessions([EndRequest(ended.session_id, "STOPPED", EVERYTHING, ACTOR)])
    for session, live in ((ours, 1), (ended, 0)):
        for scope in own(session)[1:]:
            counts = await database.store.count_sessions(scope)
            assert (counts.total, counts.active) == (1, live)
            assert await database.store.count_active_sessions(scope) == live
    assert (await database.store.count_sessions(Scope(some_id()))).total == 0
    assert (await database.store.count_sessions(EVERYTHING)).total == 3


async def test_count_active_sessions__counts_sessions_of_scope_only(database: Database) -> None:
    ours, _theirs = await opened(database)
    assert await database.store.count_active_sessions(Scope(ours.tenant_object_id)) == 1
    assert await database.store.count_active_sessions(Scope(some_id())) == 0
    assert await database.store.count_active_sessions(EVERYTHING) == 2


async def test_put_capacity__changes_only_capacities_of_scope(database: Database) -> None:
    tenant, ours, theirs, unbound = (some_id() for _ in range(4))
    await database.store.put_capacity(ours, Seats(5, "reject", tenant), EVERYTHING, ACTOR)
    await database.store.put_capacity(theirs, Seats(5, "reject", some_id()), EVERYTHING, ACTOR)
    await database.store.put_capacity(unbound, Seats(5), EVERYTHING, ACTOR)
    before = await all_tables(database)
    for capacity_id in (theirs, unbound, some_id()):
        assert await database.store.put_capacity(capacity_id, Seats(9, "reject", tenant), Scope(tenant), ACTOR) is None
        assert await database.store.delete_capacity(capacity_id, Scope(tenant), ACTOR) is None
        assert await database.store.get_capacity(capacity_id, Scope(tenant)) is None
    assert await all_tables(database) == before
    put = await database.store.put_capacity(ours, Seats(9, "reject", tenant), Scope(tenant), ACTOR)
    assert put is not None
    assert put.seats.max_sessions == 9


async def test_get_capacity__counts_sessions_of_scope_only(database: Database) -> None:
    """Sessions of other tenants may have been opened on the capacity before it was bound to a tenant."""
    tenant, capacity = some_id(), some_id()
    await opened(database, 2, capacity_id=capacity)
    await opened(database, 1, capacity_id=capacity, tenant_object_id=tenant)
    seats = Seats(5, "reject", tenant)
    for scope, count in ((EVERYTHING, 3), (Scope(tenant), 1)):
        put = await database.store.put_capacity(capacity, seats, scope, ACTOR)
        found = await database.store.get_capacity(capacity, scope)
        assert put == found
        assert found is not None
        assert found.active_sessions == count
        (only,) = await database.store.list_capacities(None, None, 9, scope)
        assert only == found
    deleted = await database.store.delete_capacity(capacity, Scope(tenant), ACTOR)
    assert deleted is not None
    assert deleted.active_sessions == 1


async def test_list_capacities__returns_capacities_of_scope_only(database: Database) -> None:
    tenant, other = some_id(), some_id()
    ids = [some_id() for _ in range(3)]
    for capacity_id, bound_to in zip(ids, (tenant, other, None), strict=True):
        await database.store.put_capacity(capacity_id, Seats(5, "reject", bound_to), EVERYTHING, ACTOR)
    for asked in (None, tenant):
        found = await database.store.list_capacities(asked, None, 9, Scope(tenant))
        assert [capacity.capacity_id for capacity in found] == [ids[0]]
    assert await database.store.list_capacities(other, None, 9, Scope(tenant)) == []


async def test_sum_usage__sums_sessions_of_scope_only(database: Database) -> None:
    ours, theirs = await opened(database)
    await database.clock.set(NOON + timedelta(hours=1))

    async def sums(scope: Scope, **query: Any) -> list[tuple[str | None, int]]:
        asked = UsageSumQuery(factors=(1_000_000, 2_000_000, 3_000_000), scope=scope, **query)
        found = await database.store.sum_usage(asked, None, 99)
        return [(group.key, group.sessions) for group in found.groups]

    tenant = ours.tenant_object_id
    for scope in own(ours)[1:]:
        assert await sums(scope) == [(None, 1)]
        for group_by, key in ((GroupBy.TENANT, tenant), (GroupBy.SESSION, ours.session_id)):
            assert await sums(scope, group_by=group_by) == [(key, 1)]
            for criteria in (UsageFilter(tenant=theirs.tenant_object_id), UsageFilter(user=theirs.user_object_id)):
                assert await sums(scope, group_by=group_by, criteria=criteria) == []
    assert await sums(Scope(tenant), criteria=UsageFilter(tenant=theirs.tenant_object_id)) == [(None, 0)]


async def test_command_submissions__commands_submissions_of_owner_only(database: Database) -> None:
    (ours,), (theirs,) = [await accept(database.store, caller=caller) for caller in ("us", "them")]
    command = SubmissionCommand.CANCEL
    done = await database.store.command_submissions(command, [ours, theirs, some_id()], "us", draft())
    assert done == {ours: True}
    found = await database.store.get_submission(theirs, None)
    assert found is not None
    assert found[0].state == "pending"
    (entry,) = await entries(database.store)
    assert entry.changes == 1


async def test_get_submission__returns_submissions_of_owner_only(database: Database) -> None:
    (ours,) = await accept(database.store, caller="us")
    assert await database.store.get_submission(ours, "us") is not None
    assert await database.store.get_submission(ours, "them") is None
