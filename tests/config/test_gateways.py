"""What a gateway may be set up with."""

import json
import os
import subprocess
import sys

import pytest

from tenure.config import GatewayConfig, load
from tests.config.conftest import Refusal

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
URL = "TENURE_GATEWAYS__USAGES__URL"
HEADERS = "TENURE_GATEWAYS__USAGES__HEADERS"


@pytest.mark.parametrize("name", ["usages", "oncall", "crm", "crm-2"])
def test_takes_any_name(name: str) -> None:
    gateways = load({}, {"TENURE_GATEWAYS": json.dumps({name: {"url": "http://127.0.0.1:81"}})}).gateways
    assert gateways == {name: GatewayConfig(url="http://127.0.0.1:81")}


@pytest.mark.parametrize(
    "url", ["http://a", "https://a.example:8443/p/q?r=s", "http://[::1]:80/", "http://127.0.0.1", "https://a/@b/%20"]
)
def test_takes_an_address(url: str) -> None:
    assert load({}, {URL: url}).gateways["usages"].url == url


@pytest.mark.parametrize(
    "url",
    [
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
    ],
)
def test_refuses_an_address_that_cannot_be_sent_to(url: str, refusal: Refusal) -> None:
    message = refusal(**{URL: url})
    assert message == f"gateways.usages.url (from {URL}): must be an http or https address without credentials"


@pytest.mark.parametrize(
    "name", ["", "a b", "a:", "ä", "a\r\nb", "Host", "Content-Length", "Idempotency-Key", "Webhook-Id"]
)
def test_refuses_a_header_that_is_none_or_ours(name: str, refusal: Refusal) -> None:
    message = refusal(**{URL: "http://a", HEADERS: json.dumps({name: "x"})})
    assert message.endswith(f"(from {HEADERS}): the name must be that of a header which Tenure does not set itself")
    assert message.isprintable()


@pytest.mark.parametrize("value", ["", " x", "x ", "a\r\nX: y", "a\nb", "ä", "\x00", 5, None, ["x"]])
def test_refuses_a_header_with_a_value_that_cannot_be_sent(value: object, refusal: Refusal) -> None:
    message = refusal(**{URL: "http://a", HEADERS: json.dumps({"X-Key": value})})
    assert message == (
        f"gateways.usages.headers.X-Key (from {HEADERS}): must be printable ASCII without spaces around it"
    )


def test_refuses_a_header_twice(refusal: Refusal) -> None:
    message = refusal(**{URL: "http://a", HEADERS: '{"Accept": "a", "accept": "b"}'})
    assert message.startswith(f"gateways.usages.headers.accept (from {HEADERS}): must differ from ")


def test_refuses_a_gateway_without_an_address(refusal: Refusal) -> None:
    assert refusal(TENURE_GATEWAYS__USAGES__SECRET=SECRET) == (
        "gateways.usages.url (from TENURE_GATEWAYS__USAGES__SECRET): must be given as soon as gateways.usages is set up"
    )


def test_refuses_a_gateway_that_is_only_mentioned(refusal: Refusal) -> None:
    message = refusal(toml="[gateways.oncall]")
    assert message == "gateways.oncall.url (from tenure.toml): must be given as soon as gateways.oncall is set up"


def test_refuses_half_a_set_up_of_oidc(refusal: Refusal) -> None:
    message = refusal(toml='[oidc]\nissuer = "https://login.example"\njwks_url = "https://login.example/keys"')
    assert message == "oidc.audience (from tenure.toml): must be given as soon as oidc is set up"


def test_refuses_a_previous_secret_that_nothing_replaces(refusal: Refusal) -> None:
    message = refusal(toml=f"[gateways.crm]\nurl = 'http://a'\nprevious_secret = '{SECRET}'")
    assert message == "gateways.crm.previous_secret (from tenure.toml): must come with gateways.crm.secret"


@pytest.mark.parametrize("secret", ["", "whsec_", "hunter2-" * 5, "whsec_aHVudGVyMg==", SECRET[:-1], "ü" * 20])
def test_refuses_a_secret_that_cannot_be_signed_with(secret: str, refusal: Refusal) -> None:
    message = refusal(**{URL: "http://a", "TENURE_GATEWAYS__USAGES__SECRET": secret})
    assert message == (
        "gateways.usages.secret (from TENURE_GATEWAYS__USAGES__SECRET): "
        "must be whsec_ and base64 (A-Z a-z 0-9 + / and = at the end) of at least 16 bytes"
    )


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_")])
def test_takes_a_secret_with_or_without_what_it_begins_with(secret: str) -> None:
    assert load({}, {URL: "http://a", "TENURE_GATEWAYS__USAGES__SECRET": secret}).gateways["usages"].secret == secret


@pytest.mark.parametrize("words", ["[199]", "[600]", "[409.0]", "409", '["409"]'])
def test_refuses_what_is_no_status(words: str, refusal: Refusal) -> None:
    message = refusal(**{URL: "http://a", "TENURE_GATEWAYS__USAGES__ALREADY_HAVE": words})
    assert message.endswith("must be a list of whole numbers from 200 to 599")


def test_no_status_need_mean_that_it_is_there_already() -> None:
    environment = {URL: "http://a", "TENURE_GATEWAYS__USAGES__ALREADY_HAVE": "[]"}
    assert load({}, environment).gateways["usages"].already_have == ()


# The start.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "secret", "workers"),
    [("secret", "hunter2-hunter2-hunter2", "1"), ("previous_secret", "whsec_aHVudGVyMg==", "2")],
)
def test_a_secret_that_cannot_be_signed_with_stops_the_start(setting: str, secret: str, workers: str) -> None:
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
    told = serving.stderr + serving.stdout
    assert serving.returncode == 2, told
    variable = f"TENURE_GATEWAYS__CRM__{setting.upper()}"
    assert f"gateways.crm.{setting} (from {variable}): must be whsec_ and base64" in told
    assert "listening" not in told
    assert [each for each in ("hunter2", "aHVudGVyMg", "MfKQ9r8", "Traceback") if each in told] == []
