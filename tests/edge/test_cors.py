"""Pages of allowed origins may send requests and read the responses. Pages of other origins get no CORS headers."""

from typing import Any

import pytest

from tenure.config import AccessConfig
from tenure.http.pipeline import Route
from tests.access.conftest import create_keys
from tests.edge.conftest import Answer, ServeWith, raw
from tests.http.client import open_body, request
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.streams import Client, handshake

ALLOWED, OTHER = "https://app.example.com", "https://elsewhere.example"
SESSION = "0190b0a0-0000-7000-8000-000000000001"


async def send(service: LocalService, message: bytes) -> Answer:
    async with raw(service) as client:
        await client.send(message)
        return await client.answer()


def preflight(origin: str, path: str, method: str = "PUT", headers: str = "authorization, content-type") -> bytes:
    lines = (f"Origin: {origin}", f"Access-Control-Request-Method: {method}")
    return request(
        b"", *lines, f"Access-Control-Request-Headers: {headers}", method="OPTIONS", path=path, media_type=None
    )


def cors(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def requests(origin: str) -> dict[str, bytes]:
    """One request for each code path that writes a response."""
    line = f"Origin: {origin}"
    return {
        "hot": request(open_body(), line),
        "ordinary": request(open_body(), line, path="/sessions?"),
        "read": request(b"", line, method="GET", path="/sessions", media_type=None),
        "hot, refused": request(b"{", line),
        "ordinary, refused": request(b"{", line, path="/sessions?"),
        "unknown": request(b"", line, method="GET", path="/nowhere", media_type=None),
        "other method": request(b"", line, method="PATCH", path="/sessions", media_type=None),
        "long headers": request(b"", line, "X-Long: " + "x" * 9000, method="GET", media_type=None),
    }


async def test_allowed_origins_may_read_every_response(serve_with: ServeWith) -> None:
    service = await serve_with(allowed_origins=(ALLOWED,), max_header_bytes=4096)
    for name, message in requests(ALLOWED).items():
        answer = await send(service, message)
        shown = cors(answer)
        assert shown.pop("access-control-allow-origin") == ALLOWED, name
        exposed = shown.pop("access-control-expose-headers").split(", ")
        assert {"location", "retry-after", "x-request-id"} <= set(exposed), name
        assert shown == {}, "cookies are not allowed"
        assert answer.headers["vary"] == "origin", name


async def test_allowed_origins_may_read_refusals_of_credentials(
    serve_with: ServeWith, sqlite_database: Database
) -> None:
    """Without CORS headers, the page could not distinguish a wrong credential from a network failure."""
    await create_keys(sqlite_database)
    service = await serve_with({"access": AccessConfig(failures_burst=1)}, allowed_origins=(ALLOWED,))
    wrong = ["Authorization: Bearer x"]
    expected = [(401, "/sessions", []), (401, "/sessions?", []), (401, "/sessions", wrong)]
    for status, path, credential in [*expected, (429, "/sessions", wrong), (429, "/sessions?", wrong)]:
        answer = await send(service, request(open_body(), f"Origin: {ALLOWED}", *credential, path=path))
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, ALLOWED)


@pytest.mark.parametrize("origins", [(ALLOWED,), ()])
async def test_other_origins_get_no_cors_headers(serve_with: ServeWith, origins: tuple[str, ...]) -> None:
    service = await serve_with(allowed_origins=origins, max_header_bytes=4096)
    for origin in (OTHER, "null", ALLOWED + ".elsewhere.example", "http://app.example.com"):
        for name, message in requests(origin).items():
            answer = await send(service, message)
            assert cors(answer) == {}, name
            assert answer.headers.get("vary") == ("origin" if origins else None), name
        refused = await send(service, preflight(origin, "/sessions"))
        assert (refused.status, cors(refused)) == (405, {})
        assert "PUT" in refused.headers["allow"]


async def test_wildcard_allows_every_origin_and_response_names_it(serve_with: ServeWith) -> None:
    service = await serve_with(allowed_origins=("*",))
    for origin in (OTHER, "null"):
        answer = await send(service, request(open_body(), f"Origin: {origin}"))
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (201, origin)


async def test_preflight_of_every_route_is_answered_without_credential(
    serve_with: ServeWith, sqlite_database: Database
) -> None:
    await create_keys(sqlite_database)
    service = await serve_with(allowed_origins=(ALLOWED,))
    routes = [route for route in service.instance.pipeline.table if isinstance(route, Route)]
    for route in routes:
        for version in ("", "/v1") if not route.unprefixed else ("",):
            path = version + route.path.replace("{", SESSION[:1]).replace("}", SESSION[-1:])
            answer = await send(service, preflight(ALLOWED, path, route.method))
            assert (answer.status, answer.body) == (204, b""), path
            assert answer.headers["access-control-allow-origin"] == ALLOWED
            assert route.method in answer.headers["access-control-allow-methods"].split(", "), path
            allowed = set(answer.headers["access-control-allow-headers"].split(", "))
            assert {"authorization", "content-type", "idempotency-key", "x-request-id"} <= allowed
            assert answer.headers["access-control-max-age"] == "600"
            assert "access-control-allow-credentials" not in answer.headers
            assert "content-length" not in answer.headers, "a response with status 204 has no Content-Length"
            assert answer.headers["vary"] == "origin"


async def test_connection_stays_open_after_a_preflight(serve_with: ServeWith) -> None:
    service = await serve_with(allowed_origins=(ALLOWED,))
    async with raw(service) as client:
        for _ in range(2):
            await client.send(preflight(ALLOWED, "/sessions"), request(open_body(), f"Origin: {ALLOWED}"))
            assert [(await client.answer()).status for _ in range(2)] == [204, 201]


async def test_preflight_of_unknown_path_and_other_options_requests_are_refused(serve_with: ServeWith) -> None:
    service = await serve_with(allowed_origins=(ALLOWED,))
    assert (await send(service, preflight(ALLOWED, "/nowhere"))).status == 404
    for headers in ([], [f"Origin: {ALLOWED}"], ["Access-Control-Request-Method: PUT"]):
        answer = await send(service, request(b"", *headers, method="OPTIONS", path="/sessions", media_type=None))
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, PUT")
    other_host = preflight(ALLOWED, "/sessions").replace(b"localhost", b"elsewhere")
    assert (await send(service, other_host)).status == 421


async def test_allowed_origins_may_read_refused_handshakes(serve_with: ServeWith) -> None:
    service = await serve_with(allowed_origins=(ALLOWED,))
    answer = await send(service, handshake("/nowhere", f"Origin: {ALLOWED}"))
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (404, ALLOWED)
    client: Any = await Client.connect(service.port, "/sessions/stream", f"Origin: {ALLOWED}")
    client.disconnect()
