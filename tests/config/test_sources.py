"""The sources of settings, and variables that are ignored."""

import json
from pathlib import Path

import pytest

from tenure.config import GatewayConfig, load
from tenure.errors import ConfigurationError
from tests.config.conftest import ErrorMessage


def test_load_reads_file_in_current_folder(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("port = 9")
    assert load({}, {}).port == 9


def test_load_reads_given_file_instead_of_default(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("port = 9\nworkers = 3")
    (empty_folder / "other.toml").write_text("port = 10")
    config = load({}, {}, empty_folder / "other.toml")
    assert (config.port, config.workers) == (10, 1)


def test_load_reads_file_named_by_variable(empty_folder: Path) -> None:
    (empty_folder / "other.toml").write_text("port = 10")
    assert load({}, {"TENURE_CONFIG": "other.toml"}).port == 10


def test_config_flag_overrides_config_variable(empty_folder: Path) -> None:
    (empty_folder / "other.toml").write_text("port = 10")
    assert load({}, {"TENURE_CONFIG": "nowhere.toml"}, Path("other.toml")).port == 10


def test_empty_config_variable_is_ignored() -> None:
    assert load({}, {"TENURE_CONFIG": ""}).port == 8080


def test_load_accepts_byte_order_mark(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_bytes(b"\xef\xbb\xbfport = 9\r\nhost = '::1'\r\n")
    assert load({}, {}).port == 9


def test_error_names_source_file(empty_folder: Path) -> None:
    (empty_folder / "other.toml").write_text("port = true")
    with pytest.raises(ConfigurationError, match=r"^port \(from other.toml\): must be "):
        load({}, {}, Path("other.toml"))


def test_unusable_file_raises_with_reason(empty_folder: Path) -> None:
    for content, reason in (
        (None, "cannot be read: No such file or directory"),
        (b"port = ", "is not valid TOML: Invalid value"),
        (b"port = 1\nport = 2", "is not valid TOML: Cannot overwrite a value"),
        (b"\xff\xfep", "is not text in UTF-8"),
        (b"a = " + b"[" * 100_000, "is not valid TOML: "),
    ):
        if content is not None:
            (empty_folder / "other.toml").write_bytes(content)
        with pytest.raises(ConfigurationError) as raised:
            load({}, {}, Path("other.toml"))
        assert str(raised.value).startswith(f"config (from --config): other.toml {reason}")


def test_directory_in_place_of_file_raises(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").mkdir()
    with pytest.raises(ConfigurationError, match=r"config \(from tenure.toml\).* cannot be read: Is a directory"):
        load({}, {})


def test_missing_file_error_names_its_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"config \(from TENURE_CONFIG\): nowhere.toml cannot be read"):
        load({}, {"TENURE_CONFIG": "nowhere.toml"})


UNRELATED = [
    ("TENURE_URL", "http://127.0.0.1:8080"),
    ("TENURE_KEY", "tnr_x"),
    ("TENURE_CONTEXT", "prod"),
    ("TENURE_CONTEXTS", "contexts.toml"),
    ("TENURE_TEST_MSSQL_URL", "mssql://x"),
    ("TENURE_SERVICE_HOST", "10.0.0.1"),
    ("TENURE_SERVICE_PORT", "8080"),
    ("TENURE_SERVICE_PORT_HTTP", "8080"),
    ("TENURE_PORT", "tcp://10.0.0.1:8080"),
    ("TENURE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
    ("TENURE_PORT_8080_TCP_PROTO", "tcp"),
    ("TENURE_PORT_8080_TCP_PORT", "8080"),
    ("TENURE_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ("TENURE_PORT_53_UDP", "udp://10.0.0.1:53"),
    ("TENURE_RECEIVER_SERVICE_HOST", "10.0.0.2"),
    ("TENURE_RECEIVER_PORT", "tcp://10.0.0.2:80"),
    ("TENURE_RECEIVER_PORT_80_TCP", "tcp://10.0.0.2:80"),
    ("TENUREX", "1"),
    ("tenure_port", "1"),
]
"""Variables of client commands, of these tests and of Kubernetes services, and some without the prefix `TENURE_`."""


def test_unrelated_variables_are_ignored() -> None:
    for name, value in UNRELATED:
        assert load({}, {name: value}) == load({}, {}), name


def test_variables_similar_to_ignored_ones_are_rejected(error_message: ErrorMessage) -> None:
    for name in ("TENURE_PORTS", "TENURE_PORT_NUMBER", "TENURE_SERVICE", "TENURE_TESTS", "TENURE_"):
        assert f"(from {name}): unknown setting" in error_message(**{name: "1"})


def test_invalid_port_variable_is_rejected(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_PORT="http") == "port (from TENURE_PORT): must be a whole number from 0 to 65535"


def test_empty_variable_is_empty_value(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_DATABASE="").startswith("database (from TENURE_DATABASE): must be ")


def test_gateway_can_be_configured_by_variables_only() -> None:
    gateways = load(
        {},
        {
            "TENURE_GATEWAYS__USAGES__URL": "https://billing.example/usages",
            "TENURE_GATEWAYS__USAGES__SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "TENURE_GATEWAYS__USAGES__ALREADY_HAVE": "[409, 422]",
            "TENURE_GATEWAYS__USAGES__HEADERS": '{"Authorization": "Bearer x"}',
            "TENURE_GATEWAYS__USAGES__HEADERS__X_API_KEY": "5",
        },
    ).gateways
    assert gateways == {
        "usages": GatewayConfig(
            url="https://billing.example/usages",
            secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            already_have=(409, 422),
            headers={"Authorization": "Bearer x", "x-api-key": "5"},
        )
    }


def test_variable_matches_gateway_in_file(empty_folder: Path) -> None:
    for name in ("crm-events", "crm_events"):
        (empty_folder / "tenure.toml").write_text(f"[gateways.{name}]\nurl = 'http://127.0.0.1'")
        gateways = load({}, {"TENURE_GATEWAYS__CRM_EVENTS__TIMEOUT_SECONDS": "7"}).gateways
        assert {found: gateway.timeout_seconds for found, gateway in gateways.items()} == {name: 7}


def test_gateway_named_only_by_variable_keeps_underscores() -> None:
    assert list(load({}, {"TENURE_GATEWAYS__CRM_EVENTS__URL": "http://127.0.0.1"}).gateways) == ["crm_events"]


def test_variable_matches_header_in_file(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text(
        "[gateways.usages]\nurl = 'http://127.0.0.1'\nheaders = { X-Api-Key = 'old', Accept = '*/*' }"
    )
    gateway = load({}, {"TENURE_GATEWAYS__USAGES__HEADERS__X_API_KEY": "new"}).gateways["usages"]
    assert gateway.headers == {"X-Api-Key": "new", "Accept": "*/*"}


def test_variable_matches_job_in_file(empty_folder: Path) -> None:
    for name in ("sync-users", "sync_users"):
        (empty_folder / "tenure.toml").write_text(f"[jobs.{name}]\ninterval_seconds = 5")
        jobs = load({}, {"TENURE_JOBS__SYNC_USERS__PAUSED": "true"}).jobs
        assert {found: job.paused for found, job in jobs.items()} == {name: True}


def test_variable_can_contain_whole_section() -> None:
    jobs = load({}, {"TENURE_JOBS": json.dumps({"emit-usage": {"paused": True}, "prune": {}})}).jobs
    assert {name: job.paused for name, job in jobs.items()} == {"emit-usage": True, "prune": False}


def test_section_variable_that_is_not_a_table_is_rejected(error_message: ErrorMessage) -> None:
    for value in ("{", "5", "[]", "null", "", "[" * 100_000):
        message = error_message(TENURE_SESSIONS=value)
        assert message == "sessions (from TENURE_SESSIONS): must be a table of settings", value[:10]


def test_overridden_setting_is_validated(error_message: ErrorMessage) -> None:
    message = error_message(flags={"port": "80"}, toml="port = 'http'")
    assert message == "port (from tenure.toml): must be a whole number from 0 to 65535"


def test_flag_accepts_typed_value() -> None:
    assert load({"port": 81, "insecure": True}, {}).port == 81
