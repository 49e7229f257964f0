"""How a request to a gateway is made up, and what of it must never be seen."""

import time

import pytest
from msgspec.structs import replace

from tenure import __version__
from tenure.config import GatewayConfig
from tenure.model.submissions import Contract, Parcel
from tenure.signing import sign, verify
from tenure.submissions.gateways import Gateway, gateways_of

CURRENT = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PREVIOUS = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
URL = "https://receiver.example/tok-hunter2?token=hunter2"
KEY = "01890000-0000-7000-8000-00000000beef"
AT = 1_614_265_330
PAYLOAD = b'{"test": 2432232314}'
CONFIG = GatewayConfig(
    url=URL, timeout_seconds=2.5, schedule=(0.0, 7.0), max_attempts=3, already_have=(208, 409), concurrency=5
)
CONTRACT = Contract((0.0, 7.0), 3, (208, 409), 2.5)


def parcel(key: str = KEY, usage_format: str | None = None) -> Parcel:
    return Parcel("01890000-0000-7000-8000-0000000000aa", key, PAYLOAD, replace(CONTRACT, format=usage_format))


def headers(usage_format: str | None = None, **given: object) -> dict[str, str]:
    gateway = Gateway("crm", GatewayConfig(url=URL, **given))  # type: ignore[arg-type]
    return gateway.headers(parcel(usage_format=usage_format), AT)


def test_says_what_every_request_says() -> None:
    assert headers() == {
        "content-type": "application/json",
        "user-agent": f"tenure/{__version__}",
        "idempotency-key": KEY,
        "webhook-id": KEY,
        "webhook-timestamp": str(AT),
    }


def test_says_what_is_configured() -> None:
    given = headers(headers={"X-Shop": "a", "User-Agent": "shop/1", "content-TYPE": "text/json"})
    assert (given["x-shop"], given["user-agent"], given["content-type"]) == ("a", "shop/1", "text/json")
    assert all(name.islower() for name in given)


def test_signs_by_its_secret() -> None:
    assert headers(secret=CURRENT)["webhook-signature"] == sign(CURRENT, KEY, AT, PAYLOAD)


def test_signs_by_both_secrets_while_one_is_being_replaced() -> None:
    given = headers(secret=CURRENT, previous_secret=PREVIOUS)
    assert given["webhook-signature"].split() == [sign(secret, KEY, AT, PAYLOAD) for secret in (CURRENT, PREVIOUS)]


@pytest.mark.parametrize("known", [CURRENT, PREVIOUS])
def test_a_receiver_that_knows_either_secret_is_content(known: str) -> None:
    now = int(time.time())
    gateway = Gateway("crm", GatewayConfig(url=URL, secret=CURRENT, previous_secret=PREVIOUS))
    verify([known], gateway.headers(parcel(), now), PAYLOAD, now)


def test_two_requests_share_nothing_that_can_be_changed() -> None:
    gateway = Gateway("crm", GatewayConfig(url=URL))
    gateway.headers(parcel("one"), 1)["x-more"] = "y"
    assert gateway.headers(parcel("two"), 2)["idempotency-key"] == "two"
    assert "x-more" not in gateway.headers(parcel("two"), 2)


def test_makes_the_contract_of_what_is_configured() -> None:
    gateway = Gateway("crm", CONFIG)
    assert (gateway.contract, gateway.concurrency) == (CONTRACT, 5)


def test_usage_has_a_format_and_is_never_given_up() -> None:
    usage = Gateway("usages", CONFIG).usage_contract("cloudevents")
    assert usage == Contract((0.0, 7.0), None, (208, 409), 2.5, "cloudevents")


def test_what_is_accepted_has_no_format() -> None:
    gateway = Gateway("usages", CONFIG)
    gateway.usage_contract("tenure")
    assert (gateway.contract.format, gateway.contract.max_attempts) == (None, 3)


@pytest.mark.parametrize(
    ("usage_format", "media_type"),
    [(None, "application/json"), ("tenure", "application/json"), ("cloudevents", "application/cloudevents-batch+json")],
)
def test_says_of_what_type_a_body_is_by_its_format(usage_format: str | None, media_type: str) -> None:
    assert headers(usage_format)["content-type"] == media_type


def test_a_type_that_is_configured_goes_before_that_of_the_format() -> None:
    assert headers("cloudevents", headers={"Content-Type": "text/json"})["content-type"] == "text/json"


def test_a_gateway_need_not_have_a_secret() -> None:
    assert list(gateways_of({"crm": GatewayConfig(url=URL)})) == ["crm"]


def test_shows_no_secret() -> None:
    config = GatewayConfig(url=URL, secret=CURRENT, previous_secret=PREVIOUS, headers={"Authorization": "hunter2"})
    gateway = Gateway("crm", config)
    shown = f"{gateway!r} {gateway} {gateways_of({'crm': config})}"
    assert [each for each in ("hunter2", "whsec", CURRENT[6:], PREVIOUS[6:]) if each in shown] == []
