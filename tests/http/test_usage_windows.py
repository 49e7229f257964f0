"""`/usage/windows`: the windows, their chunks and submissions, and their delivery."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import httpx
import pytest

from tenure.config import GatewayConfig
from tenure.config.settings import UsageConfig
from tenure.domain.sessions import Session
from tenure.domain.usage import CHUNK_MAX, ChunkDigest
from tenure.telemetry.events import UsageHandedOver
from tests.http.client import Client, Json
from tests.http.local import LocalService
from tests.http.submitting import read_submission, submit
from tests.http.test_deliveries import BOUND_SECONDS, FAST
from tests.http.test_leases import FORGED
from tests.http.test_usage import cursor, exact, invalid_fields, text
from tests.support.databases import Database
from tests.support.odd_receivers import http_response, odd_receiver
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import DELIVERED, executor_fence, make_attempt
from tests.support.usage import (
    CONTRACT,
    chunk_all,
    cut,
    emitter_fence,
    insert_sessions,
    install,
    minute,
    session_between,
)

WINDOW_KEYS = ["windowId", "startAt", "endAt", "factors", "sessions", "usage", "deliveredAt", "delivery"]
CHUNK_KEYS = ["chunk", "submissionId", "sessions", "usage", "digest", "deliveredAt", "receipt"]
FACTORS = {"1": 1, "2": 2, "3": 3}
FIRST_CUT = minute(1)


async def billed(database: Database, sessions: Sequence[Session] = (), at: datetime = FIRST_CUT, **given: Any) -> None:
    """Inserts the sessions, cuts at `at` and divides the window. With a contract, also submits the chunks."""
    if sessions:
        await insert_sessions(database, sessions)
    await cut(database, at, **given)
    await chunk_all(database)


def basic(begins: float = 10, ends: float = 20) -> Session:
    """A basic session from `begins` to `ends`, in seconds after noon."""
    return session_between(minute(0, begins), minute(0, ends))


async def window(local: LocalService, window_id: int = 1) -> Json:
    return exact(await local.http.get(f"/usage/windows/{window_id}"))


async def listed(local: LocalService, **query: Any) -> Json:
    return exact(await local.http.get("/usage/windows", params=query))


# A window.


async def test_list_without_windows_is_empty(metered: LocalService) -> None:
    response = await metered.http.get("/usage/windows")
    assert (response.status_code, response.text) == (200, '{"windows":[],"count":0,"nextCursor":null}')


async def test_undivided_window_has_no_sums(metered: LocalService) -> None:
    await insert_sessions(metered.database, [basic()])
    await cut(metered.database, minute(1), contract=CONTRACT)
    assert await window(metered) == {
        "windowId": 1,
        "startAt": text(NOON),
        "endAt": text(minute(1)),
        "factors": FACTORS,
        "sessions": None,
        "usage": None,
        "deliveredAt": None,
        "delivery": "waiting",
        "chunks": [],
    }


async def test_window_response_matches_expected_json_exactly(metered: LocalService) -> None:
    await billed(metered.database, [basic(10, 20), basic(30, 59)], factors=(250_000, 1, 3_000_000), contract=CONTRACT)
    response = await metered.http.get("/usage/windows/1")
    (chunk,) = response.json()["chunks"]
    assert response.text == (
        '{"windowId":1,"startAt":"2041-03-01T12:00:00.123456Z","endAt":"2041-03-01T12:01:00.000000Z",'
        '"factors":{"1":0.25,"2":0.000001,"3":3},"sessions":2,"usage":0.000004,"deliveredAt":null,'
        '"delivery":"waiting","chunks":['
        f'{{"chunk":1,"submissionId":"{chunk["submissionId"]}","sessions":2,"usage":0.000004,"digest":null,'
        '"deliveredAt":null,"receipt":false}]}'
    )


async def test_list_returns_windows_without_chunks(metered: LocalService) -> None:
    await billed(metered.database, [basic(10, 70)])
    await billed(metered.database, at=minute(2))
    response = await listed(metered)
    assert [list(each) for each in response["windows"]] == [WINDOW_KEYS] * 2
    whole = [await window(metered, each) for each in (2, 1)]
    assert [list(each) for each in whole] == [[*WINDOW_KEYS, "chunks"]] * 2
    assert response["windows"] == [{name: each[name] for name in WINDOW_KEYS} for each in whole]


async def test_consecutive_windows_are_contiguous(metered: LocalService) -> None:
    await cut(metered.database, minute(1))
    await cut(metered.database, minute(3))
    newer, older = (await listed(metered))["windows"]
    assert (newer["startAt"], newer["endAt"], older["endAt"]) == (text(minute(1)), text(minute(3)), text(minute(1)))


async def test_window_lists_chunks_in_order(metered: LocalService) -> None:
    await billed(metered.database, [basic() for _ in range(CHUNK_MAX + 3)], contract=CONTRACT)
    whole = await window(metered)
    assert [(each["chunk"], each["sessions"]) for each in whole["chunks"]] == [(1, CHUNK_MAX), (2, 3)]
    assert [list(each) for each in whole["chunks"]] == [CHUNK_KEYS] * 2
    assert (whole["sessions"], whole["usage"]) == (CHUNK_MAX + 3, sum(each["usage"] for each in whole["chunks"]))
    assert len({each["submissionId"] for each in whole["chunks"]}) == 2


# Delivery.


async def test_chunk_with_stored_digest_shows_it(metered: LocalService) -> None:
    await billed(metered.database, [basic()], contract=CONTRACT)
    (chunk,) = (await window(metered))["chunks"]
    digest = sha256(b"a body").digest()
    await metered.database.store.store_digests(
        await executor_fence(metered.database.store), [ChunkDigest(chunk["submissionId"], digest)]
    )
    assert (await window(metered))["chunks"] == [{**chunk, "digest": digest.hex()}]


async def test_window_is_delivered_when_its_last_chunk_is_delivered(metered: LocalService) -> None:
    await billed(metered.database, [basic() for _ in range(CHUNK_MAX + 1)], contract=CONTRACT)
    fence = await executor_fence(metered.database.store)
    first, second = (await window(metered))["chunks"]
    await metered.clock.set(minute(4))
    await make_attempt(metered.database.store, fence, second["submissionId"], DELIVERED)
    one = await window(metered)
    await metered.clock.set(minute(5))
    await make_attempt(metered.database.store, fence, first["submissionId"], DELIVERED)
    other = await window(metered)
    assert [each["deliveredAt"] for each in one["chunks"]] == [None, text(minute(4))]
    assert [each["deliveredAt"] for each in other["chunks"]] == [text(minute(5)), text(minute(4))]
    assert (one["deliveredAt"], other["deliveredAt"]) == (None, text(minute(5)))
    assert (one["delivery"], other["delivery"]) == ("waiting", "delivered")


async def test_window_without_gateway_is_neither_sent_nor_delivered(metered: LocalService) -> None:
    await billed(metered.database, [basic()])
    whole = await window(metered)
    assert (whole["sessions"], whole["deliveredAt"], whole["delivery"]) == (1, None, "notSent")
    assert [(each["submissionId"], each["deliveredAt"]) for each in whole["chunks"]] == [(None, None)]
    assert (await metered.http.get("/submissions")).json()["count"] == 0


async def test_empty_window_is_delivered_only_with_gateway(metered: LocalService) -> None:
    await billed(metered.database, contract=CONTRACT)
    await billed(metered.database, at=minute(2))
    for window_id, delivered_at in ((1, text(minute(1))), (2, None)):
        whole = await window(metered, window_id)
        assert (whole["sessions"], whole["usage"], whole["chunks"]) == (0, 0, []), window_id
        assert (whole["deliveredAt"], whole["delivery"]) == (delivered_at, "nothing"), window_id


# Unknown windows.

UNKNOWN_WINDOWS = [
    "0",
    "2",
    "-1",
    "+1",
    "1.0",
    "1e0",
    "1_0",
    "%201",
    "1%20",
    "%D9%A1",
    "%00",
    "%FF",
    "x",
    "9" * 18,
    "9" * 19,
    "9" * 5000,
    "0190b0a0-0000-7000-8000-000000000001",
]


async def test_unknown_window_returns_404(metered: LocalService) -> None:
    await cut(metered.database, minute(1))
    for window_id in UNKNOWN_WINDOWS:
        response = await metered.http.get(f"/usage/windows/{window_id}")
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), window_id[:40]


def test_window_with_query_parameter_returns_400(any_client: Client) -> None:
    assert invalid_fields(any_client.http.get("/usage/windows/1?limit=1")) == ["limit"]


# Pages.


async def test_list_is_paginated_newest_first(metered: LocalService) -> None:
    for number in range(1, 6):
        await cut(metered.database, minute(number))
    for limit in (1, 2, 5, 6, 500):
        seen: list[int] = []
        url = f"/usage/windows?limit={limit}"
        while url:
            response = await metered.http.get(url)
            page = exact(response)
            assert (page["count"], page["nextCursor"] is not None) == (len(page["windows"]), "next" in response.links)
            seen += [each["windowId"] for each in page["windows"]]
            url = response.links["next"]["url"] if "next" in response.links else ""
        assert seen == [5, 4, 3, 2, 1], limit


async def test_pagination_is_stable_when_windows_are_added(metered: LocalService) -> None:
    for number in (1, 2, 3):
        await cut(metered.database, minute(number))
    first = await listed(metered, limit=2)
    await cut(metered.database, minute(4))
    second = await listed(metered, limit=2, cursor=first["nextCursor"])
    assert [each["windowId"] for each in first["windows"] + second["windows"]] == [3, 2, 1]


FORGED_NUMBERS = ["-1", "1.0", "x", "1 2", "9" * 19, " 1"]


def test_forged_cursor_returns_400(client: Client) -> None:
    for forged in [*FORGED, *map(cursor, FORGED_NUMBERS)]:
        assert invalid_fields(client.http.get("/usage/windows", params={"cursor": forged})) == ["cursor"], forged


def test_cursor_need_not_contain_number_of_existing_window(client: Client) -> None:
    for number in ("0", "1", "9" * 18):
        assert client.http.get("/usage/windows", params={"cursor": cursor(number)}).status_code == 200, number


def test_list_with_invalid_parameter_returns_400(any_client: Client) -> None:
    for query in ("limit=0", "limit=501", "limit=-1", "limit=", "from=2026-01-02T03:04:05Z", "windowId=1", "LIMIT=1"):
        response = any_client.http.get(f"/usage/windows?{query}")
        assert invalid_fields(response) == [query.partition("=")[0]], query


# Submissions of usage.


async def usage_submission(local: LocalService) -> str:
    """The id of the submission of a window with one chunk."""
    await billed(local.database, [basic()], contract=CONTRACT)
    return str((await window(local))["chunks"][0]["submissionId"])


async def test_usage_submission_can_be_read_but_not_cancelled(metered: LocalService) -> None:
    submission_id = await usage_submission(metered)
    submission = await read_submission(metered, submission_id)
    assert (submission["gateway"], submission["state"], submission["attempts"]) == ("usages", "pending", [])
    response = await metered.http.post(f"/submissions/{submission_id}/cancel")
    assert (response.status_code, response.json()["code"]) == (409, "USAGE_NOT_CANCELLABLE")
    assert response.json()["type"] == "urn:tenure:usage-not-cancellable"
    assert response.json()["detail"] == f"submission {submission_id} contains usage, which must be delivered"
    assert (await read_submission(metered, submission_id))["state"] == "pending"


async def test_command_on_delivered_usage_returns_already_delivered(metered: LocalService) -> None:
    submission_id = await usage_submission(metered)
    store = metered.database.store
    await make_attempt(store, await executor_fence(store), submission_id, DELIVERED)
    for command in ("cancel", "retry"):
        response = await metered.http.post(f"/submissions/{submission_id}/{command}")
        assert (response.status_code, response.json()["code"]) == (409, "ALREADY_DELIVERED"), command


async def test_cancel_by_filter_skips_usage_submissions(metered: LocalService) -> None:
    submission_id = await usage_submission(metered)
    other = (await submit(metered)).json()["submissionId"]
    for query, count in (
        ({"gateway": "usages"}, 0),
        ({"gateway": "usages", "state": "pending"}, 0),
        ({"state": "pending"}, 1),
    ):
        response = await metered.http.post("/submissions/cancel", json=query)
        assert (response.status_code, response.json()) == (200, {"count": count}), query
        states = [(await read_submission(metered, each))["state"] for each in (submission_id, other)]
        assert states == ["pending", "cancelled" if count else "pending"], query


async def fail_attempt(local: LocalService, submission_id: str, at: datetime) -> None:
    """Makes an attempt that fails at `at`, and then moves the clock ten seconds forward. The next attempt is due thirty
    seconds after the failed one.
    """
    await local.clock.set(at)
    await make_attempt(local.database.store, await executor_fence(local.database.store), submission_id)
    assert (await read_submission(local, submission_id))["nextAttemptAt"] == text(at + timedelta(seconds=30))
    await local.clock.set(at + timedelta(seconds=10))


async def test_usage_submission_can_be_retried_by_id_and_by_filter(metered: LocalService) -> None:
    submission_id = await usage_submission(metered)
    await fail_attempt(metered, submission_id, minute(1))
    by_id = await metered.http.post(f"/submissions/{submission_id}/retry")
    assert (by_id.status_code, by_id.json()["state"]) == (200, "pending")
    assert by_id.json()["nextAttemptAt"] == text(minute(1, 10))
    await fail_attempt(metered, submission_id, minute(2))
    by_filter = await metered.http.post("/submissions/retry", json={"gateway": "usages", "state": "pending"})
    assert (by_filter.status_code, by_filter.json()) == (200, {"count": 1})
    assert (await read_submission(metered, submission_id))["nextAttemptAt"] == text(minute(2, 10))


# From a session to the receiver.

Emit = Callable[..., Awaitable[tuple[LocalService, Session]]]


@pytest.fixture
async def emit(database: Database) -> AsyncIterator[Emit]:
    """Returns a function that starts an instance, lets it cut a window one minute after noon, and returns the instance
    and the only session of the window. With a URL, the instance sends the window to this URL.
    """
    await database.clock.set(NOON)
    await install(database, NOON)
    session = session_between(minute(0, 15), minute(0, 45), kind=2, user_object_id=some_id())
    await insert_sessions(database, [session])
    await database.clock.set(minute(1))
    async with AsyncExitStack() as started:

        async def start(url: str | None, **usage: Any) -> tuple[LocalService, Session]:
            gateways = {} if url is None else {"usages": GatewayConfig(url=url, schedule=(3600.0,))}
            local = LocalService.on(database, gateways=gateways, leases=FAST, usage=UsageConfig(**usage))
            await started.enter_async_context(local.running())
            (await local.http.post("/jobs/emit-usage/run")).raise_for_status()
            return local, session

        yield start


async def until_divided(local: LocalService, *, delivered: bool) -> Json:
    """Waits until the first window is divided, or delivered if `delivered` is true. Returns the window."""
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            found: httpx.Response = await local.http.get("/usage/windows/1")
            if found.status_code == 200 and found.json()["deliveredAt" if delivered else "sessions"] is not None:
                return found.json()  # type: ignore[no-any-return]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("usage_format", "media_type"),
    [("tenure", "application/json"), ("cloudevents", "application/cloudevents-batch+json")],
)
async def test_receiver_gets_usage_of_session(
    emit: Emit, database: Database, usage_format: str, media_type: str
) -> None:
    async with odd_receiver(http_response("200 OK")) as receiver:
        local, session = await emit(receiver.address, format=usage_format)
        whole = await until_divided(local, delivered=True)
        (received,) = receiver.received
    (chunk,) = whole["chunks"]
    installation = await database.store.read_installation()
    assert received.header("idempotency-key") == f"{installation.installation_id}-1-1"
    assert received.header("content-type") == media_type
    assert sha256(received.body).hexdigest() == chunk["digest"]
    assert (
        f'"sessionId":"{session.session_id}","userObjectId":"{session.user_object_id}",'
        f'"tenantObjectId":"{session.tenant_object_id}","capacityId":"{session.capacity_id}","sessionKind":2,'
        '"usage":0.000023,"fromUtc":"2041-03-01T12:00:15.000000Z","toUtc":"2041-03-01T12:00:45.000000Z"'
    ).encode() in received.body


async def attempted(local: LocalService, submission_id: str, times: int) -> Json:
    """Waits until the submission has exactly `times` attempts that have ended, and returns the submission."""
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            submission = await read_submission(local, submission_id)
            if len([each for each in submission["attempts"] if each["outcome"]]) == times:
                return submission
            await asyncio.sleep(0.02)


async def test_410_from_receiver_keeps_usage_pending(emit: Emit) -> None:
    async with odd_receiver(http_response("410 Gone")) as receiver:
        local, _ = await emit(receiver.address)
        (chunk,) = (await until_divided(local, delivered=False))["chunks"]
        submission = await attempted(local, chunk["submissionId"], 1)
    assert (submission["state"], submission["lastError"]) == ("pending", "answered 410")


async def test_windows_are_cut_without_gateway(emit: Emit) -> None:
    local, _ = await emit(None)
    whole = await until_divided(local, delivered=False)
    assert (whole["sessions"], whole["usage"], whole["chunks"][0]["submissionId"]) == (1, 0.000023, None)


async def test_clock_stepped_back_is_logged_and_jobs_keep_running(
    emit: Emit, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs run at the earlier time; the job `emit-usage` logs why it skips the cut."""
    local, _ = await emit(None)
    await until_divided(local, delivered=False)
    for stepped_to in (minute(-90, 7), minute(-88)):
        await database.clock.set(stepped_to)
        await _began(local, "emit-usage", stepped_to)
        await _began(local, "expire-sessions", stepped_to)
    log = ""
    async with asyncio.timeout(BOUND_SECONDS):
        while log.count("usage.cut_skipped") < 2:
            log += capsys.readouterr().out
            await asyncio.sleep(0.02)
    assert len(re.findall(r"job\.clock_behind .*job=emit-usage", log)) == 1, log


