"""Routes: their paths, their methods, and equivalent spellings of a path."""

from urllib.parse import urlsplit

import pytest

from tests.http.client import Client, connected, open_body, request
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
    "/console": {"GET"},
    "/console/sessions": {"GET"},
}
METHODS = {"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"}


@pytest.mark.parametrize("path", ADDRESSES)
def test_unsupported_method_returns_405_with_allow_header(any_client: Client, path: str) -> None:
    supported = ADDRESSES[path]
    for method in sorted(METHODS - supported):
        response = any_client.http.request(method, path)
        assert (response.status_code, response.json()["code"]) == (405, "METHOD_NOT_ALLOWED"), method
        assert set(response.headers["Allow"].split(", ")) - {"HEAD"} == supported, method


@pytest.mark.parametrize(
    "path", ["/sessions", "/leases", "/jobs", "/health", "/healthz", "/readyz", "/openapi.json", "/docs"]
)
def test_head_returns_get_status_and_content_type_without_body(any_client: Client, path: str) -> None:
    head, get = any_client.http.head(path), any_client.http.get(path)
    assert (head.status_code, head.headers["Content-Type"], head.content) == (
        get.status_code,
        get.headers["Content-Type"],
        b"",
    )


UNKNOWN_PATHS = [
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
]


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_unknown_path_returns_404(any_client: Client, method: str) -> None:
    for path in UNKNOWN_PATHS:
        response = any_client.http.request(method, any_client.http.base_url.copy_with(raw_path=path.encode()))
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), path


def test_routes_are_available_under_v1(any_client: Client) -> None:
    for path in ("/sessions", "/sessions/metrics", "/leases", "/jobs", "/jobs/prune/runs", "/health"):
        assert any_client.http.get(f"/v1{path}").status_code == 200, path


@pytest.mark.parametrize(
    "target",
    ["/%73essions", "/sessi%6Fns", "/v1/%73essions", "http://localhost:80/sessions", "/sessions?", "/sessions#x"],
)
def test_equivalent_request_target_reaches_same_route(any_service: RunningInstance, target: str) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(open_body(), path=target))
        assert connection.read().status == 201


def test_percent_encoded_session_id_is_decoded(any_client: Client) -> None:
    session_id = any_client.open()["sessionId"]
    assert any_client.get(f"%{ord(session_id[0]):02x}{session_id[1:]}").json()["sessionId"] == session_id


def test_location_header_is_a_relative_path(any_client: Client) -> None:
    location = urlsplit(any_client.put(open_body()).headers["Location"])
    assert (location.scheme, location.netloc, location.path.rpartition("/")[0]) == ("", "", "/sessions")


def test_response_has_no_server_date_or_powered_by_header(any_client: Client) -> None:
    assert {"Server", "Date", "X-Powered-By"}.isdisjoint(any_client.http.get("/healthz").headers)
