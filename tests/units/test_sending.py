"""Requests to receivers, many of which misbehave: in bounded time, the sender returns a status or a one-line error
without secrets.
"""

import asyncio
import gzip
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.domain.verdicts import Response
from tenure.submissions.gateways import Sender
from tenure.submissions.response_reader import BODY_MAX_BYTES
from tenure.telemetry.events import Telemetry
from tests.support.odd_receivers import (
    TOKEN,
    Respond,
    close,
    envelope,
    gateway,
    http_response,
    never_respond,
    odd_receiver,
    reset,
    write,
    write_after,
    write_and_close,
    write_forever,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TIMEOUT_SECONDS = 0.2
"""The timeout for receivers that do not respond."""
LONG_TIMEOUT_SECONDS = 20.0
"""The timeout for receivers that respond: a busy machine may take seconds."""
BODY_SECONDS = 0.2
"""How long the sender waits for the rest of a body, instead of the usual second."""
SLACK_SECONDS = 10.0
CHUNKED = b"HTTP/1.1 %s\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
OK = http_response("200 OK")
MANY = 120


@pytest.fixture(autouse=True)
def short_body_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.submissions.client.BODY_SECONDS", BODY_SECONDS)


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    sender = Sender(Telemetry())
    yield sender
    await sender.close()


async def send_to(
    sender: Sender, respond: Respond, *, reads_requests: bool = True, seconds: float = LONG_TIMEOUT_SECONDS
) -> Response:
    async with odd_receiver(respond, reads_requests=reads_requests) as receiver:
        return await send(sender, receiver.address, seconds=seconds)


async def send(sender: Sender, url: str, payload: bytes = b"{}", seconds: float = LONG_TIMEOUT_SECONDS) -> Response:
    """Sends a request, and checks that the result took bounded time and contains no secrets."""
    began = time.monotonic()
    response = await sender.send(gateway(url, secret=SECRET), envelope(payload, seconds))
    took = time.monotonic() - began
    assert took < seconds + BODY_SECONDS + SLACK_SECONDS, f"{took:.1f} s: {response}"
    _assert_no_secrets(response)
    return response


def _assert_no_secrets(response: Response) -> None:
    if response.status is not None:
        assert response.error is None, response
        return
    assert response.error, response
    assert response.error.isprintable(), response
    secret = [word for word in (TOKEN, "whsec", "127.0.0.1", "http:", "https:", "token") if word in response.error]
    assert not secret, response


# Responses.


async def test_sender_returns_status(sender: Sender) -> None:
    heads = ["200 OK", "202 Accepted", "301 Moved", "400 Bad", "409 Conflict", "410 Gone", "500 Oops", "599 Whatever"]
    for head in heads:
        assert await send_to(sender, http_response(head, b"whatever")) == Response(int(head[:3])), head


async def test_sender_accepts_response_without_body(sender: Sender) -> None:
    assert await send_to(sender, write(b"HTTP/1.1 204 No Content\r\n\r\n")) == Response(204)


async def test_sender_accepts_response_without_reason_phrase(sender: Sender) -> None:
    assert await send_to(sender, write(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n")) == Response(200)


async def test_sender_accepts_http_1_0_response(sender: Sender) -> None:
    assert await send_to(sender, write_and_close(b"HTTP/1.0 200 OK\r\n\r\nall there is")) == Response(200)


async def test_sender_skips_interim_responses(sender: Sender) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert await send_to(sender, write(interim + b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")) == Response(
        202
    )


async def test_sender_returns_retry_after_header(sender: Sender) -> None:
    for status, header in ((429, "120"), (503, "Fri, 01 Mar 2041 12:00:00 GMT"), (429, "soon"), (503, "")):
        response = await send_to(sender, http_response(f"{status} Later", b"", f"Retry-After: {header}"))
        assert response == Response(status, retry_after=header), header


async def test_sender_does_not_follow_redirects(sender: Sender) -> None:
    async with odd_receiver(OK) as elsewhere:
        for status in (301, 302, 303, 307, 308):
            response = await send_to(sender, http_response(f"{status} Moved", b"", f"Location: {elsewhere.address}"))
            assert response == Response(status)
        assert elsewhere.connections == 0


async def test_sender_ignores_invalid_location_header(sender: Sender) -> None:
    assert await send_to(sender, http_response("302 Moved", b"", "Location: http://[::1:/%zz")) == Response(302)


async def test_sender_returns_switching_protocols_as_status(sender: Sender) -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    assert await send_to(sender, write(switch)) == Response(101)


# Bodies, which the sender ignores.


@pytest.mark.parametrize("head", [b"200 OK", b"500 Oops"])
async def test_sender_stops_reading_endless_body(sender: Sender, head: bytes) -> None:
    assert await send_to(sender, write_forever(CHUNKED % head, PIECE)) == Response(int(head[:3]))


@pytest.mark.parametrize("head", [b"200 OK", b"500 Oops"])
async def test_sender_stops_waiting_for_slow_body(sender: Sender, head: bytes) -> None:
    slow = write_forever(CHUNKED % head, b"1\r\nx\r\n", pause_seconds=0.1)
    assert await send_to(sender, slow) == Response(int(head[:3]))


async def test_slow_body_does_not_count_towards_timeout(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head arrives within the timeout, and the body takes longer."""
    monkeypatch.setattr("tenure.submissions.client.BODY_SECONDS", 0.5)
    slow = write_forever(CHUNKED % b"200 OK", b"1\r\nx\r\n", pause_seconds=0.05)
    assert await send_to(sender, write_after(0.05, slow), seconds=0.5) == Response(200)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nless",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nless",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=klingon\r\nContent-Length: 1\r\n\r\n\xff",
    ],
    ids=["truncated", "truncated chunk", "not gzip", "not text"],
)
async def test_broken_body_does_not_invalidate_response(sender: Sender, data: bytes) -> None:
    assert await send_to(sender, write_and_close(data)) == Response(200)


@pytest.mark.parametrize("data", [b"not a size\r\n", b"1\r\nxtoo much\r\n"], ids=["invalid size", "chunk too long"])
async def test_broken_chunked_encoding_does_not_invalidate_response(sender: Sender, data: bytes) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED % b"200 OK")
        await asyncio.sleep(0.1)  # data that arrives with the head is parsed with the head
        writer.write(data)
        writer.close()

    assert await send_to(sender, respond) == Response(200)


async def test_sender_does_not_decompress_body(sender: Sender) -> None:
    """Each kilobyte could expand to a megabyte."""
    packed = gzip.compress(b"\0" * 20_000_000)
    assert len(packed) < BODY_MAX_BYTES
    async with odd_receiver(http_response("200 OK", packed, "Content-Encoding: gzip")) as receiver:
        for _ in range(2):
            assert await send(sender, receiver.address) == Response(200)
        assert (receiver.connections, receiver.received[0].header("accept-encoding")) == (1, None)


# No response.

NO_RESPONSE = Response(None, f"no response within {TIMEOUT_SECONDS} seconds")
CLOSED = "the connection was closed before a response"
NOT_HTTP = "the response is not HTTP"
TOO_LARGE = "the head of the response is too large"


async def test_sender_returns_error_on_response_timeout(sender: Sender) -> None:
    assert await send_to(sender, never_respond, seconds=TIMEOUT_SECONDS) == NO_RESPONSE


async def test_sender_returns_error_when_receiver_does_not_read(sender: Sender) -> None:
    async with odd_receiver(never_respond, reads_requests=False) as receiver:
        assert await send(sender, receiver.address, b"x" * 2**20, TIMEOUT_SECONDS) == NO_RESPONSE


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-One: more\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 1000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 ", b"x" * 1000),
    ],
    ids=["headers", "one header", "interim responses", "reason"],
)
async def test_endless_response_head_is_error(sender: Sender, head: bytes, piece: bytes) -> None:
    assert await send_to(sender, write_forever(head, piece)) == Response(None, TOO_LARGE)


async def test_slow_response_head_is_timeout_error(sender: Sender) -> None:
    slow = write_forever(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", pause_seconds=0.1)
    assert await send_to(sender, slow, seconds=TIMEOUT_SECONDS) == NO_RESPONSE


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\x17\x03garbage\r\n\r\n",
        b"220 mail.example ESMTP\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/7.7 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"<html>hello</html>\r\n\r\n",
        b"\r\n" * 10,
    ],
    ids=lambda data: repr(data[:24]),
)
async def test_sender_returns_error_for_non_http_response(sender: Sender, data: bytes) -> None:
    response = await send_to(sender, write_and_close(data))
    assert response in (Response(None, NOT_HTTP), Response(None, CLOSED))


async def test_sender_returns_error_when_connection_is_closed_without_response(sender: Sender) -> None:
    assert await send_to(sender, close) == Response(None, CLOSED)


async def test_sender_returns_error_when_connection_is_closed_immediately(sender: Sender) -> None:
    response = await send_to(sender, close, reads_requests=False)
    assert (response.status, response.error and response.error.startswith("the connection")) == (None, True)


async def test_sender_returns_error_when_connection_is_reset(sender: Sender) -> None:
    response = await send_to(sender, reset)
    assert (response.status, response.error and response.error.startswith("the connection")) == (None, True)


async def test_sender_returns_error_when_response_head_is_truncated(sender: Sender) -> None:
    response = await send_to(sender, write_and_close(b"HTTP/1.1 200 OK\r\nContent-"))
    assert response in (Response(None, CLOSED), Response(None, NOT_HTTP))


async def test_sender_returns_error_when_connection_is_refused(sender: Sender) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        response = await send(sender, f"http://127.0.0.1:{bound.getsockname()[1]}/{TOKEN}")
    assert response == Response(None, "the connection failed: Connection refused")


async def test_sender_returns_error_when_host_does_not_resolve(sender: Sender) -> None:
    response = await send(sender, f"http://receiver.invalid/{TOKEN}")
    assert response == Response(None, "the host name cannot be resolved")


@pytest.mark.parametrize("host", ["a..b.invalid", "x" * 64 + ".invalid", "-.invalid"])
async def test_sender_returns_error_for_invalid_host_name(sender: Sender, host: str) -> None:
    assert await send(sender, f"http://{host}/{TOKEN}") == Response(None, "the host name cannot be resolved")


# TLS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """The TLS context of a receiver with a self-signed certificate."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key, chain = folder / "key.pem", folder / "chain.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, "-keyout", key, "-out", chain], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    return context


@pytest.fixture
def trusts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    monkeypatch.setattr("tenure.submissions.client._tls", lambda: context)


@pytest.mark.usefixtures("trusts_all")
async def test_sender_reuses_tls_connection(sender: Sender, certificate: ssl.SSLContext) -> None:
    async with odd_receiver(OK, tls=certificate) as receiver:
        for _ in range(3):
            assert await send(sender, receiver.address.replace("http:", "https:")) == Response(200)
            await asyncio.sleep(0.02)
        assert (receiver.connections, len(receiver.received)) == (1, 3)


@pytest.mark.usefixtures("trusts_all")
async def test_surplus_response_over_tls_is_not_matched_to_next_request(
    sender: Sender, certificate: ssl.SSLContext
) -> None:
    extra = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 2
    async with odd_receiver(write(extra), tls=certificate) as receiver:
        for _ in range(3):
            assert await send(sender, receiver.address.replace("http:", "https:")) == Response(200)
        assert (receiver.connections, len(receiver.received)) == (3, 3)


async def test_sender_returns_error_for_invalid_certificate(sender: Sender, certificate: ssl.SSLContext) -> None:
    async with odd_receiver(OK, tls=certificate) as receiver:
        response = await send(sender, receiver.address.replace("http:", "https:"))
    assert response == Response(None, "the certificate is not valid: self-signed certificate")
    assert receiver.received == []


async def test_sender_returns_error_when_receiver_has_no_tls(sender: Sender) -> None:
    async with odd_receiver(write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), reads_requests=False) as receiver:
        response = await send(sender, receiver.address.replace("http:", "https:"))
    assert response == Response(None, "the TLS handshake failed")


async def test_sender_returns_error_on_tls_handshake_timeout(sender: Sender) -> None:
    async with odd_receiver(never_respond, reads_requests=False) as receiver:
        response = await send(sender, receiver.address.replace("http:", "https:"), seconds=TIMEOUT_SECONDS)
    assert response == NO_RESPONSE


async def test_sender_returns_error_when_connection_is_closed_during_tls_handshake(sender: Sender) -> None:
    async with odd_receiver(close, reads_requests=False) as receiver:
        response = await send(sender, receiver.address.replace("http:", "https:"))
    assert response.status is None


# Connections.


async def test_sender_reuses_connection(sender: Sender) -> None:
    async with odd_receiver(http_response("200 OK", b"thanks")) as receiver:
        for _ in range(3):
            await send(sender, receiver.address)
        assert (receiver.connections, len(receiver.received)) == (1, 3)


async def test_sender_does_not_reuse_connection_with_unread_body(sender: Sender) -> None:
    async with odd_receiver(write_forever(CHUNKED % b"200 OK", PIECE)) as receiver:
        for _ in range(2):
            assert await send(sender, receiver.address) == Response(200)
        assert receiver.connections == 2


async def test_surplus_response_is_not_taken_for_next_request(sender: Sender) -> None:
    extra = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
    async with odd_receiver(write(extra)) as receiver:
        assert [await send(sender, receiver.address) for _ in range(2)] == [Response(200)] * 2


async def test_closed_idle_connection_does_not_fail_next_request(sender: Sender) -> None:
    async with odd_receiver(write_and_close(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as receiver:
        response = []
        for _ in range(3):
            response.append(await send(sender, receiver.address))
            await asyncio.sleep(0.02)
        assert response == [Response(200)] * 3


async def test_sender_returns_status_sent_before_request_is_read(sender: Sender) -> None:
    early = write_after(0.1, http_response("413 Too Large", b"no"))
    async with odd_receiver(early, reads_requests=False) as receiver:
        response = await sender.send(gateway(receiver.address), envelope(b"x" * 2**20, LONG_TIMEOUT_SECONDS))
    assert response == Response(413)


async def test_sender_does_not_limit_concurrency(sender: Sender) -> None:
    """The executor limits the concurrency of a gateway."""
    all_arrived = asyncio.Event()

    async def respond(writer: asyncio.StreamWriter) -> None:
        if len(receiver.received) == MANY:
            all_arrived.set()
        await all_arrived.wait()
        await OK(writer)

    async with odd_receiver(respond) as receiver:
        sending = [
            sender.send(gateway(receiver.address), envelope(timeout_seconds=LONG_TIMEOUT_SECONDS)) for _ in range(MANY)
        ]
        assert set(await asyncio.gather(*sending)) == {Response(200)}


# The request.


async def test_request_contains_exact_payload_and_content_length(sender: Sender) -> None:
    payload = b' {"a":\t1.50, "a": "\\u00e9\xc3\xa9" } '
    async with odd_receiver(OK) as receiver:
        await send(sender, receiver.address, payload)
    (received,) = receiver.received
    assert (received.line, received.body) == (f"POST /{TOKEN}/?token={TOKEN} HTTP/1.1", payload)
    assert [value for name, value in received.headers if name == "content-length"] == [str(len(payload))]
    assert received.header("transfer-encoding") is None


async def test_request_target_is_url_as_configured(sender: Sender) -> None:
    async with odd_receiver(OK) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/a%2Fb/%7e/../c;d?x=%20+%C3%A9&&y"
        await send(sender, url)
    assert receiver.received[0].line == "POST /a%2Fb/%7e/../c;d?x=%20+%C3%A9&&y HTTP/1.1"


async def test_request_contains_each_header_once(sender: Sender) -> None:
    async with odd_receiver(OK) as receiver:
        crm = gateway(receiver.address, headers={"X-Shop": "a, b", "Content-Type": "application/cloudevents+json"})
        await sender.send(crm, envelope())
    names = [name for name, _ in receiver.received[0].headers]
    assert sorted(names) == sorted(set(names))
    assert receiver.received[0].header("content-type") == "application/cloudevents+json"
    assert receiver.received[0].header("x-shop") == "a, b"


async def test_sender_ignores_cookies(sender: Sender) -> None:
    async with odd_receiver(http_response("200 OK", b"", "Set-Cookie: a=b; Path=/")) as receiver:
        for _ in range(2):
            await send(sender, receiver.address.replace("127.0.0.1", "localhost"))
        assert [received.header("cookie") for received in receiver.received] == [None, None]


async def test_sender_ignores_proxy_environment(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    async with odd_receiver(http_response("500 Oops")) as proxy, odd_receiver(OK) as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await send(sender, receiver.address) == Response(200)
        assert proxy.connections == 0


async def test_sender_ignores_netrc(sender: Sender, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password hunter2\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with odd_receiver(OK) as receiver:
        await send(sender, receiver.address)
        assert receiver.received[0].header("authorization") is None


# Closing and cancelling.


async def test_unused_sender_can_be_closed() -> None:
    await Sender(Telemetry()).close()


async def test_send_can_be_cancelled_while_waiting_for_response(sender: Sender) -> None:
    async with odd_receiver(never_respond) as receiver:
        sending = asyncio.create_task(send(sender, receiver.address))
        async with asyncio.timeout(LONG_TIMEOUT_SECONDS):
            while not receiver.received:  # noqa: ASYNC110 - the receiver sets no event
                await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.wait({sending})
        assert sending.cancelled()
