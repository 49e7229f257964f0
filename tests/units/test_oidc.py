"""Tokens of an OIDC issuer: which are accepted, and whom they identify. The issuer serves its keys over HTTP."""

import base64
import hashlib
import hmac
import inspect
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import RSAKey

from tenure.access import oidc
from tenure.access.caller import Caller, CallerKind
from tenure.access.oidc import TOKEN_MAX_CHARACTERS, OidcVerifier
from tenure.clock import from_microseconds
from tenure.domain.keys import Role
from tenure.domain.scope import EVERYTHING, Scope
from tenure.errors import Forbidden, Unauthenticated
from tests.support.issuers import (
    AUDIENCE,
    ED25519,
    OTHER_RSA,
    OTHER_TENANT,
    P256,
    P384,
    P521,
    RSA,
    START,
    TENANT,
    USER,
    Issuer,
    running_issuer,
    sent,
)

LEEWAY = 30
"""The default of `leeway_seconds`."""


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer(RSA, P256, P384, P521, ED25519) as running:
        yield running


@pytest.fixture
async def verifier(issuer: Issuer) -> OidcVerifier:
    return await issuer.loaded()


async def caller_of(verifier: OidcVerifier, token: str) -> Caller:
    found = verifier.verify(sent(token))
    return await found if inspect.isawaitable(found) else found


async def refusal_of(verifier: OidcVerifier, token: str) -> str:
    """Checks that the token is refused with 401, and returns the detail of the problem."""
    with pytest.raises(Unauthenticated) as raised:
        await caller_of(verifier, token)
    assert raised.value.headers == {"WWW-Authenticate": "Bearer"}
    return raised.value.detail


def forged(token: str, **claims: Any) -> str:
    """The token with other claims, but with its original signature."""
    header, payload, signature = token.split(".")
    content = json.loads(base64.urlsafe_b64decode(payload + "==")) | claims
    return f"{header}.{encoded(content)}.{signature}"


def encoded(content: Any) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# Signatures.


