"""Ending many sessions in one action, on every engine."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tenure.domain.audit_log import Action, Actor, AuditDraft
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import EndManyResult, Session, SessionFilter
from tenure.ids import new_id
from tests.support.audit_log import ACTOR, entries
from tests.support.databases import Database
from tests.support.histories import read_facts
from tests.support.open_requests import NOON, SECOND, some_id
from tests.support.sessions import open_new_session, read_session

pytestmark = pytest.mark.usefixtures("noon")

ANY = SessionFilter()


def action(detail: str = "all sessions", actor: Actor = ACTOR) -> AuditDraft:
    return AuditDraft(new_id(), actor, Action.SESSION_ENDED, "sessions", detail)


async def end(
    database: Database,
    sessions: list[Session],
    draft: AuditDraft,
    criteria: SessionFilter = ANY,
    scope: Scope = EVERYTHING,
) -> EndManyResult:
    return await database.store.end_matching([each.session_id for each in sessions], criteria, scope, draft)


async def later(database: Database, seconds: int) -> None:
    await database.clock.set(NOON + timedelta(seconds=seconds))


async def test_end_matching__ends_live_sessions_and_counts_them_in_one_entry(database: Database) -> None:
    sessions = [await open_new_session(database) for _ in range(5)]
    await later(database, 1)
    draft = action()
    first = await end(database, sessions[:3], draft)
    assert {closed.session_id for closed in first.closed} == {each.session_id for each in sessions[:3]}
    assert {(closed.reason, closed.ended_at) for closed in first.closed} == {
        ("TERMINATED", NOON + timedelta(seconds=1))
    }
    assert (first.held, first.total, first.same) == (0, 3, True)
    for session in sessions[:3]:
        ended = await read_session(database, session.session_id)
        assert (ended.state, ended.close_reason, ended.modified_at) == ("closed", "TERMINATED", ended.closed_at)
    await later(database, 2)
    # The caller repeats the call with more sessions, as if the answer of the first call had been lost.
    again = await end(database, sessions, draft)
    assert ({closed.session_id for closed in again.closed}, again.total) == (
        {each.session_id for each in sessions[3:]},
        5,
    )
    nothing = await end(database, [*sessions, sessions[0]], draft)
    assert (nothing.closed, nothing.total) == ([], 5)
    (entry,) = await entries(database.store)
    assert (entry.entry_id, entry.changes, entry.target, entry.detail) == (draft.entry_id, 5, "sessions", draft.detail)
    assert (entry.at, entry.subject, entry.request_id) == (NOON + timedelta(seconds=1), ACTOR.subject, ACTOR.request_id)
    assert entry == await database.store.get_audit_entry(draft.entry_id)


async def test_end_matching__ends_only_matching_sessions(database: Database) -> None:
    sessions = [await open_new_session(database, kind=2) for _ in range(3)]
    one = sessions[0]
    foreign: list[tuple[dict[str, Any], Scope]] = [
        ({"tenant": some_id()}, EVERYTHING),
        ({"user": some_id()}, EVERYTHING),
        ({"capacity": some_id()}, EVERYTHING),
        ({"kind": 1}, EVERYTHING),
        ({"state": "active"}, EVERYTHING),
        ({}, Scope(some_id())),
        ({"tenant": one.tenant_object_id}, Scope(some_id())),
        ({}, Scope(one.tenant_object_id, some_id())),
    ]
    for criteria, scope in foreign:
        result = await end(database, sessions, action(), SessionFilter(**criteria), scope)
        assert (result.closed, result.held, result.total) == ([], 0, 0), criteria
        ids = [each.session_id for each in sessions]
        assert await database.store.count_live(ids, SessionFilter(**criteria), scope) == 0
    unknown = await database.store.end_matching([some_id()], ANY, EVERYTHING, action())
    assert (unknown.closed, unknown.total) == ([], 0)
    assert await entries(database.store) == []
    matching = SessionFilter(
        tenant=one.tenant_object_id, user=one.user_object_id, capacity=one.capacity_id, kind=2, state="created"
    )
    result = await end(database, sessions, action(), matching, Scope(one.tenant_object_id))
    assert [closed.session_id for closed in result.closed] == [one.session_id]


async def test_end_matching__records_lapse_without_counting_it(database: Database) -> None:
    lapsed = await open_new_session(database, lease_microseconds=5 * SECOND, heartbeat_microseconds=SECOND)
    live = await open_new_session(database)
    await later(database, 6)
    draft = action()
    result = await end(database, [lapsed, live], draft)
    found = {closed.session_id: (closed.reason, closed.ended_at) for closed in result.closed}
    assert found[lapsed.session_id] == ("LEASE_EXPIRED", NOON + timedelta(seconds=5))
    assert found[live.session_id] == ("TERMINATED", NOON + timedelta(seconds=6))
    assert result.total == 1
    (entry,) = await entries(database.store)
    assert entry.changes == 1


async def test_end_matching__does_not_end_sessions_opened_after_the_action_began(database: Database) -> None:
    old = [await open_new_session(database) for _ in range(2)]
    draft = action()
    await later(database, 1)
    await end(database, old[:1], draft)
    await later(database, 2)
    new = await open_new_session(database)
    result = await end(database, [*old, new], draft)
    assert [closed.session_id for closed in result.closed] == [old[1].session_id]
    assert (await read_session(database, new.session_id)).closed_at is None


async def test_end_matching__refuses_the_id_of_another_action(database: Database) -> None:
    sessions = [await open_new_session(database) for _ in range(2)]
    draft = action()
    await end(database, sessions[:1], draft)
    other = Actor("Zz0aQz81LmN4", "other")
    for wrong in (
        AuditDraft(draft.entry_id, other, draft.action, draft.target, draft.detail),
        AuditDraft(draft.entry_id, ACTOR, draft.action, draft.target, "kind 1"),
        AuditDraft(draft.entry_id, ACTOR, draft.action, draft.target, None),
    ):
        result = await end(database, sessions, wrong)
        assert (result.closed, result.same) == ([], False)
    (entry,) = await entries(database.store)
    assert (entry.subject, entry.changes) == (ACTOR.subject, 1)
    assert (await read_session(database, sessions[1].session_id)).closed_at is None


async def test_end_matching__ends_each_session_once_when_calls_of_an_action_race(database: Database) -> None:
    sessions = [await open_new_session(database) for _ in range(30)]
    draft = action()
    results = await asyncio.gather(*(end(database, sessions, draft) for _ in range(6)))
    closed = [closed.session_id for result in results for closed in result.closed]
    assert sorted(closed) == sorted(each.session_id for each in sessions)
    (entry,) = await entries(database.store)
    assert entry.changes == 30
    assert max(result.total for result in results) == 30


async def test_count_live__counts_live_sessions_of_the_ids(database: Database) -> None:
    lapsed = await open_new_session(database, lease_microseconds=5 * SECOND, heartbeat_microseconds=SECOND)
    live = [await open_new_session(database, kind=kind) for kind in (1, 2)]
    await later(database, 6)
    ids = [lapsed.session_id, some_id(), *(each.session_id for each in live)]
    assert await database.store.count_live(ids, ANY, EVERYTHING) == 2
    assert await database.store.count_live(ids, SessionFilter(kind=2, state="created"), EVERYTHING) == 1
    assert await database.store.count_live(ids, ANY, Scope(live[0].tenant_object_id)) == 1
    await end(database, live[:1], action())
    assert await database.store.count_live(ids, ANY, EVERYTHING) == 1


async def test_count_matches__counts_sessions_started_until_given_instant(database: Database) -> None:
    for second in range(4):
        await later(database, second)
        await open_new_session(database)
    for second in range(4):
        found = await database.store.count_matches(
            SessionFilter(active=True), EVERYTHING, NOON + timedelta(seconds=second)
        )
        assert (found.count, found.exact) == (second + 1, True)


async def test_get_audit_entry__returns_none_for_unknown_id(database: Database) -> None:
    assert await database.store.get_audit_entry(some_id()) is None


async def test_read_history__names_actor_of_action_that_ended_session(database: Database) -> None:
    sessions = [await open_new_session(database) for _ in range(2)]
    await later(database, 1)
    await end(database, sessions, action())
    for session in sessions:
        (ended,) = [fact for fact in await read_facts(database, session.session_id) if fact.fact == "ended"]
        assert (ended.close_reason, ended.name, ended.subject) == ("TERMINATED", ACTOR.name, ACTOR.subject)
        assert ended.request_id == ACTOR.request_id
