"""Valid and invalid values of settings, from files, variables and flags."""

import re
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from tenure.config import Config, JobConfig, load
from tenure.config.schema import rule_of, variable
from tests.config.conftest import ErrorMessage
from tests.config.test_precedence import ALWAYS_IN_FILE, SETTINGS, as_file, found

RANGES = {
    path: [Decimal(number) for number in found_numbers.groups()]
    for path, kind in SETTINGS.items()
    if (found_numbers := re.search(r"from ([0-9.]+) to ([0-9.]+)", rule_of(kind).allowed))
}
NUMBERS = [path for path, kind in SETTINGS.items() if get_args(kind)[0] in (int, float, Decimal)]
NOT_NUMBERS = ["", "many", "true", "null", "NaN", "Infinity", "-1", '"5"', "[5]", "{}"]


def load_one(path: tuple[str, ...], value: str) -> Any:
    Path("tenure.toml").write_text(as_file(ALWAYS_IN_FILE), encoding="utf-8")
    return found(load({}, {variable(path): value}), path)


def written(path: tuple[str, ...], number: Decimal) -> str:
    """Returns the number as text, in brackets if the setting is a list of numbers."""
    return str(number) if path in NUMBERS else f"[{number}]"


def test_values_at_documented_bounds_are_accepted() -> None:
    for path, ends in RANGES.items():
        # At their bounds, the settings excluded here contradict other settings.
        if path[0] not in ("leases", "sessions") and path[-1] not in ("max_connections", "max_per_instance"):
            for end in ends:
                value = load_one(path, written(path, end))
                assert (value[0] if isinstance(value, tuple) else value) == end, path


def assert_invalid_number(error_message: ErrorMessage, path: tuple[str, ...], value: str) -> None:
    message = error_message(toml=as_file(ALWAYS_IN_FILE), **{variable(path): value})
    expected = f"{'.'.join(path)} (from {variable(path)}): must be {rule_of(SETTINGS[path]).allowed}"
    assert message == expected, value


def test_values_outside_documented_bounds_are_rejected(error_message: ErrorMessage) -> None:
    for path, (least, most) in RANGES.items():
        step = 1 if "whole" in rule_of(SETTINGS[path]).allowed else Decimal("0.000001")
        for outside in (least - step, most + step):
            assert_invalid_number(error_message, path, written(path, outside))


def test_invalid_number_in_variable_is_rejected(error_message: ErrorMessage) -> None:
    """Checks each numeric setting with one wrong value, and one setting of each number type with all wrong values."""
    for number, path in enumerate(NUMBERS):
        assert_invalid_number(error_message, path, NOT_NUMBERS[number % len(NOT_NUMBERS)])
    for path, value in product((("port",), ("leases", "renew_seconds"), ("usage", "factors", "1")), NOT_NUMBERS):
        assert_invalid_number(error_message, path, value)


def test_invalid_number_in_file_is_rejected(error_message: ErrorMessage) -> None:
    rule = "must be a number of seconds from 1 to 1000000000"
    for value in ("nan", "inf", "-inf", "1e400", "true", '"5"', "1979-05-27", "[5]", "{ a = 5 }"):
        message = error_message(toml=f"leases.renew_seconds = {value}")
        assert message == f"leases.renew_seconds (from tenure.toml): {rule}", value


def test_invalid_port_in_file_is_rejected(error_message: ErrorMessage) -> None:
    for value in ("8080.0", '"8080"', "80_800"):
        message = error_message(toml=f"port = {value}")
        assert message == "port (from tenure.toml): must be a whole number from 0 to 65535", value


def test_session_durations_must_be_zero_or_at_least_one_second(error_message: ErrorMessage) -> None:
    settings = ("lease_seconds", "idle_seconds", "heartbeat_seconds")
    for setting, value in product(settings, ("0.5", "0.999", "-1")):
        message = error_message(toml=f"sessions.{setting} = {value}")
        assert "must be 0 or a number of seconds from 1" in message, (setting, value)


def test_session_lease_accepts_decimals_and_zero() -> None:
    for value in ("0", "1", "1.5"):
        assert load({}, {"TENURE_SESSIONS__LEASE_SECONDS": value}).sessions.lease_seconds == float(value)


def test_zero_stream_lease_is_rejected(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_STREAMS__LEASE_SECONDS="0").startswith(
        "streams.lease_seconds (from TENURE_STREAMS__LEASE"
    )


def test_schedule_accepts_zero() -> None:
    environment = {"TENURE_GATEWAYS__USAGES__URL": "http://127.0.0.1", "TENURE_GATEWAYS__USAGES__SCHEDULE": "[0, 0.5]"}
    assert load({}, environment).gateways["usages"].schedule == (0, 0.5)


def test_invalid_schedule_is_rejected(error_message: ErrorMessage) -> None:
    for value in ("[]", "5", "[-1]", '["5"]', "5, 6", "[[5]]"):
        message = error_message(
            TENURE_GATEWAYS__USAGES__URL="http://127.0.0.1", TENURE_GATEWAYS__USAGES__SCHEDULE=value
        )
        hint = "" if value.startswith("[") else ", written in JSON such as [1, 2]"
        assert message.endswith(f"must be a list of one or more numbers of seconds from 0 to 1000000000{hint}"), value


