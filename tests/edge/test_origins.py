"""A page of another site can neither read nor change data, not even by DNS rebinding or cross-site requests."""

import itertools

import pytest

from tenure.config import HttpConfig
from tenure.errors import ForbiddenOrigin, Misdirected
from tenure.http.edge import Edge
from tests.edge.conftest import ServeWith, raw, refusals
from tests.support.streams import handshake
from tests.support.telemetry import RecordedTelemetry

LOOPBACK = ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:8080"]
ADDRESSES = ["192.0.2.7", "192.0.2.7:8080", "[2001:db8::1]:8080"]
NAMES = ["elsewhere.example", "localhost.elsewhere.example", "127.0.0.1.elsewhere.example", "", ":80", "a b", "[", "*"]


def _edge(host: str = "127.0.0.1", **limits: tuple[str, ...]) -> Edge:
    return Edge(HttpConfig(**limits), host, RecordedTelemetry())  # type: ignore[arg-type]


def _serves(edge: Edge, host: str) -> bool:
    answers = [edge.check([(b"host", host.encode())], changes=False).problem for _ in range(2)]
    assert isinstance(answers[0], Misdirected | None)
    assert type(answers[0]) is type(answers[1])
    return answers[0] is None


# Hosts.


def test_loopback_instance_serves_loopback_names_only() -> None:
    edge = _edge()
    assert [host for host in LOOPBACK if not _serves(edge, host)] == []
    assert [host for host in (*ADDRESSES, *NAMES) if _serves(edge, host)] == []


def test_instance_on_all_addresses_serves_ip_addresses_too() -> None:
    edge = _edge("0.0.0.0")
    assert [host for host in (*LOOPBACK, *ADDRESSES) if not _serves(edge, host)] == []
    assert [host for host in NAMES if _serves(edge, host)] == []


def test_configured_names_are_served() -> None:
    edge = _edge(allowed_hosts=("Tenure.Example", "192.0.2.7", "[2001:db8::1]"))
    assert all(_serves(edge, host) for host in ("tenure.example", "TENURE.example:443", *ADDRESSES))
    assert not _serves(edge, "elsewhere.example")
    assert _serves(_edge("tenure.internal"), "tenure.internal:8080")
    everything = _edge(allowed_hosts=("*",))
    assert all(_serves(everything, host) for host in (*LOOPBACK, *ADDRESSES, *NAMES))


def test_cache_of_hosts_is_limited() -> None:
    edge = _edge(allowed_hosts=("*",))
    assert all(_serves(edge, f"{number}.example") for number in range(1000))
    assert len(edge._known_hosts) <= 256


# Origins.


def _accepts(edge: Edge, *headers: tuple[bytes, bytes], changes: bool = True) -> bool:
    problem = edge.check([(b"host", b"localhost:8080"), *headers], changes=changes).problem
    assert isinstance(problem, ForbiddenOrigin | None)
    return problem is None


OWN = [b"http://localhost:8080", b"https://localhost:8080", b"HTTP://LOCALHOST:8080"]
FOREIGN = [b"http://localhost", b"http://localhost:3000", b"https://elsewhere.example", b"null", b"file://", b"x"]
OTHER_SITES = [b"cross-site", b"same-site"]


def test_requests_without_origin_and_sec_fetch_site_are_accepted() -> None:
    assert _accepts(_edge())


def test_own_origin_is_accepted_and_foreign_ones_are_not() -> None:
    edge = _edge()
    assert [origin for origin in OWN if not _accepts(edge, (b"origin", origin))] == []
    assert [origin for origin in FOREIGN if _accepts(edge, (b"origin", origin))] == []
    assert not _accepts(edge, (b"origin", OWN[0]), (b"origin", OWN[0]))


def test_changes_from_other_sites_are_refused_even_without_origin() -> None:
    edge = _edge()
    for site, origin in itertools.product(OTHER_SITES, ([], [(b"origin", OWN[0])])):
        assert not _accepts(edge, (b"sec-fetch-site", site), *origin)
    for site in (b"same-origin", b"none"):
        assert _accepts(edge, (b"sec-fetch-site", site))


