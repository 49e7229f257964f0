"""What a person does on the pages of the console besides sessions. All tests share one instance."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.console import ConsoleService, Visitor, serving_console, tab_to
from tests.http.conftest import new_sqlite

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
async def console(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleService]:
    async with (
        new_sqlite(sqlite_template, tmp_path_factory.mktemp("console")) as database,
        serving_console(database, "/a/b") as service,
    ):
        yield service


def row_of(page: Page, text: str) -> Locator:
    return page.locator("tbody tr").filter(has_text=text)


async def test_capacity_is_set_explained_and_deleted_by_keyboard(console: ConsoleService, visitor: Visitor) -> None:
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
    verdict = page.get_by_role("region", name="What happens to the next open")
    await expect(verdict).to_contain_text("The next user gets a seat. It is the last one.")
    # Another user takes the last seat: the page follows the event.
    second = await console.open(capacityId=capacity, leaseSeconds=300)
    await expect(verdict).to_contain_text(
        "The next open is refused with 429 SESSION_LIMIT, because all 2 seats are taken"
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
    await expect(verdict).to_contain_text("The next user gets a seat, and another loses theirs.")
    await expect(verdict).to_contain_text(first["sessionId"][-4:])
    await expect(verdict).to_contain_text("403 CAPACITY_OF_ANOTHER_TENANT")
    stored = await console.call("GET", f"/capacities/{capacity}")
    assert (stored["maxSessions"], stored["whenFull"]) == (1, "evictOldest")
    # The list finds it by its tenant.
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
    await expect(reader.get_by_role("region", name="What happens to the next open")).to_be_visible()
    await expect(reader.get_by_role("button", name="Change settings")).to_have_count(0)


async def test_cluster_shows_who_leads_and_runs_pauses_and_resigns(console: ConsoleService, visitor: Visitor) -> None:
    page = await visitor.visit(console, "cluster")
    (lease,) = [
        each for each in (await console.call("GET", "/leases"))["leases"] if not each["name"].startswith("job:")
    ]
    led = row_of(page.get_by_role("region", name="Who leads"), lease["name"])
    await expect(led).to_contain_text(lease["holder"])
    await led.get_by_role("button", name="Resign").press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Resign").press("Enter")
    await expect(led).to_contain_text("nobody")
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
    # The instance is alone, and leads again after it has waited for others.
    await expect(led.locator("td.number")).to_have_text(str(lease["epoch"] + 1), timeout=15_000)
    reader = await visitor.visit(console, "cluster", role="reader")
    await expect(reader.get_by_role("table", name="Jobs")).to_be_visible()
    for name in ("Resign", "Pause prune", "Run prune now"):
        await expect(reader.get_by_role("button", name=name)).to_have_count(0)
