"""`GET /sessions`: filters, pages and links."""

import base64
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest

from tenure.store.reads import session_lapses, session_list, session_matches
from tests.http.client import Client, Json, ids_of, open_body, same_key
from tests.http.local import LAPSES, LocalService
from tests.http.test_opening import SESSION_KEYS

URL_SAFE = re.compile(r"[A-Za-z0-9_~.-]+")


class SampleSessions:
    """Four sessions of one tenant. Each filter matches some of them, but not all."""

    def __init__(self, client: Client) -> None:
        self.tenant = str(uuid4())
        self.user, self.capacity = str(uuid4()), str(uuid4())
        basic = client.open(tenantObjectId=self.tenant, userObjectId=self.user, capacityId=self.capacity)
        premium = client.put(same_key(basic, sessionKind=3)).json()
        other = client.open(tenantObjectId=self.tenant, userObjectId=self.user, sessionKind=2)
        ended = client.open(tenantObjectId=self.tenant, capacityId=self.capacity, sessionKind=2)
        client.end(ended["sessionId"])
        self.sessions = [client.get(s["sessionId"]).json() for s in (ended, other, premium, basic)]
        """Newest start first."""

    def matching(self, **facts: Any) -> Sequence[str]:
        return [s["sessionId"] for s in self.sessions if all(s[name] == value for name, value in facts.items())]


@pytest.fixture(scope="module")
def samples(client: Client) -> SampleSessions:
    return SampleSessions(client)


def tenant_of(client: Client, count: int) -> str:
    """Opens `count` sessions of a new tenant, and returns the id of the tenant."""
    tenant = str(uuid4())
    for _ in range(count):
        client.open(tenantObjectId=tenant)
    return tenant


def pages(client: Client, **query: Any) -> Iterator[httpx.Response]:
    response = client.list(**query)
    yield response
    while response.json()["nextCursor"] is not None:
        response = client.list(**query, cursor=response.json()["nextCursor"])
        yield response


# Fields and order.


def test_list_returns_sessions_count_and_next_cursor(client: Client) -> None:
    response = client.list(tenant=tenant_of(client, 2)).json()
    assert set(response) == {"sessions", "count", "nextCursor", "exact"}
    assert (response["count"], response["nextCursor"], response["exact"]) == (2, None, True)


def test_listed_session_equals_session_read_by_id(client: Client, samples: SampleSessions) -> None:
    listed = client.list(tenant=samples.tenant).json()["sessions"]
    assert listed == samples.sessions
    assert set(listed[0]) == SESSION_KEYS


def test_empty_list_returns_200(client: Client) -> None:
    response = client.list(tenant=str(uuid4()))
    assert response.status_code == 200
    assert response.json() == {"sessions": [], "count": 0, "nextCursor": None, "exact": True}


def test_list_orders_newest_start_first(client: Client) -> None:
    tenant = tenant_of(client, 4)
    starts = [session["sessionStartUtc"] for session in client.list(tenant=tenant).json()["sessions"]]
    assert starts == sorted(starts, reverse=True)


async def test_sessions_with_equal_start_are_ordered_by_id(local: LocalService) -> None:
    await local.move_to("2030-01-01T00:00:00Z")
    tenant = str(uuid4())
    opened = [(await local.open(tenantObjectId=tenant))["sessionId"] for _ in range(5)]
    response = await local.http.get("/sessions", params={"tenant": tenant, "limit": 2})
    seen = list(ids_of(response))
    while "next" in response.links:
        response = await local.http.get(response.links["next"]["url"])
        seen += ids_of(response)
    assert seen == sorted(opened, reverse=True)


def test_list_is_available_under_v1(client: Client, samples: SampleSessions) -> None:
    response = client.http.get("/v1/sessions", params={"tenant": samples.tenant})
    assert ids_of(response) == samples.matching()


