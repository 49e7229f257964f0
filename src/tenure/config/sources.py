"""Where settings come from: the file, `TENURE_…` variables and flags, each read into a tree of the file's form."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from tenure.config.schema import PREFIX, SEPARATOR, SettingPath, dotted, variable
from tenure.config.settings import UsageConfig
from tenure.errors import ConfigurationError

FILE = "tenure.toml"
FILE_VARIABLE = "TENURE_CONFIG"
NOT_SETTINGS = (FILE_VARIABLE, "TENURE_URL", "TENURE_KEY")
"""Read by the command line itself."""

_OF_TESTS = "TENURE_TEST_"
_OF_A_CLUSTER = re.compile(
    r"TENURE(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_PORT_OF_A_CLUSTER = re.compile(r"TENURE(_[A-Z0-9]+)*_PORT=(tcp|udp|sctp)://.*")
"""Kubernetes sets these in every pod for services whose names begin with `tenure`."""


class Words(str):
    """What a flag or a variable says. Only the setting's type tells whether it is text, a number or JSON."""

    __slots__ = ()


class Source(NamedTuple):
    name: str
    tree: Mapping[str, Any]
    spelled: Callable[[SettingPath], str] = dotted
    """How a setting is written in this kind of source."""


def defaults() -> Source:
    """Those that are tables: whatever is given of a table goes over its defaults, entry by entry."""
    return Source("defaults", {"usage": {"factors": UsageConfig().factors}})


def from_file(file: Path | None, environment: Mapping[str, str]) -> Source:
    """The named file, or else the one that TENURE_CONFIG names, or else `tenure.toml` if it is there."""
    named = environment.get(FILE_VARIABLE)
    if file is not None:
        return Source(str(file), _content(file, "--config"))
    if named:
        return Source(named, _content(Path(named), FILE_VARIABLE))
    return Source(FILE, _content(Path(FILE), FILE) if Path(FILE).exists() else {})


def from_environment(environment: Mapping[str, str], in_file: Mapping[str, Any]) -> Iterator[Source]:
    """In the order of their names, so that TENURE_USAGE__FACTORS__1 goes over TENURE_USAGE__FACTORS."""
    for name in sorted(environment):
        if _is_setting(name, environment[name]):
            yield Source(name, _tree(_path(name, in_file), Words(environment[name])), variable)


def from_flags(flags: Mapping[str, Any]) -> Iterator[Source]:
    for name, value in flags.items():
        yield Source(f"--{name}", {name: Words(value) if isinstance(value, str) else value})


def _content(file: Path, named_by: str) -> Mapping[str, Any]:
    try:
        # Decimals: a float would already have lost what a factor says. The signature is what some editors begin with.
        return tomllib.loads(file.read_text(encoding="utf-8-sig"), parse_float=Decimal)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = "is not text in UTF-8"
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = f"is not valid TOML: {error}"
    raise ConfigurationError(printable(f"config (from {named_by}): {file} {reason}"))


def printable(text: str) -> str:
    """On one line, whatever a name contains."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def _is_setting(name: str, value: str) -> bool:
    return (
        name.startswith(PREFIX)
        and not name.startswith(_OF_TESTS)
        and name not in NOT_SETTINGS
        and not _OF_A_CLUSTER.fullmatch(name)
        and not _PORT_OF_A_CLUSTER.fullmatch(f"{name}={value}")
    )


def _path(name: str, in_file: Any) -> SettingPath:
    """A variable has neither dashes nor lower case. A name that is in the file is found again by what is left of it."""
    path: SettingPath = ()
    for part in name.removeprefix(PREFIX).lower().split(SEPARATOR):
        names = in_file if isinstance(in_file, Mapping) else {}
        spelled = next((known for known in names if _as_in_variables(known) == part), None)
        path = (*path, spelled or _with_dashes(path, part))
        in_file = names.get(spelled)
    return path


def _as_in_variables(name: str) -> str:
    return name.replace("-", "_").lower()


def _with_dashes(section: SettingPath, name: str) -> str:
    """Jobs and headers are usually named with dashes."""
    match section:
        case ("jobs",) | ("gateways", _, "headers"):
            return name.replace("_", "-")
    return name


def _tree(path: SettingPath, value: Any) -> dict[str, Any]:
    name, *rest = path
    return {name: _tree(tuple(rest), value) if rest else value}
