"""Loads the configuration from these sources, in descending precedence: flags, `TENURE_…` variables, the file, the
profile, OpenTelemetry's variables, and the defaults.

Any invalid setting raises `ConfigurationError`, which prevents the start. The message of the error contains the name of
the setting, the source of its value, and what is allowed. For an unknown name, the message suggests a similar known
name, or lists the known names. The message never contains the value, which may be a secret.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tenure.config.profiles import CAPACITY
from tenure.config.schema import (
    SettingPath,
    dotted,
    entries_of,
    example_list,
    is_single,
    is_text,
    required_in,
    rule_of,
    settings_in,
    suggestion,
    variable,
)
from tenure.config.settings import Config
from tenure.config.sources import (
    RawText,
    Source,
    defaults,
    from_environment,
    from_file,
    from_flags,
    from_opentelemetry,
    from_profile,
    opentelemetry_protocol,
    printable,
)
from tenure.domain.submissions import USAGES
from tenure.errors import ConfigurationError

EVENTS_NAME_MAX = 100
TRACE_PROTOCOL = "http/protobuf"
_ENDPOINT = ("traces", "endpoint")
_OPENTELEMETRY = "OTEL_"
SECTION = object()
"""The value of a `Setting` that is a section. A section has no value of its own, only settings."""


class Setting(NamedTuple):
    path: SettingPath
    value: Any
    kind: Any
    source: str


Settings: TypeAlias = dict[SettingPath, Setting]


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> Config:
    """Return the validated configuration.

    `flags` contains only flags that were given: the text of a flag with a value, True for a switch. Without `file`, the
    file that `TENURE_CONFIG` names is read, or else `tenure.toml` if it exists.
    """
    in_file = from_file(file, environment)
    given = _merged([in_file, *from_environment(environment, in_file.tree), *from_flags(flags)])
    profile = given[("profile",)].value if ("profile",) in given else CAPACITY
    settings = _merged([defaults(), *from_opentelemetry(environment), from_profile(profile)]) | given
    _check_required(settings)
    config = msgspec.convert(_tree(settings), Config)
    _check_consistency(config, settings)
    _check_trace_protocol(settings, environment)
    return config


def _merged(sources: Iterable[Source]) -> Settings:
    """Merge sources in ascending precedence: a setting replaces the same setting of an earlier source."""
    return {setting.path: setting for source in sources for setting in _settings((), source.tree, Config, source)}


def _settings(path: SettingPath, value: Any, kind: Any, source: Source) -> Iterator[Setting]:
    """Yield the settings in a source's tree. Each is validated, even if another source overrides it."""
    if is_single(kind):
        yield Setting(path, _checked(path, value, kind, source), kind, source.name)
        return
    content = _from_json(value) if isinstance(value, RawText) else value
    if not isinstance(content, Mapping):
        raise _error(path, source.name, "must be a table of settings")
    yield Setting(path, SECTION, kind, source.name)
    for name, inner in content.items():
        inner_path = (*path, name)
        yield from _settings(inner_path, inner, _kind(inner_path, kind, source), source)


def _kind(path: SettingPath, section: Any, source: Source) -> Any:
    """Return the type of a setting or section by its path. Raise if `section` cannot contain the last name of the
    path.
    """
    if entries := entries_of(section):
        _checked(path, path[-1], entries.names, source, "the name must be")
        return entries.values
    known = settings_in(section)
    if path[-1] not in known:
        raise _error(path, source.name, f"unknown setting; {_hint(path, known, source)}")
    return known[path[-1]]


def _hint(path: SettingPath, siblings: Iterable[str], source: Source) -> str:
    suggested = suggestion(path, siblings)
    return f"did you mean {source.spell(suggested)}?" if suggested else f"known settings: {', '.join(siblings)}"


def _checked(path: SettingPath, value: Any, kind: Any, source: Source, must: str = "must be") -> Any:
    rule = rule_of(kind)
    converted = _converted(value, kind)
    if converted is not None and rule.check(converted):
        return converted
    suggested = rule.suggest(value) if isinstance(value, str) else None
    hint = f"; did you mean {suggested}?" if suggested else ""
    if isinstance(value, RawText) and (example := example_list(kind)) and not isinstance(_from_json(value), list):
        hint = f", written in JSON such as {example}"
    elif isinstance(value, RawText) and value != value.strip():
        # A secret that was made from a file may end with the line break of the file.
        hint = "; the value begins or ends with white space or a line break"
    raise _error(path, source.name, f"{must} {rule.allowed}{hint}")


def _converted(value: Any, kind: Any) -> Any:
    """Convert to the setting's type. Return None if that is impossible; None is not a valid value of any setting."""
    if isinstance(value, RawText):
        value = str(value) if is_text(kind) else _from_json(value)
    # msgspec would convert a string to a Decimal, but no setting accepts a quoted number.
    if isinstance(value, str) and not is_text(kind):
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _from_json(text: RawText) -> Any:
    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        return None


def _check_required(settings: Settings) -> None:
    for section in settings.values():
        for name in required_in(section.kind):
            path = (*section.path, name)
            if path not in settings:
                raise _error(path, section.source, f"is required if {dotted(section.path)} is configured")


