"""The database: one contract, three engines, nothing above it that knows SQL."""

from tenure.store.store import Store

__all__ = ["Store"]
