"""`POST /sessions/{sessionId}/heartbeat` and `POST /sessions/heartbeats`."""

from itertools import product
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tenure.telemetry.events import HeartbeatsAnswered, SessionClosed
from tests.http.client import Client, Json, RawResponse, chunked, connected, request
from tests.http.local import LAPSES, LocalService
from tests.support.instances import RunningInstance

MANY = "/sessions/heartbeats"


def path(session_id: str) -> str:
    return f"/sessions/{session_id}/heartbeat"


def heartbeat(client: Client, session_id: str, **body: Any) -> httpx.Response:
    return client.http.post(path(session_id), json=body)


def heartbeats(client: Client, *session_ids: str, **body: Any) -> httpx.Response:
    return client.http.post(MANY, json={"sessionIds": session_ids, **body})


# One session.


def test_heartbeat_returns_deadline_interval_and_state(client: Client) -> None:
    opened = client.open(leaseSeconds=60)
    response = heartbeat(client, opened["sessionId"])
    result = response.json()
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert result.pop("leaseExpiresAt") > opened["leaseExpiresAt"]
    assert result == {
        "sessionId": opened["sessionId"],
        "heartbeatInterval": 5,
        "acknowledged": True,
        "state": "created",
    }


def test_heartbeat_interval_is_null_without_lease(client: Client) -> None:
    opened = client.open()
    result = heartbeat(client, opened["sessionId"]).json()
    assert (result["heartbeatInterval"], result["leaseExpiresAt"]) == (None, opened["leaseExpiresAt"])


def test_heartbeat_is_activity_only_when_active_is_true(client: Client) -> None:
    session_id = client.open(idleSeconds=60)["sessionId"]
    bodies = ({}, {"active": False}, {"active": True})
    states = [heartbeat(client, session_id, **body).json()["state"] for body in bodies]
    assert states == ["created", "created", "active"]


def test_heartbeat_updates_session(client: Client) -> None:
    opened = client.open(leaseSeconds=60)
    result = heartbeat(client, opened["sessionId"], active=True).json()
    session = client.get(opened["sessionId"]).json()
    assert (session["state"], session["leaseExpiresAt"]) == ("active", result["leaseExpiresAt"])
    assert session["lastHeartbeat"] == session["lastActivity"] == session["modifiedUtc"] > opened["lastHeartbeat"]


def test_heartbeat_requires_neither_body_nor_media_type(any_client: Client) -> None:
    session_id = any_client.open()["sessionId"]
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/json"}):
        assert any_client.http.post(path(session_id), headers=headers).status_code == 200, headers


def test_body_with_wrong_media_type_returns_415(any_client: Client) -> None:
    session_id = any_client.open()["sessionId"]
    response = any_client.http.post(
        path(session_id), content=b'{"active":true}', headers={"content-type": "text/plain"}
    )
    assert (response.status_code, response.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


def test_invalid_body_returns_400_with_field(any_client: Client) -> None:
    session_id = any_client.open()["sessionId"]
    for body, field in {
        b'{"active": 1}': "active",
        b'{"active": null}': "active",
        b'{"idle": true}': "idle",
        b"[]": "body",
        b"{": "body",
    }.items():
        response = any_client.http.post(path(session_id), content=body, headers={"content-type": "application/json"})
        assert (response.status_code, [error["field"] for error in response.json()["errors"]]) == (400, [field]), body


def test_unknown_session_returns_404(client: Client) -> None:
    for session_id in (str(uuid4()), "nothing", "x" * 36):
        response = heartbeat(client, session_id)
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), session_id


