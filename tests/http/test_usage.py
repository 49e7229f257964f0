"""`GET /usage`: exact sums over a span, filters, groups and pages."""

import base64
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tenure.config.settings import UsageConfig
from tenure.domain.sessions import Session
from tenure.domain.usage import Mark, MarkState
from tests.conftest import ENGINES
from tests.http.client import Client, Json
from tests.http.conftest import metered_on, new_postgresql, new_sqlite
from tests.http.local import LocalService
from tests.http.test_leases import FORGED
from tests.support.databases import Database, PostgresServer
from tests.support.open_requests import NOON, some_id
from tests.support.usage import chunk_all, cut, insert_sessions, install, minute, session_between, windows

MILLION = 1_000_000
PERIOD = 30 * 86_400 * MILLION
MICROSECOND = timedelta(microseconds=1)
TENANTS, CAPACITIES, USERS = ([f"0190b0a0-0000-7000-8000-0000000000{of}{each}" for each in "12"] for of in "abc")
KEYS = {
    "tenant": ("tenantObjectId", "tenant_object_id"),
    "capacity": ("capacityId", "capacity_id"),
    "user": ("userObjectId", "user_object_id"),
    "kind": ("sessionKind", "kind"),
    "session": ("sessionId", "session_id"),
}
LATER = minute(10)
"""The time on the database clock during most requests."""


def session(number: int, begins: float, ends: float, tenant: int, capacity: int, user: int, kind: int) -> Session:
    """A session from `begins` to `ends`, in seconds after noon. `tenant`, `capacity` and `user` are indexes of TENANTS,
    CAPACITIES and USERS. A session that ends at LATER or afterwards is not closed.
    """
    return session_between(
        minute(0, begins),
        minute(0, ends),
        session_id=f"0190b0a0-0000-7000-8000-00000000000{number}",
        tenant_object_id=TENANTS[tenant],
        capacity_id=CAPACITIES[capacity],
        user_object_id=USERS[user],
        kind=kind,
        closed=ends < 600,
    )


SESSIONS = [
    session(1, 10, 130, tenant=0, capacity=0, user=0, kind=1),
    session(2, 30.25, 86_400, tenant=0, capacity=0, user=1, kind=3),
    session(3, 61, 62.500001, tenant=1, capacity=1, user=0, kind=2),
    session(4, 200, 321.000007, tenant=1, capacity=1, user=1, kind=3),
    session(5, 150, 170, tenant=1, capacity=0, user=0, kind=1),
]


def expected(of: Session, from_at: datetime, to_at: datetime) -> int:
    """The usage of a session in the span, in millionths, if the span lies in one era.

    The usage is the difference of two running totals, at the end and at the beginning of the span. Each total is
    rounded half to even.
    """
    ended_at = of.closed_at or of.deadline_at
    return _rounded(of, min(max(to_at, of.started_at), ended_at)) - _rounded(
        of, min(max(from_at, of.started_at), ended_at)
    )


