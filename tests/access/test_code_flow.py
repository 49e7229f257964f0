"""The sign-in at an OIDC issuer: the authorisation code flow with PKCE, against a test issuer on loopback."""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import msgspec
import pytest

from tenure.access.code_flow import EXCHANGES_MAX
from tenure.clock import wall_microseconds
from tenure.config import AccessConfig, OidcConfig
from tenure.telemetry.events import OidcSignInFailed
from tests.access.conftest import serving
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.issuers import AUDIENCE, OTHER_RSA, RSA, TENANT, Issuer

CLIENT = "tenure-console"
SECRET = "planted-client-secret"


class SigningIn(Issuer):
    """An issuer with a token endpoint. `authorize` stands in for its authorisation endpoint, and accepts every user."""

    def __init__(self) -> None:
        super().__init__(RSA)
        self.clock.seconds = wall_microseconds() / 1_000_000
        self.codes: dict[str, dict[str, str]] = {}
        self.forms: list[dict[str, str]] = []
        self.id_claims: dict[str, Any] = {}
        self.access_claims: dict[str, Any] | None = {}
        self.signed_with = RSA
        self.status = "200 OK"
        self.silent = asyncio.Event()
        self.silent.set()

    def sign_in_config(self, **given: Any) -> OidcConfig:
        return self.config(
            **{
                "client_id": CLIENT,
                "client_secret": SECRET,
                "authorization_url": f"{self.address}/authorize?p=1",
                "token_url": f"{self.address}/token",
                "scope": "openid console",
                **given,
            }
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
                line, *headers = head.split("\r\n")
                lengths = [
                    header.partition(":")[2] for header in headers if header.lower().startswith("content-length")
                ]
                body = await reader.readexactly(int(lengths[0])) if lengths else b""
                if line.startswith("POST /token "):
                    await self.silent.wait()
                    await self.send_body(self._tokens(dict(parse_qsl(body.decode()))), self.status)(writer)
                else:
                    await self.send_keys(writer)
        finally:
            writer.close()

    def authorize(self, location: str) -> dict[str, str]:
        """Returns the parameters with which the issuer sends the browser to the callback after the sign-in."""
        parts = urlsplit(location)
        assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{self.address}/authorize"
        query = {name: values[0] for name, values in parse_qs(parts.query, strict_parsing=True).items()}
        assert (query["p"], query["response_type"], query["code_challenge_method"]) == ("1", "code", "S256")
        assert (query["client_id"], query["scope"]) == (CLIENT, "openid console")
        code = secrets.token_urlsafe(8)
        self.codes[code] = query
        return {"code": code, "state": query["state"], "session_state": "x"}

    def _tokens(self, form: dict[str, str]) -> Any:
        self.forms.append(form)
        query = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            query is None
            or challenge != query["code_challenge"]
            or form["redirect_uri"] != query["redirect_uri"]
            or (form["client_id"], form["client_secret"], form["grant_type"]) != (CLIENT, SECRET, "authorization_code")
        ):
            self.status = "400 Bad Request"
            return {"error": "invalid_grant"}
        claims = {"aud": CLIENT, "nonce": query["nonce"], "roles": ["operator"]} | self.id_claims
        tokens = {"token_type": "Bearer", "id_token": self.token(self.signed_with, header={"kid": "rsa"}, **claims)}
        if self.access_claims is not None:
            tokens["access_token"] = self.token(**({"roles": ["operator"]} | self.access_claims))
        return tokens


@asynccontextmanager
async def signing_in() -> AsyncIterator[SigningIn]:
    issuer = SigningIn()
    server = await asyncio.start_server(issuer.connected, "127.0.0.1", 0)
    issuer.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield issuer
    finally:
        server.close()
        await issuer.stop()


async def begin(service: LocalService, prefix: str = "") -> httpx.Response:
    response = await service.http.get(f"{prefix}/sign-in/oidc")
    assert response.status_code == 302, response.text
    return response


async def come_back(service: LocalService, prefix: str = "", **query: str) -> httpx.Response:
    # Browsers send these headers with a navigation that began on a page of another site.
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    return await service.http.get(f"{prefix}/sign-in/oidc/callback?{urlencode(query)}", headers=headers)


def cookies(response: httpx.Response) -> dict[str, str]:
    return {each.partition("=")[0]: each.partition("=")[2] for each in response.headers.get_list("set-cookie")}


@pytest.mark.parametrize("prefix", ["", "/a/b"])
async def test_person_signs_in_at_the_issuer(sqlite_database: Database, prefix: str) -> None:
    async with (
        signing_in() as issuer,
        serving(sqlite_database, prefix=prefix, oidc=issuer.sign_in_config(staff_tenant=TENANT)) as service,
    ):
        options = (await service.http.get(f"{prefix}/sign-in")).json()
        assert options == {
            "credentialsRequired": True,
            "oidc": {"issuer": "login.example", "address": f"{prefix}/sign-in/oidc"},
        }
        begun = await begin(service, prefix)
        kept = cookies(begun)["tenure_sign_in"]
        assert kept.endswith(f"; Max-Age=600; Path={prefix}/sign-in/oidc; HttpOnly; SameSite=Lax")
        assert begun.headers["cache-control"] == "no-store"
        back = issuer.authorize(begun.headers["location"])
        ended = await come_back(service, prefix, **back)
        assert (ended.status_code, ended.headers["location"]) == (302, f"{prefix}/console")
        assert cookies(ended)["tenure_sign_in"].startswith("; Max-Age=0;")
        assert f"; Path={prefix or '/'}; HttpOnly; SameSite=Strict" in cookies(ended)["tenure_credential"]
        me = (await service.http.get(f"{prefix}/me")).json()
        assert (me["subject"], me["role"], me["tenantObjectId"]) == ("oidc:a-subject", "operator", None)
        (form,) = issuer.forms
        assert form["redirect_uri"] == f"http://127.0.0.1:{service.port}{prefix}/sign-in/oidc/callback"
        # The browser has deleted the cookie of the sign-in, so the instance does not send the code to the issuer again.
        assert (await come_back(service, prefix, **back)).status_code == 401
        assert len(issuer.forms) == 1


