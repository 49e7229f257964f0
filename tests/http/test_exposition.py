"""`GET /metrics`: every family is exported, and promtool accepts the text."""

import re
import shutil
import subprocess

import pytest

from tenure.alerts import installation
from tenure.config import Config, GatewayConfig
from tenure.telemetry.events import InstallationNotRead, RequestAnswered, RequestsRefused, StoreRetried
from tenure.telemetry.metrics import FAMILIES
from tests.http.client import open_body
from tests.http.local import UNREACHABLE, LocalService
from tests.support.databases import Clock, Database
from tests.support.streams import STOP, streaming

SERIES = re.compile(r"^(tenure_\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? [-+.e\d]+$")


async def scrape(local: LocalService) -> str:
    response = await local.http.get("/metrics")
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    return response.text


def exported(text: str) -> dict[str, set[tuple[str, ...]]]:
    """The label names of each series, by family, without `le`. All series of a family should have the same names."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SERIES.match(line)
            assert match is not None, line
            labels = [name for name in re.findall(r'(\w+)="', match[2] or "") if name != "le"]
            found.setdefault(match[1], set()).add(tuple(labels))
    return found


def complaints(text: str) -> str:
    """The output of promtool for a scrape."""
    command = ["promtool", "check", "metrics"]
    result = subprocess.run(command, input=text, capture_output=True, check=False, text=True, timeout=60)
    return result.stdout + result.stderr


async def test_every_family_is_exported_with_its_labels_and_promtool_accepts_it(sqlite_database: Database) -> None:
    gateways = {"crm": GatewayConfig(url=UNREACHABLE)}
    local = LocalService(Config(database=sqlite_database.url, gateways=gateways), Clock())
    async with local.running(), streaming(local.port, "") as clients:
        session = await local.open()
        await local.http.post(f"/sessions/{session['sessionId']}/heartbeat")
        await local.http.get("/nowhere/special")
        client, _ = await clients.open()
        await client.send("hello")
        await client.send(STOP)
        await client.read_to_end()
        local.telemetry.report(RequestsRefused("max_headers", 2))
        local.telemetry.report(StoreRetried("deadlock"))
        await local.http.post("/jobs/watch/run")
        while 'tenure_job_duration_seconds_count{job="watch"' not in (text := await scrape(local)):
            pass
        await local.instance._installation.read()
        text = await scrape(local)
    wanted = {
        family.name: {family.labels if family.of_installation else (*family.labels, "worker")}
        for family in FAMILIES.values()
    }
    assert exported(text) == wanted
    assert 'tenure_http_request_seconds_count{route="PUT /sessions",status="201",worker="0"} 1\n' in text
    assert 'tenure_http_request_seconds_count{route="unmatched",status="404",worker="0"} 1\n' in text
    assert 'tenure_http_request_seconds_count{route="POST /sessions/{sessionId}/heartbeat",status="200"' in text
    assert session["sessionId"] not in text
    assert 'tenure_store_batch_size_count{operation="heartbeat",worker="0"} 1\n' in text
    assert 'tenure_sessions_active{kind="1"} 1\n' in text
    assert 'tenure_leader{lease="submission-executor",worker="0"}' in text
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    assert complaints(text) == ""


async def test_hot_and_ordinary_requests_are_reported_once_with_route_status_and_caller(local: LocalService) -> None:
    local.telemetry.events.clear()
    await local.put(open_body())
    await local.http.put("/%73essions", json=open_body())
    await local.http.put("/sessions", json={})
    answered = local.telemetry.of(RequestAnswered)
    assert [(each.route, each.status, each.method, each.subject) for each in answered] == [
        ("PUT /sessions", 201, "PUT", "anonymous"),
        ("PUT /sessions", 201, "PUT", "anonymous"),
        ("PUT /sessions", 400, "PUT", "anonymous"),
    ]
    assert all(0 <= each.seconds < 60 for each in answered)


async def test_installation_metrics_that_cannot_be_read_are_reported_and_omitted_once_too_old(
    own_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = own_local.instance._installation
    await reader.read()
    assert "tenure_sessions_active" in await scrape(own_local)

    async def broken(_gateways: object) -> object:
        raise ValueError("broken")

    monkeypatch.setattr(own_local.database.store, "read_gauges", broken)
    await reader.read()
    (event,) = own_local.telemetry.of(InstallationNotRead)
    assert event.error == "ValueError('broken')"
    assert "tenure_sessions_active" in await scrape(own_local)
    monkeypatch.setattr(installation, "MAX_AGE_SECONDS", -1.0)
    text = await scrape(own_local)
    assert "tenure_sessions_active" not in text
    assert 'tenure_worker_up{worker="0"} 1' in text
