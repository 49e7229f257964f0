"""`--prefix /api/v3`: every route is below the prefix, except the probes and `/metrics`."""

from collections.abc import Iterator

import pytest

from tests.http.client import Client, open_body
from tests.http.test_documents import listed_routes
from tests.support.instances import RunningInstance, kill_all

PREFIX = "/api/v3"
BELOW_PREFIX = [
    "/sessions",
    "/sessions/metrics",
    "/leases",
    "/jobs",
    "/jobs/prune/runs",
    "/submissions",
    "/health",
    "/openapi.json",
    "/docs",
    "/console",
]
PROBES = ["/healthz", "/readyz"]


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("prefix")
    instance = RunningInstance(f"sqlite:///{folder / 'tenure.db'}", folder, "--prefix", PREFIX)
    try:
        client = Client(instance.wait_until_ready().address, PREFIX)
        yield client
        client.http.close()
    finally:
        kill_all([instance])


@pytest.mark.parametrize("version", ["", "/v1"])
def test_routes_are_available_only_below_prefix(prefixed: Client, version: str) -> None:
    for path in BELOW_PREFIX:
        assert prefixed.http.get(f"{PREFIX}{version}{path}").status_code == 200, path
        assert prefixed.http.get(f"{version}{path}").status_code == 404, path


def test_probes_are_available_only_at_root(prefixed: Client) -> None:
    for path in PROBES:
        assert prefixed.http.get(path).status_code == 200, path
        for below in (PREFIX, f"{PREFIX}/v1", "/v1"):
            assert prefixed.http.get(f"{below}{path}").status_code == 404, f"{below}{path}"


def test_unknown_path_returns_404(prefixed: Client) -> None:
    for path in (
        "/",
        PREFIX,
        f"{PREFIX}/",
        f"{PREFIX}sessions",
        f"{PREFIX}/v1",
        f"/v1{PREFIX}/sessions",
        f"{PREFIX}{PREFIX}/sessions",
    ):
        assert prefixed.http.get(path).status_code == 404, path


@pytest.mark.parametrize("version", ["", "/v1"])
def test_open_is_available_below_prefix(prefixed: Client, version: str) -> None:
    response = prefixed.http.put(f"{PREFIX}{version}/sessions", json=open_body())
    assert (response.status_code, response.json()["status"]) == (201, "created")


def test_open_outside_prefix_returns_404(prefixed: Client) -> None:
    assert prefixed.http.put("/sessions", json=open_body()).status_code == 404


def test_location_includes_prefix(prefixed: Client) -> None:
    response = prefixed.put(open_body())
    assert response.headers["Location"] == f"{PREFIX}/sessions/{response.json()['sessionId']}"
    assert prefixed.http.get(response.headers["Location"]).status_code == 200


def test_get_and_delete_are_available_below_prefix(prefixed: Client) -> None:
    session_id = prefixed.open()["sessionId"]
    assert (prefixed.get(session_id).status_code, prefixed.end(session_id).status_code) == (200, 200)


def test_next_link_includes_prefix(prefixed: Client) -> None:
    for _ in range(2):
        prefixed.open()
    link = prefixed.list(limit=1).links["next"]["url"]
    assert (link.partition("?")[0], prefixed.http.get(link).status_code) == (f"{PREFIX}/sessions", 200)


def test_openapi_server_url_is_prefix(prefixed: Client) -> None:
    assert prefixed.http.get(f"{PREFIX}/openapi.json").json()["servers"] == [{"url": PREFIX}]


def test_openapi_probes_and_metrics_have_root_server(prefixed: Client) -> None:
    document = prefixed.http.get(f"{PREFIX}/openapi.json").json()
    assert {path for path, item in document["paths"].items() if item.get("servers") == [{"url": "/"}]} == {
        *PROBES,
        "/metrics",
    }


def test_openapi_lists_same_routes_with_prefix(prefixed: Client, any_client: Client) -> None:
    below = prefixed.http.get(f"{PREFIX}/openapi.json").json()
    assert listed_routes(below) == listed_routes(any_client.http.get("/openapi.json").json())


def test_unsupported_method_below_prefix_returns_405(prefixed: Client) -> None:
    response = prefixed.http.post(f"{PREFIX}/sessions")
    assert (response.status_code, set(response.headers["Allow"].split(", ")) - {"HEAD"}) == (405, {"GET", "PUT"})
