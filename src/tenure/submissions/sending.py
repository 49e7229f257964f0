"""One request to a gateway, and in one line what came of it.

An answer is its status line and headers. Its body is of no use to us: it is read only as far and as long as it takes
to use the connection again, and never makes a request fail that was answered.

No message contains an address: receivers put tokens into theirs.
"""

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import aiohttp
from aiohttp import ClientResponse
from yarl import URL

from tenure.clock import wall_microseconds
from tenure.model.submissions import Parcel
from tenure.submissions.gateways import Gateway
from tenure.submissions.verdicts import Answer

BODY_MAX_BYTES = 64 * 1024
BODY_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
MICROSECONDS = 1_000_000


class Sender:
    def __init__(self) -> None:
        self._client: aiohttp.ClientSession | None = None

    async def send(self, gateway: Gateway, parcel: Parcel) -> Answer:
        timestamp = wall_microseconds() // MICROSECONDS
        headers = gateway.headers(parcel, timestamp)
        seconds = parcel.contract.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._post(gateway.url, parcel.payload, headers)
        except TimeoutError:
            return Answer(None, f"no answer within {seconds:g} seconds")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, _why(error))
        # It came in time: what its body takes is not counted, and it has mostly come along.
        async with response:
            if not response.content.is_eof():
                await _read_to_the_end(response)
        return Answer(response.status, retry_after=response.headers.get("retry-after"))

    async def _post(self, url: str, payload: bytes, headers: dict[str, str]) -> ClientResponse:
        return await self._open().post(_address(url), data=payload, headers=headers, allow_redirects=False)

    def _open(self) -> aiohttp.ClientSession:
        """Made by the first request: it belongs to the loop that it is made on."""
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
    """As it stands in the configuration."""
    return URL(url, encoded=True)


async def _read_to_the_end(response: ClientResponse) -> None:
    """What does not end soon costs the connection."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(BODY_SECONDS):
            read = 0
            while not response.content.at_eof() and read <= BODY_MAX_BYTES:
                read += len(await response.content.readany())
    if not response.content.at_eof():
        response.close()


def _why(error: Exception) -> str:
    """One line that a person can act on."""
    return next(say(error) for kinds, say in _REASONS if isinstance(error, kinds))


def _certificate_trouble(error: Any) -> str:
    return getattr(error.certificate_error, "verify_message", "") or "it could not be verified"


def _system_trouble(error: OSError) -> str:
    """Not what the error itself says: that may name the address."""
    return os.strerror(error.errno) if error.errno else type(error).__name__


_REASONS: Sequence[tuple[Any, Callable[[Any], str]]] = (
    (aiohttp.ClientConnectorDNSError | UnicodeError, lambda _: "its host name cannot be resolved"),
    (aiohttp.ClientConnectorCertificateError, lambda e: f"its certificate is not valid: {_certificate_trouble(e)}"),
    (aiohttp.ClientSSLError | ssl.SSLError, lambda _: "a TLS connection could not be made"),
    (aiohttp.ClientConnectorError, lambda e: f"it could not be connected to: {_system_trouble(e.os_error)}"),
    (aiohttp.ServerDisconnectedError, lambda _: "the connection was closed before an answer came"),
    (aiohttp.ClientResponseError | ValueError, lambda _: "it did not answer in HTTP"),
    (OSError, lambda e: f"the connection broke before an answer came: {_system_trouble(e)}"),
    (Exception, lambda _: "the connection broke before an answer came"),
)
"""The first that fits: some are kinds of others."""
