"""`/capacities`, and how a capacity limits the opening of sessions."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.http.client import Client, Json, open_body, same_key
from tests.http.local import LocalService

FIELDS = {"capacityId", "maxSessions", "whenFull", "tenantObjectId", "activeSessions", "createdAt", "modifiedAt"}


def put(client: Client, capacity_id: str, **body: Any) -> httpx.Response:
    return client.http.put(f"/capacities/{capacity_id}", json=body)


def limited(client: Client, **body: Any) -> str:
    """Creates a capacity and returns its id."""
    capacity_id = str(uuid4())
    assert put(client, capacity_id, **body).status_code == 200
    return capacity_id


# Setting and reading


def test_put_returns_all_fields(client: Client) -> None:
    capacity_id, tenant = str(uuid4()), str(uuid4())
    response = put(client, capacity_id, maxSessions=20, whenFull="evictOldest", tenantObjectId=tenant)
    capacity = response.json()
    assert (response.status_code, set(capacity)) == (200, FIELDS)
    assert capacity["createdAt"] == capacity["modifiedAt"]
    assert capacity == {
        **capacity,
        "capacityId": capacity_id,
        "maxSessions": 20,
        "whenFull": "evictOldest",
        "tenantObjectId": tenant,
        "activeSessions": 0,
    }


def test_put_replaces_all_settings(client: Client) -> None:
    capacity_id = limited(client, maxSessions=20, whenFull="evictOldest", tenantObjectId=str(uuid4()))
    first = client.http.get(f"/capacities/{capacity_id}").json()
    second = put(client, capacity_id).json()
    assert (second["maxSessions"], second["whenFull"], second["tenantObjectId"]) == (None, "reject", None)
    assert second["createdAt"] == first["createdAt"]
    assert second["modifiedAt"] > first["modifiedAt"]


def test_get_returns_the_fields_of_put_and_next_lapse(client: Client) -> None:
    capacity_id = str(uuid4())
    capacity = {**put(client, capacity_id, maxSessions=3).json(), "nextLapse": None}
    assert client.http.get(f"/capacities/{capacity_id}").json() == capacity


def test_get_returns_the_next_session_to_lapse(client: Client) -> None:
    capacity_id = limited(client, maxSessions=3)
    late, soon = [client.open(capacityId=capacity_id, leaseSeconds=seconds) for seconds in (90, 60)]
    for session in (soon, late):
        expected = {"sessionId": session["sessionId"], "deadline": session["leaseExpiresAt"]}
        assert client.http.get(f"/capacities/{capacity_id}").json()["nextLapse"] == expected
        client.end(session["sessionId"])
    assert client.http.get(f"/capacities/{capacity_id}").json()["nextLapse"] is None


def test_ids_are_case_insensitive(client: Client) -> None:
    capacity_id, tenant = str(uuid4()), str(uuid4())
    assert put(client, capacity_id.upper(), tenantObjectId=tenant.upper()).json()["capacityId"] == capacity_id
    assert client.http.get(f"/v1/capacities/{capacity_id}").json()["tenantObjectId"] == tenant


def test_unknown_capacity_returns_404(client: Client) -> None:
    for capacity_id in (str(uuid4()), "nothing"):
        for method in ("GET", "DELETE"):
            response = client.http.request(method, f"/capacities/{capacity_id}")
            assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), (method, capacity_id)
    assert put(client, "nothing", maxSessions=1).status_code == 404


def test_delete_returns_capacity_and_removes_it(client: Client) -> None:
    capacity_id = limited(client, maxSessions=3)
    capacity = client.http.get(f"/capacities/{capacity_id}").json()
    del capacity["nextLapse"]
    response = client.http.delete(f"/capacities/{capacity_id}")
    assert (response.status_code, response.json()) == (200, capacity)
    assert client.http.get(f"/capacities/{capacity_id}").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"maxSessions": -1},
        {"maxSessions": 1.5},
        {"maxSessions": "3"},
        {"maxSessions": True},
        {"maxSessions": 2_147_483_648},
        {"whenFull": "evict"},
        {"whenFull": None},
        {"tenantObjectId": "not-an-id"},
        {"seats": 3},
    ],
    ids=str,
)
def test_put_with_invalid_field_returns_400_and_stores_nothing(any_client: Client, body: Json) -> None:
    capacity_id = str(uuid4())
    response = put(any_client, capacity_id, **body)
    assert (response.status_code, [error["field"] for error in response.json()["errors"]]) == (400, list(body))
    assert any_client.http.get(f"/capacities/{capacity_id}").status_code == 404


def test_list_is_paginated(client: Client) -> None:
    tenant = str(uuid4())
    ids = sorted(limited(client, tenantObjectId=tenant, maxSessions=number) for number in range(5))
    seen: list[str] = []
    url: str | None = f"/capacities?tenant={tenant}&limit=2"
    while url is not None:
        response = client.http.get(url)
        page = response.json()
        assert page["count"] == len(page["capacities"]) <= 2
        assert set(page["capacities"][0]) == FIELDS
        seen += [capacity["capacityId"] for capacity in page["capacities"]]
        url = response.links["next"]["url"] if page["nextCursor"] else None
    assert seen == ids


def test_list_with_invalid_parameter_returns_400(any_client: Client) -> None:
    for query in ("limit=0", "limit=501", "cursor=x", "tenant=x", "limit=1e1", "state=created"):
        response = any_client.http.get(f"/capacities?{query}")
        assert (response.status_code, response.json()["errors"][0]["field"]) == (400, query.partition("=")[0]), query


# Seats


def test_open_returns_429_when_all_seats_are_taken(client: Client) -> None:
    capacity_id = limited(client, maxSessions=1)
    client.open(capacityId=capacity_id)
    response = client.put(open_body(capacityId=capacity_id))
    assert (response.status_code, response.headers["content-type"]) == (429, "application/problem+json")
    assert int(response.headers["retry-after"]) >= 1
    problem = response.json()
    assert (problem["type"], problem["code"], problem["status"]) == ("urn:tenure:session-limit", "SESSION_LIMIT", 429)
    assert problem["detail"] == problem["error"]


def test_ending_a_session_frees_its_seat(client: Client) -> None:
    capacity_id = limited(client, maxSessions=1)
    client.end(client.open(capacityId=capacity_id)["sessionId"])
    assert client.put(open_body(capacityId=capacity_id)).status_code == 201


def test_upgrade_takes_no_second_seat(client: Client) -> None:
    capacity_id = limited(client, maxSessions=1)
    response = client.put(same_key(client.open(capacityId=capacity_id), sessionKind=3))
    assert (response.status_code, response.json()["status"]) == (201, "upgraded")
    assert client.http.get(f"/capacities/{capacity_id}").json()["activeSessions"] == 1


def test_full_capacity_with_evict_oldest_evicts_oldest_session(client: Client) -> None:
    capacity_id = limited(client, maxSessions=2, whenFull="evictOldest")
    first, second, third = (client.open(capacityId=capacity_id) for _ in range(3))
    reasons = [client.get(one["sessionId"]).json()["closeReason"] for one in (first, second, third)]
    assert reasons == ["EVICTED", None, None]
    assert client.get(first["sessionId"]).json()["sessionEndUtc"] <= third["sessionStartUtc"]


def test_open_on_capacity_of_another_tenant_returns_403(client: Client) -> None:
    capacity_id = limited(client, tenantObjectId=str(uuid4()))
    response = client.put(open_body(capacityId=capacity_id))
    assert (response.status_code, response.json()["code"]) == (403, "CAPACITY_OF_ANOTHER_TENANT")
    assert response.json()["type"] == "urn:tenure:capacity-of-another-tenant"


def test_live_session_stays_usable_after_capacity_moves_to_another_tenant(client: Client) -> None:
    opened = client.open(capacityId=(capacity_id := str(uuid4())))
    put(client, capacity_id, maxSessions=0, tenantObjectId=str(uuid4()))
    assert client.put(same_key(opened)).status_code == 200
    assert client.http.post(f"/sessions/{opened['sessionId']}/heartbeat").status_code == 200
    assert client.put(same_key(opened, tenantObjectId=str(uuid4()))).status_code == 409


async def closed_by(local: LocalService, reason: str) -> int:
    """How many sessions the instance has closed with this close reason."""
    return int((await local.http.get("/sessions/metrics")).json()["closedByReason"][reason])


async def test_lapsed_session_holds_no_seat(local: LocalService) -> None:
    capacity_id, closed_before = str(uuid4()), await closed_by(local, "LEASE_EXPIRED")
    await local.http.put(f"/capacities/{capacity_id}", json={"maxSessions": 1})
    opened = await local.open(capacityId=capacity_id, leaseSeconds=60)
    await local.move_to(opened["leaseExpiresAt"])
    assert (await local.http.get(f"/capacities/{capacity_id}")).json()["activeSessions"] == 0
    assert (await local.put(open_body(capacityId=capacity_id))).status_code == 201
    assert await closed_by(local, "LEASE_EXPIRED") == closed_before + 1


async def test_metrics_count_evictions(local: LocalService) -> None:
    capacity_id, closed_before = str(uuid4()), await closed_by(local, "EVICTED")
    await local.http.put(f"/capacities/{capacity_id}", json={"maxSessions": 1, "whenFull": "evictOldest"})
    for _ in range(3):
        await local.open(capacityId=capacity_id)
    assert await closed_by(local, "EVICTED") == closed_before + 2
