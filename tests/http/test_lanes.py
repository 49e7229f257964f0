"""A plain request of a hot route takes the hot lane, any other the ordinary one. Nobody must be able to tell which."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest

from tests.http.client import KEY, Client, Json, RawAnswer, chunked, connected, request, same_key, wish
from tests.http.local import LocalService, call, http_scope
from tests.support.instances import RunningInstance

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
CONNECTION = "connection"
"""The one header that may differ: HTTP/1.0 knows no keep-alive."""


class Sent(NamedTuple):
    body: Json | bytes
    media_type: str | None = "application/json"


def _after(existing: Json, **fields: Any) -> Callable[[Client], Sent]:
    return lambda client: Sent(same_key(client.open(**existing), **fields))


def _plain(body: bytes, media_type: str | None = "application/json") -> Callable[[Client], Sent]:
    return lambda _client: Sent(body, media_type)


REQUESTS: dict[str, Callable[[Client], Sent]] = {
    "created": lambda _: Sent(wish()),
    "created with limits": lambda _: Sent(wish(leaseSeconds=60, idleSeconds=90, sessionKind=3)),
    "created in upper case": lambda _: Sent(wish(userObjectId=str(uuid4()).upper())),
    "created of whole floats": lambda _: Sent(wish(sessionKind=2.0)),
    "existing": _after({"leaseSeconds": 60}),
    "existing of a higher kind": _after({"sessionKind": 3}),
    "upgraded": _after({"idleSeconds": 60}, sessionKind=2),
    "tenant mismatch": _after({}, tenantObjectId="00000000-0000-0000-0000-000000000000"),
    "64 KiB": lambda _: Sent(msgspec.json.encode(wish()).ljust(65_536)),
    "too large": _plain(b" " * 65_537),
    "too large and of another type": _plain(b" " * 65_537, "text/plain"),
    "empty": _plain(b""),
    "empty and of no type": _plain(b"", None),
    "of another type": _plain(b"{}", "text/plain"),
    "with a charset": lambda _: Sent(wish(), "application/json; charset=utf-8"),
    "no object": _plain(b"[]"),
    "no JSON": _plain(b"{"),
    "no UTF-8": _plain(b'{"\xff": 1}'),
    "deep": _plain(b"[" * 60_000),
    "many wrong fields": lambda _: Sent({"userObjectId": 1, "sessionKind": 9, "nothing": None}),
    "a key twice": lambda _: Sent(msgspec.json.encode(wish())[:-1] + b',"sessionKind":2}'),
    "a UUID with a newline": lambda _: Sent(wish(capacityId=str(uuid4()) + "\n")),
}


def _over_the_wire(service: RunningInstance, *requests: bytes) -> RawAnswer:
    """The last of the answers."""
    with connected(service.port) as connection:
        connection.send(b"".join(requests))
        return [connection.read() for _ in requests][-1]


def _hot(service: RunningInstance, sent: Sent) -> RawAnswer:
    return _over_the_wire(service, request(sent.body, media_type=sent.media_type))


def _hot_v1(service: RunningInstance, sent: Sent) -> RawAnswer:
    return _over_the_wire(service, request(sent.body, media_type=sent.media_type, path="/v1/sessions"))


def _hot_chunked(service: RunningInstance, sent: Sent) -> RawAnswer:
    content = sent.body if isinstance(sent.body, bytes) else msgspec.json.encode(sent.body)
    pieces = [content[at : at + 9999] for at in range(0, len(content), 9999)]
    head = request(chunked(*pieces), "Transfer-Encoding: chunked", media_type=sent.media_type)
    return _over_the_wire(service, head)


def _expecting(service: RunningInstance, sent: Sent) -> RawAnswer:
    return _over_the_wire(service, request(sent.body, "Expect: 100-continue", media_type=sent.media_type))


def _with_a_query(service: RunningInstance, sent: Sent) -> RawAnswer:
    return _over_the_wire(service, request(sent.body, media_type=sent.media_type, path="/sessions?"))


def _pipelined(service: RunningInstance, sent: Sent) -> RawAnswer:
    probe = request(method="GET", path="/sessions/metrics", media_type=None)
    return _over_the_wire(service, probe, request(sent.body, media_type=sent.media_type))


def _version_1_0(service: RunningInstance, sent: Sent) -> RawAnswer:
    return _over_the_wire(service, request(sent.body, media_type=sent.media_type, version="1.0"))


def _offering_an_upgrade(service: RunningInstance, sent: Sent) -> RawAnswer:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    return _over_the_wire(service, request(sent.body, *offer, media_type=sent.media_type))


WAYS = {
    "v1": _hot_v1,
    "chunked": _hot_chunked,
    "expecting": _expecting,
    "with a query": _with_a_query,
    "pipelined": _pipelined,
    "HTTP/1.0": _version_1_0,
    "offering an upgrade": _offering_an_upgrade,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REQUESTS)
def test_both_lanes_give_the_same_answer(service: RunningInstance, client: Client, name: str, way: str) -> None:
    hot, other = REQUESTS[name](client), REQUESTS[name](client)
    assert _comparable(WAYS[way](service, other), other) == _comparable(_hot(service, hot), hot)


def _comparable(answer: RawAnswer, sent: Sent) -> tuple[int, Json, Any]:
    """An answer without what differs between any two sessions."""
    text = answer.body.decode()
    if isinstance(sent.body, dict):
        for name in KEY:
            text = text.replace(str(sent.body.get(name, name)).lower(), f"<{name}>")
    text = INSTANT.sub("<instant>", UUID.sub("<session>", text))
    headers = {name: UUID.sub("<session>", value) for name, value in answer.headers.items() if name != CONNECTION}
    return answer.status, headers, msgspec.json.decode(text)


# That the comparison above compares two lanes at all.


@pytest.fixture
def asgi_calls(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The method of each request that came through the ordinary lane."""
    calls: list[str] = []
    answer = local.instance.router._answer

    async def recording(scope: Any, receive: Any) -> Any:
        calls.append(scope["method"])
        return await answer(scope, receive)

    monkeypatch.setattr(local.instance.router, "_answer", recording)
    return calls


