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

from tests.http.client import Client, Json, ids_of, same_key, wish
from tests.http.local import LocalService
from tests.http.test_opening import SESSION_KEYS

URL_SAFE = re.compile(r"[A-Za-z0-9_~.-]+")


class Scene:
    """Sessions of one tenant, each different, so that every filter tells some of them apart."""

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
def scene(client: Client) -> Scene:
    return Scene(client)


def tenant_of(client: Client, count: int) -> str:
    """A tenant with so many live sessions."""
    tenant = str(uuid4())
    for _ in range(count):
        client.open(tenantObjectId=tenant)
    return tenant


def pages(client: Client, **query: Any) -> Iterator[httpx.Response]:
    answer = client.list(**query)
    yield answer
    while answer.json()["nextCursor"] is not None:
        answer = client.list(**query, cursor=answer.json()["nextCursor"])
        yield answer


# The form.


def test_a_list_is_sessions_count_and_next_cursor(client: Client) -> None:
    answer = client.list(tenant=tenant_of(client, 2)).json()
    assert (set(answer), answer["count"], answer["nextCursor"]) == ({"sessions", "count", "nextCursor"}, 2, None)


def test_a_listed_session_reads_as_it_does_alone(client: Client, scene: Scene) -> None:
    listed = client.list(tenant=scene.tenant).json()["sessions"]
    assert listed == scene.sessions
    assert set(listed[0]) == SESSION_KEYS


def test_an_empty_list_is_no_error(client: Client) -> None:
    answer = client.list(tenant=str(uuid4()))
    assert (answer.status_code, answer.json()) == (200, {"sessions": [], "count": 0, "nextCursor": None})


def test_newest_start_comes_first(client: Client) -> None:
    tenant = tenant_of(client, 4)
    starts = [session["sessionStartUtc"] for session in client.list(tenant=tenant).json()["sessions"]]
    assert starts == sorted(starts, reverse=True)


async def test_equal_starts_have_an_order_of_their_own(local: LocalService) -> None:
    await local.move_to("2030-01-01T00:00:00Z")
    opened = [(await local.open())["sessionId"] for _ in range(5)]
    answer = await local.http.get("/sessions", params={"limit": 2})
    seen = list(ids_of(answer))
    while "next" in answer.links:
        answer = await local.http.get(answer.links["next"]["url"])
        seen += ids_of(answer)
    assert seen == sorted(opened, reverse=True)


def test_lists_under_v1_too(client: Client, scene: Scene) -> None:
    answer = client.http.get("/v1/sessions", params={"tenant": scene.tenant})
    assert ids_of(answer) == scene.matching()


# Filters.

FILTERS: dict[str, tuple[str, str, Any]] = {
    "user": ("user", "userObjectId", "user"),
    "capacity": ("capacity", "capacityId", "capacity"),
    "kind": ("kind", "sessionKind", 2),
    "state": ("state", "state", "closed"),
    "live": ("active", "isActive", True),
    "over": ("active", "isActive", False),
    "reason": ("closeReason", "closeReason", "UPGRADED"),
}


def _query_and_facts(scene: Scene, names: Sequence[str]) -> tuple[Json, Json]:
    query: Json = {}
    facts: Json = {}
    for name in names:
        parameter, field, value = FILTERS[name]
        value = getattr(scene, value) if name in ("user", "capacity") else value
        query[parameter] = str(value).lower() if isinstance(value, bool) else value
        facts[field] = value
    return query, facts


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_alone(client: Client, scene: Scene, name: str) -> None:
    query, facts = _query_and_facts(scene, [name])
    expected = scene.matching(**facts)
    assert 0 < len(expected) < 4, "the scene must tell this filter apart"
    assert client.ids(tenant=scene.tenant, **query) == expected


@pytest.mark.parametrize(
    "names",
    [pair for size in (2, 3, 4) for pair in itertools.combinations(FILTERS, size) if not {"live", "over"} <= set(pair)],
)
def test_filters_combined(client: Client, scene: Scene, names: Sequence[str]) -> None:
    query, facts = _query_and_facts(scene, names)
    assert client.ids(tenant=scene.tenant, **query) == scene.matching(**facts)


