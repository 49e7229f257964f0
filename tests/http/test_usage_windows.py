"""`/usage/windows`: what was billed, window by window, and what became of it."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from hashlib import sha256
from typing import Any

import httpx
import pytest

from tenure.config import GatewayConfig
from tenure.config.settings import UsageConfig
from tenure.model.sessions import Session
from tenure.model.usage import CHUNK_MAX, Seal
from tests.http.client import JSON, Client, Json
from tests.http.local import LocalService
from tests.http.submitting import body, key, shown, submit
from tests.http.test_deliveries import BOUND_SECONDS, FAST
from tests.http.test_leases import FORGED
from tests.http.test_usage import cursor, exact, refused, text
from tests.support.databases import Database
from tests.support.odd_receivers import answer as answering
from tests.support.odd_receivers import odd_receiver
from tests.support.submissions import DELIVERED, attempt, executor
from tests.support.usage import CONTRACT, chunk_all, cut, install, lived, minute, put_sessions
from tests.support.wishes import NOON, some_id

WINDOW_KEYS = ["windowId", "startAt", "endAt", "factors", "sessions", "usage", "deliveredAt"]
CHUNK_KEYS = ["chunk", "submissionId", "sessions", "usage", "digest", "deliveredAt"]
FACTORS = {"1": 1, "2": 2, "3": 3}
FIRST_CUT = minute(1)


async def billed(database: Database, sessions: Sequence[Session] = (), at: datetime = FIRST_CUT, **given: Any) -> None:
    """What these lived until then is cut and divided; given a contract, to be sent."""
    if sessions:
        await put_sessions(database, sessions)
    await cut(database, at, **given)
    await chunk_all(database)


def basic(begins: float = 10, ends: float = 20) -> Session:
    """From so many seconds after noon to so many."""
    return lived(minute(0, begins), minute(0, ends))


async def window(local: LocalService, window_id: int = 1) -> Json:
    return exact(await local.http.get(f"/usage/windows/{window_id}"))


async def listed(local: LocalService, **query: Any) -> Json:
    return exact(await local.http.get("/usage/windows", params=query))


# A window.


async def test_a_list_without_windows_is_empty(metered: LocalService) -> None:
    answer = await metered.http.get("/usage/windows")
    assert (answer.status_code, answer.text) == (200, '{"windows":[],"count":0,"nextCursor":null}')


async def test_a_window_that_is_cut_and_not_divided_has_no_sums(metered: LocalService, database: Database) -> None:
    await put_sessions(database, [basic()])
    await cut(database, minute(1), contract=CONTRACT)
    assert await window(metered) == {
        "windowId": 1,
        "startAt": text(NOON),
        "endAt": text(minute(1)),
        "factors": FACTORS,
        "sessions": None,
        "usage": None,
        "deliveredAt": None,
        "chunks": [],
    }


async def test_a_window_to_the_letter(metered: LocalService, database: Database) -> None:
    await billed(database, [basic(10, 20), basic(30, 59)], factors=(250_000, 1, 3_000_000), contract=CONTRACT)
    answer = await metered.http.get("/usage/windows/1")
    (chunk,) = answer.json()["chunks"]
    assert answer.text == (
        '{"windowId":1,"startAt":"2041-03-01T12:00:00.123456Z","endAt":"2041-03-01T12:01:00.000000Z",'
        '"factors":{"1":0.25,"2":0.000001,"3":3},"sessions":2,"usage":0.000004,"deliveredAt":null,"chunks":['
        f'{{"chunk":1,"submissionId":"{chunk["submissionId"]}","sessions":2,"usage":0.000004,"digest":null,'
        '"deliveredAt":null}]}'
    )


async def test_a_list_has_all_but_the_chunks(metered: LocalService, database: Database) -> None:
    await billed(database, [basic(10, 70)])
    await billed(database, at=minute(2))
    answer = await listed(metered)
    assert [list(each) for each in answer["windows"]] == [WINDOW_KEYS] * 2
    whole = [await window(metered, each) for each in (2, 1)]
    assert [list(each) for each in whole] == [[*WINDOW_KEYS, "chunks"]] * 2
    assert answer["windows"] == [{name: each[name] for name in WINDOW_KEYS} for each in whole]


async def test_windows_touch(metered: LocalService, database: Database) -> None:
    await cut(database, minute(1))
    await cut(database, minute(3))
    newer, older = (await listed(metered))["windows"]
    assert (newer["startAt"], newer["endAt"], older["endAt"]) == (text(minute(1)), text(minute(3)), text(minute(1)))


async def test_shows_every_chunk_in_order(metered: LocalService, database: Database) -> None:
    await billed(database, [basic() for _ in range(CHUNK_MAX + 3)], contract=CONTRACT)
    whole = await window(metered)
    assert [(each["chunk"], each["sessions"]) for each in whole["chunks"]] == [(1, CHUNK_MAX), (2, 3)]
    assert [list(each) for each in whole["chunks"]] == [CHUNK_KEYS] * 2
    assert (whole["sessions"], whole["usage"]) == (CHUNK_MAX + 3, sum(each["usage"] for each in whole["chunks"]))
    assert len({each["submissionId"] for each in whole["chunks"]}) == 2


# Delivery.


async def test_a_chunk_that_was_sealed_shows_its_digest(metered: LocalService, database: Database) -> None:
    await billed(database, [basic()], contract=CONTRACT)
    (chunk,) = (await window(metered))["chunks"]
    digest = sha256(b"a body").digest()
    await database.store.seal_chunks(await executor(database.store), [Seal(chunk["submissionId"], digest)])
    assert (await window(metered))["chunks"] == [{**chunk, "digest": digest.hex()}]


async def test_a_window_is_delivered_when_its_last_chunk_is(metered: LocalService, database: Database) -> None:
    await billed(database, [basic() for _ in range(CHUNK_MAX + 1)], contract=CONTRACT)
    fence = await executor(database.store)
    first, second = (await window(metered))["chunks"]
    await database.clock.set(minute(4))
    await attempt(database.store, fence, second["submissionId"], DELIVERED)
    one = await window(metered)
    await database.clock.set(minute(5))
    await attempt(database.store, fence, first["submissionId"], DELIVERED)
    other = await window(metered)
    assert [each["deliveredAt"] for each in one["chunks"]] == [None, text(minute(4))]
    assert [each["deliveredAt"] for each in other["chunks"]] == [text(minute(5)), text(minute(4))]
    assert (one["deliveredAt"], other["deliveredAt"]) == (None, text(minute(5)))


async def test_without_a_gateway_nothing_is_sent_and_nothing_delivered(
    metered: LocalService, database: Database
) -> None:
    await billed(database, [basic()])
    whole = await window(metered)
    assert (whole["sessions"], whole["deliveredAt"]) == (1, None)
    assert [(each["submissionId"], each["deliveredAt"]) for each in whole["chunks"]] == [(None, None)]
    assert (await metered.http.get("/submissions")).json()["count"] == 0


@pytest.mark.parametrize(("contract", "delivered_at"), [(CONTRACT, text(minute(1))), (None, None)])
async def test_a_window_without_sessions_is_delivered_if_there_is_a_gateway(
    metered: LocalService, database: Database, contract: Any, delivered_at: str | None
) -> None:
    await billed(database, contract=contract)
    whole = await window(metered)
    assert (whole["sessions"], whole["usage"], whole["chunks"], whole["deliveredAt"]) == (0, 0, [], delivered_at)


# Windows that are not there.

NO_WINDOWS = [
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


@pytest.mark.parametrize("window_id", NO_WINDOWS)
async def test_a_window_that_is_not_there_is_not_found(
    metered: LocalService, database: Database, window_id: str
) -> None:
    await cut(database, minute(1))
    answer = await metered.http.get(f"/usage/windows/{window_id}")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_a_single_window_takes_no_parameters(any_client: Client) -> None:
    assert refused(any_client.http.get("/usage/windows/1?limit=1")) == ["limit"]


# Pages.


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 500])
async def test_lists_newest_first_page_by_page(metered: LocalService, database: Database, limit: int) -> None:
    for number in range(1, 6):
        await cut(database, minute(number))
    seen: list[int] = []
    url = f"/usage/windows?limit={limit}"
    while url:
        answer = await metered.http.get(url)
        page = exact(answer)
        assert (page["count"], page["nextCursor"] is not None) == (len(page["windows"]), "next" in answer.links)
        seen += [each["windowId"] for each in page["windows"]]
        url = answer.links["next"]["url"] if "next" in answer.links else ""
    assert seen == [5, 4, 3, 2, 1]


async def test_a_list_is_stable_while_more_are_cut(metered: LocalService, database: Database) -> None:
    for number in (1, 2, 3):
        await cut(database, minute(number))
    first = await listed(metered, limit=2)
    await cut(database, minute(4))
    second = await listed(metered, limit=2, cursor=first["nextCursor"])
    assert [each["windowId"] for each in first["windows"] + second["windows"]] == [3, 2, 1]


FORGED_HERE = [*FORGED, *map(cursor, ["-1", "1.0", "x", "1 2", "9" * 19, " 1"])]


@pytest.mark.parametrize("forged", FORGED_HERE)
def test_a_cursor_that_was_never_given_out_is_refused(client: Client, forged: str) -> None:
    assert refused(client.http.get("/usage/windows", params={"cursor": forged})) == ["cursor"]


@pytest.mark.parametrize("number", ["0", "1", "9" * 18])
def test_a_cursor_of_any_number_is_harmless(client: Client, number: str) -> None:
    assert client.http.get("/usage/windows", params={"cursor": cursor(number)}).status_code == 200


WRONG = ["limit=0", "limit=501", "limit=-1", "limit=", "from=2026-01-02T03:04:05Z", "windowId=1", "Limit=1"]


@pytest.mark.parametrize("query", WRONG)
def test_the_list_refuses_what_it_does_not_know(any_client: Client, query: str) -> None:
    assert refused(any_client.http.get(f"/usage/windows?{query}")) == [query.partition("=")[0]]


# Its submissions.


async def usage_submission(local: LocalService, database: Database) -> str:
    """Of a window with one chunk."""
    await billed(database, [basic()], contract=CONTRACT)
    return str((await window(local))["chunks"][0]["submissionId"])


async def test_a_chunk_is_a_submission_like_any(metered: LocalService, database: Database) -> None:
    submission_id = await usage_submission(metered, database)
    submission = await shown(metered, submission_id)
    assert (submission["gateway"], submission["state"], submission["attempts"]) == ("usages", "pending", [])


async def test_usage_cannot_be_cancelled(metered: LocalService, database: Database) -> None:
    submission_id = await usage_submission(metered, database)
    refusal = await metered.http.post(f"/submissions/{submission_id}/cancel")
    assert (refusal.status_code, refusal.json()["code"]) == (409, "USAGE_NOT_CANCELLABLE")
    assert refusal.json()["type"] == "urn:tenure:usage-not-cancellable"
    assert refusal.json()["detail"] == f"submission {submission_id} is usage, which is sent until it is delivered"
    assert (await shown(metered, submission_id))["state"] == "pending"


async def test_usage_that_is_delivered_is_refused_as_that(metered: LocalService, database: Database) -> None:
    submission_id = await usage_submission(metered, database)
    await attempt(database.store, await executor(database.store), submission_id, DELIVERED)
    for command in ("cancel", "retry"):
        refusal = await metered.http.post(f"/submissions/{submission_id}/{command}")
        assert (refusal.status_code, refusal.json()["code"]) == (409, "ALREADY_DELIVERED"), command


@pytest.mark.parametrize(
    "given", [{"gateway": "usages"}, {"state": "pending"}, {"gateway": "usages", "state": "pending"}]
)
async def test_usage_is_left_out_where_many_are_cancelled(
    metered: LocalService, database: Database, given: dict[str, str]
) -> None:
    submission_id = await usage_submission(metered, database)
    other = (await submit(metered)).json()["submissionId"]
    told = await metered.http.post("/submissions/cancel", json=given)
    reaches_other = "gateway" not in given
    assert (told.status_code, told.json()) == (200, {"count": int(reaches_other)})
    states = [(await shown(metered, each))["state"] for each in (submission_id, other)]
    assert states == ["pending", "cancelled" if reaches_other else "pending"]


async def after_a_failure(local: LocalService, database: Database) -> str:
    submission_id = await usage_submission(local, database)
    await attempt(database.store, await executor(database.store), submission_id)
    await database.clock.set(minute(1, 10))
    assert (await shown(local, submission_id))["nextAttemptAt"] == text(minute(1, 30))
    return submission_id


async def test_usage_can_be_retried(metered: LocalService, database: Database) -> None:
    submission_id = await after_a_failure(metered, database)
    told = await metered.http.post(f"/submissions/{submission_id}/retry")
    assert (told.status_code, told.json()["state"]) == (200, "pending")
    assert told.json()["nextAttemptAt"] == text(minute(1, 10))


async def test_all_usage_can_be_retried(metered: LocalService, database: Database) -> None:
    submission_id = await after_a_failure(metered, database)
    told = await metered.http.post("/submissions/retry", json={"gateway": "usages", "state": "pending"})
    assert (told.status_code, told.json()) == (200, {"count": 1})
    assert (await shown(metered, submission_id))["nextAttemptAt"] == text(minute(1, 10))


async def test_nobody_can_submit_usage(metered: LocalService) -> None:
    refusal = await metered.http.post(
        "/submissions", content=body("[]", "usages"), headers=JSON | {"Idempotency-Key": key()}
    )
    assert (refusal.status_code, refusal.json()["code"]) == (403, "GATEWAY_RESERVED")


# From a session to the receiver.


@pytest.fixture
async def emit(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Starts an instance that cuts at a minute past noon, in which a session lived, and sends to an address."""
    await database.clock.set(NOON)
    await install(database, NOON)
    session = lived(minute(0, 15), minute(0, 45), kind=2, user_object_id=some_id())
    await put_sessions(database, [session])
    await database.clock.set(minute(1))
    async with AsyncExitStack() as started:

        async def start(url: str | None, **usage: Any) -> tuple[LocalService, Session]:
            gateways = {} if url is None else {"usages": GatewayConfig(url=url, schedule=(3600.0,))}
            local = LocalService.on(database, monkeypatch, gateways=gateways, leases=FAST, usage=UsageConfig(**usage))
            await started.enter_async_context(local.running())
            (await local.http.post("/jobs/emit-usage/run")).raise_for_status()
            return local, session

        yield start