async def test_page_that_ends_at_scan_limit_has_cursor_and_link(
    local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "SCAN_MAX", 3)
    opened = []
    for second in range(12):
        await local.move_to(f"2030-01-01T00:00:{second:02}Z")
        opened.append((await local.open())["sessionId"])
    await local.http.post(f"/sessions/{opened[0]}/heartbeat", json={"active": True})
    responses = [await local.http.get("/sessions", params={"state": "active"})]
    while "next" in responses[-1].links:
        responses.append(await local.http.get(responses[-1].links["next"]["url"]))
    assert (responses[0].json()["sessions"], responses[0].json()["nextCursor"] is None) == ([], False)
    assert [session_id for response in responses for session_id in ids_of(response)] == [opened[0]]


# Filters.

FILTERS: dict[str, tuple[str, str, Any]] = {
    "user": ("user", "userObjectId", "user"),
    "capacity": ("capacity", "capacityId", "capacity"),
    "kind": ("kind", "sessionKind", 2),
    "state": ("state", "state", "closed"),
    "live": ("active", "isActive", True),
    "ended": ("active", "isActive", False),
    "reason": ("closeReason", "closeReason", "UPGRADED"),
}


def _query_and_facts(samples: SampleSessions, names: Sequence[str]) -> tuple[Json, Json]:
    query: Json = {}
    facts: Json = {}
    for name in names:
        parameter, field, value = FILTERS[name]
        value = getattr(samples, value) if name in ("user", "capacity") else value
        query[parameter] = str(value).lower() if isinstance(value, bool) else value
        facts[field] = value
    return query, facts


def test_single_filter_returns_matching_sessions(client: Client, samples: SampleSessions) -> None:
    for name in FILTERS:
        query, facts = _query_and_facts(samples, [name])
        expected = samples.matching(**facts)
        assert 0 < len(expected) < 4, f"{name} must match some sessions, but not all"
        assert client.ids(tenant=samples.tenant, **query) == expected, name


@pytest.mark.parametrize("size", [2, 3, 4])
def test_combined_filters_return_sessions_that_match_all(client: Client, samples: SampleSessions, size: int) -> None:
    for names in itertools.combinations(FILTERS, size):
        if not {"live", "ended"} <= set(names):
            query, facts = _query_and_facts(samples, names)
            assert client.ids(tenant=samples.tenant, **query) == samples.matching(**facts), names


def test_tenant_filter_excludes_other_tenants(client: Client, samples: SampleSessions) -> None:
    foreign = client.open(capacityId=samples.capacity)["sessionId"]
    assert foreign in client.ids(capacity=samples.capacity)
    assert foreign not in client.ids(capacity=samples.capacity, tenant=samples.tenant)


def test_filter_ids_are_case_insensitive(client: Client, samples: SampleSessions) -> None:
    for name in ("tenant", "user", "capacity"):
        query = {"tenant": samples.tenant, name: getattr(samples, name).upper()}
        assert client.ids(**query) == client.ids(**{**query, name: getattr(samples, name)}), name


REASONS = [
    "UPGRADED",
    "EXPIRED",
    "LEASE_EXPIRED",
    "IDLE_TIMEOUT",
    "STOPPED",
    "TERMINATED",
    "EVICTED",
    "DISCONNECTED",
    "SHUTDOWN",
    "FAILED",
]


VALUES: dict[str, tuple[str, Sequence[Any]]] = {
    "kind": ("sessionKind", [1, 2, 3]),
    "state": ("state", ["created", "active", "closing", "closed"]),
    "closeReason": ("closeReason", REASONS),
}


@pytest.mark.parametrize("name", VALUES)
def test_list_filters_by_every_value(client: Client, samples: SampleSessions, name: str) -> None:
    field, values = VALUES[name]
    for value in values:
        assert client.ids(tenant=samples.tenant, **{name: value}) == samples.matching(**{field: value}), value


async def test_unrecorded_lapsed_session_is_filtered_as_closed(local: LocalService) -> None:
    for limits, reason in LAPSES:
        opened = await local.open(**limits)
        await local.move_to(opened["leaseExpiresAt"])
        filters = {
            ("active", "true"): False,
            ("active", "false"): True,
            ("state", "created"): False,
            ("state", "closed"): True,
            ("closeReason", reason): True,
            ("closeReason", "TERMINATED"): False,
        }
        for (name, value), is_listed in filters.items():
            query = {"tenant": opened["tenantObjectId"], name: value}
            listed = ids_of(await local.http.get("/sessions", params=query))
            assert listed == ([opened["sessionId"]] if is_listed else []), (reason, name, value)


