"""`POST /sessions/{sessionId}/heartbeat` and `POST /sessions/heartbeats`."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tenure.sessions.counters import Counters
from tests.http.client import Client, Json, RawAnswer, chunked, connected, request
from tests.http.local import LocalService
from tests.support.instances import RunningInstance

MANY = "/sessions/heartbeats"


def path(session_id: str) -> str:
    return f"/sessions/{session_id}/heartbeat"


def beat(client: Client, session_id: str, **body: Any) -> httpx.Response:
    return client.http.post(path(session_id), json=body)


def beat_many(client: Client, *session_ids: str, **body: Any) -> httpx.Response:
    return client.http.post(MANY, json={"sessionIds": session_ids, **body})


# One


def test_acknowledges_with_the_deadline_the_interval_and_the_state(client: Client) -> None:
    opened = client.open(leaseSeconds=60)
    answer = beat(client, opened["sessionId"])
    kept = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert kept.pop("leaseExpiresAt") > opened["leaseExpiresAt"]
    assert kept == {
        "sessionId": opened["sessionId"],
        "heartbeatInterval": 5,
        "acknowledged": True,
        "state": "created",
    }


def test_tells_no_interval_without_a_lease(client: Client) -> None:
    opened = client.open()
    kept = beat(client, opened["sessionId"]).json()
    assert (kept["heartbeatInterval"], kept["leaseExpiresAt"]) == (None, opened["leaseExpiresAt"])


def test_is_activity_only_if_it_says_so(client: Client) -> None:
    session_id = client.open(idleSeconds=60)["sessionId"]
    assert [beat(client, session_id, **body).json()["state"] for body in ({}, {"active": False}, {"active": True})] == [
        "created",
        "created",
        "active",
    ]


def test_shows_in_the_session(client: Client) -> None:
    opened = client.open(leaseSeconds=60)
    kept = beat(client, opened["sessionId"], active=True).json()
    session = client.get(opened["sessionId"]).json()
    assert (session["state"], session["leaseExpiresAt"]) == ("active", kept["leaseExpiresAt"])
    assert session["lastHeartbeat"] == session["lastActivity"] == session["modifiedUtc"] > opened["lastHeartbeat"]


@pytest.mark.parametrize("media_type", [None, "text/plain", "application/json"])
def test_needs_neither_body_nor_media_type(client: Client, media_type: str | None) -> None:
    session_id = client.open()["sessionId"]
    headers = {} if media_type is None else {"content-type": media_type}
    assert client.http.post(path(session_id), headers=headers).status_code == 200


def test_a_body_without_a_media_type_is_refused(client: Client) -> None:
    session_id = client.open()["sessionId"]
    answer = client.http.post(path(session_id), content=b'{"active":true}', headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"active": 1}', "active"),
        (b'{"active": null}', "active"),
        (b'{"idle": true}', "idle"),
        (b"[]", "body"),
        (b"{", "body"),
    ],
)
def test_a_wrong_body_is_refused_by_its_field(client: Client, body: bytes, field: str) -> None:
    session_id = client.open()["sessionId"]
    answer = client.http.post(path(session_id), content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, [field])


@pytest.mark.parametrize("session_id", ["5f0a4f5e-0000-4000-8000-0000000000aa", "nothing", "x" * 36])
def test_an_unknown_session_is_not_found(client: Client, session_id: str) -> None:
    answer = beat(client, session_id)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_an_upper_case_id_is_the_same_id(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert beat(client, session_id.upper()).json()["sessionId"] == session_id


def test_answers_under_v1_too(client: Client) -> None:
    session_id = client.open()["sessionId"]
    assert client.http.post(f"/v1{path(session_id)}").json()["acknowledged"] is True


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_takes_no_other_method(client: Client, method: str) -> None:
    answer = client.http.request(method, path(client.open()["sessionId"]))
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_a_session_that_is_over_is_gone_and_says_why(client: Client) -> None:
    session_id = client.open()["sessionId"]
    client.end(session_id)
    answer = beat(client, session_id)
    assert (answer.status_code, answer.headers["content-type"]) == (410, "application/problem+json")
    assert answer.json() == {
        "type": "urn:tenure:session-over",
        "title": "The session is over",
        "status": 410,
        "detail": "the session is over: TERMINATED",
        "error": "the session is over: TERMINATED",
        "code": "SESSION_OVER",
        "closeReason": "TERMINATED",
    }


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"leaseSeconds": 60}, "LEASE_EXPIRED"), ({"idleSeconds": 60}, "IDLE_TIMEOUT"), ({}, "EXPIRED")],
)
async def test_a_lapsed_session_is_gone_whether_or_not_anybody_has_swept(
    local: LocalService, limits: Json, reason: str
) -> None:
    opened = await local.open(**limits)
    await local.move_to(opened["leaseExpiresAt"])
    answer = await local.http.post(path(opened["sessionId"]))
    assert (answer.status_code, answer.json()["closeReason"]) == (410, reason)
    await local.move_to(opened["sessionStartUtc"])
    assert (await local.get(opened["sessionId"]))["sessionEndUtc"] == opened["leaseExpiresAt"]


async def test_keeps_a_session_alive_from_lease_to_lease(local: LocalService) -> None:
    opened = await local.open(leaseSeconds=60)
    for number in range(1, 5):
        await local.move_to(opened["sessionStartUtc"], seconds=50 * number)
        assert (await local.http.post(path(opened["sessionId"]))).status_code == 200
    assert (await local.get(opened["sessionId"]))["isActive"] is True


async def test_an_idle_session_ends_although_its_tab_is_open(local: LocalService) -> None:
    opened = await local.open(leaseSeconds=60, idleSeconds=80)
    await local.move_to(opened["sessionStartUtc"], seconds=50)
    await local.http.post(path(opened["sessionId"]))
    await local.move_to(opened["sessionStartUtc"], seconds=80)
    answer = await local.http.post(path(opened["sessionId"]), json={"active": True})
    assert (answer.status_code, answer.json()["closeReason"]) == (410, "IDLE_TIMEOUT")


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    """Those of the instance that is built next."""
    counters = Counters()
    monkeypatch.setattr("tenure.app.Counters", lambda: counters)
    return counters


async def test_is_counted_and_so_is_a_late_one(counters: Counters, local: LocalService) -> None:
    live, over = await local.open(), await local.open(leaseSeconds=60)
    await local.move_to(over["leaseExpiresAt"])
    for session in (live, over, over):
        await local.http.post(path(session["sessionId"]))
    await local.http.post(path(str(uuid4())))
    await local.http.post(MANY, json={"sessionIds": [live["sessionId"], over["sessionId"]]})
    assert (counters.heartbeats, counters.late_heartbeats) == (2, 3)
    assert counters.closed["LEASE_EXPIRED"] == 1


# Both lanes


def _lapsed(client: Client) -> str:
    session_id = client.open()["sessionId"]
    client.end(session_id)
    return session_id


SESSIONS = {
    "live": lambda client: client.open(leaseSeconds=60)["sessionId"],
    "without a lease": lambda client: client.open()["sessionId"],
    "over": _lapsed,
    "unknown": lambda _client: str(uuid4()),
    "malformed": lambda _client: "x" * 36,
    "in upper case": lambda client: client.open()["sessionId"].upper(),
}
BODIES: dict[str, tuple[bytes, str | None]] = {
    "none": (b"", None),
    "none, but a type": (b"", "text/plain"),
    "empty": (b"{}", "application/json"),
    "active": (b'{"active": true}', "application/json; charset=utf-8"),
    "of another type": (b"{}", "text/plain"),
    "of no type": (b"{}", None),
    "wrong": (b'{"active": "yes", "more": 1}', "application/json"),
    "no JSON": (b"{", "application/json"),
    "too large": (b" " * 65_537, "application/json"),
}


def _over_the_wire(service: RunningInstance, content: bytes) -> RawAnswer:
    with connected(service.port) as connection:
        connection.send(content)
        return connection.read()


def _plain(session_id: str, body: bytes, media_type: str | None) -> bytes:
    return request(body, method="POST", path=path(session_id), media_type=media_type)


WAYS = {
    "with a query": lambda one, body, kind: request(body, method="POST", path=f"{path(one)}?", media_type=kind),
    "expecting": lambda one, body, kind: request(
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", SESSIONS)
def test_both_lanes_give_the_same_answer(
    service: RunningInstance, client: Client, name: str, body: str, way: str
) -> None:
    content, media_type = BODIES[body]
    hot, other = SESSIONS[name](client), SESSIONS[name](client)
    expected = _comparable(_over_the_wire(service, _plain(hot, content, media_type)), hot)
    assert _comparable(_over_the_wire(service, WAYS[way](other, content, media_type)), other) == expected


def _comparable(answer: RawAnswer, session_id: str) -> tuple[int, Json, Json]:
    content = {name: value for name, value in answer.json().items() if name != "leaseExpiresAt"}
    shown = {name: str(value).lower().replace(session_id.lower(), "<session>") for name, value in content.items()}
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return answer.status, headers, shown


async def test_a_plain_heartbeat_takes_the_hot_lane(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = (await local.open())["sessionId"]
    monkeypatch.setattr(local.instance.router, "_answer", None)  # the ordinary lane would fail
    assert (await local.http.post(path(session_id))).status_code == 200


# Many


def test_many_are_answered_in_the_order_asked(client: Client) -> None:
    live, limited, over, unknown = client.open(), client.open(leaseSeconds=60), client.open(), str(uuid4())
    client.end(over["sessionId"])
    asked = [over["sessionId"], limited["sessionId"], unknown, live["sessionId"]]
    answer = beat_many(client, *asked)
    kept = answer.json()
    assert (answer.status_code, kept["count"]) == (200, 4)
    assert kept["heartbeats"][1].pop("leaseExpiresAt") > limited["leaseExpiresAt"]
    assert kept["heartbeats"] == [
        {"sessionId": asked[0], "acknowledged": False, "status": 410, "closeReason": "TERMINATED"},
        {"sessionId": asked[1], "acknowledged": True, "heartbeatInterval": 5, "state": "created"},
        {"sessionId": asked[2], "acknowledged": False, "status": 404},
        {
            "sessionId": asked[3],
            "acknowledged": True,
            "leaseExpiresAt": live["leaseExpiresAt"],
            "heartbeatInterval": None,
            "state": "created",
        },
    ]


def test_many_may_be_active(client: Client) -> None:
    ids = [client.open()["sessionId"] for _ in range(3)]
    kept = beat_many(client, *ids, active=True).json()
    assert [one["state"] for one in kept["heartbeats"]] == ["active"] * 3


def test_one_that_is_asked_for_twice_is_answered_twice(client: Client) -> None:
    one, other = client.open(leaseSeconds=60)["sessionId"], client.open()["sessionId"]
    kept = beat_many(client, one, other, one.upper()).json()
    assert [answer["sessionId"] for answer in kept["heartbeats"]] == [one, other, one]
    assert kept["heartbeats"][0] == kept["heartbeats"][2]
    assert kept["count"] == 3


def test_many_are_up_to_a_thousand(client: Client) -> None:
    live = client.open()["sessionId"]
    ids = [str(uuid4()) for _ in range(999)]
    kept = beat_many(client, *ids[:500], live, *ids[500:]).json()
    assert (kept["count"], len(kept["heartbeats"])) == (1000, 1000)
    assert [one["acknowledged"] for one in kept["heartbeats"]] == [False] * 500 + [True] + [False] * 499


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"sessionIds": [str(uuid4())] * 1001}, ["sessionIds"]),
        ({"sessionIds": []}, ["sessionIds"]),
        ({"sessionIds": ["nothing"]}, ["sessionIds"]),
        ({"sessionIds": None}, ["sessionIds"]),
        ({}, ["sessionIds"]),
        ({"sessionIds": [str(uuid4())], "active": "no"}, ["active"]),
        ({"sessionIds": [str(uuid4())], "idle": True}, ["idle"]),
    ],
)
def test_wrong_fields_of_many_are_named(client: Client, body: Json, fields: list[str]) -> None:
    answer = client.http.post(MANY, json=body)
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, fields)


def test_many_need_a_body_and_its_type(client: Client) -> None:
    assert client.http.post(MANY).status_code == 415
    assert client.http.post(MANY, headers={"content-type": "application/json"}).status_code == 400


async def test_many_record_what_has_lapsed(local: LocalService) -> None:
    opened = [await local.open(leaseSeconds=60) for _ in range(3)]
    await local.move_to(opened[-1]["leaseExpiresAt"])
    answer = await local.http.post(MANY, json={"sessionIds": [one["sessionId"] for one in opened]})
    assert {one["closeReason"] for one in answer.json()["heartbeats"]} == {"LEASE_EXPIRED"}
    await local.move_to(opened[0]["sessionStartUtc"])
    for one in opened:
        assert (await local.get(one["sessionId"]))["sessionEndUtc"] == one["leaseExpiresAt"]
