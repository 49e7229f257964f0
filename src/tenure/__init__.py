"""Tenure: sessions by the seat, the tier and the minute."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """Read `__version__` from the package metadata only on demand: the read takes as long as a whole short command."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415

    return version("tenure")
