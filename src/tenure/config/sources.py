"""Reads the sources of settings, and turns each source into a tree shaped like the configuration file."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from tenure.config.profiles import PROFILES
from tenure.config.schema import PREFIX, SEPARATOR, SettingPath, dotted, variable
from tenure.config.settings import UsageConfig
from tenure.errors import ConfigurationError

FILE = "tenure.toml"
FILE_VARIABLE = "TENURE_CONFIG"
NOT_SETTINGS = (FILE_VARIABLE, "TENURE_URL", "TENURE_KEY", "TENURE_CONTEXT", "TENURE_CONTEXTS")
"""Variables that name the file of settings, or that commands and clients read to call a service."""

_TEST_PREFIX = "TENURE_TEST_"
_KUBERNETES = re.compile(
    r"TENURE(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_KUBERNETES_PORT = re.compile(r"TENURE(_[A-Z0-9]+)*_PORT=(tcp|udp|sctp)://.*")
"""The two patterns match variables that Kubernetes sets in every pod, if the name of a service begins with `tenure`."""


class RawText(str):
    """The text of a flag or variable. The type of its setting determines whether it is parsed as JSON."""

    __slots__ = ()


class Source(NamedTuple):
    name: str
    tree: Mapping[str, Any]
    spell: Callable[[SettingPath], str] = dotted
    """Formats the path of a setting in the notation of this kind of source."""


def defaults() -> Source:
    """Return the default values of tables. They form a source of their own, so that another source can override a
    single entry of a table. All other defaults come from the structs.
    """
    return Source("defaults", {"usage": {"factors": UsageConfig().factors}})


def from_profile(name: str) -> Source:
    return Source(f"profile {name}", PROFILES[name])


def from_file(file: Path | None, environment: Mapping[str, str]) -> Source:
    """Read `file`, else the file that TENURE_CONFIG names, else `tenure.toml` if it exists."""
    named = environment.get(FILE_VARIABLE)
    if file is not None:
        return Source(str(file), _content(file, "--config"))
    if named:
        return Source(named, _content(Path(named), FILE_VARIABLE))
    return Source(FILE, _content(Path(FILE), FILE) if Path(FILE).exists() else {})


def from_environment(environment: Mapping[str, str], in_file: Mapping[str, Any]) -> Iterator[Source]:
    """Yield the variables sorted by name, so that TENURE_USAGE__FACTORS__1 overrides TENURE_USAGE__FACTORS."""
    for name in sorted(environment):
        if _is_setting(name, environment[name]):
            yield Source(name, _tree(_path(name, in_file), RawText(environment[name])), variable)


def from_opentelemetry(environment: Mapping[str, str]) -> Iterator[Source]:
    """Yield the settings of traces that the standard variables of OpenTelemetry contain.

    The SDK of OpenTelemetry itself reads other variables, such as OTEL_EXPORTER_OTLP_HEADERS. As the standard demands,
    an empty variable counts as not set.
    """
    given = {name: value for name, value in environment.items() if name.startswith("OTEL_") and value}
    exporter = given.get("OTEL_TRACES_EXPORTER", _OTLP)
    if given.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter != _OTLP:
        return
    if (name := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") in given:
        yield _trace_setting(name, "endpoint", given[name])
    elif (name := "OTEL_EXPORTER_OTLP_ENDPOINT") in given:
        yield _trace_setting(name, "endpoint", given[name].rstrip("/") + "/v1/traces")
    if (name := "OTEL_SERVICE_NAME") in given:
        yield _trace_setting(name, "service_name", given[name])
    if (name := "OTEL_TRACES_SAMPLER") in given:
        sampler = given[name].removeprefix("parentbased_")
        if sampler not in _SAMPLERS:
            names = ", ".join(f"{prefix}{known}" for known in _SAMPLERS for prefix in ("", "parentbased_"))
            raise ConfigurationError(f"traces.sample_ratio (from {name}): must be {names}")
        ratio = _SAMPLERS[sampler] or given.get("OTEL_TRACES_SAMPLER_ARG", "1")
        yield _trace_setting("OTEL_TRACES_SAMPLER_ARG" if sampler == _BY_RATIO else name, "sample_ratio", ratio)


def opentelemetry_protocol(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variable that chooses the protocol for traces, and its value; None if no variable does."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environment.get(name):
            return name, environment[name]
    return None


_OTLP = "otlp"
_BY_RATIO = "traceidratio"
_SAMPLERS = {"always_on": "1", "always_off": "0", _BY_RATIO: ""}


def _trace_setting(name: str, setting: str, value: str) -> Source:
    return Source(name, {"traces": {setting: RawText(value)}}, variable)


FLAGS: Mapping[str, SettingPath] = {"log_level": ("logs", "level")}
"""Flags whose setting is in a section. Every other flag has the name of its setting."""


def from_flags(flags: Mapping[str, Any]) -> Iterator[Source]:
    for name, value in flags.items():
        path = FLAGS.get(name, (name,))
        yield Source(f"--{name.replace('_', '-')}", _tree(path, RawText(value) if isinstance(value, str) else value))


def _content(file: Path, named_by: str) -> Mapping[str, Any]:
    try:
        # Decimal, because a float would round factors; utf-8-sig, because some editors write a byte order mark.
        return tomllib.loads(file.read_text(encoding="utf-8-sig"), parse_float=Decimal)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = "is not text in UTF-8"
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = f"is not valid TOML: {error}"
    raise ConfigurationError(printable(f"config (from {named_by}): {file} {reason}"))


def printable(text: str) -> str:
    """Escape control characters, so that a message is always one line."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def _is_setting(name: str, value: str) -> bool:
    return (
        name.startswith(PREFIX)
        and not name.startswith(_TEST_PREFIX)
        and name not in NOT_SETTINGS
        and not _KUBERNETES.fullmatch(name)
        and not _KUBERNETES_PORT.fullmatch(f"{name}={value}")
    )


def _path(name: str, in_file: Any) -> SettingPath:
    """Return the path of the setting that a variable sets.

    The name of a variable contains no dashes and no lower-case letters. If the file contains a name that differs from
    a part of the variable only in dashes and case, the path contains the name in the file.
    """
    path: SettingPath = ()
    for part in name.removeprefix(PREFIX).lower().split(SEPARATOR):
        names = in_file if isinstance(in_file, Mapping) else {}
        name_in_file = next((known for known in names if _as_in_variables(known) == part), None)
        path = (*path, name_in_file or _default_name(path, part))
        in_file = names.get(name_in_file)
    return path


def _as_in_variables(name: str) -> str:
    return name.replace("-", "_").lower()


def _default_name(section: SettingPath, name: str) -> str:
    """Return the name for a part of a variable if the file has no such name. Jobs and headers get dashes."""
    match section:
        case ("jobs",) | ("gateways", _, "headers") | ("traces", "headers"):
            return name.replace("_", "-")
    return name


def _tree(path: SettingPath, value: Any) -> dict[str, Any]:
    name, *rest = path
    return {name: _tree(tuple(rest), value) if rest else value}
