"""`GET /sessions/{sessionId}`."""

from uuid import uuid4

import pytest

from tests.http.client import Client
from tests.http.local import LAPSES, LocalService
from tests.http.test_opening import SESSION_KEYS


def test_get_returns_exactly_the_expected_fields(client: Client) -> None:
    response = client.get(client.open()["sessionId"])
    assert (response.status_code, set(response.json())) == (200, SESSION_KEYS)


def test_session_id_is_case_insensitive(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert client.get(session_id.upper()).json()["sessionId"] == session_id


def test_get_is_available_with_and_without_version(client: Client) -> None:
    session_id = client.open()["sessionId"]
    for path in ("/sessions", "/v1/sessions"):
        assert client.http.get(f"{path}/{session_id}").json()["sessionId"] == session_id, path


def test_unknown_session_returns_404(client: Client) -> None:
    response = client.get(str(uuid4()))
    assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND")


MALFORMED = [
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
]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_malformed_session_id_returns_404(client: Client, method: str) -> None:
    for session_id in MALFORMED:
        response = client.http.request(method, f"/sessions/{session_id}")
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), session_id


async def test_lapsed_session_reads_as_closed_before_its_end_is_recorded(local: LocalService) -> None:
    for limits, reason in LAPSES:
        opened = await local.open(**limits)
        await local.move_to(opened["leaseExpiresAt"])
        read = await local.get(opened["sessionId"])
        await local.http.delete(f"/sessions/{opened['sessionId']}")
        assert (read["isActive"], read["state"], read["closeReason"]) == (False, "closed", reason)
        assert read["sessionEndUtc"] == read["modifiedUtc"] == opened["leaseExpiresAt"], reason
        assert await local.get(opened["sessionId"]) == read, reason
