"""Requests of a page to an instance on another origin, in a real browser."""

from typing import Any

import pytest
from playwright.async_api import Page

from tenure.config import HttpConfig
from tenure.domain.keys import Role, new_api_key
from tests.browser.conftest import Visit
from tests.http.client import open_body
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.keys import create_key

HELPERS = """
window.call = async (method, path, body, headers) => {
    try {
        const response = await fetch(values.address + path, {
            method,
            headers: {'Content-Type': 'application/json', ...headers},
            body: body == null ? undefined : JSON.stringify(body),
        });
        const text = await response.text();
        return {
            status: response.status,
            body: text && JSON.parse(text),
            headers: Object.fromEntries(response.headers),
        };
    } catch (error) {
        return {failed: error.name};
    }
};
window.stream = (path, protocols) => new Promise(resolve => {
    const socket = new WebSocket(values.address.replace('http', 'ws') + path, protocols);
    socket.onopen = () => socket.send(JSON.stringify(values.open));
    socket.onmessage = message => {
        const content = JSON.parse(message.data);
        if (content.type === 'session_start') {
            socket.send(JSON.stringify({said: 'hello'}));
        } else {
            socket.close();
            resolve({echo: content});
        }
    };
    socket.onerror = () => resolve({failed: true});
});
null;
"""


async def page_of(visit: Visit, origin: str, service: LocalService, **values: Any) -> Page:
    page = await visit(origin, address=f"http://127.0.0.1:{service.port}", **values)
    await page.evaluate(HELPERS)
    return page


async def call(page: Page, *arguments: Any) -> Any:
    return await page.evaluate("arguments => call(...arguments)", arguments)


@pytest.mark.slow
async def test_only_page_of_allowed_origin_opens_a_session_keeps_it_alive_and_reads_problems(
    sqlite_database: Database, page_servers: list[str], visit: Visit
) -> None:
    key = new_api_key(Role.CLIENT)
    await create_key(sqlite_database.store, key)
    allowed, other = page_servers
    authorization = {"Authorization": f"Bearer {key.text}"}
    async with LocalService.on(sqlite_database, http=HttpConfig(allowed_origins=(allowed,))).running() as service:
        page = await page_of(visit, allowed, service)
        opened = await call(page, "PUT", "/sessions", open_body(leaseSeconds=60), authorization)
        assert opened["status"] == 201
        session = opened["body"]["sessionId"]
        assert opened["headers"]["location"] == f"/sessions/{session}"
        identified = authorization | {"X-Request-ID": "from-the-page"}
        for path in (f"/sessions/{session}/heartbeat", "/sessions/heartbeats"):
            body = {} if path.endswith("heartbeat") else {"sessionIds": [session]}
            renewed = await call(page, "POST", path, body, identified)
            assert (renewed["status"], renewed["headers"]["x-request-id"]) == (200, "from-the-page")
        refused = await call(page, "PUT", "/sessions", open_body())
        assert (refused["status"], refused["body"]["code"]) == (401, "UNAUTHENTICATED")
        assert (await call(page, "DELETE", f"/sessions/{session}", None, authorization))["status"] == 200

        page = await page_of(visit, other, service)
        for arguments in (
            ("PUT", "/sessions", open_body(), authorization),
            ("GET", "/sessions", None, authorization),
            ("POST", f"/sessions/{session}/heartbeat", {}, authorization),
        ):
            assert await call(page, *arguments) == {"failed": "TypeError"}


@pytest.mark.slow
async def test_only_page_of_allowed_origin_opens_a_stream(
    sqlite_database: Database, page_servers: list[str], visit: Visit
) -> None:
    """No credentials are needed, because no key exists."""
    allowed, other = page_servers
    async with LocalService.on(sqlite_database, http=HttpConfig(allowed_origins=(allowed,))).running() as service:
        found = []
        for origin in (allowed, other):
            page = await page_of(visit, origin, service, open={"type": "open", **open_body()})
            found.append(await page.evaluate("() => stream('/sessions/stream')"))
    assert found == [{"echo": {"said": "hello"}}, {"failed": True}]
