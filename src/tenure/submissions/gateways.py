"""Gateways: where submissions go, and how a request to each is made up."""

from collections.abc import Mapping

from tenure import __version__
from tenure.config import GatewayConfig
from tenure.model.submissions import Contract
from tenure.submissions.signing import ID, TIMESTAMP, key_of, signed_headers

USAGES = "usages"
ONCALL = "oncall"
RESERVED = (USAGES, ONCALL)
"""Tenure's own: nobody else can submit to them."""
IDEMPOTENCY_KEY = "idempotency-key"


class Gateway:
    """URL, secrets and headers are those of the current configuration, whatever a submission's contract says."""

    def __init__(self, name: str, config: GatewayConfig) -> None:
        self.name = name
        self.url = config.url
        self.concurrency = config.concurrency
        self.contract = Contract(config.schedule, config.max_attempts, config.already_have, config.timeout_seconds)
        self._secrets = [secret for secret in (config.secret, config.previous_secret) if secret]
        own = {"content-type": "application/json", "user-agent": f"tenure/{__version__}"}
        self._headers = own | {name.lower(): value for name, value in config.headers.items()}

    def headers(self, delivery_key: str, payload: bytes, timestamp: int) -> dict[str, str]:
        headers = self._headers | {IDEMPOTENCY_KEY: delivery_key}
        if self._secrets:
            return headers | signed_headers(self._secrets, delivery_key, timestamp, payload)
        return headers | {ID: delivery_key, TIMESTAMP: str(timestamp)}


def gateways_of(configs: Mapping[str, GatewayConfig]) -> Mapping[str, Gateway]:
    """Refuses the start if a secret cannot be signed with."""
    for name, config in configs.items():
        for setting, secret in (("secret", config.secret), ("previous_secret", config.previous_secret)):
            if secret:
                key_of(secret, f"gateways.{name}.{setting}")
    return {name: Gateway(name, config) for name, config in configs.items()}
