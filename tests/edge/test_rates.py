"""The limits on requests per second of a credential, and on wrong credentials per minute from an address."""

from collections.abc import Mapping
from typing import Any

import pytest

from tenure.config import AccessConfig
from tenure.http.edge import Edge
from tests.access.conftest import create_keys
from tests.edge.conftest import Answer, ServeWith, raw, refusals
from tests.http.client import open_body, request
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.streams import Client, Refused, handshake

WRONG = "Bearer tnr_operator_wrong"
CLIENT = "198.51.100.7"


class ManualClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def credentials(sqlite_database: Database) -> Mapping[str, str | None]:
    return await create_keys(sqlite_database)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    _, _, *others = Edge.__init__.__defaults__ or ()
    monkeypatch.setattr(Edge.__init__, "__defaults__", (AccessConfig(), clock, *others))
    return clock


def forms(authorization: str | None, *headers: str) -> dict[str, bytes]:
    """A request with the same headers for each transport: the hot lane, the ordinary lane and a WebSocket."""
    lines = [*([] if authorization is None else [f"Authorization: {authorization}"]), *headers]
    return {
        "hot": request(open_body(), *lines),
        "ordinary": request(open_body(), *lines, path="/sessions?"),
        "websocket": handshake("/sessions/stream", *lines),
    }


async def send(service: LocalService, message: bytes) -> Answer:
    """Returns the response. A repeated open request gets 200; the function replaces this status by 201."""
    async with raw(service) as client:
        await client.send(message)
        answer = await client.answer()
        return answer._replace(status=201) if answer.status == 200 else answer


async def statuses(service: LocalService, message: bytes, tries: int) -> list[int]:
    return [(await send(service, message)).status for _ in range(tries)]


# Requests per second.


async def test_credential_is_limited_on_all_transports_together(
    serve_with: ServeWith, credentials: Mapping[str, str | None], clock: ManualClock
) -> None:
    service = await serve_with({"access": AccessConfig(requests_per_second=1, requests_burst=6)})
    key, other = credentials["client"], credentials["operator"]
    accepted = [(await send(service, form)).status for form in [*forms(key).values()] * 2]
    assert accepted == [201, 201, 101] * 2
    for _ in range(2):
        for name, form in forms(key).items():
            answer = await send(service, form)
            assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "RATE_LIMITED", "1"), name
    assert [(await send(service, form)).status for form in forms(other).values()] == [201, 201, 101]
    clock.now += 1.001
    assert await statuses(service, forms(key)["hot"], 2) == [201, 429]
    assert await refusals(service, "requests_per_second") == 7


async def test_default_burst_allows_the_requests_of_two_seconds(
    serve_with: ServeWith, credentials: Mapping[str, str | None], clock: ManualClock
) -> None:
    del clock
    service = await serve_with({"access": AccessConfig(requests_per_second=3)})
    assert await statuses(service, forms(credentials["client"])["hot"], 8) == [201] * 6 + [429] * 2


async def test_forbidden_requests_count_against_the_rate(
    serve_with: ServeWith, credentials: Mapping[str, str | None], clock: ManualClock
) -> None:
    del clock
    service = await serve_with({"access": AccessConfig(requests_per_second=1, requests_burst=2)})
    assert await statuses(service, forms(credentials["reader"])["hot"], 3) == [403, 403, 429]


async def test_probes_and_callers_without_credentials_are_not_limited(
    serve_with: ServeWith, clock: ManualClock
) -> None:
    del clock
    service = await serve_with({"access": AccessConfig(requests_per_second=1, requests_burst=1)})
    for form in forms(None).values():
        assert not {429, 401} & set(await statuses(service, form, 4))
    probe = request(b"", "Authorization: Bearer x", method="GET", path="/readyz", media_type=None)
    assert await statuses(service, probe, 4) == [201] * 4


# Wrong credentials.


