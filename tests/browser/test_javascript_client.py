"""The JavaScript client in a real browser: a page holds a session with a session token as its only credential."""

import asyncio
import json
import shutil
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import websockets
from playwright.async_api import Page

from tenure.config import HttpConfig
from tenure.domain.keys import Role, new_api_key
from tests.browser.conftest import CHROMIUM, Visit
from tests.http.client import Json
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.keys import create_key
from tests.support.processes import eventually

pytestmark = pytest.mark.slow

LEASE_SECONDS = 15
HIDDEN_SECONDS = 45
"""Three leases. The timers of a hidden page fire once a minute, so without its Web Worker the client would lose the
session."""
HOLD = """
async ({address, sessionId, token}) => {
    const {hold} = await import(address + "/client/tenure.js");
    window.received = [];
    window.session = await hold({sessionId, token, url: address});
    for (const name of ["renewed", "expiring", "lost"]) {
        session.addEventListener(name, ({detail}) => received.push(detail.reason ? `${name} ${detail.reason}` : name));
    }
    session.addEventListener("lost", () => window.lostAt = Date.now());
    return session.isHeld;
}
"""
ECHO = """
() => new Promise(resolve => {
    const socket = session.stream();
    socket.onmessage = ({data}) => {
        const message = JSON.parse(data);
        if (message.type === "session_start") socket.send(JSON.stringify({said: "hello"}));
        else {
            resolve([socket.protocol, message]);
            socket.close();
        }
    };
    socket.onerror = () => resolve(["", "failed"]);
})
"""


@asynccontextmanager
async def held_session(database: Database, *origins: str, **fields: Any) -> AsyncIterator[tuple[LocalService, Json]]:
    """Runs a service that requires credentials, and opens a session for a page, as a back end does. `origins` are the
    allowed origins, and `fields` are added to the open request.
    """
    key = new_api_key(Role.CLIENT)
    await create_key(database.store, key)
    async with LocalService.on(database, http=HttpConfig(allowed_origins=origins)).running() as service:
        service.http.headers["Authorization"] = f"Bearer {key.text}"
        yield service, await service.open(withToken=True, leaseSeconds=LEASE_SECONDS, **fields)


def values(service: LocalService, opened: Json) -> Json:
    address = f"http://127.0.0.1:{service.port}"
    return {"address": address, "sessionId": opened["sessionId"], "token": opened["sessionToken"]}


async def received(page: Page) -> list[str]:
    found: list[str] = await page.evaluate("received")
    return found


async def test_page_holds_session_with_token_and_page_of_another_origin_is_refused(
    sqlite_database: Database, page_servers: list[str], visit: Visit
) -> None:
    """The page sends heartbeats with CORS, opens a stream with the token as subprotocol, goes offline for a while, and
    finally loses the session.
    """
    allowed, other = page_servers
    async with held_session(sqlite_database, allowed) as (service, opened):
        page = await visit(allowed)
        assert await page.evaluate(HOLD, values(service, opened)) is True
        assert await page.evaluate(ECHO) == ["tenure", {"said": "hello"}]
        await page.evaluate("session.release()")
        second = await service.open(withToken=True, leaseSeconds=LEASE_SECONDS)
        assert await page.evaluate(HOLD, values(service, second)) is True

        await page.context.set_offline(True)
        await page.wait_for_function("received.includes('expiring')")
        assert await page.evaluate("session.isHeld") is True
        await page.context.set_offline(False)
        await page.wait_for_function("received.at(-1) === 'renewed'")
        assert not any(name.startswith("lost") for name in await received(page))

        await service.http.delete(f"/sessions/{second['sessionId']}")
        await page.wait_for_function("received.some(name => name.startsWith('lost'))")
        await page.evaluate("window.dispatchEvent(new Event('focus'))")
        assert [name for name in await received(page) if name.startswith("lost")] == ["lost stopped"]
        assert await page.evaluate("session.isHeld") is False

        foreign = await visit(other)
        with pytest.raises(Exception, match="Failed to fetch dynamically imported module"):
            await foreign.evaluate(HOLD, values(service, opened))


