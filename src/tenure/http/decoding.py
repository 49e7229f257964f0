"""Decodes bodies, headers and queries by the same rules for every route.

`Invalid` names every wrong field, but at most 20 unknown ones; a field that is given twice is reported alone. Unknown
fields of bodies and queries are errors, unless `[http] unknown_fields` is `ignore`. On routes that change something and
do not grant the role `client`, unknown fields are always errors.

A body is decoded in one step if its field names are in the configured `json_case`, its UUIDs have dashes and no
braces, and it has no error. Any other body is decoded a second time, by more lenient rules. Queries are always decoded
by these lenient rules:

- The name of a field may be in camelCase, snake_case or PascalCase, whatever `json_case` is configured.
- A filter of a query may also have the name of the field that it compares: `userObjectId` means `user`. A boolean of a
  query may be `True` or `False`, as .NET and Python write it.
- A UUID may be in any letter case, with or without dashes and braces.
- A whole number of a body may be written as 60.0.
"""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from tenure.domain.leases import NAME_MAX
from tenure.errors import FieldError, Invalid, NotFound, TooLarge, UnsupportedMediaType
from tenure.ids import canonical_id
from tenure.naming import CAMEL, Names, snake_case

T = TypeVar("T", bound=msgspec.Struct)

BODY_MAX_BYTES = 64 * 1024
PARAMETERS_MAX = 50
UNKNOWN_MAX = 20
"""How many unknown fields one error response may name. A body of 64 KiB could otherwise cause a megabyte of errors."""
JSON = (b"application/json",)
FILTERED_FIELDS = {
    "user": "userObjectId",
    "tenant": "tenantObjectId",
    "capacity": "capacityId",
    "kind": "sessionKind",
    "active": "isActive",
}
"""The filters of queries, and the field of a session with which each filter is compared.

Clients that were written for another service use the name of the field as the filter. If that name were unknown, an
instance that ignores unknown parameters would ignore the filter, and return the sessions of every user.
"""


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
    """Return `text`, a name from a path, or raise `NotFound` if no resource can have this name."""
    # Names outside printable ASCII must not reach the store: databases compare them differently.
    if not (text.isascii() and text.isprintable() and len(text) <= NAME_MAX):
        raise NotFound("no resource has this name")
    return text


def too_large(max_bytes: int = BODY_MAX_BYTES) -> TooLarge:
    return TooLarge(f"the body may have at most {max_bytes} bytes")


class Decoding(NamedTuple):
    """How an instance decodes requests."""

    names: Names = CAMEL
    """The style of the field names that are decoded in one step."""
    ignores_unknown: bool = False
    """Whether unknown fields of bodies and queries are ignored."""

    def strict(self) -> "Decoding":
        return self._replace(ignores_unknown=False)


def decoder_for(shape: type[T], decoding: Decoding = Decoding()) -> Callable[[bytes], T]:  # noqa: B008 - immutable
    """Return a function that decodes a JSON body to `shape`, or raises `Invalid` with every wrong field."""
    decode = msgspec.json.Decoder(decoding.names.shape(shape)).decode
    fields = _fields_of(shape, ignores_unknown=decoding.ignores_unknown)

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _decode_leniently(body, shape, fields, error)

    return read


