"""The page "Routes and schemas" of the site, made from the OpenAPI document, which is made from the table of routes."""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from tenure.app import Instance
from tenure.config import Config
from tenure.http.pipeline import Route
from tenure.http.routes.documents import openapi_document
from tenure.telemetry.events import Telemetry

FIRST_ERROR = 400
ANYWHERE = {"401", "405", "408", "414", "421", "431"}
HEAD = """# Routes and schemas

This page is made from the table of routes when the site is built. [The HTTP API](api.md) explains the routes, with
examples, and [Errors](errors.md) explains the problems. A running instance serves the same information as OpenAPI 3.1
at `/openapi.json`.

Besides the statuses below, every route can answer 401 (unless it needs no credential), 405, 408, 414, 421 and 431. A
parameter or field with `?` may be absent. Values of type `uuid` and `date-time` are JSON strings.
"""


def page() -> str:
    return document(asyncio.run(openapi()))


async def openapi() -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(Config(database=f"sqlite:///{folder}/tenure.db"), Telemetry())
        return openapi_document([route for route in instance.pipeline.table if isinstance(route, Route)], "")


def document(api: Mapping[str, Any]) -> str:
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]
    routes = "\n".join("\n".join(_operation(name, operation)) for name, operation in operations)
    schemas = "\n".join(
        "\n".join(_schema(name, schema)) for name, schema in sorted(api["components"]["schemas"].items())
    )
    return f"{HEAD}\n## Routes\n\n{routes}\n## Schemas\n\n{schemas}".rstrip() + "\n"


def _operation(name: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{operation['summary']}. {operation.get('description', '')}".rstrip() + "\n"
    if operation["parameters"]:
        yield "| parameter | in | type |\n|---|---|---|"
        for each in operation["parameters"]:
            yield f"| `{each['name']}`{'' if each['required'] else '?'} | {each['in']} | {_type(each['schema'])} |"
        yield ""
    if body := operation.get("requestBody"):
        kinds = " or ".join(f"`{media}` {_type(content['schema'])}" for media, content in body["content"].items())
        yield f"Body{'' if body.get('required') else ', optional'}: {kinds}\n"
    yield "| status | answer |\n|---|---|"
    for status, answer in sorted(operation["responses"].items()):
        if status not in ANYWHERE:
            yield f"| {status} | {_answer(int(status), answer)} |"
    yield ""


def _answer(status: int, answer: Mapping[str, Any]) -> str:
    if status >= FIRST_ERROR:
        return str(answer["description"])
    contents = [f"`{media}` {_type(each['schema'])}" for media, each in answer.get("content", {}).items()]
    headers = [f"header `{name}`" for name in answer.get("headers", {})]
    return ", ".join([*contents, *headers]) or str(answer["description"])


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if "properties" not in schema:
        yield f"{_type(schema)}\n"
        return
    required = schema.get("required", ())
    yield "| field | type |\n|---|---|"
    for field, inner in schema["properties"].items():
        yield f"| `{field}`{'' if field in required else '?'} | {_type(inner)} |"
    yield ""


def _type(schema: Mapping[str, Any]) -> str:
    """The type of a value in words, with a link if its schema has a section of its own."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(each) for each in choices)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(inner := schema.get("additionalProperties"), Mapping):
        return f"object of {_type(inner)}"
    named = schema.get("format") or schema.get("type", "any JSON value")
    kind = ", ".join(named) if isinstance(named, list) else str(named)
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([kind, *bounds])
