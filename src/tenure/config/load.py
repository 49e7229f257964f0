"""Reads the settings: flags over `TENURE_…` over the file over the defaults.

Whatever is wrong stops the start with the field's name, where it came from, what is allowed and, for a name that does
not exist, the nearest one that does.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tenure.config.settings import JOBS, Config, GatewayConfig, JobConfig, is_loopback
from tenure.errors import ConfigurationError

PREFIX = "TENURE_"
NOT_SETTINGS = ("TENURE_CONFIG", "TENURE_URL", "TENURE_KEY")
"""Read by the command line itself."""
FOREIGN = ("TENURE_TEST_", "TENURE_SERVICE_", "TENURE_PORT_")
"""Variables of the test suite, and those a cluster sets for a service that happens to be called `tenure`."""
SCHEMES = ("sqlite", "postgresql", "mssql")
MAX_FACTOR = 1_000_000
FACTOR_DECIMALS = 6


class Setting(NamedTuple):
    path: tuple[str, ...]
    value: Any
    source: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> Config:
    """The checked configuration. `flags` holds only what was given; `file` of None means `tenure.toml` if it is there."""
    settings = [*_from_file(file), *_from_environment(environment), *_from_flags(flags)]
    sources: dict[str, str] = {}
    tree: dict[str, Any] = {}
    for setting in settings:
        _place(tree, setting)
        sources[setting.name] = setting.source
    config = _convert(tree, sources)
    _check(config, sources)
    return config


def _from_flags(flags: Mapping[str, Any]) -> Iterable[Setting]:
    return [Setting((name,), value, f"--{name}") for name, value in flags.items()]


def _from_environment(environment: Mapping[str, str]) -> Iterable[Setting]:
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS or variable.startswith(FOREIGN):
            continue
        path = _setting_path(variable.removeprefix(PREFIX).lower().split("__"))
        yield Setting(path, _parsed(path, environment[variable]), variable)


def _setting_path(parts: list[str]) -> tuple[str, ...]:
    """Job names have dashes where a variable can only have underscores; gateway names keep what they have."""
    if parts[0] == "jobs" and len(parts) > 1:
        parts[1] = parts[1].replace("_", "-")
    return tuple(parts)


def _parsed(path: tuple[str, ...], text: str) -> Any:
    """Variables are text: what reads as JSON is that, unless the setting is a text itself."""
    if path[-1] in _TEXTS:
        return text
    try:
        return json.loads(text, parse_float=Decimal if path[-1] in "123" else float)
    except ValueError:
        return text


_TEXTS = {
    "database", "host", "prefix", "handler", "format", "url", "secret", "previous_secret", "issuer", "audience", "jwks_url",
}  # fmt: skip


def _from_file(file: Path | None) -> Iterable[Setting]:
    path = file or Path("tenure.toml")
    if file is None and not path.exists():
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise ConfigurationError(f"config: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"config: {path} is not valid TOML: {error}") from error
    yield from _leaves((), content, str(path))


def _leaves(path: tuple[str, ...], value: Any, source: str) -> Iterable[Setting]:
    if isinstance(value, dict) and path[-1:] != ("headers",):
        if path and not value:
            yield Setting(path, {}, source)
        for key, inner in value.items():
            yield from _leaves((*path, key), inner, source)
    else:
        yield Setting(path, value, source)


def _place(tree: dict[str, Any], setting: Setting) -> None:
    node = tree
    for key in setting.path[:-1]:
        inner = node.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigurationError(f"{setting.name} (from {setting.source}): {key} is not a section")
        node = inner
    if setting.value == {} and isinstance(node.get(setting.path[-1]), dict):
        return
    node[setting.path[-1]] = setting.value


def _convert(tree: dict[str, Any], sources: Mapping[str, str]) -> Config:
    _refuse_unknown(tree, Config, (), sources)
    try:
        return msgspec.convert(_plain(tree, Config), Config, strict=True)
    except msgspec.ValidationError as error:
        raise _explained(error, sources) from error


def _refuse_unknown(
    tree: dict[str, Any], section: type[msgspec.Struct], path: tuple[str, ...], sources: Mapping[str, str]
) -> None:
    """Walks the tree beside the structs, so that the message can name the full path and the near miss."""
    fields = {field.name: field for field in msgspec.structs.fields(section)}
    for key, value in tree.items():
        here = (*path, key)
        if key not in fields:
            raise _unknown(here, fields, sources)
        inner = _SECTIONS.get(here)
        if inner is not None and isinstance(value, dict):
            _refuse_unknown(value, inner, here, sources)
        elif here in _NAMED_SECTIONS and isinstance(value, dict):
            for name, content in value.items():
                if here == ("jobs",) and name not in JOBS and not name.isprintable():
                    raise _unknown((*here, name), JOBS, sources)
                if isinstance(content, dict):
                    _refuse_unknown(content, _NAMED_SECTIONS[here], (*here, name), sources)


_SECTIONS: dict[tuple[str, ...], type[msgspec.Struct]] = {
    (field.name,): field.type
    for field in msgspec.structs.fields(Config)
    if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
}
_NAMED_SECTIONS: dict[tuple[str, ...], type[msgspec.Struct]] = {
    ("jobs",): JobConfig,
    ("gateways",): GatewayConfig,
}


def _unknown(path: tuple[str, ...], allowed: Iterable[str], sources: Mapping[str, str]) -> ConfigurationError:
    name = ".".join(path)
    source = sources.get(name) or next((s for n, s in sources.items() if n.startswith(name + ".")), "")
    near = difflib.get_close_matches(path[-1], list(allowed), n=1)
    hint = f"; did you mean {'.'.join((*path[:-1], near[0]))}?" if near else f"; known are {', '.join(sorted(allowed))}"
    return ConfigurationError(f"{name} (from {source}): there is no such setting{hint}")


def _plain(value: Any, _target: object) -> Any:
    """TOML decimals are read exactly for the factors; every other number is a plain float."""
    return _without_decimals(value, ())


def _without_decimals(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_decimals(inner, (*path, str(key))) for key, inner in value.items()}
    if path[:2] == ("usage", "factors"):
        return str(value) if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else value
    return float(value) if isinstance(value, Decimal) else value


def _explained(error: msgspec.ValidationError, sources: Mapping[str, str]) -> ConfigurationError:
    """Msgspec says `Expected … - at `$.port``; a person wants the field first and what is allowed."""
    message, _, where = str(error).partition(" - at `$.")
    name = where.rstrip("`").replace("[...]", "") if where else ""
    matches = [known for known in sources if known == name or known.startswith(name)]
    source = f" (from {sources[matches[0]]})" if matches else ""
    field = matches[0] if len(matches) == 1 else name
    return ConfigurationError(f"{field or 'configuration'}{source}: {_must(field) or message}")


def _must(name: str) -> str | None:
    """What the struct says is allowed for this field, in words."""
    path = tuple(name.split("."))
    section: type[msgspec.Struct] | None = Config
    if len(path) > 1:
        section = _SECTIONS.get(path[:1]) or _NAMED_SECTIONS.get(path[:1])
    if section is None:
        return None
    last = path[-1] if path[0] not in ("usage",) or path[-1] not in "123" else "factors"
    field = next((field for field in msgspec.structs.fields(section) if field.name == last), None)
    return _must_of(msgspec.inspect.type_info(field.type)) if field else None


def _must_of(info: msgspec.inspect.Type) -> str | None:
    if isinstance(info, msgspec.inspect.Metadata) and info.extra and "must" in info.extra:
        return str(info.extra["must"])
    if isinstance(info, msgspec.inspect.LiteralType):
        return f"must be one of {', '.join(str(value) for value in info.values)}"
    if isinstance(info, msgspec.inspect.BoolType):
        return "must be true or false"
    if isinstance(info, msgspec.inspect.StrType):
        return "must be text"
    for inner in (
        getattr(info, "item_type", None),
        getattr(info, "value_type", None),
        *getattr(info, "types", ()),
    ):
        found = _must_of(inner) if inner is not None else None
        if found:
            return found
    return None


def _check(config: Config, sources: Mapping[str, str]) -> None:
    """What no single type can say."""

    def refuse(name: str, message: str) -> None:
        source = f" (from {sources[name]})" if name in sources else ""
        raise ConfigurationError(f"{name}{source}: {message}")

    scheme = config.database.partition(":")[0]
    if scheme not in SCHEMES:
        near = difflib.get_close_matches(scheme, SCHEMES, n=1)
        hint = f"; did you mean {near[0]}://?" if near else ""
        refuse("database", f"must be a URL that begins with sqlite://, postgresql:// or mssql://{hint}")
    if config.prefix and (not config.prefix.startswith("/") or config.prefix.endswith("/")):
        refuse("prefix", "must begin with a slash and end without one, as /api/v3 does")
    if not config.insecure and not is_loopback(config.host):
        refuse("host", "must be a loopback address while no keys are set up; --insecure allows any other")
    if config.leases.renew_seconds >= config.leases.duration_seconds:
        refuse("leases.renew_seconds", "must be shorter than leases.duration_seconds")
    for name in ("lease_seconds", "idle_seconds", "heartbeat_seconds"):
        if 0 < getattr(config.sessions, name) < 1:
            refuse(f"sessions.{name}", "must be 0 (none) or a number of seconds, 1 or more")
    for kind, factor in config.usage.factors.items():
        _check_factor(kind, factor, refuse)
    for name, gateway in config.gateways.items():
        _check_gateway(name, gateway, refuse)


def _check_factor(kind: str, factor: Decimal, refuse: Any) -> None:
    exponent = factor.as_tuple().exponent
    exact = isinstance(exponent, int) and exponent >= -FACTOR_DECIMALS
    if not (exact and 0 <= factor <= MAX_FACTOR):
        refuse(f"usage.factors.{kind}", "must be a number from 0 to 1000000 with at most six decimals")


def _check_gateway(name: str, gateway: GatewayConfig, refuse: Any) -> None:
    url = urlsplit(gateway.url)
    if url.scheme not in ("http", "https") or not url.hostname:
        refuse(f"gateways.{name}.url", "must be an http or https address")
    if url.username is not None or url.password is not None:
        refuse(f"gateways.{name}.url", "must not contain credentials; use secret or headers")
    if not gateway.schedule:
        refuse(f"gateways.{name}.schedule", "must name at least one pause in seconds")
