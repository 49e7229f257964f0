"""`examples/webapp.py`: every tab that gets a seat holds a session of its own, with a session token."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Visit
from tests.deployment.proxies import free_port
from tests.support.instances import RunningInstance

EXAMPLE = Path(__file__).parents[2] / "examples" / "webapp.py"
SEATS = 2

pytestmark = pytest.mark.slow


@contextmanager
def webapp(port: int, tenure: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLE), "--port", str(port), "--seats", str(SEATS)],
        env={**os.environ, "TENURE_URL": tenure},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def live_sessions(instance: RunningInstance) -> set[str]:
    with urllib.request.urlopen(f"{instance.address}/sessions?active=true", timeout=10) as response:
        return {session["sessionId"] for session in json.load(response)["sessions"]}


async def shows(page: Page, state: str, detail: str = "") -> None:
    await expect(page.locator("#state")).to_have_text(state, timeout=30_000)
    await expect(page.locator("#detail")).to_contain_text(detail)


async def test_tab_with_a_seat_keeps_its_session_until_it_leaves(
    visit: Visit, start: Callable[..., RunningInstance], tmp_path: Path
) -> None:
    port = free_port()
    origins = json.dumps([f"http://127.0.0.1:{port}"])
    instance = start(f"sqlite:///{tmp_path / 'tenure.db'}", TENURE_HTTP__ALLOWED_ORIGINS=origins).wait_until_ready()
    with webapp(port, instance.address) as url:
        first, second, third = [await visit(url) for _ in range(3)]
        for page in (first, second):
            await shows(page, "you have a seat", "safe for")
        await shows(third, "no session", "all seats are taken")
        before = live_sessions(instance)
        assert len(before) == SEATS
        await first.reload()
        await shows(first, "you have a seat")
        assert live_sessions(instance) == before, "a tab that is loaded again finds its session"
        await first.click("#leave")
        await shows(first, "session over", "you left")
        await third.reload()
        await shows(third, "you have a seat")
        assert len(live_sessions(instance) & before) == 1
