"""The keys of an OIDC issuer: when they are fetched, how long they are kept, and which of them are used."""

import asyncio
import base64
import contextlib
import inspect
import shlex
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from joserfc.errors import UnsupportedAlgorithmError
from joserfc.jwk import ECKey, OctKey

from tenure.access import jwks
from tenure.access.caller import Caller
from tenure.access.jwks import (
    FAILURE_REPORT_SECONDS,
    RESPONSE_MAX_BYTES,
    RETRY_SECONDS,
    UNKNOWN_KEY_SECONDS,
    BoundRegistry,
    fetch_from,
    issuer_keys,
)
from tenure.access.oidc import OidcVerifier
from tenure.errors import Unauthenticated, Unavailable
from tenure.telemetry.events import OidcFetchFailed, OidcKeysLoaded
from tests.support.issuers import ED25519, P256, RSA, START, USER, Issuer, running_issuer, sent
from tests.support.waiting import until

BOUND_SECONDS = 20
HOUR = 3600
SHORT_MODULUS = base64.urlsafe_b64encode(b"\xc5" * 128).rstrip(b"=").decode()
"""The modulus of an RSA key with 1024 bits."""


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer(RSA) as running:
        yield running


async def caller_of(verifier: OidcVerifier, token: str) -> Caller:
    found = verifier.verify(sent(token))
    return await found if inspect.isawaitable(found) else found


async def is_accepted(verifier: OidcVerifier, token: str) -> bool:
    try:
        return (await caller_of(verifier, token)).scope.user == USER
    except Unauthenticated:
        return False


# Rotation.


async def test_keys_are_rotated_without_a_refused_request(issuer: Issuer) -> None:
    """Right after each fetch in the background, the issuer publishes a new key and signs with it at once."""
    verifier = await issuer.loaded()
    tokens = [issuer.token()]
    for number in range(4):
        await verifier._jwks.refresh()
        new = ECKey.generate_key("P-256", {"kid": f"new-{number}"})
        issuer.keys = [*issuer.keys[-1:], new]
        tokens.append(issuer.token(new, "ES256"))
        # The tokens of the previous key are accepted as long as the issuer publishes this key.
        results = await asyncio.gather(*(is_accepted(verifier, token) for token in tokens[-2:] * 5))
        assert results == [True] * 10
        issuer.clock.seconds += UNKNOWN_KEY_SECONDS
    assert len(issuer.requests) == 9
    assert not await is_accepted(verifier, tokens[0])


async def test_keys_are_fetched_again_if_key_was_published_during_fetch(issuer: Issuer) -> None:
    verifier = await issuer.loaded()
    answer = asyncio.Event()
    old_set = issuer.send_body({"keys": [RSA.as_dict()]})

    async def answer_late(writer: asyncio.StreamWriter) -> None:
        await answer.wait()
        await old_set(writer)
        issuer.respond = issuer.send_keys

    issuer.respond = answer_late
    refreshing = asyncio.ensure_future(verifier._jwks.refresh())
    issuer.keys.append(P256)
    accepted = [asyncio.ensure_future(is_accepted(verifier, issuer.token(P256, "ES256"))) for _ in range(5)]
    await asyncio.sleep(0)
    answer.set()
    assert await asyncio.gather(*accepted) == [True] * 5
    await refreshing
    assert len(issuer.requests) == 3