async def test_live_session_is_listed_as_live_until_deadline(local: LocalService) -> None:
    opened = await local.open(leaseSeconds=60)
    await local.move_to(opened["leaseExpiresAt"], microseconds=-1)
    query = {"tenant": opened["tenantObjectId"], "active": "true", "state": "created"}
    assert ids_of(await local.http.get("/sessions", params=query)) == [opened["sessionId"]]


# Pages.


def test_default_page_has_100_sessions_and_limit_may_be_500(client: Client) -> None:
    for _ in range(101 - len(client.ids(limit=500))):
        client.open()
    response = client.list()
    assert (response.json()["count"], response.json()["nextCursor"] is None) == (100, False)


def test_pages_contain_every_session_once(client: Client) -> None:
    for count, limit, sizes in ((5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 3, [3]), (2, 1, [1, 1])):
        tenant = tenant_of(client, count)
        found = list(pages(client, tenant=tenant, limit=limit))
        assert [page.json()["count"] for page in found] == sizes
        assert list(itertools.chain.from_iterable(map(ids_of, found))) == client.ids(tenant=tenant), sizes


def test_cursor_is_url_safe(client: Client) -> None:
    cursor = client.list(tenant=tenant_of(client, 2), limit=1).json()["nextCursor"]
    assert URL_SAFE.fullmatch(cursor)


def test_pages_are_stable_while_sessions_are_added(client: Client) -> None:
    tenant = tenant_of(client, 4)
    expected = client.ids(tenant=tenant)
    seen: list[str] = []
    for page in pages(client, tenant=tenant, limit=1):
        seen += ids_of(page)
        client.open(tenantObjectId=tenant)
        assert len(seen) <= 4, f"the pages contain sessions added later: {seen}"
    assert seen == expected


def test_pages_are_stable_while_sessions_end(client: Client) -> None:
    tenant = tenant_of(client, 4)
    expected = client.ids(tenant=tenant)
    seen: list[str] = []
    for page in pages(client, tenant=tenant, active="true", limit=1):
        seen += ids_of(page)
        client.end(seen[-1])
    assert seen == expected


def test_session_ended_before_its_page_is_omitted(client: Client) -> None:
    tenant = tenant_of(client, 3)
    newest, middle, oldest = client.ids(tenant=tenant)
    first = client.list(tenant=tenant, active="true", limit=1)
    client.end(middle)
    rest = client.ids(tenant=tenant, active="true", cursor=first.json()["nextCursor"])
    assert [*ids_of(first), *rest] == [newest, oldest]


def test_next_link_returns_next_page(client: Client) -> None:
    tenant = tenant_of(client, 5)
    response = client.list(tenant=tenant, active="true", kind=1, limit=2)
    seen = list(ids_of(response))
    while "next" in response.links:
        response = client.http.get(response.links["next"]["url"])
        seen += ids_of(response)
    assert seen == client.ids(tenant=tenant)


def test_next_link_includes_cursor_and_filters(client: Client, samples: SampleSessions) -> None:
    query = {"tenant": samples.tenant, "user": samples.user, "active": "true", "limit": "1"}
    response = client.list(**query)
    link = httpx.URL(response.links["next"]["url"])
    assert (link.path, dict(link.params)) == ("/sessions", {**query, "cursor": response.json()["nextCursor"]})


def test_last_page_has_no_next_link(client: Client) -> None:
    assert "Link" not in client.list(tenant=tenant_of(client, 1)).headers


# `order=lapse`, and `GET /sessions/count`.


