"""Lists by start return exactly the sessions that match, whichever indexes they read and however early a page ends.
Counts, and lists by deadline, do so too, or report that they are not exact.
"""

import itertools
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tenure.domain.deadlines import as_recorded
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import CloseReason, LapsePosition, Position, Session, SessionFilter
from tenure.store.reads import session_lapses, session_list, session_matches
from tenure.store.retries import Retries
from tests.support.databases import Database
from tests.support.open_requests import NOON, some_id
from tests.support.session_calls import attach_one, update_one
from tests.support.sessions import open_new_session, read_session
from tests.support.usage import insert_sessions, session_between

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
TENANTS, USERS, CAPACITIES = ([some_id() for _ in range(count)] for count in (2, 9, 3))
FIELDS = {
    "tenant": ("tenant_object_id", TENANTS[:1]),
    "user": ("user_object_id", USERS[:1]),
    "capacity": ("capacity_id", CAPACITIES[:1]),
    "kind": ("kind", [3]),
    "state": ("state", ["created", "active", "closing", "closed"]),
    "active": ("is_active", [True, False]),
    "close_reason": ("close_reason", ["EVICTED", "LEASE_EXPIRED"]),
}
PATIENT_SECONDS = 30.0
LIMIT = 7


def sample(chance: random.Random, user: str, capacity: str, *, closed: bool) -> Session:
    """A session that is closed, has lapsed or is live. Many samples have the same start."""
    started_at = NOON - chance.randint(10, 14) * SECONDS
    given: dict[str, Any] = {
        "tenant_object_id": chance.choice(TENANTS),
        "user_object_id": user,
        "capacity_id": capacity,
        "kind": chance.choice([1, 1, 2, 3]),
    }
    if closed:
        reason = chance.choice(["EVICTED", "LEASE_EXPIRED", "TERMINATED"])
        return session_between(started_at, NOON - SECONDS, close_reason=reason, **given)
    given |= {
        "state": chance.choice(["created", "active"]),
        "lapse_reason": chance.choice(["LEASE_EXPIRED", "EXPIRED"]),
    }
    return session_between(started_at, NOON + chance.choice([-1, 0, 1]) * SECONDS, closed=False, **given)


async def fill(database: Database) -> Sequence[Session]:
    """Inserts sessions, and returns them as a list shows them, newest start first."""
    chance = random.Random(18)
    keys = itertools.product(USERS, CAPACITIES)
    new = [sample(chance, *key, closed=False) for key in keys]
    new += [sample(chance, chance.choice(USERS), chance.choice(CAPACITIES), closed=True) for _ in range(40)]
    await insert_sessions(database, new)
    found = [as_recorded(session, NOON) for session in new]
    for _ in range(2):
        closing = await open_new_session(database, tenant_object_id=TENANTS[0])
        await attach_one(database.store, closing.session_id)
        await update_one(database.store, closing.session_id, end=CloseReason.FAILED.value, finished=False)
        found.append(await read_session(database, closing.session_id))
    return sorted(found, key=lambda session: (session.started_at, session.session_id), reverse=True)


async def pages(database: Database, criteria: dict[str, Any]) -> Sequence[str]:
    """Follows the cursor to the last page, as a client does, and returns the ids of all pages."""
    seen: list[str] = []
    after: Position | None = None
    while True:
        page = await database.store.list_sessions(SessionFilter(**criteria), after, LIMIT + 1, EVERYTHING)
        shown = page.sessions[:LIMIT]
        seen += [session.session_id for session in shown]
        if len(page.sessions) > LIMIT:
            after = Position(shown[-1].started_at, shown[-1].session_id)
        elif page.resume_after is not None:
            assert after is None or page.resume_after != after
            after = page.resume_after
        else:
            return seen


def filters() -> Sequence[dict[str, Any]]:
    """No filter, each filter, each pair of filters, and ten combinations of three filters."""
    chosen = [
        dict(zip(names, values, strict=True))
        for size in (0, 1, 2, 3)
        for names in itertools.combinations(FIELDS, size)
        for values in itertools.product(*(FIELDS[name][1] for name in names))
    ]
    few = [criteria for criteria in chosen if len(criteria) < 3]
    return [*few, *random.Random(18).sample(chosen[len(few) :], 10)]


