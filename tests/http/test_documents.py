"""`/openapi.json` and `/docs`."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tenure.http.routing import Route
from tests.http.client import Client, Json, wish
from tests.http.local import LocalService
from tests.http.test_opening import OPEN_KEYS, SESSION_KEYS

METHODS = {"get", "put", "post", "patch", "delete"}


@pytest.fixture(scope="module")
def document(any_client: Client) -> Json:
    answer = any_client.http.get("/openapi.json")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    return answer.json()  # type: ignore[no-any-return]


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            yield method.upper(), path, item[method]


def listed_routes(document: Json) -> set[tuple[str, str]]:
    return {(method, path) for method, path, _ in operations(document)}


def values(tree: Any, key: str) -> Iterator[Any]:
    """Every value that stands under `key`, however deep."""
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


def test_is_openapi_3_1(document: Json) -> None:
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"])
    assert set(document) >= {"openapi", "info", "paths", "components"}


def test_names_the_api_and_its_version(document: Json, any_client: Client) -> None:
    version = any_client.http.get("/health").json()["version"]
    assert (document["info"]["title"], document["info"]["version"]) == ("Tenure", version)


def test_its_server_is_this_one(document: Json) -> None:
    assert document["servers"] == [{"url": "/"}]


def test_every_reference_leads_somewhere(document: Json) -> None:
    targets = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    references = set(values(document, "$ref"))
    assert references, "without references there is nothing to check"
    assert references - targets == set()


def test_every_shape_is_used(document: Json) -> None:
    targets = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert targets - set(values(document, "$ref")) == set()


def test_answers_the_same_under_v1(document: Json, any_client: Client) -> None:
    assert any_client.http.get("/v1/openapi.json").json() == document


# The routes.


async def test_lists_every_route_once_and_without_its_version(document: Json, any_local: LocalService) -> None:
    routes: list[Route] = [route for route in any_local.instance.router.routes if route.listed]
    assert sorted((route.method, route.path) for route in routes) == sorted(listed_routes(document))
    assert [path for path in document["paths"] if path.startswith("/v1")] == []


def test_operation_ids_are_unique_and_plain(document: Json) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    assert [one for one in ids if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", one)] == []


def test_every_operation_has_a_summary_a_tag_and_a_good_answer(document: Json) -> None:
    lacking = [
        (method, path)
        for method, path, operation in operations(document)
        if not (operation["summary"] and operation["tags"] and {"200", "201", "202"} & set(operation["responses"]))
    ]
    assert lacking == []


def test_every_answer_has_a_description_and_every_good_one_a_shape(document: Json) -> None:
    answers = [
        (method, path, status, answer)
        for method, path, operation in operations(document)
        for status, answer in operation["responses"].items()
    ]
    assert [entry[:3] for entry in answers if not (entry[3]["description"] and entry[3].get("content"))] == []


def test_every_parameter_of_a_path_is_declared(document: Json) -> None:
    wrong = [
        (method, path)
        for method, path, operation in operations(document)
        if set(re.findall(r"{(\w+)}", path)) != {p["name"] for p in operation["parameters"] if p["in"] == "path"}
    ]
    assert wrong == []


def test_ids_in_paths_are_uuids_or_numbers_and_names_are_neither(document: Json) -> None:
    parameters = [p for *_, operation in operations(document) for p in operation["parameters"] if p["in"] == "path"]
    forms = {(p["name"], p["schema"]["type"], p["schema"].get("format")) for p in parameters}
    assert forms == {
        ("sessionId", "string", "uuid"),
        ("capacityId", "string", "uuid"),
        ("submissionId", "string", "uuid"),
        ("windowId", "integer", None),
        ("name", "string", None),
    }


def test_refusals_are_problems(document: Json) -> None:
    wrong = [
        (method, path, status)
        for method, path, operation in operations(document)
        for status, answer in operation["responses"].items()
        if status >= "400" and set(answer["content"]) != {"application/problem+json"}
    ]
    assert wrong == []


@pytest.mark.parametrize("status", ["200", "201", "400", "405", "409", "413", "415", "503"])
def test_opening_tells_every_answer_it_can_give(document: Json, status: str) -> None:
    assert status in document["paths"]["/sessions"]["put"]["responses"]


def test_a_status_that_stands_for_several_problems_tells_all_of_them(document: Json) -> None:
    refusal = document["paths"]["/submissions/{submissionId}/cancel"]["post"]["responses"]["409"]
    assert [slug for slug in ("already-delivered", "usage-not-cancellable") if slug not in refusal["description"]] == []


def test_retrying_cannot_be_refused_as_usage(document: Json) -> None:
    refusal = document["paths"]["/submissions/{submissionId}/retry"]["post"]["responses"]["409"]
    assert "usage-not-cancellable" not in refusal["description"]


def test_usage_is_described_as_a_number(document: Json) -> None:
    for name in ("UsageGroupAnswer", "ChunkAnswer"):
        assert schema(document, name)["properties"]["usage"]["type"] == "number", name


def test_opening_tells_of_the_location(document: Json) -> None:
    assert "Location" in document["paths"]["/sessions"]["put"]["responses"]["201"]["headers"]


def test_an_unavailable_service_tells_when_to_try_again(document: Json) -> None:
    wrong = [
        (method, path)
        for method, path, operation in operations(document)
        if "503" in operation["responses"] and "Retry-After" not in operation["responses"]["503"]["headers"]
    ]
    assert wrong == []


# The shapes.


@pytest.mark.parametrize(("name", "keys"), [("OpenAnswer", OPEN_KEYS), ("SessionAnswer", SESSION_KEYS)])
def test_an_answer_is_described_by_its_own_fields(document: Json, name: str, keys: set[str]) -> None:
    shape = schema(document, name)
    assert (set(shape["properties"]), set(shape["required"])) == (keys, keys)


def test_the_body_of_an_opening_is_described(document: Json) -> None:
    shape = schema(document, "OpenBody")
    assert set(shape["required"]) == set(wish())
    assert set(shape["properties"]) == set(wish()) | {"leaseSeconds", "idleSeconds"}
    assert shape["additionalProperties"] is False


def test_the_filters_of_a_list_are_described(document: Json) -> None:
    parameters = document["paths"]["/sessions"]["get"]["parameters"]
    names = {"tenant", "user", "capacity", "kind", "state", "active", "closeReason", "limit", "cursor"}
    assert {parameter["name"] for parameter in parameters} == names
    assert {parameter["required"] for parameter in parameters} == {False}


def test_the_filters_of_usage_are_described(document: Json) -> None:
    parameters = {each["name"]: each for each in document["paths"]["/usage"]["get"]["parameters"]}
    assert set(parameters) == {"from", "to", "tenant", "capacity", "user", "groupBy", "limit", "cursor"}
    assert {each["required"] for each in parameters.values()} == {False}


def test_a_problem_is_described(document: Json) -> None:
    shape = schema(document, "ProblemDetails")
    assert set(shape["required"]) == {"type", "title", "status", "detail", "error", "code"}


# The page.


@pytest.fixture(scope="module")
def page(any_client: Client) -> str:
    answer = any_client.http.get("/docs")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    return answer.text


def test_the_page_needs_no_other_host(page: str) -> None:
    assert re.findall(r"(?:https?:)?//[^\s\"'<>]+", page) == []


def test_the_page_loads_nothing_but_the_document(page: str) -> None:
    loaded = re.findall(r"(?:src|href)=[\"']([^\"']+)", page) + re.findall(r"fetch\([\"']([^\"']+)", page)
    assert set(loaded) == {"openapi.json"}
    assert "@import" not in page


def test_the_page_is_a_whole_one(page: str) -> None:
    assert page.lower().startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
