"""Pages of lists, and the opaque, URL-safe cursors that mark where a page ended."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.events import CLOSE_RANK, END_RANK, START_RANK, EventPosition
from tenure.domain.leases import LeaseTerm, TermPosition
from tenure.domain.sessions import LapsePosition, Position
from tenure.errors import FieldError, Invalid
from tenure.http.answers import JSON, Answer
from tenure.ids import canonical_id
from tenure.naming import Names

T = TypeVar("T")


def page(
    found: Sequence[T],
    query: Any,
    path: str,
    cursor_after: Callable[[T], str],
    listed: Callable[..., Any],
    resume: str | None = None,
) -> Answer:
    """Return the answer for one page. `found` has up to `query.limit` + 1 items: the extra item shows that there is a
    next page. If the read stopped before the page was full, `resume` is the cursor of the next page.

    `listed` builds the body from the items of this page, their number and the cursor of the next page.
    """
    shown = found[: query.limit]
    cursor = cursor_after(shown[-1]) if len(found) > len(shown) else resume
    headers = list(JSON)
    if cursor is not None:
        headers.append((b"link", next_link(path, query, cursor)))
    return Answer(listed(shown, len(shown), cursor), 200, headers)


DIGITS_MAX = 18
EPOCH_END = 1 << 63

_decode = msgspec.msgpack.Decoder(Position).decode


def cursor_of(position: Position) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).rstrip(b"=").decode()


def position_of(cursor: str) -> Position:
    try:
        position = _decode(_bytes(cursor))
        # The instant of a forged cursor may be out of range once it is converted to UTC.
        position.started_at.astimezone(UTC)
    except (msgspec.DecodeError, binascii.Error, ValueError, UnicodeError, OverflowError):
        position = None
    if (
        position is None
        or canonical_id(position.session_id) != position.session_id
        or position.started_at.tzinfo is None
    ):
        raise forged()
    return position


_decode_lapse_position = msgspec.msgpack.Decoder(tuple[int, bytes]).decode


def cursor_of_lapse(position: LapsePosition) -> str:
    """Return the cursor of a position in the order of deadlines."""
    values = to_microseconds(position.deadline_at), UUID(position.session_id).bytes
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(values)).rstrip(b"=").decode()


def lapse_position_of(cursor: str) -> LapsePosition:
    try:
        microseconds, session_id = _decode_lapse_position(_bytes(cursor))
        return LapsePosition(from_microseconds(microseconds), str(UUID(bytes=session_id)))
    except (msgspec.DecodeError, binascii.Error, ValueError, UnicodeError, OverflowError) as error:
        raise forged() from error


_decode_event_position = msgspec.msgpack.Decoder(tuple[int, int, bytes]).decode


def cursor_of_event(position: EventPosition) -> str:
    """Return the cursor of a position in the feed of events. It has 39 characters or fewer."""
    values = (to_microseconds(position.at), position.rank, UUID(position.session_id).bytes)
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(values)).rstrip(b"=").decode()


def event_position_of(cursor: str) -> EventPosition:
    try:
        microseconds, rank, session_id = _decode_event_position(_bytes(cursor))
        position = EventPosition(from_microseconds(microseconds), rank, str(UUID(bytes=session_id)))
    except (msgspec.DecodeError, binascii.Error, ValueError, UnicodeError, OverflowError) as error:
        raise forged() from error
    if rank not in (CLOSE_RANK, START_RANK, END_RANK):
        raise forged()
    return position


_decode_term = msgspec.msgpack.Decoder(tuple[int, int, str]).decode


def cursor_of_term(term: LeaseTerm) -> str:
    values = (to_microseconds(term.acquired_at), term.epoch, term.name)
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(values)).rstrip(b"=").decode()


def term_position_of(cursor: str) -> TermPosition:
    try:
        microseconds, epoch, name = _decode_term(_bytes(cursor))
        position = TermPosition(from_microseconds(microseconds), name, epoch)
    except (msgspec.DecodeError, binascii.Error, ValueError, UnicodeError, OverflowError) as error:
        raise forged() from error
    if not (name.isascii() and name.isprintable() and 0 <= epoch < EPOCH_END):
        raise forged()
    return position


def cursor_of_id(last: str) -> str:
    """Return the cursor of the page that begins after the id `last`."""
    return base64.urlsafe_b64encode(UUID(last).bytes).rstrip(b"=").decode()


def id_of(cursor: str) -> str:
    try:
        return str(UUID(bytes=_bytes(cursor)))
    except (binascii.Error, ValueError, UnicodeError) as error:
        raise forged() from error


def cursor_of_text(last: str) -> str:
    """Return the cursor that contains `last`: the name or number of the last item, or several values with spaces."""
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
    """Return the value of the `Link` header, which points to the next page."""
    given = {name: value for name, value in msgspec.to_builtins(query).items() if value is not None}
    return f'<{path}?{urlencode({**given, "cursor": cursor})}>; rel="next"'.encode()


def in_link(link: bytes, names: Names) -> bytes:
    """Return the value of a `Link` header with its parameter names in the style of `names`."""
    return _PARAMETER.sub(lambda found: found[1] + names.name(found[2].decode()).encode(), link)


_PARAMETER = re.compile(rb"([?&])([A-Za-z]+)(?==)")


def _bytes(cursor: str) -> bytes:
    return base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)


def forged() -> Invalid:
    return Invalid(FieldError("cursor", "must be the nextCursor of a previous response"))
