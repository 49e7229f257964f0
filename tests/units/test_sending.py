"""One request to a receiver that does one odd thing: what is told of it, in one line and in bounded time."""

import asyncio
import gzip
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.submissions.sending import BODY_MAX_BYTES, BODY_SECONDS, Sender
from tenure.submissions.verdicts import Answer
from tests.support.odd_receivers import (
    TOKEN,
    Respond,
    answer,
    close,
    gateway,
    odd_receiver,
    parcel,
    reset,
    say_nothing,
    write,
    write_after,
    write_and_close,
    write_for_ever,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TIMEOUT_SECONDS = 0.5
"""Where no answer is to come in time."""
PATIENT_SECONDS = 20.0
"""Where one is: a machine that is busy with other things may take seconds over it."""
SLACK_SECONDS = 10.0
CHUNKED = b"HTTP/1.1 %s\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
OK = answer("200 OK")
MANY = 120


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    sender = Sender()
    yield sender
    await sender.close()


async def told(sender: Sender, respond: Respond, *, listens: bool = True, seconds: float = PATIENT_SECONDS) -> Answer:
    async with odd_receiver(respond, listens=listens) as receiver:
        return await send(sender, receiver.address, seconds=seconds)


async def send(sender: Sender, url: str, payload: bytes = b"{}", seconds: float = PATIENT_SECONDS) -> Answer:
    """Whatever comes back says nothing that is nobody's business, and says it in one line."""
    began = time.monotonic()
    given = await sender.send(gateway(url, secret=SECRET), parcel(payload, seconds))
    took = time.monotonic() - began
    assert took < seconds + BODY_SECONDS + SLACK_SECONDS, f"{took:.1f} s: {given}"
    _assert_discreet(given)
    return given


def _assert_discreet(given: Answer) -> None:
    if given.status is not None:
        assert given.error is None, given
        return
    assert given.error, given
    assert given.error.isprintable(), given
    secret = [word for word in (TOKEN, "whsec", "127.0.0.1", "http:", "https:", "token") if word in given.error]
    assert not secret, given


# Answers.


@pytest.mark.parametrize(
    "head", ["200 OK", "202 Accepted", "301 Moved", "400 Bad", "409 Conflict", "410 Gone", "500 Oops", "599 Whatever"]
)
async def test_tells_the_status(sender: Sender, head: str) -> None:
    assert await told(sender, answer(head, b"whatever")) == Answer(int(head[:3]))


async def test_an_answer_need_not_have_a_body(sender: Sender) -> None:
    assert await told(sender, write(b"HTTP/1.1 204 No Content\r\n\r\n")) == Answer(204)


async def test_an_answer_need_not_have_a_reason(sender: Sender) -> None:
    assert await told(sender, write(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n")) == Answer(200)


async def test_an_answer_may_be_of_the_old_version(sender: Sender) -> None:
    assert await told(sender, write_and_close(b"HTTP/1.0 200 OK\r\n\r\nall there is")) == Answer(200)


async def test_passes_by_what_comes_before_the_answer(sender: Sender) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert await told(sender, write(interim + b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")) == Answer(202)


@pytest.mark.parametrize("head", ["429 Too Many", "503 Away"])
@pytest.mark.parametrize("header", ["120", "Fri, 01 Mar 2041 12:00:00 GMT", "soon", ""])
async def test_tells_when_to_come_again(sender: Sender, head: str, header: str) -> None:
    given = await told(sender, answer(head, b"", f"Retry-After: {header}"))
    assert given == Answer(int(head[:3]), retry_after=header)


async def test_does_not_follow_a_redirect(sender: Sender) -> None:
    async with odd_receiver(OK) as elsewhere:
        for status in (301, 302, 303, 307, 308):
            given = await told(sender, answer(f"{status} Moved", b"", f"Location: {elsewhere.address}"))
            assert given == Answer(status)
        assert elsewhere.connections == 0


async def test_does_not_mind_a_location_that_is_none(sender: Sender) -> None:
    assert await told(sender, answer("302 Moved", b"", "Location: http://[::1:/%zz")) == Answer(302)


async def test_a_switch_of_protocols_is_an_answer_like_any_other(sender: Sender) -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    assert await told(sender, write(switch)) == Answer(101)


# Bodies, which are of no use.


@pytest.mark.parametrize("head", [b"200 OK", b"500 Oops"])
async def test_does_not_wait_for_the_end_of_an_endless_body(sender: Sender, head: bytes) -> None:
    assert await told(sender, write_for_ever(CHUNKED % head, PIECE)) == Answer(int(head[:3]))


@pytest.mark.parametrize("head", [b"200 OK", b"500 Oops"])
async def test_does_not_wait_for_the_end_of_a_slow_body(sender: Sender, head: bytes) -> None:
    slow = write_for_ever(CHUNKED % head, b"1\r\nx\r\n", pause_seconds=0.1)
    assert await told(sender, slow) == Answer(int(head[:3]))


async def test_a_slow_body_does_not_turn_an_answer_into_none(sender: Sender) -> None:
    """It came in time; what its body takes beyond that is not counted."""
    slow = write_for_ever(CHUNKED % b"200 OK", b"1\r\nx\r\n", pause_seconds=0.05)
    assert await told(sender, write_after(0.1 * BODY_SECONDS, slow), seconds=BODY_SECONDS) == Answer(200)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nless",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nless",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=klingon\r\nContent-Length: 1\r\n\r\n\xff",
    ],
    ids=["cut short", "a chunk cut short", "no gzip", "no text"],
)
async def test_a_broken_body_does_not_turn_an_answer_into_none(sender: Sender, data: bytes) -> None:
    assert await told(sender, write_and_close(data)) == Answer(200)


@pytest.mark.parametrize("data", [b"not a size\r\n", b"1\r\nxtoo much\r\n"], ids=["no chunk", "a chunk too long"])
async def test_broken_chunks_do_not_turn_an_answer_into_none(sender: Sender, data: bytes) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED % b"200 OK")
        await asyncio.sleep(0.1)  # what comes together with the head is judged together with it
        writer.write(data)
        writer.close()

    assert await told(sender, respond) == Answer(200)


async def test_a_body_is_not_unpacked(sender: Sender) -> None:
    """A few kilobytes of it could become gigabytes."""
    packed = gzip.compress(b"\0" * 20_000_000)
    assert len(packed) < BODY_MAX_BYTES
    async with odd_receiver(answer("200 OK", packed, "Content-Encoding: gzip")) as receiver:
        for _ in range(2):
            assert await send(sender, receiver.address) == Answer(200)
        assert (receiver.connections, receiver.received[0].header("accept-encoding")) == (1, None)


# No answer.

NO_ANSWER = Answer(None, f"no answer within {TIMEOUT_SECONDS} seconds")
CLOSED = "the connection was closed before an answer came"
NO_HTTP = "it did not answer in HTTP"


async def test_tells_that_no_answer_came_in_time(sender: Sender) -> None:
    assert await told(sender, say_nothing, seconds=TIMEOUT_SECONDS) == NO_ANSWER


async def test_tells_that_nobody_read_in_time(sender: Sender) -> None:
    async with odd_receiver(say_nothing, listens=False) as receiver:
        assert await send(sender, receiver.address, b"x" * 2**20, TIMEOUT_SECONDS) == NO_ANSWER


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-One: more\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 1000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 ", b"x" * 1000),
    ],
    ids=["headers", "a header", "interim answers", "a reason"],
)
async def test_an_answer_without_end_is_none(sender: Sender, head: bytes, piece: bytes) -> None:
    given = await told(sender, write_for_ever(head, piece), seconds=TIMEOUT_SECONDS)
    assert given in (Answer(None, NO_HTTP), NO_ANSWER)


