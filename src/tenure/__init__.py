"""Tenure: sessions by the seat, the tier and the minute."""

from importlib.metadata import version

__version__ = version("tenure")
