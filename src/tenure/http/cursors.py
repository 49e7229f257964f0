"""The opaque cursor of a list: where the page before ended, safe in a URL."""

import base64
import binascii
from datetime import UTC

import msgspec

from tenure.errors import FieldError, Invalid
from tenure.ids import canonical_id
from tenure.model import Position

_decode = msgspec.msgpack.Decoder(Position).decode
CURSOR_MAX = 200


def cursor_of(position: Position) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).rstrip(b"=").decode()


def position_of(cursor: str) -> Position:
    try:
        position = _decode(base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        # Once in UTC, a forged instant may lie beyond the calendar.
        position.started_at.astimezone(UTC)
    except (msgspec.DecodeError, binascii.Error, ValueError, UnicodeError, OverflowError):
        position = None
    if position is None or canonical_id(position.session_id) is None or position.started_at.tzinfo is None:
        raise Invalid(FieldError("cursor", "must be the nextCursor of an earlier answer"))
    return position
