"""The reader of a response: where the response ends, the bytes after it, and the limits on its size."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.submissions.response_reader import (
    BODY_MAX_BYTES,
    CHUNKS_MAX,
    HEAD_MAX_BYTES,
    HEADERS_MAX,
    INTERIM_MAX,
    HeadTooLarge,
    NotHttp,
    ResponseReader,
)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
COMPLETE = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 409\nContent-Length: 0\n\n",
    b"HTTP/1.0 202 Accepted\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
    CONTINUE + b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    CHUNKED + b"0\r\n\r\n",
    CHUNKED + b"5;a=b\r\nhello\r\n1 \r\n.\r\n0\r\nTrailer: x\r\n\r\n",
]
"""Responses after which the connection can be used again."""


def read(*pieces: bytes) -> ResponseReader:
    reader = ResponseReader()
    for piece in pieces:
        assert not reader.is_done, piece
        reader.feed(piece)
    return reader


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    ends = sorted({cut % len(data) for cut in cuts} | {len(data)} - {0})
    yield from (data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start)


@given(data=st.sampled_from(COMPLETE), cuts=st.lists(st.integers(0, 500), max_size=8))
def test_response_ends_at_its_last_byte_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    *others, last = pieces(data, cuts)
    reader = read(*others)
    assert not reader.is_done
    reader.feed(last)
    assert (reader.is_done, reader.is_reusable, reader.has_surplus) == (True, True, False)


@pytest.mark.parametrize("data", COMPLETE, ids=range(len(COMPLETE)))
@pytest.mark.parametrize("surplus", [b"\n", b"\r\n", b"H", CONTINUE, b"HTTP/1.1 200 OK\r\n\r\n"], ids=range(5))
def test_byte_after_response_prevents_reuse_of_connection(data: bytes, surplus: bytes) -> None:
    reader = read(data + surplus)
    assert (reader.is_done, reader.is_reusable, reader.has_surplus) == (True, False, True)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (BODY_MAX_BYTES + 1),
        CHUNKED + b"x\r\n",
        CHUNKED + b"1\r\nxy\r\n",
        CHUNKED + b"1\r\nx\r\n" * (CHUNKS_MAX + 1),
        CHUNKED + b"10000\r\n" + b"x" * 0x10000 + b"\r\n1",
    ],
    ids=lambda data: repr(data[9:60]),
)
def test_connection_is_not_reused_if_end_of_response_is_unclear_or_far(data: bytes) -> None:
    reader = read(data)
    assert (reader.is_done, reader.is_reusable) == (True, False)
    assert reader.head is not None


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"ICY 200 OK",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_invalid_head_is_not_http(data: bytes) -> None:
    with pytest.raises(NotHttp):
        read(data)


@pytest.mark.parametrize(
    ("allowed", "too_much"),
    [
        (CONTINUE * INTERIM_MAX, CONTINUE),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * HEADERS_MAX, b"a: b\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\na: ".ljust(HEAD_MAX_BYTES, b"x"), b"x"),
    ],
    ids=["interim responses", "headers", "bytes"],
)
def test_head_has_limits(allowed: bytes, too_much: bytes) -> None:
    reader = read(allowed)
    with pytest.raises(HeadTooLarge):
        reader.feed(too_much)


def test_headers_are_those_of_final_response_without_its_trailers() -> None:
    interim = b"HTTP/1.1 102 Processing\r\nRetry-After: 1\r\n\r\n"
    head = read(interim + CHUNKED + b"0\r\nRetry-After: 2\r\nTenure-Receipt: x\r\n\r\n").head
    assert head is not None
    assert (head.retry_after, head.receipt) == (None, None)


def test_repeated_receipts_are_joined_and_first_retry_after_is_used() -> None:
    head = read(
        b"HTTP/1.1 200 OK\r\nTENURE-RECEIPT: a\r\nTenure-Receipt:b \r\nRetry-After: 1\r\nRetry-After: 2\r\n\r\n"
    ).head
    assert head is not None
    assert (head.receipt, head.retry_after) == ("a, b", "1")
