"""The routes of four documents: the OpenAPI 3.1 and AsyncAPI 3.0 documents, which are generated from the table of
routes; the page that shows the OpenAPI document; and the JavaScript client.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from tenure import __version__
from tenure.access.grants import PUBLIC
from tenure.domain.keys import PUBLIC_ID_LENGTH
from tenure.errors import (
    Forbidden,
    ForbiddenOrigin,
    MethodNotAllowed,
    Problem,
    RateLimited,
    TooManyFailures,
    Unauthenticated,
    Unavailable,
)
from tenure.http.answers import HTML, MEDIA_TYPE, Answer, Headers, ProblemDetails
from tenure.http.edge import EDGE_REFUSALS, SAFE_METHODS
from tenure.http.pipeline import Call, Route, StreamRoute, Table
from tenure.naming import Names

OPENAPI, ASYNCAPI = "/openapi.json", "/asyncapi.json"
REFERENCE = "#/components/schemas/{name}"
SCHEME = "apiKey"
SESSION_SCHEME = "sessionToken"
_SCHEMES = {
    SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": (
            "An API key, or a token of the configured OIDC issuer. "
            "Needed as soon as the first key exists or an issuer is configured."
        ),
    },
    SESSION_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "The session token of the session in the path, from `PUT /sessions` with `withToken`.",
    },
}
_HANDSHAKE_HEADERS = {
    "type": "object",
    "properties": {
        "Authorization": {"type": "string", "description": "`Bearer` and the credential."},
        "Sec-WebSocket-Protocol": {
            "type": "string",
            "description": (
                "For browsers, which cannot set other headers: `tenure, tenure.bearer.<credential>`. "
                "The server selects `tenure`, and never repeats the credential."
            ),
        },
    },
}
PAGE = Path(__file__).with_name("docs.html")
CLIENT_MODULE = Path(__file__).with_name("tenure.js")
"""A symbolic link to the JavaScript client in `clients/javascript`. The wheel contains the file itself."""
SCRIPT: Headers = ((b"content-type", b"text/javascript; charset=utf-8"), (b"cache-control", b"no-cache"))


class DocumentRoutes:
    def __init__(self, table: Table, prefix: str) -> None:
        routes = [route for route in table if isinstance(route, Route)]
        streams = [route for route in table if isinstance(route, StreamRoute)]
        self._documents = {OPENAPI: openapi_document(routes, prefix), ASYNCAPI: asyncapi_document(streams, prefix)}
        self._encoded: dict[tuple[str, Names], bytes] = {}
        self._page = PAGE.read_bytes()
        self._client_module = CLIENT_MODULE.read_bytes()

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path=path,
                handler=handler,
                grants=PUBLIC,
                tag="documents",
                summary=summary,
                answers={200: None},
                listed=False,
            )
            for path, handler, summary in (
                (OPENAPI, self.openapi, "OpenAPI document of the HTTP routes"),
                (ASYNCAPI, self.asyncapi, "AsyncAPI document of the WebSocket routes"),
                ("/docs", self.docs, "API reference (HTML)"),
                ("/client/tenure.js", self.client_module, "JavaScript client (ES module)"),
            )
        ]

    async def openapi(self, call: Call) -> Answer:
        return self._document(OPENAPI, call.names)

    async def asyncapi(self, call: Call) -> Answer:
        return self._document(ASYNCAPI, call.names)

    def _document(self, path: str, names: Names) -> Answer:
        if (path, names) not in self._encoded:
            self._encoded[path, names] = msgspec.json.encode(names.document(self._documents[path]))
        return Answer(self._encoded[path, names])

    async def docs(self, _call: Call) -> Answer:
        return Answer(self._page, headers=HTML)

    async def client_module(self, _call: Call) -> Answer:
        return Answer(self._client_module, headers=SCRIPT)


def asyncapi_document(routes: Sequence[StreamRoute], prefix: str) -> dict[str, Any]:
    """Return the AsyncAPI document, with one channel per WebSocket route. Both sides send text or binary messages; the
    server's messages about the session are JSON (see `docs/streams.md`).
    """
    shapes = [route.first_message for route in routes if route.first_message is not None]
    _, components = msgspec.json.schema_components(shapes, ref_template=REFERENCE)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Tenure", "version": __version__, "description": "Streams of sessions over WebSocket."},
        "channels": {_operation_id(route): _channel(route, prefix) for route in routes},
        "operations": {
            f"{action}_{name}": {
                "action": action,
                "channel": {"$ref": f"#/channels/{name}"},
                "summary": route.summary,
                "security": [{"$ref": f"#/components/securitySchemes/{scheme}"} for scheme in _schemes(route)],
            }
            for route in routes
            for name in (_operation_id(route),)
            for action in ("receive", "send")
        },
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def _schemes(route: Route | StreamRoute) -> Sequence[str]:
    """Return the security schemes of a route, any of which is enough; none for a public route."""
    if route.grants.public:
        return []
    return [SCHEME, SESSION_SCHEME] if route.grants.session_token else [SCHEME]


def _channel(route: StreamRoute, prefix: str) -> dict[str, Any]:
    first = route.first_message
    messages: dict[str, Any] = {"message": {"summary": "Any text or binary message. It is passed to the handler."}}
    if first is not None:
        schema = {"$ref": REFERENCE.format(name=first.__name__)}
        messages["open"] = {"summary": "The first message of the client.", "payload": schema}
    channel: dict[str, Any] = {
        "address": f"{prefix}{route.path}",
        "title": route.summary,
        "description": route.description,
        "messages": messages,
        "bindings": {"ws": {"method": "GET", "headers": _HANDSHAKE_HEADERS, **_handshake_query(route)}},
    }
    parameters: dict[str, Any] = {name: {} for name in re.findall(r"{(\w+)}", route.path)}
    return channel | ({"parameters": parameters} if parameters else {})


def _handshake_query(route: StreamRoute) -> dict[str, Any]:
    if route.query is None:
        return {}
    parameters = {each["name"]: each["schema"] for each in _parameters("query", route.query)}
    return {"query": {"type": "object", "properties": parameters}}


def openapi_document(routes: Sequence[Route], prefix: str) -> dict[str, Any]:
    listed = [route for route in routes if route.listed]
    shapes: set[type[msgspec.Struct]] = {ProblemDetails, *(shape for route in listed for shape in _shapes(route))}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    components = _components(tuple(ordered))
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        item = paths.setdefault(route.path, {})
        item[route.method.lower()] = _operation(route)
        if route.unprefixed and prefix:
            item["servers"] = [{"url": "/"}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": __version__,
            "description": "Opens, renews and ends sessions of users on capacities, and bills their usage.",
        },
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


@cache
def _components(shapes: Sequence[type[msgspec.Struct]]) -> Mapping[str, Any]:
    """The schemas of these struct types and their nested types. Cached: every app that a process builds needs them."""
    return msgspec.json.schema_components(shapes, ref_template=REFERENCE)[1]


def _shapes(route: Route) -> Iterable[type[msgspec.Struct]]:
    yield from (shape for shape in (route.body, *route.answers.values()) if shape is not None)


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": [
            *_path_parameters(route),
            *_parameters("query", route.query),
            *_parameters("header", route.headers),
        ],
        "responses": {**_answers(route), **_refusals(route)},
        "security": [{scheme: []} for scheme in _schemes(route)],
    }
    description = [route.description] if route.description else []
    if not route.grants.public and route.grants.all_tenants:
        description.append("This route refuses credentials that are bound to a tenant.")
    if description:
        operation["description"] = " ".join(description)
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": _content("application/json", route.body),
        }
    if route.raw_body is not None:
        binary = {"schema": {"type": "string", "format": "binary"}}
        content = {media_type.decode(): binary for media_type in route.raw_body.media_types}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _operation_id(route: Route | StreamRoute) -> str:
    return f"{route.method.lower()}{route.path.replace('/', '_').replace('-', '_').replace('{', '').replace('}', '')}"


def _content(media_type: str, shape: type[msgspec.Struct]) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": REFERENCE.format(name=shape.__name__)}}}


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for part in route.path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            yield {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}


def _path_schema(name: str) -> dict[str, Any]:
    if name == "windowId":
        return {"type": "integer", "minimum": 1}
    if name == "publicId":
        return {"type": "string", "pattern": f"^[0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}}$"}
    return {"type": "string", "format": "uuid"} if name.endswith("Id") else {"type": "string", "minLength": 1}


@cache
def _parameters(place: str, shape: type[msgspec.Struct] | None) -> Sequence[Mapping[str, Any]]:
    return [] if shape is None else [_parameter(place, field) for field in msgspec.structs.fields(shape)]


def _parameter(place: str, field: msgspec.structs.FieldInfo) -> Mapping[str, Any]:
    (schema,), components = msgspec.json.schema_components([field.type], ref_template=REFERENCE)
    schema = _without_null(_inlined(schema, components))
    return {"name": field.encode_name, "in": place, "required": field.required, "schema": schema}


def _inlined(schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return dict(components[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return schema | {"anyOf": [_inlined(inner, components) for inner in schema["anyOf"]]}
    return schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the schema of a parameter: a query omits a parameter instead of setting it to null."""
    choices: list[dict[str, Any]] = [inner for inner in schema.get("anyOf", ()) if inner != {"type": "null"}]
    if len(choices) == 1:
        return choices[0]
    if isinstance(schema.get("enum"), list):
        return schema | {"enum": [value for value in schema["enum"] if value is not None]}
    return schema


