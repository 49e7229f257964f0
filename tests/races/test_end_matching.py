"""Actions that end many sessions, while another transaction holds the row of one of the sessions."""

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import SessionFilter
from tenure.sessions.end import Ender, Selection
from tenure.sessions.ends import SessionEnds
from tenure.telemetry.events import SessionClosed
from tests.conformance.test_end_matching import action, end
from tests.support.audit_log import ACTOR, entries
from tests.support.databases import Database
from tests.support.locks import holding
from tests.support.open_requests import some_id
from tests.support.sessions import open_new_session
from tests.support.telemetry import RecordedTelemetry


async def test_locked_session_is_skipped_and_ended_by_next_call(postgres_database: Database) -> None:
    database, capacity = postgres_database, some_id()
    sessions = [await open_new_session(database, capacity_id=capacity) for _ in range(3)]
    draft = action()
    async with holding(database) as holder:
        await holder.lock_session(sessions[0].session_id)
        result = await end(database, sessions, draft)
        await holder.rollback()
    assert (len(result.closed), result.held, result.total) == (2, 1, 2)
    result = await end(database, sessions, draft)
    assert (len(result.closed), result.held, result.total) == (1, 0, 3)


async def test_action_is_not_done_while_a_session_is_locked(postgres_database: Database) -> None:
    database, capacity, action_id = postgres_database, some_id(), some_id()
    sessions = [await open_new_session(database, capacity_id=capacity) for _ in range(3)]
    telemetry = RecordedTelemetry()
    ender = Ender(database.store, SessionEnds(telemetry), telemetry)
    for selection in (
        Selection(SessionFilter(capacity=capacity)),
        Selection(SessionFilter(), [session.session_id for session in sessions]),
    ):
        async with holding(database) as holder:
            await holder.lock_session(sessions[0].session_id)
            call = await ender.end_many(selection, 500, action_id, EVERYTHING, ACTOR)
            await holder.rollback()
        assert call is not None
        assert (call.remaining.count, call.remaining.exact, call.is_done) == (1, True, False)
        action_id = some_id()
    call = await ender.end_many(selection, 500, action_id, EVERYTHING, ACTOR)
    assert call is not None
    assert (call.ended, call.is_done) == (1, True)
    assert sum(entry.changes for entry in await entries(database.store)) == 3
    assert len([event for event in telemetry.events if isinstance(event, SessionClosed)]) == 3