async def until_divided(local: LocalService, *, delivered: bool) -> Json:
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
async def test_what_was_lived_arrives(emit: Any, database: Database, usage_format: str, media_type: str) -> None:
    async with odd_receiver(answering("200 OK")) as receiver:
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
    """The submission once so many attempts at it have ended."""
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            submission = await shown(local, submission_id)
            if len([each for each in submission["attempts"] if each["outcome"]]) == times:
                return submission
            await asyncio.sleep(0.02)


async def test_a_receiver_that_is_gone_is_one_more_failure(emit: Any) -> None:
    async with odd_receiver(answering("410 Gone")) as receiver:
        local, _ = await emit(receiver.address)
        (chunk,) = (await until_divided(local, delivered=False))["chunks"]
        submission = await attempted(local, chunk["submissionId"], 1)
    assert (submission["state"], submission["lastError"]) == ("pending", "answered 410")


async def test_without_a_gateway_windows_are_cut_all_the_same(emit: Any) -> None:
    local, _ = await emit(None)
    whole = await until_divided(local, delivered=False)
    assert (whole["sessions"], whole["usage"], whole["chunks"][0]["submissionId"]) == (1, 0.000023, None)


async def test_a_clock_that_was_stepped_back_is_told_and_stops_no_job(
    emit: Any, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs are run by the time that comes again, and the one that cuts says why it cannot."""
    local, _ = await emit(None)
    await until_divided(local, delivered=False)
    for stepped_to in (minute(-90, 7), minute(-88)):
        await database.clock.set(stepped_to)
        await _began(local, "emit-usage", stepped_to)
        await _began(local, "expire-sessions", stepped_to)
    told = ""
    async with asyncio.timeout(BOUND_SECONDS):
        while told.count("usage.cut_skipped") < 2:
            told += capsys.readouterr().out
            await asyncio.sleep(0.02)
    assert len(re.findall(r"job\.clock_behind .*job=emit-usage", told)) == 1, told


async def _began(local: LocalService, job: str, at: datetime) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while (await local.http.get(f"/jobs/{job}/runs")).json()["runs"][0]["startedAt"] != text(at):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_what_was_changed_after_it_was_sent_is_withheld(emit: Any, database: Database) -> None:
    """Somebody has altered the database, though not what it adds up to."""
    async with odd_receiver(answering("500 Oops")) as receiver:
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
    told = submission["attempts"][1]
    assert (told["outcome"], told["status"]) == ("abandoned", None)
    assert submission["lastError"] == "not sent: it is not what was rendered before its first attempt"
    assert submission["nextAttemptAt"] == text(minute(11, 5))
