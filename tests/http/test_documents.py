"""`/openapi.json`, `/docs`, and the credentials in `/asyncapi.json`."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tenure.http.pipeline import Route
from tests.http.client import Client, Json, open_body
from tests.http.local import LocalService
from tests.http.test_opening import OPEN_KEYS, SESSION_KEYS

METHODS = {"get", "put", "post", "patch", "delete"}


@pytest.fixture(scope="module")
def document(any_client: Client) -> Json:
    response = any_client.http.get("/openapi.json")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    return response.json()  # type: ignore[no-any-return]


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            yield method.upper(), path, item[method]


def listed_routes(document: Json) -> set[tuple[str, str]]:
    return {(method, path) for method, path, _ in operations(document)}


def values(tree: Any, key: str) -> Iterator[Any]:
    """Every value of `key`, at any depth."""
    if isinstance(tree, dict):
        for name, inner in tree.items():
            if name == key:
                yield inner
            yield from values(inner, key)
    elif isinstance(tree, list):
        for inner in tree:
            yield from values(inner, key)


def schema(document: Json, name: str) -> Json:
    return document["components"]["schemas"][name]  # type: ignore[no-any-return]


# The document as a whole.


def test_document_is_openapi_3_1(document: Json) -> None:
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"])
    assert set(document) >= {"openapi", "info", "paths", "components"}


def test_info_contains_title_and_version(document: Json, any_client: Client) -> None:
    version = any_client.http.get("/health").json()["version"]
    assert (document["info"]["title"], document["info"]["version"]) == ("Tenure", version)


def test_server_url_is_root(document: Json) -> None:
    assert document["servers"] == [{"url": "/"}]


def test_every_ref_resolves(document: Json) -> None:
    targets = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    references = set(values(document, "$ref"))
    assert references, "the document has no references to check"
    assert references - targets == set()


def test_every_schema_is_referenced(document: Json) -> None:
    targets = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert targets - set(values(document, "$ref")) == set()


def test_document_is_identical_under_v1(document: Json, any_client: Client) -> None:
    assert any_client.http.get("/v1/openapi.json").json() == document


# The routes.


async def test_paths_list_every_route_once_without_version(document: Json, any_local: LocalService) -> None:
    table = any_local.instance.pipeline.table
    routes = [route for route in table if isinstance(route, Route) and route.listed]
    assert sorted((route.method, route.path) for route in routes) == sorted(listed_routes(document))
    assert [path for path in document["paths"] if path.startswith("/v1")] == []


def test_operation_ids_are_unique_identifiers(document: Json) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    assert [one for one in ids if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", one)] == []


def test_every_operation_has_summary_tag_and_success_response(document: Json) -> None:
    lacking = [
        (method, path)
        for method, path, operation in operations(document)
        if not (operation["summary"] and operation["tags"] and {"200", "201", "202"} & set(operation["responses"]))
    ]
    assert lacking == []


def test_every_response_has_description_and_content(document: Json) -> None:
    responses = [
        (method, path, status, response)
        for method, path, operation in operations(document)
        for status, response in operation["responses"].items()
    ]
    assert [entry[:3] for entry in responses if not (entry[3]["description"] and entry[3].get("content"))] == []


def test_every_path_parameter_is_declared(document: Json) -> None:
    wrong = [
        (method, path)
        for method, path, operation in operations(document)
        if set(re.findall(r"{(\w+)}", path)) != {p["name"] for p in operation["parameters"] if p["in"] == "path"}
    ]
    assert wrong == []


def test_path_parameters_have_expected_types(document: Json) -> None:
    parameters = [p for *_, operation in operations(document) for p in operation["parameters"] if p["in"] == "path"]
    forms = {(p["name"], p["schema"]["type"], p["schema"].get("format")) for p in parameters}
    assert forms == {
        ("sessionId", "string", "uuid"),
        ("capacityId", "string", "uuid"),
        ("submissionId", "string", "uuid"),
        ("windowId", "integer", None),
        ("name", "string", None),
        ("publicId", "string", None),
    }


def test_every_route_but_public_ones_requires_a_credential(document: Json) -> None:
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    public = {path for _, path, operation in operations(document) if operation["security"] == []}
    assert public == {"/healthz", "/readyz", "/sign-in", "/sign-out"}
    for method, path, operation in operations(document):
        # The sign-in checks the credential in its body, so it can answer 401 and 403.
        refuses = path not in public or (method.upper(), path) == ("POST", "/sign-in")
        assert ({"401", "403"} <= set(operation["responses"])) == refuses, path


def test_routes_of_one_session_accept_its_token(document: Json) -> None:
    accepting = {
        (method.upper(), path)
        for method, path, operation in operations(document)
        if {"sessionToken": []} in operation["security"]
    }
    session = "/sessions/{sessionId}"
    assert accepting == {("GET", session), ("DELETE", session), ("POST", f"{session}/heartbeat")}


async def test_streams_document_their_credentials(any_local: LocalService) -> None:
    document = (await any_local.http.get("/asyncapi.json")).json()
    for channel in document["channels"].values():
        headers = channel["bindings"]["ws"]["headers"]["properties"]
        assert headers.keys() == {"Authorization", "Sec-WebSocket-Protocol"}
        assert "tenure.bearer.<credential>" in headers["Sec-WebSocket-Protocol"]["description"]
    accepted = {name: len(operation["security"]) for name, operation in document["operations"].items()}
    assert {name for name, count in accepted.items() if count == 2} == {
        f"{action}_ws_sessions_sessionId_stream" for action in ("receive", "send")
    }


def test_error_responses_are_problem_json(document: Json) -> None:
    wrong = [
        (method, path, status)
        for method, path, operation in operations(document)
        for status, response in operation["responses"].items()
        if status >= "400" and set(response["content"]) != {"application/problem+json"}
    ]
    assert wrong == []


def test_open_operation_documents_its_main_statuses(document: Json) -> None:
    statuses = {"200", "201", "400", "405", "409", "413", "415", "503"}
    assert statuses <= set(document["paths"]["/sessions"]["put"]["responses"])


def test_response_description_lists_all_problems_of_its_status(document: Json) -> None:
    refusal = document["paths"]["/submissions/{submissionId}/cancel"]["post"]["responses"]["409"]
    assert [slug for slug in ("already-delivered", "usage-not-cancellable") if slug not in refusal["description"]] == []


def test_retry_operation_does_not_list_usage_not_cancellable(document: Json) -> None:
    refusal = document["paths"]["/submissions/{submissionId}/retry"]["post"]["responses"]["409"]
    assert "usage-not-cancellable" not in refusal["description"]


def test_usage_schema_type_is_number(document: Json) -> None:
    for name in ("UsageGroupAnswer", "ChunkAnswer"):
        assert schema(document, name)["properties"]["usage"]["type"] == "number", name


def test_open_operation_documents_location_header(document: Json) -> None:
    assert "Location" in document["paths"]["/sessions"]["put"]["responses"]["201"]["headers"]


def test_503_responses_document_retry_after(document: Json) -> None:
    wrong = [
        (method, path)
        for method, path, operation in operations(document)
        if "503" in operation["responses"] and "Retry-After" not in operation["responses"]["503"]["headers"]
    ]
    assert wrong == []


# The schemas.


def test_response_schemas_match_response_fields(document: Json) -> None:
    for name, keys, optional in (("OpenAnswer", OPEN_KEYS, {"sessionToken"}), ("SessionAnswer", SESSION_KEYS, set())):
        shape = schema(document, name)
        assert (set(shape["properties"]), set(shape["required"])) == (keys | optional, keys), name


def test_open_body_schema_matches_request_fields(document: Json) -> None:
    shape = schema(document, "OpenBody")
    assert set(shape["required"]) == set(open_body())
    assert set(shape["properties"]) == set(open_body()) | {"leaseSeconds", "idleSeconds", "withToken"}
    assert shape["additionalProperties"] is False


def test_session_list_filters_are_documented(document: Json) -> None:
    parameters = document["paths"]["/sessions"]["get"]["parameters"]
    names = {"tenant", "user", "capacity", "kind", "state", "active", "closeReason", "order", "limit", "cursor"}
    assert {parameter["name"] for parameter in parameters} == names
    assert {parameter["required"] for parameter in parameters} == {False}


def test_usage_filters_are_documented(document: Json) -> None:
    parameters = {each["name"]: each for each in document["paths"]["/usage"]["get"]["parameters"]}
    assert set(parameters) == {"from", "to", "tenant", "capacity", "user", "groupBy", "quick", "limit", "cursor"}
    assert {each["required"] for each in parameters.values()} == {False}


def test_problem_schema_requires_fields_of_every_problem(document: Json) -> None:
    shape = schema(document, "ProblemDetails")
    assert set(shape["required"]) == {"type", "title", "status", "detail", "error", "code"}


# The page.


@pytest.fixture(scope="module")
def page(any_client: Client) -> str:
    response = any_client.http.get("/docs")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    return response.text


def test_docs_page_refers_only_to_its_own_host(page: str) -> None:
    assert re.findall(r"(?:https?:)?//[^\s\"'<>]+", page) == []


def test_docs_page_loads_only_openapi_document(page: str) -> None:
    loaded = re.findall(r"(?:src|href)=[\"']([^\"']+)", page) + re.findall(r"fetch\([\"']([^\"']+)", page)
    assert set(loaded) == {"openapi.json"}
    assert "@import" not in page


def test_docs_page_is_complete_html(page: str) -> None:
    assert page.lower().startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
