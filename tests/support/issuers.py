"""An OIDC issuer on loopback: it signs tokens, and serves its key set over HTTP or HTTPS."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from tenure.access.jwks import fetch_from
from tenure.access.oidc import OidcVerifier
from tenure.config import OidcConfig
from tests.support.telemetry import RecordedTelemetry

START = 1_800_000_000.0
AUDIENCE = "api://tenure"
TENANT = "550e8400-e29b-41d4-a716-446655440000"
OTHER_TENANT = "550e8400-e29b-41d4-a716-446655440001"
USER = "f47ac10b-58cc-4372-a567-0e02b2c3d479"

RSA = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
OTHER_RSA = RSAKey.generate_key(2048, {"kid": "other-rsa", "use": "sig"})
P256 = ECKey.generate_key("P-256", {"kid": "p256"})
P384 = ECKey.generate_key("P-384", {"kid": "p384"})
P521 = ECKey.generate_key("P-521", {"kid": "p521"})
ED25519 = OKPKey.generate_key("Ed25519", {"kid": "ed25519"})


class MovedClock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.seconds = START

    def now(self) -> float:
        return self.seconds


class SigningRegistry(JWSRegistry):
    """Signs with any algorithm that joserfc has and with any header, even an insecure algorithm or an invalid header,
    without errors or warnings.
    """

    def __init__(self) -> None:
        super().__init__(strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]

    def check_header(self, header: Any) -> None:
        pass


Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Issuer:
    def __init__(self, *keys: Key) -> None:
        self.keys = list(keys)
        self.clock = MovedClock()
        self.telemetry = RecordedTelemetry()
        self.requests: list[str] = []
        """The first lines of the requests that the server has received."""
        self.respond: Respond = self.send_keys
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return "https://login.example/tenant"

    def config(self, **given: Any) -> OidcConfig:
        return OidcConfig(
            **({"issuer": self.name, "audience": AUDIENCE, "jwks_url": f"{self.address}/keys?v=2"} | given)
        )

    def verifier(self, **given: Any) -> OidcVerifier:
        config = self.config(**given)
        return OidcVerifier(config, fetch_from(config.jwks_url), self.telemetry, self.clock.now, self.clock.now)

    async def loaded(self, **given: Any) -> OidcVerifier:
        """A verifier that has fetched the keys."""
        verifier = self.verifier(**given)
        await verifier._jwks.refresh()
        assert verifier._jwks.is_current
        return verifier

    def token(self, key: Key = RSA, alg: str = "RS256", header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A token that is valid for an hour. A header field or claim whose value is None is left out."""
        fields = {"kid": key.kid, "alg": alg, **(header or {})}
        return jwt.encode(_given(fields), _given(self.claims() | claims), key, registry=SigningRegistry())

    def claims(self) -> dict[str, Any]:
        now = int(self.clock.seconds)
        return {
            "iss": self.name,
            "aud": AUDIENCE,
            "sub": "a-subject",
            "exp": now + 3600,
            "nbf": now,
            "iat": now,
            "tid": TENANT,
            "oid": USER,
            "roles": ["client"],
        }

    async def send_keys(self, writer: asyncio.StreamWriter) -> None:
        await self.send_body({"keys": [key.as_dict() for key in self.keys]})(writer)

    @staticmethod
    def send_body(content: Any, status: str = "200 OK") -> Respond:
        body = msgspec.json.encode(content)
        return Issuer.send(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body))

    @staticmethod
    def send(data: bytes) -> Respond:
        async def respond(writer: asyncio.StreamWriter) -> None:
            writer.write(data)
            await writer.drain()

        return respond

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head.decode("ascii").split("\r\n")[0])
                await self.respond(writer)
        finally:
            writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def sent(token: str) -> bytes:
    """The value of the header Authorization."""
    return b"Bearer " + token.encode("utf-8")


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


@asynccontextmanager
async def running_issuer(*keys: Key, tls: ssl.SSLContext | None = None) -> AsyncIterator[Issuer]:
    issuer = Issuer(*keys)
    server = await asyncio.start_server(issuer.connected, "127.0.0.1", 0, ssl=tls, backlog=1000)
    port = server.sockets[0].getsockname()[1]
    issuer.address = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield issuer
    finally:
        server.close()
        await issuer.stop()