@pytest.mark.parametrize("path", ["/sessions", "/v1/sessions"])
async def test_a_plain_put_takes_the_hot_lane(local: LocalService, asgi_calls: Sequence[str], path: str) -> None:
    answer = await local.http.put(path, json=wish())
    assert (answer.status_code, asgi_calls) == (201, [])


@pytest.mark.parametrize(
    ("path", "headers"), [("/%73essions", {}), ("/sessions", {"Expect": "100-continue"})], ids=["encoded", "expecting"]
)
async def test_what_is_not_plain_takes_the_ordinary_lane(
    local: LocalService, asgi_calls: Sequence[str], path: str, headers: Json
) -> None:
    answer = await local.http.put(path, json=wish(), headers=headers)
    assert (answer.status_code, asgi_calls) == (201, ["PUT"])


# Messages that uvicorn would not send, but that ASGI allows.


def _cut(content: bytes, size: int) -> list[Json]:
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    return [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]


LAST: Json = {"type": "http.request"}
JSON_TYPE = (b"content-type", b"application/json")


@pytest.mark.parametrize("size", [1, 10, 1000])
async def test_the_body_may_come_in_any_number_of_messages(local: LocalService, size: int) -> None:
    scope = http_scope("PUT", "/sessions", b"", JSON_TYPE)
    answer = await call(local.instance.router, scope, *_cut(msgspec.json.encode(wish()), size), LAST)
    assert (answer.status, answer.complete) == (201, True)


async def test_a_message_without_a_body_is_an_empty_one(local: LocalService) -> None:
    answer = await call(local.instance.router, http_scope("PUT", "/sessions", b"", JSON_TYPE), LAST)
    assert (answer.status, answer.json()["detail"]) == (400, "body: must be valid JSON")


async def test_a_disconnect_is_not_the_end_of_a_body(local: LocalService) -> None:
    body = wish()
    scope = http_scope("PUT", "/sessions", b"", JSON_TYPE)
    await call(local.instance.router, scope, *_cut(msgspec.json.encode(body), 1000), {"type": "http.disconnect"})
    answer = await local.http.get("/sessions", params={"tenant": body["tenantObjectId"]})
    assert answer.json()["count"] == 0


# Submissions, whose bodies may be larger than what the server reads at once.

MEBIBYTE = 1024 * 1024


