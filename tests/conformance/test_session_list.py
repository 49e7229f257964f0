"""Lists return exactly the sessions that match, whichever indexes they read and however early a page ends."""

import itertools
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tenure.domain.deadlines import as_recorded
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Position, Session, SessionFilter
from tenure.store.reads import session_list
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
    """A session that has closed, has lapsed or is live. Many have the same start."""
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
    """Returns the sessions as they are listed, newest start first."""
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
    """The ids of all pages, as a client reads them that follows the cursor until there is none."""
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
    """Each filter, each pair of filters, and some of three."""
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
    # What is read counts here, not how soon: on a busy machine, a first read may take over a second.
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
    """The tenant's sessions on the capacity are its oldest, and other tenants have newer ones on that capacity."""
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


async def test_list_sessions__pages_past_more_equal_starts_than_scan_limit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many sessions have the same start after the clock was stepped back."""
    monkeypatch.setattr(session_list, "SCAN_MAX", 3)
    new = [session_between(NOON - 5 * SECONDS, NOON + SECONDS, closed=False, state="created") for _ in range(12)]
    last = session_between(NOON - 9 * SECONDS, NOON + SECONDS, closed=False, state="active")
    await insert_sessions(database, [*new, last])
    assert await pages(database, {"state": "active"}) == [last.session_id]
    assert sorted(await pages(database, {"state": "created"})) == sorted(session.session_id for session in new)
