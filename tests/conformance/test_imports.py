"""Importing live sessions of another service, on every engine."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.domain.audit_log import Action
from tenure.domain.capacities import Seats
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, ImportedSession, ImportOutcome, OpenOutcome
from tests.support.audit_log import ACTOR, draft, entries
from tests.support.databases import Database
from tests.support.open_requests import NOON, SECOND, end_one, open_one, request, some_id

pytestmark = pytest.mark.usefixtures("noon")

DAY = timedelta(days=1)
IMPORTED, EXISTING, CONFLICT = ImportOutcome.IMPORTED, ImportOutcome.EXISTING, ImportOutcome.CONFLICT


def imported(**fields: Any) -> ImportedSession:
    ids = {name: some_id() for name in ("session_id", "tenant_object_id", "user_object_id", "capacity_id")}
    return ImportedSession(**{**ids, "kind": 2, "started_at": NOON - 9 * DAY, "ends_at": NOON + DAY, **fields})


async def run(database: Database, *sessions: ImportedSession, writes: bool = True) -> list[ImportOutcome]:
    entry = draft(Action.SESSIONS_IMPORTED, "sessions")
    return list(await database.store.import_sessions(sessions, entry, writes=writes))


async def test_import_sessions__starts_session_now_and_stores_its_original_start_kind_and_end(
    database: Database,
) -> None:
    one = imported(lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND)
    other = imported(kind=3, idle_microseconds=30 * SECOND)
    assert await run(database, one, other) == [IMPORTED, IMPORTED]
    session = await database.store.get_session(one.session_id, EVERYTHING)
    assert session is not None
    assert (session.started_at, session.imported_start_at, session.term_ends_at) == (NOON, one.started_at, one.ends_at)
    assert (session.kind, session.state, session.heartbeat_microseconds) == (2, "created", 5 * SECOND)
    assert (session.deadline_at, session.lapse_reason) == (NOON + timedelta(seconds=60), "LEASE_EXPIRED")
    second = await database.store.get_session(other.session_id, EVERYTHING)
    assert second is not None
    assert (second.kind, second.deadline_at, second.lapse_reason) == (3, NOON + timedelta(seconds=30), "IDLE_TIMEOUT")


async def test_import_sessions__imported_session_is_returned_by_open_with_original_start(database: Database) -> None:
    one = imported()
    await run(database, one)
    same = request(
        user_object_id=one.user_object_id,
        tenant_object_id=one.tenant_object_id,
        capacity_id=one.capacity_id,
        kind=1,
    )
    opened = await open_one(database.store, same)
    assert opened.outcome is OpenOutcome.EXISTING
    assert opened.session is not None
    assert (opened.session.session_id, opened.session.imported_start_at) == (one.session_id, one.started_at)


async def test_import_sessions__imports_each_session_once(database: Database) -> None:
    one, other = imported(), imported()
    assert await run(database, one) == [IMPORTED]
    assert await run(database, one, other) == [EXISTING, IMPORTED]
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    assert await run(database, one, other) == [ImportOutcome.OVER, EXISTING]
    short = imported(lease_microseconds=5_000_000)
    assert await run(database, short) == [IMPORTED]
    await database.clock.set(NOON + timedelta(minutes=1))
    assert await run(database, short, other) == [ImportOutcome.OVER, EXISTING], "the session has lapsed"


async def test_import_sessions__refuses_second_session_of_a_key(database: Database) -> None:
    one = imported()
    await run(database, one)
    again = replace(one, session_id=some_id())
    assert await run(database, again, imported()) == [CONFLICT, IMPORTED]
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    await database.clock.set(NOON - timedelta(seconds=5))
    assert await run(database, again) == [CONFLICT], "the stored end of the first session is later than now"
    await database.clock.set(NOON + timedelta(seconds=5))
    assert await run(database, again) == [IMPORTED]


async def test_import_sessions__skips_sessions_whose_term_has_ended(database: Database) -> None:
    over = imported(ends_at=NOON)
    assert await run(database, over) == [ImportOutcome.ENDED]
    assert await database.store.get_session(over.session_id, EVERYTHING) is None


async def test_import_sessions__refuses_session_on_capacity_of_another_tenant(database: Database) -> None:
    own, foreign = imported(), imported()
    for each, tenant in ((own, own.tenant_object_id), (foreign, some_id())):
        await database.store.put_capacity(each.capacity_id, Seats(9, "reject", tenant), EVERYTHING, ACTOR)
    assert await run(database, own, foreign) == [IMPORTED, ImportOutcome.TENANT_MISMATCH]


async def test_import_sessions__takes_seats(database: Database) -> None:
    """An earlier open request has stored a slack, which does not know the imported sessions and would count their seats
    as free. So the import must reset it.
    """
    capacity_id = some_id()
    await database.store.put_capacity(capacity_id, Seats(3, "reject", None), EVERYTHING, ACTOR)
    assert (await open_one(database.store, request(capacity_id=capacity_id))).outcome is OpenOutcome.CREATED
    assert await run(database, imported(capacity_id=capacity_id), imported(capacity_id=capacity_id)) == [IMPORTED] * 2
    refused = await open_one(database.store, request(capacity_id=capacity_id))
    assert refused.outcome is OpenOutcome.SESSION_LIMIT


async def test_import_sessions__writes_nothing_in_a_dry_run(database: Database) -> None:
    one = imported()
    assert await run(database, one, writes=False) == [IMPORTED]
    assert await database.store.get_session(one.session_id, EVERYTHING) is None
    assert await entries(database.store, action="sessions.imported") == []


async def test_import_sessions__counts_all_batches_of_a_draft_in_one_audit_entry(database: Database) -> None:
    entry = draft(Action.SESSIONS_IMPORTED, "sessions")
    for batch in ([imported(), imported()], [imported()]):
        await database.store.import_sessions(batch, entry, writes=True)
    (found,) = await entries(database.store, action="sessions.imported")
    assert (found.entry_id, found.target, found.changes) == (entry.entry_id, "sessions", 3)
