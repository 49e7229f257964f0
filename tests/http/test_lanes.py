"""A plain request to a route of the hot lane takes the hot lane; every other request takes the ordinary lane.

A request is not plain if, for instance, it is pipelined, uses HTTP/1.0, or has a query or an `Expect` header. In both
lanes, the same request gets the same response, also from an instance with `json_case = "snake"`.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest

from tenure.ids import canonical_id
from tenure.naming import snake_case
from tests.http.client import KEY, Client, Json, RawResponse, chunked, connected, open_body, request, same_key
from tests.http.local import LocalService, call, http_scope
from tests.support.instances import RunningInstance

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
CHANGING_HEADERS = ("connection", "x-request-id")
"""The headers that may differ between two responses: an instance closes a connection after an HTTP/1.0 request and says
so in `Connection`, and every request has its own id."""
REQUEST_ID = re.compile(r"[0-9a-f]{12}-[0-9a-f]+\b")


class Sent(NamedTuple):
    body: Json | bytes
    media_type: str | None = "application/json"


def _renamed(rename: Callable[[str], str], **fields: Any) -> Json:
    return {rename(name): value for name, value in open_body(**fields).items()}


def _pascal(name: str) -> str:
    return name[0].upper() + name[1:]


def _after(existing: Json, **fields: Any) -> Callable[[Client], Sent]:
    return lambda client: Sent(same_key(client.open(**existing), **fields))


def _plain(body: bytes, media_type: str | None = "application/json") -> Callable[[Client], Sent]:
    return lambda _client: Sent(body, media_type)


REQUESTS: dict[str, Callable[[Client], Sent]] = {
    "created": lambda _: Sent(open_body()),
    "created with limits": lambda _: Sent(open_body(leaseSeconds=60, idleSeconds=90, sessionKind=3)),
    "created with upper-case id": lambda _: Sent(open_body(userObjectId=str(uuid4()).upper())),
    "created with whole float": lambda _: Sent(open_body(sessionKind=2.0)),
    "existing": _after({"leaseSeconds": 60}),
    "existing with higher kind": _after({"sessionKind": 3}),
    "upgraded": _after({"idleSeconds": 60}, sessionKind=2),
    "tenant mismatch": _after({}, tenantObjectId="00000000-0000-0000-0000-000000000000"),
    "64 KiB": lambda _: Sent(msgspec.json.encode(open_body()).ljust(65_536)),
    "too large": _plain(b" " * 65_537),
    "too large with other media type": _plain(b" " * 65_537, "text/plain"),
    "empty": _plain(b""),
    "empty without media type": _plain(b"", None),
    "other media type": _plain(b"{}", "text/plain"),
    "charset": lambda _: Sent(open_body(), "application/json; charset=utf-8"),
    "not an object": _plain(b"[]"),
    "invalid JSON": _plain(b"{"),
    "invalid UTF-8": _plain(b'{"\xff": 1}'),
    "deeply nested": _plain(b"[" * 60_000),
    "many invalid fields": lambda _: Sent({"userObjectId": 1, "sessionKind": 9, "nothing": None}),
    "duplicate field": lambda _: Sent(msgspec.json.encode(open_body())[:-1] + b',"sessionKind":2}'),
    "UUID with newline": lambda _: Sent(open_body(capacityId=str(uuid4()) + "\n")),
    "UUIDs with braces or without dashes": lambda _: Sent(
        open_body(userObjectId=f"{{{uuid4()}}}", capacityId=uuid4().hex, tenantObjectId=f"{{{uuid4().hex.upper()}}}")
    ),
    "UUID with one brace": lambda _: Sent(open_body(userObjectId=f"{{{uuid4()}")),
    "camelCase": lambda _: Sent(msgspec.json.encode(open_body(leaseSeconds=60))),
    "snake_case": lambda _: Sent(msgspec.json.encode(_renamed(snake_case, leaseSeconds=60))),
    "PascalCase": lambda _: Sent(msgspec.json.encode(_renamed(_pascal, leaseSeconds=60))),
    "invalid field in PascalCase": lambda _: Sent(_renamed(_pascal, leaseSeconds=1)),
    "field given twice": lambda _: Sent({**open_body(), "UserObjectId": str(uuid4())}),
}


def _send(service: RunningInstance, *requests: bytes) -> RawResponse:
    """Sends the requests on one connection and returns the last response."""
    with connected(service.port) as connection:
        connection.send(b"".join(requests))
        return [connection.read() for _ in requests][-1]


def _content(sent: Sent) -> bytes:
    return sent.body if isinstance(sent.body, bytes) else msgspec.json.encode(sent.body)


PROBE = request(method="GET", path="/sessions/metrics", media_type=None)
UPGRADE_OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
FORMS: dict[str, Callable[[Sent], Sequence[bytes]]] = {
    "v1": lambda sent: [request(sent.body, media_type=sent.media_type, path="/v1/sessions")],
    "chunked": lambda sent: [
        request(chunked(*_parts(_content(sent), 9999)), "Transfer-Encoding: chunked", media_type=sent.media_type)
    ],
    "expect": lambda sent: [request(sent.body, "Expect: 100-continue", media_type=sent.media_type)],
    "query": lambda sent: [request(sent.body, media_type=sent.media_type, path="/sessions?")],
    "pipelined": lambda sent: [PROBE, request(sent.body, media_type=sent.media_type)],
    "HTTP/1.0": lambda sent: [request(sent.body, media_type=sent.media_type, version="1.0")],
    "upgrade offer": lambda sent: [request(sent.body, *UPGRADE_OFFER, media_type=sent.media_type)],
}
"""The same request in other forms. Some of these forms take the ordinary lane."""
USING_DATABASE = [
    "created",
    "created with limits",
    "existing",
    "existing with higher kind",
    "upgraded",
    "tenant mismatch",
]


def _in_snake_case(sent: Sent) -> Sent:
    if not isinstance(sent.body, dict):
        return sent
    return sent._replace(body={snake_case(name): value for name, value in sent.body.items()})


def _compare(service: RunningInstance, client: Client, form: str, name: str, case: str = "camel") -> None:
    hot, other = REQUESTS[name](client), REQUESTS[name](client)
    if case == "snake":
        hot, other = _in_snake_case(hot), _in_snake_case(other)
    expected = _comparable(_send(service, request(hot.body, media_type=hot.media_type)), hot)
    assert _comparable(_send(service, *FORMS[form](other)), other) == expected, name


@pytest.mark.parametrize("form", FORMS)
def test_hot_and_ordinary_lane_return_same_response(
    any_service: RunningInstance, any_client: Client, form: str
) -> None:
    for name in REQUESTS:
        _compare(any_service, any_client, form, name)


@pytest.mark.parametrize("form", FORMS)
def test_hot_and_ordinary_lane_return_same_response_in_snake_case(
    snake_service: RunningInstance, snake_client: Client, form: str
) -> None:
    for name in REQUESTS:
        _compare(snake_service, snake_client, form, name, "snake")


def test_hot_and_ordinary_lane_return_same_response_with_each_database(
    service: RunningInstance, client: Client
) -> None:
    for form, name in itertools.product(("query", "chunked"), USING_DATABASE):
        _compare(service, client, form, name)


def _comparable(response: RawResponse, sent: Sent) -> tuple[int, Json, Any]:
    """A response without the values that differ between two sessions or two requests."""
    text = REQUEST_ID.sub("<request>", response.body.decode())
    if isinstance(sent.body, dict):
        for name in KEY:
            given = sent.body.get(name) or sent.body.get(snake_case(name)) or sent.body.get(_pascal(name)) or name
            text = text.replace(canonical_id(str(given)) or str(given).lower(), f"<{name}>")
    text = INSTANT.sub("<instant>", UUID.sub("<session>", text))
    lengths = {"content-length": str(len(text))} if "<request>" in text else {}
    headers = {
        name: UUID.sub("<session>", value) for name, value in response.headers.items() if name not in CHANGING_HEADERS
    } | lengths
    return response.status, headers, msgspec.json.decode(text)


# The lane that a request takes.


@pytest.fixture
def asgi_calls(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The method of each request that took the ordinary lane."""
    calls: list[str] = []
    response = local.instance.pipeline._answer

    async def recording(scope: Any, *arguments: Any) -> Any:
        calls.append(scope["method"])
        return await response(scope, *arguments)

    monkeypatch.setattr(local.instance.pipeline, "_answer", recording)
    return calls


