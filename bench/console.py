"""The pages of the console with a million sessions, a million submissions and ten thousand capacities, on PostgreSQL.

There is no baseline: every request of a page must be answered within 100 ms, and a page must be painted within 300 ms
after a click on its link. The requests of two routes are not measured: `GET /events`, which waits for events, and
`GET /sessions/metrics`, which counts every row. The overview shows these counts when they arrive, and does not wait for
them. The browser is Chromium, without a window. Other load on the machine makes the measured times longer.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from bench import check_bar, median, postgres, service

sys.path.insert(0, str(Path(__file__).parent.parent))
from playwright.async_api import Page, async_playwright

from tests.browser.conftest import CHROMIUM
from tests.support.rows import fill_capacities_postgres, fill_postgres, fill_submissions_postgres, fill_usage_postgres

ROUNDS = 5
CAPACITIES = 10_000
PAGES = [
    "",
    "sessions",
    "sessions?active=true",
    "sessions?order=lapse",
    "sessions?active=false&closeReason=EVICTED",
    "sessions?kind=2&tenant={tenant}",
    "sessions?order=lapse&capacity={capacity}",
    "sessions/{session}",
    "capacities",
    "capacities/{capacity}",
    "deliveries",
    "deliveries?state=failed",
    "cluster",
    "alerts",
    "audit-log",
    "keys",
]
STATE = "CASE WHEN g % 100 < 97 THEN 'delivered' WHEN g % 100 < 99 THEN 'failed' ELSE 'pending' END"
"""SQL for the state of a submission. Most submissions are delivered, as in an installation that works."""
VISIT = """
async (address) => {
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    const link = document.createElement('a');
    link.href = address;
    document.body.append(link);
    performance.clearResourceTimings();
    const began = performance.now();
    link.click();
    link.remove();
    await frame();
    while (document.querySelector('main .loading, main .is-stale')) await frame();
    const painted = performance.now() - began;
    const isCounted = ({name}) => !name.includes('/events') && !name.endsWith('/sessions/metrics');
    const requests = performance.getEntriesByType('resource').filter(isCounted)
        .map(({name, requestStart, responseStart}) => [name, responseStart - requestStart]);
    return {painted, requests};
}
"""


async def visit(page: Page, address: str) -> dict[str, Any]:
    found: dict[str, Any] = await page.evaluate(VISIT, address)
    # Requests that this page sends up to a second later must not be counted for the next page.
    await asyncio.sleep(1)
    return found


async def measure(address: str, pages: list[str]) -> dict[str, tuple[float, float]]:
    """Returns for each page the milliseconds until it is painted, and the milliseconds of its slowest request: the
    medians of ROUNDS visits.
    """
    found = {}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(f"{address}/console/find")
        await page.get_by_role("heading", level=1).wait_for()
        for path in pages:
            painted, answered, slowest = [], [], ""
            for _ in range(ROUNDS):
                await visit(page, f"{address}/console/find")
                visited = await visit(page, f"{address}/console/{path}")
                painted.append(visited["painted"])
                slowest, milliseconds = max(visited["requests"], key=lambda each: each[1])
                answered.append(milliseconds)
            found[path] = (median(painted), median(answered))
            print(f"  {found[path][0]:6.1f} ms  {found[path][1]:6.1f} ms  /console/{path}  ({slowest.split('?')[0]})")
        await browser.close()
    return found


async def main(count: int) -> None:
    with postgres() as server:
        url = server.create_database("console")
        with service(url):
            pass  # migrates the schema
        await fill_postgres(url, count)
        await fill_submissions_postgres(url, count, STATE)
        await fill_usage_postgres(url, count // 10)
        await fill_capacities_postgres(url, min(CAPACITIES, count))
        ids = await some_ids(url)
        with service(url) as running:
            found = await measure(running.address, [path.format_map(ids) for path in PAGES])
    slowest = max(answered for _, answered in found.values())
    check_bar(f"console, slowest answer with {count} sessions", slowest, 100, "ms", at_most=True)
    check_bar("console, slowest paint", max(painted for painted, _ in found.values()), 300, "ms", at_most=True)


async def some_ids(url: str) -> dict[str, str]:
    import asyncpg  # noqa: PLC0415 - only here

    connection = await asyncpg.connect(url)
    row = await connection.fetchrow(
        "SELECT session_id::text AS session, tenant_object_id::text AS tenant, capacity_id::text AS capacity "
        "FROM sessions WHERE state <> 'closed' ORDER BY started_at DESC LIMIT 1"
    )
    await connection.close()
    return dict(row)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sessions", type=int, default=1_000_000)
    asyncio.run(main(arguments.parse_args().sessions))
