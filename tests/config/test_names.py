"""Unknown names are rejected at every level. The error suggests a similar name, or lists the known names."""

from importlib import metadata
from itertools import product
from pathlib import Path

import pytest

from tenure.config import load
from tests.config.conftest import ErrorMessage

MISSPELLED_IN_FILE = [
    ("prot = 1", "prot", "port"),
    ("poolsize = 5", "poolsize", "pool_size"),
    ("[session]", "session", "sessions"),
    ("[gateway.usages]", "gateway", "gateways"),
    ("sessions.lease_second = 5", "sessions.lease_second", "sessions.lease_seconds"),
    (
        "jobs.emit-usage.intervall_seconds = 5",
        "jobs.emit-usage.intervall_seconds",
        "jobs.emit-usage.interval_seconds",
    ),
    ("jobs.own.pause = true", "jobs.own.pause", "jobs.own.paused"),
    ("gateways.crm.ulr = 'http://x'", "gateways.crm.ulr", "gateways.crm.url"),
    ("usage.factor = { 1 = 2 }", "usage.factor", "usage.factors"),
    ("[sessions]\nport = 5", "sessions.port", "port"),
    ("lease_seconds = 5", "lease_seconds", "sessions.lease_seconds"),
    ("sessions_lease_seconds = 5", "sessions_lease_seconds", "sessions.lease_seconds"),
]


def test_misspelled_setting_in_file_returns_suggestion(error_message: ErrorMessage) -> None:
    for toml, name, suggestion in MISSPELLED_IN_FILE:
        assert error_message(toml=toml) == f"{name} (from tenure.toml): unknown setting; did you mean {suggestion}?"


MISSPELLED_VARIABLES = [
    ("TENURE_PROT", "prot", "TENURE_PORT"),
    ("TENURE_DATABASE_URL", "database_url", "TENURE_DATABASE"),
    ("TENURE_SESION__LEASE_SECONDS", "sesion", "TENURE_SESSIONS"),
    ("TENURE_SESSIONS_LEASE_SECONDS", "sessions_lease_seconds", "TENURE_SESSIONS__LEASE_SECONDS"),
    ("TENURE_SESSION_LEASE_SECOND", "session_lease_second", "TENURE_SESSIONS__LEASE_SECONDS"),
    ("TENURE_STREAMS_HANDLER", "streams_handler", "TENURE_STREAMS__HANDLER"),
    ("TENURE_JOBS_EMIT_USAGE_PAUSED", "jobs_emit_usage_paused", "TENURE_JOBS__EMIT_USAGE__PAUSED"),
    ("TENURE_GATEWAYS_USAGES_URL", "gateways_usages_url", "TENURE_GATEWAYS__USAGES__URL"),
    ("TENURE_LEASES__RENEW_SECOND", "leases.renew_second", "TENURE_LEASES__RENEW_SECONDS"),
    ("TENURE_JOBS__PRUNE__INTERVAL", "jobs.prune.interval", "TENURE_JOBS__PRUNE__INTERVAL_SECONDS"),
    ("TENURE_GATEWAYS__CRM__SECRETS", "gateways.crm.secrets", "TENURE_GATEWAYS__CRM__SECRET"),
]


def test_misspelled_variable_returns_suggestion(error_message: ErrorMessage) -> None:
    for variable, name, suggestion in MISSPELLED_VARIABLES:
        message = error_message(**{variable: "1"})
        assert message == f"{name} (from {variable}): unknown setting; did you mean {suggestion}?"


def test_unknown_setting_without_near_match_lists_known_settings(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_USAGE__XYZ="1") == (
        "usage.xyz (from TENURE_USAGE__XYZ): unknown setting; known settings: factors, format"
    )


def test_misspelled_job_name_returns_suggestion(error_message: ErrorMessage) -> None:
    for name, suggestion in {
        "emit-usge": "emit-usage",
        "emit_usage": "emit-usage",
        "expire-session": "expire-sessions",
        "prunes": "prune",
        "mark_usage": "mark-usage",
    }.items():
        message = error_message(toml=f"[jobs.{name}]")
        rule = (
            "the name must be expire-sessions, emit-usage, mark-usage, prune, watch or the name of an application's job"
        )
        assert message.startswith(f"jobs.{name} (from tenure.toml): {rule}")
        assert message.endswith(f"; did you mean {suggestion}?")