async def test_plain_put_uses_hot_lane(local: LocalService, asgi_calls: Sequence[str]) -> None:
    for path in ("/sessions", "/v1/sessions"):
        response = await local.http.put(path, json=open_body())
        assert (response.status_code, asgi_calls) == (201, []), path


async def test_put_that_is_not_plain_uses_ordinary_lane(local: LocalService, asgi_calls: Sequence[str]) -> None:
    encoded = await local.http.put("/%73essions", json=open_body())
    assert (encoded.status_code, asgi_calls) == (201, ["PUT"])
    expecting = await local.http.put("/sessions", json=open_body(), headers={"Expect": "100-continue"})
    assert (expecting.status_code, asgi_calls) == (201, ["PUT", "PUT"])


# Calls of the ASGI application without a server, with messages that the ASGI specification allows.


def _messages(content: bytes, size: int) -> list[Json]:
    return [{"type": "http.request", "body": part, "more_body": True} for part in _parts(content, size)]


LAST: Json = {"type": "http.request"}
JSON_TYPE = (b"content-type", b"application/json")


async def test_body_split_across_asgi_messages_is_accepted(local: LocalService) -> None:
    scope = http_scope("PUT", "/sessions", b"", JSON_TYPE)
    for size in (1, 10, 1000):
        messages = _messages(msgspec.json.encode(open_body()), size)
        response = await call(local.instance.pipeline, scope, *messages, LAST)
        assert (response.status, response.complete) == (201, True), size


