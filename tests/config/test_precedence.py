"""Each setting comes from the first source that contains it: flags, variables, the file, the defaults."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args, get_origin

from hypothesis import given, note
from hypothesis import strategies as st

from tenure.config import Config, load
from tenure.config.schema import SettingPath, entries_of, is_single, settings_in, variable

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FLAGS = ("database", "host", "port", "workers", "prefix", "insecure", "tls_certificate", "tls_key")
NAMES = {
    "jobs": ("emit-usage", "own-job"),
    "gateways": ("usages", "crm-events"),
    "factors": ("1", "2", "3"),
    "headers": ("authorization", "x-api-key"),
    "options": ("grammar", "model_folder"),
    "roles": ("staff", "tenure_use"),
}
"""The names that these tests give to the entries of each table."""
ALWAYS_IN_FILE: dict[SettingPath, str | int] = {
    ("tls_certificate",): "certificate.pem",
    ("tls_key",): "key.pem",
    ("access", "requests_per_second"): 1000,
    **{("gateways", name, "url"): "http://127.0.0.1/" for name in NAMES["gateways"]},
    **{("gateways", name, "secret"): SECRET for name in NAMES["gateways"]},
    ("oidc", "issuer"): "https://login.example",
    ("oidc", "audience"): "tenure",
    ("oidc", "jwks_url"): "https://login.example/keys",
    ("oidc", "client_id"): "tenure",
    ("oidc", "authorization_url"): "https://login.example/authorize",
    ("oidc", "token_url"): "https://login.example/token",
    ("traces", "endpoint"): "http://127.0.0.1:4318/v1/traces",
}
"""Settings that are required if their section, or another setting, is configured. So the file always contains them."""


def test_flag_overrides_variable_and_variable_overrides_file(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("port = 1\nworkers = 2\npool_size = 33\n")
    config = load({"port": "3"}, {"TENURE_PORT": "2", "TENURE_WORKERS": "4"})
    assert (config.port, config.workers, config.pool_size) == (3, 4, 33)


def test_load_without_sources_returns_defaults() -> None:
    assert load({}, {}) == Config()


def test_variable_overrides_single_setting_of_section_in_file(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("[leases]\nduration_seconds = 90\nrenew_seconds = 30\n")
    leases = load({}, {"TENURE_LEASES__RENEW_SECONDS": "45"}).leases
    assert (leases.duration_seconds, leases.renew_seconds) == (90, 45)


def test_factors_override_defaults_individually(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("[usage]\nfactors = { 1 = 1.5, 2 = 2.5 }\n")
    factors = load({}, {"TENURE_USAGE__FACTORS__2": "7"}).usage.factors
    assert factors == {"1": Decimal("1.5"), "2": Decimal(7), "3": Decimal(3)}


def test_variable_of_entry_overrides_variable_of_table() -> None:
    factors = load({}, {"TENURE_USAGE__FACTORS": '{"1": 5, "2": 6}', "TENURE_USAGE__FACTORS__2": "7"}).usage.factors
    assert factors == {"1": Decimal(5), "2": Decimal(7), "3": Decimal(3)}


def all_settings(kind: Any = Config, path: SettingPath = ()) -> dict[SettingPath, Any]:
    if is_single(kind):
        return {path: kind}
    entries = entries_of(kind)
    members = dict.fromkeys(NAMES[path[-1]], entries.values) if entries else settings_in(kind)
    return {inner: of for name, member in members.items() for inner, of in all_settings(member, (*path, name)).items()}


SETTINGS = all_settings()
del SETTINGS["gateways", "usages", "max_attempts"]  # refused, because attempts to deliver usage are not limited
for _path in [path for path in SETTINGS if path[-1] == "event_format"]:
    del SETTINGS[_path]  # refused without `events`

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "database": st.sampled_from(
        ["sqlite:///a.db", "postgresql://u:p@h/db", "postgresql://u@/d?host=/s", "mssql://h/d"]
    ),
    "host": st.sampled_from(["127.0.0.1", "127.9.9.9", "localhost", "::1"]),
    "port": st.integers(0, 65535),
    "profile": st.just("capacity"),  # other profiles change the defaults
    "workers": st.integers(1, 256),
    "prefix": st.sampled_from(["", "/api", "/api/v3", "/8080"]),
    "pool_size": st.integers(4, 1000),
    "max_connections": st.integers(1001, 1_000_000),
    "max_per_instance": st.integers(1, 1000),
    "max_header_bytes": st.integers(1024, 1_048_576),
    "allowed_hosts": st.sampled_from([[], ["*"], ["tenure.example", "192.0.2.7", "[2001:db8::1]"]]),
    "allowed_origins": st.sampled_from([[], ["*"], ["https://a.example", "http://localhost:3000"]]),
    "trusted_proxies": st.sampled_from([[], ["192.0.2.7"], ["10.0.0.0/8", "2001:db8::/32"]]),
    "holder": st.sampled_from(["node-1", "1", "a:b@c"]),
    "executor_lease": st.sampled_from(["submission-manager", "5"]),
    "json_case": st.sampled_from(["camel", "snake"]),
    "unknown_fields": st.sampled_from(["refuse", "ignore"]),
    "tls_certificate": st.sampled_from(["certificate.pem", "/etc/ssl/1.pem"]),
    "tls_key": st.sampled_from(["key.pem", "5"]),
    "term_days": st.floats(0.00001, 36500),
    "renew_seconds": st.floats(1, 10),
    "duration_seconds": st.floats(21, 1e9),
    "heartbeat_seconds": st.just(0) | st.floats(1, 10),
    "handler": st.sampled_from(["echo", "discard", "transcriber", "1", "true"]),
    "format": st.sampled_from(["tenure", "cloudevents"]),
    "level": st.sampled_from(["debug", "info", "warning", "error"]),
    "sessions": st.sampled_from(["off", "debug", "info"]),
    "events": st.sampled_from([[], ["session.closed"], ["session.opened", "session.upgraded"]]),
    "schedule": st.lists(st.floats(0, 1e9) | st.integers(0, 9), min_size=1, max_size=4),
    "already_have": st.lists(st.integers(200, 599), max_size=4),
    "url": st.sampled_from(["http://127.0.0.1:81/a?b=c", "https://receiver.example", "https://[::1]/x"]),
    "secret": st.sampled_from([SECRET, "1234567890123456789012=="]),
    "previous_secret": st.sampled_from(["whsec_" + "false" * 8, "true" * 8]),
    "authorization": st.sampled_from(["Bearer x", "5"]),
    "x-api-key": st.sampled_from(["k", "false"]),
    "endpoint": st.sampled_from(["http://127.0.0.1:81/a", "https://collector.example/v1/traces"]),
    "service_name": st.sampled_from(["seats", "1"]),
    "sample_ratio": st.floats(0, 1),
    "issuer": st.sampled_from(["https://login.example/v2.0", "http://127.0.0.1/"]),
    "jwks_url": st.sampled_from(["https://login.example/keys", "http://localhost:81/keys?v=2"]),
    "leeway_seconds": st.integers(0, 60),
    **dict.fromkeys(("staff_tenant", "tenant", "capacity"), st.uuids().map(str)),
    **dict.fromkeys(("audience", "tenant_claim", "user_claim", "roles_claim"), st.sampled_from(["x", "1", "a.b/c"])),
    **dict.fromkeys(("client_id", "client_secret", "scope"), st.sampled_from(["x", "1", "a.b/c"])),
    **dict.fromkeys(("authorization_url", "token_url"), st.sampled_from(["https://login.example/a", "http://[::1]/"])),
    **dict.fromkeys(NAMES["roles"], st.sampled_from(["client", "reader", "operator"])),
    "grammar": st.sampled_from(["digits", "1"]),
    "model_folder": st.sampled_from(["/models/en", "null"]),
    **dict.fromkeys(
        NAMES["factors"],
        st.decimals(0, 1_000_000, places=6, allow_nan=False) | st.integers(0, 1_000_000).map(Decimal),
    ),
}


def values_of(path: SettingPath) -> st.SearchStrategy[Any]:
    """Valid values that do not contradict those of other settings."""
    name = path[-1]
    if name in VALUES:
        return VALUES[name]
    if path[0] == "sessions":
        return st.just(0) | st.floats(11, 1e9)
    base = get_args(SETTINGS[path])[0]
    return {bool: st.booleans(), int: st.integers(1, 1_000_000), float: st.floats(1, 1e9)}[base]


def some_settings(*paths: SettingPath) -> st.SearchStrategy[dict[SettingPath, Any]]:
    chosen = st.lists(st.sampled_from(paths), unique=True, max_size=12)
    return chosen.flatmap(lambda some: st.fixed_dictionaries({path: values_of(path) for path in some}))


def in_words(value: Any) -> str:
    """The value as it is written in an environment variable."""
    return value if isinstance(value, str) else in_toml(value)


def in_toml(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return json.dumps(value, ensure_ascii=False)


def as_file(settings: dict[SettingPath, Any]) -> str:
    return "".join(
        f"{'.'.join(json.dumps(name) for name in path)} = {in_toml(value)}\n" for path, value in settings.items()
    )


def found(config: Any, path: SettingPath) -> Any:
    for name in path:
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


@given(
    in_file=some_settings(*SETTINGS),
    in_variables=some_settings(*SETTINGS),
    in_flags=some_settings(*[(name,) for name in FLAGS]),
)
def test_any_mix_of_sources_follows_precedence(
    in_file: dict[SettingPath, Any], in_variables: dict[SettingPath, Any], in_flags: dict[SettingPath, Any]
) -> None:
    in_file = ALWAYS_IN_FILE | in_file
    Path("tenure.toml").write_text(as_file(in_file), encoding="utf-8")
    environment = {variable(path): in_words(value) for path, value in in_variables.items()}
    flags = {path[0]: value if isinstance(value, bool) else in_words(value) for path, value in in_flags.items()}
    note(f"load({flags}, {environment}) with tenure.toml:\n{as_file(in_file)}")

    config = load(flags, environment)

    expected = in_file | in_variables | in_flags
    wrong = {path: found(config, path) for path, value in expected.items() if found(config, path) != as_loaded(value)}
    assert not wrong


@given(in_variables=some_settings(*SETTINGS))
def test_variables_do_not_change_other_settings(in_variables: dict[SettingPath, Any]) -> None:
    Path("tenure.toml").write_text(as_file(ALWAYS_IN_FILE), encoding="utf-8")
    without = load({}, {})

    config = load({}, {variable(path): in_words(value) for path, value in in_variables.items()})

    others = [path for path in SETTINGS if path not in in_variables and is_always_there(path)]
    assert {path: found(config, path) for path in others} == {path: found(without, path) for path in others}


def is_always_there(path: SettingPath) -> bool:
    """Whether the setting has a value even if it is not configured. The settings of a job, and the entries of headers,
    options and roles, have none.
    """
    return path[0] != "jobs" and path[-2:-1] not in (("headers",), ("options",), ("roles",))


def as_loaded(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_strategies_cover_every_setting_type() -> None:
    kinds = {get_origin(base) or base for base in (get_args(kind)[0] for kind in SETTINGS.values())}
    assert {bool, int, float, str, Decimal, tuple} <= kinds
    assert set(ALWAYS_IN_FILE) < set(SETTINGS)