async def test_wrong_credentials_are_throttled_on_all_transports_and_valid_ones_are_not(
    serve_with: ServeWith, credentials: Mapping[str, str | None], clock: ManualClock
) -> None:
    service = await serve_with({"access": AccessConfig(failures_per_minute=6, failures_burst=3)})
    wrong = ("unknown", "wrong secret", "malformed", "expired", "revoked")
    assert [(await send(service, form)).status for form in forms(WRONG).values()] == [401] * 3
    for kind in wrong:
        for name, form in forms(credentials[kind]).items():
            answer = await send(service, form)
            assert (answer.status, answer.code) == (429, "TOO_MANY_FAILURES"), (kind, name)
            assert answer.headers["retry-after"] == "10"
    for role in ("client", "operator"):
        assert [(await send(service, form)).status for form in forms(credentials[role]).values()] == [201, 201, 101]
    # A request without a credential does not count as a wrong credential, so it is not throttled.
    assert [(await send(service, form)).status for form in forms(None).values()] == [401] * 3
    clock.now += 10.001
    assert await statuses(service, forms(WRONG)["ordinary"], 2) == [401, 429]
    assert await refusals(service, "failures_per_minute") == len(wrong) * 3 + 1


async def test_uncached_valid_key_is_accepted_while_wrong_ones_are_throttled(
    serve_with: ServeWith, credentials: Mapping[str, str | None], clock: ManualClock
) -> None:
    """The API key is not cached, so a task looks up the key in the database, on every transport."""
    del clock
    service = await serve_with({"access": AccessConfig(failures_burst=1)})
    for name, form in forms(credentials["client"]).items():
        assert (await statuses(service, forms(WRONG)[name], 5))[-1] == 429
        service.instance._authenticator._drop_cache()
        assert (await send(service, form)).status in (101, 201), name


async def test_throttle_can_be_switched_off(serve_with: ServeWith, credentials: Mapping[str, str | None]) -> None:
    del credentials
    service = await serve_with({"access": AccessConfig(failures_per_minute=0)})
    assert set(await statuses(service, forms(WRONG)["hot"], 100)) == {401}


async def test_forwarded_address_of_an_untrusted_peer_is_ignored(
    serve_with: ServeWith, credentials: Mapping[str, str | None], clock: ManualClock
) -> None:
    del credentials, clock
    service = await serve_with({"access": AccessConfig(failures_burst=3)}, trusted_proxies=("192.0.2.0/24",))
    found = []
    for number in range(2):
        for form in forms(WRONG, f"X-Forwarded-For: {number}.2.3.4").values():
            found.append((await send(service, form)).status)  # noqa: PERF401 - one after the other
    assert found == [401] * 3 + [429] * 3


async def test_clients_behind_a_trusted_proxy_are_counted_separately(
    serve_with: ServeWith, credentials: Mapping[str, str | None], clock: ManualClock
) -> None:
    del credentials, clock
    service = await serve_with({"access": AccessConfig(failures_burst=3)}, trusted_proxies=("127.0.0.0/8",))
    for client in (CLIENT, "198.51.100.8", "2001:db8::1"):
        found = []
        for header in (f"X-Forwarded-For: {client}", f"X-Forwarded-For: 1.2.3.4, {client}"):
            for form in forms(WRONG, header).values():
                found.append((await send(service, form)).status)  # noqa: PERF401 - one after the other
        assert found == [401] * 3 + [429] * 3, client
    # The addresses of one /64 network of IPv6 are counted together.
    same_site = [(await send(service, form)).status for form in forms(WRONG, "X-Forwarded-For: 2001:db8::2").values()]
    assert same_site == [429] * 3
    two_headers = ("X-Forwarded-For: 1.2.3.4", f"X-Forwarded-For: {CLIENT}")
    assert await statuses(service, forms(WRONG, *two_headers)["hot"], 1) == [429]


async def test_open_streams_of_a_throttled_address_stay_open(
    serve_with: ServeWith, credentials: Mapping[str, str | None], clock: ManualClock
) -> None:
    """The periodic check of the credentials of open streams counts neither as a request nor as a failure."""
    del clock
    service = await serve_with({"access": AccessConfig(requests_per_second=1, requests_burst=1, failures_burst=1)})
    client: Any = await Client.connect(service.port, "/sessions/stream", f"Authorization: {credentials['client']}")
    await client.open()
    for _ in range(5):
        await service.instance.pipeline.check_open_streams()
        with pytest.raises(Refused):
            await Client.connect(service.port, "/sessions/stream", f"Authorization: {WRONG}")
    await client.send("hello")
    assert await client.receive() == "hello"
    client.disconnect()
