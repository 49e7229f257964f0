"""The names of JSON fields: camelCase, or snake_case if `[http] json_case` or a client asks for it.

Handlers always build structs whose JSON names are camelCase. Before an answer is encoded in snake_case, it is copied to
an instance of a *twin*: a struct type with the same fields and snake_case names. The twin of a type is created once,
and copying a struct takes about a microsecond. An answer in camelCase is encoded without a copy.

In texts (the details of problems, descriptions in documents), every word that is the name of a field is replaced. Some
keys of JSON objects are data, not names of fields, and do not change: the keys in the payload of a submission, and the
kinds or close reasons by which sessions are counted.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode
_UPPER = re.compile(r"(?<!^)[A-Z]")
_CAMEL_WORD = re.compile(r"\b[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+\b")
_PLAIN = frozenset({str, int, float, bool, bytes, type(None), datetime})


def snake_case(name: str) -> str:
    return _UPPER.sub(lambda letter: f"_{letter[0].lower()}", name)


class Names:
    """The style of field names, chosen by the configuration of the instance or by the header `Tenure-JSON-Case` of a
    request. This class is camelCase, so its methods change nothing; `SnakeNames` converts to snake_case.
    """

    encode: Callable[[Any], bytes] = staticmethod(_encode)
    """Encodes a struct, or anything that contains structs, as JSON."""

    def name(self, camel: str) -> str:
        return camel

    def text(self, text: str) -> str:
        """Replaces the names of fields in a message or description."""
        return text

    def shape(self, shape: type[T]) -> type[T]:
        """Returns the struct type to which JSON is decoded: `shape`, or in `SnakeNames` a subclass with snake_case
        names.
        """
        return shape

    def builtins(self, content: msgspec.Struct) -> dict[str, Any]:
        return msgspec.to_builtins(content)  # type: ignore[no-any-return]

    def document(self, content: Any) -> Any:
        """Replaces the names in an OpenAPI or AsyncAPI document."""
        return content


CAMEL = Names()


class SnakeNames(Names):
    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._twins: dict[type, _Twin] = {}
        self.encode = self._encode

    def learn(self, fields: Iterable[str]) -> None:
        """Adds the camelCase names of fields, which are then replaced in texts and documents."""
        self._names |= {name: snake_case(name) for name in fields if snake_case(name) != name}

    def name(self, camel: str) -> str:
        return self._names.get(camel, camel)

    def text(self, text: str) -> str:
        return _CAMEL_WORD.sub(lambda word: self.name(word[0]), text)

    def shape(self, shape: type[T]) -> type[T]:
        fields = msgspec.structs.fields(shape)
        twin = msgspec.defstruct(
            shape.__name__,
            [_field(each) for each in fields],
            bases=(shape,),
            rename={each.name: snake_case(each.encode_name) for each in fields},
            frozen=True,
            kw_only=True,
        )
        return cast("type[T]", twin)

    def builtins(self, content: msgspec.Struct) -> dict[str, Any]:
        return msgspec.to_builtins(self._of(content))  # type: ignore[no-any-return]

    def document(self, content: Any) -> Any:
        if isinstance(content, list):
            return [self.document(inner) for inner in content]
        if not isinstance(content, dict):
            return content
        renamed = {self._key(key): self._value(key, inner) for key, inner in content.items()}
        if content.get("in") in ("query", "path"):
            renamed["name"] = self.name(renamed["name"])
        return renamed

    def _key(self, key: str) -> str:
        # A key with a brace is a path, such as `/sessions/{sessionId}`, which contains the names of its parameters.
        return self.text(key) if "{" in key else key

    def _value(self, key: str, value: Any) -> Any:
        if key in ("properties", "parameters") and isinstance(value, dict):
            return {self.name(name): self.document(inner) for name, inner in value.items()}
        if key == "required" and isinstance(value, list):
            return [self.name(name) for name in value]
        if key in ("description", "summary", "address") and isinstance(value, str):
            return self.text(value)
        return self.document(value)

    def _encode(self, content: Any) -> bytes:
        return _encode(self._of(content))

    def _of(self, value: Any) -> Any:
        """Returns a copy of a value, in which each struct is replaced by an instance of the struct's twin."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        twin = self._twins.get(kind)
        if twin is None:
            if isinstance(value, (list, tuple)):
                # Do not copy an empty list or tuple: `omit_defaults` must recognise it if it is the default.
                return [self._of(each) for each in value] if value else value
            if isinstance(value, dict):
                return {key: self._of(each) for key, each in value.items()}
            if not isinstance(value, msgspec.Struct):
                return value
            twin = self._twins[kind] = _Twin(kind)
        return twin.of(value, self._of)


