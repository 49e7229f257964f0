"""The examples of `docs/clients/javascript.md` run in a page and in Node. The tests change only the address of the
service, and define the names that the examples use but do not define.
"""

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.browser.conftest import Visit
from tests.browser.test_javascript_client import held_session
from tests.support.databases import Database

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clients" / "javascript.md").read_text(encoding="utf-8")
NEEDED_BY_PAGE = """
const { sessionId, token } = window.values;
window.called = [];
const show = (instant) => called.push(["show", instant]);
const warn = (text) => called.push(["warn", text]);
const signOut = (reason) => called.push(["signOut", reason]);
"""
NEEDED_BY_NODE = "const [userObjectId, tenantObjectId, capacityId] = [0, 1, 2].map(() => crypto.randomUUID());\n"

pytestmark = pytest.mark.slow


async def test_examples_run(sqlite_database: Database, page_servers: list[str], visit: Visit, tmp_path: Path) -> None:
    in_page, in_node = re.findall(r"^```js\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    async with held_session(sqlite_database, page_servers[0]) as (service, opened):
        address = f"http://127.0.0.1:{service.port}"
        page = await visit(page_servers[0], sessionId=opened["sessionId"], token=opened["sessionToken"])
        script = in_page.replace("https://tenure.example.com", address)
        await page.add_script_tag(content=NEEDED_BY_PAGE + script, type="module")
        await page.wait_for_function("window.called?.some(([name]) => name === 'show')")
        await page.evaluate("document.body.click()")
        await service.http.delete(f"/sessions/{opened['sessionId']}")
        await page.wait_for_function("called.some(([name]) => name === 'signOut')")
        assert ["signOut", "stopped"] in await page.evaluate("called")

        if shutil.which("node") is None:
            pytest.skip("Node is not installed")
        shutil.copy(ROOT / "clients" / "javascript" / "tenure.js", tmp_path)
        (tmp_path / "package.json").write_text('{"type": "module"}')
        script = in_node.replace("http://127.0.0.1:8080", address)
        (tmp_path / "example.js").write_text(NEEDED_BY_NODE + script)
        key = service.http.headers["Authorization"].removeprefix("Bearer ")
        done = await asyncio.to_thread(
            subprocess.run,
            ["node", "example.js"],
            cwd=tmp_path,
            env={**os.environ, "TENURE_KEY": key},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "created\n", "")
