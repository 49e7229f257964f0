"""Each audited change writes its entry in the same transaction, on every engine.

A call that changes nothing writes no entry, for example a call that is repeated because its first answer was lost.
"""

from datetime import timedelta

import pytest

from tenure.domain.audit_log import Action, Actor, AuditEntry
from tenure.domain.capacities import Seats
from tenure.domain.jobs import JobCommand, RunOutcome
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import EndRequest, Found
from tenure.domain.submissions import SubmissionCommand
from tenure.domain.usage import WindowToSend
from tenure.ids import new_id
from tests.support.audit_log import ACTOR, draft, entries
from tests.support.databases import Database
from tests.support.leases import hold_lease, job_every
from tests.support.open_requests import NOON, SECOND, some_id
from tests.support.sessions import open_new_session
from tests.support.submissions import FAILED, accept, begin_one, create_in_state, executor_fence, make_attempt
from tests.support.usage import CONTRACT, cut_one, install, minute, save

pytestmark = pytest.mark.usefixtures("noon")

OTHER = Actor("Zz0aQz81LmN4", "other", "request-2")


async def later(database: Database) -> None:
    now = database.clock.now()
    assert now is not None
    await database.clock.set(now + timedelta(seconds=1))


async def logged(database: Database) -> list[tuple[str, str, str | None]]:
    """Action, target and detail of all entries, oldest first."""
    found = sorted(await entries(database.store), key=lambda entry: (entry.at, entry.entry_id))
    return [(entry.action, entry.target, entry.detail) for entry in found]


async def test_end_sessions__writes_entry_for_each_session_it_ends(database: Database) -> None:
    first, second = [await open_new_session(database) for _ in range(2)]
    ends = [
        EndRequest(first.session_id, "STOPPED", EVERYTHING, ACTOR),
        EndRequest(second.session_id, "TERMINATED", EVERYTHING, OTHER),
        EndRequest(some_id(), "STOPPED", EVERYTHING, ACTOR),
    ]
    for _ in range(2):
        await database.store.end_sessions(ends)
    found = {entry.target: entry for entry in await entries(database.store)}
    assert found.keys() == {first.session_id, second.session_id}
    one = found[first.session_id]
    assert one == AuditEntry(
        entry_id=one.entry_id,
        at=NOON,
        subject=ACTOR.subject,
        name=ACTOR.name,
        action="session.ended",
        target=first.session_id,
        detail="STOPPED",
        request_id=ACTOR.request_id,
        changes=1,
    )
    other = found[second.session_id]
    assert (other.subject, other.request_id, other.detail) == (OTHER.subject, OTHER.request_id, "TERMINATED")


async def test_end_sessions__writes_no_entry_for_lapsed_session(database: Database) -> None:
    session = await open_new_session(database, lease_microseconds=60 * SECOND, heartbeat_microseconds=SECOND)
    await database.clock.set(NOON + timedelta(seconds=60))
    (ended,) = await database.store.end_sessions([EndRequest(session.session_id, "STOPPED", EVERYTHING, ACTOR)])
    assert (ended.found, ended.recorded) == (Found.OVER, True)
    assert await logged(database) == []


async def test_put_capacity__writes_entry_with_old_and_new_rules(database: Database) -> None:
    capacity, tenant = some_id(), some_id()
    for seats in (Seats(5), Seats(5), Seats(None, "evictOldest", tenant), Seats(None, "evictOldest", tenant)):
        await database.store.put_capacity(capacity, seats, EVERYTHING, ACTOR)
        await later(database)
    first = "maxSessions=5, whenFull=reject, tenantObjectId=null"
    second = f"maxSessions=null, whenFull=evictOldest, tenantObjectId={tenant}"
    assert await logged(database) == [
        ("capacity.changed", capacity, f"none -> {first}"),
        ("capacity.changed", capacity, f"{first} -> {second}"),
    ]


async def test_put_capacity__equal_rules_keep_modified_at(database: Database) -> None:
    capacity = some_id()
    put = await database.store.put_capacity(capacity, Seats(5), EVERYTHING, ACTOR)
    await later(database)
    assert await database.store.put_capacity(capacity, Seats(5), EVERYTHING, ACTOR) == put


async def test_delete_capacity__writes_entry_once(database: Database) -> None:
    capacity = some_id()
    await database.store.put_capacity(capacity, Seats(5), EVERYTHING, ACTOR)
    await later(database)
    for _ in range(2):
        await database.store.delete_capacity(capacity, EVERYTHING, ACTOR)
    assert (await logged(database))[1:] == [
        ("capacity.deleted", capacity, "maxSessions=5, whenFull=reject, tenantObjectId=null")
    ]