def test_the_tenant_filter_hides_other_tenants(client: Client, scene: Scene) -> None:
    foreign = client.open(capacityId=scene.capacity)["sessionId"]
    assert foreign in client.ids(capacity=scene.capacity)
    assert foreign not in client.ids(capacity=scene.capacity, tenant=scene.tenant)


@pytest.mark.parametrize("name", ["tenant", "user", "capacity"])
def test_ids_in_filters_may_be_upper_case(client: Client, scene: Scene, name: str) -> None:
    query = {"tenant": scene.tenant, name: getattr(scene, name).upper()}
    assert client.ids(**query) == client.ids(**{**query, name: getattr(scene, name)})


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_filters_every_kind(client: Client, scene: Scene, kind: int) -> None:
    assert client.ids(tenant=scene.tenant, kind=kind) == scene.matching(sessionKind=kind)


@pytest.mark.parametrize("state", ["created", "active", "closing", "closed"])
def test_filters_every_state(client: Client, scene: Scene, state: str) -> None:
    assert client.ids(tenant=scene.tenant, state=state) == scene.matching(state=state)


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


@pytest.mark.parametrize("reason", REASONS)
def test_filters_every_close_reason(client: Client, scene: Scene, reason: str) -> None:
    assert client.ids(tenant=scene.tenant, closeReason=reason) == scene.matching(closeReason=reason)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"leaseSeconds": 60}, "LEASE_EXPIRED"), ({"idleSeconds": 60}, "IDLE_TIMEOUT"), ({}, "EXPIRED")],
)
async def test_a_lapsed_session_is_filtered_as_it_will_be_recorded(
    local: LocalService, limits: Json, reason: str
) -> None:
    opened = await local.open(**limits)
    await local.move_to(opened["leaseExpiresAt"])

    async def found(**query: str) -> bool:
        return ids_of(await local.http.get("/sessions", params=query)) == [opened["sessionId"]]

    unrecorded = [
        await found(active="true"),
        await found(active="false"),
        await found(state="created"),
        await found(state="closed"),
        await found(closeReason=reason),
        await found(closeReason="TERMINATED"),
    ]
    assert unrecorded == [False, True, False, True, True, False]


async def test_a_live_session_is_found_as_live_until_its_deadline(local: LocalService) -> None:
    opened = await local.open(leaseSeconds=60)
    await local.move_to(opened["leaseExpiresAt"], microseconds=-1)
    answer = await local.http.get("/sessions", params={"active": "true", "state": "created"})
    assert ids_of(answer) == [opened["sessionId"]]


# Pages.


def test_the_default_page_has_a_hundred(local_crowd: Client) -> None:
    answer = local_crowd.list()
    assert (answer.json()["count"], answer.json()["nextCursor"] is None) == (100, False)


def test_a_page_may_have_five_hundred(local_crowd: Client) -> None:
    assert local_crowd.list(limit=500).status_code == 200


@pytest.fixture
def local_crowd(client: Client) -> Client:
    """The shared service with more sessions than a default page holds."""
    missing = 101 - len(client.ids(limit=500))
    for _ in range(missing):
        client.open()
    return client


@pytest.mark.parametrize(("count", "limit", "sizes"), [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 3, [3]), (2, 1, [1, 1])])
def test_pages_hold_all_sessions_once(client: Client, count: int, limit: int, sizes: list[int]) -> None:
    tenant = tenant_of(client, count)
    found = list(pages(client, tenant=tenant, limit=limit))
    assert [page.json()["count"] for page in found] == sizes
    assert list(itertools.chain.from_iterable(map(ids_of, found))) == client.ids(tenant=tenant)


def test_a_cursor_is_safe_in_a_url(client: Client) -> None:
    cursor = client.list(tenant=tenant_of(client, 2), limit=1).json()["nextCursor"]
    assert URL_SAFE.fullmatch(cursor)


