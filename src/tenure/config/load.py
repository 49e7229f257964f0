"""Loads the configuration: flags over `TENURE_…` over the file over the defaults.

Whatever is wrong stops the start, with the setting's name, where it came from, what is allowed and, for a name that
does not exist, the one that was meant. Values are never repeated: they may be secrets.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tenure.config.schema import (
    SettingPath,
    dotted,
    entries_of,
    is_single,
    is_text,
    required_in,
    rule_of,
    settings_in,
    suggestion,
    variable,
)
from tenure.config.settings import Config, is_loopback
from tenure.config.sources import Source, Words, defaults, from_environment, from_file, from_flags, printable
from tenure.errors import ConfigurationError

SECTION = object()
"""The value of a setting that only says: this section is there."""


class Setting(NamedTuple):
    path: SettingPath
    value: Any
    kind: Any
    source: str


Settings: TypeAlias = dict[SettingPath, Setting]


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> Config:
    """The checked configuration. `flags` holds what was given, as it was typed; for None, `file` is looked for."""
    in_file = from_file(file, environment)
    sources = [defaults(), in_file, *from_environment(environment, in_file.tree), *from_flags(flags)]
    settings = {setting.path: setting for source in sources for setting in _settings((), source.tree, Config, source)}
    _refuse_missing(settings)
    config = msgspec.convert(_tree(settings), Config)
    _refuse_contradictions(config, settings)
    return config


def _settings(path: SettingPath, value: Any, kind: Any, source: Source) -> Iterator[Setting]:
    """The settings in a source's tree, each checked, whether or not another source goes over it."""
    if is_single(kind):
        yield Setting(path, _checked(path, value, kind, source), kind, source.name)
        return
    content = _from_json(value) if isinstance(value, Words) else value
    if not isinstance(content, Mapping):
        raise _refusal(path, source.name, "must be a table of settings")
    yield Setting(path, SECTION, kind, source.name)
    for name, inner in content.items():
        here = (*path, name)
        yield from _settings(here, inner, _kind(here, kind, source), source)


def _kind(path: SettingPath, section: Any, source: Source) -> Any:
    """The type of what a section has under this name, which must be one it can have."""
    if entries := entries_of(section):
        _checked(path, path[-1], entries.names, source, "the name must be")
        return entries.values
    known = settings_in(section)
    if path[-1] not in known:
        raise _refusal(path, source.name, f"there is no such setting; {_meant(path, known, source)}")
    return known[path[-1]]


def _meant(path: SettingPath, siblings: Iterable[str], source: Source) -> str:
    meant = suggestion(path, siblings)
    return f"did you mean {source.spelled(meant)}?" if meant else f"known are {', '.join(siblings)}"


def _checked(path: SettingPath, value: Any, kind: Any, source: Source, must: str = "must be") -> Any:
    rule = rule_of(kind)
    converted = _converted(value, kind)
    if converted is not None and rule.holds(converted):
        return converted
    meant = rule.meant(value) if isinstance(value, str) else None
    raise _refusal(path, source.name, f"{must} {rule.words}" + (f"; did you mean {meant}?" if meant else ""))


def _converted(value: Any, kind: Any) -> Any:
    """The value as the setting's type has it; None, which no setting takes, if it does not fit."""
    if isinstance(value, Words):
        value = str(value) if is_text(kind) else _from_json(value)
    if isinstance(value, str) and not is_text(kind):
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _from_json(words: Words) -> Any:
    try:
        return json.loads(words, parse_float=Decimal)
    except (ValueError, RecursionError):
        return None


def _refuse_missing(settings: Settings) -> None:
    for section in settings.values():
        for name in required_in(section.kind):
            path = (*section.path, name)
            if path not in settings:
                raise _refusal(path, section.source, f"must be given as soon as {dotted(section.path)} is set up")


def _tree(settings: Settings) -> dict[str, Any]:
    """Nested as the structs are. A section always comes before what is in it."""
    root: dict[str, Any] = {}
    for path, value, *_ in settings.values():
        node = root
        for name in path[:-1]:
            node = node[name]
        if path:
            node[path[-1]] = {} if value is SECTION else value
    return root


def _refuse_contradictions(config: Config, settings: Settings) -> None:
    for contradiction in chain(_contradictions(config, partial(_named, settings)), _indistinguishable(settings)):
        raise ConfigurationError(printable(contradiction))


def _contradictions(config: Config, named: Callable[..., str]) -> Iterator[str]:
    """What no setting says alone."""
    if not config.insecure and not is_loopback(config.host):
        yield f"{named('host')}: must be a loopback address, as 127.0.0.1, unless insecure (--insecure) allows any"
    if config.leases.renew_seconds >= config.leases.duration_seconds:
        yield f"{named('leases', 'renew_seconds')}: must be less than {named('leases', 'duration_seconds')}"
    if 0 < config.sessions.lease_seconds <= config.sessions.heartbeat_seconds:
        yield f"{named('sessions', 'heartbeat_seconds')}: must be less than {named('sessions', 'lease_seconds')}"
    for name, gateway in config.gateways.items():
        if gateway.previous_secret and not gateway.secret:
            yield f"{named('gateways', name, 'previous_secret')}: must come with gateways.{name}.secret"


def _indistinguishable(settings: Settings) -> Iterator[str]:
    seen: dict[str, SettingPath] = {}
    for path in settings:
        other = seen.setdefault(variable(path), path)
        if other != path:
            names = _named(settings, *path), _named(settings, *other)
            yield f"{names[0]}: must differ from {names[1]} in more than dashes and upper case"


def _named(settings: Settings, *path: str) -> str:
    return f"{dotted(path)} ({f'from {settings[path].source}' if path in settings else 'by default'})"


def _refusal(path: SettingPath, source: str, message: str) -> ConfigurationError:
    return ConfigurationError(printable(f"{dotted(path)} (from {source}): {message}"))