async def test_command_job__writes_entry_if_it_changes_the_job(database: Database) -> None:
    await database.store.register_jobs([job_every(60 * SECOND)])
    expected: list[tuple[str, str, str | None]] = []

    async def command(command: JobCommand, *detail: str | None) -> None:
        await later(database)
        await database.store.command_job("tidy", command, ACTOR)
        actions = {"run": "job.run_requested", "pause": "job.paused", "resume": "job.resumed"}
        expected.extend((actions[command.value], "tidy", each) for each in detail)
        assert await logged(database) == expected

    await command(JobCommand.RESUME)  # not paused
    await command(JobCommand.PAUSE, None)
    await command(JobCommand.PAUSE)  # paused already
    await command(JobCommand.RUN, None)
    await command(JobCommand.RUN)  # the requested run has not begun
    await command(JobCommand.PAUSE, "dropped the requested run")
    await command(JobCommand.RESUME, None)
    await command(JobCommand.RUN, None)
    begun = await database.store.begin_run("tidy", "one", new_id())
    await command(JobCommand.RUN, None)  # the run has begun, so this requests another one
    assert begun.fence is not None
    await database.store.finish_run(begun.fence, RunOutcome.FAILED, "no", 60 * SECOND)
    await command(JobCommand.RUN, None)  # ends the pause after the failure
    await command(JobCommand.RUN)
    assert await database.store.command_job("unknown", JobCommand.RUN, ACTOR) is None
    assert await logged(database) == expected


async def test_resign_lease__writes_entry_if_lease_was_held(database: Database) -> None:
    fence = await hold_lease(database.store, "leader")
    for _ in range(2):
        await database.store.resign_lease("leader", ACTOR)
    await database.store.resign_lease("unknown", ACTOR)
    detail = f"holder {fence.holder}, epoch 1"
    assert await logged(database) == [("lease.resigned", "leader", detail)]
    await later(database)
    await hold_lease(database.store, "leader")
    await database.store.resign_lease("leader", ACTOR)
    assert len(await logged(database)) == 2


async def test_command_submissions__counts_changes_of_all_transactions_in_one_entry(database: Database) -> None:
    ids = [await create_in_state(database.store, state) for state in ("pending", "failed", "delivered")]
    one = draft(Action.SUBMISSION_CANCELLED)
    for _ in range(2):  # the second call repeats the first, as after a lost answer
        await database.store.command_submissions(SubmissionCommand.CANCEL, ids, None, one)
    (more,) = await accept(database.store)
    await database.store.command_submissions(SubmissionCommand.CANCEL, [more], None, one)
    (entry,) = await entries(database.store)
    assert (entry.entry_id, entry.action, entry.target) == (one.entry_id, "submission.cancelled", "submissions")
    assert (entry.changes, entry.at) == (3, NOON)


async def test_command_submissions__retry_counts_only_submissions_it_changes(database: Database) -> None:
    fence = await executor_fence(database.store)

    async def changes(submission_id: str) -> int:
        one = draft()
        await database.store.command_submissions(SubmissionCommand.RETRY, [submission_id], None, one)
        return sum(entry.changes for entry in await entries(database.store) if entry.entry_id == one.entry_id)

    (due,) = await accept(database.store)
    assert await changes(due) == 0
    waiting, failed, cancelled, delivered, attempted = [
        *await accept(database.store),
        *[await create_in_state(database.store, state) for state in ("failed", "cancelled", "delivered")],
        *await accept(database.store),
    ]
    await make_attempt(database.store, fence, waiting, FAILED)
    await begin_one(database.store, fence, attempted)
    await later(database)
    for submission_id in (waiting, failed, cancelled, attempted):
        assert [await changes(submission_id) for _ in range(2)] == [1, 0]
    assert await changes(delivered) == 0


async def test_send_windows__counts_windows_of_all_transactions_in_one_entry(database: Database) -> None:
    await install(database, NOON)
    windows = []
    for number in (1, 2, 3):
        window = await cut_one(database, minute(number), contract=None)
        await save(database, window, [])
        windows.append(WindowToSend(window.window_id, []))
    one = draft(Action.USAGE_WINDOWS_SENT, "windows")
    for part in (windows[:2], windows[:2], windows[2:]):
        await database.store.send_windows(CONTRACT, part, one)
    (entry,) = await entries(database.store)
    assert (entry.action, entry.target, entry.changes) == ("usage.windows_sent", "windows", 3)
    repeated = draft(Action.USAGE_WINDOWS_SENT, "windows")
    await database.store.send_windows(CONTRACT, windows, repeated)
    assert len(await entries(database.store)) == 1


async def test_list_audit_log__combines_filters(database: Database) -> None:
    sessions = [await open_new_session(database) for _ in range(4)]
    for number, session in enumerate(sessions):
        actor = ACTOR if number % 2 else OTHER
        await later(database)
        await database.store.end_sessions([EndRequest(session.session_id, "STOPPED", EVERYTHING, actor)])
    await database.store.put_capacity(some_id(), Seats(5), EVERYTHING, ACTOR)
    ended = [session.session_id for session in reversed(sessions)]
    found = await entries(database.store, action="session.ended")
    assert [entry.target for entry in found] == ended
    found = await entries(database.store, action="session.ended", subject=OTHER.subject)
    assert [entry.target for entry in found] == ended[1::2]
    found = await entries(database.store, target=ended[0], subject=ACTOR.subject, action="session.ended")
    assert [entry.target for entry in found] == ended[:1]
    assert await entries(database.store, target=ended[0], subject=OTHER.subject) == []
