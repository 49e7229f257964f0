"""`/capacities`, and what they mean for opening a session."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.http.client import Client, Json, same_key, wish
from tests.http.local import LocalService

FIELDS = {"capacityId", "maxSessions", "whenFull", "tenantObjectId", "activeSessions", "createdAt", "modifiedAt"}


def put(client: Client, capacity_id: str, **body: Any) -> httpx.Response:
    return client.http.put(f"/capacities/{capacity_id}", json=body)


def limited(client: Client, **body: Any) -> str:
    """A capacity with these rules."""
    capacity_id = str(uuid4())
    assert put(client, capacity_id, **body).status_code == 200
    return capacity_id


# Setting and reading


def test_put_answers_with_all_of_it(client: Client) -> None:
    capacity_id, tenant = str(uuid4()), str(uuid4())
    answer = put(client, capacity_id, maxSessions=20, whenFull="evictOldest", tenantObjectId=tenant)
    capacity = answer.json()
    assert (answer.status_code, set(capacity)) == (200, FIELDS)
    assert capacity["createdAt"] == capacity["modifiedAt"]
    assert capacity == {
        **capacity,
        "capacityId": capacity_id,
        "maxSessions": 20,
        "whenFull": "evictOldest",
        "tenantObjectId": tenant,
        "activeSessions": 0,
    }


def test_put_replaces_all_of_it(client: Client) -> None:
    capacity_id = limited(client, maxSessions=20, whenFull="evictOldest", tenantObjectId=str(uuid4()))
    first = client.http.get(f"/capacities/{capacity_id}").json()
    second = put(client, capacity_id).json()
    assert (second["maxSessions"], second["whenFull"], second["tenantObjectId"]) == (None, "reject", None)
    assert second["createdAt"] == first["createdAt"]
    assert second["modifiedAt"] > first["modifiedAt"]


def test_get_reads_what_was_put(client: Client) -> None:
    capacity_id = str(uuid4())
    assert put(client, capacity_id, maxSessions=3).json() == client.http.get(f"/capacities/{capacity_id}").json()


def test_ids_of_any_case_are_the_same(client: Client) -> None:
    capacity_id, tenant = str(uuid4()), str(uuid4())
    assert put(client, capacity_id.upper(), tenantObjectId=tenant.upper()).json()["capacityId"] == capacity_id
    assert client.http.get(f"/v1/capacities/{capacity_id}").json()["tenantObjectId"] == tenant


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("capacity_id", ["5f0a4f5e-0000-4000-8000-0000000000aa", "nothing"])
def test_what_was_never_set_is_not_found(client: Client, method: str, capacity_id: str) -> None:
    answer = client.http.request(method, f"/capacities/{capacity_id}")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_a_malformed_id_cannot_be_put(client: Client) -> None:
    assert put(client, "nothing", maxSessions=1).status_code == 404


def test_delete_answers_what_it_was_and_then_it_is_gone(client: Client) -> None:
    capacity_id = limited(client, maxSessions=3)
    capacity = client.http.get(f"/capacities/{capacity_id}").json()
    answer = client.http.delete(f"/capacities/{capacity_id}")
    assert (answer.status_code, answer.json()) == (200, capacity)
    assert client.http.get(f"/capacities/{capacity_id}").status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"maxSessions": -1}, "maxSessions"),
        ({"maxSessions": 1.5}, "maxSessions"),
        ({"maxSessions": "3"}, "maxSessions"),
        ({"maxSessions": True}, "maxSessions"),
        ({"maxSessions": 2_147_483_648}, "maxSessions"),
        ({"whenFull": "evict"}, "whenFull"),
        ({"whenFull": None}, "whenFull"),
        ({"tenantObjectId": "nobody"}, "tenantObjectId"),
        ({"seats": 3}, "seats"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_set(client: Client, body: Json, field: str) -> None:
    capacity_id = str(uuid4())
    answer = put(client, capacity_id, **body)
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, [field])
    assert client.http.get(f"/capacities/{capacity_id}").status_code == 404


def test_the_list_goes_page_by_page(client: Client) -> None:
    tenant = str(uuid4())
    ids = sorted(limited(client, tenantObjectId=tenant, maxSessions=number) for number in range(5))
    seen: list[str] = []
    url: str | None = f"/capacities?tenant={tenant}&limit=2"
    while url is not None:
        answer = client.http.get(url)
        page = answer.json()
        assert page["count"] == len(page["capacities"]) <= 2
        assert set(page["capacities"][0]) == FIELDS
        seen += [capacity["capacityId"] for capacity in page["capacities"]]
        url = answer.links["next"]["url"] if page["nextCursor"] else None
    assert seen == ids


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "cursor=x", "tenant=nobody", "limit=1e1", "state=created"])
def test_the_list_refuses_what_it_does_not_know(client: Client, query: str) -> None:
    answer = client.http.get(f"/capacities?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, query.partition("=")[0])


# Seats


def test_refuses_when_all_seats_are_taken(client: Client) -> None:
    capacity_id = limited(client, maxSessions=1)
    client.open(capacityId=capacity_id)
    answer = client.put(wish(capacityId=capacity_id))
    assert (answer.status_code, answer.headers["content-type"]) == (429, "application/problem+json")
    assert int(answer.headers["retry-after"]) >= 1
    problem = answer.json()
    assert (problem["type"], problem["code"], problem["status"]) == ("urn:tenure:session-limit", "SESSION_LIMIT", 429)
    assert problem["detail"] == problem["error"]


def test_a_seat_is_free_as_soon_as_its_session_has_ended(client: Client) -> None:
    capacity_id = limited(client, maxSessions=1)
    client.end(client.open(capacityId=capacity_id)["sessionId"])
    assert client.put(wish(capacityId=capacity_id)).status_code == 201


def test_an_upgrade_keeps_its_seat(client: Client) -> None:
    capacity_id = limited(client, maxSessions=1)
    answer = client.put(same_key(client.open(capacityId=capacity_id), sessionKind=3))
    assert (answer.status_code, answer.json()["status"]) == (201, "upgraded")
    assert client.http.get(f"/capacities/{capacity_id}").json()["activeSessions"] == 1


def test_evicts_the_oldest_where_that_was_asked_for(client: Client) -> None:
    capacity_id = limited(client, maxSessions=2, whenFull="evictOldest")
    first, second, third = (client.open(capacityId=capacity_id) for _ in range(3))
    reasons = [client.get(one["sessionId"]).json()["closeReason"] for one in (first, second, third)]
    assert reasons == ["EVICTED", None, None]
    assert client.get(first["sessionId"]).json()["sessionEndUtc"] <= third["sessionStartUtc"]


def test_a_capacity_of_another_tenant_is_forbidden(client: Client) -> None:
    capacity_id = limited(client, tenantObjectId=str(uuid4()))
    answer = client.put(wish(capacityId=capacity_id))
    assert (answer.status_code, answer.json()["code"]) == (403, "CAPACITY_OF_ANOTHER_TENANT")
    assert answer.json()["type"] == "urn:tenure:capacity-of-another-tenant"


def test_a_live_session_stays_usable_when_its_capacity_goes_to_another_tenant(client: Client) -> None:
    opened = client.open(capacityId=(capacity_id := str(uuid4())))
    put(client, capacity_id, maxSessions=0, tenantObjectId=str(uuid4()))
    assert client.put(same_key(opened)).status_code == 200
    assert client.http.post(f"/sessions/{opened['sessionId']}/heartbeat").status_code == 200
    assert client.put(same_key(opened, tenantObjectId=str(uuid4()))).status_code == 409


async def test_a_lapsed_session_holds_no_seat(local: LocalService) -> None:
    capacity_id = str(uuid4())
    await local.http.put(f"/capacities/{capacity_id}", json={"maxSessions": 1})
    opened = await local.open(capacityId=capacity_id, leaseSeconds=60)
    await local.move_to(opened["leaseExpiresAt"])
    assert (await local.http.get(f"/capacities/{capacity_id}")).json()["activeSessions"] == 0
    assert (await local.put(wish(capacityId=capacity_id))).status_code == 201
    assert (await local.http.get("/sessions/metrics")).json()["closedByReason"]["LEASE_EXPIRED"] == 1


async def test_an_eviction_is_counted(local: LocalService) -> None:
    capacity_id = str(uuid4())
    await local.http.put(f"/capacities/{capacity_id}", json={"maxSessions": 1, "whenFull": "evictOldest"})
    for _ in range(3):
        await local.open(capacityId=capacity_id)
    assert (await local.http.get("/sessions/metrics")).json()["closedByReason"]["EVICTED"] == 2
