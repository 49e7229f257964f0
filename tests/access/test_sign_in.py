"""The sign-in of browser pages: the cookie, its rights, and which pages cannot use it."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tenure.access.cookies import COOKIE_MAX_SECONDS, credential_in_cookie
from tenure.clock import wall_microseconds
from tenure.config import AccessConfig, HttpConfig
from tenure.domain.keys import Role, new_api_key
from tenure.http.edge import Edge
from tests.access.conftest import OTHER_TENANT, create_keys, serving, sign_token
from tests.http.client import RawResponse, connected, open_body, request
from tests.http.local import LocalService
from tests.support.certificates import certificate_files
from tests.support.databases import Database
from tests.support.issuers import RSA, TENANT, USER, running_issuer
from tests.support.keys import OPERATOR, create_key
from tests.support.streams import Client, Refused
from tests.support.telemetry import RecordedTelemetry


def credential_of(authorization: str | None) -> str:
    return str(authorization).removeprefix("Bearer ")


async def sign_in(service: LocalService, credential: str, **headers: str) -> httpx.Response:
    return await service.http.post("/sign-in", json={"credential": credential}, headers=headers)


def attributes(response: httpx.Response) -> dict[str, str]:
    """Returns the cookie that a response sets: its name and value, and its attributes with lower-case names."""
    parts = [part.strip().partition("=") for part in response.headers["set-cookie"].split(";")]
    return {name.lower(): value for name, _, value in parts}


async def send(service: LocalService, content: bytes) -> RawResponse:
    def exchange() -> RawResponse:
        with connected(service.port) as connection:
            connection.send(content)
            return connection.read()

    return await asyncio.to_thread(exchange)


async def test_cookie_counts_as_the_credential_on_every_transport(sqlite_database: Database) -> None:
    credentials = await create_keys(sqlite_database)
    async with serving(sqlite_database) as service:
        for role in ("client", "reader", "operator"):
            key = credential_of(credentials[role])
            response = await sign_in(service, key)
            assert response.status_code == 200, response.text
            assert attributes(response) == {
                "tenure_credential": key,
                "max-age": str(COOKIE_MAX_SECONDS),
                "path": "/",
                "httponly": "",
                "samesite": "Strict",
            }
            assert response.headers["cache-control"] == "no-store"
            by_header = await service.http.get("/me", headers={"Authorization": str(credentials[role]), "Cookie": ""})
            by_cookie = await service.http.get("/me")
            instants = [datetime.fromisoformat(each.json()["now"]) for each in (response, by_header, by_cookie)]
            assert instants == sorted(instants)
            callers = [each.json() | {"now": ""} for each in (response, by_header, by_cookie)]
            assert callers[0] == callers[1] == callers[2]
            assert callers[0] == {
                "subject": key.split("_")[2],
                "name": role,
                "role": role,
                "tenantObjectId": None,
                "userObjectId": None,
                "anonymous": False,
                "expiresAt": None,
                "mayChange": role == "operator",
                "now": "",
            }
            cookie = f"Cookie: a=b; tenure_credential={key}; c=d"
            hot = await send(service, request(open_body(), cookie))
            assert hot.status == (403 if role == "reader" else 201)
            if role != "reader":
                (await Client.connect(service.port, "/sessions/stream", cookie)).disconnect()
        signed_out = await service.http.post("/sign-out")
        assert signed_out.json() == {"signedIn": False}
        assert attributes(signed_out)["max-age"] == "0"
        assert attributes(signed_out)["tenure_credential"] == ""
        assert (await service.http.get("/me")).status_code == 401


async def test_authorization_takes_precedence_over_the_cookie(sqlite_database: Database) -> None:
    credentials = await create_keys(sqlite_database)
    async with serving(sqlite_database) as service:
        await sign_in(service, credential_of(credentials["operator"]))
        reader = await service.http.get("/me", headers={"Authorization": str(credentials["reader"])})
        assert reader.json()["role"] == "reader"
        wrong = await service.http.get("/me", headers={"Authorization": str(credentials["revoked"])})
        assert wrong.status_code == 401


# Headers of requests from a page of the instance itself, and from pages of other origins.
OWN = [{}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "https://localhost"}]
OWN += [{"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}]
FOREIGN = [
    {"Origin": "https://app.example"},
    {"Origin": "https://app.example", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "null"},
]


@pytest.mark.parametrize("allowed", [("https://app.example", "http://localhost:3000"), ("*",)], ids=["some", "all"])
async def test_cookie_does_not_count_for_pages_of_other_origins_even_if_allowed(
    sqlite_database: Database, allowed: tuple[str, ...]
) -> None:
    """A page of an allowed origin may send a credential of its own, but cannot use the cookie of the signed-in user."""
    credentials = await create_keys(sqlite_database)
    key = credential_of(credentials["operator"])
    async with serving(sqlite_database, http=HttpConfig(allowed_origins=allowed)) as service:
        for page, counts in [*((page, True) for page in OWN), *((page, False) for page in FOREIGN)]:
            lines = [f"Cookie: tenure_credential={key}", *(f"{name}: {value}" for name, value in page.items())]
            for method, path in (("GET", "/me"), ("PUT", "/sessions"), ("POST", "/jobs/prune/pause")):
                answer = await send(service, request(open_body(), *lines, method=method, path=path))
                assert (answer.status < 300) == counts, (page, method, answer)
            assert await connects(service, *lines) == counts, page


async def connects(service: LocalService, *lines: str) -> bool:
    try:
        (await Client.connect(service.port, "/sessions/stream", *lines)).disconnect()
    except Refused:
        return False
    return True


async def test_pages_of_other_origins_cannot_sign_in_or_out(sqlite_database: Database) -> None:
    credentials = await create_keys(sqlite_database)
    async with serving(sqlite_database) as service:
        for page in FOREIGN:
            for path in ("/sign-in", "/sign-out"):
                body = {"credential": credential_of(credentials["client"])}
                answer = await service.http.post(path, json=body, headers=page)
                assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN_ORIGIN")
                assert "set-cookie" not in answer.headers


async def test_wrong_credentials_are_refused_and_throttled(sqlite_database: Database) -> None:
    credentials = await create_keys(sqlite_database)
    access = AccessConfig(failures_per_minute=1, failures_burst=4)
    async with LocalService.on(sqlite_database, access=access).running() as service:
        wrong = [credential_of(credentials[name]) for name in ("unknown", "wrong secret", "expired", "revoked")]
        answers = [await sign_in(service, each) for each in (*wrong, *wrong)]
        assert [answer.status_code for answer in answers] == [401] * 4 + [429] * 4
        assert answers[-1].json()["code"] == "TOO_MANY_FAILURES"
        assert not any("set-cookie" in answer.headers for answer in answers)
        cookie = {"Cookie": f"tenure_credential={wrong[0]}"}
        assert (await service.http.get("/me", headers=cookie)).status_code == 429
        assert (await sign_in(service, credential_of(credentials["reader"]))).status_code == 200
        for malformed in ("", "a; Path=/", "a\n", "x" * 4001):
            assert (await sign_in(service, malformed)).status_code == 400, malformed
        token = credential_of(await sign_token(sqlite_database, OTHER_TENANT))
        assert (await sign_in(service, token)).status_code == 403
        assert (await service.http.get("/me", headers={"Authorization": f"Bearer {token}"})).status_code == 403


async def test_sign_in_counts_towards_request_limit_of_its_credential(sqlite_database: Database) -> None:
    credentials = await create_keys(sqlite_database)
    access = AccessConfig(requests_per_second=1, requests_burst=2)
    async with LocalService.on(sqlite_database, access=access).running() as service:
        key = credential_of(credentials["reader"])
        assert [(await sign_in(service, key)).status_code for _ in range(3)] == [200, 200, 429]


async def test_cookie_is_valid_only_as_long_as_its_credential(sqlite_database: Database) -> None:
    """The browser deletes the cookie when the credential expires. Even with the cookie, the server refuses an expired
    or revoked credential.
    """
    now = (await sqlite_database.store.read_keys_version()).now
    short, revoked = new_api_key(Role.READER), new_api_key(Role.CLIENT)
    await create_key(sqlite_database.store, short, name="short", expires_at=now + timedelta(seconds=600))
    await create_key(sqlite_database.store, revoked, name="revoked", tenant_object_id=OTHER_TENANT)
    async with serving(sqlite_database) as service:
        response = await sign_in(service, short.text)
        assert 500 < int(attributes(response)["max-age"]) <= 600
        assert response.json()["expiresAt"] is not None
        response = await sign_in(service, revoked.text)
        assert response.json()["tenantObjectId"] == OTHER_TENANT
        cookie = f"Cookie: tenure_credential={revoked.text}"
        client = await Client.connect(service.port, "/sessions/stream", cookie)
        await client.open(tenantObjectId=OTHER_TENANT)
        await sqlite_database.store.revoke_key(revoked.public_id, OPERATOR)
        messages, _ = await client.read_to_end()
        assert msgspec.json.decode(messages[-2])["code"] == "UNAUTHENTICATED"
        assert (await service.http.get("/me")).status_code == 401


async def test_oidc_token_signs_in(sqlite_database: Database) -> None:
    async with running_issuer(RSA) as issuer, serving(sqlite_database, oidc=issuer.config()) as service:
        issuer.clock.seconds = wall_microseconds() / 1_000_000
        response = await sign_in(service, issuer.token(exp=int(issuer.clock.seconds) + 300))
        assert response.status_code == 200, response.text
        caller = response.json()
        assert (caller["subject"], caller["role"]) == ("oidc:a-subject", "client")
        assert (caller["tenantObjectId"], caller["userObjectId"]) == (TENANT, USER)
        assert 290 < int(attributes(response)["max-age"]) <= 330  # with the leeway
        assert (await service.http.get("/me")).json() | {"now": ""} == caller | {"now": ""}


async def test_without_keys_every_caller_is_anonymous_and_gets_no_cookie(sqlite_database: Database) -> None:
    async with serving(sqlite_database) as service:
        response = await sign_in(service, "anything")
        assert response.status_code == 200
        assert "set-cookie" not in response.headers
        assert response.json()["anonymous"] is True
        assert (await service.http.get("/me")).json() | {"now": ""} == response.json() | {"now": ""}


@pytest.mark.parametrize("place", ["plain", "TLS", "trusted proxy"])
async def test_cookie_is_secure_over_https_and_has_the_path_of_the_prefix(
    sqlite_database: Database, tmp_path: Path, place: str
) -> None:
    key = credential_of((await create_keys(sqlite_database))["reader"])
    files = certificate_files(tmp_path)
    files.write("localhost")
    settings: dict[str, Any] = {
        "plain": {},
        "TLS": {"tls_certificate": str(files.certificate), "tls_key": str(files.key)},
        "trusted proxy": {"http": HttpConfig(trusted_proxies=("127.0.0.0/8",))},
    }[place]
    async with serving(sqlite_database, prefix="/a/b", **settings) as service:
        for path, body in (("/a/b/sign-in", {"credential": key}), ("/a/b/v1/sign-out", None)):
            for forwarded in ({}, {"X-Forwarded-Proto": "https"}):
                response = await service.http.post(path, json=body, headers=forwarded)
                assert response.status_code == 200, response.text
                is_secure = place == "TLS" or (place == "trusted proxy" and bool(forwarded))
                assert ("secure" in attributes(response)) == is_secure
                assert attributes(response)["path"] == "/a/b"


def test_is_forwarded_https__trusts_only_the_nearest_trusted_proxy() -> None:
    edge = Edge(HttpConfig(trusted_proxies=("10.0.0.0/8",)), "127.0.0.1", RecordedTelemetry())
    host = (b"host", b"localhost")
    for peer, said, expected in (
        ("10.1.2.3", [b"https"], True),
        ("10.1.2.3", [b"HTTPS"], True),
        ("10.1.2.3", [b"http, https"], True),
        ("10.1.2.3", [b"http", b"https"], True),
        ("10.1.2.3", [b"https, http"], False),
        ("10.1.2.3", [b"https", b"http"], False),
        ("10.1.2.3", [], False),
        ("192.0.2.1", [b"https"], False),
        ("::ffff:10.1.2.3", [b"https"], True),
    ):
        headers = [host, *((b"x-forwarded-proto", each) for each in said)]
        visit = edge.check(headers, changes=False, peer=(peer, 1))
        assert edge.is_forwarded_https(headers, visit) == expected, (peer, said)


@pytest.mark.parametrize(
    ("cookies", "expected"),
    [
        ([b"tenure_credential=a"], b"a"),
        ([b"x=y; tenure_credential=a"], b"a"),
        ([b"x=y", b"tenure_credential=a;z"], b"a"),
        ([b"tenure_credential=a; tenure_credential=a"], b"a"),
        ([b"tenure_credential=a; tenure_credential=b"], None),
        ([b"tenure_credential=a", b"tenure_credential=b"], None),
        ([b"tenure_credential="], None),
        ([b"tenure_credential"], None),
        ([b"xtenure_credential=a; Tenure_Credential=a"], None),
        ([b""], None),
        ([], None),
    ],
)
def test_credential_in_cookie__returns_the_single_value(cookies: list[bytes], expected: bytes | None) -> None:
    assert credential_in_cookie([(b"host", b"localhost"), *((b"cookie", each) for each in cookies)]) == expected
