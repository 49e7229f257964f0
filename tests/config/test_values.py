"""What each setting takes, from each source."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest

from tenure.config import Config, JobConfig, load
from tenure.config.schema import rule_of, variable
from tests.config.conftest import Refusal
from tests.config.test_precedence import ALWAYS_IN_FILE, SETTINGS, as_file, found

RANGES = {
    path: [Decimal(number) for number in found_numbers.groups()]
    for path, kind in SETTINGS.items()
    if (found_numbers := re.search(r"from ([0-9.]+) to ([0-9.]+)", rule_of(kind).words))
}
ENDS = [(path, end) for path, ends in RANGES.items() for end in ends if path[0] not in ("leases", "sessions")]


def load_one(path: tuple[str, ...], words: str) -> Any:
    Path("tenure.toml").write_text(as_file(ALWAYS_IN_FILE), encoding="utf-8")
    return found(load({}, {variable(path): words}), path)


def as_a_list_if_it_is_one(path: tuple[str, ...], number: Decimal) -> str:
    return f"[{number}]" if get_args(SETTINGS[path])[0] not in (int, float, Decimal) else str(number)


@pytest.mark.parametrize(("path", "end"), ENDS, ids=lambda value: ".".join(value) if isinstance(value, tuple) else None)
def test_takes_both_ends_of_the_range_that_its_rule_names(path: tuple[str, ...], end: Decimal) -> None:
    value = load_one(path, as_a_list_if_it_is_one(path, end))
    assert (value[0] if isinstance(value, tuple) else value) == end


@pytest.mark.parametrize("path", RANGES, ids=".".join)
@pytest.mark.parametrize("side", [0, 1], ids=["below", "above"])
def test_refuses_what_is_outside_the_range_that_its_rule_names(
    path: tuple[str, ...], side: int, refusal: Refusal
) -> None:
    least, most = RANGES[path]
    step = 1 if is_whole(path) else Decimal("0.000001")
    outside = (least - step, most + step)[side]
    message = refusal(toml=as_file(ALWAYS_IN_FILE), **{variable(path): as_a_list_if_it_is_one(path, outside)})
    assert message == f"{'.'.join(path)} (from {variable(path)}): must be {rule_of(SETTINGS[path]).words}"


def is_whole(path: tuple[str, ...]) -> bool:
    return "whole" in rule_of(SETTINGS[path]).words


NUMBERS = [path for path, kind in SETTINGS.items() if get_args(kind)[0] in (int, float, Decimal)]


@pytest.mark.parametrize("path", NUMBERS, ids=".".join)
@pytest.mark.parametrize("words", ["", "many", "true", "null", "NaN", "Infinity", "-1", '"5"', "[5]", "{}"])
def test_refuses_what_is_no_number(path: tuple[str, ...], words: str, refusal: Refusal) -> None:
    message = refusal(toml=as_file(ALWAYS_IN_FILE), **{variable(path): words})
    assert message == f"{'.'.join(path)} (from {variable(path)}): must be {rule_of(SETTINGS[path]).words}"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "true", '"5"', "1979-05-27", "[5]", "{ a = 5 }"])
def test_refuses_what_is_no_number_in_the_file(value: str, refusal: Refusal) -> None:
    message = refusal(toml=f"leases.renew_seconds = {value}")
    assert message == "leases.renew_seconds (from tenure.toml): must be a number of seconds from 1 to 1000000000"


@pytest.mark.parametrize("value", ["8080.0", '"8080"', "80_800"])
def test_a_port_is_a_whole_number_in_its_range(value: str, refusal: Refusal) -> None:
    assert refusal(toml=f"port = {value}") == "port (from tenure.toml): must be a whole number from 0 to 65535"


@pytest.mark.parametrize("setting", ["lease_seconds", "idle_seconds", "heartbeat_seconds"])
@pytest.mark.parametrize("value", ["0.5", "0.999", "-1"])
def test_a_limit_of_sessions_is_none_or_at_least_a_second(setting: str, value: str, refusal: Refusal) -> None:
    assert "must be 0 or a number of seconds from 1" in refusal(toml=f"sessions.{setting} = {value}")


@pytest.mark.parametrize("value", ["0", "1", "1.5"])
def test_a_lease_of_sessions_takes_decimals_and_none(value: str) -> None:
    assert load({}, {"TENURE_SESSIONS__LEASE_SECONDS": value}).sessions.lease_seconds == float(value)


def test_a_stream_always_has_limits(refusal: Refusal) -> None:
    assert refusal(TENURE_STREAMS__LEASE_SECONDS="0").startswith("streams.lease_seconds (from TENURE_STREAMS__LEASE")


def test_pauses_may_be_none() -> None:
    environment = {"TENURE_GATEWAYS__USAGES__URL": "http://127.0.0.1", "TENURE_GATEWAYS__USAGES__SCHEDULE": "[0, 0.5]"}
    assert load({}, environment).gateways["usages"].schedule == (0, 0.5)


@pytest.mark.parametrize("words", ["[]", "5", "[-1]", '["5"]', "5, 6", "[[5]]"])
def test_a_schedule_has_at_least_one_pause(words: str, refusal: Refusal) -> None:
    message = refusal(TENURE_GATEWAYS__USAGES__URL="http://127.0.0.1", TENURE_GATEWAYS__USAGES__SCHEDULE=words)
    assert message.endswith("must be a list of one or more numbers of seconds from 0 to 1000000000")


@pytest.mark.parametrize("words", ["1", "yes", "True", "on", "", "null"])
def test_a_switch_is_true_or_false(words: str, refusal: Refusal) -> None:
    assert refusal(TENURE_INSECURE=words) == "insecure (from TENURE_INSECURE): must be true or false"


@pytest.mark.parametrize(("words", "expected"), [("true", True), ("false", False)])
def test_a_switch_is_read_from_a_variable(words: str, expected: bool) -> None:
    assert load({}, {"TENURE_INSECURE": words}).insecure is expected


@pytest.mark.parametrize("words", ["12", "1.0", "true", "null", "[1]", '{"a": 1}', '"quoted"', " spaced "])
def test_text_stays_text_whatever_it_looks_like(words: str) -> None:
    given = {"ISSUER": "https://login.example", "JWKS_URL": "https://login.example/keys", "AUDIENCE": words}
    oidc = load({}, {f"TENURE_OIDC__{name}": value for name, value in given.items()}).oidc
    assert oidc is not None
    assert oidc.audience == words


def test_text_in_the_file_is_no_number(refusal: Refusal) -> None:
    assert refusal(toml="host = 5") == "host (from tenure.toml): must be an address or a host name"


@pytest.mark.parametrize("words", ["0", "1000000", "0.000001", "999999.999999", "1e3", "2.50000000", "0.1"])
def test_a_factor_is_exact_from_a_variable(words: str) -> None:
    factor = load({}, {"TENURE_USAGE__FACTORS__3": words}).usage.factors["3"]
    assert (type(factor), factor) == (Decimal, Decimal(words))


def test_a_factor_is_exact_from_the_file(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("usage.factors = { 1 = 0.1, 2 = 999999.999999 }")
    factors = load({}, {"TENURE_USAGE__FACTORS": '{"3": 0.3}'}).usage.factors
    assert {kind: str(factor) for kind, factor in factors.items()} == {"1": "0.1", "2": "999999.999999", "3": "0.3"}


@pytest.mark.parametrize("words", ["0.1000000000000000000001", "1e-7", "1000000.0000000000001"])
def test_no_decimal_of_a_factor_is_lost_on_the_way(words: str, refusal: Refusal) -> None:
    assert refusal(TENURE_USAGE__FACTORS__1=words).endswith("with at most six decimals")


@pytest.mark.parametrize(
    "value",
    ["0.1000000000000000000001", "-1", "-0.0", "0.0000001", "1000000.000001", "1000001", "nan", "inf", '"1"', "true"],
)
def test_refuses_a_factor_out_of_range_or_with_more_decimals(value: str, refusal: Refusal) -> None:
    message = refusal(toml=f"usage.factors.2 = {value}")
    assert message == "usage.factors.2 (from tenure.toml): must be a number from 0 to 1000000 with at most six decimals"


def test_refuses_a_factor_for_a_kind_that_there_is_not(refusal: Refusal) -> None:
    message = refusal(TENURE_USAGE__FACTORS='{"4": 1}')
    assert message == "usage.factors.4 (from TENURE_USAGE__FACTORS): the name must be 1, 2 or 3"


@pytest.mark.parametrize("prefix", ["api", "/api/", "/", "//api", "/a b", "/../x", "/.", "/a?b", "/ä", "/a\n"])
def test_refuses_a_prefix_that_is_no_path(prefix: str, refusal: Refusal) -> None:
    assert refusal(flags={"prefix": prefix}).startswith("prefix (from --prefix): must be empty or a path that begins")


@pytest.mark.parametrize("prefix", ["", "/api", "/api/v3", "/a.b/~c_d-e"])
def test_takes_a_prefix(prefix: str) -> None:
    assert load({"prefix": prefix}, {}).prefix == prefix


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "[::1]", "127.0.0.1.example.com", "", " "]
)
def test_refuses_to_listen_beyond_loopback(host: str, refusal: Refusal) -> None:
    assert refusal(TENURE_HOST=host).startswith("host (from TENURE_HOST): must be a")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_listens_on_loopback(host: str) -> None:
    assert load({"host": host}, {}).host == host


def test_listens_anywhere_if_told_that_it_is_insecure() -> None:
    assert load({"host": "0.0.0.0", "insecure": True}, {}).host == "0.0.0.0"


def test_a_lease_must_be_renewed_before_it_ends(refusal: Refusal) -> None:
    assert refusal(toml="[leases]\nduration_seconds = 9\nrenew_seconds = 9\n") == (
        "leases.renew_seconds (from tenure.toml): must be less than leases.duration_seconds (from tenure.toml)"
    )


def test_a_heartbeat_must_come_before_the_lease_ends(refusal: Refusal) -> None:
    assert refusal(TENURE_SESSIONS__LEASE_SECONDS="9", TENURE_SESSIONS__HEARTBEAT_SECONDS="9") == (
        "sessions.heartbeat_seconds (from TENURE_SESSIONS__HEARTBEAT_SECONDS): "
        "must be less than sessions.lease_seconds (from TENURE_SESSIONS__LEASE_SECONDS)"
    )


def test_a_heartbeat_may_be_set_without_a_lease() -> None:
    assert load({}, {"TENURE_SESSIONS__HEARTBEAT_SECONDS": "9"}).sessions.heartbeat_seconds == 9


def test_refuses_an_unknown_format(refusal: Refusal) -> None:
    assert (
        refusal(TENURE_USAGE__FORMAT="xml") == "usage.format (from TENURE_USAGE__FORMAT): must be tenure or cloudevents"
    )


@pytest.mark.parametrize(
    ("name", "interval"), [("expire-sessions", 10), ("emit-usage", 60), ("prune", 3600), ("watch", 30)]
)
def test_a_built_in_job_has_its_interval(name: str, interval: float) -> None:
    assert Config().job(name) == JobConfig(interval_seconds=interval)


def test_a_configured_interval_goes_over_that_of_the_job() -> None:
    config = load({}, {"TENURE_JOBS__EMIT_USAGE__INTERVAL_SECONDS": "5.5"})
    assert config.job("emit-usage") == JobConfig(interval_seconds=5.5)


def test_a_job_that_is_only_paused_keeps_its_interval() -> None:
    job = load({}, {"TENURE_JOBS__PRUNE__PAUSED": "true"}).job("prune")
    assert job == JobConfig(interval_seconds=3600, paused=True)


def test_the_interval_of_an_application_is_left_to_it() -> None:
    assert Config().job("send-invoices").interval_seconds is None


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load({}, {}).port = 5  # type: ignore[misc]


def test_every_setting_says_what_it_takes() -> None:
    assert all(rule_of(kind).words for kind in SETTINGS.values())
