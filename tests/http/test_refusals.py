"""What is not taken, and how that is said: problems, wrong fields, sizes and media types."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest

from tests.http.client import Client, Json, chunked, connected, request, same_key, wish
from tests.support.instances import RunningInstance

PROBLEM_KEYS = {"type", "title", "status", "detail", "error", "code"}
BODY_MAX = 65_536

MUST_BE_A_UUID = "must be a UUID"
MUST_BE_A_KIND = "must be 1, 2 or 3"
MUST_BE_A_LEASE = "must be a whole number from 5 to 86400"
MUST_BE_AN_IDLE_LIMIT = "must be a whole number from 5 to 2592000"


def errors_of(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 400, f"{answer.status_code}: {answer.text}"
    return {error["field"]: error["message"] for error in answer.json()["errors"]}


# The form of every problem.

PROVOKED: dict[str, tuple[int, str, Callable[[Client], httpx.Response]]] = {
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


@pytest.mark.parametrize("slug", PROVOKED)
def test_every_problem_has_the_same_form(client: Client, slug: str) -> None:
    status, code, provoke = PROVOKED[slug]
    answer = provoke(client)
    problem = answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert set(problem) == PROBLEM_KEYS | ({"errors"} if slug == "invalid" else set())
    assert (answer.status_code, problem["status"], problem["type"], problem["code"]) == (
        status,
        status,
        f"urn:tenure:{slug}",
        code,
    )


@pytest.mark.parametrize("slug", PROVOKED)
def test_error_is_the_same_sentence_as_detail(client: Client, slug: str) -> None:
    problem = PROVOKED[slug][2](client).json()
    assert problem["error"] == problem["detail"] != ""


@pytest.mark.parametrize("slug", PROVOKED)
def test_a_refused_request_leaves_the_service_well(client: Client, slug: str) -> None:
    PROVOKED[slug][2](client)
    assert client.put(wish()).status_code == 201


# Wrong fields.


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
@pytest.mark.parametrize(
    "value",
    [True, False, "", "x", "1", "60", 1.5, 60.5, -1, 0, 4, 10**30, [], {}, [1], "nan"],
    ids=lambda value: json.dumps(value)[:12],
)
def test_a_wrong_value_is_named_with_what_is_allowed(any_client: Client, field: str, message: str, value: Any) -> None:
    assert errors_of(any_client.put(wish(**{field: value}))) == {field: message}


@pytest.mark.parametrize("field", ["userObjectId", "tenantObjectId", "capacityId", "sessionKind"])
def test_a_required_field_may_not_be_null(any_client: Client, field: str) -> None:
    assert set(errors_of(any_client.put(wish(**{field: None})))) == {field}


@pytest.mark.parametrize("field", ["userObjectId", "tenantObjectId", "capacityId", "sessionKind"])
def test_a_required_field_may_not_be_missing(any_client: Client, field: str) -> None:
    assert errors_of(any_client.put(wish(**{field: ...}))) == {field: "is missing"}


@pytest.mark.parametrize("field", ["leaseSeconds", "idleSeconds"])
def test_an_optional_field_may_be_null(any_client: Client, field: str) -> None:
    assert any_client.put(wish(**{field: None})).status_code == 201


@pytest.mark.parametrize(
    ("field", "value", "taken"),
    [
        ("leaseSeconds", 4, False),
        ("leaseSeconds", 5, True),
        ("leaseSeconds", 86_400, True),
        ("leaseSeconds", 86_401, False),
        ("idleSeconds", 4, False),
        ("idleSeconds", 5, True),
        ("idleSeconds", 2_592_000, True),
        ("idleSeconds", 2_592_001, False),
        ("sessionKind", 1, True),
        ("sessionKind", 3, True),
    ],
)
def test_limits_are_taken_to_their_last_value(client: Client, field: str, value: int, taken: bool) -> None:
    assert client.put(wish(**{field: value})).status_code == (201 if taken else 400)


def test_a_whole_number_may_be_written_with_a_decimal_point(client: Client) -> None:
    """JSON has one kind of number, and so says the schema in /openapi.json."""
    answer = client.put(wish(sessionKind=2.0, leaseSeconds=60.0))
    assert (answer.status_code, answer.json().get("sessionKind"), answer.json().get("heartbeatInterval")) == (201, 2, 5)


@pytest.mark.parametrize(
    "value",
    [
        "0123456789abcdef0123456789abcdef",
        "{01234567-89ab-cdef-0123-456789abcdef}",
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
    ],
    ids=ascii,
)
def test_only_the_dashed_form_is_a_uuid(client: Client, value: str) -> None:
    assert errors_of(client.put(wish(userObjectId=value))) == {"userObjectId": MUST_BE_A_UUID}


@pytest.mark.parametrize(
    "value",
    ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
)
def test_any_uuid_will_do_whatever_its_version(client: Client, value: str) -> None:
    assert client.put(wish(tenantObjectId=value)).status_code == 201


def test_every_wrong_field_is_named(any_client: Client) -> None:
    answer = any_client.put({"userObjectId": 1, "capacityId": "x", "sessionKind": 9, "leaseSeconds": 0, "more": 1})
    assert errors_of(answer) == {
        "userObjectId": MUST_BE_A_UUID,
        "tenantObjectId": "is missing",
        "capacityId": MUST_BE_A_UUID,
        "sessionKind": MUST_BE_A_KIND,
        "leaseSeconds": MUST_BE_A_LEASE,
        "more": "is not a field of this request",
    }


def test_the_detail_names_the_fields_too(any_client: Client) -> None:
    assert any_client.put(wish(sessionKind=9)).json()["detail"] == f"sessionKind: {MUST_BE_A_KIND}"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sessionkind", "sessionKind"), ("leaseSecond", "leaseSeconds"), ("user_object_id", "userObjectId")],
)
def test_a_near_miss_is_told_what_was_meant(any_client: Client, name: str, meant: str) -> None:
    answer = any_client.put(wish(**{name: 1}))
    assert errors_of(answer) == {name: f"is not a field of this request; did you mean {meant}?"}


def test_a_flood_of_wrong_fields_gets_a_short_answer(any_client: Client) -> None:
    flood = {f"f{number}": 1 for number in range(5000)}
    assert len(any_client.put(flood).content) < BODY_MAX


def test_a_wrong_body_opens_nothing(any_client: Client) -> None:
    body = wish(sessionKind=9)
    any_client.put(body)
    assert any_client.ids(tenant=body["tenantObjectId"]) == []


# Bodies that are no objects, or no JSON at all.


@pytest.mark.parametrize("body", [b"[]", b"[{}]", b"1", b'"text"', b"null", b"true"])
def test_a_body_must_be_an_object(any_client: Client, body: bytes) -> None:
    assert errors_of(any_client.put_raw(body)) == {"body": "must be a JSON object"}


VALID = json.dumps(wish()).encode()


@pytest.mark.parametrize(
    "body",
    [
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
    ],
    ids=lambda body: ascii(body[:16]),
)
def test_a_body_must_be_json(any_client: Client, body: bytes) -> None:
    assert errors_of(any_client.put_raw(body)) == {"body": "must be valid JSON"}


@pytest.mark.parametrize("depth", [10, 500])
def test_a_nested_value_is_just_a_wrong_value(any_client: Client, depth: int) -> None:
    nested: Any = 1
    for _ in range(depth):
        nested = [nested]
    assert errors_of(any_client.put(wish(sessionKind=nested))) == {"sessionKind": MUST_BE_A_KIND}


def test_of_a_field_given_twice_the_last_counts(any_client: Client) -> None:
    twice = json.dumps(wish()).replace('"sessionKind": 1', '"sessionKind": 9, "sessionKind": 2')
    answer = any_client.put_raw(twice.encode())
    assert (answer.status_code, answer.json()["sessionKind"]) == (201, 2)


def test_a_field_given_twice_is_wrong_if_its_last_value_is(any_client: Client) -> None:
    twice = json.dumps(wish()).replace('"sessionKind": 1', '"sessionKind": 2, "sessionKind": 9')
    assert errors_of(any_client.put_raw(twice.encode())) == {"sessionKind": MUST_BE_A_KIND}


def test_names_may_be_escaped(any_client: Client) -> None:
    escaped = json.dumps(wish()).replace("sessionKind", "\\u0073essionKind")
    assert any_client.put_raw(escaped.encode()).status_code == 201


# Sizes.


def padded(size: int) -> bytes:
    body = msgspec.json.encode(wish())
    return body + b" " * (size - len(body))


@pytest.mark.parametrize(("size", "status"), [(BODY_MAX, 201), (BODY_MAX + 1, 413), (1_000_000, 413)])
def test_a_body_may_have_64_kib(any_client: Client, size: int, status: int) -> None:
    assert any_client.put_raw(padded(size)).status_code == status


@pytest.mark.parametrize(("size", "status"), [(BODY_MAX, 201), (BODY_MAX + 1, 413), (1_000_000, 413)])
def test_a_body_of_unknown_length_may_have_64_kib(any_client: Client, size: int, status: int) -> None:
    body = padded(size)
    pieces = (body[start : start + 10_000] for start in range(0, size, 10_000))
    assert any_client.put_raw(pieces).status_code == status


@pytest.mark.parametrize("path", ["/sessions", "/sessions?"], ids=["hot", "ordinary"])
def test_a_client_that_is_still_sending_is_told_that_it_was_too_much(any_service: RunningInstance, path: str) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(b" " * 16_000_000, path=path))
        assert connection.read().status == 413


@pytest.mark.parametrize("path", ["/sessions", "/sessions?"], ids=["hot", "ordinary"])
def test_a_connection_can_be_used_again_after_too_large_a_body(any_service: RunningInstance, path: str) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(b" " * (BODY_MAX + 1), path=path))
        first = connection.read()
        connection.send(request(wish()))
        assert (first.status, connection.read().status) == (413, 201)


def test_nothing_is_read_of_a_body_where_none_is_wanted(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(b"x" * 200_000, method="GET", path="/healthz"), request(wish()))
        assert [connection.read().status, connection.read().status] == [200, 201]


# Media types.


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        'Application/JSON; charset="utf-8"',
        "application/json ; x=y",
    ],
)
def test_json_is_taken_with_any_parameters(any_client: Client, media_type: str) -> None:
    assert any_client.put_raw(VALID, content_type=media_type).status_code in (200, 201)


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "text/json",
        "application/problem+json",
        "application/jsonx",
        "application/x-www-form-urlencoded",
        "application",
        "*/*",
        "",
    ],
)
def test_other_media_types_are_refused(any_client: Client, media_type: str) -> None:
    answer = any_client.put_raw(VALID, content_type=media_type)
    assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


def test_a_body_without_a_media_type_is_refused(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(wish(), media_type=None))
        assert connection.read().status == 415


@pytest.mark.parametrize("others", [["text/plain", "application/json"], ["application/json", "text/plain"]])
def test_a_body_cannot_be_of_two_media_types(any_service: RunningInstance, others: list[str]) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(wish(), *(f"Content-Type: {other}" for other in others), media_type=None))
        assert connection.read().status == 415


def test_a_chunked_body_of_another_media_type_is_refused(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(chunked(b"a", b"b"), "Transfer-Encoding: chunked", media_type="text/plain"))
        assert connection.read().status == 415


# What no caller may see.


@pytest.mark.parametrize("value", ["' OR 1=1 --", "\\u0000", "$(id)", "%s%n"])
def test_a_value_is_never_part_of_a_statement(any_client: Client, value: str) -> None:
    assert errors_of(any_client.put(wish(capacityId=value))) == {"capacityId": MUST_BE_A_UUID}


def test_a_problem_does_not_repeat_long_input(any_client: Client) -> None:
    long: Json = {"x" * 50_000: 1}
    assert len(any_client.put(wish() | long).content) < 1000
