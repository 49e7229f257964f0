"""The headers of requests to a gateway, the contract of the gateway, and the secrets that its `repr` hides."""

from typing import Any

import pytest
from msgspec.structs import replace

from tenure import __version__
from tenure.config import GatewayConfig
from tenure.domain.submissions import Contract, Envelope
from tenure.signing import sign, verify
from tenure.submissions.gateways import Gateway, gateways_of
from tenure.submissions.payloads import PayloadSources
from tenure.telemetry.events import Telemetry
from tenure.usage.rendering import RenderedAhead, UsagePayloads, usage_contract

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
NO_STORE: Any = None
SOURCES = PayloadSources()
SOURCES.register(UsagePayloads(NO_STORE, RenderedAhead(), Telemetry()))


def envelope(key: str = KEY, usage_format: str | None = None) -> Envelope:
    return Envelope("01890000-0000-7000-8000-0000000000aa", key, PAYLOAD, replace(CONTRACT, format=usage_format))


def headers(usage_format: str | None = None, **settings: object) -> dict[str, str]:
    gateway = Gateway("crm", GatewayConfig(url=URL, **settings), SOURCES)  # type: ignore[arg-type]
    return gateway.headers(envelope(usage_format=usage_format), AT)


def test_request_has_standard_headers() -> None:
    assert headers() == {
        "content-type": "application/json",
        "user-agent": f"tenure/{__version__}",
        "idempotency-key": KEY,
        "webhook-id": KEY,
        "webhook-timestamp": str(AT),
    }


def test_configured_headers_override_defaults_and_are_lowercased() -> None:
    built = headers(headers={"X-Shop": "a", "User-Agent": "shop/1", "content-TYPE": "text/json"})
    assert (built["x-shop"], built["user-agent"], built["content-type"]) == ("a", "shop/1", "text/json")
    assert all(name.islower() for name in built)


def test_request_is_signed_with_secret() -> None:
    assert headers(secret=CURRENT)["webhook-signature"] == sign(CURRENT, KEY, AT, PAYLOAD)


def test_request_is_signed_with_both_secrets_during_rotation() -> None:
    built = headers(secret=CURRENT, previous_secret=PREVIOUS)
    assert built["webhook-signature"].split() == [sign(secret, KEY, AT, PAYLOAD) for secret in (CURRENT, PREVIOUS)]


def test_receiver_verifies_with_either_secret() -> None:
    signed = headers(secret=CURRENT, previous_secret=PREVIOUS)
    for known in (CURRENT, PREVIOUS):
        verify([known], signed, PAYLOAD, AT)


def test_requests_do_not_share_headers() -> None:
    gateway = Gateway("crm", GatewayConfig(url=URL), SOURCES)
    gateway.headers(envelope("one"), 1)["x-more"] = "y"
    assert gateway.headers(envelope("two"), 2)["idempotency-key"] == "two"
    assert "x-more" not in gateway.headers(envelope("two"), 2)


def test_gateway_builds_contract_from_config() -> None:
    gateway = Gateway("crm", CONFIG, SOURCES)
    assert (gateway.contract, gateway.concurrency) == (CONTRACT, 5)


def test_usage_contract_has_format_and_no_attempt_limit() -> None:
    usage = usage_contract(Gateway("usages", CONFIG, SOURCES).contract, "cloudevents")
    assert usage == Contract((0.0, 7.0), None, (208, 409), 2.5, "cloudevents")


def test_usage_contract_does_not_change_contract_of_gateway() -> None:
    gateway = Gateway("usages", CONFIG, SOURCES)
    usage_contract(gateway.contract, "tenure")
    assert (gateway.contract.format, gateway.contract.max_attempts) == (None, 3)


@pytest.mark.parametrize(
    ("usage_format", "media_type"),
    [(None, "application/json"), ("tenure", "application/json"), ("cloudevents", "application/cloudevents-batch+json")],
)
def test_content_type_follows_usage_format(usage_format: str | None, media_type: str) -> None:
    assert headers(usage_format)["content-type"] == media_type


def test_configured_content_type_overrides_format() -> None:
    assert headers("cloudevents", headers={"Content-Type": "text/json"})["content-type"] == "text/json"


def test_gateway_secret_is_optional() -> None:
    assert list(gateways_of({"crm": GatewayConfig(url=URL)}, SOURCES)) == ["crm"]


def test_gateway_repr_hides_secrets() -> None:
    config = GatewayConfig(url=URL, secret=CURRENT, previous_secret=PREVIOUS, headers={"Authorization": "hunter2"})
    gateway = Gateway("crm", config, SOURCES)
    shown = f"{gateway!r} {gateway} {gateways_of({'crm': config}, SOURCES)}"
    assert [each for each in ("hunter2", "whsec", CURRENT[6:], PREVIOUS[6:]) if each in shown] == []