def test_switch_other_than_true_or_false_is_rejected(error_message: ErrorMessage) -> None:
    for value in ("1", "yes", "True", "on", "", "null"):
        message = error_message(TENURE_INSECURE=value)
        assert message == "insecure (from TENURE_INSECURE): must be true or false", value


def test_switch_is_read_from_variable() -> None:
    for value, expected in (("true", True), ("false", False)):
        assert load({}, {"TENURE_INSECURE": value}).insecure is expected


def test_text_in_variable_is_not_parsed() -> None:
    for value in ("12", "1.0", "true", "null", "[1]", '{"a": 1}', '"quoted"', " spaced "):
        options = load({}, {"TENURE_STREAMS__OPTIONS__GRAMMAR": value}).streams.options
        assert options == {"grammar": value}


def test_number_for_text_setting_is_rejected(error_message: ErrorMessage) -> None:
    assert error_message(toml="host = 5") == "host (from tenure.toml): must be an address or a host name"


def test_factor_from_variable_is_exact() -> None:
    for value in ("0", "1000000", "0.000001", "999999.999999", "1e3", "2.50000000", "0.1"):
        factor = load({}, {"TENURE_USAGE__FACTORS__3": value}).usage.factors["3"]
        assert (type(factor), factor) == (Decimal, Decimal(value))


