"""Alerts on every engine: each is raised once and cleared once, and each of these changes is submitted once."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.alerts.delivery import FORMAT, alert_contract, payload_of
from tenure.domain.alerts import (
    CONDITIONS_MAX,
    Alert,
    AlertChanges,
    AlertFilter,
    AlertName,
    AlertPosition,
    Condition,
    Transition,
    conditions_of,
)
from tenure.domain.capacities import Seats
from tenure.domain.jobs import JobCommand, Pruned, RunOutcome
from tenure.domain.leases import Fence
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason
from tenure.domain.submissions import NOT_SENT, Contract
from tenure.store.limits import ENDS_WATCHED_MAX
from tenure.store.reads import alerts as alert_reads
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import acquire_free_lease, begin_due_run, hold_lease, insert_row, job_every, read_table
from tests.support.open_requests import NOON, SECOND, end_one, open_one, request, some_id
from tests.support.submissions import DELIVERED, FAILED, accept, executor_fence, make_attempt
from tests.support.usage import CONTRACT, chunk_all, cut, insert_sessions, session_between

pytestmark = pytest.mark.usefixtures("installed")

SECONDS = timedelta(seconds=1)
MINUTES = timedelta(minutes=1)
ONCALL = alert_contract(Contract((5.0,), 20, (409,), 30.0))
LEADER = "leader"


async def next_fence(database: Database) -> Fence:
    """The fence of a new run of `watch`."""
    return await acquire_free_lease(database.store, "job:watch", "watcher")


async def watch(database: Database, contract: Contract | None = ONCALL) -> list[tuple[str, str, str | None]]:
    """Updates the alerts as a run of the job `watch` does, and returns the changes."""
    fence = await next_fence(database)
    observed = await database.store.read_observations([LEADER])
    changes = await database.store.update_alerts(fence, conditions_of(observed), contract)
    await database.store.release_lease(fence)
    return shown(changes)


def shown(changes: AlertChanges) -> list[tuple[str, str, str | None]]:
    raised = [("raised", alert.name, alert.subject) for alert in changes.raised]
    return raised + [("cleared", alert.name, alert.subject) for alert in changes.cleared]


async def move(database: Database, by: timedelta) -> None:
    now = database.clock.now()
    assert now is not None
    await database.clock.set(now + by)


# The causes. Each function creates the cause of an alert, and returns a function that removes this cause.

Remove = Callable[[], Awaitable[None]]


async def hold_job_lock(database: Database) -> Remove:
    await database.store.register_jobs([job_every(60 * SECOND, timeout=1000 * SECOND)])
    await database.store.command_job("tidy", JobCommand.RUN, ACTOR)
    fence = await begin_due_run(database.store, "tidy")
    await move(database, 5 * MINUTES + SECONDS)
    return lambda: database.store.finish_run(fence, RunOutcome.SUCCEEDED, None, 0)


async def fail_job(database: Database) -> Remove:
    await database.store.register_jobs([job_every(60 * SECOND)])

    async def run(outcome: RunOutcome) -> None:
        await database.store.command_job("tidy", JobCommand.RUN, ACTOR)
        fence = await begin_due_run(database.store, "tidy")
        await database.store.finish_run(fence, outcome, "broken", 0)

    for _ in range(3):
        await run(RunOutcome.FAILED)
    return lambda: run(RunOutcome.SUCCEEDED)


async def reclaim_lease(database: Database) -> Remove:
    await acquire_free_lease(database.store, LEADER, "one")
    await move(database, 2 * MINUTES)
    await acquire_free_lease(database.store, LEADER, "two", 86_400 * SECOND)
    return lambda: move(database, 15 * MINUTES)


async def change_leaders(database: Database) -> Remove:
    for number in range(7):
        fence = await acquire_free_lease(database.store, LEADER, f"holder-{number}")
        await database.store.release_lease(fence)
    return lambda: move(database, 10 * MINUTES)


async def sent_chunk(database: Database) -> str:
    """Cuts a window with one chunk. Returns the id of the chunk's submission, which is pending."""
    await open_one(database.store, request())
    await cut(database, NOON + 61 * SECONDS, contract=CONTRACT)
    (chunk,) = await chunk_all(database)
    assert chunk.submission_id is not None
    return chunk.submission_id


