"""Which addresses there are, which methods they take, and how an address may be written."""

from urllib.parse import urlsplit

import pytest

from tests.http.client import Client, connected, request, wish
from tests.support.instances import RunningInstance

ADDRESSES = {
    "/sessions": {"GET", "PUT"},
    "/sessions/metrics": {"GET"},
    "/sessions/01890000-0000-7000-8000-000000000000": {"GET", "DELETE"},
    "/leases": {"GET"},
    "/jobs": {"GET"},
    "/jobs/prune/runs": {"GET"},
    "/health": {"GET"},
    "/healthz": {"GET"},
    "/readyz": {"GET"},
    "/openapi.json": {"GET"},
    "/docs": {"GET"},
}
METHODS = {"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"}


@pytest.mark.parametrize(
    ("path", "method"),
    [(path, method) for path, taken in ADDRESSES.items() for method in sorted(METHODS - taken)],
)
def test_a_method_that_an_address_does_not_take_is_refused(any_client: Client, path: str, method: str) -> None:
    answer = any_client.http.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize("path", ADDRESSES)
def test_a_refused_method_is_told_which_ones_are_taken(any_client: Client, path: str) -> None:
    allow = any_client.http.post(path).headers["Allow"].split(", ")
    assert set(allow) - {"HEAD"} == ADDRESSES[path]


@pytest.mark.parametrize(
    "path", ["/sessions", "/leases", "/jobs", "/health", "/healthz", "/readyz", "/openapi.json", "/docs"]
)
def test_head_is_get_without_the_body(any_client: Client, path: str) -> None:
    head, get = any_client.http.head(path), any_client.http.get(path)
    assert (head.status_code, head.headers["Content-Type"], head.content) == (
        get.status_code,
        get.headers["Content-Type"],
        b"",
    )


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nothing",
        "/Sessions",
        "/SESSIONS",
        "/session",
        "/sessionsx",
        "/sessions/",
        "//sessions",
        "/sessions//",
        "/sessions/metrics/",
        "/sessions/a/b",
        "/sessions;x",
        "/healthz/",
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/v1/sessions",
        "/v1/sessions/",
        "/v2/sessions",
        "/V1/sessions",
        "/v1sessions",
        "/favicon.ico",
        "/sessions/%2F",
        "/sessions%2Fmetrics%2Fx",
        "/%00",
        "/%FF",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_there_is_nothing_elsewhere(any_client: Client, method: str, path: str) -> None:
    answer = any_client.http.request(method, any_client.http.base_url.copy_with(raw_path=path.encode()))
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/sessions", "/sessions/metrics", "/leases", "/jobs", "/jobs/prune/runs", "/health"])
def test_the_same_routes_answer_under_v1(any_client: Client, path: str) -> None:
    assert any_client.http.get(f"/v1{path}").status_code == 200


@pytest.mark.parametrize(
    "target",
    ["/%73essions", "/sessi%6Fns", "/v1/%73essions", "http://elsewhere.example/sessions", "/sessions?", "/sessions#x"],
)
def test_an_address_may_be_written_in_other_ways(any_service: RunningInstance, target: str) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(wish(), path=target))
        assert connection.read().status == 201


def test_a_percent_encoded_id_is_the_same_id(any_client: Client) -> None:
    session_id = any_client.open()["sessionId"]
    assert any_client.get(f"%{ord(session_id[0]):02x}{session_id[1:]}").json()["sessionId"] == session_id


def test_location_is_a_path_below_the_same_host(any_client: Client) -> None:
    location = urlsplit(any_client.put(wish()).headers["Location"])
    assert (location.scheme, location.netloc, location.path.rpartition("/")[0]) == ("", "", "/sessions")


@pytest.mark.parametrize("header", ["Server", "Date", "X-Powered-By"])
def test_answers_do_not_tell_what_runs_here(any_client: Client, header: str) -> None:
    assert header not in any_client.http.get("/healthz").headers