def _tree(settings: Settings) -> dict[str, Any]:
    """Nest the settings as the structs are nested. Every section must come before the settings in it."""
    root: dict[str, Any] = {}
    for path, value, *_ in settings.values():
        node = root
        for name in path[:-1]:
            node = node[name]
        if path:
            node[path[-1]] = {} if value is SECTION else value
    return root


def _check_consistency(config: Config, settings: Settings) -> None:
    # Report only the first conflict: the user corrects one setting at a time.
    named = partial(_named, settings)
    for conflict in chain(
        _conflicts(config, named),
        _incomplete_sign_in(config, settings, named),
        _ineffective(config, settings, named),
        _ambiguous_names(settings),
    ):
        raise ConfigurationError(printable(conflict))


def _conflicts(config: Config, named: Callable[..., str]) -> Iterator[str]:
    """Find settings that are valid by themselves, but contradict another setting."""
    if config.http.max_connections <= config.streams.max_per_instance:
        # Otherwise streams alone could take all connections, and probes would be refused.
        yield f"{named('http', 'max_connections')}: must be greater than {named('streams', 'max_per_instance')}"
    if config.leases.renew_seconds >= config.leases.duration_seconds:
        yield f"{named('leases', 'renew_seconds')}: must be less than {named('leases', 'duration_seconds')}"
    if 0 < config.sessions.lease_seconds <= config.sessions.heartbeat_seconds:
        yield f"{named('sessions', 'heartbeat_seconds')}: must be less than {named('sessions', 'lease_seconds')}"
    if config.tls_certificate is not None and config.tls_key is None:
        yield f"{named('tls_certificate')}: requires tls_key"
    if config.tls_key is not None and config.tls_certificate is None:
        yield f"{named('tls_key')}: requires tls_certificate"
    for name, gateway in config.gateways.items():
        if gateway.previous_secret and not gateway.secret:
            yield f"{named('gateways', name, 'previous_secret')}: requires gateways.{name}.secret"
        if gateway.events and len(name) > EVENTS_NAME_MAX:
            # The name is a part of the delivery keys, whose length is limited.
            yield f"{named('gateways', name, 'events')}: the name may have at most {EVENTS_NAME_MAX} characters"


def _incomplete_sign_in(config: Config, settings: Settings, named: Callable[..., str]) -> Iterator[str]:
    """Find settings of the sign-in at an issuer that are given without all three settings that the sign-in needs."""
    if config.oidc is None:
        return
    needed = ("client_id", "authorization_url", "token_url")
    given = [name for name in needed if getattr(config.oidc, name) is not None]
    for name in needed:
        if given and name not in given:
            yield f"{named('oidc', given[0])}: requires oidc.{name}"
    for name in ("client_secret", "scope"):
        if ("oidc", name) in settings and not given:
            yield f"{named('oidc', name)}: requires oidc.client_id"


def _ineffective(config: Config, settings: Settings, named: Callable[..., str]) -> Iterator[str]:
    """Find settings that are valid by themselves, but have no effect or are not allowed in this configuration."""
    if config.access.requests_burst and not config.access.requests_per_second:
        yield f"{named('access', 'requests_burst')}: requires access.requests_per_second"
    if ("access", "failures_burst") in settings and not config.access.failures_per_minute:
        yield f"{named('access', 'failures_burst')}: requires access.failures_per_minute above 0"
    for path, setting in settings.items():
        own = len(path) > 1 and path[0] == "traces" and not setting.source.startswith(_OPENTELEMETRY)
        if own and config.traces.endpoint is None:
            yield f"{named(*path)}: requires traces.endpoint"
    limit_of_usage = ("gateways", USAGES, "max_attempts")
    if limit_of_usage in settings:
        yield f"{named(*limit_of_usage)}: cannot be set, because usage must be delivered"
    for path in settings:
        if path[-1:] == ("event_format",) and (*path[:-1], "events") not in settings:
            yield f"{named(*path)}: requires {dotted((*path[:-1], 'events'))}"


def _check_trace_protocol(settings: Settings, environment: Mapping[str, str]) -> None:
    """Refuse an endpoint that OpenTelemetry's variables give, if they also demand a protocol that Tenure lacks."""
    endpoint, protocol = settings.get(_ENDPOINT), opentelemetry_protocol(environment)
    if endpoint is None or protocol is None or not endpoint.source.startswith(_OPENTELEMETRY):
        return
    name, value = protocol
    if value != TRACE_PROTOCOL:
        raise _error(_ENDPOINT, endpoint.source, f"needs the protocol {TRACE_PROTOCOL}; {name} demands another one")


def _ambiguous_names(settings: Settings) -> Iterator[str]:
    """Find names that have the same environment variable, because they differ only in dashes and letter case."""
    seen: dict[str, SettingPath] = {}
    for path in settings:
        other = seen.setdefault(variable(path), path)
        if other != path:
            names = _named(settings, *path), _named(settings, *other)
            yield f"{names[0]}: must differ from {names[1]} in more than dashes and letter case"


def _named(settings: Settings, *path: str) -> str:
    return f"{dotted(path)} ({f'from {settings[path].source}' if path in settings else 'by default'})"


def _error(path: SettingPath, source: str, message: str) -> ConfigurationError:
    return ConfigurationError(printable(f"{dotted(path)} (from {source}): {message}"))
