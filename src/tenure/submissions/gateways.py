"""Gateways: where submissions go, and how a request to each is made up."""

from collections.abc import Mapping

from msgspec.structs import replace

from tenure import __version__
from tenure.config import GatewayConfig
from tenure.model.submissions import Contract, Parcel
from tenure.signing import ID, TIMESTAMP, signed_headers
from tenure.usage.formats import FORMATS

IDEMPOTENCY_KEY = "idempotency-key"
JSON = "application/json"


class Gateway:
    """URL, secrets and headers are those of the current configuration, whatever a submission's contract says."""

    def __init__(self, name: str, config: GatewayConfig) -> None:
        self.name = name
        self.url = config.url
        self.concurrency = config.concurrency
        self.contract = Contract(config.schedule, config.max_attempts, config.already_have, config.timeout_seconds)
        self._secrets = [secret for secret in (config.secret, config.previous_secret) if secret]
        own = {"user-agent": f"tenure/{__version__}"}
        self._headers = own | {name.lower(): value for name, value in config.headers.items()}

    def headers(self, parcel: Parcel, timestamp: int) -> dict[str, str]:
        key = parcel.delivery_key
        headers = {"content-type": _media_type(parcel)} | self._headers | {IDEMPOTENCY_KEY: key}
        if self._secrets:
            return headers | signed_headers(self._secrets, key, timestamp, parcel.payload)
        return headers | {ID: key, TIMESTAMP: str(timestamp)}

    def usage_contract(self, usage_format: str) -> Contract:
        """Usage is never given up."""
        return replace(self.contract, max_attempts=None, format=usage_format)


def _media_type(parcel: Parcel) -> str:
    usage_format = parcel.contract.format
    return JSON if usage_format is None else FORMATS[usage_format].media_type


def gateways_of(configs: Mapping[str, GatewayConfig]) -> Mapping[str, Gateway]:
    return {name: Gateway(name, config) for name, config in configs.items()}
