"""Every setting, its type, its default and what is allowed: the one place that says so.

`docs/configuration.md` lists the same, and a test compares the two.
"""

import ipaddress
from decimal import Decimal
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

JOBS = {"expire-sessions": 10.0, "emit-usage": 60.0, "prune": 3600.0, "watch": 30.0}
"""The built-in jobs and their default intervals in seconds."""

FORMATS = ("tenure", "cloudevents")

Seconds = Annotated[float, Meta(ge=1, extra={"must": "must be a number of seconds, 1 or more"})]
Port = Annotated[
    int, Meta(ge=0, le=65535, extra={"must": "must be a whole number from 0 to 65535 (0 picks a free port)"})
]
Count = Annotated[int, Meta(ge=1, extra={"must": "must be a whole number, 1 or more"})]
Pause = Annotated[float, Meta(ge=0, extra={"must": "must be a number of seconds, 0 or more"})]
Status = Annotated[int, Meta(ge=100, le=599, extra={"must": "must be an HTTP status"})]
Factor = Annotated[Decimal, Meta(extra={"must": "must be a number from 0 to 1000000 with at most six decimals"})]


class SessionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of new sessions. 0 means none unless the request asks, for the heartbeat a twelfth of the lease."""

    term_days: Annotated[
        float, Meta(gt=0, le=36500, extra={"must": "must be a number of days above 0, at most 36500"})
    ] = 30.0
    lease_seconds: Pause = 0.0
    idle_seconds: Pause = 0.0
    heartbeat_seconds: Pause = 0.0


class StreamsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_per_instance: Count = 1000
    max_message_bytes: Count = 1_048_576
    handler: str = "echo"
    lease_seconds: Seconds = 60.0
    idle_seconds: Seconds = 300.0


class LeasesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    duration_seconds: Seconds = 60.0
    renew_seconds: Seconds = 20.0
    acquire_seconds: Seconds = 30.0
    refresh_seconds: Seconds = 1.0


class JobConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """None stands for the job's own default."""

    interval_seconds: Seconds | None = None
    lock_timeout_seconds: Seconds = 120.0
    paused: bool = False


class UsageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    factors: dict[Literal["1", "2", "3"], Factor] = msgspec.field(
        default_factory=lambda: {"1": Decimal(1), "2": Decimal(2), "3": Decimal(3)}
    )
    format: Literal["tenure", "cloudevents"] = "tenure"


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where submissions go. Secrets never appear in a log, an answer or an error."""

    url: str
    secret: str | None = None
    previous_secret: str | None = None
    timeout_seconds: Seconds = 30.0
    schedule: tuple[Pause, ...] = (5.0, 30.0, 120.0, 600.0, 3600.0, 21600.0)
    max_attempts: Count = 20
    already_have: tuple[Status, ...] = (409,)
    headers: dict[str, str] = {}
    concurrency: Count = 16


class OidcConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    issuer: str
    audience: str
    jwks_url: str


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    database: str = "sqlite:///tenure.db"
    host: str = "127.0.0.1"
    port: Port = 8080
    workers: Annotated[int, Meta(ge=1, le=256, extra={"must": "must be a whole number from 1 to 256"})] = 1
    prefix: str = ""
    insecure: bool = False
    pool_size: Annotated[int, Meta(ge=4, le=1000, extra={"must": "must be a whole number from 4 to 1000"})] = 10
    sessions: SessionsConfig = SessionsConfig()
    streams: StreamsConfig = StreamsConfig()
    leases: LeasesConfig = LeasesConfig()
    jobs: dict[str, JobConfig] = {}
    usage: UsageConfig = UsageConfig()
    gateways: dict[str, GatewayConfig] = {}
    oidc: OidcConfig | None = None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