async def test_rsa_ec_and_ed25519_signatures_are_accepted(issuer: Issuer, verifier: OidcVerifier) -> None:
    rsa = [(RSA, alg) for alg in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")]
    curves = [(P256, "ES256"), (P384, "ES384"), (P521, "ES512"), (ED25519, "EdDSA"), (ED25519, "Ed25519")]
    for key, alg in (*rsa, *curves):
        caller = await caller_of(verifier, issuer.token(key, alg))
        assert (caller.scope.tenant, caller.scope.user) == (TENANT, USER), alg


async def test_unsigned_token_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    _, payload, signature = issuer.token().split(".")
    for alg in ("none", "None", "NONE", "", None, ["RS256"], 5):
        for kid in ("rsa", "unknown"):
            header = encoded({"alg": alg, "kid": kid})
            await refusal_of(verifier, f"{header}.{payload}.")
            await refusal_of(verifier, f"{header}.{payload}.{signature}")
    assert len(issuer.requests) == 1


async def test_hmac_token_signed_with_public_key_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    public = RSA.as_dict()
    secrets = [RSA.as_pem(), RSA.as_der(), str(public["n"]).encode(), json.dumps(public).encode(), b""]
    for alg, digest in (("HS256", hashlib.sha256), ("HS512", hashlib.sha512)):
        content = f"{encoded({'alg': alg, 'kid': 'rsa'})}.{encoded(issuer.claims())}"
        for secret in secrets:
            signature = hmac.new(secret, content.encode(), digest).digest()
            detail = await refusal_of(verifier, f"{content}.{encoded(signature)}")
            assert detail == "the token is not signed with a supported algorithm"


async def test_token_with_wrong_kid_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    assert (await refusal_of(verifier, issuer.token(header={"kid": "unknown"}))).startswith("the token is not signed")
    issuer.keys.append(OTHER_RSA)
    verifier = await issuer.loaded()
    detail = await refusal_of(verifier, issuer.token(RSA, header={"kid": "other-rsa"}))
    assert detail == "the signature of the token is not valid"


async def test_algorithm_that_key_does_not_allow_is_refused(issuer: Issuer) -> None:
    issuer.keys = [RSAKey.import_key(RSA.as_dict() | {"alg": "RS256"}), P256]
    verifier = await issuer.loaded()
    assert (await caller_of(verifier, issuer.token(RSA, "RS256"))).scope.user == USER
    for token in (
        issuer.token(RSA, "RS512"),
        issuer.token(RSA, "PS256"),
        issuer.token(P384, "ES384", {"kid": "p256"}),
        issuer.token(P256, "ES256", {"kid": "rsa"}),
        issuer.token(RSA, "RS256", {"kid": "p256"}),
    ):
        await refusal_of(verifier, token)
    assert len(issuer.requests) == 1


async def test_changed_token_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    for key, alg in ((RSA, "RS256"), (P256, "ES256"), (ED25519, "EdDSA")):
        token = issuer.token(key, alg)
        await caller_of(verifier, token)
        head, _, signature = token.rpartition(".")
        for changed in (
            forged(token, tid=OTHER_TENANT),
            forged(token, roles=["operator"]),
            f"{head}.",
            f"{head}.{signature[:-4]}",
            f"{head}.{encoded(b'')}{'A' * len(signature)}",
            token + "=",
        ):
            await refusal_of(verifier, changed)


async def test_keys_in_token_are_not_used(issuer: Issuer, verifier: OidcVerifier) -> None:
    own_key = {"jwk": OTHER_RSA.as_dict(), "jku": f"{issuer.address}/own", "x5u": f"{issuer.address}/own"}
    for header in (own_key, own_key | {"kid": "rsa"}):
        await refusal_of(verifier, issuer.token(OTHER_RSA, header=header))
    assert {line.split(" ")[1] for line in issuer.requests} == {"/keys?v=2"}
    # Some issuers name the address of their keys in every token.
    assert await caller_of(verifier, issuer.token(header={"jku": "https://login.example/keys", "nonce": "x"}))


async def test_critical_header_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    for crit in (["exp"], ["b64"], [], "exp", {}):
        assert "crit" in await refusal_of(verifier, issuer.token(header={"crit": crit, "b64": True}))


async def test_token_without_kid_needs_exactly_one_fitting_key(issuer: Issuer, verifier: OidcVerifier) -> None:
    for token in (issuer.token(header={"kid": None}), issuer.token(P256, "ES256", {"kid": None})):
        assert (await caller_of(verifier, token)).scope.user == USER
    issuer.keys.append(OTHER_RSA)
    verifier = await issuer.loaded()
    await refusal_of(verifier, issuer.token(header={"kid": None}))
    assert len(issuer.requests) == 2
    assert (await caller_of(verifier, issuer.token(P256, "ES256", {"kid": None}))).scope.user == USER


async def test_malformed_token_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    header, payload, signature = issuer.token().split(".")
    deep = b'{"alg":"RS256","kid":"rsa","x":' + b"[" * 3000
    malformed = (
        *("", ".", "..", "...", "a.b.c", "é.é.é", "tnr_client_x", f"{header}.{payload}", f"{header}..{signature}"),
        *(f"{header}.{payload}.{signature}.{signature}", f" {header}.{payload}.{signature}"),
        *(f"{encoded(head)}.{payload}.{signature}" for head in ([], "x", None, 5, {}, {"alg": "RS256", "kid": 5})),
        *(f"{encoded(head)}.{payload}.{signature}" for head in (b"{", b"\xff", deep, b"[" * 3000)),
    )
    for token in malformed:
        await refusal_of(verifier, token)


async def test_signed_payload_that_is_no_object_is_refused(verifier: OidcVerifier) -> None:
    for payload in (b"", b"[]", b"5", b"null", b"{", b"\xff", b"[" * 5000, b"9" * 5000):
        await refusal_of(verifier, jws.serialize_compact({"alg": "RS256", "kid": "rsa"}, payload, RSA))


async def test_long_token_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    groups = "g" * (TOKEN_MAX_CHARACTERS // 2)
    assert (await caller_of(verifier, issuer.token(groups=groups))).scope.user == USER
    assert "longer than" in await refusal_of(verifier, issuer.token(groups=groups * 2))


# Claims.


async def test_expired_token_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    now = int(START)
    assert await refusal_of(verifier, issuer.token(exp=now - LEEWAY)) == "the token has expired"
    assert await caller_of(verifier, issuer.token(exp=now - LEEWAY + 1))


async def test_token_that_is_not_yet_valid_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    now = int(START)
    for claim in ("nbf", "iat"):
        assert await refusal_of(verifier, issuer.token(**{claim: now + LEEWAY + 1})) == (
            f"the token is not valid: claim {claim}"
        )
        assert await caller_of(verifier, issuer.token(**{claim: now + LEEWAY}))
        assert await caller_of(verifier, issuer.token(**{claim: None}))


async def test_leeway_is_configurable(issuer: Issuer) -> None:
    verifier = await issuer.loaded(leeway_seconds=0)
    assert await refusal_of(verifier, issuer.token(exp=int(START))) == "the token has expired"
    assert await caller_of(verifier, issuer.token(exp=int(START) + 1))


async def test_token_without_usable_exp_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    for exp in (None, "9999999999", True, float("nan"), float("inf"), [], {}):
        assert await refusal_of(verifier, issuer.token(exp=exp)) == "the token is not valid: claim exp", exp


async def test_token_for_another_audience_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    for aud in (None, "", "api://other", AUDIENCE.upper(), f"{AUDIENCE}/", [], ["api://other"], [AUDIENCE, 5], {}, 5):
        assert await refusal_of(verifier, issuer.token(aud=aud)) == "the token is not valid: claim aud", aud
    assert await caller_of(verifier, issuer.token(aud=["api://other", AUDIENCE]))


async def test_token_of_another_issuer_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    for iss in (None, "", "https://login.example", f"{issuer.name}/", issuer.name.upper(), [issuer.name], 5):
        assert await refusal_of(verifier, issuer.token(iss=iss)) == "the token is not valid: claim iss", iss


async def test_token_without_usable_subject_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    for sub in (None, "", 5, "x" * 196, "a\0b", "a\nb", "é"):
        assert await refusal_of(verifier, issuer.token(sub=sub)) == "the token is not valid: claim sub", sub


# Callers.


async def test_caller_has_subject_tenant_user_and_role_of_token(issuer: Issuer, verifier: OidcVerifier) -> None:
    token = issuer.token(tid=TENANT.upper(), oid=USER.upper())
    expires_at = from_microseconds(int(START * 1_000_000)) + timedelta(seconds=3600 + LEEWAY)
    assert await caller_of(verifier, token) == Caller(
        CallerKind.OIDC, "oidc:a-subject", "oidc:a-subject", Role.CLIENT, Scope(TENANT, USER), expires_at=expires_at
    )


async def test_caller_is_bound_to_tenant_of_token_in_every_role(issuer: Issuer, verifier: OidcVerifier) -> None:
    for role in Role:
        caller = await caller_of(verifier, issuer.token(tid=OTHER_TENANT, roles=[role]))
        assert (caller.role, caller.scope.tenant) == (role, OTHER_TENANT)


async def test_token_without_tenant_is_forbidden_in_every_role(issuer: Issuer, verifier: OidcVerifier) -> None:
    for role in Role:
        for tid in (None, "", "common", 5, [TENANT], f"{TENANT}0"):
            with pytest.raises(Forbidden, match="claim tid"):
                await caller_of(verifier, issuer.token(tid=tid, roles=[role]))


async def test_token_needs_user_only_for_role_client(issuer: Issuer, verifier: OidcVerifier) -> None:
    with pytest.raises(Forbidden, match="claim oid"):
        await caller_of(verifier, issuer.token(oid=None))
    for role in ("reader", "operator"):
        assert (await caller_of(verifier, issuer.token(oid=None, roles=[role]))).scope.user is None


async def test_readers_and_operators_of_staff_tenant_see_all_tenants(issuer: Issuer) -> None:
    verifier = await issuer.loaded(staff_tenant=OTHER_TENANT.upper())
    for role in (Role.READER, Role.OPERATOR):
        assert (await caller_of(verifier, issuer.token(tid=OTHER_TENANT, roles=[role]))).scope == EVERYTHING
        assert (await caller_of(verifier, issuer.token(tid=TENANT, roles=[role]))).scope == Scope(TENANT)
        with pytest.raises(Forbidden, match="claim tid"):
            await caller_of(verifier, issuer.token(tid=None, roles=[role]))
    assert (await caller_of(verifier, issuer.token(tid=OTHER_TENANT))).scope == Scope(OTHER_TENANT, USER)


async def test_strongest_of_several_roles_counts(issuer: Issuer, verifier: OidcVerifier) -> None:
    for roles, strongest in (
        (["client", "reader"], Role.READER),
        (["operator", "client"], Role.OPERATOR),
        (["reader", "unknown", 5, None], Role.READER),
        ("client operator", Role.OPERATOR),
        ("client", Role.CLIENT),
    ):
        assert (await caller_of(verifier, issuer.token(roles=roles))).role is strongest, roles


async def test_token_without_role_is_forbidden(issuer: Issuer, verifier: OidcVerifier) -> None:
    for roles in (None, [], "", "Operator", ["OPERATOR", " operator"], {"operator": 1}, 5, [["operator"]]):
        with pytest.raises(Forbidden, match="claim roles"):
            await caller_of(verifier, issuer.token(roles=roles))


async def test_claims_and_roles_are_configurable(issuer: Issuer) -> None:
    verifier = await issuer.loaded(
        tenant_claim="https://claims.example/tenant",
        user_claim="uid",
        roles_claim="scp",
        roles={"Tenure.Use": "client", "Tenure.Operate": "operator"},
    )
    own = {"https://claims.example/tenant": OTHER_TENANT, "uid": TENANT, "scp": "openid Tenure.Use"}
    caller = await caller_of(verifier, issuer.token(**own))
    assert (caller.scope.tenant, caller.scope.user, caller.role) == (OTHER_TENANT, TENANT, Role.CLIENT)
    with pytest.raises(Forbidden):
        await caller_of(verifier, issuer.token(**own | {"scp": "operator client"}))


# Tokens that were seen before.


async def test_accepted_token_is_cached_with_its_expiry(issuer: Issuer, verifier: OidcVerifier) -> None:
    token = issuer.token()
    caller = await caller_of(verifier, token)
    (known,) = verifier.verified.values()
    assert (known.caller, known.expires_microseconds) == (caller, int((START + 3600 + LEEWAY) * 1_000_000))
    issuer.clock.seconds = START + 3600 + LEEWAY
    assert await refusal_of(verifier, token) == "the token has expired"


async def test_number_of_cached_tokens_is_limited(
    issuer: Issuer, verifier: OidcVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "VERIFIED_MAX", 3)
    tokens = [issuer.token(jti=str(number)) for number in range(5)]
    for token in tokens:
        await caller_of(verifier, token)
        await caller_of(verifier, tokens[0])
    assert list(verifier.verified) == [sent(token) for token in (tokens[3], tokens[4], tokens[0])]


async def test_refused_token_is_not_cached(issuer: Issuer, verifier: OidcVerifier) -> None:
    await refusal_of(verifier, issuer.token(aud="api://other"))
    with pytest.raises(Forbidden):
        await caller_of(verifier, issuer.token(roles=[]))
    assert verifier.verified == {}


async def test_cached_token_is_refused_when_its_key_is_withdrawn(issuer: Issuer, verifier: OidcVerifier) -> None:
    token = issuer.token()
    await caller_of(verifier, token)
    issuer.keys.remove(RSA)
    await verifier._jwks.refresh()
    assert verifier.verified == {}
    await refusal_of(verifier, token)


async def test_token_that_expires_after_the_year_9999_is_accepted(issuer: Issuer, verifier: OidcVerifier) -> None:
    for exp in (10**30, 1e300):
        caller = await caller_of(verifier, issuer.token(exp=exp))
        assert caller.expires_at is not None
        assert caller.expires_at.year == 9999
