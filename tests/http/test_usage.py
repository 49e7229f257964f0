"""`GET /usage`: sums over any span, exact, by any key, and page by page of one span."""

import base64
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import httpx
import msgspec
import pytest

from tenure.config.settings import UsageConfig
from tenure.model.sessions import Session
from tests.http.client import Client, Json
from tests.http.local import LocalService
from tests.http.test_leases import FORGED
from tests.support.databases import Database
from tests.support.usage import chunk_all, cut, install, lived, minute, put_sessions, windows
from tests.support.wishes import NOON, some_id

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
"""When most tests ask."""


def session(number: int, begins: float, ends: float, tenant: int, capacity: int, user: int, kind: int) -> Session:
    """From so many seconds after noon to so many."""
    return lived(
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
    """In millionths, of an installation that knows one era: by fractions, which `round` rounds half even."""
    ended_at = of.closed_at or of.deadline_at
    return _rounded(of, min(max(to_at, of.started_at), ended_at)) - _rounded(
        of, min(max(from_at, of.started_at), ended_at)
    )


def _rounded(of: Session, until: datetime) -> int:
    return round(Fraction(of.kind * MILLION * ((until - of.started_at) // MICROSECOND), PERIOD))


def living(found: Sequence[Session], from_at: datetime, to_at: datetime) -> Sequence[Session]:
    return [each for each in found if each.started_at < to_at and (each.closed_at or each.deadline_at) > from_at]


def sums(
    found: Sequence[Session], by: str | None = None, from_at: datetime = NOON, to_at: datetime = LATER
) -> Sequence[Mapping[str, Any]]:
    """The groups of an answer, in the order of their keys."""
    groups: dict[Any, list[Session]] = defaultdict(list)
    for each in living(found, from_at, to_at):
        groups[None if by is None else getattr(each, KEYS[by][1])].append(each)
    return [
        {**({} if by is None else {KEYS[by][0]: key}), "usage": _total(of, from_at, to_at), "sessions": len(of)}
        for key, of in sorted(groups.items())
    ]


def _total(of: Sequence[Session], from_at: datetime, to_at: datetime) -> Decimal:
    return Decimal(sum(expected(each, from_at, to_at) for each in of)) / MILLION


def exact(answer: httpx.Response) -> Json:
    """With decimals as they stand there."""
    assert answer.status_code == 200, answer.text
    return msgspec.json.Decoder(float_hook=Decimal).decode(answer.content)  # type: ignore[no-any-return]


async def ask(local: LocalService, **query: Any) -> Json:
    """`from` is spelled `from_`."""
    named = {name.rstrip("_"): each.isoformat() if isinstance(each, datetime) else each for name, each in query.items()}
    return exact(await local.http.get("/usage", params=named))


def text(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture
async def asked(metered: LocalService, database: Database) -> LocalService:
    """Ten minutes after noon, in which some sessions lived; nothing is cut yet."""
    await put_sessions(database, SESSIONS)
    await database.clock.set(LATER)
    return metered


# The answer.


async def test_an_answer_to_the_letter(asked: LocalService) -> None:
    answer = await asked.http.get("/usage", params={"from": text(minute(1)), "groupBy": "tenant"})
    usage = [_total(of, minute(1), LATER) for of in (SESSIONS[:2], SESSIONS[2:])]
    assert answer.text == (
        '{"from":"2041-03-01T12:01:00.000000Z","to":"2041-03-01T12:10:00.000000Z",'
        '"finalUntil":"2041-03-01T12:00:00.123456Z","groupBy":"tenant","groups":['
        f'{{"tenantObjectId":"{TENANTS[0]}","usage":{usage[0]},"sessions":2}},'
        f'{{"tenantObjectId":"{TENANTS[1]}","usage":{usage[1]},"sessions":3}}],"count":2,"nextCursor":null}}'
    )
    assert "link" not in answer.headers


async def test_without_a_key_there_is_one_group(asked: LocalService) -> None:
    answer = await ask(asked)
    assert (answer["groupBy"], answer["groups"], answer["count"]) == (None, sums(SESSIONS), 1)
    assert list(answer["groups"][0]) == ["usage", "sessions"]


async def test_nothing_used_is_one_group_of_nothing(metered: LocalService) -> None:
    answer = await metered.http.get("/usage")
    assert '"groups":[{"usage":0,"sessions":0}],"count":1,' in answer.text


@pytest.mark.parametrize("by", KEYS)
async def test_nothing_used_has_no_groups_by_a_key(metered: LocalService, by: str) -> None:
    answer = await ask(metered, groupBy=by)
    assert (answer["groups"], answer["count"], answer["nextCursor"]) == ([], 0, None)


@pytest.mark.parametrize("by", KEYS)
async def test_groups_by_any_key_in_its_order(asked: LocalService, by: str) -> None:
    answer = await ask(asked, groupBy=by)
    assert (answer["groupBy"], answer["groups"]) == (by, sums(SESSIONS, by))


AMOUNTS = {2: "0.000001", 26: "0.00001", 518_400: "0.2", 2_592_000: "1", 25_920_000: "10", 25_920_003: "10.000001"}
"""By the seconds that a basic session lives for it."""


@pytest.mark.parametrize("seconds", AMOUNTS)
async def test_usage_is_an_exact_number_without_exponent(
    metered: LocalService, database: Database, seconds: int
) -> None:
    await put_sessions(database, [lived(minute(1), minute(1, seconds))])
    await database.clock.set(minute(2, seconds))
    answer = await metered.http.get("/usage", params={"from": text(NOON)})
    assert re.findall(r'"usage":(.*?),', answer.text) == [AMOUNTS[seconds]]


async def test_many_digits_stay_as_they_are(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a binary float has."""
    await database.clock.set(NOON)
    await install(database, NOON)
    await put_sessions(database, [lived(minute(1), minute(1) + timedelta(days=1800), closed=False) for _ in range(300)])
    await database.clock.set(NOON + timedelta(days=3000))
    factors = {"1": Decimal("999999.999999"), "2": Decimal(1), "3": Decimal(1)}
    async with LocalService.on(database, monkeypatch, usage=UsageConfig(factors=factors)).running() as local:
        answer = await local.http.get("/usage", params={"from": text(NOON)})
    assert re.findall(r'"usage":(.*?),', answer.text) == ["17999999999.982"]


# Filters.

FILTERS = {"tenant": TENANTS, "capacity": CAPACITIES, "user": USERS}


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_counts_only_what_matches_all_filters(asked: LocalService, count: int) -> None:
    for names in combinations(FILTERS, count):
        for number in (0, 1):
            query = {name: FILTERS[name][number] for name in names}
            matching = [each for each in SESSIONS if all(getattr(each, KEYS[name][1]) == query[name] for name in names)]
            answer = await ask(asked, groupBy="session", **query)
            assert answer["groups"] == sums(matching, "session"), query


async def test_a_filter_may_be_in_upper_case(asked: LocalService) -> None:
    answer = await ask(asked, tenant=TENANTS[1].upper(), groupBy="session")
    assert answer["groups"] == sums(SESSIONS[2:], "session")


@pytest.mark.parametrize("by", [None, "kind"])
async def test_a_filter_that_matches_nothing_finds_nothing(asked: LocalService, by: str | None) -> None:
    answer = await ask(asked, tenant=some_id(), **({} if by is None else {"groupBy": by}))
    assert answer["groups"] == ([{"usage": 0, "sessions": 0}] if by is None else [])


# Spans.


async def test_without_a_span_it_is_the_last_thirty_days(asked: LocalService) -> None:
    answer = await ask(asked)
    assert (answer["from"], answer["to"]) == (text(LATER - timedelta(days=30)), text(LATER))


async def test_without_a_beginning_it_is_thirty_days_before_the_end(asked: LocalService) -> None:
    answer = await ask(asked, to=minute(2))
    assert (answer["from"], answer["to"]) == (text(minute(2) - timedelta(days=30)), text(minute(2)))
    assert answer["groups"] == sums(SESSIONS, to_at=minute(2))


async def test_an_end_in_the_future_means_now(asked: LocalService) -> None:
    answer = await ask(asked, from_=NOON, to=LATER + timedelta(days=900))
    assert (answer["to"], answer["groups"]) == (text(LATER), sums(SESSIONS))


async def test_what_lies_in_the_future_is_nothing(asked: LocalService) -> None:
    answer = await ask(asked, from_=LATER + timedelta(days=1), to=LATER + timedelta(days=2))
    assert answer["groups"] == [{"usage": 0, "sessions": 0}]
    assert answer["from"] == answer["to"] == text(LATER + timedelta(days=1))


@pytest.mark.parametrize(
    ("from_at", "to_at"),
    [
        (minute(0, 10), minute(0, 130)),
        (minute(0, 61.000001), minute(0, 61.000002)),
        (minute(0, 62.500001), minute(0, 150)),
        (minute(2), minute(3)),
        (minute(0, 130), minute(0, 150.000001)),
    ],
)
async def test_a_span_may_begin_and_end_anywhere(asked: LocalService, from_at: datetime, to_at: datetime) -> None:
    answer = await ask(asked, from_=from_at, to=to_at, groupBy="session")
    assert (answer["from"], answer["to"]) == (text(from_at), text(to_at))
    assert answer["groups"] == sums(SESSIONS, "session", from_at, to_at)


@pytest.mark.parametrize("hours", [14, 5.75, 0, -3.5, -12])
async def test_an_instant_may_have_any_offset(asked: LocalService, hours: float) -> None:
    zone = timezone(timedelta(hours=hours))
    answer = await ask(asked, from_=minute(1).astimezone(zone), to=minute(3).astimezone(zone))
    assert (answer["from"], answer["to"]) == (text(minute(1)), text(minute(3)))
    assert answer["groups"] == sums(SESSIONS, None, minute(1), minute(3))


async def test_spans_that_touch_add_up(asked: LocalService, seed: int) -> None:
    chance = random.Random(seed)
    ends = sorted({NOON, LATER, *(NOON + chance.randrange(600_000_000) * MICROSECOND for _ in range(5))})
    parts = [await ask(asked, from_=one, to=other) for one, other in pairwise(ends)]
    whole = await ask(asked, from_=NOON, to=LATER)
    assert sum(part["groups"][0]["usage"] for part in parts) == whole["groups"][0]["usage"], seed


CALENDAR = {
    "from=0001-01-01T00:00:00%2B01:00": "from",
    "from=0001-01-01T00:00:00.000000%2B00:01": "from",
    "to=9999-12-31T23:59:59.999999-00:01": "to",
    "to=9999-12-31T23:59:59-12:00": "to",
    "to=0001-01-01T00:00:00%2B14:00": "to",
    "to=0001-01-01T00:00:00Z": "to",
    "to=0001-01-30T23:59:59.999999Z": "to",
}


@pytest.mark.parametrize("query", CALENDAR)
def test_an_instant_beyond_the_calendar_is_refused(client: Client, query: str) -> None:
    assert refused(client.http.get(f"/usage?{query}")) == [CALENDAR[query]]


@pytest.mark.parametrize(
    "query",
    [
        "from=0001-01-01T00:00:00Z",
        "from=0001-01-01T00:00:00-12:00",
        "to=9999-12-31T23:59:59.999999Z",
        "to=9999-12-31T23:59:59%2B14:00",
        "from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59.999999Z&groupBy=session",
        "from=0001-01-01T00:00:00Z&to=0001-01-01T00:00:00.000001Z",
        "to=0001-01-31T00:00:00Z",
        "from=9999-12-31T23:59:59Z",
    ],
)
def test_the_ends_of_the_calendar_are_instants_like_any(client: Client, query: str) -> None:
    answer = client.http.get(f"/usage?{query}")
    assert answer.status_code == 200, answer.text


# Refusals.


def refused(answer: httpx.Response) -> list[str]:
    """The fields that it names."""
    assert answer.status_code == 400, answer.text
    return [error["field"] for error in answer.json()["errors"]]


WRONG_INSTANTS = [
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


@pytest.mark.parametrize("instant", WRONG_INSTANTS)
@pytest.mark.parametrize("field", ["from", "to"])
def test_what_is_no_instant_with_an_offset_is_refused(any_client: Client, field: str, instant: str) -> None:
    answer = any_client.http.get("/usage", params={field: instant})
    assert refused(answer) == [field]
    assert answer.json()["errors"][0]["message"] == "must be an instant with its offset, as 2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("from_at", "to_at"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.000001Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05+01:00", "2026-01-02T03:04:05+02:00"),
        ("2026-01-02T03:04:05+01:00", "2026-01-02T02:04:05Z"),
    ],
)
def test_a_span_that_ends_before_it_begins_is_refused(any_client: Client, from_at: str, to_at: str) -> None:
    answer = any_client.http.get("/usage", params={"from": from_at, "to": to_at})
    assert answer.json()["errors"] == [{"field": "from", "message": "must lie before to"}]
    assert answer.status_code == 400


WRONG = {
    "groupBy=": "groupBy",
    "groupBy=Tenant": "groupBy",
    "groupBy=day": "groupBy",
    "groupBy=tenantObjectId": "groupBy",
    "tenant=x": "tenant",
    "capacity=": "capacity",
    "user=0190b0a0000070008000000000000001": "user",
    "limit=0": "limit",
    "limit=501": "limit",
    "limit=1e2": "limit",
    "kind=1": "kind",
    "group_by=tenant": "group_by",
    "from=2026-01-02T03:04:05Z&from=2026-01-02T03:04:05Z": "from",
}


@pytest.mark.parametrize("query", WRONG)
def test_refuses_what_it_does_not_know(any_client: Client, query: str) -> None:
    assert refused(any_client.http.get(f"/usage?{query}")) == [WRONG[query]]


def test_every_wrong_parameter_is_named(any_client: Client) -> None:
    answer = any_client.http.get("/usage?from=x&to=y&tenant=z&groupBy=w&limit=0")
    assert sorted(refused(answer)) == ["from", "groupBy", "limit", "tenant", "to"]


# Pages.


@pytest.mark.parametrize("by", KEYS)
@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_pages_are_together_what_one_page_is(asked: LocalService, by: str, limit: int) -> None:
    groups: list[Json] = []
    query: Json = {"groupBy": by, "limit": limit}
    while True:
        page = await ask(asked, **query)
        assert page["count"] == len(page["groups"]) <= limit
        groups += page["groups"]
        if page["nextCursor"] is None:
            break
        query["cursor"] = page["nextCursor"]
    assert groups == sums(SESSIONS, by)


async def test_every_page_is_of_the_span_of_the_first(asked: LocalService, database: Database) -> None:
    first = await ask(asked, groupBy="session", limit=2)
    await database.clock.set(LATER + timedelta(days=40))
    second = await ask(asked, groupBy="session", limit=2, cursor=first["nextCursor"])
    assert (second["from"], second["to"]) == (first["from"], first["to"])
    assert first["groups"] + second["groups"] == sums(SESSIONS, "session")[:4]


async def test_the_link_leads_on_through_the_same_span(asked: LocalService, database: Database) -> None:
    query = {"groupBy": "session", "limit": 2, "tenant": TENANTS[1], "from": "2041-03-01T13:01:00+01:00"}
    answer = await asked.http.get("/usage", params=query)
    await database.clock.set(LATER + timedelta(days=1))
    following = await asked.http.get(answer.links["next"]["url"])
    pages = [exact(answer), exact(following)]
    assert [page["groups"] for page in pages] == [
        sums(SESSIONS[2:], "session", minute(1))[:2],
        sums(SESSIONS[2:], "session", minute(1))[2:],
    ]
    assert [(page["from"], page["to"]) for page in pages] == [(text(minute(1)), text(LATER))] * 2
    assert "next" not in following.links


async def test_one_group_has_no_other_page(asked: LocalService) -> None:
    answer = await asked.http.get("/usage", params={"limit": 1})
    assert (exact(answer)["nextCursor"], "link" in answer.headers) == (None, False)


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


FORGED_HERE = [
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


@pytest.mark.parametrize("forged", FORGED_HERE)
def test_a_cursor_that_was_never_given_out_is_refused(client: Client, forged: str) -> None:
    assert refused(client.http.get("/usage", params={"cursor": forged, "groupBy": "tenant"})) == ["cursor"]


@pytest.mark.parametrize("key", [TENANTS[0], "0", "4", "01", "1.0", ""])
def test_a_cursor_of_another_key_is_refused(client: Client, key: str) -> None:
    assert refused(client.http.get("/usage", params={"cursor": cursor(f"1 2 {key}"), "groupBy": "kind"})) == ["cursor"]


@pytest.mark.parametrize("key", [TENANTS[0], "1"])
def test_a_cursor_without_a_key_is_refused(client: Client, key: str) -> None:
    assert refused(client.http.get("/usage", params={"cursor": cursor(f"None 1 2 {key}")})) == ["cursor"]


@pytest.mark.parametrize("ends", ["-62135596800000000 253402300799999999", "5 5", "9 3", "0 1"])
def test_a_cursor_of_any_span_is_harmless(client: Client, ends: str) -> None:
    answer = client.http.get("/usage", params={"cursor": cursor(f"tenant {ends} {TENANTS[0]}"), "groupBy": "tenant"})
    assert answer.status_code == 200, answer.text


# Both ways.


async def test_says_for_the_span_between_two_cuts_what_its_windows_say(asked: LocalService, database: Database) -> None:
    for number in range(1, 7):
        await cut(database, minute(number))
        await chunk_all(database)
    await database.clock.set(LATER)
    billed = await windows(database)
    for one, other in combinations([each.started_at for each in billed] + [billed[-1].ended_at], 2):
        answer = await ask(asked, from_=one, to=other)
        inside = [each for each in billed if one <= each.started_at < other]
        usage = Decimal(sum(each.usage_millionths or 0 for each in inside)) / MILLION
        assert answer["groups"][0]["usage"] == usage, (one, other)
        assert answer["groups"] == sums(SESSIONS, None, one, other)
        assert answer["finalUntil"] == text(minute(6))


async def test_what_is_final_does_not_change(asked: LocalService, database: Database) -> None:
    before = await ask(asked, from_=NOON, to=minute(3), groupBy="session")
    await cut(database, minute(5))
    after = await ask(asked, from_=NOON, to=minute(3), groupBy="session")
    assert (before["finalUntil"], after["finalUntil"]) == (text(NOON), text(minute(5)))
    assert after["groups"] == before["groups"]


# Addresses.


@pytest.fixture
async def prefixed(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    await database.clock.set(NOON)
    await install(database, NOON)
    await put_sessions(database, SESSIONS)
    await cut(database, minute(5))
    await cut(database, minute(6))
    async with LocalService.on(database, monkeypatch, prefix="/api/v3").running() as service:
        yield service


PATHS = ["/usage", "/usage/windows", "/usage/windows/1"]


@pytest.mark.parametrize("path", PATHS)
async def test_answers_with_and_without_the_version(asked: LocalService, database: Database, path: str) -> None:
    await cut(database, minute(5))
    plain, versioned = [await asked.http.get(f"{version}{path}") for version in ("", "/v1")]
    assert (plain.status_code, plain.text) == (200, versioned.text)


@pytest.mark.parametrize("version", ["", "/v1"])
async def test_answers_below_the_prefix_and_nowhere_else(prefixed: LocalService, version: str) -> None:
    statuses = [
        (await prefixed.http.get(f"{prefix}{version}{path}")).status_code
        for prefix in ("/api/v3", "")
        for path in PATHS
    ]
    assert statuses == [200] * 3 + [404] * 3


@pytest.mark.parametrize("path", ["/usage?groupBy=session", "/usage/windows?"])
async def test_the_links_carry_the_prefix(prefixed: LocalService, path: str) -> None:
    answer = await prefixed.http.get(f"/api/v3{path}&limit=1")
    following = answer.links["next"]["url"]
    assert following.startswith(f"/api/v3{path.partition('?')[0]}?")
    assert (await prefixed.http.get(following)).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_usage_can_only_be_read(any_client: Client, method: str, path: str) -> None:
    assert any_client.http.request(method, path).status_code == 405