async def test_slow_headers_are_no_answer(sender: Sender) -> None:
    slow = write_for_ever(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", pause_seconds=0.1)
    assert await told(sender, slow, seconds=TIMEOUT_SECONDS) == NO_ANSWER


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
async def test_what_is_not_http_is_no_answer(sender: Sender, data: bytes) -> None:
    given = await told(sender, write_and_close(data))
    assert given in (Answer(None, NO_HTTP), Answer(None, CLOSED))


async def test_tells_that_the_connection_was_closed_instead_of_an_answer(sender: Sender) -> None:
    assert await told(sender, close) == Answer(None, CLOSED)


async def test_tells_that_the_connection_was_closed_at_once(sender: Sender) -> None:
    given = await told(sender, close, listens=False)
    assert (given.status, given.error and given.error.startswith("the connection")) == (None, True)


async def test_tells_that_the_connection_was_reset(sender: Sender) -> None:
    given = await told(sender, reset)
    assert (given.status, given.error and given.error.startswith("the connection")) == (None, True)


async def test_tells_that_the_answer_broke_off(sender: Sender) -> None:
    given = await told(sender, write_and_close(b"HTTP/1.1 200 OK\r\nContent-"))
    assert given in (Answer(None, CLOSED), Answer(None, NO_HTTP))


async def test_tells_that_nobody_is_there(sender: Sender) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        given = await send(sender, f"http://127.0.0.1:{taken.getsockname()[1]}/{TOKEN}")
    assert given == Answer(None, "it could not be connected to: Connection refused")


async def test_tells_that_a_name_does_not_resolve(sender: Sender) -> None:
    given = await send(sender, f"http://receiver.invalid/{TOKEN}")
    assert given == Answer(None, "its host name cannot be resolved")


@pytest.mark.parametrize("host", ["a..b.invalid", "x" * 64 + ".invalid", "-.invalid"])
async def test_tells_that_a_name_is_none(sender: Sender, host: str) -> None:
    assert await send(sender, f"http://{host}/{TOKEN}") == Answer(None, "its host name cannot be resolved")


# TLS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Signed by nobody but itself."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key, chain = folder / "key.pem", folder / "chain.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, "-keyout", key, "-out", chain], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    return context


async def test_tells_that_a_certificate_is_not_valid(sender: Sender, certificate: ssl.SSLContext) -> None:
    async with odd_receiver(OK, tls=certificate) as receiver:
        given = await send(sender, receiver.address.replace("http:", "https:"))
    assert given == Answer(None, "its certificate is not valid: self-signed certificate")
    assert receiver.received == []


async def test_tells_that_there_is_no_tls(sender: Sender) -> None:
    async with odd_receiver(write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), listens=False) as receiver:
        given = await send(sender, receiver.address.replace("http:", "https:"))
    assert given == Answer(None, "a TLS connection could not be made")


