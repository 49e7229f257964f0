"""Shared test support: databases, clocks and running instances."""
