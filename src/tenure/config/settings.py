"""Defines every setting with its type and default.

`docs/configuration.md` lists the same settings; a test compares the two.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.config.urls import HIDDEN, origin, without_password
from tenure.config.values import (
    JOBS,
    ROLES,
    AnyId,
    Backoff,
    Bytes,
    Count,
    CountOrZero,
    DatabaseUrl,
    Days,
    EventTypes,
    Factor,
    Format,
    GatewayName,
    Handler,
    HeaderBytes,
    HeaderName,
    HeaderValue,
    HolderName,
    Host,
    HostNames,
    HttpUrl,
    JobName,
    JsonCase,
    Kind,
    LeaseName,
    Leeway,
    LogLevel,
    Networks,
    OptionName,
    Origins,
    PoolSize,
    Port,
    Prefix,
    ProfileName,
    Ratio,
    RoleName,
    Seconds,
    SecondsOrZero,
    Secret,
    SecureUrl,
    SessionLogLevel,
    Statuses,
    Switch,
    Text,
    UnknownFields,
    Workers,
)

SECRETS: dict[str, Callable[[Any], object]] = {
    "database": without_password,
    "url": origin,
    "endpoint": lambda endpoint: endpoint and origin(endpoint),
    "secret": lambda secret: secret and HIDDEN,
    "client_secret": lambda secret: secret and HIDDEN,
    "previous_secret": lambda secret: secret and HIDDEN,
    "headers": lambda headers: dict.fromkeys(headers, HIDDEN),
}
"""Settings that contain a secret, and how each is masked for output."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Masks secrets in its `repr`, because a configuration may be printed, logged or part of a traceback."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, _masked(name, getattr(self, name))) for name in self.__struct_fields__]


class HttpConfig(Section, frozen=True, kw_only=True):
    """Settings of the HTTP server. Limits apply to each instance."""

    max_connections: Count = 4096
    max_header_bytes: HeaderBytes = 32_768
    max_headers: Count = 100
    head_seconds: Seconds = 10.0
    body_seconds: Seconds = 30.0
    idle_seconds: Seconds = 75.0
    drain_seconds: SecondsOrZero = 0.0
    """How long, at least, an instance serves new requests after SIGTERM; 0: half a second."""
    max_unfinished_bytes: Bytes = 268_435_456
    allowed_hosts: HostNames = ()
    allowed_origins: Origins = ()
    trusted_proxies: Networks = ()
    json_case: JsonCase = "camel"
    unknown_fields: UnknownFields = "refuse"


class AccessConfig(Section, frozen=True, kw_only=True):
    grace_seconds: SecondsOrZero = 300.0
    """How long cached API keys, and tokens, are still accepted while the database is unavailable."""
    requests_per_second: CountOrZero = 0
    """How many requests one credential may send per second; 0: any number."""
    requests_burst: CountOrZero = 0
    """How many requests one credential may send at once after a pause; 0: twice `requests_per_second`."""
    failures_per_minute: CountOrZero = 60
    """How many wrong credentials per minute from one address get 401; further ones get 429. 0: all get 401."""
    failures_burst: Count = 20


class SessionsConfig(Section, frozen=True, kw_only=True):
    """Limits of new sessions.

    A lease or idle limit of 0 means no limit unless the request sets one. A heartbeat interval of 0 means a twelfth of
    the lease.
    """

    term_days: Days = 30.0
    lease_seconds: SecondsOrZero = 0.0
    idle_seconds: SecondsOrZero = 0.0
    heartbeat_seconds: SecondsOrZero = 0.0


class StreamsConfig(Section, frozen=True, kw_only=True):
    max_per_instance: Count = 1000
    max_message_bytes: Bytes = 1_048_576
    handler: Handler = "echo"
    options: dict[OptionName, Text] = {}
    lease_seconds: Seconds = 60.0
    idle_seconds: Seconds = 300.0


class TranscriptionConfig(Section, frozen=True, kw_only=True):
    """The tenant and the capacity for a client of `WS /transcribe/stream` that does not name them itself."""

    tenant: AnyId | None = None
    capacity: AnyId | None = None


class LeasesConfig(Section, frozen=True, kw_only=True):
    duration_seconds: Seconds = 60.0
    renew_seconds: Seconds = 20.0
    acquire_seconds: Seconds = 30.0
    refresh_seconds: Seconds = 1.0
    holder: HolderName | None = None
    """The name of this instance in leases; None: the host name, the process id and a random part."""
    executor_lease: LeaseName = "submission-executor"


