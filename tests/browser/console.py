"""For tests of the console: instances with an API key of each role, and pages whose errors make a test fail."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page

from tenure.config import AccessConfig
from tenure.domain.keys import Role, new_api_key
from tests.http.client import Json, open_body
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.keys import create_key

PREFIXES = ["", "/a/b"]
ROLES = [role.value for role in Role]
PHONE = {"width": 375, "height": 812}
DESK = {"width": 1440, "height": 900}
AXE = os.environ.get("TENURE_TEST_AXE", "")
"""The path of axe-core, an accessibility checker that `.ci/run` installs. If the path is empty, tests do not run it."""
TIMEOUT_MILLISECONDS = 20_000


class ConsoleAddress:
    """The address of a console, and a key of each role if the console needs a sign-in."""

    def __init__(self, origin: str, prefix: str = "", keys: dict[str, str] | None = None) -> None:
        self.origin = origin
        self.prefix = prefix
        self.keys = keys or {}
        self.ids: dict[str, str] = {}
        self.address = f"{origin}{prefix}/console"


class ConsoleService(ConsoleAddress):
    """The console of an instance in the process of the test."""

    def __init__(self, service: LocalService, prefix: str, keys: dict[str, str]) -> None:
        super().__init__(f"http://127.0.0.1:{service.port}", prefix, keys)
        self.service = service

    async def call(self, method: str, path: str, body: Any = None, role: str = "operator") -> Json:
        headers = {"Authorization": f"Bearer {self.keys[role]}"} if self.keys else {}
        response = await self.service.http.request(method, f"{self.prefix}{path}", json=body, headers=headers)
        response.raise_for_status()
        answer: Json = response.json()
        return answer

    async def open(self, **fields: Any) -> Json:
        return await self.call("PUT", "/sessions", open_body(**fields))


@asynccontextmanager
async def serving_console(
    database: Database, prefix: str, *, keys: bool = True, **settings: Any
) -> AsyncIterator[ConsoleService]:
    made = {role: new_api_key(role) for role in Role} if keys else {}
    for role, key in made.items():
        await create_key(database.store, key, name=f"<img src=x onerror=alert(1)> {role.value}")
    settings = {"access": AccessConfig(failures_per_minute=0), "prefix": prefix, **settings}
    async with LocalService.on(database, **settings).running() as service:
        yield ConsoleService(service, prefix, {role.value: key.text for role, key in made.items()})


class Visitor:
    """Opens pages of consoles. Collects in `errors` the errors that they report, except those about failed requests."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.errors: list[str] = []

    async def visit(
        self,
        console: ConsoleAddress,
        path: str = "",
        role: str | None = "operator",
        *,
        theme: str = "light",
        **options: Any,
    ) -> Page:
        """Opens a page of the console, and waits until the page has a heading: until then, pressed keys are lost.

        The page is signed in with the key of `role`. If `role` is None, the page is not signed in.
        """
        options = {"viewport": DESK, "color_scheme": theme, "reduced_motion": "reduce", **options}
        context = await self._browser.new_context(**options)
        self._contexts.append(context)
        if role is not None and console.keys:
            await context.add_cookies(
                [{"name": "tenure_credential", "value": console.keys[role], "url": f"{console.origin}{console.prefix}"}]
            )
        page = await context.new_page()
        page.set_default_timeout(TIMEOUT_MILLISECONDS)
        page.on("pageerror", lambda error: self.errors.append(f"{path}: {error}"))
        page.on("console", lambda message: self._heard(path, message.type, message.text))
        await page.goto(f"{console.address}/{path}" if path else console.address)
        await page.locator("h1").first.wait_for()
        return page

    def _heard(self, path: str, kind: str, text: str) -> None:
        if kind == "error" and "Failed to load resource" not in text:
            self.errors.append(f"{path}: {text}")

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()
        self._contexts.clear()


async def violations(page: Page) -> list[str]:
    """Returns the serious and critical findings of axe-core on the page."""
    await page.evaluate(Path(AXE).read_text(encoding="utf-8"))  # noqa: ASYNC240 - a file of this machine
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


async def overflow(page: Page) -> int:
    """Returns by how many pixels the page is wider than the window."""
    width: int = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


async def focused(page: Page) -> str:
    """Returns the label or the text of the element that has the focus; empty if no element has the focus."""
    text: str = await page.evaluate(
        """() => {
            const found = document.activeElement;
            if (found === document.body) return '';
            return (found.getAttribute('aria-label') || found.innerText || found.name || '').trim();
        }"""
    )
    return text


async def tab_to(page: Page, wanted: str) -> None:
    """Presses Tab until an element with this text or label has the focus. The page may draw the element late, so Tab
    may pass all elements several times.
    """
    seen = {}
    deadline = time.monotonic() + TIMEOUT_MILLISECONDS / 1000
    while time.monotonic() < deadline:
        await page.keyboard.press("Tab")
        text = await focused(page)
        if wanted in text:
            return
        seen[text] = None
    raise AssertionError(f"{wanted!r} cannot be reached by keyboard, only {list(seen)}")
