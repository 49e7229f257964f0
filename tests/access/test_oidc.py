"""Tokens of an OIDC issuer on a running instance. The issuer serves its keys over HTTP."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import msgspec
import pytest

from tenure.access.caller import Caller, CallerKind
from tenure.access.oidc import OidcVerifier
from tenure.clock import wall_microseconds
from tenure.domain.keys import Role, new_api_key
from tenure.domain.scope import EVERYTHING, Scope
from tests.access.conftest import bearer, serving, sign_token
from tests.http.client import open_body
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.issuers import (
    OTHER_RSA,
    OTHER_TENANT,
    P256,
    RSA,
    TENANT,
    USER,
    Issuer,
    running_issuer,
)
from tests.support.keys import create_key
from tests.support.streams import Client, Refused, as_text, request

NOBODY = str(uuid4())
"""The id of a session that does not exist."""


class Setup(NamedTuple):
    issuer: Issuer
    service: LocalService

    async def get(self, token: str, path: str = "/sessions") -> httpx.Response:
        return await self.service.http.get(path, headers={"Authorization": f"Bearer {token}"})

    async def statuses(self, token: str) -> set[int]:
        """Returns the statuses of the ordinary lane, the hot lane and a handshake; 200 if the token is accepted."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        hot = await self.service.http.post(f"/sessions/{NOBODY}/heartbeat", content=b"{}", headers=headers)
        try:
            stream = await Client.connect(
                self.service.port, "/sessions/stream", f"Sec-WebSocket-Protocol: tenure, tenure.bearer.{token}"
            )
            handshake = 200
            stream.disconnect()
        except Refused as refused:
            # 0 stands for a response that repeats the credential. No test expects 0.
            handshake = 0 if token in refused.head + refused.body.decode() else refused.status
        # The session does not exist, so 404 means that the token was accepted.
        return {(await self.get(token)).status_code, 200 if hot.status_code == 404 else hot.status_code, handshake}

    @property
    def verifier(self) -> OidcVerifier:
        verifier = self.service.instance._authenticator._oidc
        assert verifier is not None
        return verifier

    def caller(self, token: str) -> Caller:
        """Returns the caller of a token that the instance has already verified."""
        found = self.service.instance.pipeline.identify([(b"authorization", f"Bearer {token}".encode())])
        assert isinstance(found, Caller)
        return found


@pytest.fixture
async def setup(sqlite_database: Database) -> AsyncIterator[Setup]:
    async with running_issuer(RSA, P256) as issuer:
        issuer.clock.seconds = wall_microseconds() / 1_000_000
        oidc = issuer.config(leeway_seconds=0, staff_tenant=OTHER_TENANT)
        async with serving(sqlite_database, oidc=oidc) as service:
            yield Setup(issuer, service)


def encoded(content: Any) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_tokens_of_issuer_are_accepted_on_all_transports(setup: Setup) -> None:
    for token in (setup.issuer.token(), setup.issuer.token(P256, "ES256")):
        assert await setup.statuses(token) == {200}
        expected = CallerKind.OIDC, Role.CLIENT, Scope(TENANT, USER)
        assert (setup.caller(token).kind, setup.caller(token).role, setup.caller(token).scope) == expected


async def test_forged_foreign_and_expired_tokens_are_refused_on_all_transports(setup: Setup) -> None:
    issuer, now = setup.issuer, int(setup.issuer.clock.seconds)
    _, payload, signature = issuer.token().split(".")
    public = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{payload}"
    wrong = {
        "none": f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{payload}.",
        "none with signature": f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{payload}.{signature}",
        "HS256": f"{public}.{encoded(hmac.new(RSA.as_pem(), public.encode(), hashlib.sha256).digest())}",
        "kid": issuer.token(header={"kid": "p256"}),
        "unknown kid": issuer.token(header={"kid": "unknown"}),
        "key": issuer.token(OTHER_RSA, header={"kid": "rsa"}),
        "expired": issuer.token(exp=now - 1),
        "not yet": issuer.token(nbf=now + 600),
        "audience": issuer.token(aud="api://other"),
        "audiences": issuer.token(aud=["api://other", "api://another"]),
        "issuer": issuer.token(iss="https://login.example/other"),
        "without exp": issuer.token(exp=None),
        "malformed": "a.b.c",
        "no token": "not-a-token",
    }
    found = {name: await setup.statuses(token) for name, token in wrong.items()}
    assert found == {name: {401} for name in wrong}
    for claims in ({"tid": None}, {"oid": None}, {"roles": []}, {"tid": "common"}):
        assert await setup.statuses(issuer.token(**claims)) == {403}, claims


async def test_with_an_issuer_credentials_are_required_even_before_an_api_key_exists(setup: Setup) -> None:
    assert (await setup.service.http.get("/sessions")).status_code == 401
    key = new_api_key(Role.CLIENT)
    assert (await setup.get(key.text)).status_code == 401
    assert (await setup.get((await sign_token(setup.service.database, NOBODY))[7:])).status_code == 403
    await create_key(setup.service.database.store, key)
    await setup.service.instance._authenticator.refresh()
    assert bearer(key) == f"Bearer {key.text}"
    assert {(await setup.get(each)).status_code for each in (key.text, setup.issuer.token())} == {200}


