"""The site of the documents builds without a warning, loads nothing from other hosts, and draws its diagrams."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route
from playwright.async_api import TimeoutError as PlaywrightTimeout

from tests.docs.blocks import BLOCKS, ROOT

SECONDS = 120
KINDS = ["Tutorials", "How-to guides", "Reference", "Explanation"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--quiet", "--strict", "-f", "docs/site/mkdocs.yml", "--site-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Logs nothing, because the test reports failures."""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def page_of(document: str) -> str:
    """Returns the path of a document in the site."""
    path = Path(document)
    return f"{path.parent}/" if path.name == "README.md" else f"{path.with_suffix('')}/"


def test_site_has_its_sections_and_routes_and_loads_nothing_from_other_hosts(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"{kind}\n" not in home and f">{kind}<" not in home] == []
    routes = (site / "docs" / "routes" / "index.html").read_text(encoding="utf-8")
    assert 'id="put-sessions"' in routes
    assert 'id="openanswer"' in routes
    for own in re.findall(r"<(?:script\b[^>]*\bsrc|link\b[^>]*\brel=\"stylesheet\"[^>]*\bhref)=\"([^\"]+)", home):
        assert (site / own).exists(), own
    fetched = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"(https?:[^\"]+)|<link\b[^>]*\bhref=\"(https?:[^\"]+)")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    assert [(page.name, found) for page in pages for found in fetched.findall(page.read_text(encoding="utf-8"))] == []


@pytest.mark.skipif(
    "TENURE_TEST_MERMAID" not in os.environ, reason="TENURE_TEST_MERMAID, the path of Mermaid, is not set"
)
async def test_all_diagrams_are_drawn_without_other_hosts(address: str, browser: Browser) -> None:
    documents = [block.page for block in BLOCKS if block.language == "mermaid"]
    assert len(documents) >= 7
    page = await browser.new_page()
    foreign, errors = list[str](), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))

    async def allow_own(route: Route) -> None:
        if route.request.url.startswith((address, "data:", "blob:")):
            await route.continue_()
        else:
            foreign.append(route.request.url)
            await route.abort()

    await page.route("**/*", allow_own)
    for document in sorted(set(documents)):
        await page.goto(f"{address}/{page_of(document)}")
        # The theme replaces the text of each diagram with an element that contains the drawing.
        try:
            await page.wait_for_function(
                "count => document.querySelectorAll('div.mermaid').length === count", arg=documents.count(document)
            )
        except PlaywrightTimeout:
            pytest.fail(f"{document}: {errors} {foreign}")
        heights = "Array.from(document.querySelectorAll('div.mermaid'), each => each.offsetHeight)"
        assert min(await page.evaluate(heights)) > 50, document
    await page.close()
    assert (foreign, errors) == ([], [])
