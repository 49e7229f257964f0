"""Reflection over the structs of `settings.py`: the settings of a section, and the type and rule of each."""

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from tenure.config.settings import Config
from tenure.config.values import GATEWAYS, JOBS, Rule, near_miss

SettingPath: TypeAlias = tuple[str, ...]

PREFIX = "TENURE_"
SEPARATOR = "__"
SUGGESTED_NAMES = {"jobs": tuple(JOBS), "gateways": GATEWAYS}
"""The names to suggest in sections that accept any name."""


class Entries(NamedTuple):
    """The types of the names and values of a table."""

    names: Any
    values: Any


def settings_in(kind: Any) -> Mapping[str, Any]:
    """Return the types of the settings in a section, by name; an empty mapping if `kind` is not a section."""
    return {field.name: _without_none(field.type) for field in _fields(kind)}


def required_in(kind: Any) -> list[str]:
    return [field.name for field in _fields(kind) if field.required]


def entries_of(kind: Any) -> Entries | None:
    return Entries(*get_args(kind)) if get_origin(kind) is dict else None


def is_single(kind: Any) -> bool:
    """Return whether the type is a single value: neither a section nor a table."""
    return not settings_in(kind) and not entries_of(kind)


def rule_of(kind: Any) -> Rule:
    return next(extra for extra in kind.__metadata__ if isinstance(extra, Rule))


def is_text(kind: Any) -> bool:
    """Return whether the value of a flag or variable of this type is text, even if the value looks like a number."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return plain is str or get_origin(plain) is Literal


def example_list(kind: Any) -> str | None:
    """Return an example of the JSON in a flag or variable of this type, or None if the type is not a list."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(plain) is not tuple:
        return None
    return '["first", "second"]' if get_args(plain)[0] is str else "[1, 2]"


def dotted(path: SettingPath) -> str:
    return ".".join(path)


def variable(path: SettingPath) -> str:
    return PREFIX + SEPARATOR.join(path).replace("-", "_").upper()


def suggestion(path: SettingPath, siblings: Iterable[str]) -> SettingPath | None:
    """Suggest a setting for an unknown path, or return None.

    The first match wins: the same path with wrong separators, the same name in another section, the most similar name
    in this section and, at the top level, the most similar path.
    """
    known = {_joined(other): other for other in _paths(Config)}
    # Reversed, because the last entry of a dict wins: of several settings with the same name, the first is suggested.
    elsewhere = {other[-1]: other for other in reversed(known.values()) if other[0] not in SUGGESTED_NAMES}
    if exact := known.get(_joined(path)) or elsewhere.get(path[-1]):
        return exact
    if near := near_miss(path[-1], siblings):
        return (*path[:-1], near)
    return known.get(near_miss(path[0], known) or "") if len(path) == 1 else None


def _joined(path: SettingPath) -> str:
    """Join with one underscore, so that `suggestion` recognises a variable with one underscore where two are needed."""
    return "_".join(path).replace("-", "_")


def _paths(kind: Any, path: SettingPath = ()) -> Iterator[SettingPath]:
    """Yield every known setting and section. Sections that accept any name contribute the suggested names."""
    if path:
        yield path
    entries = entries_of(kind)
    settings = dict.fromkeys(SUGGESTED_NAMES.get(path[-1], ()), entries.values) if entries else settings_in(kind)
    for name, inner in settings.items():
        yield from _paths(inner, (*path, name))


def _fields(kind: Any) -> Iterable[FieldInfo]:
    return fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()


def _without_none(kind: Any) -> Any:
    """Drop None from a type: None is a default, but neither a file nor a variable can set it."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(part for part in get_args(kind) if part is not type(None))