@pytest.mark.parametrize("scan_max", [9, 10_000])
async def test_list_sessions__returns_all_matching_sessions_in_order(
    database: Database, monkeypatch: pytest.MonkeyPatch, scan_max: int
) -> None:
    # Gives each read 30 seconds, because on a busy machine the first read may take longer than the usual limit.
    monkeypatch.setattr(Retries.run, "__defaults__", (PATIENT_SECONDS,))
    listed = await fill(database)
    monkeypatch.setattr(session_list, "SCAN_MAX", scan_max)
    for criteria in filters():
        expected = [
            session.session_id
            for session in listed
            if all(getattr(session, FIELDS[name][0]) == value for name, value in criteria.items())
        ]
        assert await pages(database, criteria) == expected, criteria


async def test_list_sessions__ends_page_at_scan_limit_and_resumes_there(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matching sessions are the oldest ones of the tenant, and the oldest ones on the capacity. So, whichever index
    a read uses, it finds more than SCAN_MAX other sessions first.
    """
    monkeypatch.setattr(session_list, "SCAN_MAX", 5)
    tenant, capacity = some_id(), some_id()
    elsewhere = [closed_before(second, tenant_object_id=tenant) for second in range(2, 22)]
    of_others = [closed_before(second, capacity_id=capacity) for second in range(2, 22)]
    matching = [closed_before(second, tenant_object_id=tenant, capacity_id=capacity) for second in range(30, 33)]
    await insert_sessions(database, [*elsewhere, *of_others, *matching])
    page = await database.store.list_sessions(SessionFilter(tenant=tenant, capacity=capacity), None, LIMIT, EVERYTHING)
    assert (page.sessions, page.resume_after is None) == ([], False)
    found = await pages(database, {"tenant": tenant, "capacity": capacity})
    assert found == [session.session_id for session in matching]


def closed_before(seconds: int, **given: str) -> Session:
    return session_between(NOON - seconds * SECONDS, NOON - SECONDS, **given)


async def test_list_sessions__returns_all_sessions_if_more_than_scan_limit_start_together(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the clock was stepped back behind the last cut, all new sessions start at the cut."""
    monkeypatch.setattr(session_list, "SCAN_MAX", 3)
    new = [session_between(NOON - 5 * SECONDS, NOON + SECONDS, closed=False, state="created") for _ in range(12)]
    last = session_between(NOON - 9 * SECONDS, NOON + SECONDS, closed=False, state="active")
    await insert_sessions(database, [*new, last])
    assert await pages(database, {"state": "active"}) == [last.session_id]
    assert sorted(await pages(database, {"state": "created"})) == sorted(session.session_id for session in new)


# Counts.


def matching(listed: Sequence[Session], criteria: dict[str, Any]) -> Sequence[Session]:
    return [
        session
        for session in listed
        if all(getattr(session, FIELDS[name][0]) == value for name, value in criteria.items())
    ]


@pytest.mark.parametrize("count_max", [5, 10_000])
async def test_count_matches__counts_listed_sessions_and_reports_if_it_stopped_early(
    database: Database, monkeypatch: pytest.MonkeyPatch, count_max: int
) -> None:
    monkeypatch.setattr(Retries.run, "__defaults__", (PATIENT_SECONDS,))
    listed = await fill(database)
    monkeypatch.setattr(session_matches, "COUNT_MAX", count_max)
    exact = 0
    for criteria in filters():
        expected = len(matching(listed, criteria))
        found = await database.store.count_matches(SessionFilter(**criteria), EVERYTHING)
        assert found.count == expected if found.exact else found.count <= expected, criteria
        assert found.exact or count_max == 5, criteria
        exact += found.exact
    assert exact > 0


async def test_count_matches__counts_within_the_scope_only(database: Database) -> None:
    listed = await fill(database)
    for scope in (Scope(TENANTS[0]), Scope(TENANTS[0], USERS[0]), Scope(some_id())):
        admitted = [session for session in listed if scope.admits(session.tenant_object_id, session.user_object_id)]
        found = await database.store.count_matches(SessionFilter(), scope)
        assert (found.count, found.exact) == (len(admitted), True)
    foreign = await database.store.count_matches(SessionFilter(tenant=TENANTS[1]), Scope(TENANTS[0]))
    assert (foreign.count, foreign.exact) == (0, True)


# The order of lapses.


async def lapse_pages(
    database: Database, criteria: dict[str, Any], scope: Scope = EVERYTHING
) -> tuple[Sequence[str], bool]:
    """The ids of all pages, and whether all pages are exact."""
    seen: list[str] = []
    after: LapsePosition | None = None
    exact = True
    while True:
        page = await database.store.list_next_lapses(SessionFilter(**criteria), after, LIMIT + 1, scope)
        shown, exact = page.sessions[:LIMIT], exact and page.exact
        assert all(session.closed_at is None for session in shown)
        seen += [session.session_id for session in shown]
        if len(page.sessions) <= LIMIT:
            return seen, exact
        after = LapsePosition(shown[-1].deadline_at, shown[-1].session_id)


def by_deadline(listed: Sequence[Session], criteria: dict[str, Any]) -> Sequence[str]:
    live = [session for session in matching(listed, criteria) if session.closed_at is None]
    return [each.session_id for each in sorted(live, key=lambda each: (each.deadline_at, each.session_id))]


async def fill_lapses(database: Database) -> Sequence[Session]:
    """Inserts sessions whose order by deadline differs from their order by start, and returns them. In about half of
    the rows that are not closed, `check_at` is before the deadline.
    """
    chance = random.Random(7)
    new = [
        session_between(
            NOON - chance.randint(10, 14) * SECONDS,
            NOON + chance.randint(-3, 60) * SECONDS,
            closed=False,
            tenant_object_id=chance.choice(TENANTS),
            user_object_id=user,
            capacity_id=capacity,
            kind=chance.choice([1, 2, 3]),
            state=chance.choice(["created", "active"]),
        )
        for user, capacity in itertools.product([*USERS, *(some_id() for _ in range(6))], CAPACITIES)
    ]
    closed = [sample(chance, chance.choice(USERS), chance.choice(CAPACITIES), closed=True) for _ in range(9)]
    await insert_sessions(database, [*new, *closed])
    renewed = [session for session in new if chance.random() < 0.5]
    for session in renewed:
        await database.execute(f"UPDATE sessions SET check_at = started_at WHERE session_id = '{session.session_id}'")
    return [as_recorded(session, NOON) for session in (*new, *closed)]


@pytest.mark.parametrize("scan_max", [20, 10_000])
async def test_list_next_lapses__returns_live_sessions_by_deadline(
    database: Database, monkeypatch: pytest.MonkeyPatch, scan_max: int
) -> None:
    monkeypatch.setattr(Retries.run, "__defaults__", (PATIENT_SECONDS,))
    listed = await fill_lapses(database)
    monkeypatch.setattr(session_lapses, "LAPSE_SCAN_MAX", scan_max)
    monkeypatch.setattr(session_lapses, "LAPSE_LOOK_MAX", 10)
    inexact = 0
    for criteria in filters():
        expected = by_deadline(listed, criteria)
        found, exact = await lapse_pages(database, criteria)
        if exact:
            assert found == expected, criteria
        else:
            inexact += 1
            assert set(found) <= set(expected), criteria
    assert (inexact > 0) == (scan_max == 20)
    scope = Scope(TENANTS[0], USERS[0])
    own = [session for session in listed if scope.admits(session.tenant_object_id, session.user_object_id)]
    assert await lapse_pages(database, {}, scope) == (by_deadline(own, {}), True)
    assert await lapse_pages(database, {"tenant": TENANTS[1]}, scope) == ([], True)


async def test_list_next_lapses__is_exact_if_no_unread_session_can_lapse_earlier(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store reads five sessions first, and ten if five are too few, in the order of `check_at`. All other
    sessions have a later `check_at`, and no session lapses before its `check_at`.
    """
    new = [
        session_between(NOON - SECONDS, NOON + second * SECONDS, closed=False, state="created")
        for second in range(1, 40)
    ]
    await insert_sessions(database, new)
    monkeypatch.setattr(session_lapses, "LAPSE_LOOK_MAX", 5)
    monkeypatch.setattr(session_lapses, "LAPSE_SCAN_MAX", 10)
    for limit, exact in ((4, True), (5, True), (10, True), (11, False)):
        page = await database.store.list_next_lapses(SessionFilter(), None, limit, EVERYTHING)
        assert [each.session_id for each in page.sessions] == [each.session_id for each in new[: min(limit, 10)]]
        assert page.exact is exact, limit