def _answers(route: Route) -> dict[str, Any]:
    return {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": _content("application/json", shape) if shape else {"text/plain": {"schema": {"type": "string"}}},
            **({"headers": {"Location": _header("URL of the session.")}} if _opens(route, status) else {}),
        }
        for status, shape in route.answers.items()
    }


def _opens(route: Route, status: int) -> bool:
    return status == HTTPStatus.CREATED and route.path == "/sessions"


def _refusals(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[type[Problem]]] = {}
    for problem in _problems(route):
        by_status.setdefault(problem.status, []).append(problem)
    return {str(status): _refusal(problems) for status, problems in by_status.items()}


def _refusal(problems: Sequence[type[Problem]]) -> dict[str, Any]:
    """Describe all problems that share a status in one OpenAPI response."""
    has_retry_after = any(problem.retry_after_seconds for problem in problems)
    return {
        "description": " ".join(f"{problem.title} (`{problem.slug}`)." for problem in problems),
        "content": _content(MEDIA_TYPE, ProblemDetails),
        **({"headers": {"Retry-After": _header("Seconds to wait before a retry.")}} if has_retry_after else {}),
    }


def _problems(route: Route) -> Sequence[type[Problem]]:
    foreign = [] if route.method in SAFE_METHODS else [ForbiddenOrigin]
    access = [] if route.grants.public else [Unauthenticated, Forbidden, RateLimited, TooManyFailures, Unavailable]
    return [*dict.fromkeys([*route.refusals, *access, MethodNotAllowed, *foreign, *EDGE_REFUSALS])]


def _header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}