async def deliver(database: Database, submission_id: str) -> None:
    await make_attempt(database.store, await executor_fence(database.store), submission_id, DELIVERED)


async def fail_usage(database: Database) -> Remove:
    submission_id = await sent_chunk(database)
    fence = await executor_fence(database.store)
    for _ in range(4):
        await make_attempt(database.store, fence, submission_id, FAILED, pause_microseconds=0)
    return lambda: deliver(database, submission_id)


async def withhold_chunk(database: Database) -> Remove:
    submission_id = await sent_chunk(database)
    fence = await executor_fence(database.store)
    await database.store.note_waiting_reason(fence, [submission_id], f"{NOT_SENT}its digest differs")
    return lambda: deliver(database, submission_id)


async def let_usage_lag(database: Database) -> Remove:
    await move(database, 15 * MINUTES + SECONDS)

    async def catch_up() -> None:
        now = database.clock.now()
        assert now is not None
        await cut(database, now)

    return catch_up


async def lapse_sessions(database: Database) -> Remove:
    now = database.clock.now()
    assert now is not None
    lapsed = [
        session_between(now - timedelta(hours=1), now - n * SECONDS, close_reason="LEASE_EXPIRED")
        for n in range(1, 102)
    ]
    await insert_sessions(database, lapsed)
    return lambda: move(database, 10 * MINUTES)


async def step_clock_back(database: Database) -> Remove:
    await cut(database, NOON + 5 * MINUTES)
    await database.clock.set(NOON)
    return lambda: database.clock.set(NOON + 5 * MINUTES)


CAUSES: list[tuple[AlertName, str | None, Callable[[Database], Awaitable[Remove]]]] = [
    (AlertName.JOB_LOCK_HELD, "tidy", hold_job_lock),
    (AlertName.JOB_FAILING, "tidy", fail_job),
    (AlertName.LOCK_RECLAIMED, LEADER, reclaim_lease),
    (AlertName.LEADERSHIP_FLAPPING, LEADER, change_leaders),
    (AlertName.USAGE_FAILING, None, fail_usage),
    (AlertName.CHUNK_WITHHELD, None, withhold_chunk),
    (AlertName.USAGE_LAGGING, None, let_usage_lag),
    (AlertName.LAPSES_EXCEED_OPENINGS, None, lapse_sessions),
    (AlertName.CLOCK_BEHIND, None, step_clock_back),
]


def test_every_alert_has_a_cause() -> None:
    assert {name for name, _, _ in CAUSES} == set(AlertName)


@pytest.mark.parametrize(("name", "subject", "cause"), CAUSES, ids=[name.value for name, _, _ in CAUSES])
async def test_update_alerts__raises_and_clears_once_per_cause(
    database: Database, name: AlertName, subject: str | None, cause: Callable[[Database], Awaitable[Remove]]
) -> None:
    only = [("raised", name.value, subject)]
    assert await watch(database) == []
    remove = await cause(database)
    assert [change for change in await watch(database) if change[1] == name.value] == only
    assert await watch(database) == []
    await remove()
    assert ("cleared", name.value, subject) in await watch(database)
    assert await watch(database) == []
    (alert,) = await database.store.list_alerts(AlertFilter(name=name.value), None, 9)
    assert alert.cleared_at is not None
    keys = [row["delivery_key"] for row in await read_table(database, "submissions") if row["gateway"] == "oncall"]
    assert sorted(key for key in keys if alert.alert_id in key) == [
        f"{alert.alert_id}-cleared",
        f"{alert.alert_id}-raised",
    ]


def condition(subject: str | None = None, name: AlertName = AlertName.JOB_FAILING, detail: str = "why") -> Condition:
    return Condition(name, subject, detail)


