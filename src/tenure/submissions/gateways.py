"""Gateways: the receivers of submissions, the headers of the requests to them, and the client that sends the requests.

Only the status line and the headers of a response are used. The body is read, within limits of size and time, only so
that the connection can be reused. A failure while reading the body does not make the request fail.

No error message contains an address, because the addresses of receivers may contain tokens.
"""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import aiohttp
from aiohttp import ClientResponse
from yarl import URL

from tenure import __version__
from tenure.clock import wall_microseconds
from tenure.config import GatewayConfig
from tenure.domain.submissions import Contract, Envelope
from tenure.domain.verdicts import Response
from tenure.signing import ID, TIMESTAMP, signed_headers
from tenure.submissions.payloads import PayloadSources

IDEMPOTENCY_KEY = "idempotency-key"


class Gateway:
    """URL, secrets and headers come from the configuration; attempts and timeouts come from a submission's contract."""

    def __init__(self, name: str, config: GatewayConfig, sources: PayloadSources) -> None:
        self.name = name
        self._sources = sources
        self.url = config.url
        self.concurrency = config.concurrency
        self.contract = Contract(config.schedule, config.max_attempts, config.already_have, config.timeout_seconds)
        self._secrets = [secret for secret in (config.secret, config.previous_secret) if secret]
        own = {"user-agent": f"tenure/{__version__}"}
        self._headers = own | {name.lower(): value for name, value in config.headers.items()}

    def headers(self, envelope: Envelope, timestamp: int) -> dict[str, str]:
        key = envelope.delivery_key
        headers = {"content-type": self._sources.media_type(envelope.contract)} | self._headers | {IDEMPOTENCY_KEY: key}
        if self._secrets:
            return headers | signed_headers(self._secrets, key, timestamp, envelope.payload)
        return headers | {ID: key, TIMESTAMP: str(timestamp)}


def gateways_of(configs: Mapping[str, GatewayConfig], sources: PayloadSources) -> Mapping[str, Gateway]:
    return {name: Gateway(name, config, sources) for name, config in configs.items()}


BODY_MAX_BYTES = 64 * 1024
BODY_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
MICROSECONDS = 1_000_000


class Sender:
    def __init__(self) -> None:
        self._client: aiohttp.ClientSession | None = None

    async def send(self, gateway: Gateway, envelope: Envelope) -> Response:
        timestamp = wall_microseconds() // MICROSECONDS
        headers = gateway.headers(envelope, timestamp)
        seconds = envelope.contract.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._post(gateway.url, envelope.payload, headers)
        except TimeoutError:
            return Response(None, f"no response within {seconds:g} seconds")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Response(None, _reason(error))
        # The headers arrived in time. The timeout does not apply to the body, which has usually arrived with them.
        async with response:
            if not response.content.is_eof():
                await _drain(response)
        return Response(response.status, retry_after=response.headers.get("retry-after"))

    async def _post(self, url: str, payload: bytes, headers: dict[str, str]) -> ClientResponse:
        return await self._open().post(_address(url), data=payload, headers=headers, allow_redirects=False)

    def _open(self) -> aiohttp.ClientSession:
        """Returns the client, which the first request creates, because it belongs to the event loop that creates it."""
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                skip_auto_headers=("accept-encoding",),
            )
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


@cache
def _address(url: str) -> URL:
    """The URL exactly as it is configured."""
    return URL(url, encoded=True)


async def _drain(response: ClientResponse) -> None:
    """Reads the rest of the body. Closes the connection if the body is too long or takes too long."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(BODY_SECONDS):
            read = 0
            while not response.content.at_eof() and read <= BODY_MAX_BYTES:
                read += len(await response.content.readany())
    if not response.content.at_eof():
        response.close()


def _reason(error: Exception) -> str:
    """The reason of the failure, in one line that an operator can act on."""
    return next(say(error) for kinds, say in _REASONS if isinstance(error, kinds))


def _certificate_error(error: Any) -> str:
    return getattr(error.certificate_error, "verify_message", "") or "verification failed"


def _system_error(error: OSError) -> str:
    """The text of the error number. The message of the error itself is not used: it may contain the address."""
    return os.strerror(error.errno) if error.errno else type(error).__name__


_REASONS: Sequence[tuple[Any, Callable[[Any], str]]] = (
    (aiohttp.ClientConnectorDNSError | UnicodeError, lambda _: "the host name cannot be resolved"),
    (aiohttp.ClientConnectorCertificateError, lambda e: f"the certificate is not valid: {_certificate_error(e)}"),
    (aiohttp.ClientSSLError | ssl.SSLError, lambda _: "the TLS handshake failed"),
    (aiohttp.ClientConnectorError, lambda e: f"the connection failed: {_system_error(e.os_error)}"),
    (aiohttp.ServerDisconnectedError, lambda _: "the connection was closed before a response"),
    (aiohttp.ClientResponseError | ValueError, lambda _: "the response is not HTTP"),
    (OSError, lambda e: f"the connection broke before a response: {_system_error(e)}"),
    (Exception, lambda _: "the connection broke before a response"),
)
"""The first match is used, because some of these classes are subclasses of others."""
