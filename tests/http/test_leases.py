"""`/leases`: who holds what, and having it ended."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from urllib.parse import quote

import httpx
import pytest

from tenure.errors import LeaseLost
from tenure.model.leases import JobCommand
from tests.http.client import Client, Json
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.leases import acquire, begun, every, taken
from tests.support.wishes import SECOND

FIELDS = ["name", "holder", "epoch", "held", "acquiredAt", "renewedAt", "expiresAt"]
LONGEST = 196
HARMLESS = "bGVhc2U"
"""The cursor after a lease called `lease`."""
FORGED = ["", "null", "0", "abc", "!!!!", "é", "A" * 200, "w6k", "bGVh c2U", "YQBi"]
"""What no answer gave out: no base64, nothing in it, or something in it that no name has."""


async def resign(local: LocalService, name: str, prefix: str = "") -> httpx.Response:
    return await local.http.post(f"{prefix}/leases/{quote(name, safe='')}/resign")


async def shown(local: LocalService, name: str) -> Json:
    answer = await local.http.get("/leases", params={"limit": 500})
    (lease,) = [lease for lease in answer.json()["leases"] if lease["name"] == name]
    return lease  # type: ignore[no-any-return]


async def all_names(local: LocalService, url: str) -> Sequence[str]:
    """Page by page, by the links."""
    seen: list[str] = []
    while url:
        answer = await local.http.get(url)
        assert answer.status_code == 200, f"{url}\n{answer.text}"
        page = answer.json()
        assert (page["count"], "next" in answer.links) == (len(page["leases"]), page["nextCursor"] is not None)
        seen += [lease["name"] for lease in page["leases"]]
        url = answer.links["next"]["url"] if "next" in answer.links else ""
    return seen


# The form.


async def test_a_lease_is_shown_with_all_of_it(local: LocalService, database: Database) -> None:
    await acquire(database.store, "nightly", "batch-1", 90 * SECOND)
    lease = await shown(local, "nightly")
    assert list(lease) == FIELDS
    assert (lease["holder"], lease["epoch"], lease["held"]) == ("batch-1", 1, True)
    assert lease["acquiredAt"] == lease["renewedAt"]
    lasts = datetime.fromisoformat(lease["expiresAt"]) - datetime.fromisoformat(lease["acquiredAt"])
    assert lasts == timedelta(seconds=90)


async def test_a_renewal_moves_what_it_should(local: LocalService, database: Database) -> None:
    fence = await taken(database.store, "nightly", "batch-1")
    before = await shown(local, "nightly")
    await database.store.renew_lease(fence, 90 * SECOND)
    after = await shown(local, "nightly")
    assert (after["epoch"], after["acquiredAt"]) == (before["epoch"], before["acquiredAt"])
    assert after["renewedAt"] > before["renewedAt"]
    assert after["expiresAt"] > before["expiresAt"]


async def test_instants_have_six_decimals_and_a_z(local: LocalService, database: Database) -> None:
    await local.clock.set(datetime.fromisoformat("2041-03-01T12:00:00Z"))
    await acquire(database.store, "nightly", "batch-1")
    lease = await shown(local, "nightly")
    assert (lease["acquiredAt"], lease["expiresAt"]) == ("2041-03-01T12:00:00.000000Z", "2041-03-01T12:01:00.000000Z")


async def test_held_is_by_the_database_at_this_moment(local: LocalService, database: Database) -> None:
    await acquire(database.store, "nightly", "batch-1")
    expires_at = (await shown(local, "nightly"))["expiresAt"]
    await local.move_to(expires_at, microseconds=-1)
    before = (await shown(local, "nightly"))["held"]
    await local.move_to(expires_at)
    assert (before, (await shown(local, "nightly"))["held"]) == (True, False)


async def test_what_was_released_stays_in_the_list(local: LocalService, database: Database) -> None:
    await database.store.release_lease(await taken(database.store, "nightly", "batch-1"))
    lease = await shown(local, "nightly")
    assert (lease["held"], lease["holder"], lease["epoch"]) == (False, "batch-1", 1)


async def test_locks_of_jobs_are_leases_too(local: LocalService, database: Database) -> None:
    await database.store.register_jobs([every(SECOND)])
    await database.store.command_job("tidy", JobCommand.RUN)
    await begun(database.store, "tidy", "batch-1")
    assert (await shown(local, "job:tidy"))["holder"] == "batch-1"


# Pages.


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
async def test_the_list_goes_page_by_page_in_the_order_of_names(
    local: LocalService, database: Database, limit: int
) -> None:
    mine = [f"lease{letter}" for letter in "edcba"]
    for name in mine:
        await acquire(database.store, name, "somebody")
    seen = [name for name in await all_names(local, f"/leases?limit={limit}") if name in mine]
    assert seen == sorted(mine)


async def test_the_link_carries_limit_and_cursor(local: LocalService, database: Database) -> None:
    for name in ("one", "two", "three"):
        await acquire(database.store, name, "somebody")
    answer = await local.http.get("/leases", params={"limit": 2})
    link = httpx.URL(answer.links["next"]["url"])
    assert (link.path, dict(link.params)) == ("/leases", {"limit": "2", "cursor": answer.json()["nextCursor"]})


async def test_the_longest_names_can_be_paged_through(local: LocalService, database: Database) -> None:
    names = [f"{letter}{'x' * (LONGEST - 1)}" for letter in "ab"]
    for name in names:
        await acquire(database.store, name, "somebody")
    assert set(names) <= set(await all_names(local, "/leases?limit=1"))


async def test_a_hundred_are_shown_unless_more_are_asked_for(
    any_local: LocalService, sqlite_database: Database
) -> None:
    for number in range(101):
        await acquire(sqlite_database.store, f"lease{number:03}", "somebody")
    first = (await any_local.http.get("/leases")).json()
    assert (first["count"], first["nextCursor"] is None) == (100, False)


@pytest.mark.parametrize("cursor", FORGED)
def test_a_cursor_that_was_never_given_out_is_refused(client: Client, cursor: str) -> None:
    answer = client.http.get("/leases", params={"cursor": cursor})
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, ["cursor"])


def test_a_cursor_of_a_lease_that_is_not_there_still_has_a_place(client: Client) -> None:
    assert client.http.get("/leases", params={"cursor": HARMLESS}).status_code == 200


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=-1", "limit=1e2", "limit=", "held=true", "name=x", "Limit=1"]
)
def test_the_list_refuses_what_it_does_not_know(client: Client, query: str) -> None:
    answer = client.http.get(f"/leases?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, query.partition("=")[0])


def test_a_page_may_have_five_hundred(client: Client) -> None:
    assert client.http.get("/leases?limit=500").status_code == 200


# Resigning.


async def test_resigning_ends_the_lease_now_and_shows_it(local: LocalService, database: Database) -> None:
    await acquire(database.store, "nightly", "batch-1")
    before = await shown(local, "nightly")
    answer = await resign(local, "nightly")
    lease = answer.json()
    assert (answer.status_code, list(lease)) == (200, FIELDS)
    assert (lease["held"], lease["holder"], lease["epoch"]) == (False, "batch-1", 1)
    assert lease["expiresAt"] < before["expiresAt"]
    assert lease == await shown(local, "nightly")


async def test_who_held_it_can_write_nothing_more(local: LocalService, database: Database) -> None:
    fence = await taken(database.store, "nightly", "batch-1")
    await resign(local, "nightly")
    with pytest.raises(LeaseLost):
        await database.store.renew_lease(fence, SECOND)


async def test_resigning_again_changes_nothing(local: LocalService, database: Database) -> None:
    await acquire(database.store, "nightly", "batch-1")
    first, second = await resign(local, "nightly"), await resign(local, "nightly")
    assert (second.status_code, second.json()) == (200, first.json())


@pytest.mark.parametrize("written", ["job%3Atidy", "job%3atidy", "job:tidy", "%6Aob%3Atid%79"])
async def test_a_job_lock_can_be_resigned_however_its_name_is_written(
    local: LocalService, database: Database, written: str
) -> None:
    await acquire(database.store, "job:tidy", "batch-1")
    answer = await local.http.post(f"/leases/{written}/resign")
    assert (answer.status_code, answer.json()["name"], answer.json()["held"]) == (200, "job:tidy", False)


@pytest.mark.parametrize("name", ["a b", "a?b", "a#b", "a%b", "a%2Fb", "100%", "a+b", "a;b", "resign", "~!$&'()*,=@^"])
async def test_every_name_that_a_lease_can_have_can_be_resigned(
    any_local: LocalService, sqlite_database: Database, name: str
) -> None:
    await acquire(sqlite_database.store, name, "somebody")
    answer = await resign(any_local, name)
    assert (answer.status_code, answer.json().get("name")) == (200, name)


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
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
    ],
)
def test_what_nobody_ever_held_is_not_found(client: Client, name: str) -> None:
    answer = client.http.post(client.http.base_url.copy_with(raw_path=f"/leases/{name}/resign".encode()))
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "path", ["/leases/", "/leases/nightly", "/leases//resign", "/leases/a/b/resign", "/leases/resign"]
)
def test_there_is_nothing_beside_these_addresses(client: Client, path: str) -> None:
    assert client.http.post(client.http.base_url.copy_with(raw_path=path.encode())).status_code == 404


def test_resigning_takes_no_parameters(client: Client) -> None:
    answer = client.http.post("/leases/nightly/resign?force=true")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "force")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/leases"), ("GET", "/leases/x/resign"), ("PUT", "/leases/x/resign")]
)
def test_a_method_that_is_not_taken_is_refused(client: Client, method: str, path: str) -> None:
    assert client.http.request(method, path).status_code == 405


# Addresses.


@pytest.fixture
async def prefixed(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    async with LocalService.on(database, monkeypatch, prefix="/api/v3").running() as service:
        yield service


@pytest.mark.parametrize("version", ["", "/v1"])
async def test_answers_with_and_without_the_version(local: LocalService, database: Database, version: str) -> None:
    await acquire(database.store, "nightly", "batch-1")
    listed, resigned = await local.http.get(f"{version}/leases"), await resign(local, "nightly", version)
    assert (listed.status_code, resigned.status_code) == (200, 200)


@pytest.mark.parametrize("version", ["", "/v1"])
async def test_answers_below_the_prefix(prefixed: LocalService, database: Database, version: str) -> None:
    await acquire(database.store, "nightly", "batch-1")
    below = f"/api/v3{version}"
    listed, resigned = await prefixed.http.get(f"{below}/leases"), await resign(prefixed, "nightly", below)
    assert (listed.status_code, resigned.status_code) == (200, 200)
    assert (await prefixed.http.get(f"{version}/leases")).status_code == 404


async def test_the_link_carries_the_prefix(prefixed: LocalService, database: Database) -> None:
    for name in ("one", "two"):
        await acquire(database.store, name, "somebody")
    link = (await prefixed.http.get("/api/v3/leases?limit=1")).links["next"]["url"]
    assert (link.partition("?")[0], (await prefixed.http.get(link)).status_code) == ("/api/v3/leases", 200)