def test_pages_are_stable_while_sessions_are_added(client: Client) -> None:
    tenant = tenant_of(client, 4)
    expected = client.ids(tenant=tenant)
    seen: list[str] = []
    for page in pages(client, tenant=tenant, limit=1):
        seen += ids_of(page)
        client.open(tenantObjectId=tenant)
        assert len(seen) <= 4, f"the pages run after what is added: {seen}"
    assert seen == expected


def test_pages_are_stable_while_sessions_end(client: Client) -> None:
    tenant = tenant_of(client, 4)
    expected = client.ids(tenant=tenant)
    seen: list[str] = []
    for page in pages(client, tenant=tenant, active="true", limit=1):
        seen += ids_of(page)
        client.end(seen[-1])
    assert seen == expected


def test_a_session_that_ends_before_its_page_is_left_out(client: Client) -> None:
    tenant = tenant_of(client, 3)
    newest, middle, oldest = client.ids(tenant=tenant)
    first = client.list(tenant=tenant, active="true", limit=1)
    client.end(middle)
    rest = client.ids(tenant=tenant, active="true", cursor=first.json()["nextCursor"])
    assert [*ids_of(first), *rest] == [newest, oldest]


def test_the_link_leads_to_the_next_page(client: Client) -> None:
    tenant = tenant_of(client, 5)
    answer = client.list(tenant=tenant, active="true", kind=1, limit=2)
    seen = list(ids_of(answer))
    while "next" in answer.links:
        answer = client.http.get(answer.links["next"]["url"])
        seen += ids_of(answer)
    assert seen == client.ids(tenant=tenant)


def test_the_link_carries_the_next_cursor_and_every_filter(client: Client, scene: Scene) -> None:
    query = {"tenant": scene.tenant, "user": scene.user, "active": "true", "limit": "1"}
    answer = client.list(**query)
    link = httpx.URL(answer.links["next"]["url"])
    assert (link.path, dict(link.params)) == ("/sessions", {**query, "cursor": answer.json()["nextCursor"]})


def test_the_last_page_has_no_link(client: Client) -> None:
    assert "Link" not in client.list(tenant=tenant_of(client, 1)).headers


# What is refused.

FORGED = [
    "9999-12-31T23:59:59.999999-23:59",
    "0001-01-01T00:00:00+23:59",
    "2026-01-01T00:00:00",
]


def _forged(started_at: str, session_id: str = "00000000-0000-7000-8000-000000000000") -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode([started_at, session_id])).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "null",
        "0",
        "abc",
        "!!!!",
        "é",
        "A" * 200,
        *map(_forged, FORGED),
        _forged("2026-01-01T00:00:00Z", "x' OR 1=1 --"),
    ],
)
def test_a_cursor_that_was_never_given_out_is_refused(client: Client, cursor: str) -> None:
    answer = client.list(cursor=cursor)
    assert (answer.status_code, _fields(answer)) == (400, ["cursor"])


def test_a_cursor_that_is_too_long_is_refused(client: Client) -> None:
    assert _fields(client.list(cursor="A" * 201)) == ["cursor"]