async def test_tells_that_tls_did_not_come_about_in_time(sender: Sender) -> None:
    async with odd_receiver(say_nothing, listens=False) as receiver:
        given = await send(sender, receiver.address.replace("http:", "https:"), seconds=TIMEOUT_SECONDS)
    assert given == NO_ANSWER


async def test_tells_that_a_connection_was_closed_before_tls_came_about(sender: Sender) -> None:
    async with odd_receiver(close, listens=False) as receiver:
        given = await send(sender, receiver.address.replace("http:", "https:"))
    assert given.status is None


# Connections.


async def test_uses_a_connection_again(sender: Sender) -> None:
    async with odd_receiver(answer("200 OK", b"thanks")) as receiver:
        for _ in range(3):
            await send(sender, receiver.address)
        assert (receiver.connections, len(receiver.received)) == (1, 3)


async def test_does_not_use_a_connection_again_on_which_a_body_is_still_coming(sender: Sender) -> None:
    async with odd_receiver(write_for_ever(CHUNKED % b"200 OK", PIECE)) as receiver:
        for _ in range(2):
            assert await send(sender, receiver.address) == Answer(200)
        assert receiver.connections == 2


async def test_what_follows_an_answer_is_not_the_answer_to_the_next(sender: Sender) -> None:
    extra = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
    async with odd_receiver(write(extra)) as receiver:
        assert [await send(sender, receiver.address) for _ in range(2)] == [Answer(200)] * 2


