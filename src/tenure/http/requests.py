"""Reading what a caller sent, by the same rules for every route: a wrong field is named, an unknown one is wrong."""

import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from tenure.errors import FieldError, Invalid, TooLarge, UnsupportedMediaType

T = TypeVar("T", bound=msgspec.Struct)

BODY_MAX_BYTES = 64 * 1024
PARAMETERS_MAX = 50
JSON = b"application/json"


async def read_body(scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]]) -> bytes:
    check_media_type(scope["headers"])
    body = bytearray()
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > BODY_MAX_BYTES:
            raise too_large()
    return bytes(body)


def check_media_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        if name == b"content-type" and (value == JSON or value.partition(b";")[0].strip().lower() == JSON):
            return
    raise UnsupportedMediaType("the body must be application/json")


def too_large() -> TooLarge:
    return TooLarge(f"the body may have at most {BODY_MAX_BYTES} bytes")


def decoder_for(shape: type[T]) -> Callable[[bytes], T]:
    """From bytes to `shape`, or `Invalid` with every wrong field."""
    decode = msgspec.json.Decoder(shape).decode

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _invalid_body(body, shape) from error

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
        raise Invalid(FieldError("query", "must be a well-formed query of at most 50 parameters")) from error
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Invalid(FieldError(twice, "must be given once"))
    if shape is None:
        shape = _Nothing
    try:
        return msgspec.convert(content, shape, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(*_field_errors(content, shape, strict=False)) from error


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


def _invalid_body(body: bytes, shape: type[msgspec.Struct]) -> Invalid:
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Invalid(FieldError("body", "must be valid JSON"))
    if not isinstance(content, dict):
        return Invalid(FieldError("body", "must be a JSON object"))
    return Invalid(*_field_errors(content, shape, strict=True))


def _field_errors(content: dict[str, Any], shape: type[msgspec.Struct], *, strict: bool) -> list[FieldError]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    errors = [FieldError(name[:64], _unknown(name, fields)) for name in content if name not in fields]
    for name, field in fields.items():
        if name not in content:
            if field.required:
                errors.append(FieldError(name, "is missing"))
            continue
        try:
            msgspec.convert(content[name], field.type, strict=strict)
        except msgspec.ValidationError as error:
            errors.append(FieldError(name, _must(msgspec.inspect.type_info(field.type)) or str(error)))
    return errors


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name[:64], known, n=1)
    return "is not a field of this request" + (f"; did you mean {near[0]}?" if near else "")


def _must(info: msgspec.inspect.Type) -> str | None:
    """What the type itself says is allowed, in words."""
    if isinstance(info, msgspec.inspect.Metadata) and info.extra:
        return info.extra.get("must")
    if isinstance(info, msgspec.inspect.UnionType):
        return next((found for inner in info.types if (found := _must(inner))), None)
    return None