async def test_asgi_message_without_body_is_empty_body(local: LocalService) -> None:
    response = await call(local.instance.pipeline, http_scope("PUT", "/sessions", b"", JSON_TYPE), LAST)
    assert (response.status, response.json()["detail"]) == (400, "body: must be valid JSON")


async def test_disconnect_before_body_end_opens_no_session(local: LocalService) -> None:
    body = open_body()
    scope = http_scope("PUT", "/sessions", b"", JSON_TYPE)
    await call(local.instance.pipeline, scope, *_messages(msgspec.json.encode(body), 1000), {"type": "http.disconnect"})
    response = await local.http.get("/sessions", params={"tenant": body["tenantObjectId"]})
    assert response.json()["count"] == 0


# Submissions. Their bodies may be so large that the server receives them in several parts.

MEBIBYTE = 1024 * 1024


def _submission(size: int, gateway: bytes = b"parked") -> bytes:
    """A body of exactly `size` bytes."""
    frame = b'{"gateway":"%s","payload":""}' % gateway
    return frame[:-2] + b"x" * (size - len(frame)) + frame[-2:]


SUBMITTED: dict[str, bytes] = {
    "10 B": b'{"gate":1}',
    "100 B": _submission(100),
    "64 KiB": _submission(65_536),
    "64 KiB and 1 B": _submission(65_537),
    "70 KiB": _submission(70 * 1024),
    "1 MiB - 1": _submission(MEBIBYTE - 1),
    "1 MiB": _submission(MEBIBYTE),
    "1 MiB + 1": _submission(MEBIBYTE + 1),
    "3 MiB": _submission(3 * MEBIBYTE),
    "3 MiB of invalid JSON": b"x" * (3 * MEBIBYTE),
    "invalid JSON": b"{",
    "invalid UTF-8": b'{"gateway":"parked","payload":"\xff"}',
    "unknown gateway": b'{"gateway":"nowhere","payload":1}',
    "reserved gateway": b'{"gateway":"usages","payload":1}',
    "empty": b"",
}
SUBMISSION_FORMS: dict[str, Callable[[bytes, str], Sequence[bytes]]] = {
    "v1": lambda body, key: [_posted(body, key, path="/v1/submissions")],
    "chunked": lambda body, key: [_posted(chunked(*_parts(body, 9999)), key, "Transfer-Encoding: chunked")],
    "expect": lambda body, key: [_posted(body, key, "Expect: 100-continue")],
    "query": lambda body, key: [_posted(body, key, path="/submissions?")],
    "pipelined": lambda body, key: [PROBE, _posted(body, key)],
    "HTTP/1.0": lambda body, key: [_posted(body, key, version="1.0")],
}


