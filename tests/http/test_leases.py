"""`/leases`: the list of leases, the history of their terms, and the command resign."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from tenure.domain.jobs import JobCommand
from tenure.errors import LeaseLost
from tests.http.client import Client, Json
from tests.http.local import LocalService
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import acquire, acquire_free_lease, begin_due_run, job_every
from tests.support.open_requests import SECOND

FIELDS = ["name", "holder", "epoch", "held", "acquiredAt", "renewedAt", "expiresAt"]
LONGEST = 196
"""The most characters in the name of a lease or job: 200, less the four of the prefix `job:`."""
CURSOR_OF_MISSING_LEASE = "bGVhc2U"
"""The cursor of the page that follows a lease with the name `lease`. No such lease exists."""
FORGED = ["", "null", "0", "abc", "!!!!", "é", "A" * 200, "w6k", "bGVh c2U", "YQBi"]
"""Cursors that no response contains: an empty one, invalid base64, and base64 of characters that no name has."""


@pytest.fixture
def name() -> str:
    """The name of a new lease."""
    return f"nightly-{uuid4().hex}"


async def resign(local: LocalService, name: str, prefix: str = "") -> httpx.Response:
    return await local.http.post(f"{prefix}/leases/{quote(name, safe='')}/resign")


async def read_lease(local: LocalService, name: str) -> Json:
    response = await local.http.get("/leases", params={"limit": 500})
    (lease,) = [lease for lease in response.json()["leases"] if lease["name"] == name]
    return lease  # type: ignore[no-any-return]


async def all_names(local: LocalService, url: str) -> Sequence[str]:
    """Follows the links of all pages."""
    seen: list[str] = []
    while url:
        response = await local.http.get(url)
        assert response.status_code == 200, f"{url}\n{response.text}"
        page = response.json()
        assert (page["count"], "next" in response.links) == (len(page["leases"]), page["nextCursor"] is not None)
        seen += [lease["name"] for lease in page["leases"]]
        url = response.links["next"]["url"] if "next" in response.links else ""
    return seen


# Fields.


async def test_list_returns_lease_with_all_fields(local: LocalService, name: str) -> None:
    await local.clock.set(datetime.fromisoformat("2041-03-01T12:00:00Z"))
    await acquire(local.database.store, name, "batch-1", 90 * SECOND)
    lease = await read_lease(local, name)
    assert list(lease) == FIELDS
    assert lease == {
        "name": name,
        "holder": "batch-1",
        "epoch": 1,
        "held": True,
        "acquiredAt": "2041-03-01T12:00:00.000000Z",
        "renewedAt": "2041-03-01T12:00:00.000000Z",
        "expiresAt": "2041-03-01T12:01:30.000000Z",
    }


async def test_renewal_updates_renewed_at_and_expires_at(local: LocalService, name: str) -> None:
    fence = await acquire_free_lease(local.database.store, name, "batch-1")
    before = await read_lease(local, name)
    await local.database.store.renew_lease(fence, 90 * SECOND)
    after = await read_lease(local, name)
    assert (after["epoch"], after["acquiredAt"]) == (before["epoch"], before["acquiredAt"])
    assert after["renewedAt"] > before["renewedAt"]
    assert after["expiresAt"] > before["expiresAt"]
    duration = datetime.fromisoformat(after["expiresAt"]) - datetime.fromisoformat(after["renewedAt"])
    assert duration == timedelta(seconds=90)


async def test_held_is_false_once_database_clock_reaches_expiry(local: LocalService, name: str) -> None:
    await acquire(local.database.store, name, "batch-1")
    expires_at = (await read_lease(local, name))["expiresAt"]
    await local.move_to(expires_at, microseconds=-1)
    before = (await read_lease(local, name))["held"]
    await local.move_to(expires_at)
    assert (before, (await read_lease(local, name))["held"]) == (True, False)


async def test_released_lease_stays_in_list(local: LocalService, name: str) -> None:
    await local.database.store.release_lease(await acquire_free_lease(local.database.store, name, "batch-1"))
    lease = await read_lease(local, name)
    assert (lease["held"], lease["holder"], lease["epoch"]) == (False, "batch-1", 1)


async def test_job_lock_is_listed_as_lease(local: LocalService, name: str) -> None:
    await local.database.store.register_jobs([job_every(SECOND, name)])
    await local.database.store.command_job(name, JobCommand.RUN, ACTOR)
    await begin_due_run(local.database.store, name, "batch-1")
    assert (await read_lease(local, f"job:{name}"))["holder"] == "batch-1"


# Pages.


async def test_list_is_paginated_in_name_order(own_local: LocalService) -> None:
    mine = [f"lease{letter}" for letter in "edcba"] + [f"{letter}{'x' * (LONGEST - 1)}" for letter in "ab"]
    for name in mine:
        await acquire(own_local.database.store, name, "batch-1")
    for limit in (1, 2, 3, 500):
        seen = [name for name in await all_names(own_local, f"/leases?limit={limit}") if name in mine]
        assert seen == sorted(mine), limit


async def test_next_link_includes_limit_and_cursor(local: LocalService, name: str) -> None:
    for number in range(3):
        await acquire(local.database.store, f"{name}-{number}", "batch-1")
    response = await local.http.get("/leases", params={"limit": 2})
    link = httpx.URL(response.links["next"]["url"])
    assert (link.path, dict(link.params)) == ("/leases", {"limit": "2", "cursor": response.json()["nextCursor"]})


async def test_default_page_has_100_leases(any_local: LocalService) -> None:
    for number in range(101):
        await acquire(any_local.database.store, f"lease{number:03}", "batch-1")
    first = (await any_local.http.get("/leases")).json()
    assert (first["count"], first["nextCursor"] is None) == (100, False)


def test_forged_cursor_returns_400(client: Client) -> None:
    for cursor in FORGED:
        response = client.http.get("/leases", params={"cursor": cursor})
        assert response.status_code == 400, cursor
        assert [error["field"] for error in response.json()["errors"]] == ["cursor"], cursor


def test_cursor_of_missing_lease_is_accepted(client: Client) -> None:
    assert client.http.get("/leases", params={"cursor": CURSOR_OF_MISSING_LEASE}).status_code == 200


def test_list_with_invalid_parameter_returns_400(any_client: Client) -> None:
    for query in ("limit=0", "limit=501", "limit=-1", "limit=1e2", "limit=", "held=true", "name=x", "LIMIT=1"):
        response = any_client.http.get(f"/leases?{query}")
        assert (response.status_code, response.json()["errors"][0]["field"]) == (400, query.partition("=")[0]), query


def test_list_accepts_limit_of_500(client: Client) -> None:
    assert client.http.get("/leases?limit=500").status_code == 200


# Resign.


async def test_resign_ends_lease_and_returns_it(local: LocalService, name: str) -> None:
    await acquire(local.database.store, name, "batch-1")
    before = await read_lease(local, name)
    response = await resign(local, name)
    lease = response.json()
    assert (response.status_code, list(lease)) == (200, FIELDS)
    assert (lease["held"], lease["holder"], lease["epoch"]) == (False, "batch-1", 1)
    assert lease["expiresAt"] < before["expiresAt"]
    assert lease == await read_lease(local, name)


async def test_former_holder_cannot_renew_after_resign(local: LocalService, name: str) -> None:
    fence = await acquire_free_lease(local.database.store, name, "batch-1")
    await resign(local, name)
    with pytest.raises(LeaseLost):
        await local.database.store.renew_lease(fence, SECOND)


async def test_resign_is_idempotent(local: LocalService, name: str) -> None:
    await acquire(local.database.store, name, "batch-1")
    first, second = await resign(local, name), await resign(local, name)
    assert (second.status_code, second.json()) == (200, first.json())


async def test_resign_accepts_any_encoding_of_job_lock_name(local: LocalService) -> None:
    for encoded in ("job%3Atidy", "job%3atidy", "job:tidy", "%6Aob%3Atid%79"):
        await acquire(local.database.store, "job:tidy", "batch-1")
        response = await local.http.post(f"/leases/{encoded}/resign")
        assert (response.status_code, response.json()["name"], response.json()["held"]) == (200, "job:tidy", False), (
            encoded
        )


async def test_resign_accepts_lease_names_with_special_characters(any_local: LocalService) -> None:
    for name in ("a b", "a?b", "a#b", "a%b", "a%2Fb", "100%", "a+b", "a;b", "resign", "~!$&'()*,=@^"):
        await acquire(any_local.database.store, name, "batch-1")
        response = await resign(any_local, name)
        assert (response.status_code, response.json().get("name")) == (200, name)


UNKNOWN = [
    "unknown",
    "job:nothing",
    "NIGHTLY",
    "x" * 201,
    "x" * 5000,
    "%00",
    "%FF",
    "%C3%A9",
    "%20",
    "a%0Ab",
    "%27%20OR%201=1",
]


def test_resign_of_unknown_lease_returns_404(client: Client) -> None:
    for name in UNKNOWN:
        response = client.http.post(client.http.base_url.copy_with(raw_path=f"/leases/{name}/resign".encode()))
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), name[:20]


def test_unknown_leases_path_returns_404(any_client: Client) -> None:
    for path in ("/leases/", "/leases/nightly", "/leases//resign", "/leases/a/b/resign", "/leases/resign"):
        url = any_client.http.base_url.copy_with(raw_path=path.encode())
        assert any_client.http.post(url).status_code == 404, path


def test_resign_with_query_parameter_returns_400(any_client: Client) -> None:
    response = any_client.http.post("/leases/nightly/resign?force=true")
    assert (response.status_code, response.json()["errors"][0]["field"]) == (400, "force")


def test_unsupported_method_returns_405(any_client: Client) -> None:
    for method, path in (("POST", "/leases"), ("GET", "/leases/x/resign"), ("PUT", "/leases/x/resign")):
        assert any_client.http.request(method, path).status_code == 405, (method, path)


# Prefix and version.


@pytest.fixture
async def prefixed(database: Database) -> AsyncIterator[LocalService]:
    async with LocalService.on(database, prefix="/api/v3").running() as service:
        yield service


async def test_routes_are_available_with_and_without_version(local: LocalService, name: str) -> None:
    await acquire(local.database.store, name, "batch-1")
    for version in ("", "/v1"):
        listed, resigned = await local.http.get(f"{version}/leases"), await resign(local, name, version)
        assert (listed.status_code, resigned.status_code) == (200, 200), version


async def test_routes_and_next_links_are_available_only_below_prefix(prefixed: LocalService) -> None:
    for name in ("one", "two"):
        await acquire(prefixed.database.store, name, "batch-1")
    for version in ("", "/v1"):
        below = f"/api/v3{version}"
        listed, resigned = await prefixed.http.get(f"{below}/leases"), await resign(prefixed, "one", below)
        assert (listed.status_code, resigned.status_code) == (200, 200), version
        assert (await prefixed.http.get(f"{version}/leases")).status_code == 404, version
    link = (await prefixed.http.get("/api/v3/leases?limit=1")).links["next"]["url"]
    assert (link.partition("?")[0], (await prefixed.http.get(link)).status_code) == ("/api/v3/leases", 200)


async def test_history_lists_terms_of_one_lease_or_of_all_leases(database: Database) -> None:
    async with LocalService.on(database).running() as local:
        for number in (1, 2, 3):
            fence = await acquire_free_lease(database.store, "nightly", f"holder {number}")
            if number < 3:
                await database.store.release_lease(fence)
        own = await local.http.get("/leases/nightly/history", params={"limit": 2})
        assert [(term["epoch"], term["holder"], term["how"]) for term in own.json()["terms"]] == [
            (3, "holder 3", None),
            (2, "holder 2", "released"),
        ]
        assert "/leases/nightly/history?" in own.headers["link"]
        rest = await local.http.get("/leases/nightly/history", params={"cursor": own.json()["nextCursor"]})
        assert [term["epoch"] for term in rest.json()["terms"]] == [1]
        found: list[Json] = []
        cursor: Json = {}
        while True:
            page = (await local.http.get("/leases/history", params={"limit": 1, **cursor})).json()
            found += [term for term in page["terms"] if term["name"] == "nightly"]
            if page["nextCursor"] is None:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert [term["epoch"] for term in found] == [3, 2, 1]
        ended = found[-1]["endedAt"]
        later = (await local.http.get("/leases/history", params={"from": ended})).json()["terms"]
        assert [term["epoch"] for term in later if term["name"] == "nightly"] == [3, 2]
        assert (await local.http.get("/leases/nothing/history")).status_code == 404
        assert (await local.http.get("/leases/job:prune/history")).status_code == 404
        for forged in FORGED:
            answer = await local.http.get("/leases/history", params={"cursor": forged})
            assert answer.status_code == 400, forged
