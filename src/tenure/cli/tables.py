"""Formats tables for the terminal."""

import re
from collections.abc import Callable, Mapping, Sequence

from tenure.domain.meter import DECIMALS, MILLIONTHS

GAP = "  "
_NUMBER = re.compile(r"-|-?\d+(\.\d+)?").fullmatch


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows with aligned columns, column names in the first line, and numbers aligned to the right."""
    if not rows:
        return "no data"
    columns = [[name, *(_text(row[name]) for row in rows)] for name in rows[0]]
    aligned = [_aligned(column) for column in columns]
    return "\n".join(GAP.join(line).rstrip() for line in zip(*aligned, strict=True))


def fixed_text(millionths: int) -> str:
    """Format an amount with all six decimals, so that the decimal points of a column are aligned."""
    whole, rest = divmod(millionths, MILLIONTHS)
    return f"{whole}.{rest:0{DECIMALS}}"


def _aligned(column: Sequence[str]) -> Sequence[str]:
    width = max(map(len, column))
    justify: Callable[[str, int], str] = str.rjust if all(map(_NUMBER, column[1:])) else str.ljust
    return [justify(text, width) for text in column]


def _text(value: object) -> str:
    return "-" if value is None else str(value)