def reader_of_headers(shape: type[T]) -> Callable[[Iterable[tuple[bytes, bytes]]], T]:
    """Return a function that converts headers to `shape`, whose fields have the names of the headers.

    The values of a repeated header are joined with commas. Headers for which `shape` has no field are ignored.
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


def query_parser_for(shape: type[msgspec.Struct] | None, decoding: Decoding) -> Callable[[bytes], Any]:
    """Return a function that decodes a query string to `shape`, or raises `Invalid` with every wrong parameter."""
    known = shape or _NoParameters
    fields = _fields_of(known, ignores_unknown=decoding.ignores_unknown, in_query=True)
    numbers = {field.encode_name for field in msgspec.structs.fields(known) if _is_number(field.type)}
    flags = {field.encode_name for field in msgspec.structs.fields(known) if _is_flag(field.type)}

    def parse(query_string: bytes) -> Any:
        given = fields.normalised(_parameters(query_string))
        # msgspec's lax mode is not used, because it reads `1e2` as 100 and `null` as None. A number of more than 18
        # digits exceeds every range. It stays text, so `convert` refuses it.
        content = {name: int(text) if name in numbers and _DIGITS(text) else text for name, text in given.items()}
        content |= {name: given[name].lower() for name in flags & given.keys() if given[name] in ("True", "False")}
        try:
            return msgspec.convert(content, known)
        except msgspec.ValidationError as error:
            raise Invalid(*_field_errors(content, known)) from error

    return parse


def _parameters(query_string: bytes) -> dict[str, str]:
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
        raise _given_twice(next(name for name in names if names.count(name) > 1))
    return content


_DIGITS = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII).fullmatch


class _Fields:
    """The fields of a struct type, by all the names that requests may use for them."""

    def __init__(
        self,
        shape: type[msgspec.Struct],
        *,
        ignores_unknown: bool,
        second_names: Mapping[str, str],
    ) -> None:
        fields = msgspec.structs.fields(shape)
        self._ignores_unknown = ignores_unknown
        names = [field.encode_name for field in fields]
        self._names = {
            alias: name
            for name in names
            for camel in (name, second_names.get(name, name))
            for alias in (camel, *_other_names(camel))
        }
        self._ids = {field.encode_name for field in fields if _holds_ids(msgspec.inspect.type_info(field.type))}
        self.raw = [field.encode_name for field in fields if field.type is msgspec.Raw]
        """The fields that keep their raw bytes."""

    def normalised(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the content with camelCase names and UUIDs in canonical form. Unknown fields are kept, or left out if
        the instance ignores them.
        """
        normal: dict[str, Any] = {}
        for given, value in content.items():
            name = self._names.get(given)
            if name is None:
                if not self._ignores_unknown:
                    normal[given] = value
            elif name in normal:
                raise _given_twice(name)
            else:
                normal[name] = _canonical(value) if name in self._ids else value
        return normal


@cache
def _fields_of(shape: type[msgspec.Struct], *, ignores_unknown: bool, in_query: bool = False) -> _Fields:
    """Cached, because several routes have the same shape."""
    second_names = FILTERED_FIELDS if in_query else {}
    return _Fields(shape, ignores_unknown=ignores_unknown, second_names=second_names)


def _other_names(camel: str) -> tuple[str, str]:
    return snake_case(camel), camel[:1].upper() + camel[1:]


def _holds_ids(info: msgspec.inspect.Type) -> bool:
    match info:
        case msgspec.inspect.Metadata(extra_json_schema={"format": "uuid"}):
            return True
        case msgspec.inspect.Metadata(type=inner):
            return _holds_ids(inner)
        case msgspec.inspect.UnionType(types=types):
            return any(map(_holds_ids, types))
        case msgspec.inspect.ListType(item_type=item):
            return _holds_ids(item)
    return False


def _canonical(value: Any) -> Any:
    """Returns a UUID, or a list of UUIDs, in canonical form. Other values are returned unchanged, and refused later."""
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    return (canonical_id(value) or value) if isinstance(value, str) else value


def _given_twice(name: str) -> Invalid:
    return Invalid(FieldError(name, "must be given only once"))


def _is_number(kind: Any) -> bool:
    info = msgspec.inspect.type_info(kind)
    return isinstance(info.type if isinstance(info, msgspec.inspect.Metadata) else info, msgspec.inspect.IntType)


def _is_flag(kind: Any) -> bool:
    return _must(msgspec.inspect.type_info(kind)) == "must be true or false"


class _NoParameters(msgspec.Struct, forbid_unknown_fields=True):
    pass


def _decode_leniently(body: bytes, shape: type[T], fields: _Fields, error: Exception) -> T:
    """Decode again by the rules that accept more. Raise `Invalid` with every wrong field."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid(FieldError("body", "must be valid JSON")) from error
    if not isinstance(content, dict):
        raise Invalid(FieldError("body", "must be a JSON object")) from error
    content = {name: _as_integer(value) for name, value in fields.normalised(content).items()}
    if fields.raw:
        given = fields.normalised(_decode_values(body))
        content |= {name: given[name] for name in fields.raw if name in given}
    try:
        return msgspec.convert(content, shape)
    except msgspec.ValidationError as wrong:
        raise Invalid(*_field_errors(content, shape)) from wrong


_decode_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


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
    """Return the rule in the type's metadata, such as "must be a UUID"; None if it has none."""
    if isinstance(info, msgspec.inspect.Metadata) and info.extra:
        return info.extra.get("must")
    if isinstance(info, msgspec.inspect.UnionType):
        return next((found for inner in info.types if (found := _must(inner))), None)
    return None
