"""Takes the screenshots of the console in README and docs: `python docs/tools/take_screenshots.py`.

It starts `tenure demo`, waits until the charts have something to show, and drives Chromium. It needs Playwright, which
the extra `dev` brings, and the program `chromium`.
"""

import asyncio
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

IMAGES = Path(__file__).parents[1] / "images"
DEMO_SECONDS = 300
WARM_UP_SECONDS = 75
"""Long enough for the charts to show more than one minute."""
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 375, "height": 740}
ADDRESS = re.compile(r"https?://127\.0\.0\.1:\d+/console")


async def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("take_screenshots: the program chromium is not installed")
    IMAGES.mkdir(exist_ok=True)
    demo = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure", "demo", "--seconds", str(DEMO_SECONDS), stdout=PIPE, stderr=PIPE
    )
    try:
        console = await _console_of(demo)
        draining = asyncio.create_task(_drain(demo))
        await asyncio.sleep(WARM_UP_SECONDS)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            await _take_all(browser, console)
            await browser.close()
        draining.cancel()
    finally:
        demo.send_signal(signal.SIGINT)
        await demo.wait()


async def _take_all(browser: Browser, console: str) -> None:
    page = await _visit(browser, console, DESKTOP, "light")
    await _take(page, "console-overview")
    await page.goto(f"{console}/sessions?active=false")
    await page.locator("table a").first.click()
    await _take(page, "console-session")
    for name in ("cluster", "usage"):
        await page.goto(f"{console}/{name}")
        await _take(page, f"console-{name}")
    phone = await _visit(browser, f"{console}/sessions", PHONE, "dark")
    await _take(phone, "console-phone")


async def _visit(browser: Browser, address: str, size: dict[str, int], theme: str) -> Page:
    context = await browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    page = await context.new_page()
    await page.goto(address)
    return page


async def _take(page: Page, name: str) -> None:
    await page.wait_for_timeout(3000)
    content = await page.screenshot(path=IMAGES / f"{name}.png")
    sys.stderr.write(f"{name}.png: {len(content) >> 10} KB\n")


async def _console_of(demo: Process) -> str:
    """Return the address of the console, which the demo prints first."""
    assert demo.stdout is not None  # noqa: S101 - it is a pipe
    async for line in demo.stdout:
        found = ADDRESS.search(line.decode())
        if found:
            return found.group()
    sys.exit("take_screenshots: the demo did not start")


async def _drain(demo: Process) -> None:
    assert demo.stdout is not None  # noqa: S101 - it is a pipe
    async for _ in demo.stdout:
        pass


if __name__ == "__main__":
    asyncio.run(main())