def _submission(size: int) -> bytes:
    """A body of exactly so many bytes."""
    frame = b'{"gateway":"parked","payload":"%s"}'
    return frame % (b"x" * (size - len(frame) + 2))


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
    "3 MiB that are no JSON": b"x" * (3 * MEBIBYTE),
    "no JSON": b"{",
    "no UTF-8": b'{"gateway":"parked","payload":"\xff"}',
    "no such gateway": b'{"gateway":"nowhere","payload":1}',
    "reserved": b'{"gateway":"usages","payload":1}',
    "empty": b"",
}
SUBMITTING: dict[str, Callable[[bytes, str], Sequence[bytes]]] = {
    "v1": lambda body, key: [_posted(body, key, path="/v1/submissions")],
    "chunked": lambda body, key: [
        _posted(chunked(*_pieces(body, 9999)), key, "Transfer-Encoding: chunked"),
    ],
    "expecting": lambda body, key: [_posted(body, key, "Expect: 100-continue")],
    "with a query": lambda body, key: [_posted(body, key, path="/submissions?")],
    "pipelined": lambda body, key: [
        request(method="GET", path="/sessions/metrics", media_type=None),
        _posted(body, key),
    ],
    "HTTP/1.0": lambda body, key: [_posted(body, key, version="1.0")],
}


def _posted(body: bytes, key: str, *headers: str, path: str = "/submissions", version: str = "1.1") -> bytes:
    named = [f"Idempotency-Key: {key}"] if key else []
    return request(body, *named, *headers, method="POST", path=path, version=version)


def _pieces(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


@pytest.mark.parametrize("way", SUBMITTING)
@pytest.mark.parametrize("name", SUBMITTED)
def test_both_lanes_take_the_same_submissions(service: RunningInstance, name: str, way: str) -> None:
    one, other = f"order-{uuid4()}", f"order-{uuid4()}"
    hot = _over_the_wire(service, _posted(SUBMITTED[name], one))
    ordinary = _over_the_wire(service, *SUBMITTING[way](SUBMITTED[name], other))
    assert _comparable(ordinary, Sent(b"")) == _comparable(hot, Sent(b""))


@pytest.mark.parametrize("way", SUBMITTING)
@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"], ids=["none", "too long", "unprintable"])
def test_both_lanes_refuse_the_same_keys(service: RunningInstance, key: str, way: str) -> None:
    hot = _over_the_wire(service, _posted(SUBMITTED["100 B"], key))
    ordinary = _over_the_wire(service, *SUBMITTING[way](SUBMITTED["100 B"], key))
    assert _comparable(ordinary, Sent(b"")) == _comparable(hot, Sent(b""))
    assert hot.status == 400


@pytest.mark.parametrize("way", SUBMITTING)
@pytest.mark.parametrize("name", ["100 B", "70 KiB", "1 MiB - 1"])
def test_the_same_key_down_both_lanes_is_one_submission(service: RunningInstance, name: str, way: str) -> None:
    key = f"order-{uuid4()}"
    answers = [
        _over_the_wire(service, *SUBMITTING[way](SUBMITTED[name], key)),
        _over_the_wire(service, _posted(SUBMITTED[name], key)),
    ]
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json()["submissionId"] for answer in answers}) == 1


def test_a_key_that_comes_twice_is_the_same_down_both_lanes(service: RunningInstance) -> None:
    two = [f"Idempotency-Key: {each}" for each in (uuid4(), uuid4())]
    answers = [
        _over_the_wire(service, request(SUBMITTED["100 B"], *two, method="POST", path=path))
        for path in ("/submissions", "/submissions?")
    ]
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json()["submissionId"] for answer in answers}) == 1


@pytest.mark.parametrize("path", ["/submissions", "/v1/submissions"])
@pytest.mark.parametrize("size", [100, 70 * 1024, MEBIBYTE])
async def test_a_plain_submission_takes_the_hot_lane(
    local: LocalService, asgi_calls: Sequence[str], path: str, size: int
) -> None:
    content = _submission(size).replace(b"parked", b"billing", 1)[:-3] + b'"}'
    headers = {"Idempotency-Key": "order-7", "Content-Type": "application/json"}
    answer = await local.http.post(path, content=content, headers=headers)
    assert (answer.status_code, asgi_calls) == (202, [])


async def test_a_submission_that_is_not_plain_takes_the_ordinary_lane(
    local: LocalService, asgi_calls: Sequence[str]
) -> None:
    headers = {"Idempotency-Key": "order-7", "Expect": "100-continue"}
    answer = await local.http.post("/submissions", json={"gateway": "billing", "payload": 1}, headers=headers)
    assert (answer.status_code, asgi_calls) == (202, ["POST"])
