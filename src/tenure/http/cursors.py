"""The opaque cursor of a list: where the page before ended, safe in a URL."""

import base64
import binascii
from datetime import UTC
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from tenure.errors import FieldError, Invalid
from tenure.ids import canonical_id
from tenure.model.sessions import Position

DIGITS_MAX = 18

_decode = msgspec.msgpack.Decoder(Position).decode


def cursor_of(position: Position) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).rstrip(b"=").decode()


def position_of(cursor: str) -> Position:
    try:
        position = _decode(_bytes(cursor))
        # Once in UTC, a forged instant may lie beyond the calendar.
        position.started_at.astimezone(UTC)
    except (msgspec.DecodeError, binascii.Error, ValueError, UnicodeError, OverflowError):
        position = None
    if position is None or canonical_id(position.session_id) is None or position.started_at.tzinfo is None:
        raise forged()
    return position


def cursor_of_id(last: str) -> str:
    """For a list in the order of its ids."""
    return base64.urlsafe_b64encode(UUID(last).bytes).rstrip(b"=").decode()


def id_of(cursor: str) -> str:
    try:
        return str(UUID(bytes=_bytes(cursor)))
    except (binascii.Error, ValueError, UnicodeError) as error:
        raise forged() from error


def cursor_of_text(last: str) -> str:
    """For a list in the order of names or numbers."""
    return base64.urlsafe_b64encode(last.encode()).rstrip(b"=").decode()


def text_of(cursor: str) -> str:
    try:
        text = _bytes(cursor).decode("ascii")
    except (binascii.Error, ValueError, UnicodeError) as error:
        raise forged() from error
    if not text or not text.isprintable():
        raise forged()
    return text


def number_of(cursor: str) -> int:
    text = text_of(cursor)
    if not text.isdecimal() or len(text) > DIGITS_MAX:
        raise forged()
    return int(text)


def next_link(path: str, query: msgspec.Struct, cursor: str) -> bytes:
    """The `Link` header of a page that is not the last."""
    given = {name: value for name, value in msgspec.to_builtins(query).items() if value is not None}
    return f'<{path}?{urlencode({**given, "cursor": cursor})}>; rel="next"'.encode()


def _bytes(cursor: str) -> bytes:
    return base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)


def forged() -> Invalid:
    return Invalid(FieldError("cursor", "must be the nextCursor of an earlier answer"))
