"""Gateways: the receivers of submissions, the headers of the requests to them, and the sender of the requests.

Only the status line and the headers of a response are used. The body is read, within limits of size and time, only so
that the connection can be reused (`client.py`). A failure while reading the body does not make the request fail.

No error message contains the URL of a receiver, because the URL may contain a token.
"""

import os
import ssl
from collections.abc import Mapping

from tenure import __version__
from tenure.clock import monotonic, wall_microseconds
from tenure.config import GatewayConfig
from tenure.domain.submissions import Contract, Envelope
from tenure.domain.verdicts import Response
from tenure.errors import TenureError
from tenure.signing import ID, TIMESTAMP, signed_headers
from tenure.submissions.client import (
    AnsweredTooEarly,
    Disconnected,
    HttpClient,
    NotConnected,
    NotResolved,
    NotSecured,
)
from tenure.submissions.payloads import PayloadSources
from tenure.submissions.response_reader import HeadTooLarge, NotHttp
from tenure.telemetry.events import AttemptAnswered, AttemptSending, Telemetry
from tenure.telemetry.trace_context import TRACEPARENT, current_traceparent

IDEMPOTENCY_KEY = "idempotency-key"


class Gateway:
    """A receiver, as it is configured. Its `contract` is copied to each new submission.

    A request uses the URL, secrets and headers of the current configuration, but the timeout of its submission's
    contract.
    """

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


MICROSECONDS = 1_000_000


class Sender:
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._client = HttpClient()

    async def send(self, gateway: Gateway, envelope: Envelope) -> Response:
        """Sends the request of an attempt. Must run in its own task: the report of `AttemptSending` sets the context
        variable `current_trace` to the span of this attempt, and nothing resets it.
        """
        name, submission_id, began = gateway.name, envelope.submission_id, monotonic()
        self._telemetry.report(AttemptSending(name, submission_id, envelope.request_id, envelope.traceparent))
        response = await self._send(gateway, envelope)
        seconds = monotonic() - began
        self._telemetry.report(AttemptAnswered(name, submission_id, seconds, response.status, response.error))
        return response

    async def _send(self, gateway: Gateway, envelope: Envelope) -> Response:
        headers = gateway.headers(envelope, wall_microseconds() // MICROSECONDS)
        traceparent = current_traceparent()
        if traceparent is not None:
            headers[TRACEPARENT] = traceparent
        seconds = envelope.contract.timeout_seconds
        try:
            head = await self._client.post(gateway.url, headers, envelope.payload, seconds)
        except TimeoutError:
            return Response(None, f"no response within {seconds:g} seconds")
        except TenureError as error:
            return Response(None, _reason(error))
        return Response(head.status, retry_after=head.retry_after, receipt=head.receipt)

    async def close(self) -> None:
        self._client.close()


def _reason(error: TenureError) -> str:
    """The reason of the failure, in one line that an operator can act on.

    If the cause is an error of the operating system, the text of its error number is added, except after a failed name
    resolution or TLS handshake. The message of the error is not used, because it may contain the URL.
    """
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {cause.verify_message or 'verification failed'}"
    reason = _REASONS[type(error)]
    if not isinstance(cause, OSError) or isinstance(error, NotResolved | NotSecured):
        return reason
    detail = os.strerror(cause.errno) if cause.errno else type(cause).__name__
    return f"{'the connection broke before a response' if isinstance(error, Disconnected) else reason}: {detail}"


_REASONS: Mapping[type[TenureError], str] = {
    NotResolved: "the host name cannot be resolved",
    NotConnected: "the connection failed",
    NotSecured: "the TLS handshake failed",
    Disconnected: "the connection was closed before a response",
    AnsweredTooEarly: "the receiver answered before the request was sent",
    NotHttp: "the response is not HTTP",
    HeadTooLarge: "the head of the response is too large",
}
