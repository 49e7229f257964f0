"""Rejected requests: problems, invalid fields, body sizes and media types."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest

from tests.http.client import Client, Json, chunked, connected, open_body, request, same_key
from tests.support.instances import RunningInstance

PROBLEM_KEYS = {"type", "title", "status", "detail", "error", "code", "requestId"}
BODY_MAX = 65_536

MUST_BE_A_UUID = "must be a UUID"
MUST_BE_A_KIND = "must be 1, 2 or 3"
MUST_BE_A_LEASE = "must be a whole number from 5 to 86400"
MUST_BE_AN_IDLE_LIMIT = "must be a whole number from 5 to 2592000"


def errors_of(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 400, f"{response.status_code}: {response.text}"
    return {error["field"]: error["message"] for error in response.json()["errors"]}


# Fields of a problem.

PROBLEMS: dict[str, tuple[int, str, Callable[[Client], httpx.Response]]] = {
    "invalid": (400, "INVALID", lambda client: client.put({})),
    "not-found": (404, "NOT_FOUND", lambda client: client.get(str(uuid4()))),
    "method-not-allowed": (405, "METHOD_NOT_ALLOWED", lambda client: client.http.post("/sessions")),
    "tenant-mismatch": (
        409,
        "TENANT_MISMATCH",
        lambda client: client.put(same_key(client.open(), tenantObjectId=str(uuid4()))),
    ),
    "too-large": (413, "TOO_LARGE", lambda client: client.put_raw(b" " * (BODY_MAX + 1))),
    "unsupported-media-type": (
        415,
        "UNSUPPORTED_MEDIA_TYPE",
        lambda client: client.put_raw(b"{}", content_type="text/plain"),
    ),
}


@pytest.mark.parametrize("slug", PROBLEMS)
def test_problems_have_same_fields_except_errors_of_invalid(client: Client, slug: str) -> None:
    status, code, provoke = PROBLEMS[slug]
    response = provoke(client)
    problem = response.json()
    assert response.headers["Content-Type"] == "application/problem+json"
    assert set(problem) == PROBLEM_KEYS | ({"errors"} if slug == "invalid" else set())
    assert (response.status_code, problem["status"], problem["type"], problem["code"]) == (
        status,
        status,
        f"urn:tenure:{slug}",
        code,
    )
    assert problem["error"] == problem["detail"] != ""
    assert client.put(open_body()).status_code == 201, "the service must still accept requests"


# Invalid fields.


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("userObjectId", MUST_BE_A_UUID),
        ("tenantObjectId", MUST_BE_A_UUID),
        ("capacityId", MUST_BE_A_UUID),
        ("sessionKind", MUST_BE_A_KIND),
        ("leaseSeconds", MUST_BE_A_LEASE),
        ("idleSeconds", MUST_BE_AN_IDLE_LIMIT),
    ],
)
def test_invalid_value_returns_400_with_field_and_allowed_values(any_client: Client, field: str, message: str) -> None:
    for value in (True, False, "", "x", "1", "60", 1.5, 60.5, -1, 0, 4, 10**30, [], {}, [1], "nan"):
        assert errors_of(any_client.put(open_body(**{field: value}))) == {field: message}, value


def test_null_or_missing_required_field_returns_400(any_client: Client) -> None:
    for field in ("userObjectId", "tenantObjectId", "capacityId", "sessionKind"):
        assert set(errors_of(any_client.put(open_body(**{field: None})))) == {field}
        assert errors_of(any_client.put(open_body(**{field: ...}))) == {field: "is missing"}


def test_null_optional_field_is_accepted(any_client: Client) -> None:
    for field in ("leaseSeconds", "idleSeconds"):
        assert any_client.put(open_body(**{field: None})).status_code == 201, field


def test_values_at_bounds_are_accepted_and_beyond_bounds_rejected(client: Client) -> None:
    for field, lowest, highest in (("leaseSeconds", 5, 86_400), ("idleSeconds", 5, 2_592_000), ("sessionKind", 1, 3)):
        values = (lowest - 1, lowest, highest, highest + 1)
        statuses = [client.put(open_body(**{field: value})).status_code for value in values]
        assert statuses == [400, 201, 201, 400], field


def test_whole_number_with_decimal_point_is_accepted(client: Client) -> None:
    """JSON has one number type, and the schema in /openapi.json allows 2.0 as an integer."""
    response = client.put(open_body(sessionKind=2.0, leaseSeconds=60.0))
    assert (response.status_code, response.json().get("sessionKind"), response.json().get("heartbeatInterval")) == (
        201,
        2,
        5,
    )


MALFORMED_UUIDS = [
    "0123456789abcdef0123456789abcde",
    "{01234567-89ab-cdef-0123-456789abcdef",
    "(01234567-89ab-cdef-0123-456789abcdef)",
    "0123456789ab-cdef-0123-456789abcdef",
    "urn:uuid:01234567-89ab-cdef-0123-456789abcdef",
    "01234567-89ab-cdef-0123-456789abcde",
    "01234567-89ab-cdef-0123-456789abcdef0",
    "01234567-89ab-cdef-0123-456789abcdeg",
    "0123456789ab-cdef-0123-456789abcdef-",
    " 01234567-89ab-cdef-0123-456789abcdef",
    "01234567-89ab-cdef-0123-456789abcdef\n",
    "01234567-89ab-cdef-0123-456789abcdef\u0000",
    "\uff10" + "1234567-89ab-cdef-0123-456789abcdef",
    "\u06601234567-89ab-cdef-0123-456789abcdef",
    "' OR 1=1 --",
    "\\u0000",
    "$(id)",
    "%s%n",
]


def test_malformed_uuid_is_rejected(any_client: Client) -> None:
    for value in MALFORMED_UUIDS:
        assert errors_of(any_client.put(open_body(userObjectId=value))) == {"userObjectId": MUST_BE_A_UUID}, value


def test_uuid_of_any_version_is_accepted(client: Client) -> None:
    for value in ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"):
        assert client.put(open_body(tenantObjectId=value)).status_code == 201, value


def test_errors_list_every_invalid_field(any_client: Client) -> None:
    response = any_client.put({"userObjectId": 1, "capacityId": "x", "sessionKind": 9, "leaseSeconds": 0, "more": 1})
    assert errors_of(response) == {
        "userObjectId": MUST_BE_A_UUID,
        "tenantObjectId": "is missing",
        "capacityId": MUST_BE_A_UUID,
        "sessionKind": MUST_BE_A_KIND,
        "leaseSeconds": MUST_BE_A_LEASE,
        "more": "is not a field of this request",
    }


def test_detail_includes_field_name(any_client: Client) -> None:
    assert any_client.put(open_body(sessionKind=9)).json()["detail"] == f"sessionKind: {MUST_BE_A_KIND}"


def test_misspelled_field_returns_suggestion(any_client: Client) -> None:
    for name, suggestion in (
        ("sessionkind", "sessionKind"),
        ("leaseSecond", "leaseSeconds"),
        ("user_objectid", "userObjectId"),
    ):
        response = any_client.put(open_body(**{name: 1}))
        assert errors_of(response) == {name: f"is not a field of this request; did you mean {suggestion}?"}


def test_response_size_is_bounded_for_many_unknown_fields(any_client: Client) -> None:
    flood = {f"f{number}": 1 for number in range(5000)}
    assert len(any_client.put(flood).content) < BODY_MAX


def test_invalid_body_opens_no_session(any_client: Client) -> None:
    body = open_body(sessionKind=9)
    any_client.put(body)
    assert any_client.ids(tenant=body["tenantObjectId"]) == []


# Bodies that are not an object, or not JSON.


def test_body_that_is_not_an_object_returns_400(any_client: Client) -> None:
    for body in (b"[]", b"[{}]", b"1", b'"text"', b"null", b"true"):
        assert errors_of(any_client.put_raw(body)) == {"body": "must be a JSON object"}, body


VALID = json.dumps(open_body()).encode()


INVALID_JSON = [
    b"",
    b" ",
    b"{",
    b"{}}",
    VALID[:-1],
    VALID + VALID,
    VALID.replace(b'"sessionKind": 1', b'"sessionKind": NaN'),
    VALID.replace(b'"sessionKind": 1', b'"sessionKind": Infinity'),
    VALID.replace(b'"sessionKind": 1', b'"sessionKind": 01'),
    VALID.replace(b'"sessionKind": 1', b'"sessionKind": 1,'),
    VALID.replace(b'"', b"'"),
    b"\xef\xbb\xbf" + VALID,
    VALID.decode().encode("utf-16"),
    b'{"userObjectId": "\xff"}',
    b'{"\xff": 1}',
    b'{"\\ud800": 1}',
    b'{"userObjectId": "\xed\xa0\x80"}',
    b"[" * BODY_MAX,
    b"[" * 30_000 + b"]" * 30_000,
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b"\x00" * 100,
    b"userObjectId=1",
]


def test_body_that_is_not_json_or_is_nested_too_deeply_returns_400(any_client: Client) -> None:
    for body in INVALID_JSON:
        assert errors_of(any_client.put_raw(body)) == {"body": "must be valid JSON"}, body[:16]


def test_deeply_nested_value_is_rejected_as_invalid_value(any_client: Client) -> None:
    nested: Any = 1
    for _ in range(500):
        nested = [nested]
    assert errors_of(any_client.put(open_body(sessionKind=nested))) == {"sessionKind": MUST_BE_A_KIND}


def test_duplicate_field_uses_last_value(any_client: Client) -> None:
    twice = json.dumps(open_body()).replace('"sessionKind": 1', '"sessionKind": 9, "sessionKind": 2')
    response = any_client.put_raw(twice.encode())
    assert (response.status_code, response.json()["sessionKind"]) == (201, 2)


def test_duplicate_field_with_invalid_last_value_returns_400(any_client: Client) -> None:
    twice = json.dumps(open_body()).replace('"sessionKind": 1', '"sessionKind": 2, "sessionKind": 9')
    assert errors_of(any_client.put_raw(twice.encode())) == {"sessionKind": MUST_BE_A_KIND}


def test_escaped_field_name_is_accepted(any_client: Client) -> None:
    escaped = json.dumps(open_body()).replace("sessionKind", "\\u0073essionKind")
    assert any_client.put_raw(escaped.encode()).status_code == 201


# Sizes.


def padded(size: int) -> bytes:
    body = msgspec.json.encode(open_body())
    return body + b" " * (size - len(body))


def test_body_limit_is_64_kib(any_client: Client) -> None:
    for size, status in ((BODY_MAX, 201), (BODY_MAX + 1, 413), (1_000_000, 413)):
        assert any_client.put_raw(padded(size)).status_code == status, size
        body = padded(size)
        chunks = (body[start : start + 10_000] for start in range(0, size, 10_000))
        assert any_client.put_raw(chunks).status_code == status, f"{size}, chunked"


@pytest.mark.parametrize("path", ["/sessions", "/sessions?"], ids=["hot", "ordinary"])
def test_client_still_sending_large_body_receives_413(any_service: RunningInstance, path: str) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(b" " * 16_000_000, path=path))
        assert connection.read().status == 413


@pytest.mark.parametrize("path", ["/sessions", "/sessions?"], ids=["hot", "ordinary"])
def test_connection_is_reusable_after_413(any_service: RunningInstance, path: str) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(b" " * (BODY_MAX + 1), path=path))
        first = connection.read()
        connection.send(request(open_body()))
        assert (first.status, connection.read().status) == (413, 201)


def test_body_of_get_request_is_ignored(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(b"x" * 200_000, method="GET", path="/healthz"), request(open_body()))
        assert [connection.read().status, connection.read().status] == [200, 201]


# Media types.


def test_json_media_type_with_parameters_is_accepted(any_client: Client) -> None:
    for media_type in (
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        'Application/JSON; charset="utf-8"',
        "application/json ; x=y",
    ):
        assert any_client.put_raw(VALID, content_type=media_type).status_code in (200, 201), media_type


def test_other_media_type_returns_415(any_client: Client) -> None:
    for media_type in (
        "text/plain",
        "text/json",
        "application/problem+json",
        "application/jsonx",
        "application/x-www-form-urlencoded",
        "application",
        "*/*",
        "",
    ):
        response = any_client.put_raw(VALID, content_type=media_type)
        assert (response.status_code, response.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE"), media_type


def test_missing_media_type_returns_415(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(open_body(), media_type=None))
        assert connection.read().status == 415


@pytest.mark.parametrize("others", [["text/plain", "application/json"], ["application/json", "text/plain"]])
def test_two_content_type_headers_return_415(any_service: RunningInstance, others: list[str]) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(open_body(), *(f"Content-Type: {other}" for other in others), media_type=None))
        assert connection.read().status == 415


def test_chunked_body_with_other_media_type_returns_415(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(chunked(b"a", b"b"), "Transfer-Encoding: chunked", media_type="text/plain"))
        assert connection.read().status == 415


def test_problem_does_not_echo_long_field_name(any_client: Client) -> None:
    long: Json = {"x" * 50_000: 1}
    assert len(any_client.put(open_body() | long).content) < 1000