async def test_an_idle_connection_that_was_closed_costs_nothing(sender: Sender) -> None:
    async with odd_receiver(write_and_close(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as receiver:
        given = []
        for _ in range(3):
            given.append(await send(sender, receiver.address))
            await asyncio.sleep(0.02)
        assert given == [Answer(200)] * 3


async def test_a_refusal_that_comes_before_the_whole_request_was_sent_is_an_answer(sender: Sender) -> None:
    """As 413 does."""
    early = answer("413 Too Large", b"no")
    async with odd_receiver(early, listens=False) as receiver:
        given = await sender.send(gateway(receiver.address), parcel(b"x" * 100, PATIENT_SECONDS))
    assert given == Answer(413)


async def test_as_many_as_there_are_go_at_once(sender: Sender) -> None:
    """The concurrency of a gateway is its executor's affair."""
    all_are_here = asyncio.Event()

    async def respond(writer: asyncio.StreamWriter) -> None:
        if len(receiver.received) == MANY:
            all_are_here.set()
        await all_are_here.wait()
        await OK(writer)

    async with odd_receiver(respond) as receiver:
        sending = [sender.send(gateway(receiver.address), parcel(timeout_seconds=PATIENT_SECONDS)) for _ in range(MANY)]
        assert set(await asyncio.gather(*sending)) == {Answer(200)}


# The request.


async def test_sends_the_bytes_and_their_length(sender: Sender) -> None:
    payload = b' {"a":\t1.50, "a": "\\u00e9\xc3\xa9" } '
    async with odd_receiver(OK) as receiver:
        await send(sender, receiver.address, payload)
    (received,) = receiver.received
    assert (received.line, received.body) == (f"POST /{TOKEN}/?token={TOKEN} HTTP/1.1", payload)
    assert [value for name, value in received.headers if name == "content-length"] == [str(len(payload))]
    assert received.header("transfer-encoding") is None


async def test_sends_the_address_as_it_was_written(sender: Sender) -> None:
    async with odd_receiver(OK) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/a%2Fb/%7e/../c;d?x=%20+%C3%A9&&y"
        await send(sender, url)
    assert receiver.received[0].line == "POST /a%2Fb/%7e/../c;d?x=%20+%C3%A9&&y HTTP/1.1"


async def test_sends_each_header_once(sender: Sender) -> None:
    async with odd_receiver(OK) as receiver:
        crm = gateway(receiver.address, headers={"X-Shop": "a, b", "Content-Type": "application/cloudevents+json"})
        await sender.send(crm, parcel())
    names = [name for name, _ in receiver.received[0].headers]
    assert sorted(names) == sorted(set(names))
    assert receiver.received[0].header("content-type") == "application/cloudevents+json"
    assert receiver.received[0].header("x-shop") == "a, b"


async def test_keeps_no_cookies(sender: Sender) -> None:
    async with odd_receiver(answer("200 OK", b"", "Set-Cookie: a=b; Path=/")) as receiver:
        for _ in range(2):
            await send(sender, receiver.address.replace("127.0.0.1", "localhost"))
        assert [received.header("cookie") for received in receiver.received] == [None, None]


async def test_asks_no_proxy(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    async with odd_receiver(answer("500 Oops")) as proxy, odd_receiver(OK) as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await send(sender, receiver.address) == Answer(200)
        assert proxy.connections == 0


async def test_takes_no_credentials_from_the_home_folder(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password hunter2\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with odd_receiver(OK) as receiver:
        await send(sender, receiver.address)
        assert receiver.received[0].header("authorization") is None


# The end.


async def test_can_be_closed_unused() -> None:
    await Sender().close()


async def test_a_request_that_is_cancelled_leaves_no_connection(sender: Sender) -> None:
    async with odd_receiver(say_nothing) as receiver:
        sending = asyncio.create_task(send(sender, receiver.address))
        async with asyncio.timeout(PATIENT_SECONDS):
            while not receiver.received:  # noqa: ASYNC110 - the receiver must not know
                await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.wait({sending})
        assert sending.cancelled()
