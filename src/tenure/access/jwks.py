"""Fetches and keeps the keys with which an OIDC issuer signs its tokens: its JSON Web Key Set.

Guarantees:

- One fetch at a time. Requests that need a new key wait for the fetch in progress. If such a request is cancelled, the
  fetch continues.
- A fetch that fails, or returns no usable key, leaves the keys as they are. They are kept for as long as fetches fail.
- Unknown keys cause at most one fetch per UNKNOWN_KEY_SECONDS, however many requests name them. Background fetches do
  not count towards this limit, so a key that was published just after a background fetch is found immediately.
- A key verifies signatures only with the algorithms that its own JWK allows. A token can only choose among them.

Interruptions: a lost or late response is a failed fetch. The background task repeats its own failed fetch after
RETRY_SECONDS. Every instance fetches the keys for itself, so instances do not affect each other. The intervals are
measured with a monotonic clock.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httptools
import msgspec
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwa import JWSAlgModel
from joserfc.jwk import Key, import_key
from joserfc.jws import JWSRegistry

from tenure.errors import ERROR_MAX, TenureError
from tenure.telemetry.events import OidcFetchFailed, OidcKeysLoaded, Telemetry

REFRESH_SECONDS = 600.0
RETRY_SECONDS = 30.0
"""The pause after a failed background fetch."""
UNKNOWN_KEY_SECONDS = 30.0
FAILURE_REPORT_SECONDS = 600.0
"""While fetches fail, an event is reported at most once in this time."""
FETCH_SECONDS = 5.0
RESPONSE_MAX_BYTES = 262_144
RECEIVE_BYTES = 65_536
TOKEN_PART_MAX_CHARACTERS = 4096
"""The maximum length of the header and of the signature of a token. A signature by an RSA key of 24 000 bits fits."""
RSA_MIN_BITS = 2048
BITS_PER_BASE64_CHARACTER = 6

RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
ALGORITHMS: Mapping[tuple[str, str | None], frozenset[str]] = {
    ("RSA", None): RSA_ALGORITHMS,
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA", "Ed25519"}),
    ("OKP", "Ed448"): frozenset({"EdDSA", "Ed448"}),
}
"""The algorithms of each kind of key, by its `kty` and `crv`. All of them are asymmetric."""
SUPPORTED = frozenset().union(*ALGORITHMS.values())

Fetch = Callable[[], Awaitable[bytes]]
"""Returns the JSON of a key set."""


class FetchFailed(TenureError):
    """There is no usable response. `status` is set if the response has another status than 200."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class IssuerKey(msgspec.Struct, frozen=True):
    kid: str | None
    algorithms: frozenset[str]
    key: Key
    registry: "BoundRegistry"


class BoundRegistry(JWSRegistry):
    """Allows the algorithms of one key.

    joserfc's own registry replaces an empty set by its recommended algorithms, which include HS256. It also warns about
    EdDSA, although only this name of the algorithm is deprecated.
    """

    max_header_length = max_signature_length = TOKEN_PART_MAX_CHARACTERS

    def __init__(self, algorithms: frozenset[str]) -> None:
        super().__init__(algorithms=algorithms, strict_check_header=False)
        self._bound = algorithms

    def get_alg(self, name: str) -> JWSAlgModel:
        if name not in self._bound:
            raise UnsupportedAlgorithmError
        return self.algorithms[name]


