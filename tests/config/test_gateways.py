"""Settings of a gateway."""

import json
import os
import subprocess
import sys

import pytest

from tenure.config import GatewayConfig, load
from tests.config.conftest import ErrorMessage

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
URL = "TENURE_GATEWAYS__USAGES__URL"
HEADERS = "TENURE_GATEWAYS__USAGES__HEADERS"


def test_any_gateway_name_is_accepted() -> None:
    for name in ("usages", "oncall", "crm", "crm-2"):
        gateways = load({}, {"TENURE_GATEWAYS": json.dumps({name: {"url": "http://127.0.0.1:81"}})}).gateways
        assert gateways == {name: GatewayConfig(url="http://127.0.0.1:81")}


def test_valid_gateway_url_is_accepted() -> None:
    for url in (
        "http://a",
        "https://a.example:8443/p/q?r=s",
        "http://[::1]:80/",
        "http://127.0.0.1",
        "https://a/@b/%20",
    ):
        assert load({}, {URL: url}).gateways["usages"].url == url


def test_invalid_gateway_url_is_rejected(error_message: ErrorMessage) -> None:
    for url in (
        "",
        "receiver.example",
        "ftp://a/b",
        "file:///etc/passwd",
        "http://",
        "http:///path",
        "http://:80/",
        "http://a:port/",
        "http://a:99999/",
        "http://[::1/",
        "http://user@a/",
        "http://user:hunter2@a/",
        "http://@a/",
        "http://a/b#c",
        "http://a/b c",
        "http://a/\r\nX: y",
        "http://ä/",
    ):
        message = error_message(**{URL: url})
        assert message == f"gateways.usages.url (from {URL}): must be an http or https address without credentials", url


def test_invalid_or_reserved_header_name_is_rejected(error_message: ErrorMessage) -> None:
    for name in ("", "a b", "a:", "ä", "a\r\nb", "Host", "Content-Length", "Idempotency-Key", "Webhook-Id"):
        message = error_message(**{URL: "http://a", HEADERS: json.dumps({name: "x"})})
        rule = "the name must be a header name that is not reserved for Tenure"
        assert message.endswith(f"(from {HEADERS}): {rule}"), name
        assert message.isprintable(), name


def test_invalid_header_value_is_rejected(error_message: ErrorMessage) -> None:
    rule = "must be printable ASCII without leading or trailing spaces"
    for value in ("", " x", "x ", "a\r\nX: y", "a\nb", "ä", "\x00", 5, None, ["x"]):
        message = error_message(**{URL: "http://a", HEADERS: json.dumps({"X-Key": value})})
        assert message == f"gateways.usages.headers.X-Key (from {HEADERS}): {rule}", value


def test_duplicate_header_is_rejected(error_message: ErrorMessage) -> None:
    message = error_message(**{URL: "http://a", HEADERS: '{"Accept": "a", "accept": "b"}'})
    assert message.startswith(f"gateways.usages.headers.accept (from {HEADERS}): must differ from ")


def test_gateway_without_url_is_rejected(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_GATEWAYS__USAGES__SECRET=SECRET) == (
        "gateways.usages.url (from TENURE_GATEWAYS__USAGES__SECRET): is required if gateways.usages is configured"
    )


def test_empty_gateway_section_is_rejected(error_message: ErrorMessage) -> None:
    message = error_message(toml="[gateways.crm]")
    assert message == "gateways.crm.url (from tenure.toml): is required if gateways.crm is configured"


def test_limit_of_attempts_for_usage_is_rejected(error_message: ErrorMessage) -> None:
    assert error_message(toml="[gateways.usages]\nurl = 'http://a'\nmax_attempts = 3") == (
        "gateways.usages.max_attempts (from tenure.toml): cannot be set, because usage must be delivered"
    )


def test_previous_secret_without_secret_is_rejected(error_message: ErrorMessage) -> None:
    message = error_message(toml=f"[gateways.crm]\nurl = 'http://a'\nprevious_secret = '{SECRET}'")
    assert message == "gateways.crm.previous_secret (from tenure.toml): requires gateways.crm.secret"


def test_invalid_secret_is_rejected(error_message: ErrorMessage) -> None:
    for secret in ("", "whsec_", "hunter2-" * 5, "whsec_aHVudGVyMg==", SECRET[:-1], "ü" * 20):
        message = error_message(**{URL: "http://a", "TENURE_GATEWAYS__USAGES__SECRET": secret})
        assert message == (
            "gateways.usages.secret (from TENURE_GATEWAYS__USAGES__SECRET): "
            "must be whsec_ and base64 (A-Z a-z 0-9 + / and = at the end) of at least 16 bytes"
        ), secret


def test_secret_with_or_without_prefix_is_accepted() -> None:
    for secret in (SECRET, SECRET.removeprefix("whsec_")):
        gateways = load({}, {URL: "http://a", "TENURE_GATEWAYS__USAGES__SECRET": secret}).gateways
        assert gateways["usages"].secret == secret


def test_invalid_status_list_is_rejected(error_message: ErrorMessage) -> None:
    for value in ("[199]", "[600]", "[409.0]", "409", '["409"]'):
        message = error_message(**{URL: "http://a", "TENURE_GATEWAYS__USAGES__ALREADY_HAVE": value})
        hint = "" if value.startswith("[") else ", written in JSON such as [1, 2]"
        assert message.endswith(f"must be a list of whole numbers from 200 to 599{hint}"), value


def test_already_have_accepts_empty_list() -> None:
    environment = {URL: "http://a", "TENURE_GATEWAYS__USAGES__ALREADY_HAVE": "[]"}
    assert load({}, environment).gateways["usages"].already_have == ()


# Start of the process.


@pytest.mark.parametrize(
    ("setting", "secret", "workers"),
    [("secret", "hunter2-hunter2-hunter2", "1"), ("previous_secret", "whsec_aHVudGVyMg==", "2")],
)
def test_invalid_secret_stops_start_and_is_not_printed(setting: str, secret: str, workers: str) -> None:
    settings = {
        "url": "http://127.0.0.1:9/hunter2",
        "secret": SECRET,
        setting: secret,
    }
    environment = {f"TENURE_GATEWAYS__CRM__{name.upper()}": value for name, value in settings.items()}
    serving = subprocess.run(
        [sys.executable, "-m", "tenure", "serve", "--port", "0", "--workers", workers],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    output = serving.stderr + serving.stdout
    assert serving.returncode == 2, output
    variable = f"TENURE_GATEWAYS__CRM__{setting.upper()}"
    assert f"gateways.crm.{setting} (from {variable}): must be whsec_ and base64" in output
    assert "listening" not in output
    assert [each for each in ("hunter2", "aHVudGVyMg", "MfKQ9r8", "Traceback") if each in output] == []