async def _began(local: LocalService, job: str, at: datetime) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while (await local.http.get(f"/jobs/{job}/runs")).json()["runs"][0]["startedAt"] != text(at):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_chunk_changed_after_first_attempt_is_withheld(emit: Emit, database: Database) -> None:
    """The capacity of a billed session was changed in the database; the sums still match."""
    async with odd_receiver(http_response("500 Oops")) as receiver:
        local, session = await emit(receiver.address)
        (chunk,) = (await until_divided(local, delivered=False))["chunks"]
        await attempted(local, chunk["submissionId"], 1)
        await database.execute(
            f"UPDATE sessions SET capacity_id = '{some_id()}' WHERE session_id = '{session.session_id}'"
        )
        await database.clock.set(minute(1, 5))
        await local.http.post(f"/submissions/{chunk['submissionId']}/retry")
        submission = await attempted(local, chunk["submissionId"], 2)
        assert len(receiver.received) == 1
    withheld = submission["attempts"][1]
    assert (withheld["outcome"], withheld["status"]) == ("abandoned", None)
    assert submission["lastError"] == "not sent: its digest differs from the one stored before its first attempt"
    assert submission["nextAttemptAt"] == text(minute(11, 5))


# Windows that were cut without a gateway.


async def send(local: LocalService, **body: Any) -> httpx.Response:
    return await local.http.post("/usage/windows/send", json={"from": text(NOON), **body})


