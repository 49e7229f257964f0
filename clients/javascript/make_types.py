"""Writes the types and error codes of the service into `tenure.js`, between two comments. A test fails if the types or
codes in `tenure.js` are out of date.

python clients/javascript/make_types.py
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tenure.app import Instance
from tenure.config import Config
from tenure.errors import Problem
from tenure.http.pipeline import Route
from tenure.http.routes.documents import openapi_document
from tenure.telemetry.events import Telemetry

MODULE = Path(__file__).with_name("tenure.js")
BEGIN = "// Types and error codes, written by make_types.py: begin.\n"
END = "// Types and error codes: end.\n"
SIMPLE = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def with_types(module: str, types: str) -> str:
    """Return the text of the module with the section between the two comments replaced."""
    before, _, rest = module.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{types}{END}{after}"


def types_of(schemas: Mapping[str, Any]) -> str:
    codes = sorted({Problem.code.fget(problem) for problem in problems()})  # type: ignore[attr-defined]
    names = "".join(f'  "{code}",\n' for code in codes)
    typedefs = "\n".join(_typedef(name, schemas[name]) for name in sorted(schemas))
    return (
        f"\n/** Every `code` of a problem. */\nexport const ERROR_CODES = Object.freeze([\n{names}]);\n\n{typedefs}\n"
    )


def problems(base: type[Problem] = Problem) -> Iterator[type[Problem]]:
    for problem in base.__subclasses__():
        yield problem
        yield from problems(problem)


def _typedef(name: str, schema: Mapping[str, Any]) -> str:
    if "properties" not in schema:
        return f"/** @typedef {{{_type(schema)}}} {name} */\n"
    required = set(schema.get("required", ()))
    lines = [f"/**\n * @typedef {{object}} {name}"]
    for field, inner in schema["properties"].items():
        lines.append(f" * @property {{{_type(inner)}}} {field if field in required else f'[{field}]'}")
    return "\n".join([*lines, " */\n"])


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        return f"({_type(schema['items'])})[]" if "items" in schema else "unknown[]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {_type(values) if isinstance(values, dict) else 'unknown'}>"
    return SIMPLE.get(str(kind), "unknown")


async def schemas_of_service() -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(Config(database=f"sqlite:///{folder}/tenure.db"), Telemetry())
        routes = [route for route in instance.pipeline.table if isinstance(route, Route)]
        schemas: Mapping[str, Any] = openapi_document(routes, "")["components"]["schemas"]
        return schemas


def main() -> None:
    types = types_of(asyncio.run(schemas_of_service()))
    MODULE.write_text(with_types(MODULE.read_text(encoding="utf-8"), types), encoding="utf-8")


if __name__ == "__main__":
    main()
