"""Decodes bodies, headers and queries by the same rules for every route.

`Invalid` names every wrong field. Unknown fields of bodies and queries are errors.
"""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from tenure.domain.leases import NAME_MAX
from tenure.errors import FieldError, Invalid, NotFound, TooLarge, UnsupportedMediaType

T = TypeVar("T", bound=msgspec.Struct)

BODY_MAX_BYTES = 64 * 1024
PARAMETERS_MAX = 50
UNKNOWN_MAX = 20
"""How many unknown fields one error response may name. A body of 64 KiB could otherwise cause a megabyte of errors."""
JSON = (b"application/json",)


async def read_body(receive: Callable[[], Awaitable[Any]], max_bytes: int = BODY_MAX_BYTES) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            # The received part may be valid JSON, but the client never finished the request.
            raise Invalid(FieldError("body", "is incomplete"))
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > max_bytes:
            raise too_large(max_bytes)
    return bytes(body)


def check_media_type(headers: Iterable[tuple[bytes, bytes]], allowed: Sequence[bytes] = JSON) -> None:
    found = False
    for name, value in headers:
        if name == b"content-type":
            found = value in allowed or value.partition(b";")[0].strip().lower() in allowed
            if not found:
                break
    if not found:
        raise UnsupportedMediaType(f"the body must be {allowed[0].decode()}")


def name_of(text: str) -> str:
    """Return the name in a path, or raise `NotFound` if no resource can have this name."""
    # Names outside printable ASCII must not reach the store: databases compare them differently.
    if not (text.isascii() and text.isprintable() and len(text) <= NAME_MAX):
        raise NotFound("no resource has this name")
    return text


def too_large(max_bytes: int = BODY_MAX_BYTES) -> TooLarge:
    return TooLarge(f"the body may have at most {max_bytes} bytes")


def decoder_for(shape: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes a JSON body to `shape`, or raises `Invalid` with every wrong field."""
    decode = msgspec.json.Decoder(shape).decode

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _decode_leniently(body, shape, error)

    return read


def reader_of_headers(shape: type[T]) -> Callable[[Iterable[tuple[bytes, bytes]]], T]:
    """Return a function that converts headers to `shape`, whose fields have the names of the headers.

    The values of a repeated header are joined with commas. Headers without a field are ignored.
    """
    names = {field.encode_name.lower().encode(): field.encode_name for field in msgspec.structs.fields(shape)}

    def read(headers: Iterable[tuple[bytes, bytes]]) -> T:
        content: dict[str, str] = {}
        for name, value in headers:
            if name in names:
                text = value.decode("latin-1")
                content[names[name]] = f"{content[names[name]]}, {text}" if names[name] in content else text
        try:
            return msgspec.convert(content, shape)
        except msgspec.ValidationError as error:
            raise Invalid(*_field_errors(content, shape)) from error

    return read


def parse_query(query_string: bytes, shape: type[msgspec.Struct] | None) -> Any:
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError as error:
        raise Invalid(FieldError("query", "must be a valid query string of at most 50 parameters")) from error
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise Invalid(FieldError(repeated, "must be given only once"))
    if shape is None:
        shape = _NoParameters
    try:
        return msgspec.convert(_parse_numbers(content, shape), shape)
    except msgspec.ValidationError as error:
        raise Invalid(*_field_errors(_parse_numbers(content, shape), shape)) from error


def _parse_numbers(content: dict[str, str], shape: type[msgspec.Struct]) -> dict[str, Any]:
    """Convert plain digits to integers for the integer fields of `shape`.

    msgspec's lax mode is not used, because it reads `1e2` as 100 and `null` as None.
    """
    numbers = {field.encode_name for field in msgspec.structs.fields(shape) if _is_number(field.type)}
    return {
        name: int(text) if name in numbers and _DIGITS(text) else text  # more than 18 digits exceed every range
        for name, text in content.items()
    }


_DIGITS = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII).fullmatch


def _is_number(kind: Any) -> bool:
    info = msgspec.inspect.type_info(kind)
    return isinstance(info.type if isinstance(info, msgspec.inspect.Metadata) else info, msgspec.inspect.IntType)


class _NoParameters(msgspec.Struct, forbid_unknown_fields=True):
    pass


def _decode_leniently(body: bytes, shape: type[T], error: Exception) -> T:
    """Decode again, and accept 60.0 as 60, as JSON allows. Raise `Invalid` with every wrong field."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid(FieldError("body", "must be valid JSON")) from error
    if not isinstance(content, dict):
        raise Invalid(FieldError("body", "must be a JSON object")) from error
    content = {name: _as_integer(value) for name, value in content.items()}
    try:
        return msgspec.convert(content, shape)
    except msgspec.ValidationError as wrong:
        raise Invalid(*_field_errors(content, shape)) from wrong


def _as_integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _field_errors(content: dict[str, Any], shape: type[msgspec.Struct]) -> list[FieldError]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    unknown = islice((name for name in content if name not in fields), UNKNOWN_MAX)
    errors = [FieldError(name[:64], _unknown(name, fields)) for name in unknown]
    for name, field in fields.items():
        if name not in content:
            if field.required:
                errors.append(FieldError(name, "is missing"))
            continue
        if field.type is msgspec.Raw:
            continue  # any JSON is valid
        try:
            msgspec.convert(content[name], field.type)
        except msgspec.ValidationError as error:
            errors.append(FieldError(name, _must(msgspec.inspect.type_info(field.type)) or str(error)))
    return errors


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name[:64], known, n=1)
    return "is not a field of this request" + (f"; did you mean {near[0]}?" if near else "")


def _must(info: msgspec.inspect.Type) -> str | None:
    """Return the text of the rule in the type's metadata."""
    if isinstance(info, msgspec.inspect.Metadata) and info.extra:
        return info.extra.get("must")
    if isinstance(info, msgspec.inspect.UnionType):
        return next((found for inner in info.types if (found := _must(inner))), None)
    return None
