"""The client has every route, field, parameter and error code of the service."""

import inspect
import re
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import httpx2
import msgspec
import pytest
from conftest import Kind, Service

import tenure.errors
from tenure_client import errors, models
from tenure_client._messages import STATUSES
from tenure_client._routes import ROUTES

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document(service: Service) -> Json:
    return _read(f"{service.url}/openapi.json")


def _read(url: str) -> Json:
    with urllib.request.urlopen(url) as answer:
        return msgspec.json.decode(answer.read())


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in ("get", "put", "post", "patch", "delete"):
                yield method.upper(), path, operation


BY_ADDRESS = {(route.method, route.path): route for route in ROUTES.values()}


def test_client_has_every_route(document: Json) -> None:
    served = {(method, path) for method, path, _ in operations(document)}
    assert served - set(BY_ADDRESS) == set(), "routes of the service that the client lacks"
    assert set(BY_ADDRESS) - served == set(), "routes that the service no longer has"


def test_client_has_every_stream(service: Service) -> None:
    channels = _read(f"{service.url}/asyncapi.json")["channels"].values()
    # The client opens these streams with `client.stream`, `sessions.stream` and `client.transcribe_stream`.
    assert {channel["address"] for channel in channels} == {
        "/sessions/stream",
        "/sessions/{sessionId}/stream",
        "/transcribe/stream",
    }


def test_models_have_every_field_of_every_answer(document: Json) -> None:
    missing: list[str] = []
    for method, path, operation in operations(document):
        for status, response in operation["responses"].items():
            if status < "300":
                schema = next(iter(response["content"].values()))["schema"]
                missing += _missing(document, schema, BY_ADDRESS[method, path].answer, f"{method} {path}")
    assert missing == []


def test_requests_have_every_field_and_parameter(document: Json) -> None:
    missing: list[str] = []
    for method, path, operation in operations(document):
        route = BY_ADDRESS[method, path]
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            missing += _missing(document, body["schema"], route.body, f"{method} {path}")
        parameters = {one["name"] for one in operation["parameters"] if one["in"] == "query"}
        known = set() if route.query is None else set(route.query.__struct_encode_fields__)
        missing += [f"{method} {path}?{name}" for name in sorted(parameters - known)]
    assert missing == []


def _missing(document: Json, schema: Json, model: Any, where: str) -> Iterator[str]:
    """Yield the properties of the schema, at any depth, that the model lacks."""
    for inner in schema.get("anyOf", ()):
        yield from _missing(document, inner, model, where)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from _missing(document, document["components"]["schemas"][name], model, where)
    if schema.get("type") == "array":
        yield from _missing(document, schema["items"], model, where)
    if "properties" in schema:
        struct = _struct_in(model)
        fields = {} if struct is None else {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        for name, inner in schema["properties"].items():
            if name not in fields:
                yield f"{where}: {name}"
            else:
                yield from _missing(document, inner, fields[name], f"{where}: {name}")


def _struct_in(kind: Any) -> Any:
    """Return the struct in a type such as `list[Session]` or `StreamCounters | None`."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next(filter(None, map(_struct_in, getattr(kind, "__args__", ()))), None)


def test_problems_have_every_field(document: Json) -> None:
    known = {"type", "error"}  # `type` repeats the code, and `error` the detail.
    for name in document["components"]["schemas"]["ProblemDetails"]["properties"]:
        snake = re.sub(r"([A-Z])", r"_\1", name).lower()
        assert name in known or hasattr(errors.Problem("x", status=1), snake), name


def test_every_error_code_has_its_own_class() -> None:
    def problems(base: type[tenure.errors.Problem]) -> Iterator[type[tenure.errors.Problem]]:
        for kind in base.__subclasses__():
            yield kind
            yield from problems(kind)

    for kind in problems(tenure.errors.Problem):
        code = kind.slug.replace("-", "_").upper()
        mine = errors.BY_CODE.get(code)
        assert mine is not None, f"{code} has no class"
        assert code in (errors.__doc__ or "") or mine.__name__ in (errors.__doc__ or "")
        assert reduce(lambda found, base: found or base.of_status, mine.__mro__[:-4], None) == kind.status, code
        if kind.status < 500:
            assert STATUSES.get(code, kind.status) == kind.status


ARGUMENTS: Json = {
    "user": "00000000-0000-0000-0000-000000000001",
    "tenant": "00000000-0000-0000-0000-000000000002",
    "capacity": "00000000-0000-0000-0000-000000000003",
    "capacity_id": "00000000-0000-0000-0000-000000000003",
    "session_id": "00000000-0000-0000-0000-000000000004",
    "session_ids": ["00000000-0000-0000-0000-000000000004"],
    "submission_id": "00000000-0000-0000-0000-000000000005",
    "kind": 1,
    "wav": b"RIFF",
    "gateway": "billing",
    "payload": {},
    "window_id": 7,
    "from_": datetime(2026, 1, 1, tzinfo=UTC),
    "name": "a name/with ?",
    "role": "client",
    "public_id": "abc",
    "credential": "tnr_x",
}


def test_every_route_has_a_method_that_calls_it(kind: Kind) -> None:
    sent: list[tuple[str, str]] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        sent.append((request.method, request.url.raw_path.decode().partition("?")[0]))
        return httpx2.Response(404, json={"code": "NOT_FOUND", "detail": "x"})

    with kind.entered(kind.client("http://127.0.0.1:1", transport=httpx2.MockTransport(refuse))) as client:
        for name, route in ROUTES.items():
            method = reduce(getattr, name.split("."), client)
            needed = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
            arguments = {parameter.name: ARGUMENTS[parameter.name] for parameter in needed}
            with pytest.raises(errors.NotFound):
                _call(kind, method, arguments)
            template = re.sub(r"{\w+}", "[^/]+", route.path)
            assert sent[-1][0] == route.method
            assert re.fullmatch(template, sent[-1][1]), name


def _call(kind: Kind, method: Any, arguments: Json) -> None:
    called = method(**arguments)
    kind.run(called.first() if hasattr(called, "first") else called)


def test_unknown_fields_are_ignored_and_unknown_responses_raise_tenure_errors(kind: Kind) -> None:
    answers = iter(
        [
            httpx2.Response(200, json={"status": "ok", "version": "9", "activeSessions": 1, "new": {"field": 1}}),
            httpx2.Response(409, json={"code": "NEW_CODE", "detail": "x", "new": 1}),
            httpx2.Response(418, json={"code": "TEAPOT", "detail": "x"}),
            httpx2.Response(404, text="<html>a proxy's page</html>"),
            httpx2.Response(200, text="<html>a captive portal</html>"),
        ]
    )
    transport = httpx2.MockTransport(lambda _request: next(answers))
    with kind.entered(kind.client("http://127.0.0.1:1", transport=transport)) as client:
        assert kind.run(client.health()) == models.Health(status="ok", version="9", active_sessions=1)
        for expected in (errors.Conflict, errors.Problem, errors.UnexpectedAnswer, errors.UnexpectedAnswer):
            with pytest.raises(errors.TenureError) as raised:
                kind.run(client.health())
            assert type(raised.value) is expected
