"""`GET /sessions/metrics` and the count in `GET /health`."""

import pytest

from tenure.sessions import counts
from tests.http.client import Client, Json, same_key
from tests.http.local import LocalService
from tests.http.test_listing import REASONS

FROM_DATABASE = {"activeSessions", "totalSessions", "activeByKind", "activeByState"}
OF_THIS_INSTANCE = {"opened", "upgraded", "closedByReason"}
STREAMS = {
    "totalBytesReceived",
    "totalChunks",
    "totalMessagesSent",
    "totalPartialsSent",
    "totalFinalsSent",
    "totalErrorsSent",
    "totalAudioDurationMs",
}


async def metrics(local: LocalService) -> Json:
    answer = await local.http.get("/sessions/metrics")
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def end(local: LocalService, session: Json) -> None:
    await local.http.delete(f"/sessions/{session['sessionId']}")


def test_has_just_these_numbers(client: Client) -> None:
    answer = client.http.get("/sessions/metrics").json()
    assert set(answer) == FROM_DATABASE | OF_THIS_INSTANCE | STREAMS


def test_answers_under_v1_too(client: Client) -> None:
    assert client.http.get("/v1/sessions/metrics").status_code == 200


async def test_counts_what_is_live_and_what_there_is(local: LocalService) -> None:
    for kind in (1, 1, 3):
        await local.open(sessionKind=kind)
    await end(local, await local.open(sessionKind=2))
    answer = await metrics(local)
    assert {name: answer[name] for name in FROM_DATABASE} == {
        "activeSessions": 3,
        "totalSessions": 4,
        "activeByKind": {"1": 2, "2": 0, "3": 1},
        "activeByState": {"created": 3, "active": 0},
    }


async def test_a_lapsed_session_is_not_counted_as_live(local: LocalService) -> None:
    opened = await local.open(leaseSeconds=5)
    await local.move_to(opened["leaseExpiresAt"])
    answer = await metrics(local)
    assert (answer["activeSessions"], answer["totalSessions"]) == (0, 1)


async def test_counts_of_the_database_are_cached_for_ten_seconds(
    local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(counts, "monotonic", lambda: now)
    await metrics(local)
    await local.open()
    now += 9.9
    assert (await metrics(local))["totalSessions"] == 0
    now += 0.1
    assert (await metrics(local))["totalSessions"] == 1


async def test_counts_what_this_instance_opened_upgraded_and_closed(local: LocalService) -> None:
    opened = await local.open()
    await local.put(same_key(opened))
    upgraded = (await local.put(same_key(opened, sessionKind=2))).json()
    await end(local, upgraded)
    await end(local, upgraded)
    lapsing = await local.open(leaseSeconds=5)
    await local.move_to(lapsing["leaseExpiresAt"])
    await local.put(same_key(lapsing))
    answer = await metrics(local)
    closed = {"UPGRADED": 1, "TERMINATED": 1, "LEASE_EXPIRED": 1}
    assert {name: answer[name] for name in OF_THIS_INSTANCE} == {
        "opened": 4,
        "upgraded": 1,
        "closedByReason": dict.fromkeys(REASONS, 0) | closed,
    }


async def test_a_refused_opening_is_not_counted(local: LocalService) -> None:
    opened = await local.open()
    await local.put(same_key(opened, tenantObjectId=opened["userObjectId"]))
    await local.put(same_key(opened, sessionKind=9))
    assert (await metrics(local))["opened"] == 1


async def test_streams_count_nothing_while_there_are_none(local: LocalService) -> None:
    answer = await metrics(local)
    assert {name: answer[name] for name in STREAMS} == dict.fromkeys(STREAMS, 0)


async def test_health_tells_version_and_live_sessions(local: LocalService) -> None:
    await local.open()
    answer = (await local.http.get("/v1/health")).json()
    assert (set(answer), answer["status"], answer["activeSessions"]) == (
        {"status", "version", "activeSessions"},
        "ok",
        1,
    )
