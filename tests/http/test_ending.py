"""`DELETE /sessions/{sessionId}`."""

from uuid import uuid4

import pytest

from tests.http.client import Client, Json, same_key
from tests.http.local import LocalService
from tests.http.test_opening import SESSION_KEYS


def test_ends_a_session_as_terminated(client: Client) -> None:
    answer = client.end(client.open()["sessionId"])
    session = answer.json()
    assert (answer.status_code, set(session)) == (200, SESSION_KEYS)
    assert (session["isActive"], session["state"], session["closeReason"]) == (False, "closed", "TERMINATED")


def test_stamps_the_end_where_the_term_stood(client: Client) -> None:
    opened = client.open()
    ended = client.end(opened["sessionId"]).json()
    assert opened["sessionStartUtc"] < ended["sessionEndUtc"] < opened["sessionEndUtc"]
    assert ended["modifiedUtc"] == ended["sessionEndUtc"]


def test_changes_nothing_but_the_end(client: Client) -> None:
    opened = client.open(leaseSeconds=60, idleSeconds=90, sessionKind=2)
    ended = client.end(opened["sessionId"]).json()
    changed = {name for name in SESSION_KEYS if opened[name] != ended[name]}
    assert changed == {"isActive", "state", "closeReason", "sessionEndUtc", "modifiedUtc"}


def test_repeating_it_is_harmless(client: Client) -> None:
    session_id = client.open()["sessionId"]
    first, again = client.end(session_id), client.end(session_id)
    assert (again.status_code, again.json()) == (200, first.json())


def test_an_ended_session_can_still_be_read(client: Client) -> None:
    session_id = client.open()["sessionId"]
    ended = client.end(session_id).json()
    assert client.get(session_id).json() == ended


def test_its_key_is_free_at_once(client: Client) -> None:
    opened = client.open()
    ended = client.end(opened["sessionId"]).json()
    successor = client.put(same_key(opened)).json()
    assert (successor["status"], successor["previousSessionId"]) == ("created", None)
    assert successor["sessionStartUtc"] >= ended["sessionEndUtc"]


def test_an_upgraded_session_keeps_its_reason(client: Client) -> None:
    opened = client.open()
    client.put(same_key(opened, sessionKind=2))
    assert client.end(opened["sessionId"]).json()["closeReason"] == "UPGRADED"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"leaseSeconds": 60}, "LEASE_EXPIRED"), ({"idleSeconds": 60}, "IDLE_TIMEOUT"), ({}, "EXPIRED")],
)
async def test_a_lapsed_session_keeps_its_lapse_reason(local: LocalService, limits: Json, reason: str) -> None:
    opened = await local.open(**limits)
    await local.move_to(opened["leaseExpiresAt"], seconds=1)
    answer = await local.http.delete(f"/sessions/{opened['sessionId']}")
    ended = answer.json()
    assert (answer.status_code, ended["closeReason"], ended["sessionEndUtc"]) == (200, reason, opened["leaseExpiresAt"])


async def test_a_session_ended_in_the_instant_it_began_lasts_a_microsecond(local: LocalService) -> None:
    await local.move_to("2030-01-01T00:00:00Z")
    opened = await local.open()
    ended = (await local.http.delete(f"/sessions/{opened['sessionId']}")).json()
    assert ended["sessionEndUtc"] == "2030-01-01T00:00:00.000001Z"


def test_an_unknown_session_is_not_found(client: Client) -> None:
    answer = client.end(str(uuid4()))
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_an_upper_case_id_is_the_same_id(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert client.end(session_id.upper()).json()["sessionId"] == session_id


def test_ends_under_v1_too(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert client.http.delete(f"/v1/sessions/{session_id}").json()["closeReason"] == "TERMINATED"


def test_takes_no_parameters(client: Client) -> None:
    session_id = client.open()["sessionId"]
    answer = client.http.delete(f"/sessions/{session_id}", params={"reason": "STOPPED"})
    assert (answer.status_code, client.get(session_id).json()["isActive"]) == (400, True)
