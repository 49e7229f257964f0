"""What the structs say about a setting, found by reflection: the names in a section, and each one's type and rule."""

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from tenure.config.settings import Config
from tenure.config.values import JOBS, Rule, near_miss

SettingPath: TypeAlias = tuple[str, ...]

PREFIX = "TENURE_"
SEPARATOR = "__"
NAMED = {"jobs": tuple(JOBS), "gateways": ("usages", "oncall")}
"""Names worth suggesting in sections whose names are open."""


class Entries(NamedTuple):
    """The types of a map's names and values."""

    names: Any
    values: Any


def settings_in(kind: Any) -> Mapping[str, Any]:
    """The types of the settings in a section, by name; empty for anything else."""
    return {field.name: _given(field.type) for field in _fields(kind)}


def required_in(kind: Any) -> list[str]:
    return [field.name for field in _fields(kind) if field.required]


def entries_of(kind: Any) -> Entries | None:
    return Entries(*get_args(kind)) if get_origin(kind) is dict else None


def is_single(kind: Any) -> bool:
    """Neither a section nor a table."""
    return not settings_in(kind) and not entries_of(kind)


def rule_of(kind: Any) -> Rule:
    return next(extra for extra in kind.__metadata__ if isinstance(extra, Rule))


def is_text(kind: Any) -> bool:
    """Of these, a variable is the value as it stands, even where it looks like a number."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return plain is str or get_origin(plain) is Literal


def dotted(path: SettingPath) -> str:
    return ".".join(path)


def variable(path: SettingPath) -> str:
    return PREFIX + SEPARATOR.join(path).replace("-", "_").upper()


def suggestion(path: SettingPath, siblings: Iterable[str]) -> SettingPath | None:
    """The setting that was meant: one of this name in another section, or the most similar one here, or of all."""
    known = {_joined(other): other for other in _paths(Config)}
    elsewhere = {other[-1]: other for other in reversed(known.values()) if other[0] not in NAMED}
    if exact := known.get(_joined(path)) or elsewhere.get(path[-1]):
        return exact
    if near := near_miss(path[-1], siblings):
        return (*path[:-1], near)
    return known.get(near_miss(path[0], known) or "") if len(path) == 1 else None


def _joined(path: SettingPath) -> str:
    """One underscore where a variable has two, which is how many write it at first."""
    return "_".join(path).replace("-", "_")


def _paths(kind: Any, path: SettingPath = ()) -> Iterator[SettingPath]:
    """Every known setting and section; where names are open, those worth suggesting."""
    if path:
        yield path
    entries = entries_of(kind)
    settings = dict.fromkeys(NAMED.get(path[-1], ()), entries.values) if entries else settings_in(kind)
    for name, inner in settings.items():
        yield from _paths(inner, (*path, name))


def _fields(kind: Any) -> Iterable[FieldInfo]:
    return fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()


def _given(kind: Any) -> Any:
    """The type of what can be given: None is a default, but nothing that a file or a variable can say."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(part for part in get_args(kind) if part is not type(None))