async def test_staff_tenant_sees_all_tenants(setup: Setup) -> None:
    for role in ("reader", "operator"):
        for tenant, scope in ((OTHER_TENANT, EVERYTHING), (TENANT, Scope(TENANT))):
            token = setup.issuer.token(tid=tenant, roles=[role])
            await setup.get(token)
            assert setup.caller(token).scope == scope
    staff = setup.issuer.token(tid=OTHER_TENANT, roles=["reader"])
    assert {(await setup.get(staff, path)).status_code for path in ("/leases", "/jobs", "/keys")} == {200}


async def test_token_of_another_tenant_or_user_neither_sees_nor_opens_sessions(setup: Setup) -> None:
    own, another = setup.issuer.token(), str(uuid4())
    body = open_body(userObjectId=USER, tenantObjectId=TENANT)
    for token, expected in (
        (setup.issuer.token(tid=another), [403, 403]),
        (setup.issuer.token(oid=another), [403, 403]),
        (setup.issuer.token(tid=OTHER_TENANT), [403, 403]),
        (own, [201, 200]),
    ):
        headers = {"Authorization": f"Bearer {token}"}
        lanes = ("/sessions", "/sessions?")
        answers = [await setup.service.http.put(lane, json=body, headers=headers) for lane in lanes]
        assert [answer.status_code for answer in answers] == expected
    path = f"/sessions/{answers[-1].json()['sessionId']}"
    for token in (
        setup.issuer.token(tid=another),
        setup.issuer.token(oid=another),
        setup.issuer.token(tid=OTHER_TENANT),
    ):
        assert (await setup.get(token, path)).status_code == 404
        assert (await setup.get(token)).json()["count"] == 0
    assert (await setup.get(own, path)).status_code == 200


async def test_issuer_rotates_its_keys_without_a_failed_request(setup: Setup) -> None:
    statuses: list[int] = []
    signing = [RSA]

    async def send() -> None:
        token = setup.issuer.token(signing[0], jti=str(uuid4()))
        statuses.append((await setup.get(token)).status_code)

    for published, key in (([RSA, OTHER_RSA], RSA), ([RSA, OTHER_RSA], OTHER_RSA), ([OTHER_RSA], OTHER_RSA)):
        setup.issuer.keys, signing[0] = [*published, P256], key
        await asyncio.gather(*(send() for _ in range(10)))
    assert set(statuses) == {200}
    await setup.verifier._jwks.refresh()
    await asyncio.gather(*(send() for _ in range(10)))
    assert set(statuses) == {200}
    assert (await setup.get(setup.issuer.token(RSA))).status_code == 401


async def test_tokens_are_accepted_while_keys_cannot_be_fetched(setup: Setup) -> None:
    seen = setup.issuer.token()
    assert (await setup.get(seen)).status_code == 200
    setup.issuer.respond = setup.issuer.send_body({}, "500 Internal Server Error")
    for _ in range(120):  # as many attempts as in an hour: one every 30 s
        await setup.verifier._jwks.refresh()
    assert {(await setup.get(each)).status_code for each in (seen, setup.issuer.token(jti="new"))} == {200}
    new = setup.issuer.token(OTHER_RSA)
    # The key may be new, so the status is 503, not 401: the client should retry, and not ask its user to sign in.
    assert (await setup.get(new)).status_code == 503
    setup.issuer.keys.append(OTHER_RSA)
    setup.issuer.respond = setup.issuer.send_keys
    await setup.verifier._jwks.refresh()
    assert (await setup.get(new)).status_code == 200


async def test_flood_of_unknown_keys_causes_one_fetch(setup: Setup) -> None:
    await setup.get(setup.issuer.token())
    before = len(setup.issuer.requests)
    tokens = [setup.issuer.token(header={"kid": str(uuid4())}, jti=str(number)) for number in range(100)]
    responses = await asyncio.gather(*(setup.get(token) for token in tokens))
    assert {response.status_code for response in responses} == {401}
    assert len(setup.issuer.requests) == before + 1
    assert (await setup.get(setup.issuer.token())).status_code == 200


async def test_subject_is_named_in_audit_log(setup: Setup) -> None:
    staff = setup.issuer.token(tid=OTHER_TENANT, roles=["operator"])
    headers = {"Authorization": f"Bearer {staff}"}
    created = await setup.service.http.post("/keys", json={"name": "web", "role": "client"}, headers=headers)
    assert created.status_code == 201, created.text
    (entry,) = (await setup.get(staff, "/audit-log")).json()["entries"]
    assert (entry["subject"], entry["name"], entry["action"]) == ("oidc:a-subject", "oidc:a-subject", "key.created")


@pytest.mark.slow
async def test_stream_is_closed_when_its_token_expires_and_others_stay_open(setup: Setup) -> None:
    now = wall_microseconds() / 1_000_000
    streams = []
    for lifetime in (3, 3600):
        token = setup.issuer.token(exp=int(now) + lifetime)
        stream = await Client.connect(
            setup.service.port, "/sessions/stream", f"Sec-WebSocket-Protocol: tenure, tenure.bearer.{token}"
        )
        body = open_body(userObjectId=USER, tenantObjectId=TENANT)
        await stream.send(as_text({"type": "open", **request(**body)}))
        await stream.receive_start()
        streams.append(stream)
    messages, code = await streams[0].read_to_end()
    error = msgspec.json.decode(messages[-2])
    assert (error["code"], error["message"], code) == ("UNAUTHENTICATED", "the token has expired", 1008)
    await streams[1].send("hello")
    assert await streams[1].receive() == "hello"
    await streams[1].stop()