async def test_order_lapse_returns_live_sessions_next_deadline_first(local: LocalService) -> None:
    tenant, capacity = str(uuid4()), str(uuid4())
    leases = [70, 30, 50, 20, 60, 40]
    await local.move_to("2030-01-01T00:00:00Z")
    opened = {
        lease: await local.open(tenantObjectId=tenant, capacityId=capacity, leaseSeconds=lease) for lease in leases
    }
    ended, lapsed = opened.pop(40), opened.pop(20)
    await local.http.delete(f"/sessions/{ended['sessionId']}")
    await local.move_to(lapsed["leaseExpiresAt"])
    # The heartbeats move two deadlines, from 30 to 50 and from 70 to 90 seconds after the start.
    await local.http.post(f"/sessions/{opened[30]['sessionId']}/heartbeat")
    await local.http.post(f"/sessions/{opened[70]['sessionId']}/heartbeat")
    expected = [opened[lease]["sessionId"] for lease in (30, 50, 60, 70)]
    for query in ({"tenant": tenant}, {"capacity": capacity}, {"tenant": tenant, "capacity": capacity, "kind": "1"}):
        response = await local.http.get("/sessions", params={**query, "order": "lapse", "limit": 3})
        seen = list(ids_of(response))
        assert response.json()["exact"] is True
        response = await local.http.get(response.links["next"]["url"])
        assert [*seen, *ids_of(response)] == expected
        assert (response.json()["nextCursor"], "next" in response.links) == (None, False)
    user = opened[50]["userObjectId"]
    assert ids_of(await local.http.get("/sessions", params={"user": user, "order": "lapse"})) == [expected[1]]
    for nothing in ({"active": "false"}, {"state": "closed"}, {"state": "active"}, {"closeReason": "STOPPED"}):
        response = await local.http.get("/sessions", params={"tenant": tenant, "order": "lapse", **nothing})
        assert (ids_of(response), response.json()["exact"]) == ([], True)


async def test_order_lapse_is_not_exact_if_earlier_deadlines_may_be_missing(
    local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_lapses, "LAPSE_LOOK_MAX", 1)
    monkeypatch.setattr(session_lapses, "LAPSE_SCAN_MAX", 1)
    capacity = str(uuid4())
    for _ in range(3):
        await local.open(capacityId=capacity)
    response = await local.http.get("/sessions", params={"capacity": capacity, "order": "lapse"})
    assert response.json()["exact"] is False


def test_wrong_order_and_cursor_of_another_order_return_400(client: Client) -> None:
    tenant = tenant_of(client, 2)
    assert _fields(client.list(order="oldest")) == ["order"]
    cursors = {order: client.list(tenant=tenant, order=order, limit=1).json()["nextCursor"] for order in ORDERS}
    for order, other in (ORDERS, ORDERS[::-1]):
        response = client.list(tenant=tenant, order=order, cursor=cursors[other])
        assert (response.status_code, _fields(response)) == (400, ["cursor"])
    for cursor in FORGED:
        response = client.list(order="lapse", cursor=cursor)
        assert (response.status_code, _fields(response)) == (400, ["cursor"]), cursor


ORDERS = ("newest", "lapse")


def test_count_returns_how_many_sessions_are_listed(client: Client, samples: SampleSessions) -> None:
    for size in (0, 1, 2):
        for names in itertools.combinations(FILTERS, size):
            if not {"live", "ended"} <= set(names):
                query, facts = _query_and_facts(samples, names)
                response = client.http.get("/sessions/count", params={"tenant": samples.tenant, **query})
                assert response.json() == {"count": len(samples.matching(**facts)), "exact": True}, names
    assert client.http.get("/sessions/count", params={"limit": "1"}).status_code == 400


async def test_count_is_not_exact_if_more_sessions_may_match(
    local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_matches, "COUNT_MAX", 2)
    tenant = str(uuid4())
    for _ in range(4):
        await local.open(tenantObjectId=tenant)
    response = await local.http.get("/sessions/count", params={"tenant": tenant})
    assert response.json() == {"count": 3, "exact": False}


# Rejected requests.


def _forged(started_at: str, session_id: str = "00000000-0000-7000-8000-000000000000") -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode([started_at, session_id])).rstrip(b"=").decode()


FORGED = [
    "",
    "null",
    "0",
    "abc",
    "!!!!",
    "é",
    "A" * 200,
    "A" * 201,
    _forged("9999-12-31T23:59:59.999999-23:59"),
    _forged("0001-01-01T00:00:00+23:59"),
    _forged("2026-01-01T00:00:00"),
    _forged("2026-01-01T00:00:00Z", "x' OR 1=1 --"),
]


