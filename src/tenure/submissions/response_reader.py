"""Reads one response of a receiver from the bytes of its connection. No I/O, no clock.

The reader is strict, because its result decides whether a payload counts as delivered:

- the connection is reused only if the reader knows exactly where the response ends, and no byte follows. A further byte
  may be the beginning of another response, which must not be assigned to the next request;
- everything that it reads has a limit: the bytes of all heads together, the number of interim (1xx) responses and
  headers, and the bytes and chunks of the body. The connection to a receiver that exceeds a limit is closed, so such a
  receiver cannot block the event loop.

Only the status and a few headers are used. The body is read only to find its end, so that the connection can be reused.
A body that is broken or too long does not invalidate the response.
"""

import re

import msgspec

from tenure.errors import TenureError

HEAD_MAX_BYTES = 32 * 1024
"""The limit on the heads of a response, including those of interim responses."""
HEADERS_MAX = 128
INTERIM_MAX = 32
BODY_MAX_BYTES = 64 * 1024
CHUNKS_MAX = 256
SWITCHING_PROTOCOLS = 101
WITHOUT_BODY = (204, 304)

_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_END_OF_HEAD_BYTES = 4
_VERSION = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t -~\x80-\xff]*)?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_TRAILERS = re.compile(rb"(?:[^\r\n]+\r\n)*\r\n")
_USED = frozenset((b"content-length", b"transfer-encoding", b"connection", b"retry-after", b"tenure-receipt"))


class NotHttp(TenureError):
    """The bytes are not a response of HTTP/1.1 or HTTP/1.0."""


class HeadTooLarge(TenureError):
    """The head of the response, or the number of its headers or interim responses, exceeds a limit."""


class ResponseHead(msgspec.Struct, frozen=True):
    status: int
    keep_alive: bool
    """Whether the receiver keeps the connection open after the response. False also if the end of the response is
    ambiguous."""
    length: int | None
    """The value of `content-length`; None if this header is missing, or if the response has a transfer encoding."""
    chunked: bool
    retry_after: str | None
    receipt: str | None


class ResponseReader:
    """Reads one final response, and skips the interim responses before it."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.is_done = False
        """Whether the response has ended, or its remaining bytes are not needed."""
        self.is_reusable = False
        """Whether the response has ended, no byte followed it, and the receiver keeps the connection open."""
        self.has_surplus = False
        """Whether bytes followed the response."""
        self._unread = b""
        self._head_bytes = 0
        self._interim = 0
        self._body_bytes = 0
        self._chunks = 0

    def feed(self, data: bytes) -> None:
        """Reads the next bytes. Raises `NotHttp` or `HeadTooLarge` if the head of the response is not valid. Call it
        only until `is_done` is set.
        """
        if self.head is None:
            self._read_heads(data)
        else:
            self._read_body(self.head, data)

    def _read_heads(self, data: bytes) -> None:
        searched = max(0, len(self._unread) - _END_OF_HEAD_BYTES + 1)
        data = self._unread + data if self._unread else data
        while True:
            end = _END_OF_HEAD.search(data, searched)
            size = len(data) if end is None else end.end()
            if self._head_bytes + size > HEAD_MAX_BYTES:
                raise HeadTooLarge
            if end is None:
                if not data.startswith(_VERSION[: len(data)]):
                    raise NotHttp
                self._unread = data
                return
            self._head_bytes += size
            head = parse_head(data[: end.start()])
            data, searched = data[size:], 0
            if head.status // 100 != 1 or head.status == SWITCHING_PROTOCOLS:
                self.head, self._unread = head, b""
                self._begin_body(head, data)
                return
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise HeadTooLarge

    def _begin_body(self, head: ResponseHead, data: bytes) -> None:
        if head.status in WITHOUT_BODY:
            self._end(head, surplus=len(data))
        elif head.status == SWITCHING_PROTOCOLS or not (head.chunked or head.length is not None):
            self.is_done = True  # the bytes that follow end only with the connection
        elif head.length is not None and head.length > BODY_MAX_BYTES:
            self.is_done = True
        else:
            self._read_body(head, data)

    def _read_body(self, head: ResponseHead, data: bytes) -> None:
        self._body_bytes += len(data)
        if head.length is not None:
            if self._body_bytes >= head.length:
                self._end(head, surplus=self._body_bytes - head.length)
        elif self._body_bytes > BODY_MAX_BYTES:
            self.is_done = True
        else:
            self._read_chunks(head, self._unread + data)

    def _read_chunks(self, head: ResponseHead, data: bytes) -> None:
        at = 0
        while size := _CHUNK_SIZE.match(data, at):
            end = size.end() + int(size[1], 16)
            if end == size.end():
                trailers = _TRAILERS.match(data, end)
                if trailers is not None:
                    self._end(head, surplus=len(data) - trailers.end())
                    return
                break
            if end + 2 > len(data):
                break
            self._chunks += 1
            if data[end : end + 2] != b"\r\n" or self._chunks > CHUNKS_MAX:
                self.is_done = True
                return
            at = end + 2
        else:
            # The line with the size of the next chunk is either incomplete, or complete but not valid.
            if b"\n" in data[at:]:
                self.is_done = True
                return
        self._unread = data[at:]

    def _end(self, head: ResponseHead, surplus: int) -> None:
        self.is_done = True
        self.has_surplus = surplus > 0
        self.is_reusable = head.keep_alive and not self.has_surplus


def parse_head(data: bytes) -> ResponseHead:
    """Parses a head, given without the empty line at its end. Raises `NotHttp` or `HeadTooLarge` if it is not valid."""
    if data.count(b"\n") > HEADERS_MAX:
        raise HeadTooLarge
    first, *lines = data.split(b"\n")
    status_line = _STATUS_LINE.fullmatch(first.removesuffix(b"\r"))
    if status_line is None:
        raise NotHttp
    fields: dict[bytes, list[bytes]] = {}
    for line in lines:
        header = _HEADER.fullmatch(line.removesuffix(b"\r"))
        if header is None:
            raise NotHttp
        name = header[1].lower()
        if name in _USED:
            fields.setdefault(name, []).append(header[2].rstrip(b" \t"))
    length, encodings = _length(fields.get(b"content-length", [])), fields.get(b"transfer-encoding", [])
    options = b",".join(fields.get(b"connection", [])).lower()
    # If a response has both `content-length` and a transfer encoding, or an encoding other than chunked, its end is
    # ambiguous.
    unclear = bool(encodings) and (length is not None or [each.lower() for each in encodings] != [b"chunked"])
    return ResponseHead(
        status=int(status_line[2]),
        keep_alive=not unclear and b"close" not in options and (status_line[1] == b"1" or b"keep-alive" in options),
        length=None if encodings else length,
        chunked=bool(encodings) and not unclear,
        retry_after=_text(fields.get(b"retry-after", [])[:1]),
        receipt=_text(fields.get(b"tenure-receipt", [])),
    )


def _length(values: list[bytes]) -> int | None:
    if not values:
        return None
    if len(set(values)) > 1 or not _LENGTH.fullmatch(values[0]):
        raise NotHttp
    return int(values[0])


def _text(values: list[bytes]) -> str | None:
    return b", ".join(values).decode("latin-1") if values else None