def _rounded(of: Session, until: datetime) -> int:
    return round(Fraction(of.kind * MILLION * ((until - of.started_at) // MICROSECOND), PERIOD))


def overlapping(found: Sequence[Session], from_at: datetime, to_at: datetime) -> Sequence[Session]:
    """The sessions that are live in a part of the span."""
    return [each for each in found if each.started_at < to_at and (each.closed_at or each.deadline_at) > from_at]


def sums(
    found: Sequence[Session], by: str | None = None, from_at: datetime = NOON, to_at: datetime = LATER
) -> Sequence[Mapping[str, Any]]:
    """The expected groups, ordered by the field that they are grouped by."""
    groups: dict[Any, list[Session]] = defaultdict(list)
    for each in overlapping(found, from_at, to_at):
        groups[None if by is None else getattr(each, KEYS[by][1])].append(each)
    return [
        {**({} if by is None else {KEYS[by][0]: key}), "usage": _total(of, from_at, to_at), "sessions": len(of)}
        for key, of in sorted(groups.items())
    ]


def _total(of: Sequence[Session], from_at: datetime, to_at: datetime) -> Decimal:
    return Decimal(sum(expected(each, from_at, to_at) for each in of)) / MILLION


def exact(response: httpx.Response) -> Json:
    """The body, with decimals instead of floats."""
    assert response.status_code == 200, response.text
    return msgspec.json.Decoder(float_hook=Decimal).decode(response.content)  # type: ignore[no-any-return]


async def get_usage(local: LocalService, **query: Any) -> Json:
    """Sends `GET /usage` with the parameters `query`, and returns the body. Pass `from` as `from_`, because `from` is a
    keyword of Python.
    """
    named = {name.rstrip("_"): each.isoformat() if isinstance(each, datetime) else each for name, each in query.items()}
    return exact(await local.http.get("/usage", params=named))


def text(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# An instance with SESSIONS, ten minutes after noon, before the first cut. On SQLite and on PostgreSQL, the tests that
# only read share one instance per engine.


@asynccontextmanager
async def _with_sessions(database: Database) -> AsyncIterator[LocalService]:
    async with metered_on(database) as service:
        await insert_sessions(database, SESSIONS)
        await database.clock.set(LATER)
        yield service


@pytest.fixture(scope="module")
async def shared_sqlite_usage(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LocalService]:
    folder = tmp_path_factory.mktemp("usage")
    async with new_sqlite(sqlite_template, folder) as database, _with_sessions(database) as service:
        yield service


@pytest.fixture(scope="module")
async def shared_postgresql_usage(postgres: PostgresServer, template: str) -> AsyncIterator[LocalService]:
    async with new_postgresql(postgres, template) as database, _with_sessions(database) as service:
        yield service


@pytest.fixture
async def sqlite_usage(shared_sqlite_usage: LocalService) -> LocalService:
    await shared_sqlite_usage.clock.set(LATER)
    return shared_sqlite_usage


@pytest.fixture
async def postgresql_usage(shared_postgresql_usage: LocalService) -> LocalService:
    await shared_postgresql_usage.clock.set(LATER)
    return shared_postgresql_usage


@pytest.fixture
async def mssql_usage(mssql_database: Database) -> AsyncIterator[LocalService]:
    async with _with_sessions(mssql_database) as service:
        yield service


@pytest.fixture(params=ENGINES)
def usage(request: pytest.FixtureRequest) -> LocalService:
    return request.getfixturevalue(f"{request.param}_usage")  # type: ignore[no-any-return]


@pytest.fixture
async def own_usage(database: Database) -> AsyncIterator[LocalService]:
    """A new instance and database, for tests that cut windows."""
    async with _with_sessions(database) as service:
        yield service


# The response.


async def test_response_matches_expected_json_exactly(usage: LocalService) -> None:
    response = await usage.http.get("/usage", params={"from": text(minute(1)), "groupBy": "tenant"})
    totals = [_total(of, minute(1), LATER) for of in (SESSIONS[:2], SESSIONS[2:])]
    assert response.text == (
        '{"from":"2041-03-01T12:01:00.000000Z","to":"2041-03-01T12:10:00.000000Z",'
        '"finalUntil":"2041-03-01T12:00:00.123456Z","groupBy":"tenant","groups":['
        f'{{"tenantObjectId":"{TENANTS[0]}","usage":{totals[0]},"sessions":2}},'
        f'{{"tenantObjectId":"{TENANTS[1]}","usage":{totals[1]},"sessions":3}}],"count":2,"nextCursor":null}}'
    )
    assert "link" not in response.headers


async def test_usage_without_group_by_returns_one_group(usage: LocalService) -> None:
    response = await get_usage(usage)
    assert (response["groupBy"], response["groups"], response["count"]) == (None, sums(SESSIONS), 1)
    assert list(response["groups"][0]) == ["usage", "sessions"]


async def test_no_usage_returns_zero_without_group_by_and_no_groups_with_group_by(metered: LocalService) -> None:
    response = await metered.http.get("/usage")
    assert '"groups":[{"usage":0,"sessions":0}],"count":1,' in response.text
    for by in KEYS:
        grouped = await get_usage(metered, groupBy=by)
        assert (grouped["groups"], grouped["count"], grouped["nextCursor"]) == ([], 0, None), by


async def test_groups_are_ordered_by_the_field_of_group_by(usage: LocalService) -> None:
    for by in KEYS:
        response = await get_usage(usage, groupBy=by)
        assert (response["groupBy"], response["groups"]) == (by, sums(SESSIONS, by))


AMOUNTS = {2: "0.000001", 26: "0.00001", 518_400: "0.2", 2_592_000: "1", 25_920_000: "10", 25_920_003: "10.000001"}
"""Usage of a basic session, by its duration in seconds."""


async def test_usage_is_exact_decimal_without_exponent(metered: LocalService) -> None:
    made = {seconds: session_between(minute(1), minute(1, seconds)) for seconds in AMOUNTS}
    await insert_sessions(metered.database, list(made.values()))
    await metered.clock.set(minute(2, max(AMOUNTS)))
    for seconds, amount in AMOUNTS.items():
        query = {"from": text(NOON), "tenant": made[seconds].tenant_object_id}
        response = await metered.http.get("/usage", params=query)
        assert re.findall(r'"usage":(.*?),', response.text) == [amount], seconds


async def test_usage_is_exact_above_two_to_the_53_millionths(database: Database) -> None:
    await database.clock.set(NOON)
    await install(database, NOON)
    await insert_sessions(
        database, [session_between(minute(1), minute(1) + timedelta(days=1800), closed=False) for _ in range(300)]
    )
    await database.clock.set(NOON + timedelta(days=3000))
    factors = {"1": Decimal("999999.999999"), "2": Decimal(1), "3": Decimal(1)}
    async with LocalService.on(database, usage=UsageConfig(factors=factors)).running() as local:
        response = await local.http.get("/usage", params={"from": text(NOON)})
    assert re.findall(r'"usage":(.*?),', response.text) == ["17999999999.982"]


# Filters.

FILTERS = {"tenant": TENANTS, "capacity": CAPACITIES, "user": USERS}


async def test_usage_includes_only_sessions_matching_all_filters(usage: LocalService) -> None:
    all_names = [names for count in (1, 2, 3) for names in combinations(FILTERS, count)]
    for names, number in product(all_names, (0, 1)):
        query = {name: FILTERS[name][number] for name in names}
        matching = [each for each in SESSIONS if all(getattr(each, KEYS[name][1]) == query[name] for name in names)]
        response = await get_usage(usage, groupBy="session", **query)
        assert response["groups"] == sums(matching, "session"), query


async def test_filter_ids_are_case_insensitive(usage: LocalService) -> None:
    response = await get_usage(usage, tenant=TENANTS[1].upper(), groupBy="session")
    assert response["groups"] == sums(SESSIONS[2:], "session")


async def test_filter_without_match_returns_no_usage(usage: LocalService) -> None:
    assert (await get_usage(usage, tenant=some_id()))["groups"] == [{"usage": 0, "sessions": 0}]
    assert (await get_usage(usage, tenant=some_id(), groupBy="kind"))["groups"] == []


# Spans.


async def test_default_span_is_last_thirty_days(usage: LocalService) -> None:
    response = await get_usage(usage)
    assert (response["from"], response["to"]) == (text(LATER - timedelta(days=30)), text(LATER))


async def test_default_from_is_thirty_days_before_to(usage: LocalService) -> None:
    response = await get_usage(usage, to=minute(2))
    assert (response["from"], response["to"]) == (text(minute(2) - timedelta(days=30)), text(minute(2)))
    assert response["groups"] == sums(SESSIONS, to_at=minute(2))


async def test_to_in_future_is_clamped_to_now(usage: LocalService) -> None:
    response = await get_usage(usage, from_=NOON, to=LATER + timedelta(days=900))
    assert (response["to"], response["groups"]) == (text(LATER), sums(SESSIONS))


async def test_span_in_future_returns_no_usage(usage: LocalService) -> None:
    response = await get_usage(usage, from_=LATER + timedelta(days=1), to=LATER + timedelta(days=2))
    assert response["groups"] == [{"usage": 0, "sessions": 0}]
    assert response["from"] == response["to"] == text(LATER + timedelta(days=1))


async def test_span_can_start_and_end_at_any_instant(usage: LocalService) -> None:
    for from_at, to_at in (
        (minute(0, 10), minute(0, 130)),
        (minute(0, 61.000001), minute(0, 61.000002)),
        (minute(0, 62.500001), minute(0, 150)),
        (minute(2), minute(3)),
        (minute(0, 130), minute(0, 150.000001)),
    ):
        response = await get_usage(usage, from_=from_at, to=to_at, groupBy="session")
        assert (response["from"], response["to"]) == (text(from_at), text(to_at))
        assert response["groups"] == sums(SESSIONS, "session", from_at, to_at), (from_at, to_at)


async def test_instant_with_any_offset_is_accepted(usage: LocalService) -> None:
    for hours in (14, 5.75, 0, -3.5, -12):
        zone = timezone(timedelta(hours=hours))
        response = await get_usage(usage, from_=minute(1).astimezone(zone), to=minute(3).astimezone(zone))
        assert (response["from"], response["to"]) == (text(minute(1)), text(minute(3))), hours
        assert response["groups"] == sums(SESSIONS, None, minute(1), minute(3)), hours


async def test_adjacent_spans_add_up_to_whole_span(usage: LocalService, seed: int) -> None:
    chance = random.Random(seed)
    ends = sorted({NOON, LATER, *(NOON + chance.randrange(600_000_000) * MICROSECOND for _ in range(5))})
    parts = [await get_usage(usage, from_=one, to=other) for one, other in pairwise(ends)]
    whole = await get_usage(usage, from_=NOON, to=LATER)
    assert sum(part["groups"][0]["usage"] for part in parts) == whole["groups"][0]["usage"], seed


OUTSIDE_CALENDAR = {
    "from=0001-01-01T00:00:00%2B01:00": "from",
    "from=0001-01-01T00:00:00.000000%2B00:01": "from",
    "to=9999-12-31T23:59:59.999999-00:01": "to",
    "to=9999-12-31T23:59:59-12:00": "to",
    "to=0001-01-01T00:00:00%2B14:00": "to",
    "to=0001-01-01T00:00:00Z": "to",
    "to=0001-01-30T23:59:59.999999Z": "to",
}
"""The invalid parameter, by query. In the last two queries, `to` is valid, but the default `from`, 30 days before `to`,
would be before the year 1."""


def test_instant_outside_calendar_returns_400(any_client: Client) -> None:
    for query, field in OUTSIDE_CALENDAR.items():
        assert invalid_fields(any_client.http.get(f"/usage?{query}")) == [field], query


def test_first_and_last_instants_of_calendar_are_accepted(client: Client) -> None:
    for query in (
        "from=0001-01-01T00:00:00Z",
        "from=0001-01-01T00:00:00-12:00",
        "to=9999-12-31T23:59:59.999999Z",
        "to=9999-12-31T23:59:59%2B14:00",
        "from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59.999999Z&groupBy=session",
        "from=0001-01-01T00:00:00Z&to=0001-01-01T00:00:00.000001Z",
        "to=0001-01-31T00:00:00Z",
        "from=9999-12-31T23:59:59Z",
    ):
        response = client.http.get(f"/usage?{query}")
        assert response.status_code == 200, (query, response.text)


# Rejected requests.


def invalid_fields(response: httpx.Response) -> list[str]:
    """The fields in `errors`."""
    assert response.status_code == 400, response.text
    return [error["field"] for error in response.json()["errors"]]


INVALID_INSTANTS = [
    "",
    "now",
    "2026-01-02",
    "2026-01-02T03:04:05",
    "2026-01-02T03:04:05.123456",
    "2026-13-02T03:04:05Z",
    "2026-02-30T03:04:05Z",
    "2026-01-02T24:04:05Z",
    "2026-01-02T03:04:05+25:00",
    "1700000000",
    "1700000000.5",
    "null",
    "0000-01-01T00:00:00Z",
    "10000-01-01T00:00:00Z",
    "-001-01-01T00:00:00Z",
    "2026-01-02T03:04:05Z ",
    "٢026-01-02T03:04:05Z",
    "9999-12-31T23:59:59.9999999Z",
]


def test_invalid_instant_returns_400(any_client: Client) -> None:
    for field, instant in product(("from", "to"), INVALID_INSTANTS):
        response = any_client.http.get("/usage", params={field: instant})
        assert invalid_fields(response) == [field], instant
        assert (
            response.json()["errors"][0]["message"] == "must be an instant with an offset, such as 2026-01-02T03:04:05Z"
        )


def test_span_that_is_empty_or_ends_before_its_start_returns_400(any_client: Client) -> None:
    for from_at, to_at in (
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.000001Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05+01:00", "2026-01-02T03:04:05+02:00"),
        ("2026-01-02T03:04:05+01:00", "2026-01-02T02:04:05Z"),
    ):
        response = any_client.http.get("/usage", params={"from": from_at, "to": to_at})
        assert (response.status_code, response.json()["errors"]) == (
            400,
            [{"field": "from", "message": "must be before to"}],
        ), (from_at, to_at)


INVALID_PARAMETERS = {
    "groupBy=": "groupBy",
    "groupBy=Tenant": "groupBy",
    "groupBy=day": "groupBy",
    "groupBy=tenantObjectId": "groupBy",
    "tenant=x": "tenant",
    "capacity=": "capacity",
    "user=0190b0a000007000800000000000000": "user",
    "limit=0": "limit",
    "limit=501": "limit",
    "limit=1e2": "limit",
    "kind=1": "kind",
    "groupby=tenant": "groupby",
    "from=2026-01-02T03:04:05Z&from=2026-01-02T03:04:05Z": "from",
}


def test_invalid_parameter_returns_400(any_client: Client) -> None:
    for query, field in INVALID_PARAMETERS.items():
        assert invalid_fields(any_client.http.get(f"/usage?{query}")) == [field], query


def test_error_lists_every_invalid_parameter(any_client: Client) -> None:
    response = any_client.http.get("/usage?from=x&to=y&tenant=z&groupBy=w&limit=0")
    assert sorted(invalid_fields(response)) == ["from", "groupBy", "limit", "tenant", "to"]


# Pages.


async def test_pages_contain_all_groups_once(usage: LocalService) -> None:
    for by, limit in product(KEYS, (1, 2, 500)):
        groups: list[Json] = []
        query: Json = {"groupBy": by, "limit": limit}
        while True:
            page = await get_usage(usage, **query)
            assert page["count"] == len(page["groups"]) <= limit, (by, limit)
            groups += page["groups"]
            if page["nextCursor"] is None:
                break
            query["cursor"] = page["nextCursor"]
        assert groups == sums(SESSIONS, by), (by, limit)


async def test_every_page_uses_span_of_first_page(usage: LocalService) -> None:
    first = await get_usage(usage, groupBy="session", limit=2)
    await usage.clock.set(LATER + timedelta(days=40))
    second = await get_usage(usage, groupBy="session", limit=2, cursor=first["nextCursor"])
    assert (second["from"], second["to"]) == (first["from"], first["to"])
    assert first["groups"] + second["groups"] == sums(SESSIONS, "session")[:4]


async def test_next_link_keeps_span_and_filters(usage: LocalService) -> None:
    query = {"groupBy": "session", "limit": 2, "tenant": TENANTS[1], "from": "2041-03-01T13:01:00+01:00"}
    response = await usage.http.get("/usage", params=query)
    await usage.clock.set(LATER + timedelta(days=1))
    following = await usage.http.get(response.links["next"]["url"])
    pages = [exact(response), exact(following)]
    assert [page["groups"] for page in pages] == [
        sums(SESSIONS[2:], "session", minute(1))[:2],
        sums(SESSIONS[2:], "session", minute(1))[2:],
    ]
    assert [(page["from"], page["to"]) for page in pages] == [(text(minute(1)), text(LATER))] * 2
    assert "next" not in following.links


async def test_single_group_has_no_next_page(usage: LocalService) -> None:
    response = await usage.http.get("/usage", params={"limit": 1})
    assert (exact(response)["nextCursor"], "link" in response.headers) == (None, False)


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


FORGED_FOR_TENANT = [
    *FORGED,
    cursor(f"1 2 {TENANTS[0]}"),
    cursor(f"user 1 2 {TENANTS[0]}"),
    cursor("tenant 1 2"),
    cursor("tenant 1 2 "),
    cursor(f"tenant 1 2 {TENANTS[0].upper()}"),
    cursor(f"tenant 1 2 {TENANTS[0]} "),
    cursor(f"tenant 1 2 {TENANTS[0]} x"),
    cursor(f"tenant 1  {TENANTS[0]}"),
    cursor(f"tenant x 2 {TENANTS[0]}"),
    cursor(f"tenant 1.5 2 {TENANTS[0]}"),
    cursor(f"tenant 1 99999999999999999999 {TENANTS[0]}"),
    cursor(f"tenant -99999999999999999999 1 {TENANTS[0]}"),
    cursor(f"tenant 1 253402300800000000 {TENANTS[0]}"),
    cursor(f"tenant -62135596800000001 1 {TENANTS[0]}"),
    cursor("tenant 1 2 3"),
    cursor(f"tenant 1 {'9' * 300} {TENANTS[0]}"),
]


def test_forged_cursor_returns_400(client: Client) -> None:
    for forged in FORGED_FOR_TENANT:
        response = client.http.get("/usage", params={"cursor": forged, "groupBy": "tenant"})
        assert invalid_fields(response) == ["cursor"], forged
    for key in (TENANTS[0], "0", "4", "01", "1.0", ""):
        response = client.http.get("/usage", params={"cursor": cursor(f"kind 1 2 {key}"), "groupBy": "kind"})
        assert invalid_fields(response) == ["cursor"], f"{key} by kind"
    for key in (TENANTS[0], "1"):
        response = client.http.get("/usage", params={"cursor": cursor(f"None 1 2 {key}")})
        assert invalid_fields(response) == ["cursor"], f"{key} without groupBy"


def test_cursor_with_any_span_returns_200(client: Client) -> None:
    for ends in ("-62135596800000000 253402300799999999", "5 5", "9 3", "0 1"):
        query = {"cursor": cursor(f"tenant {ends} {TENANTS[0]}"), "groupBy": "tenant"}
        response = client.http.get("/usage", params=query)
        assert response.status_code == 200, (ends, response.text)


# Usage and windows.


async def test_usage_between_two_cuts_equals_sum_of_windows(own_usage: LocalService, database: Database) -> None:
    for number in range(1, 7):
        await cut(database, minute(number))
        await chunk_all(database)
    await database.clock.set(LATER)
    billed = await windows(database)
    for one, other in combinations([each.started_at for each in billed] + [billed[-1].ended_at], 2):
        response = await get_usage(own_usage, from_=one, to=other)
        inside = [each for each in billed if one <= each.started_at < other]
        total = Decimal(sum(each.usage_millionths or 0 for each in inside)) / MILLION
        assert response["groups"][0]["usage"] == total, (one, other)
        assert response["groups"] == sums(SESSIONS, None, one, other)
        assert response["finalUntil"] == text(minute(6))


async def test_usage_does_not_change_when_cut_makes_it_final(own_usage: LocalService, database: Database) -> None:
    before = await get_usage(own_usage, from_=NOON, to=minute(3), groupBy="session")
    await cut(database, minute(5))
    after = await get_usage(own_usage, from_=NOON, to=minute(3), groupBy="session")
    assert (before["finalUntil"], after["finalUntil"]) == (text(NOON), text(minute(5)))
    assert after["groups"] == before["groups"]


async def test_quick_sum_begins_and_ends_at_full_hours_if_many_sessions_are_live(
    own_usage: LocalService, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = [session_between(minute(1), minute(999), closed=False, kind=2) for _ in range(2)]
    await insert_sessions(database, live)
    await cut(database, minute(200))
    (await own_usage.http.post("/jobs/mark-usage/run")).raise_for_status()
    while Mark(minute(180), 1, MarkState.COMPLETE) not in (await database.store.list_marks()).marks:
        pass
    monkeypatch.setattr("tenure.store.reads.usage_sums.EDGE_SESSIONS_MAX", 1)
    for quick, groups in product(("true", "false"), (None, "kind")):
        found = await get_usage(own_usage, from_=minute(7), quick=quick, **({"groupBy": groups} if groups else {}))
        begins, ends = (minute(60), minute(180)) if quick == "true" else (minute(7), minute(200))
        assert (found["from"], found["to"]) == (text(begins), text(ends)), (quick, groups)
        assert found["groups"] == sums([*SESSIONS, *live], groups, begins, ends), (quick, groups)
    first = await own_usage.http.get("/usage", params={"quick": "true", "groupBy": "capacity", "limit": "1"})
    assert "quick=true" in first.headers["link"]
    wrong = await own_usage.http.get("/usage", params={"quick": "yes"})
    assert [error["message"] for error in wrong.json()["errors"]] == ["must be true or false"]


# Prefix and version.

PATHS = ["/usage", "/usage/windows", "/usage/windows/1"]


async def test_routes_are_available_with_and_without_version(own_usage: LocalService, database: Database) -> None:
    await cut(database, minute(5))
    for path in PATHS:
        plain, versioned = [await own_usage.http.get(f"{version}{path}") for version in ("", "/v1")]
        assert (plain.status_code, plain.text) == (200, versioned.text), path


async def test_routes_and_next_links_are_available_only_below_prefix(database: Database) -> None:
    await database.clock.set(NOON)
    await install(database, NOON)
    await insert_sessions(database, SESSIONS)
    await cut(database, minute(5))
    await cut(database, minute(6))
    async with LocalService.on(database, prefix="/api/v3").running() as prefixed:
        for version, path in product(("", "/v1"), PATHS):
            assert (await prefixed.http.get(f"/api/v3{version}{path}")).status_code == 200, (version, path)
            assert (await prefixed.http.get(f"{version}{path}")).status_code == 404, (version, path)
        for path in ("/usage?groupBy=session", "/usage/windows?"):
            response = await prefixed.http.get(f"/api/v3{path}&limit=1")
            following = response.links["next"]["url"]
            assert following.startswith(f"/api/v3{path.partition('?')[0]}?")
            assert (await prefixed.http.get(following)).status_code == 200, following


def test_write_methods_on_usage_return_405(any_client: Client) -> None:
    for method, path in product(("POST", "PUT", "DELETE", "PATCH"), PATHS):
        assert any_client.http.request(method, path).status_code == 405, (method, path)
