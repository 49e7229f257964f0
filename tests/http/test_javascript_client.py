"""The JavaScript client: its own tests under Node, its types, and the routes that it calls."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tenure.http.pipeline import StreamRoute
from tests.http.client import Json
from tests.http.local import LocalService

FOLDER = Path(__file__).parents[2] / "clients" / "javascript"
MODULE = (FOLDER / "tenure.js").read_text(encoding="utf-8")
UNLISTED = {
    "/sign-in/oidc",
    "/sign-in/oidc/callback",
    "/docs",
    "/openapi.json",
    "/asyncapi.json",
    "/client/tenure.js",
    "/console",
    "/console/{path*}",
}
"""Documents, and pages for browsers, which the client does not call."""

make_types: dict[str, Any] = runpy.run_path(str(FOLDER / "make_types.py"))


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_javascript_tests_pass_under_node() -> None:
    ran = subprocess.run(
        ["node", "--test", "tests/"], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stdout
    passed = re.search(r"^# pass (\d+)$", ran.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) >= 17, "Node did not run the tests of all files"


async def test_types_and_error_codes_are_up_to_date() -> None:
    types = make_types["types_of"](await make_types["schemas_of_service"]())
    assert make_types["with_types"](MODULE, types) == MODULE, "run python clients/javascript/make_types.py"


async def test_client_calls_every_route(any_local: LocalService) -> None:
    calls = {f"{method} {path}" for method, path in re.findall(r'request\("([A-Z]+)", [`"]([^`"]+)[`"]', MODULE)}
    calls |= {f"{m} {p}" for m, p in re.findall(r'request\("([A-Z]+)", new URL\("([^"]+)"', MODULE)}
    calls |= {f"WS /{path}" for path in re.findall(r'#socket\([`"]([^`"]+)[`"](?:, \w+)?\)', MODULE)}
    called = {re.sub(r"\${part\([^)]*\)}", "{}", call) for call in calls}
    table = [route for route in any_local.instance.pipeline.table if route.path not in UNLISTED]
    assert any(isinstance(route, StreamRoute) for route in table)
    wanted = {f"{route.method} {re.sub(r'{[^}]*}', '{}', route.path)}" for route in table}
    assert wanted - called == set()


async def test_instance_serves_the_module(any_local: LocalService) -> None:
    answer = await any_local.http.get("/client/tenure.js")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert answer.text == MODULE


async def test_every_list_returns_next_cursor(any_local: LocalService) -> None:
    """The client's `each` follows `nextCursor`, so every list with a parameter `cursor` must return `nextCursor`."""
    document: Json = (await any_local.http.get("/openapi.json")).json()
    paged = [
        path
        for path, item in document["paths"].items()
        if any(parameter["name"] == "cursor" for parameter in item.get("get", {}).get("parameters", ()))
    ]
    assert len(paged) > 5
    for path in paged:
        (_, media) = next(iter(document["paths"][path]["get"]["responses"]["200"]["content"].items()))
        name = media["schema"]["$ref"].rpartition("/")[2]
        assert "nextCursor" in document["components"]["schemas"][name]["properties"], path