class Jwks:
    """The current keys of one issuer. `on_change` is called whenever they have changed."""

    def __init__(
        self, fetch: Fetch, on_change: Callable[[], None], telemetry: Telemetry, monotonic: Callable[[], float]
    ) -> None:
        self.keys: Sequence[IssuerKey] = ()
        self.is_current = False
        """Whether the last fetch succeeded. If not, the issuer may have keys that this instance does not know."""
        self._fetch = fetch
        self._on_change = on_change
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._body = b""
        self._fetching: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._next_for_unknown = self._next_report = -1.0

    def start(self) -> None:
        """Begin to refresh the keys in the background, at once and then every REFRESH_SECONDS."""
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh_forever(), context=Context())

    async def stop(self) -> None:
        tasks = [task for task in (self._refreshing, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def find(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        """Return the key for a token, or None if no key fits, or if more than one key fits."""
        fitting = [key for key in self.keys if algorithm in key.algorithms and kid in (None, key.kid)]
        return fitting[0] if len(fitting) == 1 else None

    def may_be_new(self, kid: str | None) -> bool:
        """Return whether a fetch might find the key of a token with this `kid`."""
        return not self.keys or (kid is not None and all(key.kid != kid for key in self.keys))

    async def find_new(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        """Return the key for a token that names an unknown key. First fetch the keys, if a fetch is allowed now.

        If a fetch is in progress, wait for this fetch instead.
        """
        # Try twice, because the fetch in progress may have begun before the issuer published the key.
        for _ in range(2):
            if self.may_be_new(kid) and (self._fetching is not None or self._may_fetch_for_unknown()):
                await self.refresh()
        return self.find(kid, algorithm)

    def _may_fetch_for_unknown(self) -> bool:
        """Return whether an unknown key may cause a fetch now. After a True, return False for UNKNOWN_KEY_SECONDS."""
        now = self._monotonic()
        if now < self._next_for_unknown:
            return False
        self._next_for_unknown = now + UNKNOWN_KEY_SECONDS
        return True

    async def refresh(self) -> None:
        """Fetch the keys, or wait for the fetch in progress."""
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_once(), context=Context())
        await asyncio.shield(self._fetching)

    async def _refresh_forever(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS if self.is_current else RETRY_SECONDS)

    async def _fetch_once(self) -> None:
        try:
            self._load(await self._fetch())
        except Exception as error:  # noqa: BLE001 - after any error, the keys are kept and the fetch is repeated
            self._failed(error)
        finally:
            self._fetching = None

    def _load(self, body: bytes) -> None:
        if body != self._body:
            keys = issuer_keys(body)
            if not keys:
                raise FetchFailed("the key set contains no usable key")
            self.keys, self._body = keys, body
            self._on_change()
        elif self.is_current:
            return
        self.is_current = True
        self._telemetry.report(OidcKeysLoaded(len(self.keys)))

    def _failed(self, error: Exception) -> None:
        self.is_current = False
        if self._monotonic() < self._next_report:
            return
        self._next_report = self._monotonic() + FAILURE_REPORT_SECONDS
        self._telemetry.report(OidcFetchFailed(f"{type(error).__name__}: {error}"[:ERROR_MAX], len(self.keys)))


# The key set.


class _Jwk(msgspec.Struct, frozen=True):
    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None
    crv: str | None = None
    n: str | None = None
    e: str | None = None
    x: str | None = None
    y: str | None = None
    d: str | None = None


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[Any]


def issuer_keys(body: bytes) -> Sequence[IssuerKey]:
    """Return the usable keys of a key set. Other keys, such as those for encryption, are ignored."""
    try:
        key_set = msgspec.json.decode(body, type=_KeySet)
    except (msgspec.DecodeError, RecursionError):
        raise FetchFailed("the response is not a JSON Web Key Set") from None
    return [key for each in key_set.keys if (key := _issuer_key(each)) is not None]


def _issuer_key(content: Any) -> IssuerKey | None:
    try:
        jwk = msgspec.convert(content, _Jwk)
        algorithms = _algorithms_of(jwk)
        if not algorithms:
            return None
        # Pass on only the parameters of the public key: others are not needed, and may be malformed.
        key = import_key({name: value for name in ("kty", "crv", "n", "e", "x", "y") if (value := getattr(jwk, name))})
    except (msgspec.ValidationError, JoseError, ValueError):
        return None
    return IssuerKey(jwk.kid, algorithms, key, BoundRegistry(algorithms))


def _algorithms_of(jwk: _Jwk) -> frozenset[str]:
    """Return the algorithms that a key may verify: the empty set if the key must not verify tokens at all."""
    if jwk.use not in (None, "sig") or (jwk.key_ops is not None and "verify" not in jwk.key_ops):
        return frozenset()
    # A published private key lets any attacker sign, and a short key can be broken.
    if jwk.d is not None or (jwk.n is not None and len(jwk.n) * BITS_PER_BASE64_CHARACTER < RSA_MIN_BITS):
        return frozenset()
    fitting = ALGORITHMS.get((jwk.kty, jwk.crv), frozenset())
    return fitting if jwk.alg is None else fitting & {jwk.alg}


# HTTP.


def fetch_from(url: str) -> Fetch:
    """Return a function that fetches a key set with one GET request, within FETCH_SECONDS and without redirects.

    A redirect is a failure, because its target may be an http address.
    """
    send = sender_to(url, "GET")

    async def fetch() -> bytes:
        return await send(b"")

    return fetch


def sender_to(url: str, method: str, *headers: str) -> Callable[[bytes], Awaitable[bytes]]:
    """Return a function that sends its argument as the body of a request, and returns the body of a 200 response."""
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", "Accept: application/json", "Connection: close"]
    head = "\r\n".join([*lines, *headers]).encode("ascii")

    async def send(body: bytes) -> bytes:
        length = b"\r\nContent-Length: %d" % len(body) if body else b""
        request = head + length + b"\r\n\r\n" + body
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
        try:
            writer.write(request)
            return await _read_body(reader)
        finally:
            writer.transport.abort()

    async def send_in_time(body: bytes) -> bytes:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await send(body)
        except TimeoutError:
            raise FetchFailed(f"no complete response within {FETCH_SECONDS:g} seconds") from None

    return send_in_time


class _Response:
    """Collects the arguments of the parser's callbacks."""

    def __init__(self) -> None:
        self.body = b""
        self.has_head = False
        self.has_length = False
        """Whether a header says where the body ends. Without such a header, the body ends with the connection."""
        self.is_complete = False

    def on_header(self, name: bytes, _value: bytes) -> None:
        self.has_length |= name.lower() in {b"content-length", b"transfer-encoding"}

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True


async def _read_body(reader: asyncio.StreamReader) -> bytes:
    response, received = _Response(), 0
    parser = httptools.HttpResponseParser(response)
    while not response.is_complete and (data := await reader.read(RECEIVE_BYTES)):
        received += len(data)
        if received > RESPONSE_MAX_BYTES:
            raise FetchFailed(f"the response is larger than {RESPONSE_MAX_BYTES} bytes")
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise FetchFailed(f"the response is not HTTP: {error}") from None
    if not response.has_head:
        raise FetchFailed("the connection was closed without a response")
    if parser.get_status_code() != HTTPStatus.OK:
        status = parser.get_status_code()
        raise FetchFailed(f"the status of the response is {status}", status)
    if response.has_length and not response.is_complete:
        raise FetchFailed("the connection was closed before the end of the response")
    return response.body
