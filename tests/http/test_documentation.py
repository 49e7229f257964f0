"""`docs/api.md` and `docs/errors.md` name every route, field and problem. Their examples return what the pages show."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from tenure.errors import Problem
from tenure.http.pipeline import StreamRoute
from tests.http.client import Client, Json
from tests.http.local import LocalService

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "api.md").read_text(encoding="utf-8")
ERRORS = (DOCS / "errors.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"


def problems(base: type[Problem] = Problem) -> Iterator[type[Problem]]:
    for problem in base.__subclasses__():
        yield problem
        yield from problems(problem)


CODES = {problem.slug: Problem.code.fget(problem) for problem in problems()}  # type: ignore[attr-defined]


async def test_every_route_is_documented(any_local: LocalService) -> None:
    routes = [f"{route.method} {route.path}" for route in any_local.instance.pipeline.table]
    http = [route for route in routes if not route.startswith("WS ")]
    assert [route for route in http if f"\n## {route}\n" not in API or f"`{route}`" not in API] == []


async def test_every_websocket_route_is_documented(any_local: LocalService) -> None:
    table = any_local.instance.pipeline.table
    streams = [f"{route.method} {route.path}" for route in table if isinstance(route, StreamRoute)]
    assert len(streams) == 3
    assert [route for route in streams if f"`{route}`" not in API] == []
    document = (await any_local.http.get("/asyncapi.json")).json()
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert addresses == {route.removeprefix("WS ") for route in streams}


async def test_every_documented_route_exists(any_local: LocalService) -> None:
    routes = {f"{route.method} {route.path}" for route in any_local.instance.pipeline.table}
    assert set(re.findall(r"^## ([A-Z]+ /.*)$", API, re.MULTILINE)) - routes == set()


def test_every_field_and_parameter_is_documented(any_client: Client) -> None:
    document = any_client.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    names = {name for schema in schemas.values() for name in schema.get("properties", ())}
    parameters = {p["name"] for item in document["paths"].values() for o in item.values() for p in o["parameters"]}
    assert [name for name in sorted(names | parameters) if not re.search(rf"\b{name}\b", API + ERRORS)] == []


def test_every_problem_is_documented_with_its_status() -> None:
    for problem in problems():
        slug, code = problem.slug, CODES[problem.slug]
        row = rf"^\| \d+ \| `{code}` \| \[`urn:tenure:{slug}`\]\(#{slug}\) \|"
        assert re.search(row, ERRORS, re.MULTILINE), row
        assert f"\n## {slug}\n" in ERRORS
        assert f"| {problem.status} | `{code}` |" in ERRORS


def test_every_documented_problem_exists() -> None:
    assert set(re.findall(r"urn:tenure:([a-z-]+)", ERRORS)) - set(CODES) == set()


@pytest.mark.parametrize("text", [API, ERRORS], ids=["api.md", "errors.md"])
def test_every_link_has_an_existing_target(text: str) -> None:
    pages = DOCS.glob("**/*.md")
    anchors = {str(path.relative_to(DOCS)): _anchors(path.read_text(encoding="utf-8")) for path in pages}
    anchors |= {"": _anchors(text)}
    wrong = [
        f"{file}#{anchor}"
        for file, anchor in re.findall(r"\]\(([a-z./-]*)#?([^)]*)\)", text)
        if file not in anchors or (anchor and anchor not in anchors[file])
    ]
    assert wrong == []


def _anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# The examples.


class Example(NamedTuple):
    command: str
    status: int
    headers: Json
    body: Any


def examples(text: str) -> list[Example]:
    return [_example(block) for block in re.findall(r"^```console\n\$ (.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def _example(block: str) -> Example:
    command, _, response = block.partition("\nHTTP/1.1 ")
    head, _, body = response.partition("\n\n")
    status, *headers = head.splitlines()
    named = dict(header.split(": ", 1) for header in headers)
    return Example(command, int(status.split()[0]), named, msgspec.json.decode(body) if body else None)


def test_documents_contain_examples() -> None:
    assert (len(examples(API)) >= 9, len(examples(ERRORS)) >= 4) == (True, True)


@pytest.mark.parametrize("text", [API, ERRORS], ids=["api.md", "errors.md"])
async def test_examples_return_documented_responses(any_local: LocalService, text: str) -> None:
    """Runs the examples in order. Ids and instants in the text are replaced by those of this run; the cursors in links
    are not compared.
    """
    known: dict[str, str] = {}
    for example in examples(text):
        response = await _run(any_local, _translated(example.command, known))
        assert response.status_code == example.status, f"{example.command}\n{response.text}"
        if example.body is not None:
            _learn(example.body, response.json(), known)
            expected = _translated(msgspec.json.encode(example.body).decode(), known)
            assert response.json() == msgspec.json.decode(expected), example.command
        for name, value in example.headers.items():
            assert _shape(response.headers[name]) == _shape(value), example.command


async def _run(local: LocalService, command: str) -> httpx.Response:
    words = iter(shlex.split(command.replace("\\\n", " "))[1:])
    method, headers, content, target = "GET", {}, None, ""
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            content = next(words)
        elif word == "-I":
            method = "HEAD"
        elif word != "-i":
            target = word.removeprefix(ADDRESS)
    return await local.http.request(method, target, headers=headers, content=content)


VARYING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
    r"|\b[0-9a-f]{12}-[0-9a-f]{1,8}\b"
)


def _learn(documented: Any, actual: Any, known: dict[str, str]) -> None:
    """Maps each documented value that differs in every run (an id, an instant or a request id) to the actual value, in
    `known`.
    """
    if isinstance(documented, dict) and isinstance(actual, dict):
        for name, value in documented.items():
            _learn(value, actual.get(name), known)
    elif isinstance(documented, list) and isinstance(actual, list):
        for one, other in zip(documented, actual, strict=False):
            _learn(one, other, known)
    elif isinstance(documented, str) and isinstance(actual, str) and VARYING.fullmatch(documented):
        known.setdefault(documented, actual)


def _translated(text: str, known: dict[str, str]) -> str:
    return VARYING.sub(lambda found: known.get(found.group(), found.group()), text)


def _shape(header: str) -> str:
    return re.sub(r"cursor=[\w-]+", "cursor=…", VARYING.sub("…", header))