def test_a_cursor_that_was_cut_short_is_refused(client: Client) -> None:
    cursor = client.list(tenant=tenant_of(client, 2), limit=1).json()["nextCursor"]
    assert _fields(client.list(cursor=cursor[:-3])) == ["cursor"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("limit=0", "limit: must be a whole number from 1 to 500"),
        ("limit=501", "limit: must be a whole number from 1 to 500"),
        ("limit=-1", "limit: must be a whole number from 1 to 500"),
        ("limit=", "limit: must be a whole number from 1 to 500"),
        ("limit=ten", "limit: must be a whole number from 1 to 500"),
        ("limit=5.0", "limit: must be a whole number from 1 to 500"),
        ("limit=1e2", "limit: must be a whole number from 1 to 500"),
        ("limit=007", "limit: must be a whole number from 1 to 500"),
        ("limit=%2B5", "limit: must be a whole number from 1 to 500"),
        ("limit=%D9%A3", "limit: must be a whole number from 1 to 500"),
        ("limit=null", "limit: must be a whole number from 1 to 500"),
        ("limit=" + "9" * 5000, "limit: must be a whole number from 1 to 500"),
        ("kind=0", "kind: must be 1, 2 or 3"),
        ("kind=4", "kind: must be 1, 2 or 3"),
        ("kind=1.0", "kind: must be 1, 2 or 3"),
        ("kind=null", "kind: must be 1, 2 or 3"),
        ("active=1", "active: must be true or false"),
        ("active=TRUE", "active: must be true or false"),
        ("active=null", "active: must be true or false"),
        ("active", "active: must be true or false"),
        ("state=open", "state: must be created, active, closing, closed"),
        ("state=null", "state: must be created, active, closing, closed"),
        ("closeReason=NULL", f"closeReason: must be {', '.join(REASONS)}"),
        ("closeReason=expired", f"closeReason: must be {', '.join(REASONS)}"),
        ("tenant=null", "tenant: must be a UUID"),
        ("tenant=", "tenant: must be a UUID"),
        ("user=0123456789abcdef0123456789abcdef", "user: must be a UUID"),
        ("capacity=00000000-0000-0000-0000-000000000000%0A", "capacity: must be a UUID"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(client: Client, query: str, message: str) -> None:
    answer = client.http.get(f"/sessions?{query}")
    assert (answer.status_code, answer.json()["detail"]) == (400, message)


@pytest.mark.parametrize("name", ["tenants", "closereason", "Kind", "offset", "", "a b"])
def test_an_unknown_parameter_is_refused(client: Client, name: str) -> None:
    answer = client.list(**{name: "1"})
    assert (answer.status_code, _fields(answer)) == (400, [name])


def test_a_near_miss_is_told_what_was_meant(client: Client) -> None:
    assert "did you mean closeReason?" in client.list(closereason="EXPIRED").json()["detail"]


@pytest.mark.parametrize("query", ["limit=1&limit=1", "tenant=x&kind=1&tenant=x", "nothing=1&nothing=2"])
def test_a_repeated_parameter_is_refused(client: Client, query: str) -> None:
    answer = client.http.get(f"/sessions?{query}")
    assert (answer.status_code, answer.json()["errors"]) == (
        400,
        [{"field": query.partition("=")[0], "message": "must be given once"}],
    )


def test_every_wrong_parameter_is_named(client: Client) -> None:
    answer = client.list(kind="9", limit="0", tenant="x", nothing="1")
    assert sorted(_fields(answer)) == ["kind", "limit", "nothing", "tenant"]


@pytest.mark.parametrize("query", ["tenant=%FF", "%FF=1", "tenant=%ED%A0%80", "&".join(f"a{n}=1" for n in range(60))])
def test_a_query_that_cannot_be_read_is_refused(client: Client, query: str) -> None:
    answer = client.http.get(f"/sessions?{query}")
    assert (answer.status_code, _fields(answer)) == (400, ["query"])


@pytest.mark.parametrize("query", ["", "&", "&&"])
def test_an_empty_query_is_no_query(client: Client, query: str) -> None:
    assert client.http.get(f"/sessions?{query}").status_code == 200


@pytest.mark.parametrize("path", ["/sessions/metrics", "/healthz", "/readyz", "/health", "/openapi.json", "/docs"])
def test_addresses_without_parameters_refuse_them(client: Client, path: str) -> None:
    answer = client.http.get(path, params={"verbose": "1"})
    assert (answer.status_code, _fields(answer)) == (400, ["verbose"])


def test_opening_takes_no_parameters(client: Client) -> None:
    answer = client.http.put("/sessions", params={"dryRun": "1"}, json=wish())
    assert (answer.status_code, _fields(answer)) == (400, ["dryRun"])


def _fields(answer: httpx.Response) -> list[str]:
    return [error["field"] for error in answer.json()["errors"]]
