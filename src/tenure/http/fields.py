"""Field types that several resources share, and the formatting of instants and durations."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, cast, overload

from msgspec import Meta

from tenure.clock import instant_text
from tenure.errors import FieldError, Invalid

UUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
MICROSECONDS = 1_000_000
LIMIT_MAX = 500
CURSOR_MAX = 300

Uuid = Annotated[
    str,
    # The length is checked because `$` also matches before a trailing newline.
    Meta(pattern=UUID_PATTERN, max_length=36, extra_json_schema={"format": "uuid"}, extra={"must": "must be a UUID"}),
]
KindNumber = Annotated[Literal[1, 2, 3], Meta(extra={"must": "must be 1, 2 or 3"})]
Instant = Annotated[datetime, Meta(extra_json_schema={"format": "date-time"}, examples=["2026-01-02T03:04:05.000000Z"])]
GivenInstant = Annotated[
    datetime, Meta(tz=True, extra={"must": "must be an instant with an offset, such as 2026-01-02T03:04:05Z"})
]
PageLimit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, extra={"must": "must be a whole number from 1 to 500"})]
Cursor = Annotated[str, Meta(max_length=CURSOR_MAX, extra={"must": "must be the nextCursor of a previous response"})]
IdCursor = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9_-]{22}$",
        max_length=22,
        extra={"must": "must be the nextCursor of a previous response"},
    ),
]


def instant(value: datetime) -> datetime:
    """Return a value that msgspec encodes as ISO 8601 in UTC with six decimals.

    msgspec encodes a datetime ten times as fast as `isoformat`, but omits the decimals if they are all zero. In that
    case, for one instant in a million, this function formats the text.
    """
    return value if value.microsecond else cast("Any", instant_text(value))


@overload
def in_utc(field: str, value: datetime) -> datetime: ...
@overload
def in_utc(field: str, value: datetime | None) -> datetime | None: ...
def in_utc(field: str, value: datetime | None) -> datetime | None:
    try:
        return value and value.astimezone(UTC)
    except OverflowError as error:
        raise Invalid(FieldError(field, "must be between the years 1 and 9999 in UTC")) from error


def seconds_number(microseconds: int | None) -> float | int | None:
    """Return a number of seconds, as an integer if it is whole."""
    if microseconds is None:
        return None
    whole, rest = divmod(microseconds, MICROSECONDS)
    return microseconds / MICROSECONDS if rest else whole
