"""What people do on the pages of the console, except the pages of sessions. All tests share one instance."""

import asyncio
import csv
import threading
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import httpx
import pytest
from playwright.async_api import Locator, Page, Route, expect

from tenure.config import GatewayConfig, JobConfig
from tenure.domain.alerts import AlertName, Condition
from tests.browser.console import AXE, PHONE, ConsoleService, Visitor, overflow, serving_console, tab_to, violations
from tests.http.conftest import new_sqlite
from tests.http.local import UNREACHABLE
from tests.support.leases import hold_lease

pytestmark = pytest.mark.slow

NASTY = "<img src=x onerror=alert(1)>"


class _Receiver(BaseHTTPRequestHandler):
    """Responds with the status that the path of the request names."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(int(self.path.removeprefix("/")))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Logs nothing, because the test reports failures."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
async def console(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory, receiver: str
) -> AsyncIterator[ConsoleService]:
    """The console of an instance that bills usage every second."""
    gateways = {
        "usages": GatewayConfig(url=f"{receiver}/200"),
        NASTY: GatewayConfig(url=f"{receiver}/500", max_attempts=1),
        "crm": GatewayConfig(url=UNREACHABLE, schedule=(3600.0,)),
    }
    async with (
        new_sqlite(sqlite_template, tmp_path_factory.mktemp("console")) as database,
        serving_console(
            database, "/a/b", gateways=gateways, jobs={"emit-usage": JobConfig(interval_seconds=1)}
        ) as service,
    ):
        yield service


async def submit(console: ConsoleService, gateway: str, number: int) -> list[str]:
    made = []
    for _ in range(number):
        headers = {"Authorization": f"Bearer {console.keys['operator']}", "Idempotency-Key": str(uuid4())}
        body = {"gateway": gateway, "payload": {}}
        response = await console.service.http.post("/a/b/submissions", json=body, headers=headers)
        made.append(response.raise_for_status().json()["submissionId"])
    return made


async def check_detail_page(page: Page, theme: Literal["dark", "light"]) -> None:
    """Asserts that the page fits a phone and that axe finds nothing serious.

    `test_console.py` checks this for most pages, but does not visit the pages of single submissions and windows.
    """
    await page.set_viewport_size(PHONE)
    assert await overflow(page) == 0
    if AXE:
        await page.emulate_media(color_scheme=theme)
        assert await violations(page) == []


def row_of(page: Page, text: str) -> Locator:
    return page.locator("tbody tr").filter(has_text=text)


async def test_capacity_is_set_changed_and_deleted(console: ConsoleService, visitor: Visitor) -> None:
    capacity = str(uuid4())
    first = await console.open(capacityId=capacity, leaseSeconds=600)
    page = await visitor.visit(console, "capacities")
    await page.get_by_role("button", name="Set a capacity").press("Enter")
    await page.keyboard.type("not an id")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("This is not a UUID.")
    await page.keyboard.press("ControlOrMeta+a")
    await page.keyboard.type(capacity)
    await page.keyboard.press("Tab")
    await page.keyboard.type("2")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{console.address}/capacities/{capacity}")
    verdict = page.get_by_role("region", name="What happens to the next open request")
    await expect(verdict).to_contain_text("The next user gets a seat. It is the last one.")
    # Another user takes the last seat, and the page shows this when it receives the event.
    second = await console.open(capacityId=capacity, leaseSeconds=300)
    await expect(verdict).to_contain_text(
        "The next open request is refused with 429 SESSION_LIMIT, because all 2 seats are taken"
    )
    await expect(page.locator("tbody tr")).to_have_count(2)
    await expect(page.locator("tbody tr").first).to_contain_text(second["sessionId"][-4:])
    await page.get_by_role("button", name="Change settings").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Limit of seats").fill("1")
    await expect(dialog).to_contain_text("No session ends because of the new limit")
    await dialog.get_by_label("end the session with the oldest activity").check()
    await dialog.get_by_label("Tenant").fill(first["tenantObjectId"])
    await dialog.get_by_role("button", name="Store").click()
    await expect(verdict).to_contain_text("The next user gets a seat, and another user loses theirs.")
    await expect(verdict).to_contain_text(first["sessionId"][-4:])
    await expect(verdict).to_contain_text("403 CAPACITY_OF_ANOTHER_TENANT")
    stored = await console.call("GET", f"/capacities/{capacity}")
    assert (stored["maxSessions"], stored["whenFull"]) == (1, "evictOldest")
    # The list finds the capacity by its tenant.
    await page.goto(f"{console.address}/capacities?tenant={first['tenantObjectId']}")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("tbody tr")).to_contain_text("2 of 1")
    await page.get_by_label("Capacity", exact=True).fill(capacity.upper())
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{console.address}/capacities/{capacity}")
    await page.get_by_role("button", name="Delete settings").click()
    await tab_to(page, "Delete settings")
    await page.keyboard.press("Enter")
    await expect(verdict).to_contain_text("The capacity has no limit.")
    reader = await visitor.visit(console, f"capacities/{capacity}", role="reader")
    await expect(reader.get_by_role("region", name="What happens to the next open request")).to_be_visible()
    await expect(reader.get_by_role("button", name="Change settings")).to_have_count(0)


async def test_lease_is_resigned_and_job_is_paused_run_and_resumed(console: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(console, "cluster")
    (lease,) = [
        each for each in (await console.call("GET", "/leases"))["leases"] if not each["name"].startswith("job:")
    ]
    led = row_of(page.get_by_role("region", name="Who leads"), lease["name"])
    await expect(led).to_contain_text(lease["holder"])
    await led.get_by_role("button", name="Resign").press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Resign").press("Enter")
    await expect(led).to_contain_text("not held")
    await expect(page.get_by_role("table", name="Instances")).to_contain_text("running")
    jobs = page.get_by_role("region", name="Jobs").first
    await jobs.get_by_role("button", name="Pause prune").click()
    await expect(page.get_by_role("dialog")).to_contain_text("the database grows")
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(row_of(page, "prune")).to_contain_text("paused")
    await jobs.get_by_role("link", name="prune").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Job prune")
    runs = await page.locator("tbody tr").count()
    await page.get_by_role("button", name="Run prune now").click()
    await page.get_by_role("dialog").get_by_role("button", name="Run now").click()
    await expect(page.locator("tbody tr")).to_have_count(runs + 1)
    await expect(page.locator("tbody tr").first).to_contain_text("succeeded")
    await page.get_by_role("button", name="Resume prune").click()
    await page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("button", name="Pause prune")).to_be_visible()
    await page.go_back()
    # There is no other instance, so this one leads again after its cool-down.
    await expect(led.locator("td.number")).to_have_text(str(lease["epoch"] + 1), timeout=15_000)
    reader = await visitor.visit(console, "cluster", role="reader")
    await expect(reader.get_by_role("table", name="Jobs")).to_be_visible()
    for name in ("Resign", "Pause prune", "Run prune now"):
        await expect(reader.get_by_role("button", name=name)).to_have_count(0)


async def test_failed_submissions_are_retried_and_pending_ones_cancelled(
    console: ConsoleService, visitor: Visitor
) -> None:
    failing = await submit(console, NASTY, 3)
    waiting = await submit(console, "crm", 2)
    page = await visitor.visit(console, "deliveries")
    by_gateway = row_of(page.get_by_role("table", name="Submissions by gateway and state"), NASTY)
    # The row also has a link to the pending submissions while there are any.
    failed = by_gateway.locator("a[href$='&state=failed']")
    await expect(failed).to_have_text("3")
    await expect(page.locator(".figure.warn", has_text="Pending")).to_contain_text("fail and are retried")
    # The count of failed submissions is a link to their list.
    await failed.click()
    listed = page.get_by_role("table", name="Submissions", exact=True).locator("tbody tr")
    await expect(listed).to_have_count(3)
    assert page.url.endswith("&state=failed")
    await expect(listed.first).to_contain_text("answered 500")
    await listed.filter(has_text=failing[0][-4:]).get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Delivery")
    attempts = page.get_by_role("table", name="Attempts").locator("tbody tr")
    await expect(attempts).to_have_count(1)
    await expect(attempts).to_contain_text("500")
    await check_detail_page(page, "dark")
    await page.get_by_role("button", name="Retry now").press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Retry now").press("Enter")
    await expect(attempts).to_have_count(2)
    await page.goto(
        f"{console.address}/deliveries?gateway={NASTY.replace(' ', '%20').replace('=', '%3D')}&state=failed"
    )
    await page.get_by_role("button", name="Retry 3 failed").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(NASTY)
    await expect(dialog.get_by_role("button", name="Retry")).to_be_disabled()
    await page.keyboard.type("retry 3")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="3 submissions will be sent again.")).to_be_visible()
    await page.get_by_role("button", name="Pending").click()
    await page.locator("select[name=gateway]").select_option("crm")
    await expect(listed).to_have_count(2)
    await page.get_by_role("button", name="Cancel 2 pending").click()
    await page.keyboard.type("cancel 2")
    await page.keyboard.press("Enter")
    await expect(listed).to_have_count(0)
    for each in waiting:
        assert (await console.call("GET", f"/submissions/{each}"))["state"] == "cancelled"
    (entry,) = (await console.call("GET", "/audit-log?action=submission.cancelled"))["entries"]
    assert entry["changes"] == 2
    reader = await visitor.visit(console, f"deliveries/{failing[0]}", role="reader")
    await expect(reader.get_by_role("table", name="Attempts")).to_be_visible()
    await expect(reader.get_by_role("button", name="Retry now")).to_have_count(0)


async def test_usage_is_summed_exported_and_followed_to_its_delivery(
    console: ConsoleService, visitor: Visitor, tmp_path: Path
) -> None:
    for kind in (1, 2, 3):
        await console.open(sessionKind=kind, leaseSeconds=600)
    page = await visitor.visit(console, "usage")
    await expect(page.get_by_role("table", name="Usage by tenant").locator("tbody tr").first).to_contain_text(
        "1 session"
    )
    await page.get_by_role("button", name="By kind").click()
    await expect(page.get_by_role("table", name="Usage by kind").locator("tbody tr").first).to_contain_text("Kind")
    assert page.url.endswith("?groupBy=kind")
    await page.get_by_role("button", name="By user").click()
    async with page.expect_download() as waiting:
        await page.get_by_role("button", name="Export CSV").press("Enter")
    saved = tmp_path / "usage.csv"
    await (await waiting.value).save_as(saved)
    await expect(page.get_by_role("dialog")).to_contain_text("The file is saved.")
    with saved.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    span = f"from={rows[0]['from']}&to={rows[0]['to']}"
    expected = (await console.call("GET", f"/usage?groupBy=user&limit=500&{span}"))["groups"]
    assert [(each["userObjectId"], int(each["sessions"])) for each in rows] == [
        (each["userObjectId"], each["sessions"]) for each in expected
    ]
    assert [Decimal(each["usage"]) for each in rows] == [Decimal(str(each["usage"])) for each in expected]
    await page.keyboard.press("Escape")
    delivered = row_of(page.get_by_role("table", name="Windows"), "delivered").first
    await expect(delivered).to_be_visible(timeout=15_000)
    await delivered.get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Usage window")
    chunk = page.get_by_role("table", name="Chunks").locator("tbody tr").first
    await expect(chunk).to_contain_text("delivered")
    await check_detail_page(page, "light")
    await chunk.get_by_role("link").click()
    await expect(page.get_by_role("table", name="Attempts")).to_contain_text("200")
    await page.goto(f"{console.address}/usage")
    await page.get_by_role("button", name="Send windows never sent").click()
    await page.get_by_role("dialog").get_by_role("button", name="Send").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Done. 0 windows with 0 chunks handed over.")


async def test_amounts_are_exact_however_many_digits_they_have(console: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(console, "usage")
    group = '{"tenantObjectId":"0190b0a0-0000-7000-8000-000000000001","usage":12345678901234567.000001,"sessions":1}'
    span = '"from":"2026-11-01T00:00:00.000000Z","to":"2026-11-02T00:00:00.000000Z"'
    ends = f'{span},"finalUntil":"2026-11-02T00:00:00.000000Z"'
    answer = f'{{{ends},"groupBy":"tenant","groups":[{group}],"count":1,"nextCursor":null}}'
    await page.route("**/a/b/usage?*", lambda route: route.fulfill(body=answer, content_type="application/json"))
    await page.reload()
    await expect(page.locator(".figure .value").first).to_have_text("12,345,678,901,234,567.000001")
    async with page.expect_download() as waiting:
        await page.get_by_role("button", name="Export CSV").click()
    path = await (await waiting.value).path()
    assert ",12345678901234567.000001,1," in path.read_text(encoding="utf-8")


async def test_usage_page_shows_if_sums_end_early_at_a_full_hour(console: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(console, "usage")
    asked = list[str]()
    answer = {
        "from": "2026-11-01T00:00:00.000000Z",
        "to": "2026-11-02T13:00:00.000000Z",
        "finalUntil": "2026-11-02T13:42:00.000000Z",
        "groupBy": "tenant",
        "groups": [{"tenantObjectId": "0190b0a0-0000-7000-8000-000000000001", "usage": 1, "sessions": 1}],
        "count": 1,
        "nextCursor": None,
    }

    async def fulfill(route: Route) -> None:
        asked.append(route.request.url)
        await route.fulfill(json=answer)

    await page.route("**/a/b/usage?*", fulfill)
    await page.reload()
    section = page.get_by_role("region", name="Usage in the span")
    await expect(section).to_contain_text("a full hour; the export has the whole span")
    assert all("quick=true" in url for url in asked)
    await page.goto(f"{console.address}/usage?span=own&from=2026-11-01T00:00:00Z&to=2026-11-02T13:00:00Z")
    await expect(section).to_contain_text("final until")
    await expect(section).to_contain_text("a usage of 1 is 30 days at factor 1")
    await expect(section).not_to_contain_text("a full hour")


async def test_alerts_show_text_of_the_runbook(console: ConsoleService, visitor: Visitor) -> None:
    store = console.service.database.store
    await console.call("POST", "/jobs/watch/pause")
    fence = await hold_lease(store, "job:watch")
    lagging = Condition(AlertName.USAGE_LAGGING, None, "20 minutes")
    await store.update_alerts(fence, [lagging, Condition(AlertName.JOB_FAILING, "prune", NASTY)], None)
    page = await visitor.visit(console, "alerts", role="reader")
    failing = page.get_by_role("region", name="job-failing")
    await expect(failing).to_contain_text(NASTY)
    await expect(failing).to_contain_text("A job has failed three times in a row.")
    await expect(page.get_by_role("region", name="usage-lagging")).to_contain_text(
        "Nothing is lost, but billing is late."
    )
    await check_detail_page(page, "dark")
    await store.update_alerts(fence, [lagging], None)
    await expect(failing).to_have_count(0)
    await page.goto(f"{console.address}/alerts?name=job-failing")
    await expect(page.get_by_role("table", name="Cleared alerts").locator("tbody tr")).to_contain_text([NASTY])
    await page.get_by_role("link", name="Show deliveries").click()
    await expect(page).to_have_url(f"{console.address}/deliveries?gateway=usages&state=pending")
    await console.call("POST", "/jobs/watch/resume")


async def test_key_is_created_shown_once_and_revoked(console: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(console, "keys")
    await page.get_by_role("button", name="Create a key").press("Enter")
    await page.keyboard.type(f"till {NASTY}")
    await page.get_by_label("reader: sees everything").check()
    await page.get_by_label("Expires").select_option("30")
    await tab_to(page, "Create")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("It is shown only once.")
    key = await dialog.locator(".secret code").inner_text()
    # Escape does not close the dialog before the user has confirmed that the key is stored.
    await page.keyboard.press("Escape")
    await expect(dialog.get_by_role("button", name="Copy key")).to_be_visible()
    await tab_to(page, "I have stored the key")
    await page.keyboard.press("Enter")
    await expect(page.locator("dialog")).to_have_count(0)
    assert key not in await page.content()
    address = f"{console.origin}{console.prefix}/sessions"
    async with httpx.AsyncClient() as http:
        assert (await http.get(address, headers={"Authorization": f"Bearer {key}"})).status_code == 200
        row = row_of(page, f"till {NASTY}")
        await expect(row).to_contain_text("reader")
        await row.get_by_role("button", name="Revoke").click()
        await page.keyboard.type("revoke")
        await page.keyboard.press("Enter")
        await expect(row).to_have_count(0)
        async with asyncio.timeout(10):
            headers = {"Authorization": f"Bearer {key}"}
            while (await http.get(address, headers=headers)).status_code != 401:  # noqa: ASYNC110 - polled over HTTP
                await asyncio.sleep(0.1)
    await page.get_by_role("button", name="All").click()
    await expect(row).to_contain_text("revoked")
    # The audit log names the operator key that revoked the new key.
    await page.goto(f"{console.address}/audit-log?action=key.revoked")
    entry = page.get_by_role("table", name="Entries").locator("tbody tr")
    await expect(entry).to_have_count(1)
    await expect(entry).to_contain_text(f"{NASTY} operator")
    await expect(entry.get_by_role("button", name="Copy request id")).to_be_visible()
    await page.get_by_label("Span").select_option("own")
    await page.get_by_label("To (UTC)").fill("2001-01-01T00:00:00")
    await page.get_by_label("To (UTC)").press("Tab")
    await expect(page.locator(".empty")).to_contain_text("No entry matches.")
    await page.get_by_role("button", name="Clear filters").click()
    await expect(entry).not_to_have_count(0)
    reader = await visitor.visit(console, "keys", role="reader")
    await expect(reader.get_by_role("table", name="API keys")).to_be_visible()
    for name in ("Create a key", "Revoke"):
        await expect(reader.get_by_role("button", name=name)).to_have_count(0)
