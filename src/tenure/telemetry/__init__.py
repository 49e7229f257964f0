"""Telemetry: code reports each event once, and logs and counters subscribe to it."""