def test_forged_cursor_returns_400(client: Client) -> None:
    for cursor in FORGED:
        response = client.list(cursor=cursor)
        assert (response.status_code, _fields(response)) == (400, ["cursor"]), cursor


def test_truncated_cursor_is_rejected(client: Client) -> None:
    cursor = client.list(tenant=tenant_of(client, 2), limit=1).json()["nextCursor"]
    assert _fields(client.list(cursor=cursor[:-3])) == ["cursor"]


INVALID_VALUES: dict[str, tuple[str, Sequence[str]]] = {
    "limit": (
        "must be a whole number from 1 to 500",
        ["0", "501", "-1", "", "ten", "5.0", "1e2", "007", "%2B5", "%D9%A3", "null", "9" * 5000],
    ),
    "kind": ("must be 1, 2 or 3", ["0", "4", "1.0", "null"]),
    "active": ("must be true or false", ["1", "TRUE", "null", ""]),
    "state": ("must be created, active, closing, closed", ["open", "null"]),
    "closeReason": (f"must be {', '.join(REASONS)}", ["NULL", "expired"]),
    "tenant": ("must be a UUID", ["null", ""]),
    "user": ("must be a UUID", ["0123456789abcdef0123456789abcde"]),
    "capacity": ("must be a UUID", ["00000000-0000-0000-0000-000000000000%0A"]),
}


def test_invalid_value_returns_400_with_allowed_values(any_client: Client) -> None:
    for name, (message, values) in INVALID_VALUES.items():
        for value in values:
            response = any_client.http.get(f"/sessions?{name}={value}")
            assert (response.status_code, response.json()["detail"]) == (400, f"{name}: {message}"), value[:80]
    response = any_client.http.get("/sessions?active")
    assert (response.status_code, response.json()["detail"]) == (400, "active: must be true or false")


def test_unknown_parameter_returns_400(any_client: Client) -> None:
    for name in ("tenants", "closereason", "KIND", "offset", "", "a b"):
        response = any_client.list(**{name: "1"})
        assert (response.status_code, _fields(response)) == (400, [name])


def test_misspelled_parameter_returns_suggestion(any_client: Client) -> None:
    assert "did you mean closeReason?" in any_client.list(closereason="EXPIRED").json()["detail"]


def test_repeated_parameter_returns_400(any_client: Client) -> None:
    for query in ("limit=1&limit=1", "tenant=x&kind=1&tenant=x", "nothing=1&nothing=2"):
        response = any_client.http.get(f"/sessions?{query}")
        assert (response.status_code, response.json()["errors"]) == (
            400,
            [{"field": query.partition("=")[0], "message": "must be given only once"}],
        )


def test_error_lists_every_invalid_parameter(any_client: Client) -> None:
    response = any_client.list(kind="9", limit="0", tenant="x", nothing="1")
    assert sorted(_fields(response)) == ["kind", "limit", "nothing", "tenant"]


def test_undecodable_query_or_too_many_parameters_return_400(any_client: Client) -> None:
    for query in ("tenant=%FF", "%FF=1", "tenant=%ED%A0%80", "&".join(f"a{n}=1" for n in range(60))):
        response = any_client.http.get(f"/sessions?{query}")
        assert (response.status_code, _fields(response)) == (400, ["query"]), query


def test_empty_query_is_accepted(any_client: Client) -> None:
    for query in ("", "&", "&&"):
        assert any_client.http.get(f"/sessions?{query}").status_code == 200, query


def test_route_without_parameters_rejects_query_parameter(any_client: Client) -> None:
    for path in ("/sessions/metrics", "/healthz", "/readyz", "/health", "/openapi.json", "/docs"):
        response = any_client.http.get(path, params={"verbose": "1"})
        assert (response.status_code, _fields(response)) == (400, ["verbose"]), path
    response = any_client.http.put("/sessions", params={"dryRun": "1"}, json=open_body())
    assert (response.status_code, _fields(response)) == (400, ["dryRun"])


def _fields(response: httpx.Response) -> list[str]:
    return [error["field"] for error in response.json()["errors"]]