class _Twin:
    """Copies structs of type `shape` to a struct type with the same fields and snake_case names. For encoding only."""

    def __init__(self, shape: type[msgspec.Struct]) -> None:
        fields = msgspec.structs.fields(shape)
        self._values: Callable[[Any], Any] = attrgetter(*(each.name for each in fields))
        self._is_single = len(fields) == 1
        self._nested = [index for index, each in enumerate(fields) if _may_contain_structs(each.type)]
        config = shape.__struct_config__
        self._make: Callable[..., Any] = msgspec.defstruct(
            shape.__name__,
            # The twin needs defaults only for `omit_defaults`: `of` passes the values of all fields.
            [_field(each) if config.omit_defaults else (each.name, each.type) for each in fields],
            rename={each.name: snake_case(each.encode_name) for each in fields},
            omit_defaults=config.omit_defaults,
            tag=config.tag,
            tag_field=config.tag_field,
        )

    def of(self, value: Any, convert: Callable[[Any], Any]) -> Any:
        values = (self._values(value),) if self._is_single else self._values(value)
        if not self._nested:
            return self._make(*values)
        copied = list(values)
        for index in self._nested:
            copied[index] = convert(copied[index])
        return self._make(*copied)


def _field(field: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    if field.default is not msgspec.NODEFAULT:
        return (field.name, field.type, field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return (field.name, field.type, msgspec.field(default_factory=field.default_factory))
    return (field.name, field.type)


def _may_contain_structs(kind: Any) -> bool:
    info = msgspec.inspect.type_info(kind)
    return _contains_structs(info)


def _contains_structs(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.Metadata):
        return _contains_structs(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return any(map(_contains_structs, info.types))
    return isinstance(
        info,
        msgspec.inspect.StructType
        | msgspec.inspect.CollectionType
        | msgspec.inspect.TupleType
        | msgspec.inspect.DictType
        | msgspec.inspect.AnyType,
    )


def field_names(shapes: Iterable[type[msgspec.Struct]]) -> set[str]:
    """Returns the camelCase names of all fields of these struct types and of the struct types in them."""
    names: set[str] = set()
    seen: set[type] = set()
    waiting = list(shapes)
    while waiting:
        shape = waiting.pop()
        if shape not in seen:
            seen.add(shape)
            own, inner = _own_names(shape)
            names |= own
            waiting += inner
    return names


@cache
def _own_names(shape: type[msgspec.Struct]) -> tuple[AbstractSet[str], Sequence[type[msgspec.Struct]]]:
    """Returns the names of the fields, and the struct types that occur in their types."""
    fields = msgspec.structs.fields(shape)
    inner = [each for field in fields for each in _structs_in(msgspec.inspect.type_info(field.type))]
    return {field.encode_name for field in fields}, inner


def _structs_in(info: msgspec.inspect.Type) -> Iterable[type[msgspec.Struct]]:
    match info:
        case msgspec.inspect.StructType():
            yield info.cls
        case msgspec.inspect.Metadata():
            yield from _structs_in(info.type)
        case msgspec.inspect.UnionType():
            for each in info.types:
                yield from _structs_in(each)
        case msgspec.inspect.CollectionType():
            yield from _structs_in(info.item_type)
        case msgspec.inspect.DictType():
            yield from _structs_in(info.value_type)
