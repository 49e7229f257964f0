"""`GET /sessions/metrics` and the count in `GET /health`."""

import pytest

from tenure import __version__
from tenure.sessions import counts
from tests.http.client import Client, Json, same_key
from tests.http.local import LocalService
from tests.http.test_listing import REASONS

FROM_DATABASE = {"activeSessions", "totalSessions", "activeByKind", "activeByState"}
OF_THIS_GROUP = {"opened", "upgraded", "closedByReason"}
"""Sums over the workers of one process group."""
WORKERS = {"workers", "workersAnswered"}
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
    response = await local.http.get("/sessions/metrics")
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


async def end(local: LocalService, session: Json) -> None:
    await local.http.delete(f"/sessions/{session['sessionId']}")


def test_metrics_return_exactly_the_expected_fields(client: Client) -> None:
    for path in ("/sessions/metrics", "/v1/sessions/metrics"):
        assert set(client.http.get(path).json()) == FROM_DATABASE | OF_THIS_GROUP | STREAMS | WORKERS, path


async def test_metrics_count_active_and_total_sessions(own_local: LocalService) -> None:
    for kind in (1, 1, 3):
        await own_local.open(sessionKind=kind)
    await end(own_local, await own_local.open(sessionKind=2))
    response = await metrics(own_local)
    assert {name: response[name] for name in FROM_DATABASE} == {
        "activeSessions": 3,
        "totalSessions": 4,
        "activeByKind": {"1": 2, "2": 0, "3": 1},
        "activeByState": {"created": 3, "active": 0},
    }


async def test_lapsed_session_is_not_counted_as_active(own_local: LocalService) -> None:
    opened = await own_local.open(leaseSeconds=5)
    await own_local.move_to(opened["leaseExpiresAt"])
    response = await metrics(own_local)
    assert (response["activeSessions"], response["totalSessions"]) == (0, 1)


async def test_database_counts_are_at_most_a_second_old(
    own_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(counts, "monotonic", lambda: now)
    await metrics(own_local)
    await own_local.open()
    now += 0.9
    assert (await metrics(own_local))["totalSessions"] == 0
    now += 0.1
    assert (await metrics(own_local))["totalSessions"] == 1


async def test_health_count_is_at_most_a_second_old(own_local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(counts, "monotonic", lambda: now)
    for later, expected in ((0.0, 0), (0.9, 0), (0.1, 1)):
        now += later
        assert (await own_local.http.get("/v1/health")).json()["activeSessions"] == expected, later
        if not later:
            await own_local.open()


async def test_metrics_of_single_worker_report_one_worker(own_local: LocalService) -> None:
    response = await metrics(own_local)
    assert (response["workers"], response["workersAnswered"]) == (1, 1)


async def test_metrics_count_sessions_opened_upgraded_and_closed_by_instance(own_local: LocalService) -> None:
    opened = await own_local.open()
    await own_local.put(same_key(opened))
    upgraded = (await own_local.put(same_key(opened, sessionKind=2))).json()
    await end(own_local, upgraded)
    await end(own_local, upgraded)
    lapsing = await own_local.open(leaseSeconds=5)
    await own_local.move_to(lapsing["leaseExpiresAt"])
    await own_local.put(same_key(lapsing))
    response = await metrics(own_local)
    closed = {"UPGRADED": 1, "TERMINATED": 1, "LEASE_EXPIRED": 1}
    assert {name: response[name] for name in OF_THIS_GROUP} == {
        "opened": 4,
        "upgraded": 1,
        "closedByReason": dict.fromkeys(REASONS, 0) | closed,
    }


async def test_metrics_and_health_do_not_count_rejected_opens(own_local: LocalService) -> None:
    opened = await own_local.open()
    await own_local.put(same_key(opened, tenantObjectId=opened["userObjectId"]))
    await own_local.put(same_key(opened, sessionKind=9))
    response = await metrics(own_local)
    assert response["opened"] == 1
    assert {name: response[name] for name in STREAMS} == dict.fromkeys(STREAMS, 0)
    health = (await own_local.http.get("/v1/health")).json()
    assert health == {"status": "ok", "version": __version__, "activeSessions": 1}