def test_misspelled_gateway_name_returns_suggestion(error_message: ErrorMessage) -> None:
    for name, suggestion in {"usage": "usages", "usagess": "usages", "oncal": "oncall", "on-call": "oncall"}.items():
        message = error_message(toml=f"[gateways.{name}]\nurl = 'http://127.0.0.1/'")
        rule = "the name must be usages, oncall or a name of your choice"
        assert message.startswith(f"gateways.{name} (from tenure.toml): {rule}")
        assert message.endswith(f"; did you mean {suggestion}?")


def test_custom_gateway_name_is_accepted(empty_folder: Path) -> None:
    for name in ("billing", "crm", "usage-archive", "oncall-eu"):
        (empty_folder / "tenure.toml").write_text(f"[gateways.{name}]\nurl = 'http://127.0.0.1/'")
        assert list(load({}, {}).gateways) == [name]


def test_application_job_name_is_accepted(empty_folder: Path) -> None:
    for name in ("send-invoices", "sync_users", "prune-files", "emit-invoices", "x2"):
        (empty_folder / "tenure.toml").write_text(f"[jobs.{name}]\ninterval_seconds = 5")
        assert load({}, {}).job(name).interval_seconds == 5, name


def test_registered_job_name_similar_to_built_in_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = metadata.EntryPoints([metadata.EntryPoint("pruner", "application:pruner", "tenure.jobs")])
    monkeypatch.setattr("tenure.config.values.entry_points", lambda group: ours.select(group=group))
    assert load({}, {"TENURE_JOBS__PRUNER__PAUSED": "true"}).job("pruner").paused


def test_name_not_expressible_as_variable_is_rejected(error_message: ErrorMessage) -> None:
    names = ("Own", "own job", "own--job", "-own", "a__b", "own.job", "")
    for section, name in product(("jobs", "gateways"), names):
        message = error_message(toml=f'[{section}."{name}"]')
        assert message.startswith(f"{section}.{name} (from tenure.toml): the name must be ")


def test_misspelled_handler_returns_suggestion(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_STREAMS__HANDLER="ehco") == (
        "streams.handler (from TENURE_STREAMS__HANDLER): "
        "must be echo, discard or the name of a handler that an application registers; did you mean echo?"
    )


def test_application_handler_name_is_accepted() -> None:
    assert load({}, {"TENURE_STREAMS__HANDLER": "transcriber"}).streams.handler == "transcriber"


def test_misspelled_format_returns_suggestion(error_message: ErrorMessage) -> None:
    assert error_message(toml='usage.format = "cloudevent"').endswith("; did you mean cloudevents?")


def test_misspelled_database_scheme_returns_suggestion(error_message: ErrorMessage) -> None:
    for url, suggestion in {
        "postgres://u:hunter2@h/db": "postgresql://",
        "postgresql+asyncpg://u:hunter2@h/db": "postgresql://",
        "POSTGRESQL://u:hunter2@h/db": "postgresql://",
        "mssql+aioodbc://u:hunter2@h/db": "mssql://",
        "sqlite3:///x.db": "sqlite:///",
        "sqlite://x.db": "sqlite:///",
        "sqlite+aiosqlite:///x.db": "sqlite:///",
    }.items():
        message = error_message(flags={"database": url})
        assert message.endswith(f"percent-encoded; did you mean {suggestion}?"), url


def test_single_value_for_section_is_rejected(error_message: ErrorMessage) -> None:
    for toml in ("sessions = 5", "jobs = []", "gateways.usages = 'http://x'", "usage.factors = 1"):
        name = toml.partition(" ")[0]
        assert error_message(toml=toml) == f"{name} (from tenure.toml): must be a table of settings"


def test_section_for_single_value_is_rejected(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_PORT__NUMBER="5") == (
        "port (from TENURE_PORT__NUMBER): must be a whole number from 0 to 65535"
    )


def test_names_with_same_variable_are_rejected(error_message: ErrorMessage) -> None:
    message = error_message(toml="[jobs.a-b]\n[jobs.a_b]")
    assert message == (
        "jobs.a_b (from tenure.toml): must differ from jobs.a-b (from tenure.toml) in more than dashes and letter case"
    )


def test_error_escapes_newline_in_name(error_message: ErrorMessage) -> None:
    assert error_message(toml='"a\\nb" = 1').startswith("a\\nb (from tenure.toml): unknown setting")
