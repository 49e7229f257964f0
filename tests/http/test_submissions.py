"""`/submissions`: submit, read, list, retry and cancel."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import product
from typing import Any

import httpx
import pytest

from tests.http.client import JSON, Client, Json, connected, request
from tests.http.local import LocalService
from tests.http.submitting import MEBIBYTE, accepted, body, key, read_submission, submit, submit_raw
from tests.http.test_leases import FORGED
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.submissions import DELIVERED, accept, executor_fence, make_attempt

LISTED_FIELDS = [
    "submissionId",
    "gateway",
    "state",
    "attemptCount",
    "nextAttemptAt",
    "lastError",
    "requestId",
    "createdAt",
    "endedAt",
]
ATTEMPT_FIELDS = ["number", "epoch", "startedAt", "endedAt", "outcome", "status", "error", "early", "receipt"]
COMMANDS = ["retry", "cancel"]
UNKNOWN = [
    "00000000-0000-7000-8000-000000000000",
    "nothing",
    "x" * 5000,
    "%00",
    "%FF",
    "%C3%A9",
    "0189",
    "{01890000-0000-7000-8000-000000000000}",
    "0189000000007000800000000000000a",
]


def post(client: Client, content: bytes, **headers: str) -> httpx.Response:
    """Submits with a new idempotency key unless one is given. Header names have underscores instead of dashes."""
    named = {name.replace("_", "-"): value for name, value in {"idempotency_key": key(), **headers}.items()}
    return client.http.post("/submissions", content=content, headers=JSON | named)


def invalid_fields(response: httpx.Response) -> tuple[int, list[str]]:
    """The status, and the fields in `errors`."""
    return response.status_code, [error["field"] for error in response.json().get("errors", [])]


async def try_once(local: LocalService, submission_id: str, *outcome: Any, **given: Any) -> None:
    """Records an attempt in the place of the executor."""
    store = local.database.store
    await make_attempt(store, await executor_fence(store), submission_id, *outcome, **given)


async def listed(local: LocalService, **query: Any) -> Sequence[str]:
    response = await local.http.get("/submissions", params=query)
    assert response.status_code == 200, response.text
    return [each["submissionId"] for each in response.json()["submissions"]]


async def in_every_state(local: LocalService, gateway: str) -> dict[str, str]:
    """The ids of four new submissions, by state."""
    pending, delivered, failed, cancelled = await accepted(local, 4, gateway)
    await try_once(local, delivered, DELIVERED)
    await try_once(local, failed, pause_microseconds=None)
    await local.http.post(f"/submissions/{cancelled}/cancel")
    return {"pending": pending, "delivered": delivered, "failed": failed, "cancelled": cancelled}


# Submit.


async def test_submit_returns_202_and_submission_can_be_read(local: LocalService) -> None:
    response = await submit(local, {"a": 1})
    assert (response.status_code, list(response.json())) == (202, ["submissionId", "state"])
    assert response.json()["state"] == "pending"
    submission_id = response.json()["submissionId"]
    submission = await read_submission(local, submission_id)
    assert list(submission) == [*LISTED_FIELDS, "attempts"]
    assert submission == {
        "submissionId": submission_id,
        "gateway": "crm",
        "state": "pending",
        "attemptCount": 0,
        "nextAttemptAt": submission["createdAt"],
        "lastError": None,
        "requestId": response.headers["x-request-id"],
        "createdAt": submission["createdAt"],
        "endedAt": None,
        "attempts": [],
    }
    assert await read_submission(local, submission_id.upper()) == submission


async def test_same_key_and_payload_return_same_submission(local: LocalService, gateway: str) -> None:
    responses = [await submit(local, {"a": 1}, gateway, **{"Idempotency-Key": "order-7"}) for _ in range(3)]
    assert [each.status_code for each in responses] == [202] * 3
    assert len({each.json()["submissionId"] for each in responses}) == 1
    assert len(await listed(local, gateway=gateway)) == 1


async def test_same_key_returns_current_state(local: LocalService, gateway: str) -> None:
    submission_id = (await submit(local, 1, gateway, **{"Idempotency-Key": "order-7"})).json()["submissionId"]
    await try_once(local, submission_id, DELIVERED)
    again = await submit(local, 1, gateway, **{"Idempotency-Key": "order-7"})
    assert (again.status_code, again.json()) == (202, {"submissionId": submission_id, "state": "delivered"})


async def test_same_key_with_another_payload_returns_422(local: LocalService, gateway: str) -> None:
    await submit(local, {"a": 1}, gateway, **{"Idempotency-Key": "order-7"})
    response = await submit(local, {"a": 2}, gateway, **{"Idempotency-Key": "order-7"})
    assert (response.status_code, response.json()["code"]) == (422, "KEY_REUSED")
    assert response.json()["type"] == "urn:tenure:key-reused"
    assert len(await listed(local, gateway=gateway)) == 1


async def test_same_key_with_differently_formatted_payload_returns_422(local: LocalService, gateway: str) -> None:
    """Payloads are compared as bytes, not as JSON."""
    headers = JSON | {"Idempotency-Key": "a"}
    statuses = [
        (await local.http.post("/submissions", content=body(payload, gateway), headers=headers)).status_code
        for payload in ('{"a":1}', '{"a": 1}')
    ]
    assert statuses == [202, 422]


async def test_idempotency_key_is_case_sensitive_and_scoped_to_gateway(
    local: LocalService, gateway: str, other_gateway: str
) -> None:
    ids = [
        (await submit(local, 1, each, **{"Idempotency-Key": name})).json()["submissionId"]
        for each, name in product((gateway, other_gateway), ("Order-7", "order-7", "order-7 x"))
    ]
    assert len(set(ids)) == 6


async def test_concurrent_requests_with_same_key_create_one_submission(local: LocalService, gateway: str) -> None:
    """The requests alternate between the hot and the ordinary lane. The header `Expect` selects the ordinary lane."""
    lanes = [{}, {"Expect": "100-continue"}]
    responses = await asyncio.gather(
        *(
            submit(local, {"a": 1}, gateway, **{"Idempotency-Key": "order-7", **lanes[number % 2]})
            for number in range(30)
        )
    )
    assert {each.status_code for each in responses} == {202}
    assert len({each.json()["submissionId"] for each in responses}) == 1
    assert len(await listed(local, gateway=gateway)) == 1


async def test_only_one_of_two_concurrent_payloads_with_same_key_is_accepted(local: LocalService, gateway: str) -> None:
    payloads = (1, 2, 1, 2)
    responses = await asyncio.gather(*(submit(local, each, gateway, **{"Idempotency-Key": "x"}) for each in payloads))
    assert sorted(each.status_code for each in responses) == [202, 202, 422, 422]
    assert len(await listed(local, gateway=gateway)) == 1


# Bytes.

PAYLOADS = [
    "null",
    "true",
    '""',
    "0",
    "-0",
    "1.50",
    "1e999",
    "123456789012345678901234567890.0000000000000000000001",
    "[]",
    "{}",
    '{ "a" :\t1 ,\r\n "a": [ 2 ] }',
    '"\\u00e9\\/\\ud83d\\ude00"',
    '"é😀\u2028"',
    '{"payload": {"gateway": "usages"}}',
]


async def stored(local: LocalService, submission_id: str) -> bytes:
    (envelope,) = await local.database.store.read_envelopes([submission_id])
    return envelope.payload


async def test_payload_is_stored_byte_for_byte(local: LocalService) -> None:
    bodies = {body(f" {payload}\n", "crm"): payload.encode() for payload in PAYLOADS}
    bodies[b'{"payload" : [1,  2], "gateway":"crm"}'] = b"[1,  2]"
    for content, payload in bodies.items():
        response = await submit_raw(local, content)
        assert response.status_code == 202, response.text
        assert await stored(local, response.json()["submissionId"]) == payload


NOT_UTF_8 = [
    b'"\xff"',
    b'"\xc3"',
    b'"\xed\xa0\x80"',
    b'"\xc0\xaf"',
    b'{"\xff": 1}',
    b'"\xf4\x90\x80\x80"',
    b'["\xc3\xa9\x80"]',
]
NOT_JSON = [
    "",
    "nul",
    "01",
    "1.",
    "+1",
    "NaN",
    "'a'",
    '"a',
    "[1,]",
    '{"a":1,}',
    "{1:2}",
    '"\\x"',
    '"\\ud800"',
    '"\t"',
    "1 2",
]


def test_payload_that_is_not_utf_8_or_not_json_returns_400(any_client: Client) -> None:
    for payload in [*NOT_UTF_8, *(text.encode() for text in NOT_JSON)]:
        response = post(any_client, b'{"gateway": "parked", "payload": ' + payload + b"}")
        assert invalid_fields(response) == (400, ["body"]), payload


def sized(size: int) -> bytes:
    """A body of exactly `size` bytes."""
    frame = body('""')
    return body('"' + "x" * (size - len(frame)) + '"')


async def test_body_up_to_one_mebibyte_is_accepted(local: LocalService) -> None:
    for size in (100, 65_536, 65_537, 200_000, MEBIBYTE - 1, MEBIBYTE):
        content = sized(size).replace(b"parked", b"crm") + b"   "
        response = await submit_raw(local, content)
        assert response.status_code == 202, (size, response.text[:200])
        assert len(await stored(local, response.json()["submissionId"])) == size - len(body('""')) + 2


def test_body_over_one_mebibyte_returns_413(any_client: Client) -> None:
    for size in (MEBIBYTE + 1, 2 * MEBIBYTE):
        response = post(any_client, sized(size))
        assert (response.status_code, response.json()["code"]) == (413, "TOO_LARGE"), size
        assert response.json()["detail"] == "the body may have at most 1048576 bytes"


def test_connection_is_reusable_after_413(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        for content, status in ((sized(2 * MEBIBYTE), 413), (body(), 202)):
            connection.send(request(content, f"Idempotency-Key: {key()}", method="POST", path="/submissions"))
            assert connection.read().status == status


def test_command_body_over_64_kib_returns_413(any_client: Client) -> None:
    content = b'{"gateway": "parked"}'.ljust(65_537)
    for command in COMMANDS:
        response = any_client.http.post(f"/submissions/{command}", content=content, headers=JSON)
        assert response.status_code == 413, command


# Rejected requests.


def test_missing_idempotency_key_returns_400(any_client: Client) -> None:
    response = any_client.http.post("/submissions", content=body(), headers=JSON)
    assert invalid_fields(response) == (400, ["Idempotency-Key"])
    assert response.json()["errors"][0]["message"] == "is missing"


def test_invalid_idempotency_key_returns_400(any_service: RunningInstance) -> None:
    lines = request(body(), "Idempotency-Key: <key>", method="POST", path="/submissions")
    for invalid in ("", "é", "x" * 256, "a\tb"):
        with connected(any_service.port) as connection:
            connection.send(lines.replace(b"<key>", invalid.encode()))
            response = connection.read()
        assert (response.status, response.json()["errors"][0]["field"]) == (400, "Idempotency-Key"), invalid


def test_printable_idempotency_key_is_accepted(client: Client) -> None:
    for valid in ("x", "x" * 255, "a b", "~!@#$%^&*()", '"quoted"', "a.b:c/d"):
        assert post(client, body(), idempotency_key=valid).status_code == 202, valid


INVALID_BODIES: list[tuple[bytes, list[str]]] = [
    (b"{}", ["gateway", "payload"]),
    (b'{"gateway": "parked"}', ["payload"]),
    (b'{"payload": 1}', ["gateway"]),
    (b'{"gateway": null, "payload": 1}', ["gateway"]),
    (b'{"gateway": 7, "payload": 1}', ["gateway"]),
    (b'{"gateway": "", "payload": 1}', ["gateway"]),
    (b'{"gateway": "%s", "payload": 1}' % (b"x" * 300), ["gateway"]),
    (b'{"gateway": "a\\u0000b", "payload": 1}', ["gateway"]),
    (b'{"gateway": "\xc3\xa9", "payload": 1}', ["gateway"]),
    (b'{"gateway": "parked", "payload": 1, "payloads": 2}', ["payloads"]),
    (b'{"gateway": "parked", "payload": 1, "caller": "me"}', ["caller"]),
    (b'{"GATEWAY": "parked", "payload": 1}', ["GATEWAY", "gateway"]),
    (b"[]", ["body"]),
    (b"null", ["body"]),
    (b"{", ["body"]),
    (b"", ["body"]),
    (b'{"gateway": "parked", "payload": 1} x', ["body"]),
    (b'\xef\xbb\xbf{"gateway": "parked", "payload": 1}', ["body"]),
    (b"[" * 60_000, ["body"]),
]


def test_invalid_body_returns_400_with_fields(any_client: Client) -> None:
    for content, fields in INVALID_BODIES:
        assert invalid_fields(post(any_client, content)) == (400, fields), content[:50]


def test_deeply_nested_payload_returns_202_or_400(client: Client) -> None:
    for payload in ("[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000):
        assert post(client, body(payload)).status_code in (202, 400), payload[:5]


def test_submit_to_unconfigured_reserved_gateway_returns_403(any_client: Client) -> None:
    """The response does not disclose whether the gateway is configured."""
    response = post(any_client, body("{}", "usages"))
    assert (response.status_code, response.json()["code"]) == (403, "GATEWAY_RESERVED")


async def test_submit_to_configured_reserved_gateway_returns_403(local: LocalService) -> None:
    response = await submit(local, 1, "usages")
    assert (response.status_code, response.json()["detail"]) == (403, "gateway usages is reserved for Tenure")
    assert await listed(local, gateway="usages") == []


def test_unknown_gateway_returns_404(any_client: Client) -> None:
    for gateway in ("nothing", "Parked", "parked ", "x" * 200, "' OR 1=1"):
        response = post(any_client, body("{}", gateway))
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), gateway


def test_other_media_type_returns_415(any_client: Client) -> None:
    for media_type in ("text/plain", "application/xml", "application/x-www-form-urlencoded", ""):
        assert post(any_client, body(), content_type=media_type).status_code == 415, media_type
    for command in COMMANDS:
        headers = {"content-type": "text/plain"}
        assert any_client.http.post(f"/submissions/{command}", content=b"{}", headers=headers).status_code == 415


def test_unknown_submission_returns_404(client: Client) -> None:
    for submission_id, command in product(UNKNOWN, ("", "/retry", "/cancel")):
        address = client.http.base_url.copy_with(raw_path=f"/submissions/{submission_id}{command}".encode())
        response = client.http.request("POST" if command else "GET", address)
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), (submission_id[:40], command)


def test_unsupported_method_returns_405(any_client: Client) -> None:
    one = "/submissions/00000000-0000-7000-8000-000000000000"
    for method, path in (
        ("PUT", "/submissions"),
        ("DELETE", "/submissions"),
        ("GET", "/submissions/retry"),
        ("GET", "/submissions/cancel"),
        ("DELETE", one),
        ("GET", f"{one}/retry"),
    ):
        assert any_client.http.request(method, path).status_code == 405, (method, path)


def test_post_with_query_parameter_returns_400(any_client: Client) -> None:
    for path in ("/submissions", "/submissions/retry", "/submissions/x/cancel"):
        response = any_client.http.post(f"{path}?now=true", content=body(), headers=JSON | {"Idempotency-Key": "k"})
        assert invalid_fields(response) == (400, ["now"]), path


# Attempts.


async def test_get_returns_attempts(local: LocalService) -> None:
    (submission_id,) = await accepted(local)
    await try_once(local, submission_id, pause_microseconds=0)
    await try_once(local, submission_id, DELIVERED)
    submission = await read_submission(local, submission_id)
    first, second = submission["attempts"]
    assert list(first) == ATTEMPT_FIELDS
    times = {name: first[name] for name in ("startedAt", "endedAt")}
    assert first == {
        **times,
        "number": 1,
        "epoch": (await executor_fence(local.database.store)).epoch,
        "outcome": "failed",
        "status": 500,
        "error": "answered 500 to number 1",
        "early": False,
        "receipt": False,
    }
    assert (second["number"], second["outcome"], second["status"], second["error"]) == (2, "delivered", 202, None)
    assert first["startedAt"] <= first["endedAt"] <= second["startedAt"] <= second["endedAt"]
    assert (submission["attemptCount"], submission["nextAttemptAt"]) == (2, None)
    assert submission["endedAt"] == second["endedAt"]


async def test_get_returns_running_attempt_without_outcome(local: LocalService) -> None:
    (submission_id,) = await accepted(local)
    store = local.database.store
    await store.begin_attempts(await executor_fence(store), [submission_id])
    submission = await read_submission(local, submission_id)
    (running,) = submission["attempts"]
    assert [running[name] for name in ("endedAt", "outcome", "status", "error")] == [None] * 4
    assert (submission["state"], submission["nextAttemptAt"]) == ("pending", None)


async def test_failed_submission_shows_last_error(local: LocalService) -> None:
    (submission_id,) = await accepted(local)
    await try_once(local, submission_id, error="the connection failed", pause_microseconds=None)
    submission = await read_submission(local, submission_id)
    assert (submission["state"], submission["lastError"]) == ("failed", "the connection failed")


async def test_responses_omit_payload_and_idempotency_key(local: LocalService, gateway: str) -> None:
    response = await submit(local, "hunter2", gateway, **{"Idempotency-Key": "hunter3"})
    submission_id = response.json()["submissionId"]
    for path in (f"/submissions?gateway={gateway}", f"/submissions/{submission_id}"):
        found = await local.http.get(path)
        assert submission_id in found.text
        assert "hunter" not in found.text


# Lists.


async def test_list_returns_newest_first_without_attempts(local: LocalService, gateway: str) -> None:
    ids = await accepted(local, 3, gateway)
    response = (await local.http.get("/submissions", params={"gateway": gateway})).json()
    assert [each["submissionId"] for each in response["submissions"]] == ids[::-1]
    assert (list(response), response["count"], response["nextCursor"]) == (
        ["submissions", "count", "nextCursor"],
        3,
        None,
    )
    assert list(response["submissions"][0]) == LISTED_FIELDS


async def test_list_filters_by_gateway_and_state(local: LocalService, gateway: str, other_gateway: str) -> None:
    ids = await in_every_state(local, gateway)
    others = await in_every_state(local, other_gateway)
    assert set(await listed(local, gateway=gateway)) == set(ids.values())
    assert await listed(local, gateway="nothing") == []
    for state, submission_id in ids.items():
        assert await listed(local, gateway=gateway, state=state) == [submission_id], state
        assert (await read_submission(local, submission_id))["state"] == state
        in_state = await listed(local, state=state, limit=500)
        both = {**ids, **{f"other {name}": each for name, each in others.items()}}
        assert {name for name, each in both.items() if each in in_state} == {state, f"other {state}"}


async def test_list_is_paginated(local: LocalService, gateway: str, other_gateway: str) -> None:
    ids = await accepted(local, 5, gateway)
    await accepted(local, 2, other_gateway)
    for limit in (1, 2, 3, 500):
        url, seen = f"/submissions?gateway={gateway}&state=pending&limit={limit}", []
        while url:
            response = await local.http.get(url)
            page = response.json()
            assert (page["count"], "next" in response.links) == (
                len(page["submissions"]),
                page["nextCursor"] is not None,
            )
            seen += [each["submissionId"] for each in page["submissions"]]
            url = response.links["next"]["url"] if "next" in response.links else ""
        assert seen == ids[::-1], limit


async def test_pagination_is_stable_when_submissions_are_added(local: LocalService, gateway: str) -> None:
    ids = await accepted(local, 4, gateway)
    first = await local.http.get(f"/submissions?gateway={gateway}&limit=2")
    await accepted(local, 2, gateway)
    second = await local.http.get(first.links["next"]["url"])
    pages = [[each["submissionId"] for each in page.json()["submissions"]] for page in (first, second)]
    assert pages == [ids[:1:-1], ids[1::-1]]


def test_forged_cursor_returns_400(client: Client) -> None:
    for cursor in FORGED:
        response = client.http.get("/submissions", params={"cursor": cursor})
        assert invalid_fields(response) == (400, ["cursor"]), cursor


def test_list_with_invalid_parameter_returns_400(any_client: Client) -> None:
    for query in (
        "limit=0",
        "limit=501",
        "limit=1e2",
        "limit=",
        "state=",
        "state=Pending",
        "state=under_way",
        "gateway=",
        f"gateway={'x' * 300}",
        "tenant=x",
        "key=x",
    ):
        response = any_client.http.get(f"/submissions?{query}")
        assert invalid_fields(response) == (400, [query.partition("=")[0]]), query


def test_list_with_impossible_gateway_name_is_empty_or_returns_400(client: Client) -> None:
    for name in ("%00", "%C3%A9", "%20", "%27%20OR%201=1", "%F0%9F%98%80", "a%00b"):
        response = client.http.get(f"/submissions?gateway={name}")
        assert response.status_code == 400 or response.json()["submissions"] == [], (name, response.text)


def test_command_with_impossible_gateway_name_matches_nothing_or_returns_400(client: Client) -> None:
    for command, name in product(COMMANDS, ("\\u0000", "é", "' OR 1=1", "a\\u0000b")):
        content = f'{{"gateway": "{name}"}}'.encode()
        response = client.http.post(f"/submissions/{command}", content=content, headers=JSON)
        assert response.status_code == 400 or response.json() == {"count": 0}, (command, name, response.text)


# Retry and cancel of one submission.


async def test_retry_makes_submission_due_now(local: LocalService) -> None:
    (submission_id,) = await accepted(local)
    await try_once(local, submission_id)
    before = await read_submission(local, submission_id)
    response = await local.http.post(f"/submissions/{submission_id}/retry")
    assert (response.status_code, response.json()) == (200, await read_submission(local, submission_id))
    assert (response.json()["state"], response.json()["attemptCount"]) == ("pending", 1)
    assert response.json()["nextAttemptAt"] < before["nextAttemptAt"]


async def test_undelivered_submission_can_be_retried_and_cancelled_repeatedly(local: LocalService) -> None:
    for command, result, empty_field in (("retry", "pending", "endedAt"), ("cancel", "cancelled", "nextAttemptAt")):
        ids = await in_every_state(local, "crm")
        for state in ("pending", "failed", "cancelled"):
            for _ in range(2):
                response = await local.http.post(f"/submissions/{ids[state]}/{command}")
                assert (response.status_code, response.json()["state"]) == (200, result), (command, state)
                assert response.json()[empty_field] is None, (command, state)


async def test_command_on_delivered_submission_returns_409(local: LocalService) -> None:
    submission_id = (await in_every_state(local, "crm"))["delivered"]
    for command in COMMANDS:
        response = await local.http.post(f"/submissions/{submission_id}/{command}")
        assert (response.status_code, response.json()["code"]) == (409, "ALREADY_DELIVERED"), command
        assert response.json()["detail"] == f"submission {submission_id} has been delivered"
        assert (await read_submission(local, submission_id))["state"] == "delivered"


async def test_command_does_not_affect_other_submissions(local: LocalService, gateway: str) -> None:
    ids = await in_every_state(local, gateway)
    (one,) = await accepted(local, gateway=gateway)
    before = {state: await read_submission(local, each) for state, each in ids.items()}
    for command in COMMANDS:
        await local.http.post(f"/submissions/{one}/{command}")
        after = {state: await read_submission(local, each) for state, each in ids.items()}
        assert after == before, command


# Retry and cancel by filter.


async def states(local: LocalService, ids: dict[str, str]) -> dict[str, str]:
    return {state: (await read_submission(local, each))["state"] for state, each in ids.items()}


BY_FILTER: list[tuple[str, Json, int, dict[str, str]]] = [
    ("retry", {"gateway": "crm"}, 1, {"failed": "pending"}),
    ("retry", {"gateway": "crm", "state": "cancelled"}, 1, {"cancelled": "pending"}),
    ("retry", {"state": "failed"}, 2, {"failed": "pending"}),
    ("retry", {"state": "pending"}, 2, {}),
    ("cancel", {"gateway": "crm"}, 2, {"failed": "cancelled", "pending": "cancelled"}),
    ("cancel", {"gateway": "crm", "state": "failed"}, 1, {"failed": "cancelled"}),
    ("cancel", {"state": "pending"}, 2, {"pending": "cancelled"}),
    ("cancel", {"gateway": "nothing"}, 0, {}),
]
"""Command, filter, count in the response, and the new state of each changed submission by its old state.

