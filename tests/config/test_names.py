"""Names that do not exist are refused at every level, with the one that was meant."""

from importlib import metadata
from pathlib import Path

import pytest

from tenure.config import load
from tests.config.conftest import Refusal


@pytest.mark.parametrize(
    ("toml", "name", "meant"),
    [
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
        ("oidc.isuer = 'x'", "oidc.isuer", "oidc.issuer"),
        ("[sessions]\nport = 5", "sessions.port", "port"),
        ("lease_seconds = 5", "lease_seconds", "sessions.lease_seconds"),
        ("sessions_lease_seconds = 5", "sessions_lease_seconds", "sessions.lease_seconds"),
    ],
)
def test_suggests_the_setting_that_was_meant_in_the_file(toml: str, name: str, meant: str, refusal: Refusal) -> None:
    assert refusal(toml=toml) == f"{name} (from tenure.toml): there is no such setting; did you mean {meant}?"


@pytest.mark.parametrize(
    ("variable", "name", "meant"),
    [
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
    ],
)
def test_suggests_the_variable_that_was_meant(variable: str, name: str, meant: str, refusal: Refusal) -> None:
    message = refusal(**{variable: "1"})
    assert message == f"{name} (from {variable}): there is no such setting; did you mean {meant}?"


def test_lists_what_there_is_where_nothing_is_similar(refusal: Refusal) -> None:
    assert refusal(TENURE_USAGE__XYZ="1") == (
        "usage.xyz (from TENURE_USAGE__XYZ): there is no such setting; known are factors, format"
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("emit-usge", "emit-usage"),
        ("emit_usage", "emit-usage"),
        ("expire-session", "expire-sessions"),
        ("prunes", "prune"),
        ("wacth", "watch"),
    ],
)
def test_suggests_the_job_that_was_meant(name: str, meant: str, refusal: Refusal) -> None:
    message = refusal(toml=f"[jobs.{name}]")
    assert message.startswith(
        f"jobs.{name} (from tenure.toml): the name must be expire-sessions, emit-usage, prune, watch"
    )
    assert message.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(("name", "meant"), [("usage", "usages"), ("on-call", "oncall"), ("oncal", "oncall")])
def test_suggests_the_gateway_that_was_meant(name: str, meant: str, refusal: Refusal) -> None:
    message = refusal(toml=f"[gateways.{name}]\nurl = 'http://127.0.0.1/'")
    assert message.startswith(f"gateways.{name} (from tenure.toml): the name must be usages, oncall or one of your own")
    assert message.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize("name", ["billing", "crm", "usage-archive", "oncall-eu"])
def test_takes_a_gateway_of_your_own(name: str, empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text(f"[gateways.{name}]\nurl = 'http://127.0.0.1/'")
    assert list(load({}, {}).gateways) == [name]


@pytest.mark.parametrize("name", ["send-invoices", "sync_users", "prune-files", "emit-invoices", "x2"])
def test_takes_the_job_of_an_application(name: str, empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text(f"[jobs.{name}]\ninterval_seconds = 5")
    assert load({}, {}).job(name).interval_seconds == 5


def test_takes_the_job_of_an_application_that_is_named_almost_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = metadata.EntryPoints([metadata.EntryPoint("watcher", "application:watcher", "tenure.jobs")])
    monkeypatch.setattr("tenure.config.values.entry_points", lambda group: ours.select(group=group))
    assert load({}, {"TENURE_JOBS__WATCHER__PAUSED": "true"}).job("watcher").paused


@pytest.mark.parametrize("name", ["Own", "own job", "own--job", "-own", "a__b", "own.job", ""])
@pytest.mark.parametrize("section", ["jobs", "gateways"])
def test_refuses_names_that_a_variable_cannot_spell(section: str, name: str, refusal: Refusal) -> None:
    message = refusal(toml=f'[{section}."{name}"]')
    assert message.startswith(f"{section}.{name} (from tenure.toml): the name must be ")


def test_suggests_the_handler_that_was_meant(refusal: Refusal) -> None:
    assert refusal(TENURE_STREAMS__HANDLER="ehco") == (
        "streams.handler (from TENURE_STREAMS__HANDLER): "
        "must be echo, discard or a handler that an application adds; did you mean echo?"
    )


def test_takes_the_handler_of_an_application() -> None:
    assert load({}, {"TENURE_STREAMS__HANDLER": "transcriber"}).streams.handler == "transcriber"


def test_suggests_the_format_that_was_meant(refusal: Refusal) -> None:
    assert refusal(toml='usage.format = "cloudevent"').endswith("; did you mean cloudevents?")


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("postgres://u:hunter2@h/db", "postgresql://"),
        ("postgresql+asyncpg://u:hunter2@h/db", "postgresql://"),
        ("POSTGRESQL://u:hunter2@h/db", "postgresql://"),
        ("mssql+aioodbc://u:hunter2@h/db", "mssql://"),
        ("sqlite3:///x.db", "sqlite:///"),
        ("sqlite://x.db", "sqlite:///"),
        ("sqlite+aiosqlite:///x.db", "sqlite:///"),
    ],
)
def test_suggests_the_database_scheme_that_was_meant(url: str, meant: str, refusal: Refusal) -> None:
    assert refusal(flags={"database": url}).endswith(f"percent-encoded; did you mean {meant}?")


@pytest.mark.parametrize("toml", ["sessions = 5", "jobs = []", "gateways.usages = 'http://x'", "usage.factors = 1"])
def test_a_section_is_no_single_value(toml: str, refusal: Refusal) -> None:
    name = toml.partition(" ")[0]
    assert refusal(toml=toml) == f"{name} (from tenure.toml): must be a table of settings"


def test_a_single_value_is_no_section(refusal: Refusal) -> None:
    assert refusal(TENURE_PORT__NUMBER="5") == (
        "port (from TENURE_PORT__NUMBER): must be a whole number from 0 to 65535"
    )


def test_refuses_names_that_variables_cannot_tell_apart(refusal: Refusal) -> None:
    message = refusal(toml="[jobs.a-b]\n[jobs.a_b]")
    assert message == (
        "jobs.a_b (from tenure.toml): must differ from jobs.a-b (from tenure.toml) in more than dashes and upper case"
    )


def test_a_message_is_one_line_whatever_the_name(refusal: Refusal) -> None:
    assert refusal(toml='"a\\nb" = 1').startswith("a\\nb (from tenure.toml): there is no such setting")