def _posted(body: bytes, key: str, *headers: str, path: str = "/submissions", version: str = "1.1") -> bytes:
    named = [f"Idempotency-Key: {key}"] if key else []
    return request(body, *named, *headers, method="POST", path=path, version=version)


def _parts(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


def _new_key() -> str:
    return f"order-{uuid4()}"


@pytest.mark.parametrize("form", SUBMISSION_FORMS)
def test_hot_and_ordinary_lane_return_same_submission_response(
    any_service: RunningInstance, snake_service: RunningInstance, form: str
) -> None:
    for service, (name, content) in itertools.product((any_service, snake_service), SUBMITTED.items()):
        hot = _send(service, _posted(content, _new_key()))
        other = _send(service, *SUBMISSION_FORMS[form](content, _new_key()))
        assert _comparable(other, Sent(b"")) == _comparable(hot, Sent(b"")), name


def test_both_lanes_reject_missing_or_invalid_idempotency_key(any_service: RunningInstance) -> None:
    content = SUBMITTED["100 B"]
    for form, key in itertools.product(SUBMISSION_FORMS, ("", "x" * 256, "a\tb")):
        hot = _send(any_service, _posted(content, key))
        other = _send(any_service, *SUBMISSION_FORMS[form](content, key))
        assert _comparable(other, Sent(b"")) == _comparable(hot, Sent(b"")), (form, key)
        assert hot.status == 400, (form, key)


def test_same_idempotency_key_on_both_lanes_creates_one_submission(service: RunningInstance) -> None:
    for form, name in itertools.product(SUBMISSION_FORMS, ("100 B", "70 KiB", "1 MiB - 1")):
        key = _new_key()
        responses = [
            _send(service, *SUBMISSION_FORMS[form](SUBMITTED[name], key)),
            _send(service, _posted(SUBMITTED[name], key)),
        ]
        assert {response.status for response in responses} == {202}, (form, name)
        assert len({response.json()["submissionId"] for response in responses}) == 1, (form, name)


def test_repeated_idempotency_key_header_is_read_alike_on_both_lanes(service: RunningInstance) -> None:
    two = [f"Idempotency-Key: {each}" for each in (uuid4(), uuid4())]
    responses = [
        _send(service, request(SUBMITTED["100 B"], *two, method="POST", path=path))
        for path in ("/submissions", "/submissions?")
    ]
    assert {response.status for response in responses} == {202}
    assert len({response.json()["submissionId"] for response in responses}) == 1


async def test_plain_submission_uses_hot_lane(local: LocalService, asgi_calls: Sequence[str]) -> None:
    for path, size in itertools.product(("/submissions", "/v1/submissions"), (100, 70 * 1024, MEBIBYTE)):
        content = _submission(size, b"crm")
        headers = {"Idempotency-Key": _new_key(), "Content-Type": "application/json"}
        response = await local.http.post(path, content=content, headers=headers)
        assert (response.status_code, asgi_calls) == (202, []), (path, size)


async def test_submission_that_is_not_plain_uses_ordinary_lane(local: LocalService, asgi_calls: Sequence[str]) -> None:
    headers = {"Idempotency-Key": _new_key(), "Expect": "100-continue"}
    response = await local.http.post("/submissions", json={"gateway": "crm", "payload": 1}, headers=headers)
    assert (response.status_code, asgi_calls) == (202, ["POST"])