async def test_keys_are_refreshed_in_background(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(jwks, "RETRY_SECONDS", 0.01)
    verifier = issuer.verifier()
    issuer.respond = issuer.send_body({}, "503 Service Unavailable")
    verifier.start()
    await until(lambda: issuer.telemetry.of(OidcFetchFailed), BOUND_SECONDS, "a failed fetch", [])
    issuer.respond = issuer.send_keys
    await until(lambda: verifier._jwks.is_current, BOUND_SECONDS, "a successful fetch", [])
    issuer.keys = [P256]
    await until(lambda: verifier._jwks.keys[0].kid == P256.kid, BOUND_SECONDS, "the new key", [])
    assert (await caller_of(verifier, issuer.token(P256, "ES256"))).scope.user == USER
    await verifier.stop()
    assert [event.keys for event in issuer.telemetry.of(OidcKeysLoaded)] == [1, 1]
    fetched = len(issuer.requests)
    await asyncio.sleep(0.05)
    assert len(issuer.requests) == fetched


async def test_stop_ends_fetch_in_progress(issuer: Issuer) -> None:
    asked = asyncio.Event()

    async def never_answer(_writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    issuer.respond = never_answer
    verifier = issuer.verifier()
    verifier.start()
    async with asyncio.timeout(BOUND_SECONDS):
        await asked.wait()
        await verifier.stop()
    await issuer.verifier().stop()


# Failures.


async def test_keys_are_kept_while_fetches_fail_for_an_hour(issuer: Issuer) -> None:
    verifier = await issuer.loaded()
    cached = issuer.token(exp=int(START) + 2 * HOUR)
    verifier.verify(sent(cached))
    issuer.respond = issuer.send_body({"keys": []}, "503 Service Unavailable")
    for second in range(0, HOUR, int(RETRY_SECONDS)):
        issuer.clock.seconds = START + second
        await verifier._jwks.refresh()
        assert await is_accepted(verifier, cached)
        assert await is_accepted(verifier, issuer.token(jti=str(second)))
    failures = issuer.telemetry.of(OidcFetchFailed)
    assert [failure.kept_keys for failure in failures] == [1] * int(HOUR / FAILURE_REPORT_SECONDS)
    issuer.respond, issuer.keys = issuer.send_keys, [RSA, P256]
    await verifier._jwks.refresh()
    assert await is_accepted(verifier, issuer.token(P256, "ES256"))
    assert [event.keys for event in issuer.telemetry.of(OidcKeysLoaded)] == [1, 2]


async def test_token_of_unknown_key_raises_unavailable_while_fetches_fail(issuer: Issuer) -> None:
    """The issuer may have signed the token with a key that this instance has not fetched yet. So the token is not
    refused, and the response asks the client to repeat the request.
    """
    verifier = issuer.verifier()
    issuer.respond = issuer.send_body({}, "503 Service Unavailable")
    token = issuer.token()
    for _ in range(3):
        with pytest.raises(Unavailable) as raised:
            await caller_of(verifier, token)
        assert raised.value.headers == {"Retry-After": "1"}
    assert len(issuer.requests) == 1
    issuer.respond = issuer.send_keys
    issuer.clock.seconds += UNKNOWN_KEY_SECONDS
    assert await is_accepted(verifier, token)


async def test_unusable_response_keeps_the_keys(issuer: Issuer) -> None:
    verifier = await issuer.loaded()
    key_set = b'{"keys":[]}'
    responses = {
        "the key set contains no usable key": issuer.send_body({"keys": [OctKey.generate_key(256).as_dict()]}),
        "the response is not a JSON Web Key Set": issuer.send_body({"keys": 5}),
        "not a JSON": issuer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html"),
        "a JSON Web Key": issuer.send(b'HTTP/1.1 200 OK\r\n\r\n{"keys":' + b"[" * 5000),
        "status of the response is 302": issuer.send(
            b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"
        ),
        "status of the response is 404": issuer.send_body({"keys": []}, "404 Not Found"),
        "closed without a response": issuer.send(b""),
        "closed without a response (head)": issuer.send(b"HTTP/1.1 200 OK\r\nContent-"),
        "closed before the end of the response": issuer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
        "the response is not HTTP": issuer.send(b"SSH-2.0-OpenSSH\r\n"),
        "is larger than": issuer.send(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * RESPONSE_MAX_BYTES + key_set),
    }
    for part, issuer.respond in responses.items():
        issuer.clock.seconds += FAILURE_REPORT_SECONDS
        await verifier._jwks.refresh()
        failure = issuer.telemetry.of(OidcFetchFailed)[-1]
        assert part.removesuffix(" (head)") in failure.error
        assert not verifier._jwks.is_current
        assert await is_accepted(verifier, issuer.token())
    assert len(issuer.telemetry.of(OidcFetchFailed)) == len(responses)
    assert {line.split(" ")[1] for line in issuer.requests} == {"/keys?v=2"}


async def test_fetch_of_endless_response_times_out(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.01)

    verifier = await issuer.loaded()
    issuer.respond = drip
    monkeypatch.setattr(jwks, "FETCH_SECONDS", 0.2)
    await verifier._jwks.refresh()
    error = issuer.telemetry.of(OidcFetchFailed)[0].error
    assert error == "FetchFailed: no complete response within 0.2 seconds"
    assert await is_accepted(verifier, issuer.token())


async def test_refused_connection_is_reported() -> None:
    async with running_issuer(RSA) as issuer:
        pass
    verifier = issuer.verifier()
    await verifier._jwks.refresh()
    assert issuer.telemetry.of(OidcFetchFailed)[0].kept_keys == 0


# The rate of fetches.


async def test_flood_of_unknown_kids_causes_one_fetch_per_30_seconds(issuer: Issuer) -> None:
    verifier = await issuer.loaded()
    fetched = len(issuer.requests)
    for elapsed, expected in ((0, 1), (1, 1), (29.9, 1), (30, 2), (59.9, 2), (60, 3)):
        issuer.clock.seconds = START + elapsed
        tokens = [issuer.token(header={"kid": f"{elapsed}-{number}"}) for number in range(3)] * 50
        assert not any(await asyncio.gather(*(is_accepted(verifier, token) for token in tokens)))
        assert len(issuer.requests) - fetched == expected, elapsed
        assert await is_accepted(verifier, issuer.token(jti=str(elapsed)))


async def test_requests_share_fetch_that_none_of_them_can_cancel(issuer: Issuer) -> None:
    answer, asked = asyncio.Event(), asyncio.Event()

    async def answer_late(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answer.wait()
        await issuer.send_keys(writer)

    issuer.respond = answer_late
    verifier = issuer.verifier()
    requests = [asyncio.ensure_future(is_accepted(verifier, issuer.token())) for _ in range(20)]
    async with asyncio.timeout(BOUND_SECONDS):
        await asked.wait()
        requests[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await requests[0]
        answer.set()
        assert await asyncio.gather(*requests[1:]) == [True] * 19
    assert len(issuer.requests) == 1


# The key set.


def test_keys_that_must_not_verify_tokens_are_ignored() -> None:
    public: dict[str, Any] = RSA.as_dict()
    ignored = [
        OctKey.generate_key(256, {"kid": "secret", "alg": "HS256"}).as_dict(private=True),
        public | {"use": "enc"},
        public | {"key_ops": ["encrypt"]},
        public | {"key_ops": []},
        public | {"alg": "HS256"},
        public | {"alg": "RSA-OAEP"},
        public | {"alg": "none"},
        public | {"alg": "ES256"},
        public | {"n": SHORT_MODULUS},
        public | {"kid": 5},
        public | {"n": "not base64!" * 40},
        {name: value for name, value in public.items() if name != "e"},
        {name: value for name, value in public.items() if name != "kty"},
        RSA.as_dict(private=True),
        ED25519.as_dict() | {"crv": "X25519"},
        P256.as_dict() | {"crv": "P-384"},
        P256.as_dict() | {"crv": "secp256k1"},
        P256.as_dict() | {"x": "AAAA"},
        *(None, 5, [], {}, "RSA"),
    ]
    usable = [public, P256.as_dict() | {"key_ops": ["verify"], "x5c": 5, "own": {}}]
    body = msgspec.json.encode({"keys": [*ignored, *usable]})
    assert [(key.kid, sorted(key.algorithms)) for key in issuer_keys(body)] == [
        ("rsa", ["PS256", "PS384", "PS512", "RS256", "RS384", "RS512"]),
        ("p256", ["ES256"]),
    ]


def test_registry_allows_only_algorithms_of_its_key() -> None:
    for bound in (frozenset({"RS256"}), frozenset[str]()):
        for name in ("HS256", "none", "RS512", "unknown"):
            with pytest.raises(UnsupportedAlgorithmError):
                BoundRegistry(bound).get_alg(name)


# HTTP.


async def test_key_set_is_read_in_every_framing(issuer: Issuer) -> None:
    fetch = fetch_from(f"{issuer.address}/keys")
    for head, body in (
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"5\r\nfirst\r\n7\r\n second\r\n0\r\n\r\n"),
        ("HTTP/1.1 200 OK", b"first second"),
        ("HTTP/1.0 200 OK\r\nContent-Length: 12", b"first second"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: keep-alive", b"first second"),
    ):
        issuer.respond = issuer.send(f"{head}\r\n\r\n".encode() + body)
        assert await fetch() == b"first second", head


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    file = tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(file), "-out", str(file)]
    subprocess.run([*shlex.split(command), *options], check=True, capture_output=True)
    return file


async def test_keys_are_fetched_over_tls_from_trusted_host_only(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with running_issuer(RSA, tls=tls) as issuer:
        untrusting = issuer.verifier()
        await untrusting._jwks.refresh()
        assert "CERTIFICATE_VERIFY_FAILED" in issuer.telemetry.of(OidcFetchFailed)[0].error
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await is_accepted(await issuer.loaded(), issuer.token())
