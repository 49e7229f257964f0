"""Where settings are read from, and what is left alone."""

import json
from pathlib import Path

import pytest

from tenure.config import GatewayConfig, load
from tenure.errors import ConfigurationError
from tests.config.conftest import Refusal


def test_reads_the_file_in_the_current_folder(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("port = 9")
    assert load({}, {}).port == 9


def test_reads_the_named_file_instead(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("port = 9\nworkers = 3")
    (empty_folder / "other.toml").write_text("port = 10")
    config = load({}, {}, empty_folder / "other.toml")
    assert (config.port, config.workers) == (10, 1)


def test_reads_the_file_that_the_variable_names(empty_folder: Path) -> None:
    (empty_folder / "other.toml").write_text("port = 10")
    assert load({}, {"TENURE_CONFIG": "other.toml"}).port == 10


def test_a_flag_names_the_file_before_the_variable(empty_folder: Path) -> None:
    (empty_folder / "other.toml").write_text("port = 10")
    assert load({}, {"TENURE_CONFIG": "nowhere.toml"}, Path("other.toml")).port == 10


def test_an_empty_variable_names_no_file() -> None:
    assert load({}, {"TENURE_CONFIG": ""}).port == 8080


def test_reads_a_file_with_a_byte_order_mark(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_bytes(b"\xef\xbb\xbfport = 9\r\nhost = '::1'\r\n")
    assert load({}, {}).port == 9


def test_names_the_file_in_a_refusal(empty_folder: Path) -> None:
    (empty_folder / "other.toml").write_text("port = true")
    with pytest.raises(ConfigurationError, match=r"^port \(from other.toml\): must be "):
        load({}, {}, Path("other.toml"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"port = ", "is not valid TOML: Invalid value"),
        (b"port = 1\nport = 2", "is not valid TOML: Cannot overwrite a value"),
        (b"\xff\xfep", "is not text in UTF-8"),
        (b"a = " + b"[" * 100_000, "is not valid TOML: "),
    ],
)
def test_says_why_a_file_cannot_be_used(content: bytes | None, reason: str, empty_folder: Path) -> None:
    if content is not None:
        (empty_folder / "other.toml").write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        load({}, {}, Path("other.toml"))
    assert str(refused.value).startswith(f"config (from --config): other.toml {reason}")


def test_says_that_a_folder_is_no_file(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").mkdir()
    with pytest.raises(ConfigurationError, match=r"config \(from tenure.toml\).* cannot be read: Is a directory"):
        load({}, {})


def test_says_which_variable_named_a_missing_file() -> None:
    with pytest.raises(ConfigurationError, match=r"config \(from TENURE_CONFIG\): nowhere.toml cannot be read"):
        load({}, {"TENURE_CONFIG": "nowhere.toml"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TENURE_URL", "http://127.0.0.1:8080"),
        ("TENURE_KEY", "x"),
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
    ],
)
def test_leaves_variables_alone_that_are_not_ours(name: str, value: str) -> None:
    assert load({}, {name: value}) == load({}, {})


@pytest.mark.parametrize("name", ["TENURE_PORTS", "TENURE_PORT_NUMBER", "TENURE_SERVICE", "TENURE_TESTS", "TENURE_"])
def test_refuses_variables_that_only_look_like_those(name: str, refusal: Refusal) -> None:
    assert f"(from {name}): there is no such setting" in refusal(**{name: "1"})


def test_a_port_that_is_meant_as_one_is_still_checked(refusal: Refusal) -> None:
    assert refusal(TENURE_PORT="http") == "port (from TENURE_PORT): must be a whole number from 0 to 65535"


def test_an_empty_variable_is_an_empty_value(refusal: Refusal) -> None:
    assert refusal(TENURE_DATABASE="").startswith("database (from TENURE_DATABASE): must be ")


def test_a_gateway_can_be_set_up_by_variables_alone() -> None:
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


@pytest.mark.parametrize("name", ["crm-events", "crm_events"])
def test_a_variable_finds_the_gateway_in_the_file_by_its_name(name: str, empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text(f"[gateways.{name}]\nurl = 'http://127.0.0.1'")
    gateways = load({}, {"TENURE_GATEWAYS__CRM_EVENTS__TIMEOUT_SECONDS": "7"}).gateways
    assert {found: gateway.timeout_seconds for found, gateway in gateways.items()} == {name: 7}


def test_a_gateway_that_only_variables_name_keeps_its_underscores() -> None:
    assert list(load({}, {"TENURE_GATEWAYS__CRM_EVENTS__URL": "http://127.0.0.1"}).gateways) == ["crm_events"]


def test_a_variable_finds_the_header_in_the_file_by_its_name(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text(
        "[gateways.usages]\nurl = 'http://127.0.0.1'\nheaders = { X-Api-Key = 'old', Accept = '*/*' }"
    )
    gateway = load({}, {"TENURE_GATEWAYS__USAGES__HEADERS__X_API_KEY": "new"}).gateways["usages"]
    assert gateway.headers == {"X-Api-Key": "new", "Accept": "*/*"}


@pytest.mark.parametrize("name", ["sync-users", "sync_users"])
def test_a_variable_finds_the_job_in_the_file_by_its_name(name: str, empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text(f"[jobs.{name}]\ninterval_seconds = 5")
    jobs = load({}, {"TENURE_JOBS__SYNC_USERS__PAUSED": "true"}).jobs
    assert {found: job.paused for found, job in jobs.items()} == {name: True}


def test_a_whole_section_can_be_one_variable() -> None:
    jobs = load({}, {"TENURE_JOBS": json.dumps({"emit-usage": {"paused": True}, "prune": {}})}).jobs
    assert {name: job.paused for name, job in jobs.items()} == {"emit-usage": True, "prune": False}


@pytest.mark.parametrize("words", ["{", "5", "[]", "null", "", "[" * 100_000])
def test_refuses_a_section_that_is_no_table(words: str, refusal: Refusal) -> None:
    assert refusal(TENURE_SESSIONS=words) == "sessions (from TENURE_SESSIONS): must be a table of settings"


def test_checks_a_setting_even_if_another_source_goes_over_it(refusal: Refusal) -> None:
    message = refusal(flags={"port": "80"}, toml="port = 'http'")
    assert message == "port (from tenure.toml): must be a whole number from 0 to 65535"


def test_a_flag_can_be_given_as_its_type() -> None:
    assert load({"port": 81, "insecure": True}, {}).port == 81
