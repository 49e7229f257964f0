"""The configuration: one frozen record, validated once at startup."""

from tenure.config.load import load
from tenure.config.settings import (
    AccessConfig,
    Config,
    GatewayConfig,
    HttpConfig,
    JobConfig,
    LeasesConfig,
    OidcConfig,
    SessionsConfig,
    StreamsConfig,
    TracesConfig,
    TranscriptionConfig,
)
from tenure.config.urls import is_loopback
from tenure.config.values import JOBS

__all__ = [
    "JOBS",
    "AccessConfig",
    "Config",
    "GatewayConfig",
    "HttpConfig",
    "JobConfig",
    "LeasesConfig",
    "OidcConfig",
    "SessionsConfig",
    "StreamsConfig",
    "TracesConfig",
    "TranscriptionConfig",
    "is_loopback",
    "load",
]
