"""Sessions that ended in every possible way, and the facts of their histories, computed from the tables alone."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tenure.domain.history import Fact, View, after_position, facts_of
from tenure.domain.meter import usage_between
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import CloseReason, EndRequest, Limits, OpenOutcome, OpenRequest
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import Tables, sweep_some
from tests.support.open_requests import SECOND, open_one, request, same_key_request, some_id
from tests.support.session_calls import COUNTERS, attach_one, evicting_seats, heartbeat_one, update_one
from tests.support.sessions import open_new_session
from tests.support.submissions import (
    ABANDONED,
    DELIVERED,
    FAILED,
    begin_one,
    close_orphaned,
    executor_fence,
    make_attempt,
    next_executor_fence,
)
from tests.support.usage import CONTRACT, chunk_all, cut, minute

LEASE = {"lease_microseconds": 90 * SECOND, "heartbeat_microseconds": 5 * SECOND}
SHORT = Limits(timedelta(seconds=100))
ALL = View(audit=True, usage=True, deliveries=True)
MICROSECOND = timedelta(microseconds=1)
STREAM_REASONS = (CloseReason.DISCONNECTED, CloseReason.SHUTDOWN, CloseReason.FAILED)


async def end_in_every_way(database: Database) -> Mapping[str, str]:
    """Creates sessions that end in every way. Returns their ids by close reason, and those of further sessions by name.

    `first`, `second` and `third` are a chain of upgrades. `unrecorded` has lapsed, and no sweep has recorded its end.
    The end of `closing` is recorded, but its stream is still open.

    Stops the database's clock shortly after noon, and moves it to 12:11:30. The windows in between have every state:
    delivered, retried, given up, withheld, waiting, in progress, abandoned, of unknown outcome, undivided, and cut
    without a gateway.
    """
    store = database.store
    ids: dict[str, str] = {}

    async def opened(name: str, **given: Any) -> str:
        ids[name] = (await open_new_session(database, **given)).session_id
        return ids[name]

    await database.clock.set(minute(0, 5))
    expired = request()
    assert (await open_one(store, expired, SHORT)).outcome is OpenOutcome.CREATED
    ids["EXPIRED"] = expired.session_id
    await opened("LEASE_EXPIRED", **LEASE)
    await opened("IDLE_TIMEOUT", idle_microseconds=130 * SECOND, kind=2)
    await opened("live", kind=3)
    capacity = some_id()
    await store.put_capacity(capacity, evicting_seats(1), EVERYTHING, ACTOR)
    await opened("EVICTED", capacity_id=capacity)
    chain = await _begin_chain(database, ids)
    for reason in ("STOPPED", "TERMINATED"):
        await opened(reason)
    for reason in (*STREAM_REASONS, "closing"):
        await attach_one(store, await opened(reason), lease=400 * SECOND, idle=500 * SECOND)
    await _window(database, 1, None)

    await database.clock.set(minute(1, 5))
    await heartbeat_one(store, ids["LEASE_EXPIRED"])
    await heartbeat_one(store, ids["live"], active=True)
    await _upgrade(database, ids, chain, "second")
    await store.end_sessions(
        [EndRequest(ids[reason], reason, EVERYTHING, ACTOR) for reason in sorted(("STOPPED", "TERMINATED"))]
    )
    for reason in STREAM_REASONS:
        await update_one(store, ids[reason], active=True, counted=COUNTERS, end=reason.value, finished=True)
    await opened("newcomer", capacity_id=capacity)
    await database.clock.set(minute(1, 20))
    await _upgrade(database, ids, chain, "third")
    await _deliver(database, await _window(database, 2, CONTRACT))
    await _deliver(database, await _window(database, 3, CONTRACT))
    await database.clock.set(minute(3, 1))
    await sweep_some(store, 500)

    await opened("unrecorded", **LEASE)
    await update_one(store, ids["closing"], active=True, counted=COUNTERS, end="STOPPED")
    await _deliver(database, await _window(database, 4, CONTRACT), failures=2)
    given_up = await _window(database, 5, CONTRACT)
    for submission_id in given_up:
        await make_attempt(store, await executor_fence(store), submission_id, FAILED, pause_microseconds=None)
    await _window(database, 6, CONTRACT)
    withheld = await _window(database, 7, CONTRACT)
    await store.note_waiting_reason(await executor_fence(store), withheld, "not sent: the rows were altered")
    for outcome in (ABANDONED, None):
        for submission_id in await _window(database, 8 if outcome else 9, CONTRACT):
            if outcome is None:
                await begin_one(store, await executor_fence(store), submission_id)
            else:
                await make_attempt(store, await executor_fence(store), submission_id, outcome)
    await close_orphaned(store, await next_executor_fence(store))
    for submission_id in await _window(database, 10, CONTRACT):
        await begin_one(store, await executor_fence(store), submission_id)
    await cut(database, minute(11), contract=CONTRACT)
    await database.clock.set(minute(11, 30))
    return ids


async def _begin_chain(database: Database, ids: dict[str, str]) -> OpenRequest:
    one = request(**LEASE)
    assert (await open_one(database.store, one)).outcome is OpenOutcome.CREATED
    ids["first"] = one.session_id
    ids["UPGRADED"] = one.session_id
    return one


async def _upgrade(database: Database, ids: dict[str, str], chain: OpenRequest, name: str) -> None:
    kind = {"second": 2, "third": 3}[name]
    latest = same_key_request(chain, kind=kind)
    result = await open_one(database.store, latest)
    assert result.outcome is OpenOutcome.UPGRADED, result
    ids[name] = latest.session_id


async def _window(database: Database, number: int, contract: Any) -> list[str]:
    """Cuts and divides the window that ends `number` minutes after noon. Returns the ids of its submissions."""
    await cut(database, minute(number), contract=contract)
    return [str(chunk.submission_id) for chunk in await chunk_all(database) if chunk.submission_id is not None]


async def _deliver(database: Database, submission_ids: Sequence[str], failures: int = 0) -> None:
    store, began = database.store, database.clock.now()
    assert began is not None
    for number in range(failures + 1):
        await database.clock.set(began + timedelta(seconds=40 * number))
        for submission_id in submission_ids:
            outcome = DELIVERED if number == failures else FAILED
            await make_attempt(store, await executor_fence(store), submission_id, outcome)


async def read_facts(database: Database, session_id: str, scope: Scope = EVERYTHING, view: View = ALL) -> list[Fact]:
    """Reads the history section by section, and returns all facts."""
    facts: list[Fact] = []
    after: int | None = None
    while True:
        history = await database.store.read_history(session_id, scope, view, after)
        assert history is not None
        facts += after_position(facts_of(history), None)
        after = history.resume_after
        if after is None:
            return facts


# The expected facts, found by plain loops over all rows.


class Expected(NamedTuple):
    facts: list[tuple[str, datetime, Any]]
    """The name of each fact, its instant, and those of its fields that `summary` selects."""
    windows: dict[int, int]
    """The usage of each window, in millionths."""


def expected_facts(tables: Tables, session_id: str, now: datetime) -> Expected:
    row = next(row for row in tables["sessions"] if row["session_id"] == session_id)
    is_over = row["closed_at"] is not None or row["deadline_at"] <= now
    ended_at = row["closed_at"] or row["deadline_at"]
    facts = [*_of_session(row), *_of_end(tables, row, is_over=is_over)]
    windows = {}
    for window in tables["usage_windows"]:
        used = _usage(tables, row, ended_at, window)
        if used is not None:
            windows[window["window_id"]] = used
            facts += _deliveries(tables, window["window_id"], session_id)
    cut_at = max(window["ended_at"] for window in tables["usage_windows"])
    to_at = ended_at if is_over else now
    if max(cut_at, row["started_at"]) < to_at:
        facts.append(("notBilledYet", to_at, max(cut_at, row["started_at"])))
    return Expected(facts, windows)


def _of_session(row: Mapping[str, Any]) -> list[tuple[str, datetime, Any]]:
    facts: list[tuple[str, datetime, Any]] = [("opened", row["started_at"], row["user_object_id"])]
    if row["previous_session_id"] is not None:
        facts.append(("upgradedFrom", row["started_at"], row["previous_session_id"]))
    if row["last_heartbeat_at"] > row["started_at"]:
        facts.append(("keptAliveUntil", row["last_heartbeat_at"], None))
    last_activity_at = row["last_activity_at"] or row["started_at"]
    if last_activity_at > row["started_at"]:
        facts.append(("lastActivity", last_activity_at, None))
    if row["stream_chunks"] is not None:
        facts.append(("streamed", max(last_activity_at, row["last_heartbeat_at"]), row["stream_chunks"]))
    return facts


def _of_end(tables: Tables, row: Mapping[str, Any], *, is_over: bool) -> list[tuple[str, datetime, Any]]:
    facts: list[tuple[str, datetime, Any]] = []
    session_id, ended_at = row["session_id"], row["closed_at"] or row["deadline_at"]
    reason = row["close_reason"] or row["lapse_reason"]
    if is_over:
        entry = next((each for each in tables["audit_log"] if each["target"] == session_id), None)
        by = None if entry is None else (entry["subject"], entry["name"], entry["request_id"])
        facts.append(("ended", ended_at, (reason, row["closed_at"] is not None, by)))
    else:
        facts.append(("deadline", row["deadline_at"], row["lapse_reason"]))
    for other in tables["sessions"]:
        if other["previous_session_id"] == session_id:
            facts.append(("upgradedTo", ended_at, other["session_id"]))
        same_capacity = other["capacity_id"] == row["capacity_id"]
        if reason == "EVICTED" and same_capacity and other["started_at"] == ended_at:
            facts.append(("evictedFor", ended_at, other["session_id"]))
    return facts


def _usage(tables: Tables, row: Mapping[str, Any], ended_at: datetime, window: Mapping[str, Any]) -> int | None:
    from_at, to_at = max(row["started_at"], window["started_at"]), min(ended_at, window["ended_at"])
    if from_at >= to_at:
        return None
    era = next(era for era in tables["usage_eras"] if era["era"] == window["era"])
    counts_from = max(row["started_at"], era["started_at"])
    factor = era[f"factor_{row['kind']}"]
    return usage_between((from_at - counts_from) // MICROSECOND, (to_at - counts_from) // MICROSECOND, factor)


NAMES = {
    "delivered": "delivered",
    "failed": "deliveryFailed",
    "unknown": "deliveryUnknown",
    "abandoned": "deliveryAbandoned",
    None: "delivering",
}


def _deliveries(tables: Tables, window_id: int, session_id: str) -> list[tuple[str, datetime, Any]]:
    facts: list[tuple[str, datetime, Any]] = []
    for chunk in tables["usage_chunks"]:
        if chunk["window_id"] != window_id or not chunk["first_session_id"] <= session_id <= chunk["last_session_id"]:
            continue
        for attempt in tables["submission_attempts"]:
            if attempt["submission_id"] == chunk["submission_id"]:
                at = attempt["ended_at"] or attempt["started_at"]
                detail = (window_id, attempt["number"], attempt["status"], attempt["error"])
                facts.append((NAMES[attempt["outcome"]], at, detail))
        for submission in tables["submissions"]:
            if submission["submission_id"] == chunk["submission_id"]:
                detail = (window_id, submission["attempts"], submission["last_error"])
                if submission["state"] == "failed":
                    facts.append(("deliveryGivenUp", submission["ended_at"], detail))
                elif submission["next_attempt_at"] is not None:
                    facts.append(("deliveryWaits", submission["next_attempt_at"], detail))
    return facts


def summary(fact: Fact) -> tuple[str, datetime, Any]:
    """Returns the name, the instant and the most important fields of the fact, in the form of `Expected.facts`."""
    by = None if fact.subject is None else (fact.subject, fact.name, fact.request_id)
    details: dict[str, Any] = {
        "opened": fact.user_object_id,
        "upgradedFrom": fact.previous_session_id,
        "streamed": fact.stream and fact.stream.chunks,
        "ended": (fact.close_reason, fact.recorded, by),
        "deadline": fact.close_reason,
        "upgradedTo": fact.next_session_id,
        "evictedFor": (fact.session_ids or [None])[0],
        "notBilledYet": fact.from_at,
        **dict.fromkeys(NAMES.values(), (fact.window_id, fact.attempt, fact.status, fact.error)),
        **dict.fromkeys(("deliveryGivenUp", "deliveryWaits"), (fact.window_id, fact.attempts, fact.error)),
    }
    return fact.fact.value, fact.at, details.get(fact.fact.value)