def test_session_id_is_case_insensitive(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert heartbeat(client, session_id.upper()).json()["sessionId"] == session_id


def test_heartbeat_is_available_under_v1(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert client.http.post(f"/v1{path(session_id)}").json()["acknowledged"] is True


def test_other_methods_return_405(any_client: Client) -> None:
    for method in ("GET", "PUT", "DELETE"):
        response = any_client.http.request(method, path(str(uuid4())))
        assert (response.status_code, response.headers["allow"]) == (405, "POST"), method


def test_ended_session_returns_410_with_close_reason(client: Client) -> None:
    session_id = client.open()["sessionId"]
    client.end(session_id)
    response = heartbeat(client, session_id)
    assert (response.status_code, response.headers["content-type"]) == (410, "application/problem+json")
    assert response.json() == {
        "type": "urn:tenure:session-over",
        "title": "Session has ended",
        "status": 410,
        "detail": "the session has ended: TERMINATED",
        "error": "the session has ended: TERMINATED",
        "code": "SESSION_OVER",
        "closeReason": "TERMINATED",
        "requestId": response.headers["x-request-id"],
    }


async def test_lapsed_session_returns_410_and_is_recorded_before_sweep(local: LocalService) -> None:
    for limits, reason in LAPSES:
        opened = await local.open(**limits)
        await local.move_to(opened["leaseExpiresAt"])
        response = await local.http.post(path(opened["sessionId"]))
        assert (response.status_code, response.json()["closeReason"]) == (410, reason)
        await local.move_to(opened["sessionStartUtc"])
        assert (await local.get(opened["sessionId"]))["sessionEndUtc"] == opened["leaseExpiresAt"], reason


async def test_heartbeats_renew_session_lease(local: LocalService) -> None:
    opened = await local.open(leaseSeconds=60)
    for number in range(1, 5):
        await local.move_to(opened["sessionStartUtc"], seconds=50 * number)
        assert (await local.http.post(path(opened["sessionId"]))).status_code == 200
    assert (await local.get(opened["sessionId"]))["isActive"] is True


async def test_idle_session_ends_despite_heartbeats(local: LocalService) -> None:
    opened = await local.open(leaseSeconds=60, idleSeconds=80)
    await local.move_to(opened["sessionStartUtc"], seconds=50)
    await local.http.post(path(opened["sessionId"]))
    await local.move_to(opened["sessionStartUtc"], seconds=80)
    response = await local.http.post(path(opened["sessionId"]), json={"active": True})
    assert (response.status_code, response.json()["closeReason"]) == (410, "IDLE_TIMEOUT")


async def test_heartbeats_and_late_heartbeats_are_reported(local: LocalService) -> None:
    live, lapsed = await local.open(), await local.open(leaseSeconds=60)
    await local.move_to(lapsed["leaseExpiresAt"])
    for session in (live, lapsed, lapsed):
        await local.http.post(path(session["sessionId"]))
    await local.http.post(path(str(uuid4())))
    await local.http.post(MANY, json={"sessionIds": [live["sessionId"], lapsed["sessionId"]]})
    answered = local.telemetry.of(HeartbeatsAnswered)
    assert (sum(event.renewed for event in answered), sum(event.late for event in answered)) == (2, 3)
    assert [event.reason for event in local.telemetry.of(SessionClosed)] == ["LEASE_EXPIRED"]


# Both lanes.


def _ended(client: Client) -> str:
    session_id = client.open()["sessionId"]
    client.end(session_id)
    return session_id


SESSIONS = {
    "live": lambda client: client.open(leaseSeconds=60)["sessionId"],
    "without a lease": lambda client: client.open()["sessionId"],
    "ended": _ended,
    "unknown": lambda _client: str(uuid4()),
    "malformed": lambda _client: "x" * 36,
    "in upper case": lambda client: client.open()["sessionId"].upper(),
}
BODIES: dict[str, tuple[bytes, str | None]] = {
    "no body": (b"", None),
    "no body but a media type": (b"", "text/plain"),
    "empty object": (b"{}", "application/json"),
    "active": (b'{"active": true}', "application/json; charset=utf-8"),
    "other media type": (b"{}", "text/plain"),
    "no media type": (b"{}", None),
    "invalid fields": (b'{"active": "yes", "more": 1}', "application/json"),
    "invalid JSON": (b"{", "application/json"),
    "too large": (b" " * 65_537, "application/json"),
}


def _send(service: RunningInstance, content: bytes) -> RawResponse:
    with connected(service.port) as connection:
        connection.send(content)
        return connection.read()


def _plain(session_id: str, body: bytes, media_type: str | None) -> bytes:
    return request(body, method="POST", path=path(session_id), media_type=media_type)


FORMS = {
    "query": lambda one, body, kind: request(body, method="POST", path=f"{path(one)}?", media_type=kind),
    "expect": lambda one, body, kind: request(
        body, "Expect: 100-continue", method="POST", path=path(one), media_type=kind
    ),
    "v1": lambda one, body, kind: request(body, method="POST", path=f"/v1{path(one)}", media_type=kind),
    "chunked": lambda one, body, kind: request(
        chunked(body) if body else chunked(),
        "Transfer-Encoding: chunked",
        method="POST",
        path=path(one),
        media_type=kind,
    ),
}
"""The request of `_plain` in other forms. Some of these forms take the ordinary lane."""


def _compare(service: RunningInstance, client: Client, form: str, session: str, body: str) -> None:
    content, media_type = BODIES[body]
    hot, other = SESSIONS[session](client), SESSIONS[session](client)
    expected = _comparable(_send(service, _plain(hot, content, media_type)), hot)
    actual = _comparable(_send(service, FORMS[form](other, content, media_type)), other)
    assert actual == expected, (session, body)


@pytest.mark.parametrize("form", FORMS)
def test_hot_and_ordinary_lane_return_same_response(service: RunningInstance, client: Client, form: str) -> None:
    for session, body in product(SESSIONS, ("no body", "active")):
        _compare(service, client, form, session, body)


@pytest.mark.parametrize("form", FORMS)
def test_hot_and_ordinary_lane_handle_bodies_alike(any_service: RunningInstance, any_client: Client, form: str) -> None:
    for session, body in product(("live", "ended", "unknown", "malformed"), BODIES):
        _compare(any_service, any_client, form, session, body)


def _comparable(response: RawResponse, session_id: str) -> tuple[int, Json, Json]:
    content = {name: value for name, value in response.json().items() if name not in ("leaseExpiresAt", "requestId")}
    fields = {name: str(value).lower().replace(session_id.lower(), "<session>") for name, value in content.items()}
    changing = ("content-length", "x-request-id")
    headers = {name: value for name, value in response.headers.items() if name not in changing}
    return response.status, headers, fields


async def test_plain_heartbeat_uses_hot_lane(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = (await local.open())["sessionId"]
    monkeypatch.setattr(local.instance.pipeline, "_answer", None)  # the ordinary lane would fail
    assert (await local.http.post(path(session_id))).status_code == 200


# Many sessions.


def test_batch_results_follow_request_order(client: Client) -> None:
    live, limited, ended, unknown = client.open(), client.open(leaseSeconds=60), client.open(), str(uuid4())
    client.end(ended["sessionId"])
    ids = [ended["sessionId"], limited["sessionId"], unknown, live["sessionId"]]
    response = heartbeats(client, *ids)
    result = response.json()
    assert (response.status_code, result["count"]) == (200, 4)
    assert result["heartbeats"][1].pop("leaseExpiresAt") > limited["leaseExpiresAt"]
    assert result["heartbeats"] == [
        {"sessionId": ids[0], "acknowledged": False, "status": 410, "closeReason": "TERMINATED"},
        {"sessionId": ids[1], "acknowledged": True, "heartbeatInterval": 5, "state": "created"},
        {"sessionId": ids[2], "acknowledged": False, "status": 404},
        {
            "sessionId": ids[3],
            "acknowledged": True,
            "leaseExpiresAt": live["leaseExpiresAt"],
            "heartbeatInterval": None,
            "state": "created",
        },
    ]


def test_batch_heartbeat_with_active_marks_sessions_active(client: Client) -> None:
    ids = [client.open()["sessionId"] for _ in range(3)]
    result = heartbeats(client, *ids, active=True).json()
    assert [one["state"] for one in result["heartbeats"]] == ["active"] * 3


def test_batch_with_duplicate_id_returns_result_for_each(client: Client) -> None:
    one, other = client.open(leaseSeconds=60)["sessionId"], client.open()["sessionId"]
    result = heartbeats(client, one, other, one.upper()).json()
    assert [response["sessionId"] for response in result["heartbeats"]] == [one, other, one]
    assert result["heartbeats"][0] == result["heartbeats"][2]
    assert result["count"] == 3


def test_batch_accepts_1000_ids(client: Client) -> None:
    live = client.open()["sessionId"]
    ids = [str(uuid4()) for _ in range(999)]
    result = heartbeats(client, *ids[:500], live, *ids[500:]).json()
    assert (result["count"], len(result["heartbeats"])) == (1000, 1000)
    assert [one["acknowledged"] for one in result["heartbeats"]] == [False] * 500 + [True] + [False] * 499


def test_batch_with_invalid_fields_returns_400_with_field(any_client: Client) -> None:
    for body, field in (
        ({"sessionIds": [str(uuid4())] * 1001}, "sessionIds"),
        ({"sessionIds": []}, "sessionIds"),
        ({"sessionIds": ["nothing"]}, "sessionIds"),
        ({"sessionIds": None}, "sessionIds"),
        ({}, "sessionIds"),
        ({"sessionIds": [str(uuid4())], "active": "no"}, "active"),
        ({"sessionIds": [str(uuid4())], "idle": True}, "idle"),
    ):
        response = any_client.http.post(MANY, json=body)
        assert response.status_code == 400, str(body)[:80]
        assert [error["field"] for error in response.json()["errors"]] == [field], str(body)[:80]


def test_batch_requires_body_and_media_type(any_client: Client) -> None:
    assert any_client.http.post(MANY).status_code == 415
    assert any_client.http.post(MANY, headers={"content-type": "application/json"}).status_code == 400


async def test_batch_records_lapsed_sessions(local: LocalService) -> None:
    opened = [await local.open(leaseSeconds=60) for _ in range(3)]
    await local.move_to(opened[-1]["leaseExpiresAt"])
    response = await local.http.post(MANY, json={"sessionIds": [one["sessionId"] for one in opened]})
    assert {one["closeReason"] for one in response.json()["heartbeats"]} == {"LEASE_EXPIRED"}
    await local.move_to(opened[0]["sessionStartUtc"])
    for one in opened:
        assert (await local.get(one["sessionId"]))["sessionEndUtc"] == one["leaseExpiresAt"]