async def update(database: Database, *conditions: Condition, contract: Contract | None = None) -> AlertChanges:
    fence = await next_fence(database)
    changes = await database.store.update_alerts(fence, conditions, contract)
    await database.store.release_lease(fence)
    return changes


async def test_update_alerts__returns_changes_again_if_answer_was_lost(database: Database) -> None:
    await update(database, condition("one"), condition("two"), contract=ONCALL)
    fence = await next_fence(database)
    conditions = [condition("two"), condition("three"), condition()]
    first = await database.store.update_alerts(fence, conditions, ONCALL)
    submissions = await read_table(database, "submissions")
    assert await database.store.update_alerts(fence, conditions, ONCALL) == first
    assert [alert.subject for alert in first.raised] == [None, "three"]
    assert [alert.subject for alert in first.cleared] == ["one"]
    assert await read_table(database, "submissions") == submissions
    assert len(submissions) == 5


async def test_update_alerts__submits_only_with_a_contract(database: Database) -> None:
    await update(database, condition("one"))
    assert await read_table(database, "submissions") == []
    await update(database, contract=ONCALL)
    (row,) = await read_table(database, "submissions")
    assert (row["gateway"], row["caller"], row["state"], row["payload"]) == ("oncall", "tenure", "pending", None)
    (envelope,) = await database.store.read_envelopes([row["submission_id"]])
    assert (envelope.delivery_key, envelope.contract.format) == (row["delivery_key"], FORMAT)


async def test_update_alerts__raises_and_clears_maximum_number_of_alerts_at_once(database: Database) -> None:
    first = [condition(f"job-{number}") for number in range(CONDITIONS_MAX)]
    second = [condition(f"lease-{number}", detail="x" * 5000) for number in range(CONDITIONS_MAX)]
    await update(database, *first, contract=ONCALL)
    changes = await update(database, *second, contract=ONCALL)
    assert (len(changes.raised), len(changes.cleared)) == (CONDITIONS_MAX, CONDITIONS_MAX)
    assert len(await read_table(database, "submissions")) == 3 * CONDITIONS_MAX


async def test_list_alerts__filters_and_continues_after_position(database: Database) -> None:
    for number in range(4):
        await database.clock.set(NOON + number * MINUTES)
        await update(database, *(condition(f"job-{each}") for each in range(number + 1)))
    await update(database, condition("job-1"), condition("job-2"), condition("job-3"))
    store = database.store
    newest = await store.list_alerts(AlertFilter(), None, 9)
    assert [alert.subject for alert in newest] == ["job-3", "job-2", "job-1", "job-0"]
    after = AlertPosition(newest[1].raised_at, newest[1].alert_id)
    assert await store.list_alerts(AlertFilter(), after, 1) == newest[2:3]
    assert await store.list_alerts(AlertFilter(active=False), None, 9) == newest[3:]
    assert await store.list_alerts(AlertFilter(active=True), None, 9) == newest[:3]
    assert await store.list_alerts(AlertFilter(subject="job-2"), None, 9) == newest[1:2]
    assert await store.list_alerts(AlertFilter(name=AlertName.CLOCK_BEHIND.value), None, 9) == []


async def test_find_alerts__returns_only_existing_alerts(database: Database) -> None:
    (alert,) = (await update(database, condition())).raised
    assert await database.store.find_alerts([alert.alert_id, some_id()]) == [alert]
    assert alert == Alert(alert_id=alert.alert_id, name="job-failing", subject=None, detail="why", raised_at=NOON)
    body = payload_of(alert, Transition.RAISED)
    assert body == payload_of(replace(alert, cleared_at=NOON + MINUTES), Transition.RAISED)
    assert body != payload_of(replace(alert, cleared_at=NOON + MINUTES), Transition.CLEARED)