class JobConfig(Section, frozen=True, kw_only=True):
    """If the interval is None, the job's own default applies; `Config.job` fills in the defaults of built-in jobs."""

    interval_seconds: Seconds | None = None
    lock_timeout_seconds: Seconds = 120.0
    paused: Switch = False


class UsageConfig(Section, frozen=True, kw_only=True):
    factors: dict[Kind, Factor] = msgspec.field(
        default_factory=lambda: {"1": Decimal(1), "2": Decimal(2), "3": Decimal(3)}
    )
    format: Format = "tenure"


class GatewayConfig(Section, frozen=True, kw_only=True):
    """A receiver of submissions."""

    url: HttpUrl
    secret: Secret | None = None
    previous_secret: Secret | None = None
    timeout_seconds: Seconds = 30.0
    schedule: Backoff = (5.0, 30.0, 120.0, 600.0, 3600.0, 21600.0)
    max_attempts: Count = 20
    already_have: Statuses = (409,)
    headers: dict[HeaderName, HeaderValue] = {}
    concurrency: Count = 16
    events: EventTypes = ()
    """The types of session events that Tenure sends to this gateway."""
    event_format: Format = "tenure"


class LogsConfig(Section, frozen=True, kw_only=True):
    level: LogLevel = "info"
    sessions: SessionLogLevel = "debug"
    """The level of the lines about sessions that clients open and end."""
    access: Switch = False


class MetricsConfig(Section, frozen=True, kw_only=True):
    public: Switch = False


class TracesConfig(Section, frozen=True, kw_only=True):
    endpoint: HttpUrl | None = None
    """The URL to which spans are sent, by OTLP over HTTP. None: tracing is off."""
    headers: dict[HeaderName, HeaderValue] = {}
    service_name: Text = "tenure"
    sample_ratio: Ratio = 1.0
    per_second: Count = 100
    """The most requests that one instance samples in a second."""
    follow_callers: Switch = True
    """Whether the sampling decision in a caller's `traceparent` is followed."""


class OidcConfig(Section, frozen=True, kw_only=True):
    """The issuer whose tokens are accepted, and how their claims are interpreted."""

    issuer: HttpUrl
    audience: Text
    jwks_url: SecureUrl
    tenant_claim: Text = "tid"
    user_claim: Text = "oid"
    roles_claim: Text = "roles"
    # A configured table replaces this one. If a token has a role that is not in the table, this role grants nothing.
    roles: dict[Text, RoleName] = msgspec.field(default_factory=lambda: {name: name for name in ROLES})
    leeway_seconds: Leeway = 30
    staff_tenant: AnyId | None = None
    """Readers and operators of this tenant see all tenants."""
    client_id: Text | None = None
    """The id of Tenure at the issuer. With it, people sign in to the console at the issuer."""
    client_secret: Text | None = None
    authorization_url: SecureUrl | None = None
    token_url: SecureUrl | None = None
    scope: Text = "openid"


class Config(Section, frozen=True, kw_only=True):
    database: DatabaseUrl = "sqlite:///tenure.db"
    host: Host = "127.0.0.1"
    port: Port = 8080
    profile: ProfileName = "capacity"
    workers: Workers = 1
    prefix: Prefix = ""
    insecure: Switch = False
    tls_certificate: Text | None = None
    tls_key: Text | None = None
    pool_size: PoolSize = 10
    http: HttpConfig = HttpConfig()
    access: AccessConfig = AccessConfig()
    oidc: OidcConfig | None = None
    sessions: SessionsConfig = SessionsConfig()
    streams: StreamsConfig = StreamsConfig()
    transcription: TranscriptionConfig = TranscriptionConfig()
    leases: LeasesConfig = LeasesConfig()
    jobs: dict[JobName, JobConfig] = {}
    usage: UsageConfig = UsageConfig()
    gateways: dict[GatewayName, GatewayConfig] = {}
    logs: LogsConfig = LogsConfig()
    metrics: MetricsConfig = MetricsConfig()
    traces: TracesConfig = TracesConfig()

    def job(self, name: str) -> JobConfig:
        """Return a job's settings, configured or default. For an application's job, the interval may be None."""
        configured = self.jobs.get(name, JobConfig())
        if configured.interval_seconds is not None:
            return configured
        return replace(configured, interval_seconds=JOBS.get(name))


def _masked(name: str, value: Any) -> Any:
    return SECRETS[name](value) if name in SECRETS else value
