"""The telemetry seam: the code reports an event once; logs and counters subscribe to it."""