def test_reads_are_accepted_from_every_origin() -> None:
    """The browser does not let a page of another origin read the response."""
    edge = _edge()
    for origin, site in itertools.product((*OWN, *FOREIGN), OTHER_SITES):
        assert _accepts(edge, (b"origin", origin), (b"sec-fetch-site", site), changes=False)


def test_configured_origins_are_accepted() -> None:
    edge = _edge(allowed_origins=("https://Console.example", "http://localhost:3000"))
    for origin in (b"https://console.example", b"http://localhost:3000"):
        assert _accepts(edge, (b"origin", origin), (b"sec-fetch-site", b"cross-site"))
    assert not _accepts(edge, (b"origin", b"https://elsewhere.example"))
    everything = _edge(allowed_origins=("*",))
    assert all(_accepts(everything, (b"origin", origin)) for origin in FOREIGN)


# All transports.


def _requests(*headers: str) -> dict[str, bytes]:
    """Requests of several forms. A page of another site can send the first and the last one without a preflight."""
    lines = "".join(f"{header}\r\n" for header in headers)
    forms = {
        "without body": f"POST /jobs/emit-usage/pause HTTP/1.1\r\n{lines}Content-Type: text/plain\r\n\r\n",
        "hot": f"PUT /sessions HTTP/1.1\r\n{lines}Content-Length: 100000\r\n\r\n" + " " * 100_000,
        "ordinary": f"PUT /%73essions HTTP/1.1\r\n{lines}Content-Length: 100000\r\n\r\n" + " " * 100_000,
        "delete": f"DELETE /sessions/0190b0a0-0000-7000-8000-000000000001 HTTP/1.1\r\n{lines}\r\n",
        "stream": handshake("/sessions/stream").decode().replace("Host: localhost\r\n", lines),
    }
    return {name: form.encode() for name, form in forms.items()}


@pytest.mark.parametrize("foreign", ["Origin: https://elsewhere.example", "Origin: null", "Sec-Fetch-Site: cross-site"])
async def test_page_of_another_site_changes_nothing(serve_with: ServeWith, foreign: str) -> None:
    service = await serve_with()
    for name, message in _requests("Host: localhost", foreign).items():
        async with raw(service) as client:
            await client.send(message)
            answer = await client.answer()
            assert (answer.status, answer.code) == (403, "FORBIDDEN_ORIGIN"), name
    jobs = (await service.http.get("/jobs")).json()["jobs"]
    assert not any(job["paused"] for job in jobs)
    assert await refusals(service, "allowed_origins") == 5


async def test_request_for_another_host_is_misdirected(serve_with: ServeWith) -> None:
    service = await serve_with()
    requests = _requests("Host: elsewhere.example") | {
        "read": b"GET /sessions HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
        "unknown": b"GET /nowhere HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
        "HTTP/1.0": b"GET /sessions HTTP/1.0\r\nHost: elsewhere.example\r\n\r\n",
        "absolute": b"GET http://elsewhere.example/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    for name, message in requests.items():
        async with raw(service) as client:
            await client.send(message)
            answer = await client.answer()
            assert (answer.status, answer.code) == (421, "MISDIRECTED"), name
    assert await refusals(service, "allowed_hosts") == len(requests)


async def test_own_page_and_clients_without_origin_are_accepted(serve_with: ServeWith) -> None:
    service = await serve_with()
    own = f"Origin: http://localhost:{service.port}"
    for headers in ([], [own, "Sec-Fetch-Site: same-origin"]):
        for name, message in _requests(f"Host: localhost:{service.port}", *headers).items():
            async with raw(service) as client:
                await client.send(message)
                assert (await client.answer()).status not in (403, 421), name
    assert await refusals(service, "allowed_origins") == 0


async def test_configured_host_and_origin_are_accepted_by_all_transports(serve_with: ServeWith) -> None:
    service = await serve_with(allowed_hosts=("tenure.example",), allowed_origins=("https://console.example",))
    for name, message in _requests("Host: tenure.example", "Origin: https://console.example").items():
        async with raw(service) as client:
            await client.send(message)
            assert (await client.answer()).status not in (403, 421), name
