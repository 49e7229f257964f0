"""The configuration: one frozen record, checked once at the start."""

from tenure.config.load import load
from tenure.config.settings import Config, GatewayConfig, JobConfig, SessionsConfig

__all__ = ["Config", "GatewayConfig", "JobConfig", "SessionsConfig", "load"]
