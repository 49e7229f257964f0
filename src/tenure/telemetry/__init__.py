"""Telemetry: code reports each event once, and logs, counters and traces subscribe to it."""