async def test_windows_cut_without_gateway_are_sent_once_on_request(metered: LocalService) -> None:
    await billed(metered.database, [basic()])
    await billed(metered.database, at=minute(2))
    await billed(metered.database, at=minute(3), contract=CONTRACT)
    assert (await window(metered))["chunks"][0]["submissionId"] is None
    response = await send(metered, to=text(minute(1)))
    assert (response.status_code, response.json()) == (200, {"windows": 1, "chunks": 1, "complete": True})
    assert (await send(metered)).json() == {"windows": 1, "chunks": 0, "complete": True}
    assert (await send(metered)).json() == {"windows": 0, "chunks": 0, "complete": True}
    (chunk,) = (await window(metered))["chunks"]
    submission = await read_submission(metered, chunk["submissionId"])
    assert (submission["gateway"], submission["state"]) == ("usages", "pending")
    assert [each["deliveredAt"] is None for each in (await listed(metered))["windows"]] == [False, False, True]
    reported = [(each.windows, each.chunks) for each in metered.telemetry.of(UsageHandedOver)]
    assert reported == [(1, 1), (1, 0)]


async def test_sent_window_uses_the_configured_format(database: Database) -> None:
    await install(database, NOON)
    await database.clock.set(NOON)
    await emitter_fence(database.store)
    await executor_fence(database.store)
    await billed(database, [basic()])
    service = LocalService.on(database, "usages", usage=UsageConfig(format="cloudevents"))
    async with service.running() as local:
        assert (await send(local)).status_code == 200
        found = await database.store.get_window(1)
    assert found is not None
    assert found[0].contract is not None
    assert (found[0].contract.format, found[0].contract.max_attempts) == ("cloudevents", None)


async def test_send_without_gateway_returns_409(database: Database) -> None:
    await install(database, NOON)
    async with LocalService.on(database, "crm").running() as local:
        response = await send(local)
    assert (response.status_code, response.json()["code"]) == (409, "NO_USAGE_GATEWAY")


async def test_invalid_span_to_send_returns_400_with_field(metered: LocalService) -> None:
    for body, field in (
        ({"from": None}, "from"),
        ({"from": "yesterday"}, "from"),
        ({"from": "2041-03-01T12:00:00"}, "from"),
        ({"to": text(NOON)}, "from"),
        ({"to": 5}, "to"),
        ({"from": "0001-01-01T00:00:00+14:00"}, "from"),
        ({"until": text(NOON)}, "until"),
    ):
        response = await send(metered, **body)
        assert (response.status_code, invalid_fields(response)) == (400, [field]), body
    response = await metered.http.post("/usage/windows/send", json={})
    assert (response.status_code, invalid_fields(response)) == (400, ["from"])
