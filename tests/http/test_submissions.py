"""`/submissions`: what is to be sent to a gateway, by whatever key it came, and what became of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from tenure.config import GatewayConfig
from tenure.model.leases import Fence
from tests.http.client import JSON, Client, Json, connected, request
from tests.http.local import LocalService
from tests.http.submitting import MEBIBYTE, accepted, body, key, shown, submit
from tests.http.test_leases import FORGED
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.submissions import DELIVERED, attempt, executor

LISTED_FIELDS = [
    "submissionId",
    "gateway",
    "state",
    "attemptCount",
    "nextAttemptAt",
    "lastError",
    "createdAt",
    "endedAt",
]
ATTEMPT_FIELDS = ["number", "epoch", "startedAt", "endedAt", "outcome", "status", "error"]
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
    """With a key of its own unless one is given; header names with underscores for dashes."""
    named = {name.replace("_", "-"): value for name, value in {"idempotency_key": key(), **headers}.items()}
    return client.http.post("/submissions", content=content, headers=JSON | named)


def wrong(answer: httpx.Response) -> tuple[int, list[str]]:
    """The fields that a refusal names."""
    return answer.status_code, [error["field"] for error in answer.json().get("errors", [])]


# An instance that never leads: what is submitted to it waits until the test does something with it.


@pytest.fixture
async def quiet(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    await executor(database.store)
    gateways = {name: GatewayConfig(url="http://127.0.0.1:9/") for name in ("crm", "shop", "usages")}
    async with LocalService.on(database, monkeypatch, gateways=gateways).running() as service:
        yield service


@pytest.fixture
async def fence(quiet: LocalService, database: Database) -> Fence:
    """Of the executor, whom the test plays."""
    del quiet
    return await executor(database.store)


async def listed(local: LocalService, **query: Any) -> Sequence[str]:
    answer = await local.http.get("/submissions", params=query)
    assert answer.status_code == 200, answer.text
    return [each["submissionId"] for each in answer.json()["submissions"]]


async def in_every_state(local: LocalService, database: Database, fence: Fence, gateway: str = "crm") -> dict[str, str]:
    """One of each, by its state."""
    pending, delivered, failed, cancelled = await accepted(local, 4, gateway)
    await attempt(database.store, fence, delivered, DELIVERED)
    await attempt(database.store, fence, failed, pause_microseconds=None)
    await local.http.post(f"/submissions/{cancelled}/cancel")
    return {"pending": pending, "delivered": delivered, "failed": failed, "cancelled": cancelled}


# Submitting.


async def test_accepts_and_shows_it(quiet: LocalService) -> None:
    answer = await submit(quiet, {"a": 1})
    assert (answer.status_code, list(answer.json())) == (202, ["submissionId", "state"])
    assert answer.json()["state"] == "pending"
    submission = await shown(quiet, answer.json()["submissionId"])
    assert list(submission) == [*LISTED_FIELDS, "attempts"]
    assert submission == {
        "submissionId": answer.json()["submissionId"],
        "gateway": "crm",
        "state": "pending",
        "attemptCount": 0,
        "nextAttemptAt": submission["createdAt"],
        "lastError": None,
        "createdAt": submission["createdAt"],
        "endedAt": None,
        "attempts": [],
    }


async def test_the_same_key_and_payload_give_the_same_submission(quiet: LocalService) -> None:
    answers = [await submit(quiet, {"a": 1}, **{"Idempotency-Key": "order-7"}) for _ in range(3)]
    assert [each.status_code for each in answers] == [202] * 3
    assert len({each.json()["submissionId"] for each in answers}) == 1
    assert len(await listed(quiet)) == 1


async def test_the_same_key_tells_what_became_of_it(quiet: LocalService, database: Database, fence: Fence) -> None:
    (submission_id,) = [(await submit(quiet, 1, **{"Idempotency-Key": "order-7"})).json()["submissionId"]]
    await attempt(database.store, fence, submission_id, DELIVERED)
    again = await submit(quiet, 1, **{"Idempotency-Key": "order-7"})
    assert (again.status_code, again.json()) == (202, {"submissionId": submission_id, "state": "delivered"})


async def test_the_same_key_and_another_payload_are_refused(quiet: LocalService) -> None:
    await submit(quiet, {"a": 1}, **{"Idempotency-Key": "order-7"})
    answer = await submit(quiet, {"a": 2}, **{"Idempotency-Key": "order-7"})
    assert (answer.status_code, answer.json()["code"]) == (422, "KEY_REUSED")
    assert answer.json()["type"] == "urn:tenure:key-reused"
    assert len(await listed(quiet)) == 1


async def test_a_payload_that_is_spelled_otherwise_is_another(quiet: LocalService) -> None:
    """It is bytes that are promised, not what they mean."""
    statuses = [
        (await quiet.http.post("/submissions", content=content, headers=JSON | {"Idempotency-Key": "a"})).status_code
        for content in (body('{"a":1}', "crm"), body('{"a": 1}', "crm"))
    ]
    assert statuses == [202, 422]


async def test_a_key_belongs_to_its_gateway(quiet: LocalService) -> None:
    ids = [
        (await submit(quiet, 1, gateway, **{"Idempotency-Key": "order-7"})).json()["submissionId"]
        for gateway in ("crm", "shop")
    ]
    assert len(set(ids)) == 2


async def test_keys_that_differ_in_case_are_two(quiet: LocalService) -> None:
    ids = [
        (await submit(quiet, 1, **{"Idempotency-Key": name})).json()["submissionId"]
        for name in ("Order-7", "order-7", "order-7 x")
    ]
    assert len(set(ids)) == 3


async def test_the_same_key_many_times_at_once_is_one_submission(quiet: LocalService) -> None:
    async def one(_number: int) -> str:
        answer = await submit(quiet, {"a": 1}, **{"Idempotency-Key": "order-7"})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["submissionId"])

    assert len(set(await asyncio.gather(*map(one, range(30))))) == 1
    assert len(await listed(quiet)) == 1


async def test_of_two_payloads_at_once_by_the_same_key_one_is_refused(quiet: LocalService) -> None:
    answers = await asyncio.gather(*(submit(quiet, number, **{"Idempotency-Key": "x"}) for number in (1, 2, 1, 2)))
    assert sorted(each.status_code for each in answers) == [202, 202, 422, 422]
    assert len(await listed(quiet)) == 1


async def test_the_same_key_through_both_lanes_is_one_submission(quiet: LocalService) -> None:
    ways = [{}, {"Expect": "100-continue"}]
    answers = await asyncio.gather(
        *(submit(quiet, 1, **{"Idempotency-Key": "order-7", **ways[number % 2]}) for number in range(10))
    )
    assert {each.status_code for each in answers} == {202}
    assert len({each.json()["submissionId"] for each in answers}) == 1


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


async def stored(database: Database, submission_id: str) -> bytes:
    (parcel,) = await database.store.read_parcels([submission_id])
    return parcel.payload


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_the_payload_is_kept_byte_for_byte(quiet: LocalService, database: Database, payload: str) -> None:
    content = body(f" {payload}\n", "crm")
    answer = await quiet.http.post("/submissions", content=content, headers=JSON | {"Idempotency-Key": key()})
    assert answer.status_code == 202, answer.text
    assert await stored(database, answer.json()["submissionId"]) == payload.encode()


async def test_a_payload_that_comes_in_another_order_is_the_same(quiet: LocalService, database: Database) -> None:
    content = b'{"payload" : [1,  2], "gateway":"crm"}'
    answer = await quiet.http.post("/submissions", content=content, headers=JSON | {"Idempotency-Key": key()})
    assert await stored(database, answer.json()["submissionId"]) == b"[1,  2]"


@pytest.mark.parametrize(
    "payload",
    [
        b'"\xff"',
        b'"\xc3"',
        b'"\xed\xa0\x80"',
        b'"\xc0\xaf"',
        b'{"\xff": 1}',
        b'"\xf4\x90\x80\x80"',
        b'["\xc3\xa9\x80"]',
    ],
)
def test_a_payload_that_is_not_utf_8_is_refused(client: Client, payload: bytes) -> None:
    answer = post(client, b'{"gateway": "parked", "payload": ' + payload + b"}")
    assert wrong(answer) == (400, ["body"])


@pytest.mark.parametrize(
    "payload",
    ["", "nul", "01", "1.", "+1", "NaN", "'a'", '"a', "[1,]", '{"a":1,}', "{1:2}", '"\\x"', '"\\ud800"', '"\t"', "1 2"],
)
def test_a_payload_that_is_not_json_is_refused(client: Client, payload: str) -> None:
    assert wrong(post(client, body(payload))) == (400, ["body"])


def sized(size: int) -> bytes:
    """A body of exactly so many bytes."""
    frame = body('""')
    return body('"' + "x" * (size - len(frame)) + '"')


@pytest.mark.parametrize("size", [100, 65_536, 65_537, 200_000, MEBIBYTE - 1, MEBIBYTE])
async def test_takes_up_to_a_mebibyte(quiet: LocalService, database: Database, size: int) -> None:
    content = sized(size).replace(b"parked", b"crm") + b"   "
    answer = await quiet.http.post("/submissions", content=content, headers=JSON | {"Idempotency-Key": "k"})
    assert answer.status_code == 202, answer.text[:200]
    assert len(await stored(database, answer.json()["submissionId"])) == size - len(body('""')) + 2


@pytest.mark.parametrize("size", [MEBIBYTE + 1, 2 * MEBIBYTE])
def test_refuses_more_than_a_mebibyte(client: Client, size: int) -> None:
    answer = post(client, sized(size))
    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")
    assert answer.json()["detail"] == "the body may have at most 1048576 bytes"


def test_the_connection_lives_on_after_a_body_that_was_too_large(service: RunningInstance) -> None:
    with connected(service.port) as connection:
        for content, status in ((sized(2 * MEBIBYTE), 413), (body(), 202)):
            connection.send(request(content, f"Idempotency-Key: {key()}", method="POST", path="/submissions"))
            assert connection.read().status == status


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_no_more_than_other_bodies(client: Client, command: str) -> None:
    content = b'{"gateway": "parked"}'.ljust(65_537)
    assert client.http.post(f"/submissions/{command}", content=content, headers=JSON).status_code == 413


# Refusals.


def test_a_submission_without_a_key_is_refused(client: Client) -> None:
    answer = client.http.post("/submissions", content=body(), headers=JSON)
    assert wrong(answer) == (400, ["Idempotency-Key"])
    assert answer.json()["errors"][0]["message"] == "is missing"


@pytest.mark.parametrize("bad", ["", "é", "x" * 256, "a\tb"])
def test_a_key_that_is_none_is_refused(service: RunningInstance, bad: str) -> None:
    with connected(service.port) as connection:
        lines = request(body(), "Idempotency-Key: <key>", method="POST", path="/submissions")
        connection.send(lines.replace(b"<key>", bad.encode()))
        answer = connection.read()
    assert (answer.status, answer.json()["errors"][0]["field"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize("good", ["x", "x" * 255, "a b", "~!@#$%^&*()", '"quoted"', "a.b:c/d"])
def test_a_key_may_be_anything_that_can_be_printed(client: Client, good: str) -> None:
    assert post(client, body(), idempotency_key=good).status_code == 202


@pytest.mark.parametrize(
    ("content", "fields"),
    [
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
        (b'{"Gateway": "parked", "payload": 1}', ["Gateway", "gateway"]),
        (b"[]", ["body"]),
        (b"null", ["body"]),
        (b"{", ["body"]),
        (b"", ["body"]),
        (b'{"gateway": "parked", "payload": 1} x', ["body"]),
        (b'\xef\xbb\xbf{"gateway": "parked", "payload": 1}', ["body"]),
        (b"[" * 60_000, ["body"]),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_wrong_body_is_refused_and_says_where(client: Client, content: bytes, fields: list[str]) -> None:
    assert wrong(post(client, content)) == (400, fields)


@pytest.mark.parametrize("payload", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_a_payload_of_any_depth_is_taken_or_refused(client: Client, payload: str) -> None:
    assert post(client, body(payload)).status_code in (202, 400)


@pytest.mark.parametrize("gateway", ["usages", "oncall"])
def test_nothing_from_outside_goes_to_gateways_of_tenure(client: Client, gateway: str) -> None:
    """Not set up: nobody can find out by this."""
    answer = post(client, body("{}", gateway))
    assert (answer.status_code, answer.json()["code"]) == (403, "GATEWAY_RESERVED")


async def test_nothing_from_outside_goes_to_gateways_of_tenure_that_are_set_up(quiet: LocalService) -> None:
    answer = await submit(quiet, 1, "usages")
    assert (answer.status_code, answer.json()["detail"]) == (403, "gateway usages is Tenure's own")
    assert await listed(quiet) == []


@pytest.mark.parametrize("gateway", ["nothing", "Parked", "parked ", "x" * 200, "' OR 1=1"])
def test_a_gateway_that_is_not_set_up_is_not_found(client: Client, gateway: str) -> None:
    answer = post(client, body("{}", gateway))
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("media_type", ["text/plain", "application/xml", "application/x-www-form-urlencoded", ""])
def test_another_media_type_is_refused(client: Client, media_type: str) -> None:
    assert post(client, body(), content_type=media_type).status_code == 415


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_another_media_type_is_refused(client: Client, command: str) -> None:
    answer = client.http.post(f"/submissions/{command}", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415


@pytest.mark.parametrize("submission_id", UNKNOWN)
@pytest.mark.parametrize("below", ["", *(f"/{command}" for command in COMMANDS)])
def test_a_submission_that_is_not_there_is_not_found(client: Client, submission_id: str, below: str) -> None:
    address = client.http.base_url.copy_with(raw_path=f"/submissions/{submission_id}{below}".encode())
    answer = client.http.request("POST" if below else "GET", address)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/submissions"),
        ("DELETE", "/submissions"),
        ("GET", "/submissions/retry"),
        ("GET", "/submissions/cancel"),
        ("DELETE", "/submissions/00000000-0000-7000-8000-000000000000"),
        ("GET", "/submissions/00000000-0000-7000-8000-000000000000/retry"),
    ],
)
def test_a_method_that_is_not_taken_is_refused(client: Client, method: str, path: str) -> None:
    assert client.http.request(method, path).status_code == 405


@pytest.mark.parametrize("path", ["/submissions", "/submissions/retry", "/submissions/x/cancel"])
def test_commands_take_no_parameters(client: Client, path: str) -> None:
    answer = client.http.post(f"{path}?now=true", content=body(), headers=JSON | {"Idempotency-Key": "k"})
    assert wrong(answer) == (400, ["now"])


async def test_an_id_may_be_in_upper_case(quiet: LocalService) -> None:
    (submission_id,) = await accepted(quiet)
    assert (await shown(quiet, submission_id.upper()))["submissionId"] == submission_id


# What became of it.


async def test_shows_its_attempts(quiet: LocalService, database: Database, fence: Fence) -> None:
    (submission_id,) = await accepted(quiet)
    await attempt(database.store, fence, submission_id, pause_microseconds=0)
    await attempt(database.store, fence, submission_id, DELIVERED)
    submission = await shown(quiet, submission_id)
    first, second = submission["attempts"]
    assert list(first) == ATTEMPT_FIELDS
    times = {name: first[name] for name in ("startedAt", "endedAt")}
    assert first == {
        **times,
        "number": 1,
        "epoch": fence.epoch,
        "outcome": "failed",
        "status": 500,
        "error": "answered 500 to number 1",
    }
    assert (second["number"], second["outcome"], second["status"], second["error"]) == (2, "delivered", 202, None)
    assert first["startedAt"] <= first["endedAt"] <= second["startedAt"] <= second["endedAt"]
    assert (submission["attemptCount"], submission["nextAttemptAt"]) == (2, None)
    assert submission["endedAt"] == second["endedAt"]


async def test_shows_an_attempt_that_is_under_way(quiet: LocalService, database: Database, fence: Fence) -> None:
    (submission_id,) = await accepted(quiet)
    await database.store.begin_attempts(fence, [submission_id])
    submission = await shown(quiet, submission_id)
    (attempt_shown,) = submission["attempts"]
    assert [attempt_shown[name] for name in ("endedAt", "outcome", "status", "error")] == [None] * 4
    assert (submission["state"], submission["nextAttemptAt"]) == ("pending", None)


async def test_tells_why_it_failed(quiet: LocalService, database: Database, fence: Fence) -> None:
    (submission_id,) = await accepted(quiet)
    await attempt(database.store, fence, submission_id, error="it could not be connected to", pause_microseconds=None)
    submission = await shown(quiet, submission_id)
    assert (submission["state"], submission["lastError"]) == ("failed", "it could not be connected to")


async def test_shows_no_payload_and_no_key(quiet: LocalService) -> None:
    answer = await submit(quiet, "hunter2", **{"Idempotency-Key": "hunter3"})
    submission_id = answer.json()["submissionId"]
    told = [await quiet.http.get(path) for path in ("/submissions", f"/submissions/{submission_id}")]
    assert [each.text for each in told if "hunter" in each.text] == []


# Lists.


async def test_lists_the_newest_first_with_all_but_its_attempts(quiet: LocalService) -> None:
    ids = await accepted(quiet, 3)
    answer = (await quiet.http.get("/submissions")).json()
    assert [each["submissionId"] for each in answer["submissions"]] == ids[::-1]
    assert (list(answer), answer["count"], answer["nextCursor"]) == (["submissions", "count", "nextCursor"], 3, None)
    assert list(answer["submissions"][0]) == LISTED_FIELDS


@pytest.mark.parametrize("state", ["pending", "delivered", "failed", "cancelled"])
async def test_lists_by_state(quiet: LocalService, database: Database, fence: Fence, state: str) -> None:
    ids = await in_every_state(quiet, database, fence)
    assert await listed(quiet, state=state) == [ids[state]]
    assert (await shown(quiet, ids[state]))["state"] == state


async def test_lists_by_gateway_and_state(quiet: LocalService, database: Database, fence: Fence) -> None:
    ids = await in_every_state(quiet, database, fence, "shop")
    await in_every_state(quiet, database, fence, "crm")
    assert set(await listed(quiet, gateway="shop")) == set(ids.values())
    assert await listed(quiet, gateway="shop", state="failed") == [ids["failed"]]
    assert await listed(quiet, gateway="nothing") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
async def test_lists_page_by_page(quiet: LocalService, limit: int) -> None:
    ids = await accepted(quiet, 5)
    await accepted(quiet, 2, "shop")
    url, seen = f"/submissions?gateway=crm&state=pending&limit={limit}", []
    while url:
        answer = await quiet.http.get(url)
        page = answer.json()
        assert (page["count"], "next" in answer.links) == (len(page["submissions"]), page["nextCursor"] is not None)
        seen += [each["submissionId"] for each in page["submissions"]]
        url = answer.links["next"]["url"] if "next" in answer.links else ""
    assert seen == ids[::-1]


async def test_a_list_is_stable_while_others_are_accepted(quiet: LocalService) -> None:
    ids = await accepted(quiet, 4)
    first = await quiet.http.get("/submissions?limit=2")
    await accepted(quiet, 2)
    second = await quiet.http.get(first.links["next"]["url"])
    pages = [[each["submissionId"] for each in page.json()["submissions"]] for page in (first, second)]
    assert pages == [ids[:1:-1], ids[1::-1]]


@pytest.mark.parametrize("cursor", FORGED)
def test_a_cursor_that_was_never_given_out_is_refused(client: Client, cursor: str) -> None:
    assert wrong(client.http.get("/submissions", params={"cursor": cursor})) == (400, ["cursor"])


@pytest.mark.parametrize(
    "query",
    [
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
    ],
)
def test_the_list_refuses_what_it_does_not_know(client: Client, query: str) -> None:
    assert wrong(client.http.get(f"/submissions?{query}")) == (400, [query.partition("=")[0]])


@pytest.mark.parametrize("name", ["%00", "%C3%A9", "%20", "%27%20OR%201=1", "%F0%9F%98%80", "a%00b"])
def test_a_name_that_no_gateway_has_finds_nothing_or_is_refused(client: Client, name: str) -> None:
    answer = client.http.get(f"/submissions?gateway={name}")
    assert answer.status_code == 400 or answer.json()["submissions"] == [], answer.text


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["\\u0000", "é", "' OR 1=1", "a\\u0000b"])
def test_a_command_by_a_name_that_no_gateway_has_finds_nothing_or_is_refused(
    client: Client, command: str, name: str
) -> None:
    answer = client.http.post(f"/submissions/{command}", content=f'{{"gateway": "{name}"}}'.encode(), headers=JSON)
    assert answer.status_code == 400 or answer.json() == {"count": 0}, answer.text


# Retrying and cancelling one.


async def test_retrying_makes_it_due_now(quiet: LocalService, database: Database, fence: Fence) -> None:
    (submission_id,) = await accepted(quiet)
    await attempt(database.store, fence, submission_id)
    waits = await shown(quiet, submission_id)
    answer = await quiet.http.post(f"/submissions/{submission_id}/retry")
    assert (answer.status_code, answer.json()) == (200, await shown(quiet, submission_id))
    assert (answer.json()["state"], answer.json()["attemptCount"]) == ("pending", 1)
    assert answer.json()["nextAttemptAt"] < waits["nextAttemptAt"]


@pytest.mark.parametrize("state", ["pending", "failed", "cancelled"])
async def test_what_is_not_delivered_can_be_retried(
    quiet: LocalService, database: Database, fence: Fence, state: str
) -> None:
    submission_id = (await in_every_state(quiet, database, fence))[state]
    answer = await quiet.http.post(f"/submissions/{submission_id}/retry")
    assert (answer.status_code, answer.json()["state"], answer.json()["endedAt"]) == (200, "pending", None)


@pytest.mark.parametrize("state", ["pending", "failed", "cancelled"])
async def test_what_is_not_delivered_can_be_cancelled(
    quiet: LocalService, database: Database, fence: Fence, state: str
) -> None:
    submission_id = (await in_every_state(quiet, database, fence))[state]
    answer = await quiet.http.post(f"/submissions/{submission_id}/cancel")
    assert (answer.status_code, answer.json()["state"], answer.json()["nextAttemptAt"]) == (200, "cancelled", None)


@pytest.mark.parametrize("command", COMMANDS)
async def test_what_is_delivered_can_be_neither(
    quiet: LocalService, database: Database, fence: Fence, command: str
) -> None:
    submission_id = (await in_every_state(quiet, database, fence))["delivered"]
    answer = await quiet.http.post(f"/submissions/{submission_id}/{command}")
    assert (answer.status_code, answer.json()["code"]) == (409, "ALREADY_DELIVERED")
    assert answer.json()["detail"] == f"submission {submission_id} is delivered"
    assert (await shown(quiet, submission_id))["state"] == "delivered"


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_repeated_is_harmless(quiet: LocalService, command: str) -> None:
    (submission_id,) = await accepted(quiet)
    answers = [await quiet.http.post(f"/submissions/{submission_id}/{command}") for _ in range(2)]
    assert [each.status_code for each in answers] == [200, 200]


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_to_one_leaves_the_others_alone(
    quiet: LocalService, database: Database, fence: Fence, command: str
) -> None:
    ids = await in_every_state(quiet, database, fence)
    (one,) = await accepted(quiet)
    before = {state: await shown(quiet, each) for state, each in ids.items()}
    await quiet.http.post(f"/submissions/{one}/{command}")
    assert {state: await shown(quiet, each) for state, each in ids.items()} == before


# Retrying and cancelling by filter.


async def states(local: LocalService, ids: dict[str, str]) -> dict[str, str]:
    return {state: (await shown(local, each))["state"] for state, each in ids.items()}


@pytest.mark.parametrize(
    ("command", "query", "count", "changed"),
    [
        ("retry", {"gateway": "crm"}, 1, {"failed": "pending"}),
        ("retry", {"gateway": "crm", "state": "cancelled"}, 1, {"cancelled": "pending"}),
        ("retry", {"state": "failed"}, 2, {"failed": "pending"}),
        ("retry", {"state": "pending"}, 2, {}),
        ("cancel", {"gateway": "crm"}, 2, {"failed": "cancelled", "pending": "cancelled"}),
        ("cancel", {"gateway": "crm", "state": "failed"}, 1, {"failed": "cancelled"}),
        ("cancel", {"state": "pending"}, 2, {"pending": "cancelled"}),
        ("cancel", {"gateway": "nothing"}, 0, {}),
    ],
)
async def test_a_command_by_filter_reaches_what_it_is_meant_for(
    quiet: LocalService,
    database: Database,
    fence: Fence,
    command: str,
    query: Json,
    count: int,
    changed: dict[str, str],
) -> None:
    ids = await in_every_state(quiet, database, fence, "crm")
    others = await in_every_state(quiet, database, fence, "shop")
    answer = await quiet.http.post(f"/submissions/{command}", json=query)
    assert (answer.status_code, answer.json()) == (200, {"count": count})
    assert await states(quiet, ids) == {state: changed.get(state, state) for state in ids}
    both = "gateway" not in query
    assert await states(quiet, others) == {state: changed.get(state, state) if both else state for state in others}


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_by_filter_reaches_more_than_a_batch(quiet: LocalService, command: str) -> None:
    ids = await asyncio.gather(*(accepted(quiet) for _ in range(130)))
    assert len(ids) == 130
    answer = await quiet.http.post(f"/submissions/{command}", json={"state": "pending"})
    assert answer.json() == {"count": 130}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "fields"),
    [
        (b"{}", ["body"]),
        (b'{"gateway": null}', ["body"]),
        (b"", ["body"]),
        (b"[]", ["body"]),
        (b'{"state": "delivered"}', ["state"]),
        (b'{"state": "Failed"}', ["state"]),
        (b'{"gateway": ""}', ["gateway"]),
        (b'{"gateway": "crm", "limit": 5}', ["limit"]),
        (b'{"gateway": ["crm"]}', ["gateway"]),
    ],
)
def test_a_command_by_filter_refuses_what_it_does_not_know(
    client: Client, command: str, content: bytes, fields: list[str]
) -> None:
    assert wrong(client.http.post(f"/submissions/{command}", content=content, headers=JSON)) == (400, fields)


# Addresses.


@pytest.fixture
async def prefixed(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    await executor(database.store)
    gateways = {"crm": GatewayConfig(url="http://127.0.0.1:9/")}
    async with LocalService.on(database, monkeypatch, prefix="/api/v3", gateways=gateways).running() as service:
        yield service


async def statuses(local: LocalService, below: str) -> list[int]:
    """Of every route."""
    posted = await local.http.post(
        f"{below}/submissions", content=body("{}", "crm"), headers=JSON | {"Idempotency-Key": key()}
    )
    submission_id = posted.json().get("submissionId", "none")
    answers = [
        posted,
        await local.http.get(f"{below}/submissions"),
        await local.http.get(f"{below}/submissions/{submission_id}"),
        *[await local.http.post(f"{below}/submissions/{submission_id}/{command}") for command in COMMANDS],
        *[await local.http.post(f"{below}/submissions/{command}", json={"gateway": "crm"}) for command in COMMANDS],
    ]
    return [answer.status_code for answer in answers]


@pytest.mark.parametrize("version", ["", "/v1"])
async def test_answers_with_and_without_the_version(quiet: LocalService, version: str) -> None:
    assert await statuses(quiet, version) == [202, 200, 200, 200, 200, 200, 200]


@pytest.mark.parametrize("version", ["", "/v1"])
async def test_answers_below_the_prefix_and_nowhere_else(prefixed: LocalService, version: str) -> None:
    assert await statuses(prefixed, f"/api/v3{version}") == [202, 200, 200, 200, 200, 200, 200]
    assert await statuses(prefixed, version) == [404] * 7


async def test_the_links_carry_the_prefix(prefixed: LocalService) -> None:
    for _ in range(2):
        await statuses(prefixed, "/api/v3")
    answer = await prefixed.http.get("/api/v3/submissions?limit=1")
    link = answer.links["next"]["url"]
    assert link.startswith("/api/v3/submissions?")
    assert (await prefixed.http.get(link)).json()["count"] == 1
