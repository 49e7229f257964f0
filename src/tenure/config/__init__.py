"""The configuration: one frozen record, validated once at startup."""

from tenure.config.load import load
from tenure.config.settings import Config, GatewayConfig, JobConfig, LeasesConfig, SessionsConfig, StreamsConfig
from tenure.config.values import JOBS

__all__ = ["JOBS", "Config", "GatewayConfig", "JobConfig", "LeasesConfig", "SessionsConfig", "StreamsConfig", "load"]