Before the command, the gateways `crm` and `erp` each have one submission in every state.
"""


@pytest.fixture
async def own_follower(database: Database) -> AsyncIterator[LocalService]:
    """A new instance that never leads: the submissions that it accepts stay pending."""
    await executor_fence(database.store)
    async with LocalService.on(database, "crm", "erp").running() as service:
        yield service


async def test_command_by_filter_changes_only_matching_submissions(own_follower: LocalService) -> None:
    for command, query, count, changed in BY_FILTER:
        ids = await in_every_state(own_follower, "crm")
        others = await in_every_state(own_follower, "erp")
        response = await own_follower.http.post(f"/submissions/{command}", json=query)
        assert (response.status_code, response.json()) == (200, {"count": count}), (command, query)
        assert await states(own_follower, ids) == {state: changed.get(state, state) for state in ids}, (command, query)
        expected = {state: state if "gateway" in query else changed.get(state, state) for state in others}
        assert await states(own_follower, others) == expected, (command, query)
        await own_follower.database.execute("DELETE FROM submission_attempts")
        await own_follower.database.execute("DELETE FROM submissions")


async def test_command_by_filter_processes_more_than_one_batch(local: LocalService, gateway: str) -> None:
    await asyncio.gather(*(accepted(local, gateway=gateway) for _ in range(130)))
    for command in COMMANDS:
        response = await local.http.post(f"/submissions/{command}", json={"gateway": gateway, "state": "pending"})
        assert response.json() == {"count": 130}, command


def test_command_by_filter_with_invalid_body_returns_400(any_client: Client) -> None:
    bodies = {
        b"{}": "body",
        b'{"gateway": null}': "body",
        b"": "body",
        b"[]": "body",
        b'{"state": "delivered"}': "state",
        b'{"state": "Failed"}': "state",
        b'{"gateway": ""}': "gateway",
        b'{"gateway": "crm", "limit": 5}': "limit",
        b'{"gateway": ["crm"]}': "gateway",
    }
    for command, (content, field) in product(COMMANDS, bodies.items()):
        response = any_client.http.post(f"/submissions/{command}", content=content, headers=JSON)
        assert invalid_fields(response) == (400, [field]), (command, content)


# Prefix and version.


@pytest.fixture
async def prefixed(database: Database) -> AsyncIterator[LocalService]:
    await executor_fence(database.store)
    async with LocalService.on(database, "crm", prefix="/api/v3").running() as service:
        yield service


async def statuses(local: LocalService, prefix: str) -> list[int]:
    """Sends one request to each route of `/submissions` below `prefix`, except `/submissions/counts`. Returns the
    statuses of the responses.
    """
    posted = await local.http.post(
        f"{prefix}/submissions", content=body("{}", "crm"), headers=JSON | {"Idempotency-Key": key()}
    )
    submission_id = posted.json().get("submissionId", "none")
    responses = [
        posted,
        await local.http.get(f"{prefix}/submissions"),
        await local.http.get(f"{prefix}/submissions/{submission_id}"),
        *[await local.http.post(f"{prefix}/submissions/{submission_id}/{command}") for command in COMMANDS],
        *[await local.http.post(f"{prefix}/submissions/{command}", json={"gateway": "crm"}) for command in COMMANDS],
    ]
    return [response.status_code for response in responses]


async def test_routes_are_available_with_and_without_version(local: LocalService) -> None:
    for version in ("", "/v1"):
        assert await statuses(local, version) == [202, 200, 200, 200, 200, 200, 200], version


async def test_routes_and_next_links_are_available_only_below_prefix(prefixed: LocalService) -> None:
    for version in ("", "/v1"):
        assert await statuses(prefixed, f"/api/v3{version}") == [202, 200, 200, 200, 200, 200, 200], version
        assert await statuses(prefixed, version) == [404] * 7, version
    response = await prefixed.http.get("/api/v3/submissions?limit=1")
    link = response.links["next"]["url"]
    assert link.startswith("/api/v3/submissions?")
    assert (await prefixed.http.get(link)).json()["count"] == 1


async def test_counts_are_grouped_by_gateway_and_state(database: Database) -> None:
    async with LocalService.on(database, "crm").running() as service:
        await accept(database.store, 3, gateway="mail")
        response = await service.http.get("/submissions/counts")
        assert response.json() == {"counts": [{"gateway": "mail", "state": "pending", "count": 3, "exact": True}]}
