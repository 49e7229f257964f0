"""HTTP requests: keep-alive, pipelining, limits, and malformed requests."""

import asyncio

import pytest

from tenure.receiver.messages import BODY_MAX_BYTES, HEAD_MAX_BYTES
from tests.receiver.sending import connect, deliver, exchange, keys, parsed, request, totals


def post(key: str, body: bytes = b"{}", **headers: str) -> bytes:
    return request("/usages", body, "POST", {"idempotency-key": key, **headers})


async def read_one(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(5):
        head = parsed(await reader.readuntil(b"\r\n\r\n"))
        return head.status, await reader.readexactly(int(head.headers["content-length"]))


async def test_receiver_handles_multiple_requests_per_connection(address: str) -> None:
    reader, writer = await connect(address)
    for key in ("a", "b"):
        writer.write(post(key))
        assert await read_one(reader) == (200, b"counted\n")
    writer.close()


async def test_receiver_answers_pipelined_requests_in_order(address: str) -> None:
    reader, writer = await connect(address)
    writer.write(post("a", b"1") + post("a", b"2") + post("b"))
    assert [(await read_one(reader))[0] for _ in range(3)] == [200, 422, 200]
    writer.close()


async def test_receiver_reads_request_sent_byte_by_byte(address: str) -> None:
    reader, writer = await connect(address)
    for byte in post("a", b"some body"):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await read_one(reader))[0] == 200
    assert [entry["size"] for entry in await keys(address)] == [9]
    writer.close()


async def test_receiver_accepts_body_of_maximum_size(address: str) -> None:
    assert (await deliver(address, "a", b"x" * BODY_MAX_BYTES)).status == 200
    assert (await totals(address))["bytes"] == BODY_MAX_BYTES


async def test_receiver_sends_100_continue_when_expected(address: str) -> None:
    reader, writer = await connect(address)
    head, body = post("a", b"body", expect="100-continue").split(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await read_one(reader))[0] == 200
    writer.close()


@pytest.mark.parametrize(("header", "version"), [({"connection": "close"}, b"HTTP/1.1"), ({}, b"HTTP/1.0")])
async def test_receiver_closes_connection_if_requested_or_with_http_1_0(
    address: str, header: dict[str, str], version: bytes
) -> None:
    response = await exchange(address, post("a", **header).replace(b"HTTP/1.1", version))
    assert parsed(response).headers["connection"] == "close"


async def test_receiver_does_not_count_incomplete_body(address: str) -> None:
    _, writer = await connect(address)
    writer.write(post("a", b"0123456789")[:-5])
    writer.close()
    await writer.wait_closed()
    counted = await totals(address)
    assert (counted["keys"], counted["requests"]) == (0, 0)


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"nonsense\r\n\r\n", 400, "HTTP/1.1 or HTTP/1.0"),
        (b"POST / HTTP/2.0\r\n\r\n", 400, "HTTP/1.1 or HTTP/1.0"),
        (b"POST http://[/ HTTP/1.1\r\n\r\n", 400, "a path"),
        (b"POST / HTTP/1.1\r\nnonsense\r\n\r\n", 400, "a header"),
        (b"POST / HTTP/1.1\r\nidempotency-key : a\r\n\r\n", 400, "a header"),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400, "Content-Length"),
        (b"POST / HTTP/1.1\r\ncontent-length: %s\r\n\r\n" % ("\u00b2".encode("latin-1")), 400, "Content-Length"),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (BODY_MAX_BYTES + 1), 413, str(BODY_MAX_BYTES)),
        (b"POST / HTTP/1.1\r\ncontent-length: %s\r\n\r\n" % (b"9" * 5000), 413, str(BODY_MAX_BYTES)),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411, "Content-Length"),
        (b"POST / HTTP/1.1\r\nx: " + b"x" * 2 * HEAD_MAX_BYTES, 431, str(HEAD_MAX_BYTES)),
    ],
    ids=lambda value: repr(value[:45]) if isinstance(value, bytes) else None,
)
async def test_receiver_refuses_malformed_or_oversized_request(
    address: str, sent: bytes, status: int, words: str
) -> None:
    received = parsed(await exchange(address, sent))
    assert (received.status, received.headers["connection"]) == (status, "close")
    assert words in received.reason
    assert (await totals(address))["refused"] == 1


async def test_sender_of_oversized_body_receives_response(address: str) -> None:
    """If the receiver closed the connection immediately, the connection would be reset, and the sender would lose the
    response.
    """
    received = parsed(await exchange(address, post("a", b"x" * (BODY_MAX_BYTES + 1))))
    assert received.status == 413