def test_factor_from_file_is_exact(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("usage.factors = { 1 = 0.1, 2 = 999999.999999 }")
    factors = load({}, {"TENURE_USAGE__FACTORS": '{"3": 0.3}'}).usage.factors
    assert {kind: str(factor) for kind, factor in factors.items()} == {"1": "0.1", "2": "999999.999999", "3": "0.3"}


def test_factor_in_variable_with_too_many_decimals_is_rejected(error_message: ErrorMessage) -> None:
    for value in ("0.1000000000000000000001", "1e-7", "1000000.0000000000001"):
        message = error_message(TENURE_USAGE__FACTORS__1=value)
        assert message.endswith("with at most six decimals"), value


def test_invalid_factor_in_file_is_rejected(error_message: ErrorMessage) -> None:
    rule = "must be a number from 0 to 1000000 with at most six decimals"
    for value in (
        "0.1000000000000000000001",
        "-1",
        "-0.0",
        "0.0000001",
        "1000000.000001",
        "1000001",
        "nan",
        "inf",
        '"1"',
        "true",
    ):
        message = error_message(toml=f"usage.factors.2 = {value}")
        assert message == f"usage.factors.2 (from tenure.toml): {rule}", value


def test_factor_for_unknown_kind_is_rejected(error_message: ErrorMessage) -> None:
    message = error_message(TENURE_USAGE__FACTORS='{"4": 1}')
    assert message == "usage.factors.4 (from TENURE_USAGE__FACTORS): the name must be 1, 2 or 3"


def test_invalid_prefix_is_rejected(error_message: ErrorMessage) -> None:
    for prefix in ("api", "/api/", "/", "//api", "/a b", "/../x", "/.", "/a?b", "/ä", "/a\n"):
        message = error_message(flags={"prefix": prefix})
        assert message.startswith("prefix (from --prefix): must be empty or a path that begins"), prefix


def test_valid_prefix_is_accepted() -> None:
    for prefix in ("", "/api", "/api/v3", "/a.b/~c_d-e"):
        assert load({"prefix": prefix}, {}).prefix == prefix


def test_malformed_host_is_rejected(error_message: ErrorMessage) -> None:
    for host in ("[::1]", "", " "):
        assert error_message(TENURE_HOST=host).startswith("host (from TENURE_HOST): must be a"), host


def test_host_may_be_any_address_or_host_name() -> None:
    """tests/access/test_exposure.py tests when `tenure serve` refuses an address other than loopback."""
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1", "0.0.0.0", "::", "10.0.0.1", "example.com"):
        assert load({"host": host}, {}).host == host


def test_renew_seconds_must_be_less_than_lease_duration(error_message: ErrorMessage) -> None:
    assert error_message(toml="[leases]\nduration_seconds = 9\nrenew_seconds = 9\n") == (
        "leases.renew_seconds (from tenure.toml): must be less than leases.duration_seconds (from tenure.toml)"
    )


def test_heartbeat_seconds_must_be_less_than_lease_seconds(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_SESSIONS__LEASE_SECONDS="9", TENURE_SESSIONS__HEARTBEAT_SECONDS="9") == (
        "sessions.heartbeat_seconds (from TENURE_SESSIONS__HEARTBEAT_SECONDS): "
        "must be less than sessions.lease_seconds (from TENURE_SESSIONS__LEASE_SECONDS)"
    )


def test_connections_must_exceed_streams(error_message: ErrorMessage) -> None:
    assert error_message(toml="[http]\nmax_connections = 9\n[streams]\nmax_per_instance = 9\n") == (
        "http.max_connections (from tenure.toml): must be greater than streams.max_per_instance (from tenure.toml)"
    )


@pytest.mark.parametrize(
    "value", ['["a b"]', '["tenure.example:80"]', '[""]', '["*", "tenure.example"]', '["http://a"]']
)
def test_invalid_list_of_allowed_hosts_is_rejected(error_message: ErrorMessage, value: str) -> None:
    assert error_message(TENURE_HTTP__ALLOWED_HOSTS=value) == (
        "http.allowed_hosts (from TENURE_HTTP__ALLOWED_HOSTS): "
        'must be a list of host names or addresses without a port, or ["*"]'
    )


@pytest.mark.parametrize(
    "value", ['["tenure.example"]', '["https://a.example/"]', '["null"]', '["*", "http://a"]', '["https://"]']
)
def test_invalid_list_of_allowed_origins_is_rejected(error_message: ErrorMessage, value: str) -> None:
    assert error_message(TENURE_HTTP__ALLOWED_ORIGINS=value) == (
        "http.allowed_origins (from TENURE_HTTP__ALLOWED_ORIGINS): "
        'must be a list of origins such as https://app.example.com, or ["*"]'
    )


def test_heartbeat_without_lease_is_accepted() -> None:
    assert load({}, {"TENURE_SESSIONS__HEARTBEAT_SECONDS": "9"}).sessions.heartbeat_seconds == 9


def test_unknown_format_is_rejected(error_message: ErrorMessage) -> None:
    assert (
        error_message(TENURE_USAGE__FORMAT="xml")
        == "usage.format (from TENURE_USAGE__FORMAT): must be tenure or cloudevents"
    )


def test_built_in_jobs_have_default_intervals() -> None:
    intervals = {"expire-sessions": 10, "emit-usage": 60, "mark-usage": 300, "prune": 3600, "watch": 30}
    for name, interval in intervals.items():
        assert Config().job(name) == JobConfig(interval_seconds=interval), name


def test_configured_interval_overrides_job_default() -> None:
    config = load({}, {"TENURE_JOBS__EMIT_USAGE__INTERVAL_SECONDS": "5.5"})
    assert config.job("emit-usage") == JobConfig(interval_seconds=5.5)


def test_paused_job_keeps_default_interval() -> None:
    job = load({}, {"TENURE_JOBS__PRUNE__PAUSED": "true"}).job("prune")
    assert job == JobConfig(interval_seconds=3600, paused=True)


def test_application_job_has_no_default_interval() -> None:
    assert Config().job("send-invoices").interval_seconds is None


def test_config_is_immutable() -> None:
    with pytest.raises(AttributeError):
        load({}, {}).port = 5  # type: ignore[misc]


def test_every_setting_has_a_description_of_its_valid_values() -> None:
    assert all(rule_of(kind).allowed for kind in SETTINGS.values())


def test_tls_needs_certificate_and_key(error_message: ErrorMessage) -> None:
    for given, missing in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        message = error_message(**{variable((given,)): "file.pem"})
        assert message == f"{given} (from {variable((given,))}): requires {missing}"
        flags = error_message(flags={given: "file.pem"})
        assert flags == f"{given} (from --{given.replace('_', '-')}): requires {missing}"


def test_burst_without_its_rate_is_rejected(error_message: ErrorMessage) -> None:
    message = error_message(toml="access.requests_burst = 5")
    assert message == "access.requests_burst (from tenure.toml): requires access.requests_per_second"
    message = error_message(toml="access.failures_burst = 5\naccess.failures_per_minute = 0")
    assert message == "access.failures_burst (from tenure.toml): requires access.failures_per_minute above 0"


def test_variable_that_is_not_a_json_list_is_rejected_with_an_example(error_message: ErrorMessage) -> None:
    for wrong in ("127.0.0.1", "10.0.0.1,10.0.0.2", '"127.0.0.1"'):
        assert error_message(TENURE_HTTP__TRUSTED_PROXIES=wrong) == (
            "http.trusted_proxies (from TENURE_HTTP__TRUSTED_PROXIES): must be a list of addresses, or networks such "
            'as 10.0.0.0/8, written in JSON such as ["first", "second"]'
        )


def test_error_mentions_white_space_around_a_value(error_message: ErrorMessage) -> None:
    """A Kubernetes secret that was created from a file often ends with a line break."""
    hint = "; the value begins or ends with white space or a line break"
    for database in ("sqlite:///tenure.db\n", "postgresql://user@host/name\n", " sqlite:///tenure.db"):
        message = error_message(TENURE_DATABASE=database)
        assert message.endswith(f"percent-encoded{hint}"), database
        assert "\n" not in message
    assert hint not in error_message(TENURE_DATABASE="tenure.db")


def test_wrong_proxies_are_rejected(error_message: ErrorMessage) -> None:
    for wrong in ("proxy.example", "10.0.0.1/8", "10.0.0.0/33", "*", ""):
        message = error_message(toml=f'http.trusted_proxies = ["{wrong}"]')
        assert message.endswith("must be a list of addresses, or networks such as 10.0.0.0/8"), wrong
