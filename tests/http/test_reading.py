"""`GET /sessions/{sessionId}`."""

from uuid import uuid4

import pytest

from tests.http.client import Client
from tests.http.local import LocalService
from tests.http.test_opening import SESSION_KEYS


def test_shows_a_session_with_just_these_fields(client: Client) -> None:
    answer = client.get(client.open()["sessionId"])
    assert (answer.status_code, set(answer.json())) == (200, SESSION_KEYS)


def test_an_upper_case_id_is_the_same_id(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert client.get(session_id.upper()).json()["sessionId"] == session_id


@pytest.mark.parametrize("path", ["/sessions", "/v1/sessions"])
def test_reads_under_both_addresses(client: Client, path: str) -> None:
    session_id = client.open()["sessionId"]
    assert client.http.get(f"{path}/{session_id}").json()["sessionId"] == session_id


def test_an_unknown_session_is_not_found(client: Client) -> None:
    answer = client.get(str(uuid4()))
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "session_id",
    [
        "1",
        "metric",
        "0123456789abcdef0123456789abcdef",
        "{00000000-0000-0000-0000-000000000000}",
        "00000000-0000-0000-0000-00000000000",
        "00000000-0000-0000-0000-0000000000000",
        "00000000-0000-0000-0000-00000000000g",
        "00000000-0000-0000-0000-000000000000%0A",
        "%2e%2e",
        "%00",
        "%FF",
        "%F0%9F%92%A9",
        "x" * 4000,
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_malformed_id_is_the_id_of_no_session(client: Client, method: str, session_id: str) -> None:
    answer = client.http.request(method, f"/sessions/{session_id}")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"leaseSeconds": 60}, "LEASE_EXPIRED"), ({"idleSeconds": 60}, "IDLE_TIMEOUT"), ({}, "EXPIRED")],
)
async def test_a_lapsed_session_reads_as_it_will_be_recorded(
    local: LocalService, limits: dict[str, int], reason: str
) -> None:
    opened = await local.open(**limits)
    await local.move_to(opened["leaseExpiresAt"])
    read = await local.get(opened["sessionId"])
    await local.http.delete(f"/sessions/{opened['sessionId']}")
    assert (read["isActive"], read["state"], read["closeReason"]) == (False, "closed", reason)
    assert read["sessionEndUtc"] == read["modifiedUtc"] == opened["leaseExpiresAt"]
    assert await local.get(opened["sessionId"]) == read
