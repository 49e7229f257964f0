"""Names of fields in camelCase or snake_case, other forms of ids and names in requests, and unknown fields.

The settings are `json_case` and `unknown_fields`. The header `Tenure-JSON-Case` selects the case of one response.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tenure.config import HttpConfig
from tenure.http.pipeline import Route
from tenure.naming import SnakeNames, field_names, snake_case
from tests.http.client import Json, open_body
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.streams import STOP, Client, as_text
from tests.support.streams import Refused as HandshakeRefused

CAMEL = {"Tenure-JSON-Case": "camel"}
SNAKE = {"Tenure-JSON-Case": "snake"}
DATA_KEYS = re.compile(r"[A-Z_]+|\d|/.*|[\d-]+|.* .*")
"""Keys of JSON objects that are data, not names of fields: close reasons, kinds, paths in the OpenAPI document."""

IN_CAMEL_CASE = re.compile(r".*[a-z][A-Z].*").fullmatch


@asynccontextmanager
async def running(database: Database, **settings: Any) -> AsyncIterator[LocalService]:
    async with LocalService.on(database, "billing", http=HttpConfig(**settings)).running() as service:
        yield service


@pytest.fixture
async def snake(sqlite_database: Database) -> AsyncIterator[LocalService]:
    async with running(sqlite_database, json_case="snake") as service:
        yield service


def renamed(value: Any) -> Any:
    """Returns the same content with its field names in snake_case. Keys that match DATA_KEYS are not changed."""
    if isinstance(value, dict):
        return {name if DATA_KEYS.fullmatch(name) else snake_case(name): renamed(each) for name, each in value.items()}
    return [renamed(each) for each in value] if isinstance(value, list) else value


def keys_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for each in value.values() for key in keys_in(each)}
    return {key for each in value for key in keys_in(each)} if isinstance(value, list) else set()


def test_snake_case_separates_words_with_underscores() -> None:
    assert [snake_case(name) for name in ("count", "nextCursor", "failuresInARow", "sessionStartUtc")] == [
        "count",
        "next_cursor",
        "failures_in_a_row",
        "session_start_utc",
    ]


# json_case


async def test_every_response_to_a_read_has_the_same_fields_in_both_cases(snake: LocalService) -> None:
    session = (await snake.http.put("/sessions", json=open_body(leaseSeconds=600), headers=CAMEL)).json()
    capacity = f"/capacities/{session['capacityId']}"
    await snake.http.put(capacity, json={"maxSessions": 5})
    key = {"Idempotency-Key": "one"}
    submitted = await snake.http.post("/submissions", json={"gateway": "billing", "payload": {"aB": 1}}, headers=key)
    paths = [
        route.path
        for route in snake.instance.pipeline.table
        if isinstance(route, Route) and route.method == "GET" and "{" not in route.path and route.answers.get(200)
    ]
    seen = 0
    for path in [
        *paths,
        f"/sessions/{session['sessionId']}",
        f"/sessions/{session['sessionId']}/history",
        capacity,
        f"/submissions/{submitted.json()['submission_id']}",
        "/jobs/prune/runs",
        "/usage?group_by=kind",
        "/sessions?limit=0",
        "/leases?nothing=1",
        "/nothing",
    ]:
        camel = (await snake.http.get(path, headers=CAMEL)).json()
        answer = (await snake.http.get(path)).json()
        assert [key for key in keys_in(answer) if IN_CAMEL_CASE(key)] == [], path
        assert keys_in(answer) == keys_in(renamed(camel)), path
        seen += any(map(IN_CAMEL_CASE, keys_in(camel)))
    assert seen > 15


async def test_responses_to_changes_are_in_snake_case(snake: LocalService) -> None:
    opened = (await snake.http.put("/sessions", json=open_body(leaseSeconds=600))).json()
    assert {"session_id", "was_created", "lease_expires_at"} <= set(opened)
    path = f"/sessions/{opened['session_id']}"
    heartbeat = (await snake.http.post(f"{path}/heartbeat")).json()
    assert set(heartbeat) == {"session_id", "lease_expires_at", "heartbeat_interval", "acknowledged", "state"}
    many = await snake.http.post("/sessions/heartbeats", json={"session_ids": [opened["session_id"]]})
    assert many.json()["heartbeats"][0]["session_id"] == opened["session_id"]
    assert (await snake.http.delete(path)).json()["close_reason"] == "TERMINATED"
    over = (await snake.http.post(f"{path}/heartbeat")).json()
    assert (over["close_reason"], "request_id" in over) == ("TERMINATED", True)


async def test_problem_names_fields_in_the_case_of_the_response(snake: LocalService) -> None:
    body = {"userObjectId": "x", "session_kind": 7, "capacity": 1}
    in_snake = (await snake.http.put("/sessions", json=body)).json()
    in_camel = (await snake.http.put("/sessions", json=body, headers=CAMEL)).json()
    assert {error["field"] for error in in_snake["errors"]} == {
        "user_object_id",
        "tenant_object_id",
        "capacity_id",
        "session_kind",
        "capacity",
    }
    assert "user_object_id: must be a UUID" in in_snake["detail"]
    assert "did you mean capacity_id?" in in_snake["detail"]
    assert "userObjectId: must be a UUID" in in_camel["detail"]
    cursor = (await snake.http.get("/sessions?cursor=x")).json()
    assert cursor["detail"] == "cursor: must be the next_cursor of a previous response"


async def test_link_to_next_page_is_in_the_case_of_the_response(snake: LocalService) -> None:
    for _ in range(2):
        await snake.http.delete(
            f"/sessions/{(await snake.http.put('/sessions', json=open_body())).json()['session_id']}"
        )
    for headers, name in (({}, "close_reason"), (CAMEL, "closeReason")):
        response = await snake.http.get(f"/sessions?{name}=TERMINATED&limit=1", headers=headers)
        link = re.fullmatch(r'<(.*)>; rel="next"', response.headers["link"])
        assert link is not None
        assert f"{name}=TERMINATED" in link[1]
        assert (await snake.http.get(link[1])).json()["count"] == 1


async def test_events_are_in_the_case_of_the_response(snake: LocalService) -> None:
    opened = await snake.http.put("/sessions", json=open_body())
    page = (await snake.http.get("/events?wait=5")).json()
    assert page["events"][0]["session_id"] == opened.json()["session_id"]
    assert set(page) == {"events", "count", "next_cursor"}
    in_camel = (await snake.http.get("/events", headers=CAMEL)).json()
    assert renamed(in_camel)["events"] == page["events"]
    async with (
        asyncio.timeout(20),
        snake.http.stream("GET", "/events", headers={"accept": "text/event-stream"}) as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                assert json.loads(line.removeprefix("data: ")) == page["events"][0]
                break


async def test_messages_of_a_stream_are_in_the_case_that_its_handshake_selects(snake: LocalService) -> None:
    for offered, expected in (
        ((), "session_id"),
        (("Tenure-JSON-Case: camel",), "sessionId"),
        (("Sec-WebSocket-Protocol: tenure, tenure.camel",), "sessionId"),
        (("Sec-WebSocket-Protocol: tenure, tenure.snake",), "session_id"),
    ):
        client = await Client.connect(snake.port, "/sessions/stream", *offered)
        await client.send(as_text({"type": "open", **renamed(open_body())}))
        start = await client.receive_start()
        assert expected in start
        await client.send(STOP)
        messages, _ = await client.read_to_end()
        metrics = json.loads(messages[-1])["metrics"]
        assert ("bytes_received" if expected == "session_id" else "bytesReceived") in metrics
        over = await Client.connect(snake.port, f"/sessions/{start[expected]}/stream", *offered)
        assert (await over.receive_json())["code"] == "SESSION_OVER"
        over.disconnect()
    refused = await Client.connect(snake.port, "/sessions/stream")
    await refused.send(as_text({"type": "open"}))
    assert "user_object_id: is missing" in (await refused.receive_json())["message"]
    refused.disconnect()
    with pytest.raises(HandshakeRefused) as problem:
        await Client.connect(snake.port, "/nothing")
    assert "request_id" in msgspec.json.decode(problem.value.body)


async def test_documents_describe_the_case_of_the_instance(snake: LocalService) -> None:
    document = (await snake.http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    assert schemas["OpenBody"]["required"] == ["user_object_id", "tenant_object_id", "capacity_id", "session_kind"]
    assert set(schemas["OpenBody"]["properties"]) >= {"with_token", "lease_seconds"}
    assert "/sessions/{session_id}/heartbeat" in document["paths"]
    heartbeat = document["paths"]["/sessions/{session_id}/heartbeat"]["post"]
    assert heartbeat["parameters"][0]["name"] == "session_id"
    names = {parameter["name"] for parameter in document["paths"]["/sessions"]["get"]["parameters"]}
    assert {"close_reason", "limit"} <= names
    properties = {name for schema in schemas.values() for name in schema.get("properties", ())}
    assert [name for name in properties if IN_CAMEL_CASE(name)] == []
    assert "`with_token`" in document["paths"]["/sessions"]["put"]["description"]
    channels = (await snake.http.get("/asyncapi.json")).json()["channels"]
    assert "/sessions/{session_id}/stream" in {channel["address"] for channel in channels.values()}
    camel = (await snake.http.get("/openapi.json", headers=CAMEL)).json()
    assert "/sessions/{sessionId}/heartbeat" in camel["paths"]


async def test_header_selects_snake_case_for_one_response(any_local: LocalService) -> None:
    for path in ("/sessions", "/sessions?"):
        body = open_body()
        assert "session_id" in (await any_local.http.put(path, json=body, headers=SNAKE)).json()
        assert "sessionId" in (await any_local.http.put(path, json=body)).json()
        assert "sessionId" in (await any_local.http.put(path, json=body, headers={"Tenure-JSON-Case": "x"})).json()


async def test_payload_keeps_its_bytes(snake: LocalService) -> None:
    payload = b'{ "someKey" : 1.0, "other_key":{"SessionId": null} }'
    bodies = [b'{"gateway":"billing","payload":%b}', b'{"Gateway":"billing","Payload":%b}']
    for number, body in enumerate(bodies):
        headers = {"Idempotency-Key": f"k{number}", "Content-Type": "application/json"}
        response = await snake.http.post("/submissions", content=body % payload, headers=headers)
        assert response.status_code == 202, response.text
        (envelope,) = await snake.database.store.read_envelopes([response.json()["submission_id"]])
        assert envelope.payload == payload


def test_snake_names_rename_fields_and_omit_defaults() -> None:
    class Inner(msgspec.Struct, rename="camel"):
        inner_field: int

    class Outer(msgspec.Struct, rename="camel", omit_defaults=True):
        always_there: int
        from_at: str = msgspec.field(name="from", default="")
        some_list: list[Inner] = []
        by_name: dict[str, Inner] = {}
        not_set: int | msgspec.UnsetType = msgspec.UNSET

    names = SnakeNames()
    names.learn(field_names([Outer]))
    assert names.encode(Outer(1)) == b'{"always_there":1}'
    full = Outer(1, "x", [Inner(2)], {"someKey": Inner(3)})
    assert json.loads(names.encode(full)) == {
        "always_there": 1,
        "from": "x",
        "some_list": [{"inner_field": 2}],
        "by_name": {"someKey": {"inner_field": 3}},
    }
    assert names.text("the someList of x, not someOther") == "the some_list of x, not someOther"
    assert names.encode([full, 1, None])[:22] == b'[{"always_there":1,"fr'


# Other forms of ids and names in requests.


def forms(uuid: str) -> list[str]:
    """The forms in which a request may write this UUID."""
    digits = uuid.replace("-", "")
    return [uuid, uuid.upper(), digits, digits.upper(), f"{{{uuid}}}", f"{{{digits}}}", f"{{{uuid.upper()}}}"]


WRONG_IDS = ["{%s", "%s}", "(%s)", "%s\n", " %s", "urn:uuid:%s"]


async def test_ids_are_accepted_with_or_without_dashes_and_braces(any_local: LocalService) -> None:
    body = open_body(sessionKind=2)
    session_id = (await any_local.put(body)).json()["sessionId"]
    streamed, streams = (await any_local.open())["sessionId"], []
    for index, form in enumerate(forms(session_id)):
        assert (await any_local.http.get(f"/sessions/{form}")).json()["sessionId"] == session_id, form
        assert (await any_local.http.post(f"/sessions/{form}/heartbeat")).json()["sessionId"] == session_id, form
        beats = await any_local.http.post("/sessions/heartbeats", json={"sessionIds": [form]})
        assert beats.json()["heartbeats"][0]["acknowledged"], form
        given = {name: forms(body[name])[index] for name in ("userObjectId", "tenantObjectId", "capacityId")}
        again = await any_local.put(open_body(**given, sessionKind=1))
        assert (again.json()["status"], again.json()["sessionId"]) == ("existing", session_id), again.text
        query = {"user": given["userObjectId"], "tenant": given["tenantObjectId"], "capacity": given["capacityId"]}
        assert (await any_local.http.get("/sessions", params=query)).json()["count"] == 1, form
        capacity = await any_local.http.put(f"/capacities/{given['capacityId']}", json={"maxSessions": 9})
        assert capacity.json()["capacityId"] == body["capacityId"], capacity.text
        newer = await Client.connect(any_local.port, f"/sessions/{forms(streamed)[index]}/stream")
        streams.append(newer)
        assert (await newer.receive_start())["sessionId"] == streamed, form
        for wrong in WRONG_IDS:
            assert (await any_local.http.get("/sessions", params={"user": wrong % form})).status_code == 400
    for stream in streams:
        stream.disconnect()


async def test_field_names_are_accepted_in_three_cases(any_local: LocalService) -> None:
    body = open_body(leaseSeconds=600)
    for rename in (str, snake_case, lambda name: name[0].upper() + name[1:]):
        response = await any_local.put({rename(name): value for name, value in body.items()})
        assert response.json()["heartbeatInterval"] == 50, response.text
        for name in ("closeReason", "limit"):
            query = {rename(name): {"closeReason": "STOPPED", "limit": 5}[name]}
            assert (await any_local.http.get("/sessions", params=query)).status_code == 200, query
    stream = await Client.connect(any_local.port, "/sessions/stream")
    await stream.send(as_text({"type": "open", **renamed(open_body())}))
    await stream.receive_start()
    stream.disconnect()


async def test_field_given_in_two_cases_is_refused(any_local: LocalService) -> None:
    response = await any_local.put({**open_body(), "lease_seconds": 60, "leaseSeconds": 60})
    assert response.json()["detail"] == "leaseSeconds: must be given only once"
    query = await any_local.http.get("/sessions?closeReason=STOPPED&close_reason=STOPPED")
    assert query.json()["detail"] == "closeReason: must be given only once"


# Filters that have the name of the field that they compare


@pytest.mark.parametrize("setting", ["refuse", "ignore"])
async def test_filter_may_have_the_name_of_the_field_that_it_compares(setting: str, sqlite_database: Database) -> None:
    async with running(sqlite_database, unknown_fields=setting) as service:
        mine = (await service.put(open_body(sessionKind=2))).json()
        others = (await service.put(open_body())).json()
        ended = (await service.put(open_body())).json()
        await service.http.delete(f"/sessions/{ended['sessionId']}")
        for field in ("userObjectId", "tenantObjectId", "capacityId", "sessionKind"):
            snake = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", field)
            for name in (field, field[0].upper() + field[1:], snake):
                listed = await service.http.get("/sessions", params={name: mine[field]})
                assert [each["sessionId"] for each in listed.json()["sessions"]] == [mine["sessionId"]], name
        over = await service.http.get("/sessions", params={"IsActive": "False"})  # the form of a boolean in .NET
        assert [each["sessionId"] for each in over.json()["sessions"]] == [ended["sessionId"]]
        live = await service.http.get("/sessions", params={"isActive": "true", "limit": 1})
        assert [each["sessionId"] for each in live.json()["sessions"]] == [others["sessionId"]]
        following = (await service.http.get(live.links["next"]["url"])).json()
        assert [each["sessionId"] for each in following["sessions"]] == [mine["sessionId"]]
        billed = await service.http.get("/usage", params={"userObjectId": mine["userObjectId"]})
        assert billed.json()["groups"][0]["sessions"] == 1, billed.text
        twice = await service.http.get("/sessions", params={"user": mine["userObjectId"], "UserObjectId": str(uuid4())})
        assert twice.json()["detail"] == "user: must be given only once"


# unknown_fields


EXTRA: Json = {"clientVersion": "7", "LEASE": {"a": [1]}, "": None}


@pytest.mark.parametrize(("setting", "status"), [("refuse", 400), ("ignore", 201)])
async def test_unknown_fields_are_refused_or_ignored(setting: str, status: int, sqlite_database: Database) -> None:
    ignores = setting == "ignore"
    async with running(sqlite_database, unknown_fields=setting) as service:
        user = str(uuid4())
        opened = await service.put({**open_body(userObjectId=user), **EXTRA, "lease_seconds": 60})
        assert opened.status_code == status, opened.text
        assert opened.json().get("heartbeatInterval") == (5 if ignores else None)
        listed = await service.http.get("/sessions", params={"user": user, "trace": "x"})
        assert listed.json().get("count", 0) == (1 if ignores else 0), listed.text
        assert (await service.http.get("/health?x=1")).status_code == (200 if ignores else 400)
        stream = await Client.connect(service.port, "/sessions/stream")
        await stream.send(as_text({"type": "open", **open_body(), **EXTRA}))
        assert (await stream.receive_json())["type"] == ("session_start" if ignores else "error")
        stream.disconnect()
        wrong = await service.put({**open_body(sessionKind=9), **EXTRA})
        assert "sessionKind: must be 1, 2 or 3" in wrong.json()["detail"]
        # Changes that only operators may make are refused if they have unknown fields, even with `ignore`.
        for path, body in (("/submissions/cancel", {"gatway": "billing"}), ("/keys", {"name": "a", "x": 1})):
            refused = await service.http.post(path, json=body)
            assert "is not a field of this request" in refused.json()["detail"], refused.text
