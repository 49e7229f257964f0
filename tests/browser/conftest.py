"""A real browser, and pages of several origins that use an instance.

The tests need Chromium, which `.ci/run` installs. Without Chromium, the tests are skipped. The values that a test
passes to `visit`, such as a credential, are in `window.values` of the page.
"""

import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.browser.console import Visitor
from tests.http.local import prepare_process

CHROMIUM = "/usr/bin/chromium"
TIMEOUT_MILLISECONDS = 30_000
expect.set_options(timeout=TIMEOUT_MILLISECONDS)  # on a busy machine, the default of five seconds is too short
PAGE = b"<!doctype html><title>A page of another origin</title>"

Visit = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="package", autouse=True)
def _prepared_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        prepare_process(patched)
        yield


class _PageHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        """Logs nothing, because the test reports failures."""


@pytest.fixture(scope="package")
def page_servers() -> Iterator[list[str]]:
    """Runs servers of two origins, which differ in the port. Each server serves an empty page. Yields the origins."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _PageHandler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    yield [f"http://localhost:{server.server_address[1]}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # The sandbox of Chromium does not work for root, and containers often run as root.
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator[Browser]:
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"{CHROMIUM} is not installed")
    async with chromium() as running:
        yield running


@pytest.fixture
async def visitor(browser: Browser) -> AsyncIterator[Visitor]:
    """Opens pages of consoles. Fails the test if a page reported an error."""
    visitor = Visitor(browser)
    yield visitor
    await visitor.close()
    assert visitor.errors == []


@pytest.fixture
async def visit(browser: Browser) -> AsyncIterator[Visit]:
    """Yields a function that opens the page of an origin in a fresh profile, with `values` as `window.values`."""
    contexts = []

    async def open_page(origin: str, **values: Any) -> Page:
        context = await browser.new_context()
        contexts.append(context)
        page = await context.new_page()
        page.set_default_timeout(TIMEOUT_MILLISECONDS)
        await page.goto(origin)
        await page.evaluate(f"window.values = {msgspec.json.encode(values).decode()}")
        return page

    yield open_page
    for context in contexts:
        await context.close()