async def test_page_loses_session_while_offline_before_the_service_ends_it(
    sqlite_database: Database, page_servers: list[str], visit: Visit
) -> None:
    async with held_session(sqlite_database, page_servers[0]) as (service, opened):
        page = await visit(page_servers[0])
        await page.evaluate(HOLD, values(service, opened))
        await page.context.set_offline(True)
        await page.wait_for_function("window.lostAt !== undefined")
        session = await service.get(opened["sessionId"])
        # The service and the page have the same clock, because they run on the same machine.
        ends_at = datetime.fromisoformat(session["leaseExpiresAt"]).timestamp()
        assert await page.evaluate("lostAt") / 1000 <= ends_at
        assert [name for name in await received(page) if name != "renewed"] == ["expiring", "lost unreachable"]


@asynccontextmanager
async def hidden_tab(folder: Path, address: str) -> AsyncIterator[Any]:
    """Opens a page in a tab that is hidden behind another tab. Yields the DevTools connection of the page.

    Playwright reports every page as visible, so this function starts Chromium itself.
    """
    arguments = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        # Chromium begins to throttle the timers of a hidden page after five seconds instead of five minutes.
        "--enable-features=IntensiveWakeUpThrottling:grace_period_seconds/5",
        address,
    ]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 - returns at once
    try:
        port_file = folder / "DevToolsActivePort"
        await eventually(lambda: port_file.exists() and "\n" in port_file.read_text(), 20, "Chromium listens")
        port = port_file.read_text().splitlines()[0]
        await eventually(lambda: bool(_tabs(port, address)), 20, "the page is open")
        async with websockets.connect(_tabs(port, address)[0]["webSocketDebuggerUrl"], max_size=None) as connection:
            # Wait until the page is loaded: a script that ran earlier would run in an empty document without an origin.
            is_loaded = f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'"
            async with asyncio.timeout(20):
                while not await _evaluate(connection, is_loaded):  # noqa: ASYNC110 - the browser offers no event
                    await asyncio.sleep(0.1)
            other = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
            await asyncio.to_thread(lambda: urllib.request.urlopen(other).read())
            yield connection
    finally:
        process.terminate()
        process.wait(10)


def _tabs(port: str, address: str) -> list[Json]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as response:
        return [tab for tab in json.load(response) if tab["type"] == "page" and tab["url"].startswith(address)]


async def _command(connection: Any, method: str, **parameters: Any) -> Json:
    await connection.send(json.dumps({"id": 1, "method": method, "params": parameters}))
    async with asyncio.timeout(30):
        while (message := json.loads(await connection.recv())).get("id") != 1:
            pass
    result: Json = message["result"]
    return result


async def _evaluate(connection: Any, expression: str) -> Any:
    found = await _command(connection, "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in found, found
    return found["result"].get("value")


@pytest.mark.skipif(shutil.which(CHROMIUM) is None, reason=f"{CHROMIUM} is not installed")
async def test_hidden_page_holds_session_although_its_timers_are_throttled(
    sqlite_database: Database, page_servers: list[str], tmp_path: Path
) -> None:
    async with held_session(sqlite_database, page_servers[0]) as (service, opened):
        async with hidden_tab(tmp_path, page_servers[0]) as tab:
            await _evaluate(tab, f"({HOLD})({json.dumps(values(service, opened))})")
            await _evaluate(tab, "window.ticks = 0; setInterval(() => ticks += 1, 100); null")
            assert await _evaluate(tab, "document.visibilityState") == "hidden"
            await asyncio.sleep(HIDDEN_SECONDS)
            assert await _evaluate(tab, "session.isHeld") is True
            assert set(await _evaluate(tab, "received")) == {"renewed"}
            ticks = await _evaluate(tab, "ticks")
        assert (await service.get(opened["sessionId"]))["isActive"] is True
    assert ticks < HIDDEN_SECONDS, "the timers of the page were not throttled, so the test shows nothing"
