"""The route that serves the console: the same page at every address, and the files of the page."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from tenure.console.route import POLICY, STATIC
from tests.http.local import LocalService

ASSETS = re.compile(r'(?:href|src)="(assets/[^"]+)"')


async def get(service: LocalService, path: str, **headers: str) -> httpx.Response:
    return await service.http.get(path, headers={"Accept-Encoding": "identity", **headers})


async def test_every_address_serves_the_same_page_with_a_strict_policy(any_local: LocalService) -> None:
    pages = [
        await get(any_local, path) for path in ("/console", "/console/", "/console/sessions/x?a=b", "/console/a/b")
    ]
    for page in pages:
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.content == pages[0].content
        assert page.headers["cache-control"] == "no-cache"
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert '<base href="/console/">' in pages[0].text


async def test_files_are_cached_forever_only_at_the_address_with_their_digest(any_local: LocalService) -> None:
    page = await get(any_local, "/console")
    addresses = ASSETS.findall(page.text)
    assert len(addresses) >= 4
    for address in addresses:
        file = await get(any_local, f"/console/{address}")
        assert file.status_code == 200, address
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert file.headers["content-security-policy"] == POLICY
        assert file.content == (STATIC / address.split("/", 2)[2]).read_bytes()
        old = await get(any_local, f"/console/assets/0123456789abcdef/{address.split('/', 2)[2]}")
        assert (old.content, old.headers["cache-control"]) == (file.content, "no-store")
    types = {
        Path(address).suffix: (await get(any_local, f"/console/{address}")).headers["content-type"]
        for address in addresses
    }
    assert types == {
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
    }


@pytest.mark.parametrize("path", ["x/nothing.js", "x/../route.py", "x/%2e%2e/route.py", "x/index.html", "x/", "x"])
async def test_only_files_of_the_console_are_served(any_local: LocalService, path: str) -> None:
    response = await get(any_local, f"/console/assets/{path}")
    # httpx resolves `..` before it sends the request, so the request may reach a page of the console.
    assert response.status_code == 404 or response.headers["content-type"].startswith("text/html")
    assert "ConsoleRoutes" not in response.text


async def test_matching_etag_returns_304_and_gzip_has_its_own_etag(any_local: LocalService) -> None:
    plain = await get(any_local, "/console")
    packed = await any_local.http.get("/console", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    tags = [plain.headers["etag"], packed.headers["etag"]]
    assert tags[0] != tags[1]
    for tag, encoding in zip(tags, ("identity", "gzip"), strict=True):
        for condition in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await any_local.http.get(
                "/console", headers={"Accept-Encoding": encoding, "If-None-Match": condition}
            )
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        other = await any_local.http.get("/console", headers={"Accept-Encoding": encoding, "If-None-Match": '"other"'})
        assert other.status_code == 200


def test_files_load_nothing_from_other_hosts_and_contain_no_code_in_markup() -> None:
    """The content security policy blocks both in the browser. Only `template.js` may use `innerHTML`, for templates."""
    for path in sorted(STATIC.rglob("*")):
        if path.is_dir():
            continue
        text = path.read_text(encoding="utf-8")
        addresses = [each for each in re.findall(r"https?://[^\s\"'`)]+", text) if "www.w3.org" not in each]
        assert addresses == [], path
        assert not re.search(r"\sstyle=|\son[a-z]+=[\"']|javascript:[^)]", text), path
        assert "eval(" not in text, path
        assert path.name == "template.js" or not re.search(
            r"innerHTML|insertAdjacentHTML|outerHTML|document\.write", text
        ), path


def test_all_files_are_small_when_compressed() -> None:
    packed = sum(len(gzip.compress(path.read_bytes())) for path in STATIC.rglob("*") if path.is_file())
    assert packed < 150_000
