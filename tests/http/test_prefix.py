"""`--prefix /api/v3`: everything moves but the probes."""

from collections.abc import Iterator

import pytest

from tests.http.client import Client, wish
from tests.http.test_documents import listed_routes
from tests.support.instances import RunningInstance

PREFIX = "/api/v3"
MOVES = [
    "/sessions",
    "/sessions/metrics",
    "/leases",
    "/jobs",
    "/jobs/prune/runs",
    "/submissions",
    "/health",
    "/openapi.json",
    "/docs",
]
STAYS = ["/healthz", "/readyz"]


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("prefix")
    instance = RunningInstance(f"sqlite:///{folder / 'tenure.db'}", folder, "--prefix", PREFIX)
    try:
        client = Client(instance.wait_until_ready().address, PREFIX)
        yield client
        client.http.close()
    finally:
        instance.stop()


@pytest.mark.parametrize("version", ["", "/v1"])
@pytest.mark.parametrize("path", MOVES)
def test_answers_below_the_prefix(prefixed: Client, path: str, version: str) -> None:
    assert prefixed.http.get(f"{PREFIX}{version}{path}").status_code == 200


@pytest.mark.parametrize("version", ["", "/v1"])
@pytest.mark.parametrize("path", MOVES)
def test_does_not_answer_beside_it(prefixed: Client, path: str, version: str) -> None:
    assert prefixed.http.get(f"{version}{path}").status_code == 404


@pytest.mark.parametrize("path", STAYS)
def test_probes_stay_where_they_are(prefixed: Client, path: str) -> None:
    assert prefixed.http.get(path).status_code == 200


@pytest.mark.parametrize("below", [PREFIX, f"{PREFIX}/v1", "/v1"])
@pytest.mark.parametrize("path", STAYS)
def test_probes_answer_nowhere_else(prefixed: Client, path: str, below: str) -> None:
    assert prefixed.http.get(f"{below}{path}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/",
        PREFIX,
        f"{PREFIX}/",
        f"{PREFIX}sessions",
        f"{PREFIX}/v1",
        f"/v1{PREFIX}/sessions",
        f"{PREFIX}{PREFIX}/sessions",
    ],
)
def test_there_is_nothing_elsewhere(prefixed: Client, path: str) -> None:
    assert prefixed.http.get(path).status_code == 404


@pytest.mark.parametrize("version", ["", "/v1"])
def test_opens_below_the_prefix(prefixed: Client, version: str) -> None:
    answer = prefixed.http.put(f"{PREFIX}{version}/sessions", json=wish())
    assert (answer.status_code, answer.json()["status"]) == (201, "created")


def test_a_prefix_does_not_open_beside_it(prefixed: Client) -> None:
    assert prefixed.http.put("/sessions", json=wish()).status_code == 404


def test_location_carries_the_prefix(prefixed: Client) -> None:
    answer = prefixed.put(wish())
    assert answer.headers["Location"] == f"{PREFIX}/sessions/{answer.json()['sessionId']}"
    assert prefixed.http.get(answer.headers["Location"]).status_code == 200


def test_reads_and_ends_below_the_prefix(prefixed: Client) -> None:
    session_id = prefixed.open()["sessionId"]
    assert (prefixed.get(session_id).status_code, prefixed.end(session_id).status_code) == (200, 200)


def test_the_link_carries_the_prefix(prefixed: Client) -> None:
    for _ in range(2):
        prefixed.open()
    link = prefixed.list(limit=1).links["next"]["url"]
    assert (link.partition("?")[0], prefixed.http.get(link).status_code) == (f"{PREFIX}/sessions", 200)


def test_the_document_names_the_prefix_as_its_server(prefixed: Client) -> None:
    assert prefixed.http.get(f"{PREFIX}/openapi.json").json()["servers"] == [{"url": PREFIX}]


def test_the_document_says_where_the_probes_are(prefixed: Client) -> None:
    document = prefixed.http.get(f"{PREFIX}/openapi.json").json()
    assert {path for path, item in document["paths"].items() if item.get("servers") == [{"url": "/"}]} == set(STAYS)


def test_the_document_lists_the_same_routes(prefixed: Client, any_client: Client) -> None:
    below = prefixed.http.get(f"{PREFIX}/openapi.json").json()
    assert listed_routes(below) == listed_routes(any_client.http.get("/openapi.json").json())


def test_a_method_that_is_not_taken_is_refused_below_the_prefix(prefixed: Client) -> None:
    answer = prefixed.http.post(f"{PREFIX}/sessions")
    assert (answer.status_code, set(answer.headers["Allow"].split(", ")) - {"HEAD"}) == (405, {"GET", "PUT"})
