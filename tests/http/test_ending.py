"""`DELETE /sessions/{sessionId}`."""

from uuid import uuid4

from tests.http.client import Client, same_key
from tests.http.local import LAPSES, LocalService
from tests.http.test_opening import SESSION_KEYS


def test_delete_closes_session_as_terminated(client: Client) -> None:
    response = client.end(client.open()["sessionId"])
    session = response.json()
    assert (response.status_code, set(session)) == (200, SESSION_KEYS | {"status"})
    assert (session["isActive"], session["state"], session["closeReason"]) == (False, "closed", "TERMINATED")


def test_delete_sets_session_end_to_an_earlier_instant(client: Client) -> None:
    opened = client.open()
    ended = client.end(opened["sessionId"]).json()
    assert opened["sessionStartUtc"] < ended["sessionEndUtc"] < opened["sessionEndUtc"]
    assert ended["modifiedUtc"] == ended["sessionEndUtc"]


def test_delete_changes_only_end_fields(client: Client) -> None:
    opened = client.open(leaseSeconds=60, idleSeconds=90, sessionKind=2)
    ended = client.end(opened["sessionId"]).json()
    changed = {name for name in SESSION_KEYS if opened[name] != ended[name]}
    assert changed == {"isActive", "state", "closeReason", "sessionEndUtc", "modifiedUtc"}


def test_delete_is_idempotent(client: Client) -> None:
    session_id = client.open()["sessionId"]
    first, again = client.end(session_id), client.end(session_id)
    assert first.json()["status"] == "closed"
    assert (again.status_code, again.json()) == (200, {**first.json(), "status": "already_closed"})


def test_ended_session_can_be_read(client: Client) -> None:
    session_id = client.open()["sessionId"]
    ended = client.end(session_id).json()
    assert {**client.get(session_id).json(), "status": "closed"} == ended


def test_delete_frees_the_key_immediately(client: Client) -> None:
    opened = client.open()
    ended = client.end(opened["sessionId"]).json()
    successor = client.put(same_key(opened)).json()
    assert (successor["status"], successor["previousSessionId"]) == ("created", None)
    assert successor["sessionStartUtc"] >= ended["sessionEndUtc"]


def test_delete_of_upgraded_session_keeps_close_reason(client: Client) -> None:
    opened = client.open()
    client.put(same_key(opened, sessionKind=2))
    ended = client.end(opened["sessionId"]).json()
    assert (ended["closeReason"], ended["status"]) == ("UPGRADED", "already_closed")


async def test_delete_of_lapsed_session_keeps_lapse_reason(local: LocalService) -> None:
    for limits, reason in LAPSES:
        opened = await local.open(**limits)
        await local.move_to(opened["leaseExpiresAt"], seconds=1)
        response = await local.http.delete(f"/sessions/{opened['sessionId']}")
        ended = response.json()
        assert (response.status_code, ended["closeReason"], ended["status"]) == (200, reason, "already_closed")
        assert ended["sessionEndUtc"] == opened["leaseExpiresAt"], reason


async def test_session_ended_at_its_start_instant_lasts_one_microsecond(local: LocalService) -> None:
    await local.move_to("2030-01-01T00:00:00Z")
    opened = await local.open()
    ended = (await local.http.delete(f"/sessions/{opened['sessionId']}")).json()
    assert ended["sessionEndUtc"] == "2030-01-01T00:00:00.000001Z"


def test_unknown_session_returns_404(client: Client) -> None:
    response = client.end(str(uuid4()))
    assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND")


def test_session_id_is_case_insensitive(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert client.end(session_id.upper()).json()["sessionId"] == session_id


def test_delete_is_available_under_v1(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert client.http.delete(f"/v1/sessions/{session_id}").json()["closeReason"] == "TERMINATED"


def test_delete_with_query_parameter_returns_400(client: Client) -> None:
    session_id = client.open()["sessionId"]
    response = client.http.delete(f"/sessions/{session_id}", params={"reason": "STOPPED"})
    assert (response.status_code, client.get(session_id).json()["isActive"]) == (400, True)
