"""`GET /alerts`, and the whole way of an alert, from a failing job to the gateway `oncall`."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from tenure.config import GatewayConfig, JobConfig, LeasesConfig
from tenure.domain.alerts import AlertName, Condition
from tenure.domain.jobs import JobCommand
from tenure.errors import DatabaseUnavailable
from tenure.telemetry.events import AlertCleared, AlertRaised, AttemptEnded
from tests.http.client import Json
from tests.http.local import LocalService, eventually
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import hold_lease
from tests.support.odd_receivers import http_response, odd_receiver

FAST = LeasesConfig(duration_seconds=10.0, renew_seconds=3.0, acquire_seconds=0.05, refresh_seconds=0.05)
PAUSED = {name: JobConfig(paused=True) for name in ("expire-sessions", "emit-usage", "mark-usage", "prune", "watch")}


async def listed(local: LocalService, query: str = "") -> Json:
    response = await local.http.get(f"/alerts{query}")
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


async def test_alerts_are_listed_by_page_and_filter(own_local: LocalService) -> None:
    store = own_local.database.store
    fence = await hold_lease(store, "job:watch")
    failing = [Condition(AlertName.JOB_FAILING, subject, "broken") for subject in ("one", "two")]
    behind = Condition(AlertName.CLOCK_BEHIND, None, "60 seconds")
    await store.update_alerts(fence, [*failing, behind], None)
    await store.update_alerts(fence, [*failing], None)
    everything = await listed(own_local)
    assert (everything["count"], everything["nextCursor"]) == (3, None)
    (cleared,) = (await listed(own_local, "?state=cleared"))["alerts"]
    assert cleared == {
        "alertId": cleared["alertId"],
        "name": "clock-behind",
        "subject": None,
        "state": "cleared",
        "detail": "60 seconds",
        "raisedAt": cleared["raisedAt"],
        "clearedAt": cleared["clearedAt"],
    }
    assert cleared["clearedAt"] >= cleared["raisedAt"]
    assert {each["subject"] for each in (await listed(own_local, "?state=active"))["alerts"]} == {"one", "two"}
    assert (await listed(own_local, "?name=job-failing&subject=two"))["count"] == 1
    pages: list[Any] = []
    page = await listed(own_local, "?limit=1")
    while page["alerts"]:
        pages += page["alerts"]
        page = (
            await listed(own_local, f"?limit=1&cursor={page['nextCursor']}") if page["nextCursor"] else {"alerts": []}
        )
    assert pages == everything["alerts"]
    for wrong in ("?name=fire", "?state=open", "?cursor=x", "?subject=%00", "?limit=0"):
        assert (await own_local.http.get(f"/alerts{wrong}")).status_code == 400, wrong


class Failing:
    """A job of an application. Its runs fail until the test sets `repaired`."""

    interval_seconds = 3600.0
    repaired = False

    async def run(self, _run: object) -> None:
        if not self.repaired:
            raise ValueError("broken")


async def test_alert_of_failing_job_is_raised_once_and_cleared_once_at_oncall(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer of the database is lost when the alert is raised, and one when the alert is cleared."""
    job = Failing()
    monkeypatch.setattr("tenure.app.jobs_of_applications", lambda: {"send-invoices": job})
    async with odd_receiver(http_response("200 OK")) as receiver:
        oncall = {"oncall": GatewayConfig(url=receiver.address)}
        local = LocalService.on(database, gateways=oncall, leases=FAST, jobs=PAUSED)
        update, lost = database.store.update_alerts, []

        async def losing(*arguments: Any) -> Any:
            changes = await update(*arguments)
            if (changes.raised or changes.cleared) and len(lost) in (0, 2):
                lost.append("answer")
                raise DatabaseUnavailable("lost")
            lost.extend(["arrived"] if changes.raised or changes.cleared else [])
            return changes

        monkeypatch.setattr("tenure.alerts.watch.RETRY_SECONDS", 0.0)
        monkeypatch.setattr(database.store, "update_alerts", losing)
        async with local.running():
            await run_until(local, "send-invoices", lambda each: each["failuresInARow"] >= 3)
            await run_until(local, "watch", lambda _: bool(local.telemetry.of(AlertRaised)))
            await run_until(local, "watch", lambda each: each["runCount"] >= 3)
            job.repaired = True
            await run_until(local, "send-invoices", lambda each: each["failuresInARow"] == 0)
            await run_until(local, "watch", lambda _: bool(local.telemetry.of(AlertCleared)))
            await eventually(lambda: len(local.telemetry.of(AttemptEnded)) >= 2)
            (alert,) = (await listed(local))["alerts"]
            pending = (await local.http.get("/submissions?gateway=oncall&state=pending")).json()["submissions"]
            refused = await local.http.post(
                "/submissions", json={"gateway": "oncall", "payload": 1}, headers={"Idempotency-Key": "x"}
            )
    raised, cleared = map(json.loads, receiver.bodies)
    shown = {name: alert[name] for name in ("alertId", "name", "subject", "detail", "raisedAt")}
    assert (alert["name"], alert["subject"], alert["state"]) == ("job-failing", "send-invoices", "cleared")
    assert raised == {"type": "alert.raised", "timestamp": alert["raisedAt"], "data": shown}
    ended = {**shown, "clearedAt": alert["clearedAt"]}
    assert cleared == {"type": "alert.cleared", "timestamp": alert["clearedAt"], "data": ended}
    keys = [received.header("idempotency-key") for received in receiver.received]
    assert keys == [f"{alert['alertId']}-raised", f"{alert['alertId']}-cleared"]
    (first,), (second,) = local.telemetry.of(AlertRaised), local.telemetry.of(AlertCleared)
    assert (first.alert_id, first.alert, first.subject) == (alert["alertId"], "job-failing", "send-invoices")
    assert second.alert_id == alert["alertId"]
    assert lost.count("answer") == 2
    assert (pending, refused.status_code) == ([], 403)
    assert msgspec.json.decode(receiver.bodies[0])["data"]["detail"].endswith("ValueError: broken")


async def run_until(local: LocalService, job: str, condition: Any) -> None:
    """Requests runs of the job until the condition holds."""
    async with asyncio.timeout(30):
        while True:
            response = await local.http.get("/jobs")
            (shown,) = [each for each in response.json()["jobs"] if each["name"] == job]
            if condition(shown):
                return
            await local.instance._store.command_job(job, JobCommand.RUN, ACTOR)
            await asyncio.sleep(0.05)