async def test_read_observations__counts_lapses_and_openings_since_the_same_instant(database: Database) -> None:
    """Both counts begin ten minutes ago or, if more sessions have ended since then than the method reads, at the oldest
    end that it reads.
    """
    now = NOON + 30 * MINUTES
    await database.clock.set(now)
    await insert_sessions(
        database,
        [
            session_between(now - timedelta(hours=1), now - 20 * MINUTES, close_reason="EXPIRED"),
            session_between(now - timedelta(hours=1), now - 3 * MINUTES, close_reason="LEASE_EXPIRED"),
            session_between(now - 4 * MINUTES, now - 2 * MINUTES, close_reason="IDLE_TIMEOUT"),
            session_between(now - 9 * MINUTES, now - MINUTES, close_reason="STOPPED"),
            session_between(now - 8 * MINUTES, now - SECONDS, close_reason="EXPIRED"),
        ],
    )
    observed = (await database.store.read_observations([])).activity
    assert (observed.since, observed.lapses, observed.openings) == (now - 10 * MINUTES, 3, 3)
    limited = await database.run_sync(lambda connection: alert_reads.read_activity(connection, now, 3))
    assert (limited.since, limited.lapses, limited.openings) == (now - 2 * MINUTES, 2, 0)
    await database.clock.set(now - timedelta(microseconds=1))
    await open_one(database.store, request(kind=2))
    more = await database.run_sync(lambda connection: alert_reads.read_activity(connection, now, 3))
    assert more.openings == 1
    assert ENDS_WATCHED_MAX > 3


async def test_read_gauges__counts_live_sessions_seats_pending_submissions_and_alerts(database: Database) -> None:
    store = database.store
    limited, unlimited = some_id(), some_id()
    await store.put_capacity(limited, Seats(max_sessions=5), EVERYTHING, ACTOR)
    await store.put_capacity(unlimited, Seats(), EVERYTHING, ACTOR)
    await store.put_capacity(some_id(), Seats(max_sessions=7), EVERYTHING, ACTOR)
    for kind, capacity_id, lease in ((1, limited, None), (2, limited, SECOND), (3, unlimited, None), (3, some_id(), 2)):
        await open_one(store, request(kind=kind, capacity_id=capacity_id, lease_microseconds=lease))
    ended = await open_one(store, request(kind=1, capacity_id=limited))
    assert ended.session is not None
    await end_one(store, ended.session.session_id, CloseReason.STOPPED)
    await accept(store, 2, gateway="crm")
    await accept(store, 1, gateway="gone")
    await update(database, condition("one"), condition("two"), condition(name=AlertName.CLOCK_BEHIND))
    await database.clock.set(NOON + SECONDS)
    gauges = await store.read_gauges(["crm", "billing"])
    assert gauges.active_by_kind == {1: 1, 2: 0, 3: 1}
    assert (gauges.seats, gauges.seats_taken) == (12, 1)
    assert (gauges.pending_by_gateway, gauges.pending) == ({"crm": 2, "billing": 0}, 3)
    assert gauges.active_alerts == {"job-failing": 2, "clock-behind": 1}


async def put_alert(database: Database, subject: str, cleared_at: datetime | None) -> None:
    values: dict[str, Any] = {"name": "job-failing", "detail": "", "raised_epoch": 1, "raised_at": NOON}
    await insert_row(database, "alerts", alert_id=some_id(), subject=subject, cleared_at=cleared_at, **values)


async def test_prune__keeps_alerts_for_ninety_days_after_they_were_cleared(database: Database) -> None:
    now = NOON + timedelta(days=90)
    for subject, cleared_at in (("old", NOON), ("kept", NOON + timedelta(microseconds=1)), ("active", None)):
        await put_alert(database, subject, cleared_at)
    await database.clock.set(now + timedelta(microseconds=1))
    fence = await hold_lease(database.store, "job:prune")
    assert await database.store.prune(fence, 9) == Pruned(0, 0, 0, 0, 1)
    assert sorted(row["subject"] for row in await read_table(database, "alerts")) == ["active", "kept"]
