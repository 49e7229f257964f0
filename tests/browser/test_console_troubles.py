"""The console while a leader is killed, an instance hangs, and the database or a receiver is stopped.

The console shows each failure within five seconds, keeps its data, and recovers automatically.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.console import ConsoleAddress, Visitor, serving_console
from tests.crashes.conftest import own_database, own_postgres, own_template  # noqa: F401 - fixtures
from tests.support.databases import Database, PostgresServer
from tests.support.deliveries import ACCEPTED, gateways
from tests.support.instances import RunningInstance
from tests.support.receivers import RunningReceiver
from tests.support.simple_http import send_request

pytestmark = pytest.mark.slow

WITHIN_MILLISECONDS = 5_000 + 2_000
"""Five seconds, plus two for a busy machine. A page notices a frozen instance within four seconds: QUIET_MS plus
WATCH_TIMEOUT_MS in `live.js`."""
RECOVERED_MILLISECONDS = 20_000
DURATION_SECONDS = 3
TIMING = {
    "TENURE_LEASES__DURATION_SECONDS": str(DURATION_SECONDS),
    "TENURE_LEASES__RENEW_SECONDS": "1",
    "TENURE_LEASES__ACQUIRE_SECONDS": "2",
}


@pytest.fixture
async def visitor(browser: Browser) -> AsyncIterator[Visitor]:
    visitor = Visitor(browser)
    yield visitor
    await visitor.close()
    assert visitor.errors == []


@asynccontextmanager
async def closing(visitor: Visitor) -> AsyncIterator[None]:
    """Closes the pages before the instance stops, even after a failure: an open stream of events would keep the
    instance from stopping.
    """
    try:
        yield
    finally:
        await visitor.close()


async def is_lost(page: Page) -> None:
    await expect(page.locator(".banner")).to_contain_text("Connection lost since", timeout=WITHIN_MILLISECONDS)


async def is_back(page: Page) -> None:
    await expect(page.locator(".banner")).to_have_count(0, timeout=RECOVERED_MILLISECONDS)


async def test_page_shows_stopped_database_and_keeps_its_content(
    own_database: Database,  # noqa: F811 - the fixture
    own_postgres: PostgresServer,  # noqa: F811
    visitor: Visitor,
) -> None:
    async with serving_console(own_database, "", keys=False) as console, closing(visitor):
        session = await console.open(leaseSeconds=3600)
        pages = [await visitor.visit(console, path) for path in ("sessions", f"sessions/{session['sessionId']}", "")]
        for page in pages:
            await expect(page.locator(".loading")).to_have_count(0)
        before = [await page.locator("main").inner_text() for page in pages]
        await asyncio.to_thread(own_postgres.stop)
        try:
            for page in pages:
                await is_lost(page)
                await expect(page.locator(".banner")).to_contain_text("database", timeout=WITHIN_MILLISECONDS)
            shown = [await page.locator("main").inner_text() for page in pages]
        finally:
            await asyncio.to_thread(own_postgres.start)
        assert [len(text) > len(old) / 2 for text, old in zip(shown, before, strict=True)] == [True] * len(pages)
        for page in pages:
            await is_back(page)
        await console.open(sessionKind=2)
        await expect(pages[0].locator("tbody tr")).to_have_count(2)


async def test_killed_leader_is_replaced_on_screen_and_a_hanging_instance_is_noticed(
    start: Callable[..., RunningInstance], tmp_path: Path, visitor: Visitor
) -> None:
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    leader = start(url, **TIMING).wait_until_ready()
    deadline = time.monotonic() + 20
    while not _leads(leader):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    other = start(url, **TIMING).wait_until_ready()
    page = await visitor.visit(ConsoleAddress(other.address))
    row = page.get_by_role("region", name="Who leads").locator("tbody tr", has_text="submission-executor")
    await expect(row).to_contain_text(f"-{leader.process.pid}-")
    leader.kill()
    # The lease expires, the other instance acquires it, and the page shows the new leader within five seconds.
    within = (DURATION_SECONDS + 2) * 1000 + WITHIN_MILLISECONDS
    await expect(row).to_contain_text(f"-{other.process.pid}-", timeout=within)
    os.kill(other.process.pid, signal.SIGSTOP)
    try:
        await is_lost(page)
        await expect(row).to_contain_text(f"-{other.process.pid}-")
    finally:
        os.kill(other.process.pid, signal.SIGCONT)
    await is_back(page)


async def test_page_shows_receiver_that_is_down_and_deliveries_recover(
    start: Callable[..., RunningInstance], tmp_path: Path, visitor: Visitor
) -> None:
    receiver = RunningReceiver(tmp_path)
    port = int(receiver.address.rpartition(":")[2])
    gateway = {"url": f"{receiver.address}/orders", "schedule": [1]}
    instance = start(f"sqlite:///{tmp_path / 'tenure.db'}", **TIMING, **gateways(orders=gateway)).wait_until_ready()
    try:
        await submit(instance, "one")
        page = await visitor.visit(ConsoleAddress(instance.address), "deliveries")
        rows = page.get_by_role("region", name="Submissions that match").locator("tbody tr")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("delivered", timeout=RECOVERED_MILLISECONDS)
        receiver.kill()
        await submit(instance, "two")
        await expect(rows).to_have_count(2, timeout=WITHIN_MILLISECONDS)
        await expect(rows.first).to_contain_text("pending, fails", timeout=WITHIN_MILLISECONDS)
        await expect(rows.last).to_contain_text("delivered")
        receiver = RunningReceiver(tmp_path, port=port)
        await expect(rows.first).to_contain_text("delivered", timeout=RECOVERED_MILLISECONDS)
    finally:
        receiver.kill()


async def submit(instance: RunningInstance, key: str) -> None:
    async with aiohttp.ClientSession() as http:
        body = {"gateway": "orders", "payload": {"order": key}}
        async with http.post(
            f"{instance.address}/submissions", json=body, headers={"Idempotency-Key": key}
        ) as response:
            assert response.status == ACCEPTED


def _leads(instance: RunningInstance) -> bool:
    _, body = send_request(instance.address, "/readyz")
    return any(lease["name"] == "submission-executor" and lease["role"] == "leader" for lease in body["leases"])