async def test_sign_in_of_another_browser_or_issuer_is_refused(sqlite_database: Database) -> None:
    async with signing_in() as issuer, serving(sqlite_database, oidc=issuer.sign_in_config()) as service:
        back = issuer.authorize((await begin(service)).headers["location"])
        for wrong in (
            {**back, "state": "x" * 43},
            {**back, "state": ""},
            {**back, "state": "é"},
            {"code": back["code"]},
            {**back, "iss": "https://other.example"},
            {"error": "access_denied", "state": back["state"]},
        ):
            refused = await come_back(service, **wrong)
            assert refused.status_code == 401, wrong
            assert "tenure_credential" not in cookies(refused)
        await begin(service)  # in a second tab, whose cookie replaces the cookie of the first tab
        assert (await come_back(service, **back)).status_code == 401
        service.http.cookies.clear()
        assert (await come_back(service, **back)).status_code == 401
        assert issuer.forms == []


async def test_tokens_of_another_sign_in_client_or_issuer_are_refused(sqlite_database: Database) -> None:
    async with signing_in() as issuer, serving(sqlite_database, oidc=issuer.sign_in_config()) as service:
        now = int(issuer.clock.seconds)
        for claims, signed_with in (
            ({"nonce": "another"}, RSA),
            ({"nonce": None}, RSA),
            ({"aud": "another-client"}, RSA),
            ({"iss": "https://other.example"}, RSA),
            ({"exp": now - 60}, RSA),
            ({}, OTHER_RSA),
        ):
            issuer.id_claims, issuer.signed_with = claims, signed_with
            refused = await come_back(service, **issuer.authorize((await begin(service)).headers["location"]))
            assert refused.status_code == 401, claims
            assert "tenure_credential" not in cookies(refused)
        issuer.id_claims, issuer.signed_with = {}, RSA
        # An access token without a role, an access token for another service, and no access token.
        for access_claims, status in (({"roles": []}, 401), ({"aud": "elsewhere"}, 401), (None, 401)):
            issuer.access_claims = access_claims
            refused = await come_back(service, **issuer.authorize((await begin(service)).headers["location"]))
            assert refused.status_code == status, access_claims


async def test_id_token_becomes_the_credential_if_its_audience_is_the_configured_one(sqlite_database: Database) -> None:
    async with signing_in() as issuer, serving(sqlite_database, oidc=issuer.sign_in_config(audience=CLIENT)) as service:
        for access_claims in (None, {"aud": AUDIENCE}):
            issuer.access_claims = access_claims
            ended = await come_back(service, **issuer.authorize((await begin(service)).headers["location"]))
            assert ended.status_code == 302, ended.text
            assert (await service.http.get("/me")).json()["tenantObjectId"] == TENANT
        issuer.id_claims = {"padding": "x" * 4000}  # too long for a cookie
        refused = await come_back(service, **issuer.authorize((await begin(service)).headers["location"]))
        assert refused.status_code in (401, 403)
        assert "tenure_credential" not in cookies(refused)


async def test_sign_in_returns_503_if_issuer_fails_and_limits_concurrent_requests(sqlite_database: Database) -> None:
    async with signing_in() as issuer, serving(sqlite_database, oidc=issuer.sign_in_config()) as service:
        back = issuer.authorize((await begin(service)).headers["location"])
        issuer.status = "502 Bad Gateway"
        assert (await come_back(service, **back)).status_code == 503
        assert "502" in service.telemetry.of(OidcSignInFailed)[-1].error
        assert SECRET not in str(service.telemetry.events)
        issuer.silent.clear()
        waiting = [asyncio.create_task(come_back(service, **back)) for _ in range(EXCHANGES_MAX + 1)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status_code for task in done] == [503]
        issuer.silent.set()
        assert {(await task).status_code for task in waiting} <= {401, 503}


async def test_refused_codes_are_throttled(sqlite_database: Database) -> None:
    access = AccessConfig(failures_per_minute=1, failures_burst=2)
    async with (
        signing_in() as issuer,
        LocalService.on(sqlite_database, access=access, oidc=issuer.sign_in_config()).running() as service,
    ):
        begun = await begin(service)
        state = issuer.authorize(begun.headers["location"])["state"]
        statuses = [(await come_back(service, state=state, code="guessed")).status_code for _ in range(4)]
        assert statuses == [401, 401, 429, 429]


async def test_without_client_id_there_is_no_sign_in_at_an_issuer(sqlite_database: Database) -> None:
    async with signing_in() as issuer, serving(sqlite_database, oidc=issuer.config()) as service:
        assert (await service.http.get("/sign-in")).json() == {"credentialsRequired": True, "oidc": None}
        for path in ("/sign-in/oidc", "/sign-in/oidc/callback?code=a&state=b"):
            response = await service.http.get(path)
            assert (response.status_code, msgspec.json.decode(response.content)["code"]) == (404, "NOT_FOUND")
